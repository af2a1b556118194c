"""Tables that silos bring: one CSV or Parquet file per client, with public bounds for every column.

Nothing public depends on what is in a private row: scaling, clipping, coding, L and mu follow from
the bounds; a cell outside them is clipped or filled, a row with too few or too many cells is filled
or cut, a record whose label is not declared is left out (or, where the unit is a record or person,
stays as one that teaches nothing), and only the client's own log says how often. A cell that cannot
be read is a missing one. `table_file.py` turns files into cells.
"""

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import DataError, InvalidValue, require
from equipoise.tasks.bounds import Column, parse_bounds, read_text
from equipoise.tasks.linear import (
    LOGISTIC,
    MULTINOMIAL,
    LinearMeasure,
    Link,
    joined,
    least_squares,
    linear_measure,
    linear_task,
)
from equipoise.tasks.persons import numbered
from equipoise.tasks.reader import Inputs, named_classes, of_each_class
from equipoise.tasks.table_file import NAMELESS, read_header, read_table_file
from equipoise.tasks.task import Table, Takes, Task, TaskOptions, TaskSpec, with_owners

log = logging.getLogger("equipoise.client")

L2 = 0.01
ITERATIONS = 64
NOBODY = np.zeros(0, dtype=np.int64)
MOST_GROUPS = 50
NO_GROUP = "(none)"  # of a record whose cell is empty or not declared
FEATURE_NORM = 1.0  # by construction: k columns of norm at most 1 each, divided by sqrt(k)


class Model(NamedTuple):
    """What the bounds file and the label decide: the loss, and how cells become numbers. `ignore`
    are other columns that files may have."""

    link: Link
    columns: list[Column]
    label: Column
    text: str
    ignore: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [*(column.name for column in self.columns), self.label.name]

    def groups(self, cells: list[str], name: str) -> list[str]:
        """The group of every record by its cell in the column `name`: the category that is
        declared, or else the text."""
        declared = {column.name: column for column in (*self.columns, self.label)}.get(name)
        if declared is None or not declared.categories:
            return [cell.strip() or NO_GROUP for cell in cells]
        categories = (*declared.categories, NO_GROUP)  # an index of -1 is the last
        return [categories[i] for i in declared.index(cells)]


class Coded(NamedTuple):
    """What training makes of the cells of a file: all its records, which of them have a declared
    label, and how many cells of each column were clipped or filled."""

    table: Table
    known: NDArray[np.bool_]
    changed: dict[str, int]

    def __repr__(self) -> str:
        return f"Coded({self.table!r})"


class Held(NamedTuple):
    """What a client holds: its records, and the person of each, where that is asked for."""

    table: Table
    owners: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"Held({self.table!r})"


def tables(options: TaskOptions) -> Task:
    """The task `csv`: logistic, multinomial or least squares, as the label's entry in the bounds
    says."""
    model, number = table_model(options), _number(options)
    return _task(options, model, [_private(options, model, i) for i in range(number)])


def table_alone(options: TaskOptions, client: int) -> Task:
    """The same task with one client: the files of the others are counted and not opened."""
    model, number = table_model(options), _number(options)
    require(0 <= client < number, f"client={client} is not one of the {number} clients, from 0")
    private = [_empty(model)] * number
    private[client] = _private(options, model, client)
    task = _task(options, model, private)
    return replace(task, clients=task.clients.alone(client), number=number)


def tables_to_plan(options: TaskOptions) -> Task:
    """The same task without its private files, which are counted and never opened: enough to
    plan.
    """
    number = len(options.data) or options.clients
    if number is None:
        raise InvalidValue(
            "task=csv has one client per file: give clients, or the files, which are only counted"
        )
    model = table_model(options)
    return _task(options, model, [_empty(model)] * number)


def _number(options: TaskOptions) -> int:
    require(
        len(options.data) >= 1,
        "task=csv needs data: give one file per client (--data a.csv b.csv ...)",
    )
    require(
        options.clients in (None, len(options.data)),
        f"clients={options.clients} with {len(options.data)} files: task csv has one file per "
        "client; leave it out",
    )
    return len(options.data)


def _private(options: TaskOptions, model: Model, client: int) -> Held:
    """Where a record or a person is protected, all records stay, those without a declared label as
    ones that teach nothing."""
    path, column = options.data[client], options.person
    names = [*model.names, *([column] if column else [])]
    cells = read_table_file(path, names, model.ignore).cells
    table, known = _table(path, model, cells)
    kept = known | (options.unit != "client")
    table = Table(*(part * known[:, None] for part in table)).rows(kept)
    if column is None:
        return Held(table, NOBODY)
    names = [cell.strip() for cell in cells[column]]
    if not all(names):
        raise DataError(
            f"person={column}: some row of {path} has none; every row needs one (`equipoise data "
            "try` counts them)"
        )
    return Held(table, numbered(names, len(names)))


def _empty(model: Model) -> Held:
    features = sum(column.width for column in model.columns) + 1
    outputs = model.label.width if model.label.width > 2 else 1
    return Held(Table(np.zeros((0, features)), np.zeros((0, outputs))), NOBODY)


def _task(options: TaskOptions, model: Model, private: list[Held]) -> Task:
    require(
        options.split in (None, "random"),
        f"split={options.split!r}: the files say which client holds what; leave it out",
    )
    require(
        not options.public_records,
        "public_records: no record of task csv is public; give --proxy FILE to plan on",
    )
    require(
        options.groups is None or len(options.test) > 0,
        f"groups={options.groups} without public test records: give --test FILE, or leave it out",
    )
    aside = (*model.ignore, *([options.person] if options.person else []))
    public = model._replace(ignore=aside)  # a public file may name persons, and need not
    test, groups = _test_records(options.test, public, options.groups)
    proxy = joined([_read_table(path, public) for path in options.proxy])
    left_aside = ", ".join(name or NAMELESS for name in model.ignore)
    task = linear_task(
        "csv",
        ([held.table for held in private], proxy),
        test,
        model.link,
        L2,
        FEATURE_NORM,
        options,
        public=(
            f"the names and bounds of the columns, from {options.bounds}",
            "that every client has a table with these columns and at least one record",
            *([f"other columns that files may have: {left_aside}"] if left_aside else []),
            *(["the test records"] if options.test else []),
        ),
        iterations=ITERATIONS,
        sizes_public=False,
        names=model.label.categories,
        reading={"bounds": model.text, "label": model.label.name, "ignore": [*aside]},
    )
    if options.person:
        task = with_owners(task, [held.owners for held in private])
    return replace(task, measure=_grouped(task.measure, groups, options.groups))


def tables_measure(
    files: tuple[str, ...],
    groups: str | None,
    usual: str | None,
    bounds: str,
    label: str,
    ignore: Sequence[str] = (),
) -> LinearMeasure:
    """Error and loss on the records of `files`, read as the text `bounds` of a bounds file says,
    and by groups as in `_test_records`."""
    model = _model_from(bounds, label, "the bounds of this run", ignore)
    table, names = _test_records(files, model, groups, usual)
    if table is None:
        raise DataError("the run has no public test records: give --data FILE")
    measure = linear_measure(table, model.link, model.label.categories)
    grouped: LinearMeasure = _grouped(measure, names, groups or usual)
    return grouped


def _grouped(measure: Any, groups: tuple[str, ...], column: str | None) -> Any:
    """The measure, by these groups of its records, if there are any."""
    return replace(measure, groups=groups, grouped_by=column) if groups else measure


def own_records(options: TaskOptions, path: str) -> tuple[Table, Link]:
    """The records of one client's own file, for its own use."""
    model = table_model(options)
    return _read_table(path, model), model.link


def table_model(options: TaskOptions) -> Model:
    """What the options say of tables, before a file is opened."""
    require(
        options.bounds is not None,
        "task=csv needs bounds, public knowledge about the columns (--bounds bounds.toml)",
    )
    require(options.label is not None, "task=csv needs label, the column to predict (--label NAME)")
    require(
        (options.unit == "person") == (options.person is not None),
        f"person={options.person} with unit={options.unit}: task csv needs the column that says "
        "whose a row is (--person COLUMN) for unit=person, and for no other",
    )
    bounds = options.bounds or ""
    model = _model_from(read_text(bounds), str(options.label), bounds, options.ignore)
    require(
        options.person not in model.names,
        f"person={options.person} is declared in {bounds}: a name is nothing to learn from; take "
        "it out there",
    )
    return model


def _model_from(text: str, name: str, where: str, ignore: Sequence[str]) -> Model:
    columns = parse_bounds(text, where)
    for both in columns.keys() & {*ignore}:
        raise DataError(f"ignore={both} is declared in {where}: take it out of one of the two")
    if name not in columns:
        raise DataError(f"label={name!r} is not in {where}, which has {', '.join(columns)}")
    label = columns.pop(name)
    if not columns:
        raise DataError(f"{where} has no column besides the label {name!r}")
    if label.fill is not None:
        raise DataError(f"{where}, column {name}: a label cannot be filled; leave fill out")
    if not label.categories:
        link = least_squares((label.high - label.low) / 2)
    else:
        link = LOGISTIC if label.width == 2 else MULTINOMIAL
    return Model(link, list(columns.values()), label, text, tuple(ignore))


def _read_table(path: str, model: Model) -> Table:
    """The records of a file that have a declared label."""
    table, known = _table(path, model, read_table_file(path, model.names, model.ignore).cells)
    return table.rows(known)


def _test_records(
    paths: tuple[str, ...], model: Model, groups: str | None, usual: str | None = None
) -> tuple[Table | None, tuple[str, ...]]:
    """The records of public files, and the group of each by the column `groups`, which the bounds
    need not declare; or else by the `usual` one, where all files have that."""
    tables, names = [], list[str]()
    column = groups or usual
    for path in paths:
        cells = _test_cells(path, model, groups, usual)
        table, known = _table(path, model, cells)
        tables.append(table.rows(known))
        if column in cells:
            every = model.groups(cells[column], column)
            names += [name for name, kept in zip(every, known, strict=True) if kept]
    require(
        len({*names}) <= MOST_GROUPS,
        f"groups={column} has {len({*names})} different values in the test records: give a column "
        f"with at most {MOST_GROUPS}",
    )
    whole = len(names) == sum(len(table.features) for table in tables)
    return joined(tables), tuple(names) if whole else ()


def _test_cells(
    path: str, model: Model, groups: str | None, usual: str | None
) -> dict[str, list[str]]:
    """The cells of a public file, which may have a column of groups besides."""
    header = read_header(path) if groups or usual else []
    if groups and groups not in header:
        raise DataError(f"{path} lacks {groups}, the column of groups")
    besides = {name for name in (groups, usual) if name in header} - {*model.names}
    ignore = {*model.ignore} - besides
    return read_table_file(path, [*model.names, *sorted(map(str, besides))], ignore).cells


def _table(path: str, model: Model, cells: dict[str, list[str]]) -> tuple[Table, NDArray[np.bool_]]:
    """All records of a file, and which of them have a declared label."""
    table, known, changed = code_cells(cells, model)
    log.info(
        "%s: %d records, of which %d left out (label missing or not declared); cells clipped or "
        "filled: %s",
        path,
        len(known),
        int((~known).sum()),
        ", ".join(f"{name} {count}" for name, count in changed.items()),
    )
    if not known.any():
        log.warning(
            "%s: NO RECORD IS LEFT, so that it teaches nothing: `equipoise data try` says why", path
        )
    return table, known


def code_cells(cells: dict[str, list[str]], model: Model) -> Coded:
    """The cells of a file, by column, as numbers: what the bounds say of them."""
    features, changed = _features(cells, model)
    label, labels = model.label, cells[model.label.name]
    if label.categories:
        index = label.index(labels)
        targets = (
            (index[:, None] == 1)
            if label.width == 2
            else (index[:, None] == np.arange(label.width))
        )
    else:
        targets, changed[label.name] = label.code(labels)
    table = Table(features, targets.astype(np.float64))
    return Coded(table, label.readable(labels), changed)


def _features(
    cells: dict[str, list[str]], model: Model
) -> tuple[NDArray[np.float64], dict[str, int]]:
    """What a model sees of these cells, and how many of each column were clipped or filled."""
    coded = {column.name: column.code(cells[column.name]) for column in model.columns}
    parts = [numbers for numbers, _ in coded.values()]
    bias = np.full((len(parts[0]), 1), math.sqrt(len(parts)))
    features = np.hstack([*parts, bias]) / math.sqrt(len(parts))
    return features, {name: count for name, (_, count) in coded.items()}


def _text(value: Any) -> str:
    text = "" if value is None else str(value)
    return text.lower() if isinstance(value, bool | np.bool_) else text


@dataclass(frozen=True)
class TableReader:
    """Records as the bounds file of a run says: of a file, a pandas frame, or columns by name."""

    model: Model

    @classmethod
    def of(cls, bounds: str, label: str, ignore: Sequence[str] = ()) -> Self:
        return cls(_model_from(bounds, label, "the bounds of this run", ignore))

    @property
    def link(self) -> Link:
        return self.model.link

    @property
    def answers(self) -> tuple[str, ...]:
        label = self.model.label
        if label.categories:
            return named_classes(label.name, label.categories)
        return (f"predicted {label.name}",)

    def inputs(self, source: Any, keep: Sequence[str] | None = None) -> Inputs:
        names = [column.name for column in self.model.columns]
        cells, odd = _columns_of(source, names)
        kept = self._kept(where(source), list(cells), keep)
        features, changed = _features(cells, self.model)
        return Inputs(
            features,
            {name: cells[name] for name in kept},
            {name: count for name, count in changed.items() if count},
            odd,
        )

    def _kept(self, place: str, header: list[str], keep: Sequence[str] | None) -> list[str]:
        known = {column.name for column in (*self.model.columns, self.model.label)}
        kept = [name for name in header if name not in known] if keep is None else list(keep)
        for name in kept:
            require(name in header, f"keep={name}: {place} has no such column")
            require(
                name not in self.answers,
                f"{place} has a column {name}, which is what a prediction is called: name the "
                "columns to carry over (keep), without it",
            )
        return kept

    def records(self, source: Any) -> Table:
        cells, _ = _columns_of(source, self.model.names)
        table, known = _table(where(source), self.model, cells)
        return table.rows(known)

    def answer(self, outputs: Tensor) -> NDArray[np.float64]:
        label, answers = self.model.label, self.link.answers(outputs).numpy()
        if label.categories:
            return of_each_class(answers)
        return (label.low + label.high) / 2 + answers[:, None]

    def coding(self) -> list[str]:
        root, names = f"sqrt({len(self.model.columns)})", []
        for column in self.model.columns:
            if column.categories:
                fill = column.fill or "none of these"
                names += [
                    f"1 / {root} if {column.name} is {name}, else 0; missing or unknown: {fill}"
                    for name in column.categories
                ]
            else:
                middle, half = (column.low + column.high) / 2, (column.high - column.low) / 2
                fill = column.fill or f"{middle:.12g}"
                names.append(
                    f"({column.name} - {middle:.12g}) / {half:.12g} / {root}, {column.name} "
                    f"clipped to [{column.low:.12g}, {column.high:.12g}]; missing: {fill}"
                )
        return names


def where(source: Any) -> str:
    """What an error calls a source."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else "the table"


def _columns_of(source: Any, names: list[str]) -> tuple[dict[str, list[str]], int]:
    """The cells of every column, `names` among them, and how many rows were cut or filled up."""
    place = where(source)
    if isinstance(source, str | os.PathLike):
        header = read_header(place, names)
    else:
        require(
            hasattr(source, "keys") and hasattr(source, "__getitem__"),
            f"data is a {type(source).__name__}: give a path, a pandas frame, or a dict of columns",
        )
        header = [str(name) for name in source]
    missing = [name for name in names if name not in header]
    if missing:
        raise DataError(f"{place} lacks columns that the model needs: {', '.join(missing)}")
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(f"{place} repeats a column: {', '.join(repeated)}")
    if isinstance(source, str | os.PathLike):
        file = read_table_file(place, names, None, may_be_empty=True)
        return file.cells, file.short + file.long
    columns = [[_text(value) for value in source[name]] for name in dict.fromkeys(source)]
    if len({len(column) for column in columns}) > 1:
        raise DataError(f"{place} has columns of different lengths")
    return dict(zip(header, columns, strict=True)), 0


SPEC = TaskSpec(
    "csv",
    tables,
    Takes(files=True, columns=True, person=True, l2=True),
    load_client=table_alone,
    load_to_plan=tables_to_plan,
    measure=tables_measure,
    own_records=own_records,
    reader=TableReader.of,
    own_files=True,
    deals=False,
)
