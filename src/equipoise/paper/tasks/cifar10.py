"""CIFAR-10 (Krizhevsky 2009): what is in the picture? 32 x 32 colour photographs of ten kinds of
things.

Both official archives are read, packed or unpacked: `cifar-10-batches-py` (pickles of numpy arrays)
and `cifar-10-batches-bin` (records of a label byte and 3,072 pixel bytes, red, green and blue
planes), with any number of records in a file. As in the paper pixels are used directly: the network
only divides them by 255.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from equipoise.errors import DataError
from equipoise.paper.data.files import File, unpickled
from equipoise.paper.data.prepared import Arrays, DataSet, Download
from equipoise.paper.networks import NARROW, Cnn
from equipoise.paper.tasks.table1 import Row, federated_task, majority_error
from equipoise.tasks.own import accuracy
from equipoise.tasks.task import Options, Task, TaskSpec

ROW = Row(clients=5, batch=64, iterations=10_000, clips=(10, 50, 100), learning_rate=0.01)
CLASSES, SHAPE, PIXELS = 10, (3, 32, 32), 3072
CIFAR10 = DataSet(
    name="cifar10",
    folder="cifar10",
    wanted=r"(?<![^/])cifar-10-batches-(?:py|bin)/(?:data_batch_\d+|test_batch)(?:\.bin)?",
    archives="cifar",
    most=2**29,
    records=(50_000, 10_000),
    table_1="5 clients: 10,000 ± 0 train, 2,000 ± 0 test",
    licence="none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, "
    "2009",
    how="download cifar-10-python.tar.gz or cifar-10-binary.tar.gz from "
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            170_498_071,
            "md5:c58f30108f718f92721af3b95e74349a",
        ),
    ),
)


class _Array:
    """Stands for a pickled numpy array, or its type: it keeps what it is told, and does nothing."""

    def __init__(self, *told: Any) -> None:
        self.told, self.state = told, ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


NUMPY = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
}


def cifar10(
    options: Options, widths: tuple[int, int, int] = (32, 64, 512), name: str = "cifar10"
) -> Task:
    arrays = CIFAR10.prepared(prepare)
    return federated_task(
        name,
        partial(Cnn, *SHAPE[:2], CLASSES, widths),
        arrays,
        ROW,
        cross_entropy,
        accuracy,
        options,
        owner="file",
        natural=False,
        constant_error=majority_error(arrays["test_targets"]),
        error_name="1 - accuracy",
    )


def prepare(files: Iterator[File]) -> Arrays:
    """Images as bytes [n, 3, 32, 32], labels, and the number of the file they come from."""
    found: dict[str, dict[str, tuple[NDArray[Any], NDArray[Any]]]] = {"py": {}, "bin": {}}
    for name, place, content in files:
        version = "py" if "-py/" in name else "bin"
        found[version][name] = (
            _of_pickle(content, place) if version == "py" else _of_binary(content, place)
        )
    batches = found["py"] or found["bin"]  # the same records, if both are there
    arrays: Arrays = {}
    for part, prefix in (("train", "data_batch"), ("test", "test_batch")):
        names = sorted(name for name in batches if prefix in name)
        if not names:
            raise DataError(f"CIFAR-10 has no {prefix} file beside {', '.join(sorted(batches))}")
        images, labels = (
            np.concatenate(both) for both in zip(*(batches[name] for name in names), strict=True)
        )
        numbers = [int(re.sub(r"\D", "", name.rpartition("/")[2]) or 0) for name in names]
        arrays[f"{part}_inputs"] = images.reshape(-1, *SHAPE)
        arrays[f"{part}_targets"] = labels
        arrays[f"{part}_owners"] = np.repeat(numbers, [len(batches[name][1]) for name in names])
    return arrays


def _of_binary(content: bytes, place: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if not content or len(content) % (PIXELS + 1):
        raise DataError(
            f"{place} has {len(content):,} bytes, not a whole number of records of {PIXELS + 1:,} "
            f"bytes"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, PIXELS + 1)
    return records[:, 1:], _labels(records[:, 0], place)


def _of_pickle(content: bytes, place: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = unpickled(content, place, NUMPY)
    pickled, labels = (
        (batch.get("data"), batch.get("labels")) if isinstance(batch, dict) else (None, None)
    )
    images = _bytes_of(pickled)
    if images is None:
        raise DataError(f"{place}: its `data` is not an array of bytes [records, {PIXELS:,}]")
    if (
        not isinstance(labels, list)
        or len(labels) != len(images)
        or not all(type(label) is int for label in labels)
    ):
        raise DataError(
            f"{place}: its `labels` are not one whole number for each of its {len(images):,} images"
        )
    return images, _labels(np.array(labels), place)


def _bytes_of(pickled: Any) -> NDArray[np.uint8] | None:
    """The images [records, 3072] of a pickled array, if it is one of bytes, row by row."""
    state = pickled.state if isinstance(pickled, _Array) else ()
    if not isinstance(state, tuple) or len(state) != 5:
        return None
    _, shape, kind, by_columns, content = state
    if (
        not isinstance(kind, _Array)
        or kind.told[:1] not in (("u1",), ("uint8",))
        or (by_columns is not False and by_columns != 0)
    ):
        return None
    raw = content.encode("latin1") if isinstance(content, str) else content
    if (
        not isinstance(raw, bytes)
        or not raw
        or shape != (len(raw) // PIXELS, PIXELS)
        or len(raw) % PIXELS
    ):
        return None
    return np.frombuffer(raw, dtype=np.uint8).reshape(-1, PIXELS)


def _labels(labels: NDArray[Any], place: str) -> NDArray[np.int64]:
    wrong = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if len(wrong):
        raise DataError(
            f"{place}: record {wrong[0]} has label {labels[wrong[0]]}, which is not 0 to "
            f"{CLASSES - 1}"
        )
    return labels.astype(np.int64)


SPEC = TaskSpec("cifar10", cifar10)
NARROW_SPEC = TaskSpec("cifar10-narrow", partial(cifar10, widths=NARROW, name="cifar10-narrow"))
