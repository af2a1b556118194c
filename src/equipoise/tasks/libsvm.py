"""Any LIBSVM text file (.bz2 too): binary or multinomial logistic regression, its records split among clients by seed.

Every record is scaled to norm 1 by itself. The file's number of features and its set of labels are taken as public.
"""

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import DataError, require
from equipoise.tasks.linear import LOGISTIC, MULTINOMIAL, Table, deal, linear_task, one_hot
from equipoise.tasks.task import Options, Task

CLIENTS = 100
ITERATIONS = 64
L2 = 0.001
FEATURE_NORM = 1.0
MOST_CELLS = 500_000_000  # of the dense table, 4 GB
PUBLIC_SHARE = 5  # without a test file, every fifth record is declared public and is the test set


def libsvm(options: Options) -> Task:
    require(len(options.data) == 1, "task=libsvm needs data: give one file (--data FILE), which is split among the clients")
    parts = _read([*options.data, *options.test])
    features, labels = parts[0]
    classes = np.unique(np.concatenate([labels for _, labels in parts]))
    require(len(classes) >= 2, f"{options.data[0]} has one label, {classes[0]:g}: there is nothing to learn")
    private, *tests = (Table(rows, one_hot(np.searchsorted(classes, y), len(classes))) for rows, y in parts)
    public = np.zeros(len(labels), dtype=bool)
    if tests:
        test = Table(*(np.concatenate(arrays) for arrays in zip(*tests, strict=True)))
    else:
        public[::PUBLIC_SHARE] = True
        test = private.rows(public)
    return linear_task(
        "libsvm",
        deal(private.rows(~public), np.searchsorted(classes, labels[~public]), options, CLIENTS),
        test,
        LOGISTIC if len(classes) == 2 else MULTINOMIAL,
        L2,
        FEATURE_NORM,
        options,
        iterations=ITERATIONS,
        public=(
            f"the number of features of the file, {features.shape[1] - 1}",
            f"its labels, {', '.join(f'{label:g}' for label in classes)}",
            "the test records" if options.test else "every fifth record, which is the test set",
        ),
    )


def _read(paths: list[str]) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """For each file its records, scaled to norm 1 and with the bias feature 1, and its labels."""
    from sklearn.datasets import load_svmlight_files  # a second to import

    for path in paths:
        if not Path(path).is_file():
            raise DataError(f"data={path}: there is no such file")
    try:
        loaded = load_svmlight_files(paths)
    except (ValueError, OSError, EOFError, OverflowError) as error:
        raise DataError(_first_bad_line(paths) or f"{paths[0]} is not LIBSVM text: {error}") from None
    tables: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    for rows, labels in zip(loaded[::2], loaded[1::2], strict=True):
        if not len(labels):
            raise DataError(f"{paths[len(tables)]} has no records")
        if rows.shape[0] * rows.shape[1] > MOST_CELLS:
            raise DataError(f"{paths[len(tables)]}: {rows.shape[0]} records of {rows.shape[1]} features do not fit in memory")
        dense = rows.toarray()
        if not (np.isfinite(dense).all() and np.isfinite(labels).all()):
            raise DataError(f"{paths[len(tables)]} has a value that is not finite")
        norms = np.linalg.norm(dense, axis=1, keepdims=True)
        scaled = dense / np.maximum(norms, 1e-300)
        tables.append((np.hstack([scaled, np.ones((len(labels), 1))]), labels))
    return tables


def _first_bad_line(paths: list[str]) -> str | None:
    """Where the first line is that is not LIBSVM text, and what is wrong there."""
    openers: dict[str, Callable[..., Any]] = {".bz2": bz2.open, ".gz": gzip.open}
    for path in paths:
        try:
            with openers.get(Path(path).suffix, open)(path, "rt", encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, start=1):
                    if fault := _fault(line.partition("#")[0].split()):
                        return f"{path}, line {number}: {fault}"
        except (OSError, EOFError) as error:
            return f"{path} cannot be read to its end: {error}"
    return None


def _fault(words: list[str]) -> str | None:
    """What is wrong with a line: it is `label index:value index:value ...` with rising indices."""
    if words and not _is_number(words[0]):
        return f"{words[0]!r} is not a label"
    previous = -1
    for word in words[1:]:
        index, _, value = word.partition(":")
        if not index.isdigit() or not _is_number(value):
            return f"{word!r} is not index:value"
        if int(index) <= previous:
            return f"{word!r}: indices must rise"
        previous = int(index)
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
