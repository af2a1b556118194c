"""Any LIBSVM text file (.bz2 and .gz too): binary or multinomial logistic regression, its records
split among clients by seed, or whole persons, if a second file names one on each line. Of several
files each is one client's.

Every line is one record, scaled to norm 1 by itself; one that is no LIBSVM text, or has no declared
label, stays as a record that teaches nothing, so that no line decides whether or how another is
read. No record is public unless the user says so. Which labels and indices there are, a bounds file
declares; without one they are read off the file, which is outside the guarantee, and said.
"""

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import DataError, InvalidValue, require
from equipoise.tasks.bounds import parse_bounds, read_text
from equipoise.tasks.libsvm_text import (
    NO_RECORD,
    Lines,
    lines_of,
    read_lines,
    read_names,
    record_of,
    stacked,
    unlabelled,
)
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
from equipoise.tasks.persons import numbered
from equipoise.tasks.reader import Inputs, named_classes, of_each_class
from equipoise.tasks.splits import persons_dealt
from equipoise.tasks.task import (
    Measure,
    Table,
    Takes,
    Task,
    TaskOptions,
    TaskSpec,
    alone,
    with_owners,
)

log = logging.getLogger("equipoise.client")

CLIENTS = 100
ITERATIONS = 64
L2 = 0.001
FEATURE_NORM = 1.0
MOST_CLASSES = 1000
MOST_FEATURES = 10**6  # where they are not declared
MOST_CELLS = 500_000_000  # of the dense table, 4 GB
READ_OFF = (
    "the labels and the number of features were read off the private file, where one record may "
    "decide them; declare them in a bounds file ([index] with low and high, [label] with "
    "categories) and give it by --bounds"
)
Numbers = NDArray[np.float64]


class Form(NamedTuple):
    """What is publicly known of the records: their classes, the first index, how many there are."""

    classes: Numbers
    first: int
    features: int


def libsvm(options: TaskOptions) -> Task:
    if len(options.data) > 1:
        return _of_files(options, [*range(len(options.data))])
    require(
        len(options.data) == 1,
        "task=libsvm needs data: give one file (--data FILE), which is split among the clients, "
        "or one for each client",
    )
    require(
        not (options.test and options.test_share),
        f"test and test_share={options.test_share:g}: the test records are in files, or a share of "
        "the data; give one of the two",
    )
    private, *others = (read_lines(path) for path in (*options.data, *options.test, *options.proxy))
    form = declared(options.bounds) if options.bounds else _found([private, *others])
    _check_classes(options.data[0], form)
    table, index = _coded(private, form)
    owners = _owners(options, options.data[0], len(index))
    shared = _shared(owners, len(index), options.test_share)
    rest, labels = table.rows(~shared), index[~shared]
    if owners is None:
        tables, pool = deal(rest, labels, options, CLIENTS)
        units, test_units, dealt = "records", int(shared.sum()), None
    else:
        own = numbered(owners[~shared], len(labels))
        public, parts = persons_dealt(own, options, CLIENTS)
        tables, pool = [rest.rows(part) for part in parts], _some(rest.rows(public))
        units, test_units = "persons", len(np.unique(owners[shared]))
        dealt = [numbered(own[part], len(part)) for part in parts]
    task = _task(
        options,
        form,
        (tables, pool),
        others,
        _some(table.rows(shared & known_lines(private, form))),
        [
            "the number of lines of the file, which are its records"
            if owners is None
            else "the number of persons whom the file's lines belong to",
        ],
        [
            f"{test_units} of the file's {units}, spread evenly over it, which are the test set "
            f"(test_share={options.test_share:g}): outside the guarantee"
        ]
        if test_units
        else [],
    )
    return task if dealt is None else with_owners(task, dealt)


def libsvm_alone(options: TaskOptions, client: int) -> Task:
    """One client of the file that is split; or a silo, whose own file is the only one that is
    opened."""
    if len(options.data) == 1:
        return alone(libsvm(options), client)
    number = len(options.data)
    require(0 <= client < number, f"client={client} is not one of the {number} clients, from 0")
    return alone(_of_files(options, [client]), client)


def libsvm_to_plan(options: TaskOptions) -> Task:
    """The file that is split; or clients that have a file each, none of which is opened."""
    if len(options.data) == 1:
        return libsvm(options)
    require(
        bool(options.data) or options.clients is not None,
        "task=libsvm needs data, one file that is split among the clients (--data FILE), or, "
        "where every client has its own, the number of clients",
    )
    return _of_files(options, [])


def _of_files(options: TaskOptions, opened: list[int]) -> Task:
    """The task of clients that have a file each, of which only these are opened: nothing is read
    off anybody's."""
    number = len(options.data) or options.clients or 0
    form = _form_of_files(options, number)
    require(
        options.person is None or len(opened) <= 1,
        f"person={options.person} names the persons of one file: give one file of data, or let "
        "every client name its own (equipoise silo run)",
    )
    tables = [_none(form)] * number
    owners = [np.zeros(0, dtype=np.int64)] * number
    for i in opened:
        tables[i], _ = _coded(read_lines(options.data[i]), form)
        own = _owners(options, options.data[i], len(tables[i].features))
        owners[i] = owners[i] if own is None else own
    others = [read_lines(path) for path in (*options.test, *options.proxy)]
    counted = ["that every client has a file with at least one line"]
    task = _task(options, form, (tables, None), others, None, counted, [])
    task = replace(task, sizes_public=False)
    return with_owners(task, owners) if options.unit == "person" else task


def _form_of_files(options: TaskOptions, clients: int) -> Form:
    """What clients with files of their own agree on."""
    require(
        options.clients in (None, clients),
        f"clients={options.clients} with {len(options.data)} files: each is one client's; leave it "
        "out",
    )
    if options.bounds is None:
        raise InvalidValue(
            "task=libsvm with a file for each client needs bounds, which declare [index] and "
            "[label] for all of them (--bounds FILE)"
        )
    for name, value in (("split", options.split), ("public_records", options.public_records)):
        require(
            value in (None, "random", 0),
            f"{name}={value} with a file for each client, all of which is that client's: leave it "
            "out",
        )
    require(
        not options.test_share,
        f"test_share={options.test_share:g} with a file for each client: give --test FILE",
    )
    form = declared(options.bounds)
    _check_classes(options.bounds, form)
    return form


def _none(form: Form) -> Table:
    outputs = len(form.classes) if len(form.classes) > 2 else 1
    return Table(np.zeros((0, form.features + 1)), np.zeros((0, outputs)))


def _some(table: Table) -> Table | None:
    return table if len(table.features) else None


def _task(
    options: TaskOptions,
    form: Form,
    dealt: tuple[list[Table], Table | None],
    others: list[Lines],
    shared: Table | None,
    counted: list[str],
    shares: list[str],
) -> Task:
    """The task of these clients and this pool; `others` are the files with public records, `shared`
    are test records of the file that is split."""
    public = [_public_table(lines, form) for lines in others]
    tests, proxies = public[: len(options.test)], public[len(options.test) :]
    source = f"from {options.bounds}" if options.bounds else "as the file itself has them"
    labels = f"the number of features, {form.features}, and the {len(form.classes)} labels"
    return linear_task(
        "libsvm",
        (dealt[0], joined(proxies) or dealt[1]),
        shared or joined(tests),
        _link(form.classes),
        L2,
        FEATURE_NORM,
        options,
        public=(
            *counted,
            f"{labels}, {source}",
            *(["the test records"] if options.test else []),
            *shares,
        ),
        outside=() if options.bounds else (READ_OFF,),
        names=_names(form.classes),
        iterations=ITERATIONS,
        reading={
            "labels": form.classes.tolist(),
            "features": form.features,
            "first": form.first,
        },
    )


def _owners(options: TaskOptions, data: str, lines: int) -> NDArray[np.int64] | None:
    """The person of each line of the file `data`, by the line of the file of names at its place;
    None where nobody asks."""
    path = options.person
    if path is None:
        require(
            options.unit != "person",
            "unit=person with task=libsvm: give a file that has, for each line of the data, the "
            "name of the person on a line (--person FILE)",
        )
        return None
    require(
        Path(path).resolve() != Path(data).resolve(),
        f"person={path} is the file of the data: give one that has a name on each line",
    )
    names = read_names(path)
    if len(names) != lines:
        raise DataError(
            f"person={path} does not have as many lines as {data}: give one name for each, in the "
            "same order (`equipoise data try` counts them)"
        )
    if not all(names):
        raise DataError(
            f"person={path}: some line is empty; every line of {data} needs a name (`equipoise "
            "data try` counts them)"
        )
    return numbered(names, lines)


def _shared(owners: NDArray[np.int64] | None, lines: int, share: float) -> NDArray[np.bool_]:
    """Which lines are the share, whole persons where they are known."""
    if owners is None:
        return _spread(lines, share)
    chosen: NDArray[np.bool_] = _spread(int(owners.max()) + 1, share)[owners]
    return chosen


def libsvm_measure(
    files: tuple[str, ...], labels: list[float], features: int, first: int | None = None
) -> Measure:
    """Error and loss on the records of `files`, for a model of so many features and these labels.

    `first` is the index of the first feature; None, in results of earlier versions: as the files
    have it.
    """
    read = [read_lines(path) for path in files]
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


def declared(bounds: str) -> Form:
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


def known_lines(lines: Lines, form: Form) -> NDArray[np.bool_]:
    """Which lines are records of one of the classes."""
    return np.isin(lines.labels, form.classes)


def _coded(lines: Lines, form: Form) -> tuple[Table, NDArray[np.int64]]:
    """All lines as records, and the class of each; those that are none, or of none of the classes,
    are all zero."""
    known = known_lines(lines, form)
    log.info("%s: %d lines, of which %d are no record", lines.path, len(known), (~known).sum())
    index = np.where(known, np.searchsorted(form.classes, lines.labels), 0)
    table = Table(_features(lines, form), one_hot(index, len(form.classes)))
    return Table(*(part * known[:, None] for part in table)), index


def _public_table(lines: Lines, form: Form) -> Table:
    """The records among the lines of a public file."""
    known = known_lines(lines, form)
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
        lines = lines_of(_path(source))
        records = [record_of(unlabelled(line)) for line in lines]
        read = stacked(_path(source), records)
        form = self._form(read)
        outside = (read.indices < form.first) | (read.indices >= form.first + form.features)
        changed = {"index": int(outside.sum())} if outside.any() else {}
        return Inputs(_features(read, form), {}, changed, sum(r is NO_RECORD for r in records))

    def records(self, source: Any) -> Table:
        lines = read_lines(_path(source))
        form = self._form(lines)
        return _coded(lines, form)[0].rows(known_lines(lines, form))

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


SPEC = TaskSpec(
    "libsvm",
    libsvm,
    Takes(files=True, l2=True, bounds=True, person=True, test_share=True),
    load_client=libsvm_alone,
    load_to_plan=libsvm_to_plan,
    measure=libsvm_measure,
    reader=LinesReader.of,
    own_files=True,
)
