"""Any LIBSVM text file (.bz2 too): binary or multinomial logistic regression, its records split
among clients by seed.

Every record is scaled to norm 1 by itself. The file's number of features and its set of labels are
taken as public.
"""

import bz2
import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import DataError, require
from equipoise.tasks.linear import (
    LOGISTIC,
    MULTINOMIAL,
    Link,
    deal,
    joined,
    linear_measure,
    linear_task,
    one_hot,
)
from equipoise.tasks.task import Measure, Table, Takes, Task, TaskOptions, TaskSpec

CLIENTS = 100
ITERATIONS = 64
L2 = 0.001
FEATURE_NORM = 1.0
MOST_CLASSES = 1000
MOST_CELLS = 500_000_000  # of the dense table, 4 GB
PUBLIC_SHARE = 5  # without a test file, every fifth record is declared public and is the test set


def libsvm(options: TaskOptions) -> Task:
    require(
        len(options.data) == 1,
        "task=libsvm needs data: give one file (--data FILE), which is split among the clients",
    )
    parts = _read([*options.data, *options.test, *options.proxy])
    features, labels = parts[0]
    classes = np.unique(labels)
    require(
        len(classes) >= 2,
        f"{options.data[0]} has one label, {classes[0]:g}: there is nothing to learn",
    )
    require(
        len(classes) <= MOST_CLASSES,
        f"{options.data[0]} has {len(classes)} labels: task libsvm is for classification",
    )
    private, *others = (
        _table(path, rows, y, classes)
        for path, (rows, y) in zip(
            [*options.data, *options.test, *options.proxy], parts, strict=True
        )
    )
    tests, proxies = others[: len(options.test)], others[len(options.test) :]
    public = np.zeros(len(labels), dtype=bool)
    public[::PUBLIC_SHARE] = not tests
    tables, pool = deal(
        private.rows(~public), np.searchsorted(classes, labels[~public]), options, CLIENTS
    )
    return linear_task(
        "libsvm",
        (tables, joined(proxies) or pool),
        joined(tests) or private.rows(public),
        _link(classes),
        L2,
        FEATURE_NORM,
        options,
        public=(
            "that the file is well formed, and its number of records",
            f"the number of features of the file, {features.shape[1] - 1}",
            f"its labels, {', '.join(f'{label:g}' for label in classes)}",
            "the test records" if options.test else "every fifth record, which is the test set",
        ),
        iterations=ITERATIONS,
        reading={"labels": classes.tolist(), "features": features.shape[1] - 1},
    )


def libsvm_measure(files: tuple[str, ...], labels: list[float], features: int) -> Measure:
    """Error and loss on the records of `files`, for a model of so many features and these
    labels.
    """
    classes = np.array(labels)
    tables = [
        _table(path, rows, y, classes)
        for path, (rows, y) in zip(files, _read(list(files), features), strict=True)
    ]
    table = joined(tables)
    assert table is not None
    return linear_measure(table, _link(classes))


def _link(classes: NDArray[np.float64]) -> Link:
    return LOGISTIC if len(classes) == 2 else MULTINOMIAL


def _table(
    path: str, rows: NDArray[np.float64], labels: NDArray[np.float64], classes: NDArray[np.float64]
) -> Table:
    if len(np.setdiff1d(labels, classes)):
        raise DataError(f"{path} has a label that the training file lacks")
    return Table(rows, one_hot(np.searchsorted(classes, labels), len(classes)))


def _read(
    paths: list[str], features: int | None = None
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """For each file its records, scaled to norm 1 and with the bias feature 1, and its labels."""
    from sklearn.datasets import load_svmlight_files  # a second to import

    for path in paths:
        if not Path(path).is_file():
            raise DataError(f"data={path}: there is no such file")
    try:
        loaded = load_svmlight_files(paths, n_features=features)
    except (ValueError, OSError, EOFError, OverflowError, zlib.error):
        odd = f"does not fit a model of {features} features" if features else "cannot be read"
        fault = _first_bad_line(paths) or f"{paths[0]} {odd}"
        raise DataError(fault) from None
    tables: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    for rows, labels in zip(loaded[::2], loaded[1::2], strict=True):
        path = paths[len(tables)]
        if not len(labels):
            raise DataError(f"{path} has no records")
        if rows.shape[0] * rows.shape[1] > MOST_CELLS:
            raise DataError(
                f"{path}: {rows.shape[0]} records of {rows.shape[1]} features do not fit in memory"
            )
        dense = rows.toarray()
        if not (np.isfinite(dense).all() and np.isfinite(labels).all()):
            raise DataError(f"{path} has a value that is not finite")
        scaled = dense / np.maximum(np.abs(dense).max(1, keepdims=True, initial=0), 1e-300)
        scaled /= np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1e-300)
        tables.append((np.hstack([scaled, np.ones((len(labels), 1))]), labels))
    return tables


def _first_bad_line(paths: list[str]) -> str | None:
    """Where the first line is that is not LIBSVM text, and what is wrong there; what it says is
    left unsaid."""
    openers: dict[str, Callable[..., Any]] = {".bz2": bz2.open, ".gz": gzip.open}
    for path in paths:
        try:
            with openers.get(Path(path).suffix, open)(
                path, "rt", encoding="utf-8", errors="replace"
            ) as file:
                for number, line in enumerate(file, start=1):
                    if fault := _fault(line.partition("#")[0].split()):
                        return f"{path}, line {number}: {fault}"
        except (OSError, EOFError, zlib.error):
            return f"{path} cannot be read to its end: it is damaged"
    return None


def _fault(words: list[str]) -> str | None:
    """What is wrong with a line: it is `label index:value index:value ...` with rising indices."""
    if words and not _is_number(words[0]):
        return "it does not begin with a label, a number"
    previous = -1
    for place, word in enumerate(words[1:], start=2):
        index, _, value = word.partition(":")
        if not (index.isascii() and index.isdecimal()) or not _is_number(value):
            return f"its word {place} is not index:value"
        if int(index) <= previous:
            return f"its word {place}: indices must rise"
        previous = int(index)
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


SPEC = TaskSpec(
    "libsvm",
    libsvm,
    Takes(files=True, l2=True),
    measure=libsvm_measure,
    own_files=True,
    pools_itself=True,
)
