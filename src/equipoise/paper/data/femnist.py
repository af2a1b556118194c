"""FEMNIST (LEAF, Caldas et al. 2018): 28 x 28 grey pictures of 62 characters, by writer.

Read is what LEAF's preprocess.sh writes, as in the paper with five per cent of the samples:
`./preprocess.sh -s niid --sf 0.05 -k 0 -t sample`. The paper's Table 1 says 63 classes and its text
128 x 128 pixels; LEAF has 10 digits, 26 capital and 26 small letters, 62 in all, and reduces the
pictures to 28 x 28.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.cache import Arrays
from equipoise.errors import DataError
from equipoise.paper.data.data_set import DataSet
from equipoise.paper.data.files import File
from equipoise.paper.data.leaf import Parts, add_users, check_same_users

CLASSES, SIZE = 62, 28


class Pictures(NamedTuple):
    """What one writer wrote."""

    pixels: NDArray[np.float32]
    labels: NDArray[np.int64]


def read(files: Iterator[File]) -> Arrays:
    """Pictures [n, 1, 28, 28] with white 1 and ink 0, labels, and the writer's number in order of
    names."""
    parts: Parts[Pictures] = {"train": {}, "test": {}}
    for file in files:
        add_users(parts, file, "writer", _pictures)
    check_same_users(parts, "writer")
    arrays: Arrays = {}
    for part, writers in parts.items():
        pictures = [writers[name] for name in sorted(writers)]
        sizes = [len(each.labels) for each in pictures]
        arrays[f"{part}_inputs"] = np.concatenate([each.pixels for each in pictures])
        arrays[f"{part}_targets"] = np.concatenate([each.labels for each in pictures])
        arrays[f"{part}_owners"] = np.repeat(np.arange(len(pictures)), sizes)
    return arrays


def _pictures(records: dict[str, Any], place: str) -> Pictures:
    try:
        pixels = np.array(records["x"], dtype=np.float32)
        labels = np.array(records["y"], dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise DataError(
            f"{place}: its pictures are not all lists of {SIZE * SIZE} numbers, or its labels not "
            f"numbers"
        ) from None
    if pixels.ndim != 2 or pixels.shape[1] != SIZE * SIZE:
        raise DataError(
            f"{place}: pictures of shape {pixels.shape[1:]}, not of {SIZE * SIZE} pixels"
        )
    if not ((pixels >= 0) & (pixels <= 1)).all():  # a NaN is neither
        raise DataError(f"{place}: a pixel is not between 0 and 1")
    if labels.ndim != 1 or not np.isin(labels, np.arange(CLASSES)).all():
        raise DataError(f"{place}: a label is not a whole number from 0 to {CLASSES - 1}")
    return Pictures(pixels.reshape(-1, 1, SIZE, SIZE), labels.astype(np.int64))


FEMNIST = DataSet(
    name="femnist",
    folder="femnist",
    read=read,
    wanted=r"(?<![^/])data/(?:train|test)/[^/]+\.json",
    most=2**33,
    records=(36_774, 4_104),
    table_1="6 clients: 6,129 ± 1,915 train, 684 ± 213 test",
    licence="LEAF: BSD-2-Clause; images from NIST Special Database 19, a US government work",
    how="in a checkout of https://github.com/TalwalkarLab/leaf run data/femnist/preprocess.sh -s "
    "niid --sf 0.05 -k 0 -t sample, and put its folder data/femnist/data there",
)
