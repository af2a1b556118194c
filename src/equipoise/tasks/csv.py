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
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import DataError, InvalidValue, UserCode, require
from equipoise.tasks.bounds import Column, parse_bounds, read_text
from equipoise.tasks.linear import (
    LOGISTIC,
    MULTINOMIAL,
    Link,
    joined,
    least_squares,
    linear_measure,
    linear_task,
)
from equipoise.tasks.reader import Inputs, named_classes
from equipoise.tasks.task import Measure, Table, Takes, Task, TaskOptions, TaskSpec

log = logging.getLogger("equipoise.client")

L2 = 0.01
ITERATIONS = 64
BOM = b"\xef\xbb\xbf"
FEATURE_NORM = 1.0  # by construction: k columns of norm at most 1 each, divided by sqrt(k)


class Model(NamedTuple):
    """What the bounds file and the label decide: the loss, and how cells become numbers."""

    link: Link
    columns: list[Column]
    label: Column
    text: str


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
    test, proxy = (
        joined([_read_table(path, model) for path in paths])
        for paths in (options.test, options.proxy)
    )
    return linear_task(
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
        reading={"bounds": model.text, "label": model.label.name},
    )


def tables_measure(files: tuple[str, ...], bounds: str, label: str) -> Measure:
    """Error and loss on the records of `files`, read as the text `bounds` of a bounds file says."""
    model = _model_from(bounds, label, "the bounds of this run")
    table = joined([_read_table(path, model) for path in files])
    if table is None:
        raise DataError("the run has no public test records: give --data FILE")
    return linear_measure(table, model.link)


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
    cells = _read_cells(path, [*(column.name for column in model.columns), model.label.name])
    return _labelled(path, cells, model, keep_all)


def _labelled(path: str, cells: dict[str, list[str]], model: Model, keep_all: bool) -> Table:
    features, changed = _features(cells, model)
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
    table = Table(features, targets.astype(np.float64))
    return Table(*(part * known[:, None] for part in table)) if keep_all else table.rows(known)


def _features(
    cells: dict[str, list[str]], model: Model
) -> tuple[NDArray[np.float64], dict[str, int]]:
    """What a model sees of these cells, and how many of each column were clipped or filled."""
    coded = {column.name: column.code(cells[column.name]) for column in model.columns}
    parts = [numbers for numbers, _ in coded.values()]
    bias = np.full((len(parts[0]), 1), math.sqrt(len(parts)))
    features = np.hstack([*parts, bias]) / math.sqrt(len(parts))
    return features, {name: count for name, (_, count) in coded.items()}


def _read_cells(path: str, names: list[str]) -> dict[str, list[str]]:
    """The named columns of a file, as text; the file must have these columns and no others, in any
    order."""
    header, rows = _read_rows(path)
    _check_header(path, header, names)
    if not rows:
        raise DataError(
            f"{path} has a header and no records: a client without records cannot take part"
        )
    return {name: _cells_at(rows, header.index(name)) for name in names}


def _read_rows(path: str) -> tuple[list[str], list[list[str]]]:
    """The header of a file and the cells of its rows."""
    read = _read_parquet if Path(path).suffix in (".parquet", ".pq") else _read_csv
    return read(path)


def _cells_at(rows: list[list[str]], place: int) -> list[str]:
    return [row[place] if place < len(row) else "" for row in rows]


def _check_header(path: str, header: list[str], names: list[str]) -> None:
    _check_separator(path, header, names)
    if sorted(header) != sorted(names):
        raise DataError(
            f"{path} does not have the columns of the bounds file: it {_difference(header, names)}"
        )


def _check_separator(path: str, header: list[str], names: list[str]) -> None:
    if len(header) == 1 < len(names) and ";" in header[0]:
        raise DataError(f"{path} looks separated by semicolons: save it with commas")


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
        return _text(scalar.as_py())
    return ""


def _text(value: Any) -> str:
    text = "" if value is None else str(value)
    return text.lower() if isinstance(value, bool | np.bool_) else text


@dataclass(frozen=True)
class TableReader:
    """Records as the bounds file of a run says: of a file, a pandas frame, or columns by name."""

    model: Model

    @classmethod
    def of(cls, bounds: str, label: str) -> Self:
        return cls(_model_from(bounds, label, "the bounds of this run"))

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
        names = [column.name for column in (*self.model.columns, self.model.label)]
        return _labelled(where(source), _columns_of(source, names)[0], self.model, False)

    def answer(self, outputs: Tensor) -> NDArray[np.float64]:
        label, answer = self.model.label, self.link.answer(outputs).numpy()
        if label.categories:
            return answer
        return (label.low + label.high) / 2 + (label.high - label.low) / 2 * answer

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
                fill = column.fill or f"{middle:g}"
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
    place, odd = where(source), 0
    if isinstance(source, str | os.PathLike):
        header, rows = _read_rows(place)
        _check_separator(place, header, names)
        odd = sum(len(row) != len(header) for row in rows)
        columns = [_cells_at(rows, i) for i in range(len(header))]
    else:
        require(
            hasattr(source, "keys") and hasattr(source, "__getitem__"),
            f"data is a {type(source).__name__}: give a path, a pandas frame, or a dict of columns",
        )
        header = [str(name) for name in source]
        columns = [[_text(value) for value in source[name]] for name in dict.fromkeys(source)]
    missing = [name for name in names if name not in header]
    if missing:
        raise DataError(f"{place} lacks columns that the model needs: {', '.join(missing)}")
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(f"{place} repeats a column: {', '.join(repeated)}")
    if len({len(column) for column in columns}) > 1:
        raise DataError(f"{place} has columns of different lengths")
    return dict(zip(header, columns, strict=True)), odd


SPEC = TaskSpec(
    "csv",
    tables,
    Takes(files=True, columns=True, l2=True),
    load_client=table_alone,
    load_to_plan=tables_to_plan,
    measure=tables_measure,
    own_records=own_records,
    reader=TableReader.of,
    own_files=True,
)
