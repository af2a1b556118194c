"""The cache of prepared arrays, and the folders of data and cache."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from data_files import binary, cifar_archive, put
from equipoise import DataError, cache
from equipoise.paper.data import cifar10
from equipoise.paper.data import data_set as data_sets
from equipoise.paper.data.cifar10 import CIFAR10
from equipoise.places import cache_folder, data_folder
from problems import ROOT, run_command


def test_prepared_once_and_again_when_sources_change(place, monkeypatch):
    cifar_archive(place)
    calls = []

    def counted(files):
        calls.append(1)
        return cifar10.read(files)

    data_set = replace(CIFAR10, read=counted)
    first = data_set.prepared()
    assert isinstance(first["train_inputs"], np.memmap)
    again = data_set.prepared()
    assert len(calls) == 1
    assert np.array_equal(first["train_inputs"], again["train_inputs"])
    cifar_archive(place, test_batch=binary([7, 7]))
    assert data_set.prepared()["test_targets"].tolist() == [7, 7]
    assert len(calls) == 2
    monkeypatch.setattr(data_sets, "_version", lambda library: "another")
    data_set.prepared()
    assert len(calls) == 3


def test_a_damaged_cache_is_made_again(place):
    cifar_archive(place)
    whole = {key: np.array(value) for key, value in CIFAR10.prepared().items()}
    (kept,) = cache_folder().glob("cifar10-*")
    inputs, forms, checksums = (
        kept / "train_inputs.npy",
        kept / "arrays.json",
        cache_folder() / "checksums.json",
    )
    for path, content in (
        *(
            (inputs, damaged)
            for damaged in (inputs.read_bytes()[:100], b"", (kept / "test_inputs.npy").read_bytes())
        ),
        *(
            (file, text)
            for file in (forms, checksums)
            for text in (b"{}", b"[]", b"5", b"null", b'{"train_inputs": null}')
        ),
    ):
        path.write_bytes(content)
        arrays = CIFAR10.prepared()
        assert all(np.array_equal(whole[key], arrays[key]) for key in whole)
        assert {path.name for path in kept.iterdir()} == {
            "arrays.json",
            *(f"{key}.npy" for key in whole),
        }
    assert [path.name for path in cache_folder().iterdir() if path.name.startswith(".")] == []


def _prepare(_):
    return {
        key: int(np.asarray(value, dtype=np.int64).sum())
        for key, value in CIFAR10.prepared().items()
    }


@pytest.mark.slow
def test_several_processes_prepare_at_once(place):
    cifar_archive(place)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        sums = pool.map(_prepare, range(6))
    assert all(each == sums[0] for each in sums)
    assert len([*cache_folder().glob("*cifar10-*")]) == 1


def test_a_damaged_copy_that_another_process_has_moved_away(tmp_path, monkeypatch):
    place = tmp_path / "cache" / "a-data-set"
    place.mkdir(parents=True)
    load = cache.load

    def load_and_lose(path):
        arrays = load(path)
        if path.exists() and arrays is None:
            path.rmdir()
        return arrays

    monkeypatch.setattr(cache, "load", load_and_lose)
    cache.keep({"numbers": np.arange(3)}, place)
    assert load(place)["numbers"].tolist() == [0, 1, 2]


def test_what_is_changed_in_memory_stays_out_of_the_cache(place):
    cifar_archive(place)
    CIFAR10.prepared()["train_inputs"][:] = 0
    assert CIFAR10.prepared()["train_inputs"].sum() > 0


def test_a_cache_that_cannot_be_written(place, monkeypatch, tmp_path):
    cifar_archive(place)
    put(tmp_path / "file", b"")
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match=r"cannot be kept in .*EQUIPOISE_CACHE moves the cache"):
        CIFAR10.prepared()


def test_a_full_disk_leaves_nothing_half_written(place, monkeypatch):
    cifar_archive(place)

    def full(file, arr):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cache.np, "save", full)
        with pytest.raises(DataError, match="No space left on device"):
            CIFAR10.prepared()
    assert [path.name for path in cache_folder().iterdir()] == ["checksums.json"]


KEYS = """
from pathlib import Path
from equipoise.paper.data import cifar10

def edit(module):
    with Path(module).open("a") as file:
        file.write("# changed")

def key():
    return cifar10.CIFAR10._kept_in.name

folder = Path(cifar10.__file__).parent
first = key()
for other in ("femnist.py", "files.py", "../tasks/cifar10.py", "../tasks/table1.py"):
    edit(folder / other)
assert key() == first, "an unrelated module changed the key"
edit(folder / "cifar10.py")
assert key() != first, "a changed reader kept the key"
"""


def test_the_key_depends_on_the_reader_and_on_no_other_module(place, tmp_path):
    cifar_archive(place)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    subprocess.run([sys.executable, "-c", KEYS], env=environment, check=True)
    assert replace(CIFAR10, version=2)._kept_in != CIFAR10._kept_in


# ---- folders ----


@pytest.fixture
def bare(monkeypatch):
    """An environment that says nothing about folders, of a user who has a home folder."""
    for name in ("EQUIPOISE_DATA", "EQUIPOISE_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    return monkeypatch


FOLDERS = [
    (data_folder, "EQUIPOISE_DATA", "XDG_DATA_HOME", ".local/share"),
    (cache_folder, "EQUIPOISE_CACHE", "XDG_CACHE_HOME", ".cache"),
]


@pytest.mark.parametrize(("folder", "own", "xdg", "default"), FOLDERS)
def test_our_own_variable_wins_then_xdg_then_home(bare, folder, own, xdg, default):
    assert str(folder()) == f"/home/ada/{default}/equipoise"
    bare.setenv(xdg, "/somewhere")
    assert str(folder()) == "/somewhere/equipoise"
    bare.setenv(own, "/mine")
    assert str(folder()) == "/mine"


@pytest.mark.parametrize(("folder", "own", "xdg", "default"), FOLDERS)
@pytest.mark.parametrize("value", ["", "somewhere", "./somewhere"])
def test_a_relative_xdg_path_is_ignored(bare, folder, own, xdg, default, value):
    bare.setenv(xdg, value)
    bare.setenv(own, "")
    assert str(folder()) == f"/home/ada/{default}/equipoise"


@pytest.fixture
def homeless(bare):
    """No HOME, and no entry in the list of users."""

    def no_entry(user):
        raise KeyError(user)

    bare.delenv("HOME")
    bare.setattr("pwd.getpwuid", no_entry)
    return bare


@pytest.mark.parametrize(("folder", "own", "xdg", "default"), FOLDERS)
def test_a_user_without_a_home_folder_is_told_the_way_out(homeless, folder, own, xdg, default):
    with pytest.raises(DataError, match=f"no home folder: set the environment variables .*{own}"):
        folder()
    homeless.setenv("HOME", "")  # which would be /
    with pytest.raises(DataError, match="no home folder"):
        folder()
    homeless.setenv(xdg, "/somewhere")
    assert str(folder()) == "/somewhere/equipoise"


@pytest.mark.parametrize(
    "command",
    [
        ("data",),
        ("data", "check", "cifar10"),
        ("data", "fetch", "cifar10"),
        ("train", "--task", "cifar10", "--epsilon", "inf"),
    ],
)
def test_commands_without_a_home_folder(homeless, capsys, command):
    code, _, error = run_command(capsys, *command)
    assert code == 2
    assert "this user has no home folder" in error
    assert len(error.strip().splitlines()) == 1
