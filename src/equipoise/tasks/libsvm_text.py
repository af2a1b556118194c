"""A LIBSVM text as numbers, and a text of names: one line, one record, and none decides how another
is read."""

import bz2
import gzip
import math
import zlib
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import DataError
from equipoise.tasks.table_file import UTF_8_MARK

LARGEST_INDEX = 10**9  # beyond, a line is no record
OPENERS: dict[str, Callable[..., Any]] = {".bz2": bz2.open, ".gz": gzip.open}


class Lines(NamedTuple):
    """The lines of a file: their labels [n], NaN for a line that is no record, and the entries
    `values` at (`rows`, `indices`) of the others."""

    path: str
    labels: NDArray[np.float64]
    rows: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: NDArray[np.float64]


def read_lines(path: str) -> Lines:
    """The lines of a file: whatever a line holds is no error."""
    records = [record_of(line) for line in lines_of(path)]
    return stacked(path, records)


def stacked(path: str, records: "list[Record]") -> Lines:
    labels = np.array([record.label for record in records])
    if np.isnan(labels).all():
        raise DataError(f"{path} is no LIBSVM text: no line is `label index:value index:value ...`")
    return Lines(
        path,
        labels,
        np.repeat(np.arange(len(records)), [len(record.entries) for record in records]),
        np.fromiter(chain.from_iterable(record.entries for record in records), np.int64),
        np.fromiter(chain.from_iterable(record.entries.values() for record in records), np.float64),
    )


def lines_of(path: str, what: str = "data") -> list[bytes]:
    if not Path(path).is_file():
        raise DataError(f"{what}={path}: there is no such file")
    try:
        with OPENERS.get(Path(path).suffix, open)(path, "rb") as file:
            lines: list[bytes] = file.read().removesuffix(b"\n").split(b"\n")
    except (OSError, EOFError, zlib.error):
        raise DataError(f"{path} cannot be read to its end: it is damaged") from None
    if lines == [b""]:
        raise DataError(f"{path} has no records")
    return lines


class Record(NamedTuple):
    """The label and the values by index; the label is NaN if the line is no record."""

    label: float
    entries: dict[int, float]


NO_RECORD = Record(math.nan, {})


def record_of(line: bytes) -> Record:
    """What stands in `label index:value index:value ... # comment`; no record if the line is
    anything else, or a number in it is not finite."""
    words = line.partition(b"#")[0].split()
    try:
        label = float(words[0])
        pairs = [word.split(b":") for word in words[1:] if not word.startswith(b"qid:")]
        entries = {int(index): float(value) for index, value in pairs}
    except (ValueError, IndexError):
        return NO_RECORD
    rising = all(a < b for a, b in pairwise([-1, *entries, LARGEST_INDEX]))
    finite = all(map(math.isfinite, (label, *entries.values())))
    well_formed = rising and finite and len(entries) == len(pairs)
    return Record(label, entries) if well_formed else NO_RECORD


def unlabelled(line: bytes) -> bytes:
    """The line with the label 0, whichever it has, if any."""
    words = line.partition(b"#")[0].split()
    try:
        float(words[0])
    except (ValueError, IndexError):
        return b" ".join([b"0", *words])
    return b" ".join([b"0", *words[1:]])


def read_names(path: str) -> list[str]:
    """The names in a file, one on each line."""
    lines = lines_of(path, "person")
    if b"\0" in lines[0]:
        raise DataError(f"person={path} is no text in UTF-8: save it as such")
    marked = [lines[0].removeprefix(UTF_8_MARK), *lines[1:]]
    return [line.decode("latin-1").strip() for line in marked]  # only compared, never shown
