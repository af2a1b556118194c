"""Data files that are broken, misplaced or hostile: each is named in a sentence, none is obeyed."""

import json
import os
import pickle
import tarfile
import zipfile
from functools import partial

import numpy as np
import pytest

from data_files import (
    BATCHES,
    VOCABULARY,
    VOCABULARY_OF_TWO,
    binary,
    cifar_archive,
    femnist_files,
    leaf,
    put,
    reddit_files,
    tar_of,
    writer,
)
from equipoise import DataError
from equipoise.paper.data import data_set as data_sets
from equipoise.paper.data import files
from equipoise.paper.data.cifar10 import CIFAR10
from equipoise.paper.data.femnist import FEMNIST
from equipoise.paper.data.inventory import take_stock
from equipoise.paper.data.reddit import REDDIT
from equipoise.tasks import TaskOptions, load_task
from problems import run_command


class Evil:
    def __reduce__(self):
        return os.mkdir, ("hacked",)


WRONG = {
    "cut short": (
        partial(cifar_archive, test_batch=BATCHES["test_batch"][:-1]),
        CIFAR10,
        "test_batch.bin has 9,218 bytes",
    ),
    "label 10": (
        partial(cifar_archive, data_batch_2=binary([1, 10])),
        CIFAR10,
        "data_batch_2.bin: record 1 has label 10",
    ),
    "empty": (partial(cifar_archive, data_batch_2=b"\0"), CIFAR10, "data_batch_2.bin has 1 bytes"),
    "no test": (partial(cifar_archive, test_batch=None), CIFAR10, "has no test_batch file"),
    "half an archive": (
        lambda place: (
            cifar_archive(place),
            put(
                place / "cifar10/cifar-10-binary.tar.gz",
                (place / "cifar10/cifar-10-binary.tar.gz").read_bytes()[:20_000],
            ),
        ),
        CIFAR10,
        r"cifar-10-binary.tar.gz is broken or cut short \(after cifar-10-batches-bin/",
    ),
    "no archive": (
        lambda place: put(
            place / "cifar10/cifar-10-python.tar.gz", b"<html>not found</html>" * 100
        ),
        CIFAR10,
        "cifar-10-python.tar.gz is broken or cut short",
    ),
    "escape": (
        lambda place: tar_of(
            place / "cifar10/cifar-10.tar.gz",
            {"../../cifar-10-batches-bin/data_batch_1.bin": binary([1])},
        ),
        CIFAR10,
        "cifar-10.tar.gz: member '../../cifar-10-batches-bin/data_batch_1.bin' leads out of the "
        "archive",
    ),
    "absolute": (
        lambda place: tar_of(
            place / "cifar10/cifar-10.tar.gz",
            {"/cifar-10-batches-bin/data_batch_1.bin": binary([1])},
        ),
        CIFAR10,
        "leads out of the archive",
    ),
    "misnamed": (
        lambda place: tar_of(
            place / "cifar10/cifar-10.tar.gz", {"cifar/data_batch_1.bin": binary([1])}
        ),
        CIFAR10,
        "the data of task=cifar10 is not in",
    ),
    "unequal": (
        lambda place: femnist_files(place, leaf({"f1": {"x": [[0.0] * 784] * 3, "y": [1, 2]}})),
        FEMNIST,
        r"train/a.json, user f1: x and y must be lists of equal length, and are 3 and 2",
    ),
    "pixels": (
        lambda place: femnist_files(place, leaf({"f1": {"x": [[0.0] * 783], "y": [1]}})),
        FEMNIST,
        r"a.json, writer f1: pictures of shape \(783,\)",
    ),
    "ragged": (
        lambda place: femnist_files(place, leaf({"f1": {"x": [[0.0] * 784, [0.0]], "y": [1, 1]}})),
        FEMNIST,
        "a.json, writer f1: its pictures are not all lists of 784 numbers",
    ),
    "nan": (
        lambda place: femnist_files(place, leaf({"f1": {"x": [[float("nan")] * 784], "y": [1]}})),
        FEMNIST,
        "writer f1: a pixel is not between 0 and 1",
    ),
    "label 62": (
        lambda place: femnist_files(place, leaf({"f1": writer([62])})),
        FEMNIST,
        "writer f1: a label is not a whole number from 0 to 61",
    ),
    "other writers": (
        lambda place: femnist_files(place, leaf({"f1": writer([1]), "f2": writer([1])})),
        FEMNIST,
        "writer f2 .* has train samples and no test samples",
    ),
    "half a json": (
        lambda place: femnist_files(place, leaf({"f1": writer([1])})[:-9]),
        FEMNIST,
        "a.json is not JSON",
    ),
    "another json": (
        lambda place: femnist_files(place, b"[1, 2]"),
        FEMNIST,
        "a.json is not in LEAF's form",
    ),
    "no vocabulary": (
        lambda place: reddit_files(
            place, {"x": [[["a"] * 10]], "y": [{"target_tokens": [["a"] * 10]}]}, None
        ),
        REDDIT,
        "vocabulary is missing",
    ),
    "code in the vocabulary": (
        lambda place: put(place / VOCABULARY, pickle.dumps({"vocab": Evil()})),
        REDDIT,
        r"reddit_vocab.pck asks for (posix|nt)\.mkdir: a data file needs no code, and none was run",
    ),
    "arrays in the vocabulary": (
        lambda place: put(place / VOCABULARY, pickle.dumps({"vocab": np.arange(3)})),
        REDDIT,
        r"reddit_vocab.pck asks for numpy",
    ),
    "half a vocabulary": (
        lambda place: put(place / VOCABULARY, pickle.dumps({"vocab": {"a": 2}})[:20]),
        REDDIT,
        "reddit_vocab.pck is not a readable pickle",
    ),
    "another vocabulary": (
        lambda place: put(place / VOCABULARY, pickle.dumps([1, 2])),
        REDDIT,
        "reddit_vocab.pck is not LEAF's vocabulary",
    ),
    "numbers beyond the vocabulary": (
        lambda place: put(place / VOCABULARY, pickle.dumps(VOCABULARY_OF_TWO | {"size": 2})),
        REDDIT,
        "does not give every token a number below its size, 2",
    ),
    "empty comments": (
        lambda place: reddit_files(place, {"x": [[]], "y": [{"target_tokens": []}]}),
        REDDIT,
        "Reddit has no train sequences",
    ),
    "a dead link": (
        lambda place: (
            cifar_archive(place),
            (place / "cifar10" / "cifar-gone.tar").symlink_to("nowhere"),
        ),
        CIFAR10,
        "cifar-gone.tar cannot be read: No such file",
    ),
    "nine tokens": (
        lambda place: put(
            place / "reddit/data/train/a.json",
            leaf({"1": {"x": [[["a"] * 9]], "y": [{"target_tokens": [["a"] * 9]}]}}),
        ),
        REDDIT,
        "train/a.json, user 1, comment 0: a sequence is not 10 tokens",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_files_are_named_and_leave_nothing(case, place, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    make, data_set, message = WRONG[case]
    make(place)
    with pytest.raises(DataError, match=message):
        data_set.prepared()
    assert not (tmp_path / "hacked").exists()
    assert [
        path.name for path in (tmp_path / "cache").rglob("*") if path.name != "checksums.json"
    ] == []
    state = take_stock(data_set.name, read=True).state
    assert state.startswith("unreadable: ")
    assert "Traceback" not in state


def test_a_pickle_of_nested_tuples_is_not_opened(place):
    """Nested so deep that hashing one would crash the interpreter."""
    put(place / VOCABULARY, b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s.")
    with pytest.raises(DataError, match="200,000 tuples"):
        REDDIT.prepared()


@pytest.mark.parametrize("prefix", ["copy/", "./"])
def test_no_record_is_read_twice(place, prefix):
    """A second copy in another folder, or an archive with other paths, beside the unpacked
    files.
    """
    for name, content in BATCHES.items():
        put(place / "cifar10" / "cifar-10-batches-bin" / f"{name}.bin", content)
    members = {
        f"{prefix}cifar-10-batches-bin/{name}.bin": content for name, content in BATCHES.items()
    }
    tar_of(place / "cifar10" / "cifar-10-binary.tar.gz", members)
    for name, content in BATCHES.items():
        put(place / "cifar10" / "more" / "cifar-10-batches-bin" / f"{name}.bin", content)
    assert len(CIFAR10.prepared()["train_targets"]) == 20


def test_a_damaged_header_is_not_the_end_of_an_archive(place):
    path = place / "cifar10" / "cifar-10.tar"
    members = {f"cifar-10-batches-bin/{name}.bin": content for name, content in BATCHES.items()}
    tar_of(path, members, "w")
    whole = bytearray(path.read_bytes())
    second = whole.index(b"cifar-10-batches-bin/data_batch_2.bin")
    for damaged in (whole[:second], whole[:second] + b"\x07" * 512 + whole[second + 512 :]):
        path.write_bytes(damaged)
        with pytest.raises(
            DataError,
            match=r"cifar-10.tar is broken or cut short "
            r"\(after cifar-10-batches-bin/data_batch_1.bin",
        ):
            CIFAR10.prepared()


def test_records_of_nobody_s_are_not_split_by_owner(place):
    cifar_archive(place)
    with pytest.raises(
        ValueError, match="split=natural: test records come from files that have no training record"
    ):
        load_task("cifar10-narrow", TaskOptions(split="natural"))


def test_public_records_leave_private_ones(place):
    users = {f"f{i}": writer([1, 2], i) for i in range(6)}
    femnist_files(place, leaf(users), leaf({name: writer([5]) for name in users}))
    with pytest.raises(ValueError, match="public_records"):
        load_task("femnist-narrow", TaskOptions(split="natural", public_records=12))


def test_names_that_cannot_be_printed_are_escaped(place):
    femnist_files(place, leaf({"\ud800\x1b[2J": writer([1])}))
    with pytest.raises(DataError) as raised:
        FEMNIST.prepared()
    assert str(raised.value).isprintable()
    femnist_files(
        place,
        json.dumps(
            {"users": ["f1"], "user_data": {"f1": {"x": [[0.0] * 784], "y": [10**400]}}}
        ).encode(),
    )
    with pytest.raises(DataError, match="labels not numbers"):
        FEMNIST.prepared()


@pytest.mark.parametrize(
    ("task", "file", "needed"),
    [
        (
            "hippocampus",
            "brain-mri/Task04_Hippocampus/imagesTr/hippocampus_001.nii.gz",
            "nibabel and torch: pip install 'equipoise[mri]'",
        ),
        ("messidor", "fundus/Base11.zip", "pillow and xlrd: pip install 'equipoise[images]'"),
    ],
)
def test_a_missing_library_is_one_sentence(place, capsys, monkeypatch, task, file, needed):
    put(place / file, b"")
    monkeypatch.setattr(data_sets, "_version", lambda library: "none")
    code, out, _ = run_command(capsys, "data", "check", task)
    assert code == 1
    assert f"task={task} needs {needed}" in out


def test_a_link_is_no_file(place):
    (place / "cifar10").mkdir(parents=True)
    with tarfile.open(place / "cifar10" / "cifar-10.tar", "w") as archive:
        link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match=r"data_batch_1.bin is a link or a device, not a file"):
        CIFAR10.prepared()


def test_bombs_are_not_swallowed(place, monkeypatch):
    """A member larger than any of the data set, and archives that swell without end."""
    name = "cifar-10-batches-bin/data_batch_1.bin"
    monkeypatch.setattr(files, "SLACK", 2**20)
    tar_of(
        place / "cifar10" / "cifar-10.tar.xz",
        {"zeros": bytes(50_000_000), name: binary([1])},
        "w:xz",
    )
    with pytest.raises(DataError, match="unpacks to more than 300 times its size"):
        CIFAR10.prepared()
    (place / "cifar10" / "cifar-10.tar.xz").unlink()
    with zipfile.ZipFile(place / "cifar10" / "cifar-10.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, bytes(50_000_000))
    with pytest.raises(DataError, match="unpacks to more than 300 times its size"):
        CIFAR10.prepared()
    monkeypatch.setattr(files, "SLACK", 2**30)
    with pytest.raises(DataError, match=f"{name} has 50,000,000 bytes"):
        list(files.read_files(place / "cifar10", CIFAR10.sources, CIFAR10._pattern, 1_000_000))


def test_a_zip_that_lies_about_a_size_is_refused(place):
    (place / "cifar10").mkdir(parents=True)
    path = place / "cifar10" / "cifar-10.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cifar-10-batches-bin/data_batch_1.bin", binary([1] * 4))
    content = path.read_bytes()
    at = content.rindex(b"PK\x01\x02") + 24  # the size in the central directory
    path.write_bytes(content[:at] + (3073).to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(DataError, match=r"cifar-10.zip"):
        CIFAR10.prepared()
