"""Data sets on disk: official layouts, real files, hostile files, the cache of prepared arrays,
downloads."""

import hashlib
import http.server
import io
import json
import multiprocessing
import os
import pickle
import pickletools
import tarfile
import threading
import zipfile
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from equipoise import DataError, train
from equipoise.data_sets import files, prepared
from equipoise.paper.data.downloads import fetch
from equipoise.paper.data.inventory import DATA_SETS, take_stock
from equipoise.paper.data.prepared import Download
from equipoise.paper.tasks.cifar10 import CIFAR10
from equipoise.paper.tasks.cifar10 import prepare as prepare_cifar10
from equipoise.paper.tasks.femnist import FEMNIST
from equipoise.paper.tasks.femnist import prepare as prepare_femnist
from equipoise.paper.tasks.reddit import REDDIT, next_word_accuracy, next_word_loss
from equipoise.paper.tasks.reddit import prepare as prepare_reddit
from equipoise.tasks import Options, load_task
from problems import DATA, run_command


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """The data sets at hand, with one cache for all tests."""
    if not (DATA / "cifar10").is_dir():
        pytest.skip(
            "the data sets are not here: `equipoise data` tells how to get them into "
            "$EQUIPOISE_DATA"
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUIPOISE_DATA", str(DATA))
        patch.setenv("EQUIPOISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield patch


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty data folder with a cache of its own."""
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"


def tar_of(path, members, mode="w:gz"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def binary(labels, seed=0):
    """Records of CIFAR-10's binary form."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return np.hstack([np.array(labels, dtype=np.uint8)[:, None], pixels]).tobytes()


def pickled(content):
    """The same records as Python 2 pickled them: arrays by numpy's old name, and bytes as
    strings.
    """
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
    new = pickle.dumps(
        {"labels": records[:, 0].tolist(), "data": records[:, 1:].copy()}, protocol=3
    )
    new = new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    strings = {"BINBYTES": b"T", "SHORT_BINBYTES": b"U"}
    old = bytearray(new)
    for opcode, _, position in pickletools.genops(new):
        if opcode.name in strings:
            old[position : position + 1] = strings[opcode.name]
    return bytes(old)


BATCHES = {
    **{f"data_batch_{i}": binary([i % 10, 1, 2, 9], seed=i) for i in range(1, 6)},
    "test_batch": binary([0, 1, 9], seed=9),
}


def cifar_archive(place, **changes):
    """A small CIFAR-10 in its official archive; `changes` replace whole files."""
    members = {
        f"cifar-10-batches-bin/{name}.bin": content
        for name, content in {**BATCHES, **changes}.items()
        if content
    }
    tar_of(place / "cifar10" / "cifar-10-binary.tar.gz", members)


def leaf(users):
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(r["y"]) for r in users.values()],
            "user_data": users,
        }
    ).encode()


def writer(labels, seed=0):
    pictures = np.random.default_rng(seed).integers(0, 256, (len(labels), 784)) / 255
    return {"x": pictures.tolist(), "y": list(labels)}


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# ---- real files ----


def test_real_cifar10(real):
    arrays = CIFAR10.prepared(prepare_cifar10)
    assert arrays["train_inputs"].shape == (20_000, 3, 32, 32)
    assert arrays["test_inputs"].shape == (4_000, 3, 32, 32)
    assert arrays["train_targets"][:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert arrays["train_inputs"][0, 0, 0, :4].tolist() == [59, 43, 50, 68]
    assert np.bincount(arrays["train_targets"]).tolist() == [2_000] * 10
    assert np.bincount(arrays["train_owners"])[1:].tolist() == [4_000] * 5
    task = load_task("cifar10", Options())
    assert (task.clients.sizes, task.dimension, task.batch) == ((4_000,) * 5, 878_538, 64)
    assert task.constant_error == pytest.approx(0.9)


def test_real_femnist(real):
    arrays = FEMNIST.prepared(prepare_femnist)
    assert (len(arrays["train_targets"]), len(arrays["test_targets"])) == (14_708, 1_685)
    assert {*arrays["train_targets"]} == {*range(62)}
    assert {*arrays["train_owners"]} == {*arrays["test_owners"]} == {*range(105)}
    assert arrays["train_inputs"].max() == 1
    assert arrays["train_inputs"][:, 0, 0, 0].mean() > 0.99
    task = load_task("femnist", Options())
    assert (sum(task.clients.sizes), len(task.clients.sizes), task.dimension) == (
        14_708,
        6,
        608_702,
    )
    assert load_task("femnist-narrow", Options()).dimension == 44_318
    by_writer = load_task("femnist", Options(split="natural"))
    assert sum(by_writer.clients.sizes) == 14_708
    assert len({*by_writer.clients.sizes}) > 2
    for inputs, _ in by_writer.clients.data:  # no writer is with two clients
        owners = {*arrays["train_owners"][inputs.index.numpy()].tolist()}
        others = [i.index.numpy() for i, _ in by_writer.clients.data if i is not inputs]
        assert not owners & {*arrays["train_owners"][np.concatenate(others)].tolist()}


def test_real_reddit(real):
    arrays = REDDIT.prepared(prepare_reddit)
    assert (arrays["train_inputs"].shape, arrays["test_inputs"].shape) == (
        (50_990, 10),
        (18_123, 10),
    )
    assert arrays["vocabulary"].tolist() == [10_000]
    first = arrays["train_inputs"][:, 0]
    assert Counter(first.tolist())[5] == 8_259  # every comment begins with <BOS>, number 5
    tokens, targets = arrays["train_inputs"], arrays["train_targets"]
    inside = tokens[:, 1:] != 0
    assert (
        tokens[:, 1:][inside] == targets[:, :-1, 0][inside]
    ).all()  # the target is the next input
    assert (targets[..., 1] == (tokens != 0)).all()
    assert (tokens == 1).sum() / (tokens != 0).sum() == pytest.approx(
        0.0553, abs=0.02
    )  # the vocabulary covers 92.5 % of words
    task = load_task("reddit", Options())
    assert (task.clients.sizes, task.dimension) == ((16_997, 16_997, 16_996), 6_182_672)


@pytest.mark.parametrize("name", ["cifar10-narrow", "femnist-narrow"])
@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-scaffnew"])
def test_real_images_are_learnt(real, name, algorithm):
    """A few steps bring the loss down; measured are all test records, and the clients' own."""
    flags = {
        "task": name,
        "iterations": 60,
        "local_steps": 20,
        "eta": 0.1,
        "algorithm": algorithm,
        "batch": 16,
    }
    result = train(epsilon=float("inf"), **flags)
    assert result.curve[-1].test_loss < result.curve[0].test_loss - 0.004
    assert result.client_error is not None
    assert abs(result.client_error - result.test_error) < 0.02
    assert len(result.curve) < 10  # a network is not measured after every round


def test_real_images_with_the_privacy_of_a_record(real):
    flags = {
        "task": "femnist-narrow",
        "iterations": 4,
        "local_steps": 2,
        "clip_norm": 1.0,
        "epsilon": 3.0,
    }
    result = train(unit="record", sampling_rate=0.01, **flags)
    assert result.private
    assert result.epsilon_spent <= 3
    assert not any("SLOW" in notice for notice in result.notices)


def test_next_word_accuracy_as_leaf_counts_it():
    """Right are 2 of the 4 counted: <UNK> and <PAD> are never right, and the padded place does not
    count."""
    words = [[7, 1, 0, 9, 0] + [0] * 5]
    counted = [[1, 1, 1, 1, 0] + [0] * 5]
    targets = torch.tensor([words, counted]).permute(1, 2, 0)
    outputs = torch.nn.functional.one_hot(targets[..., 0], 12).double()
    assert next_word_accuracy(outputs, targets) == pytest.approx(2 / 4)
    outputs[0, 0] = 0
    assert next_word_accuracy(outputs, targets) == pytest.approx(1 / 4)
    loss = next_word_loss(outputs, targets)
    outputs[0, 5:] = 100 * torch.randn(
        5, 12
    )  # what is predicted behind the padding does not matter
    assert torch.equal(loss, next_word_loss(outputs, targets))


# ---- layouts ----


def test_both_layouts_packed_or_not_hold_the_same(place):
    cifar_archive(place)
    first = CIFAR10.prepared(prepare_cifar10)
    assert first["train_targets"].tolist() == [
        label for i in range(1, 6) for label in (i % 10, 1, 2, 9)
    ]
    (place / "cifar10" / "cifar-10-binary.tar.gz").unlink()
    for name, content in BATCHES.items():
        put(place / "cifar10" / "cifar-10-batches-py" / name, pickled(content))
    second = CIFAR10.prepared(prepare_cifar10)
    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_a_packed_copy_beside_unpacked_files_is_not_read_twice(place):
    cifar_archive(place)
    put(place / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin", binary([3]))
    arrays = CIFAR10.prepared(prepare_cifar10)
    assert (len(arrays["train_targets"]), arrays["test_targets"].tolist()) == (20, [3])


def test_femnist_writers_become_clients(place):
    users = {f"f{i:04}": writer([i % 62, 1, 2, 3], i) for i in range(7)}
    put(place / "femnist" / "data" / "train" / "a.json", leaf(users))
    put(place / "femnist" / "data" / "test" / "a.json", leaf({name: writer([5]) for name in users}))
    put(place / "femnist" / "data" / "test_without_train" / "b.json", b"not looked at")
    task = load_task("femnist-narrow", Options(split="natural", clients=7, public_records=3))
    assert sum(task.clients.sizes) == 25
    assert task.pool.sizes == (3,)
    assert task.clients.data[0][0].shape[1:] == (1, 28, 28)
    with pytest.raises(
        ValueError, match="clients=8 with split=natural: there are 7 writers to deal"
    ):
        load_task("femnist-narrow", Options(split="natural", clients=8))


# ---- bad files ----


class Evil:
    def __reduce__(self):
        return os.mkdir, ("hacked",)


def femnist_files(place, train, test=None):
    put(place / "femnist" / "data" / "train" / "a.json", train)
    put(
        place / "femnist" / "data" / "test" / "a.json",
        leaf({"f1": writer([1])}) if test is None else test,
    )


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
    "code": (
        lambda place: put(place / "cifar10/cifar-10-batches-py/data_batch_1", pickle.dumps(Evil())),
        CIFAR10,
        r"data_batch_1 asks for (posix|nt)\.mkdir: .*nothing of it was run",
    ),
    "half a pickle": (
        lambda place: put(
            place / "cifar10/cifar-10-batches-py/data_batch_1", pickled(BATCHES["test_batch"])[:500]
        ),
        CIFAR10,
        "data_batch_1 is not a readable pickle",
    ),
    "another pickle": (
        lambda place: put(place / "cifar10/cifar-10-batches-py/data_batch_1", pickle.dumps([1, 2])),
        CIFAR10,
        "its `data` is not an array of bytes",
    ),
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
        lambda place: [
            put(
                place / f"reddit/data/{part}/a.json",
                leaf({"1": {"x": [[["a"] * 10]], "y": [{"target_tokens": [["a"] * 10]}]}}),
            )
            for part in ("train", "test")
        ],
        REDDIT,
        "vocabulary is missing",
    ),
    "code in the vocabulary": (
        lambda place: put(place / "reddit/vocab/reddit_vocab.pck", pickle.dumps({"vocab": Evil()})),
        REDDIT,
        r"reddit_vocab.pck asks for (posix|nt)\.mkdir",
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
        data_set.prepared(DATA_SETS[data_set.name][1])
    assert not (tmp_path / "hacked").exists()
    assert [
        path.name for path in (tmp_path / "cache").rglob("*") if path.name != "checksums.json"
    ] == []
    assert "unreadable: " in (said := take_stock(data_set.name, read=True).state)
    assert "Traceback" not in said


def test_a_pickle_cannot_make_numpy_follow_pointers(place):
    """An array of objects whose bytes would be taken for addresses; and tuples nested so deep that
    hashing one would crash."""
    raw = np.arange(6144, dtype=np.uint8).tobytes()

    class Kind:
        def __reduce__(self):
            return np.dtype, ("O8", 0, 1), (3, "|", None, None, None, -1, -1, 0)

    class Images:
        def __reduce__(self):
            rebuild = np._core.multiarray._reconstruct
            return rebuild, (np.ndarray, (0,), b"b"), (1, (2, 3072 // 8), Kind(), False, raw)

    put(
        place / "cifar10/cifar-10-batches-py/data_batch_1",
        pickle.dumps({"data": Images(), "labels": [1, 2]}, protocol=3),
    )
    with pytest.raises(DataError, match="its `data` is not an array of bytes"):
        CIFAR10.prepared(prepare_cifar10)
    put(
        place / "cifar10/cifar-10-batches-py/data_batch_1",
        b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s.",
    )
    with pytest.raises(DataError, match="200,000 tuples"):
        CIFAR10.prepared(prepare_cifar10)


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
    assert len(CIFAR10.prepared(prepare_cifar10)["train_targets"]) == 20


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
            match=r"cifar-10.tar is broken or cut short \(after cifar-10-batches-bin/data_batch_1.bin",
        ):
            CIFAR10.prepared(prepare_cifar10)


def test_records_of_nobody_s_are_not_split_by_owner(place):
    cifar_archive(place)
    with pytest.raises(
        ValueError, match="split=natural: test records come from files that have no training record"
    ):
        load_task("cifar10-narrow", Options(split="natural"))


def test_public_records_leave_private_ones(place):
    users = {f"f{i}": writer([1, 2], i) for i in range(6)}
    femnist_files(place, leaf(users), leaf({name: writer([5]) for name in users}))
    with pytest.raises(ValueError, match="public_records"):
        load_task("femnist-narrow", Options(split="natural", public_records=12))


def test_names_that_cannot_be_printed_are_told_all_the_same(place):
    femnist_files(place, leaf({"\ud800\x1b[2J": writer([1])}))
    with pytest.raises(DataError) as told:
        FEMNIST.prepared(prepare_femnist)
    assert str(told.value).isprintable()
    femnist_files(
        place,
        json.dumps(
            {"users": ["f1"], "user_data": {"f1": {"x": [[0.0] * 784], "y": [10**400]}}}
        ).encode(),
    )
    with pytest.raises(DataError, match="labels not numbers"):
        FEMNIST.prepared(prepare_femnist)


@pytest.mark.parametrize(
    ("task", "file", "said"),
    [
        (
            "hippocampus",
            "brain-mri/Task04_Hippocampus/imagesTr/hippocampus_001.nii.gz",
            "nibabel and torch: pip install 'equipoise[mri]'",
        ),
        ("messidor", "fundus/Base11.zip", "pillow and xlrd: pip install 'equipoise[images]'"),
    ],
)
def test_a_missing_library_is_one_sentence(place, capsys, monkeypatch, task, file, said):
    put(place / file, b"")
    monkeypatch.setattr(prepared, "_version", lambda library: "none")
    code, out, _ = run_command(capsys, "data", "check", task)
    assert code == 1
    assert f"task={task} needs {said}" in out


def test_a_link_is_no_file(place):
    (place / "cifar10").mkdir(parents=True)
    with tarfile.open(place / "cifar10" / "cifar-10.tar", "w") as archive:
        link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match=r"data_batch_1.bin is a link or a device, not a file"):
        CIFAR10.prepared(prepare_cifar10)


def test_bombs_are_not_swallowed(place, monkeypatch):
    """A member larger than any of the data set, and archives that swell without end."""
    name = "cifar-10-batches-bin/data_batch_1.bin"
    monkeypatch.setattr(files, "SLACK", 2**20)
    tar_of(
        place / "cifar10" / "cifar-10.tar.xz",
        {"zeros": bytes(50_000_000), name: binary([1])},
        "w:xz",
    )
    with pytest.raises(DataError, match="swells to more than 300 times its size"):
        CIFAR10.prepared(prepare_cifar10)
    (place / "cifar10" / "cifar-10.tar.xz").unlink()
    with zipfile.ZipFile(place / "cifar10" / "cifar-10.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, bytes(50_000_000))
    with pytest.raises(DataError, match="swells to more than 300 times its size"):
        CIFAR10.prepared(prepare_cifar10)
    monkeypatch.setattr(files, "SLACK", 2**30)
    with pytest.raises(DataError, match=f"member {name} has 50,000,000 bytes"):
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
        CIFAR10.prepared(prepare_cifar10)


# ---- the cache ----


def test_prepared_once_and_again_when_sources_change(place, monkeypatch):
    cifar_archive(place)
    calls = []

    def counted(found):
        calls.append(1)
        return prepare_cifar10(found)

    counted.__module__ = prepare_cifar10.__module__
    first = CIFAR10.prepared(counted)
    assert isinstance(first["train_inputs"], np.memmap)
    again = CIFAR10.prepared(counted)
    assert len(calls) == 1
    assert np.array_equal(first["train_inputs"], again["train_inputs"])
    cifar_archive(place, test_batch=binary([7, 7]))
    assert CIFAR10.prepared(counted)["test_targets"].tolist() == [7, 7]
    assert len(calls) == 2
    monkeypatch.setattr(prepared, "_version", lambda library: "another")
    CIFAR10.prepared(counted)
    assert len(calls) == 3


def test_a_damaged_cache_is_made_again(place):
    cifar_archive(place)
    whole = {key: np.array(value) for key, value in CIFAR10.prepared(prepare_cifar10).items()}
    (kept,) = prepared.cache_folder().glob("cifar10-*")
    inputs, forms, checksums = (
        kept / "train_inputs.npy",
        kept / "arrays.json",
        prepared.cache_folder() / "checksums.json",
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
        arrays = CIFAR10.prepared(prepare_cifar10)
        assert all(np.array_equal(whole[key], arrays[key]) for key in whole)
        assert {path.name for path in kept.iterdir()} == {
            "arrays.json",
            *(f"{key}.npy" for key in whole),
        }
    assert [
        path.name for path in prepared.cache_folder().iterdir() if path.name.startswith(".")
    ] == []


def _prepare(_):
    return {
        key: int(np.asarray(value, dtype=np.int64).sum())
        for key, value in CIFAR10.prepared(prepare_cifar10).items()
    }


def test_several_processes_prepare_at_once(place):
    cifar_archive(place)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        sums = pool.map(_prepare, range(6))
    assert all(one == sums[0] for one in sums)
    assert len([*prepared.cache_folder().glob("*cifar10-*")]) == 1


def test_what_is_changed_in_memory_stays_out_of_the_cache(place):
    cifar_archive(place)
    CIFAR10.prepared(prepare_cifar10)["train_inputs"][:] = 0
    assert CIFAR10.prepared(prepare_cifar10)["train_inputs"].sum() > 0


def test_a_cache_that_cannot_be_written(place, monkeypatch, tmp_path):
    cifar_archive(place)
    put(tmp_path / "file", b"")
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match=r"cannot be kept in .*EQUIPOISE_CACHE moves the cache"):
        CIFAR10.prepared(prepare_cifar10)


def test_a_full_disk_leaves_nothing_half_written(place, monkeypatch):
    cifar_archive(place)

    def full(file, arr):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(prepared.np, "save", full)
        with pytest.raises(DataError, match="No space left on device"):
            CIFAR10.prepared(prepare_cifar10)
    assert [path.name for path in prepared.cache_folder().iterdir()] == ["checksums.json"]


# ---- the command ----


def test_a_missing_data_set_is_one_sentence_with_the_command(place, capsys):
    code, _, error = run_command(capsys, "train", "--task", "cifar10", "--epsilon", "inf")
    assert code == 2
    assert "run `equipoise data fetch cifar10`" in error
    assert str(place) in error
    code, _, error = run_command(capsys, "train", "--task", "messidor", "--epsilon", "inf")
    assert code == 2
    assert "https://www.adcis.net" in error


def test_the_list_of_data_sets(place, capsys):
    cifar_archive(place)
    code, out, _ = run_command(capsys, "data")
    assert code == 0
    assert "there, not read yet: `equipoise data check cifar10`" in out
    assert "not there" in out
    code, out, _ = run_command(capsys, "data", "check", "cifar10", "--json")
    (stock,) = json.loads(out)
    assert (stock["state"], stock["train"], stock["test"], stock["complete"]) == (
        "a part of it",
        20,
        3,
        False,
    )
    code, out, _ = run_command(capsys, "data")
    assert (
        "a part of it: 20 train and 3 test records (whole: 50,000 train and 10,000 test records)"
        in out
    )
    code, _, error = run_command(capsys, "data", "fetch", "nonsense")
    assert code == 2
    assert "'nonsense' is no data set" in error
    code, _, error = run_command(capsys, "data", "fetch", "messidor")
    assert code == 2
    assert "cannot be fetched by a command: ask for Base11.zip" in error


# ---- downloads ----


class Server(http.server.BaseHTTPRequestHandler):
    content, sent, asked, ranges = b"", None, [], True

    def do_GET(self):
        start = (
            int(self.headers["Range"].split("=")[1].rstrip("-"))
            if self.headers["Range"] and self.ranges
            else 0
        )
        self.asked.append(start)
        self.send_response(206 if start else 200)
        if start:
            self.send_header(
                "Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}"
            )
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start : self.sent])

    def log_message(self, *_):
        pass


@pytest.fixture
def served(place, monkeypatch):
    """CIFAR-10 from a server of our own; returns its handler and the data set."""
    cifar_archive(place)
    archive = place / "cifar10" / "cifar-10-binary.tar.gz"
    handler = type("Handler", (Server,), {"content": archive.read_bytes(), "asked": []})
    archive.unlink()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    md5 = hashlib.md5(handler.content).hexdigest()
    url = f"http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz"
    yield handler, replace(CIFAR10, downloads=(Download(url, len(handler.content), f"md5:{md5}"),))
    server.shutdown()


def names(data_set):
    return sorted(path.name for path in data_set.place.iterdir())


def test_fetch_and_resume(served):
    handler, data_set = served
    handler.sent = 10_000
    with pytest.raises(DataError, match=r"10,000 of .* bytes are kept, run it again to go on"):
        fetch(data_set)
    assert names(data_set) == ["cifar-10-binary.tar.gz.part"]
    handler.sent, heard = None, []
    fetch(data_set, lambda there, of: heard.append((there, of)))
    assert handler.asked == [0, 10_000]
    assert heard[-1] == (len(handler.content),) * 2
    assert names(data_set) == ["cifar-10-binary.tar.gz"]
    assert len(data_set.prepared(prepare_cifar10)["train_targets"]) == 20
    fetch(data_set)
    assert len(handler.asked) == 2  # nothing was asked for again


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]
)
def test_fetch_from_a_server_that_talks_nonsense(served, answer):
    handler, data_set = served
    handler.do_GET = lambda self: self.wfile.write(answer)
    with pytest.raises(DataError, match="did not answer as it should"):
        fetch(data_set)
    assert "cifar-10-binary.tar.gz" not in names(data_set)


def test_fetch_from_a_server_that_cannot_resume(served):
    handler, data_set = served
    put(data_set.place / "cifar-10-binary.tar.gz.part", b"x" * 100)
    handler.ranges = False
    (path,) = fetch(data_set)
    assert path.read_bytes() == handler.content


def test_a_wrong_file_is_not_kept(served):
    handler, data_set = served
    handler.content = handler.content[:-1] + b"x"
    with pytest.raises(
        DataError, match=r"its md5 is .*, not .*; what came was deleted, fetch it again"
    ):
        fetch(data_set)
    assert names(data_set) == []
    put(data_set.place / "cifar-10-binary.tar.gz", b"something else")
    with pytest.raises(DataError, match="its md5 is"):
        fetch(data_set)


def test_no_server(place):
    data_set = replace(CIFAR10, downloads=(Download("http://127.0.0.1:9/a.tar.gz", 1, "md5:0"),))
    with pytest.raises(DataError, match=r"http://127.0.0.1:9/a.tar.gz cannot be reached"):
        fetch(data_set)
