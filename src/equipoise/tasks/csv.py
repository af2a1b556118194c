"""Tables that silos bring: one CSV or Parquet file per client, with public bounds for every column.

Nothing public depends on what is in a private row: scaling, clipping, coding, L and mu follow from
the bounds; a cell outside them is clipped or filled, a row with too few or too many cells is filled
or cut, a record whose label is not declared is left out (or, where the unit is a record, stays as
one that teaches nothing), and only the client's own log says how often.

Nor does a row decide how another is read: in a CSV file every line after the first is one record,
whatever it holds, so a quote that is not closed ends with its line, and a line break within quotes
makes two records. A cell that cannot be read is a missing one.
"""

import csv
import logging
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import DataError, InvalidValue, UserCode, require
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
from equipoise.tasks.task import Table, Takes, Task, TaskOptions, TaskSpec

log = logging.getLogger("equipoise.client")

L2 = 0.01
ITERATIONS = 64
BOM = b"\xef\xbb\xbf"
MOST_GROUPS = 50
NO_GROUP = "(none)"  # of a record whose cell is empty or not declared
Cells = dict[str, list[str]]
FEATURE_NORM = 1.0  # by construction: k columns of norm at most 1 each, divided by sqrt(k)


class Model(NamedTuple):
    """What the bounds file and the label decide: the loss, and how cells become numbers."""

    link: Link
    columns: list[Column]
    label: Column
    text: str

    @property
    def names(self) -> list[str]:
        """Of all columns, the label last."""
        return [*(column.name for column in self.columns), self.label.name]

    def groups(self, cells: list[str], name: str) -> list[str]:
        """The group of every record by its cell in the column `name`: the category that is
        declared, or else the text."""
        declared = {column.name: column for column in (*self.columns, self.label)}.get(name)
        if declared is None or not declared.categories:
            return [cell.strip() or NO_GROUP for cell in cells]
        categories = (*declared.categories, NO_GROUP)  # an index of -1 is the last
        return [categories[i] for i in declared.index(cells)]


def tables(options: TaskOptions) -> Task:
    """The task `csv`: logistic, multinomial or least squares, as the label's entry in the bounds
    says."""
    model, number = _model(options), _number(options)
    return _task(options, model, [_private(options, model, i) for i in range(number)])


def table_alone(options: TaskOptions, client: int) -> Task:
    """The same task with one client: the files of the others are counted and not opened."""
    model, number = _model(options), _number(options)
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
    model = _model(options)
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


def _private(options: TaskOptions, model: Model, client: int) -> Table:
    return _read_table(options.data[client], model, options.unit == "record")


def _empty(model: Model) -> Table:
    features = sum(column.width for column in model.columns) + 1
    outputs = model.label.width if model.label.width > 2 else 1
    return Table(np.zeros((0, features)), np.zeros((0, outputs)))


def _task(options: TaskOptions, model: Model, private: list[Table]) -> Task:
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
    test, groups = _test_records(options.test, model, options.groups)
    proxy = joined([_read_table(path, model) for path in options.proxy])
    task = linear_task(
        "csv",
        (private, proxy),
        test,
        model.link,
        L2,
        FEATURE_NORM,
        options,
        public=(
            f"the names and bounds of the columns, from {options.bounds}",
            "that every client has a table with these columns and at least one record",
            *(["the test records"] if options.test else []),
        ),
        iterations=ITERATIONS,
        sizes_public=False,
        names=model.label.categories,
        reading={"bounds": model.text, "label": model.label.name},
    )
    return replace(task, measure=_grouped(task.measure, groups, options.groups))


def tables_measure(
    files: tuple[str, ...], groups: str | None, usual: str | None, bounds: str, label: str
) -> LinearMeasure:
    """Error and loss on the records of `files`, read as the text `bounds` of a bounds file says,
    and by groups as in `_test_records`."""
    model = _model_from(bounds, label, "the bounds of this run")
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
    model = _model(options)
    return _read_table(path, model), model.link


def _model(options: TaskOptions) -> Model:
    require(
        options.bounds is not None,
        "task=csv needs bounds, public knowledge about the columns (--bounds bounds.toml)",
    )
    require(options.label is not None, "task=csv needs label, the column to predict (--label NAME)")
    return _model_from(read_text(str(options.bounds)), str(options.label), str(options.bounds))


def _model_from(text: str, name: str, where: str) -> Model:
    columns = parse_bounds(text, where)
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
    return Model(link, list(columns.values()), label, text)


def _read_table(path: str, model: Model, keep_all: bool = False) -> Table:
    """The records of a file. With `keep_all` those without a declared label stay, all zero: no
    record decides on the number."""
    table, known = _table(path, model, _read_cells(path, model.names))
    return Table(*(part * known[:, None] for part in table)) if keep_all else table.rows(known)


def _test_records(
    paths: tuple[str, ...], model: Model, groups: str | None, usual: str | None = None
) -> tuple[Table | None, tuple[str, ...]]:
    """The records of public files, and the group of each by the column `groups`, which the bounds
    need not declare; or else by the `usual` one, where all files have that."""
    tables, names = [], list[str]()
    column = groups or usual
    for path in paths:
        cells = _read_cells(path, model.names, tuple(filter(None, (groups, usual))), groups)
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


def _table(path: str, model: Model, cells: Cells) -> tuple[Table, NDArray[np.bool_]]:
    """All records of a file, and which of them have a declared label."""
    coded = {column.name: column.code(cells[column.name]) for column in model.columns}
    parts = [numbers for numbers, _ in coded.values()]
    features = np.hstack([*parts, np.full((len(parts[0]), 1), math.sqrt(len(parts)))]) / math.sqrt(
        len(parts)
    )
    changed = {name: count for name, (_, count) in coded.items()}
    known = np.ones(len(features), dtype=bool)
    label = model.label
    if label.categories:
        index = label.index(cells[label.name])
        known = index >= 0
        targets = (
            (index[:, None] == 1)
            if label.width == 2
            else (index[:, None] == np.arange(label.width))
        )
    else:
        targets, changed[label.name] = label.code(cells[label.name])
        known = label.readable(cells[label.name])
    log.info(
        "%s: %d records, of which %d left out (label missing or not declared); cells clipped or "
        "filled: %s",
        path,
        len(features),
        int((~known).sum()),
        ", ".join(f"{name} {count}" for name, count in changed.items()),
    )
    return Table(features, targets.astype(np.float64)), known


def _read_cells(
    path: str, names: list[str], may_have: tuple[str, ...] = (), groups: str | None = None
) -> Cells:
    """The named columns of a file, as text; the file must have these columns and no others, in any
    order, except those that it may have, and that of the groups, if there is one."""
    read = _read_parquet if Path(path).suffix in (".parquet", ".pq") else _read_csv
    header, rows = read(path)
    if groups and groups not in header:
        raise DataError(f"{path} lacks {groups}, the column of groups")
    names = [*names, *({*may_have} & {*header} - {*names})]
    _check_header(path, header, names)
    if not rows:
        raise DataError(
            f"{path} has a header and no records: a client without records cannot take part"
        )
    return {name: _cells_at(rows, header.index(name)) for name in names}


def _cells_at(rows: list[list[str]], place: int) -> list[str]:
    return [row[place] if place < len(row) else "" for row in rows]


def _check_header(path: str, header: list[str], names: list[str]) -> None:
    if len(header) == 1 < len(names) and ";" in header[0]:
        raise DataError(f"{path} looks separated by semicolons: save it with commas")
    if sorted(header) != sorted(names):
        raise DataError(
            f"{path} does not have the columns of the bounds file: it {_difference(header, names)}"
        )


def _difference(header: list[str], names: list[str]) -> str:
    missing = [name for name in names if name not in header]
    if missing:  # the first line may be no header, but a record: it is not shown
        return f"lacks {', '.join(missing)}"
    extra = [name for name in header if name not in names]
    return f"has {', '.join(extra)} besides" if extra else "repeats a column"


def _read_csv(path: str) -> tuple[list[str], list[list[str]]]:
    csv.field_size_limit(sys.maxsize)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"data={path}: {error.strerror}") from None
    header, *lines = content.removeprefix(BOM).removesuffix(b"\n").split(b"\n")
    if not header.strip():
        raise DataError(
            f"data={path} is empty, or its first line is: expected a header with the names of the "
            "columns"
        )
    if b"\r" in header.rstrip(b"\r"):  # then what is taken for the header holds records
        raise DataError(f"data={path}: its lines end in CR alone; save it with line feeds")
    return [name.strip() for name in _row(header)], [_row(line) for line in lines]


def _row(line: bytes) -> list[str]:
    """The cells of one line, whatever is in it: no line is a mistake, or the whole file would
    depend on it."""
    text = line.decode(errors="replace").replace("\r", " ")
    return next(csv.reader([text])) if '"' in text else text.split(",")


def _read_parquet(path: str) -> tuple[list[str], list[list[str]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"data={path}: reading Parquet needs pyarrow: pip install 'equipoise[parquet]'"
        ) from None
    with UserCode() as tried:  # what a parser says may hold cells
        table = pyarrow.parquet.read_table(path)
    if tried.kind:
        raise DataError(f"data={path} is not a Parquet file")
    columns = [[_cell(scalar) for scalar in column] for column in table.columns]
    return list(table.column_names), [list(row) for row in zip(*columns, strict=True)]


def _cell(scalar: Any) -> str:
    """As a CSV file would write it; what Python cannot hold, such as a far date, is a missing
    cell."""
    with UserCode():  # a cell must not stop a run, nor stand in an error
        value = scalar.as_py()
        text = "" if value is None else str(value)
        return text.lower() if isinstance(value, bool) else text
    return ""


SPEC = TaskSpec(
    "csv",
    tables,
    Takes(files=True, columns=True, l2=True),
    load_client=table_alone,
    load_to_plan=tables_to_plan,
    measure=tables_measure,
    own_records=own_records,
    own_files=True,
)
