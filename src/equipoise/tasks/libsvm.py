"""Any LIBSVM text file (.bz2 and .gz too): binary or multinomial logistic regression, its records
split among clients by seed.

Every line is one record, scaled to norm 1 by itself; one that is no LIBSVM text, or has no declared
label, stays as a record that teaches nothing, so that no line decides whether or how another is
read. No record is public unless the user says so. Which labels and indices there are, a bounds file
declares; without one they are read off the file, which is outside the guarantee, and said.
"""

import bz2
import gzip
import logging
import math
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import DataError, InvalidValue, require
from equipoise.tasks.bounds import parse_bounds, read_text
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
from equipoise.tasks.reader import Inputs, named_classes, of_each_class
from equipoise.tasks.task import Measure, Table, Takes, Task, TaskOptions, TaskSpec

log = logging.getLogger("equipoise.client")

CLIENTS = 100
ITERATIONS = 64
L2 = 0.001
FEATURE_NORM = 1.0
MOST_CLASSES = 1000
MOST_FEATURES = 10**6  # where they are not declared
MOST_CELLS = 500_000_000  # of the dense table, 4 GB
LARGEST_INDEX = 10**9  # beyond, a line is no record
READ_OFF = (
    "the labels and the number of features were read off the private file, where one record may "
    "decide them; declare them in a bounds file ([index] with low and high, [label] with "
    "categories) and give it by --bounds"
)
OPENERS: dict[str, Callable[..., Any]] = {".bz2": bz2.open, ".gz": gzip.open}

Numbers = NDArray[np.float64]


class Lines(NamedTuple):
    """The lines of a file: their labels [n], NaN for a line that is no record, and the entries
    `values` at (`rows`, `indices`) of the others."""

    path: str
    labels: Numbers
    rows: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: Numbers


class Form(NamedTuple):
    """What is publicly known of the records: their classes, the first index, how many there are."""

    classes: Numbers
    first: int
    features: int


def libsvm(options: TaskOptions) -> Task:
    require(
        len(options.data) == 1,
        "task=libsvm needs data: give one file (--data FILE), which is split among the clients",
    )
    require(
        not (options.test and options.test_share),
        f"test and test_share={options.test_share:g}: the test records are in files, or a share of "
        "the data; give one of the two",
    )
    private, *others = (_read(path) for path in (*options.data, *options.test, *options.proxy))
    form = _declared(options.bounds) if options.bounds else _found([private, *others])
    _check_classes(options.data[0], form)
    public = [_public_table(lines, form) for lines in others]
    tests, proxies = public[: len(options.test)], public[len(options.test) :]
    table, index = _coded(private, form)
    shared = _spread(len(index), options.test_share)
    tables, pool = deal(table.rows(~shared), index[~shared], options, CLIENTS)
    if shared.any():
        tests = [table.rows(shared & _known(private, form))]
    return linear_task(
        "libsvm",
        (tables, joined(proxies) or pool),
        joined(tests),
        _link(form.classes),
        L2,
        FEATURE_NORM,
        options,
        public=_taken_as_public(options, form, int(shared.sum())),
        outside=() if options.bounds else (READ_OFF,),
        names=_names(form.classes),
        iterations=ITERATIONS,
        reading={
            "labels": form.classes.tolist(),
            "features": form.features,
            "first": form.first,
        },
    )


def _taken_as_public(options: TaskOptions, form: Form, shared: int) -> tuple[str, ...]:
    source = f"from {options.bounds}" if options.bounds else "as the file itself has them"
    sentences = [
        "the number of lines of the file, which are its records",
        f"the number of features, {form.features}, and the {len(form.classes)} labels, {source}",
    ]
    if options.test:
        sentences.append("the test records")
    if shared:
        sentences.append(
            f"{shared} of the file's records, spread evenly over it, which are the test set "
            f"(test_share={options.test_share:g}): outside the guarantee"
        )
    return tuple(sentences)


def libsvm_measure(
    files: tuple[str, ...], labels: list[float], features: int, first: int | None = None
) -> Measure:
    """Error and loss on the records of `files`, for a model of so many features and these labels.

    `first` is the index of the first feature; None, in results of earlier versions: as the files
    have it.
    """
    read = [_read(path) for path in files]
    form = Form(np.array(labels), _first(read) if first is None else first, features)
    for lines in read:
        outside = (lines.indices < form.first) | (lines.indices >= form.first + features)
        if outside.any():
            raise DataError(f"{lines.path} does not fit a model of {features} features")
    table = joined([_public_table(lines, form) for lines in read])
    assert table is not None
    return linear_measure(table, _link(form.classes), _names(form.classes))


def _names(classes: Numbers) -> tuple[str, ...]:
    return tuple(f"{label:g}" for label in classes)


def _link(classes: Numbers) -> Link:
    return LOGISTIC if len(classes) == 2 else MULTINOMIAL


def _declared(bounds: str) -> Form:
    """What a bounds file says: the limits of `index`, and the categories of `label`."""
    columns = parse_bounds(read_text(bounds), bounds)
    try:
        index, label = columns.pop("index"), columns.pop("label")
        first, last = int(index.low), int(index.high)
        classes = np.unique([float(category) for category in label.categories])
    except (KeyError, ValueError):
        raise _misdeclared(bounds) from None
    if columns or not len(classes) or (first, last) != (index.low, index.high):
        raise _misdeclared(bounds)
    return Form(classes, first, last - first + 1)


def _misdeclared(bounds: str) -> DataError:
    return DataError(
        f"{bounds}: task libsvm needs [index] with whole numbers low and high, [label] with "
        "categories that are numbers, and nothing else"
    )


def _found(files: list[Lines]) -> Form:
    """The labels of the private file, the first of these, and the indices of all of them, as far as
    a table of so many lines would fit in memory: no index stops a run."""
    first = _first(files)
    most = min(MOST_FEATURES, MOST_CELLS // max(len(lines.labels) for lines in files))
    indices = np.concatenate([lines.indices for lines in files])
    last = int(indices[indices < first + most].max(initial=0))
    labels = files[0].labels
    return Form(np.unique(labels[~np.isnan(labels)]), first, last - first + 1)


def _first(files: list[Lines]) -> int:
    """Indices begin at 1, or at 0 where that occurs."""
    return int(all(lines.indices.min(initial=1) > 0 for lines in files))


def _check_classes(path: str, form: Form) -> None:
    require(len(form.classes) >= 2, f"{path} has one label: there is nothing to learn")
    require(
        len(form.classes) <= MOST_CLASSES,
        f"{path} has {len(form.classes)} labels: task libsvm is for classification",
    )


def _known(lines: Lines, form: Form) -> NDArray[np.bool_]:
    """Which lines are records of one of the classes."""
    return np.isin(lines.labels, form.classes)


def _coded(lines: Lines, form: Form) -> tuple[Table, NDArray[np.int64]]:
    """All lines as records, and the class of each; those that are none, or of none of the classes,
    are all zero."""
    known = _known(lines, form)
    log.info("%s: %d lines, of which %d are no record", lines.path, len(known), (~known).sum())
    index = np.where(known, np.searchsorted(form.classes, lines.labels), 0)
    table = Table(_features(lines, form), one_hot(index, len(form.classes)))
    return Table(*(part * known[:, None] for part in table)), index


def _public_table(lines: Lines, form: Form) -> Table:
    """The records among the lines of a public file."""
    known = _known(lines, form)
    if not (known | np.isnan(lines.labels)).all():
        raise DataError(f"{lines.path} has a label that the training file lacks")
    return _coded(lines, form)[0].rows(known)


def _features(lines: Lines, form: Form) -> Numbers:
    """Each record scaled to norm 1, and the bias feature 1; entries at other indices than the form
    has are left out."""
    shape = len(lines.labels), form.features
    if math.prod(shape) > MOST_CELLS:
        raise DataError(
            f"{lines.path}: {shape[0]} records of {shape[1]} features do not fit in memory"
        )
    places = lines.indices - form.first
    inside = (places >= 0) & (places < form.features)
    dense = np.zeros(shape)
    dense[lines.rows[inside], places[inside]] = lines.values[inside]
    dense /= np.maximum(np.abs(dense).max(1, keepdims=True, initial=0), 1e-300)
    dense /= np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-300)
    return np.hstack([dense, np.ones((shape[0], 1))])


def _spread(number: int, share: float) -> NDArray[np.bool_]:
    """Which of so many records are the share: spread evenly, the first among them; what is in a
    record does not matter."""
    chosen = np.zeros(number, dtype=bool)
    if share:
        places = np.arange(math.ceil(number * share - 1e-9)) / share
        chosen[np.minimum(places + 1e-9, number - 1).astype(np.int64)] = True
    return chosen


def _read(path: str) -> Lines:
    """The lines of a file: whatever a line holds is no error."""
    records = [_record(line) for line in _lines(path)]
    return _stacked(path, records)


def _stacked(path: str, records: "list[Record]") -> Lines:
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


def _lines(path: str) -> list[bytes]:
    if not Path(path).is_file():
        raise DataError(f"data={path}: there is no such file")
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


def _record(line: bytes) -> Record:
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


@dataclass(frozen=True)
class LinesReader:
    """Records as the labels and indices of a run say: of a LIBSVM text, with labels or without."""

    classes: tuple[float, ...]
    features: int
    first: int | None

    @classmethod
    def of(cls, labels: list[float], features: int, first: int | None = None) -> Self:
        return cls(tuple(labels), features, first)

    @property
    def link(self) -> Link:
        return _link(np.array(self.classes))

    @property
    def answers(self) -> tuple[str, ...]:
        return named_classes("label", [f"{label:g}" for label in self.classes])

    def inputs(self, source: Any, keep: Sequence[str] | None = None) -> Inputs:
        require(not keep, f"keep={keep and keep[0]}: a LIBSVM text has no columns to carry over")
        lines = _lines(_path(source))
        records = [_record(_labelled(line)) for line in lines]
        read = _stacked(_path(source), records)
        form = self._form(read)
        outside = (read.indices < form.first) | (read.indices >= form.first + form.features)
        changed = {"index": int(outside.sum())} if outside.any() else {}
        return Inputs(_features(read, form), {}, changed, sum(r is NO_RECORD for r in records))

    def records(self, source: Any) -> Table:
        lines = _read(_path(source))
        form = self._form(lines)
        return _coded(lines, form)[0].rows(_known(lines, form))

    def _form(self, lines: Lines) -> Form:
        first = _first([lines]) if self.first is None else self.first
        return Form(np.array(self.classes), first, self.features)

    def answer(self, outputs: Tensor) -> Numbers:
        return of_each_class(self.link.answers(outputs).numpy())

    def coding(self) -> list[str]:
        first = "the first index" if self.first is None else self.first
        return [
            f"the value at index {first} + j stands for input j, of {self.features}, after each "
            "record was divided by its norm; other indices are left out"
        ]


def _path(source: Any) -> str:
    if not isinstance(source, str | os.PathLike):
        raise InvalidValue(f"data is a {type(source).__name__}: give the path of a LIBSVM text")
    return os.fspath(source)


def _labelled(line: bytes) -> bytes:
    """The line with the label 0, whichever it has, if any."""
    words = line.partition(b"#")[0].split()
    try:
        float(words[0])
    except (ValueError, IndexError):
        return b" ".join([b"0", *words])
    return b" ".join([b"0", *words[1:]])


SPEC = TaskSpec(
    "libsvm",
    libsvm,
    Takes(files=True, l2=True, bounds=True, test_share=True),
    measure=libsvm_measure,
    reader=LinesReader.of,
    own_files=True,
)
