"""CIFAR-10 (Krizhevsky 2009): 32 x 32 colour photographs of ten kinds of things.

The official binary version is read, packed or unpacked: `cifar-10-batches-bin`, records of a label
byte and 3,072 pixel bytes (red, green and blue planes), any number of them in a file.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.cache import Arrays
from equipoise.errors import DataError
from equipoise.paper.data.data_set import DataSet, Download
from equipoise.paper.data.files import File

CLASSES, SHAPE, PIXELS = 10, (3, 32, 32), 3072


class Batch(NamedTuple):
    """The records of a file, and its number (0 for the test file)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    number: int


def read(files: Iterator[File]) -> Arrays:
    """Images as bytes [n, 3, 32, 32], labels, and the number of the file they come from."""
    batches = {file.name: _batch(file) for file in files}
    arrays: Arrays = {}
    for part, prefix in (("train", "data_batch"), ("test", "test_batch")):
        chosen = [batches[name] for name in sorted(batches) if prefix in name]
        if not chosen:
            raise DataError(f"CIFAR-10 has no {prefix} file beside {', '.join(sorted(batches))}")
        images = np.concatenate([batch.images for batch in chosen])
        arrays[f"{part}_inputs"] = images.reshape(-1, *SHAPE)
        arrays[f"{part}_targets"] = np.concatenate([batch.labels for batch in chosen])
        arrays[f"{part}_owners"] = np.repeat(
            [batch.number for batch in chosen], [len(batch.labels) for batch in chosen]
        )
    return arrays


def _batch(file: File) -> Batch:
    if not file.content or len(file.content) % (PIXELS + 1):
        raise DataError(
            f"{file.place} has {len(file.content):,} bytes, not a whole number of records of "
            f"{PIXELS + 1:,} bytes"
        )
    records = np.frombuffer(file.content, dtype=np.uint8).reshape(-1, PIXELS + 1)
    labels = records[:, 0].astype(np.int64)
    wrong = np.flatnonzero(labels >= CLASSES)
    if len(wrong):
        raise DataError(
            f"{file.place}: record {wrong[0]} has label {labels[wrong[0]]}, which is not 0 to "
            f"{CLASSES - 1}"
        )
    number = re.sub(r"\D", "", file.name.rpartition("/")[2])
    return Batch(records[:, 1:], labels, int(number or 0))


CIFAR10 = DataSet(
    name="cifar10",
    folder="cifar10",
    read=read,
    wanted=r"(?<![^/])cifar-10-batches-bin/(?:data_batch_\d+|test_batch)\.bin",
    archives="cifar",
    most=2**29,
    records=(50_000, 10_000),
    table_1="5 clients: 10,000 ± 0 train, 2,000 ± 0 test",
    licence="none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, "
    "2009",
    how="put cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html there",
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            170_052_171,
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
)
