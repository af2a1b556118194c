"""FEMNIST (LEAF, Caldas et al. 2018): which of 62 characters did somebody write? 28 x 28 grey
pictures, by writer.

Read is what LEAF's preprocess.sh writes, as in the paper with five per cent of the samples:
`./preprocess.sh -s niid --sf 0.05 -k 0 -t sample`. The paper's Table 1 says 63 classes and its text
128 x 128 pixels; LEAF has 10 digits, 26 capital and 26 small letters, 62 in all, and reduces the
pictures to 28 x 28.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from torch.nn.functional import cross_entropy

from equipoise.errors import DataError
from equipoise.paper.data.files import File
from equipoise.paper.data.prepared import Arrays, DataSet
from equipoise.paper.networks import NARROW, Cnn
from equipoise.paper.tasks.table1 import Row, federated_task, majority_error
from equipoise.tasks.own import accuracy
from equipoise.tasks.task import Options, Task, TaskSpec

ROW = Row(clients=6, batch=16, iterations=10_000, clips=(10, 50, 100), learning_rate=0.01)
CLASSES, SIZE = 62, 28
FEMNIST = DataSet(
    name="femnist",
    folder="femnist",
    wanted=r"(?<![^/])data/(?:train|test)/[^/]+\.json",
    most=2**33,
    records=(36_774, 4_104),
    table_1="6 clients: 6,129 ± 1,915 train, 684 ± 213 test",
    licence="LEAF: BSD-2-Clause; images from NIST Special Database 19, a US government work",
    how="in a checkout of https://github.com/TalwalkarLab/leaf run data/femnist/preprocess.sh -s "
    "niid --sf 0.05 -k 0 -t sample "
    "and put its folder data/femnist/data there",
)


def femnist(
    options: Options, widths: tuple[int, int, int] = (32, 64, 512), name: str = "femnist"
) -> Task:
    arrays = FEMNIST.prepared(prepare)
    return federated_task(
        name,
        partial(Cnn, 1, SIZE, CLASSES, widths),
        arrays,
        ROW,
        cross_entropy,
        accuracy,
        options,
        owner="writer",
        natural=False,
        constant_error=majority_error(arrays["test_targets"]),
        error_name="1 - accuracy",
    )


def prepare(files: Iterator[File]) -> Arrays:
    """Pictures [n, 1, 28, 28] with white 1 and ink 0, labels, and the writer's number in order of
    names."""
    users: dict[str, dict[str, tuple[Any, Any]]] = {"train": {}, "test": {}}
    for name, place, content in files:
        part = "train" if "data/train/" in name else "test"
        for user, records in leaf_users(content, place):
            if user in users[part]:
                raise DataError(f"{place}: writer {user} is in another {part} file too")
            users[part][user] = _pictures(records, f"{place}, writer {user}")
    check_same_users(users["train"], users["test"], "writer")
    numbers = {user: number for number, user in enumerate(sorted(users["train"]))}
    arrays: Arrays = {}
    for part, of_part in users.items():
        arrays[f"{part}_inputs"] = np.concatenate([of_part[user][0] for user in numbers])
        arrays[f"{part}_targets"] = np.concatenate([of_part[user][1] for user in numbers])
        arrays[f"{part}_owners"] = np.repeat(
            list(numbers.values()), [len(of_part[user][1]) for user in numbers]
        )
    return arrays


def _pictures(records: Any, place: str) -> tuple[Any, Any]:
    x, y = records["x"], records["y"]
    try:
        pictures = np.array(x, dtype=np.float32)
        labels = np.array(y, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise DataError(
            f"{place}: its pictures are not all lists of {SIZE * SIZE} numbers, or its labels not "
            f"numbers"
        ) from None
    if pictures.ndim != 2 or pictures.shape[1] != SIZE * SIZE:
        raise DataError(
            f"{place}: pictures of shape {pictures.shape[1:]}, not of {SIZE * SIZE} pixels"
        )
    if not ((pictures >= 0) & (pictures <= 1)).all():  # a NaN is neither
        raise DataError(f"{place}: a pixel is not between 0 and 1")
    if labels.ndim != 1 or not (np.isin(labels, np.arange(CLASSES))).all():
        raise DataError(f"{place}: a label is not a whole number from 0 to {CLASSES - 1}")
    return pictures.reshape(-1, 1, SIZE, SIZE), labels.astype(np.int64)


def leaf_users(content: bytes, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The users of a file in LEAF's form, each with lists x and y of equal length."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON: {error}") from None
    data, listed = (
        (document.get("user_data"), document.get("users"))
        if isinstance(document, dict)
        else (None, None)
    )
    if not isinstance(data, dict) or not isinstance(listed, list) or {*map(str, listed)} != {*data}:
        raise DataError(
            f"{place} is not in LEAF's form: its `users` must be the keys of its `user_data`"
        )
    for user, records in data.items():
        x, y = (records.get("x"), records.get("y")) if isinstance(records, dict) else (None, None)
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y) or not x:
            lengths = " and ".join(
                str(len(part)) if isinstance(part, list) else "no list" for part in (x, y)
            )
            raise DataError(
                f"{place}, user {user}: x and y must be lists of equal length, and are {lengths}"
            )
        yield user, records


def check_same_users(train: Any, test: Any, word: str) -> None:
    """LEAF splits every user's samples: who is in one part is in the other."""
    for here, there, of, lacking in (
        (train, test, "train", "test"),
        (test, train, "test", "train"),
    ):
        if lost := sorted({*here} - {*there}):
            raise DataError(
                f"{word} {lost[0]} (one of {len(lost)}) has {of} samples and no {lacking} "
                f"samples: a file is missing"
            )


SPEC = TaskSpec("femnist", femnist)
NARROW_SPEC = TaskSpec("femnist-narrow", partial(femnist, widths=NARROW, name="femnist-narrow"))
