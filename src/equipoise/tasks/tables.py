"""Tables that silos bring: one CSV or Parquet file per client, with public bounds for every column.

Nothing public depends on a private value: scaling, clipping, coding, L and mu follow from the bounds; a cell outside them is
clipped or filled, a record whose label is not declared is left out, and only the client's own log says how often.
"""

import csv
import logging
import math
from pathlib import Path

import numpy as np

from equipoise.errors import DataError, require
from equipoise.tasks.bounds import Column, read_bounds
from equipoise.tasks.linear import LOGISTIC, MULTINOMIAL, Link, Table, least_squares, linear_measure, linear_task
from equipoise.tasks.task import Measure, Options, Task

log = logging.getLogger("equipoise.client")

L2 = 0.01
ITERATIONS = 64
FEATURE_NORM = 1.0  # by construction: k columns of norm at most 1 each, divided by sqrt(k)


def tables(options: Options) -> Task:
    """The task `csv`: logistic, multinomial or least squares, as the label's entry in the bounds says."""
    require(len(options.data) >= 1, "task=csv needs data: give one file per client (--data a.csv b.csv ...)")
    require(
        options.clients in (None, len(options.data)),
        f"clients={options.clients} with {len(options.data)} files: task csv has one file per client; leave it out",
    )
    require(options.split == "random", f"split={options.split!r}: the files say which client holds what; leave it out")
    link, columns, label = _model(options)
    private = [_read_table(path, columns, label) for path in options.data]
    test = _joined([_read_table(path, columns, label) for path in options.test])
    return linear_task(
        "csv",
        private,
        test,
        link,
        L2,
        FEATURE_NORM,
        options,
        iterations=ITERATIONS,
        public=(
            f"the names and bounds of the columns, from {options.bounds}",
            "that every client has at least one record",
            *(["the test records"] if options.test else []),
        ),
        sizes_public=False,
    )


def tables_measure(options: Options) -> Measure:
    """Error and loss on the records in `options.data`."""
    link, columns, label = _model(options)
    table = _joined([_read_table(path, columns, label) for path in options.data])
    if table is None or not len(table.features):
        raise DataError("no record to evaluate on: give --data FILE with declared labels")
    return linear_measure(table, link)


def _model(options: Options) -> tuple[Link, list[Column], Column]:
    """The link that the label asks for, the feature columns, and the label's column."""
    require(options.bounds is not None, "task=csv needs bounds, public knowledge about the columns (--bounds bounds.toml)")
    require(options.label is not None, "task=csv needs label, the column to predict (--label NAME)")
    columns = read_bounds(str(options.bounds))
    if options.label not in columns:
        raise DataError(f"label={options.label!r} is not in {options.bounds}, which has {', '.join(columns)}")
    label = columns.pop(options.label)
    if not columns:
        raise DataError(f"{options.bounds} has no column besides the label {options.label!r}")
    if not label.categories:
        return least_squares((label.high - label.low) / 2), list(columns.values()), label
    return LOGISTIC if label.width == 2 else MULTINOMIAL, list(columns.values()), label


def _joined(parts: list[Table]) -> Table | None:
    return Table(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))) if parts else None


def _read_table(path: str, columns: list[Column], label: Column) -> Table:
    cells = _read_cells(path, [*(column.name for column in columns), label.name])
    coded = {column.name: column.code(cells[column.name]) for column in columns}
    parts = [numbers for numbers, _ in coded.values()]
    features = np.hstack([*parts, np.full((len(parts[0]), 1), math.sqrt(len(columns)))]) / math.sqrt(len(columns))
    changed = {name: count for name, (_, count) in coded.items()}
    known = np.ones(len(features), dtype=bool)
    if label.categories:
        index = label.index(cells[label.name])
        known = index >= 0
        targets = (index[:, None] == 1) if label.width == 2 else (index[:, None] == np.arange(label.width))
    else:
        targets, changed[label.name] = label.code(cells[label.name])
    log.info(
        "%s: %d records, of which %d left out (label not declared); cells clipped or filled: %s",
        path,
        len(features),
        int((~known).sum()),
        ", ".join(f"{name} {count}" for name, count in changed.items()),
    )
    return Table(features, targets.astype(np.float64)).rows(known)


def _read_cells(path: str, names: list[str]) -> dict[str, list[str]]:
    """The named columns of a file, as text; the file must have these columns and no others, in any order."""
    header, rows = (_read_parquet if Path(path).suffix in (".parquet", ".pq") else _read_csv)(path)
    missing, extra = [n for n in names if n not in header], [n for n in header if n not in names]
    if missing or extra or len(set(header)) < len(header):
        said = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(extra)} besides"] * bool(extra)
        raise DataError(f"{path} does not have the columns of the bounds file: it {' and '.join(said) or 'repeats a column'}")
    if not rows:
        raise DataError(f"{path} has a header and no records: a client without records cannot take part")
    where = {name: header.index(name) for name in names}
    return {name: [row[where[name]] for row in rows] for name in names}


def _read_csv(path: str) -> tuple[list[str], list[list[str]]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            rows = []
            for row in reader:
                if len(row) not in (0, len(header)):
                    raise DataError(f"{path}, line {reader.line_num}: {len(row)} cells where the header has {len(header)}")
                if row:
                    rows.append(row)
    except OSError as error:
        raise DataError(f"data={path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"data={path} is not UTF-8 text") from None
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None
    if not header:
        raise DataError(f"data={path} is empty: expected a header with the names of the columns")
    return header, rows


def _read_parquet(path: str) -> tuple[list[str], list[list[str]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"data={path}: reading Parquet needs pyarrow: pip install 'equipoise[parquet]'") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"data={path} is not a Parquet file: {error}") from None
    columns = [["" if value is None else _cell(value) for value in column.to_pylist()] for column in table.columns]
    return list(table.column_names), [list(row) for row in zip(*columns, strict=True)]


def _cell(value: object) -> str:
    """As a CSV file would write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
