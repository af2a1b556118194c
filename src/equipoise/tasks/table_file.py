"""A table in a file as cells of text: CSV in the forms that programs write it in, or Parquet.

What decides how a file is read is public: its name, its first bytes, its header, and the columns
that are declared. No row decides how another is read: in a CSV file every line after the first is
one record, whatever it holds, so a quote that is not closed ends with its line, and a line break
within quotes makes two records. Each line is UTF-8 or else Windows-1252 (Latin-1 and more) by
itself.
"""

import csv
import gzip
import shlex
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, cast

from equipoise.errors import DataError, UserCode

SEPARATORS = (",", ";", "\t")
UTF_8_MARK = b"\xef\xbb\xbf"
UTF_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}  # by byte order mark
NAMELESS = "a column without a name"
GZIP = b"\x1f\x8b"


class TableFile(NamedTuple):
    """The header of a file, and the cells of its columns by name. `short` and `long` are how many
    lines have fewer or more cells than the header: these are filled or cut."""

    header: list[str]
    cells: dict[str, list[str]]
    short: int = 0
    long: int = 0

    def __repr__(self) -> str:
        return f"TableFile({len(self.cells)} columns)"


class Form(NamedTuple):
    """How the lines of a CSV file are read, and the names in the first of them."""

    encoding: str  # of UTF-16; empty where each line decides by itself
    separator: str
    names: list[str]


def read_table_file(
    path: str,
    names: Sequence[str],
    ignore: Collection[str] | None = (),
    *,
    may_be_empty: bool = False,
) -> TableFile:
    """The named columns of a file; it must have these and, besides those to ignore, no others, in
    any order. With `ignore=None` it may have any others, and they are read as well."""
    file = (_read_parquet if _is_parquet(path) else _read_csv)(path, names, ignore)
    if not file.cells[names[0]] and not may_be_empty:
        raise DataError(
            f"{path} has a header and no records: a client without records cannot take part"
        )
    return file


def read_header(path: str, declared: Collection[str] = ()) -> list[str]:
    """The names in the header of a file, of which nothing else is read."""
    if _is_parquet(path):
        pyarrow = _pyarrow(path)
        return list(_parsed(path, lambda: pyarrow.parquet.read_schema(path)).names)
    with _opened(path) as file:
        return _form(path, file, declared).names


def check_header(
    path: str, header: Sequence[str], names: Sequence[str], ignore: Collection[str] | None
) -> None:
    """Refuse a file that lacks or repeats a column, or has one that nobody spoke of."""
    ignore = header if ignore is None else ignore
    kept = [name for name in header if name in names or name not in ignore]
    if sorted(kept) != sorted(names):
        raise DataError(
            f"{path} does not have the columns of the bounds file: it {_difference(kept, names)}"
        )


def _difference(header: Sequence[str], names: Sequence[str]) -> str:
    missing = [name for name in names if name not in header]
    if missing:  # the first line may be no header, but a record: it is not shown
        none = len(missing) == len(names)
        form = ": the first line is a header, with commas, semicolons or tabs between its names"
        return f"lacks {', '.join(missing)}{form * none}"
    extra = [name for name in header if name not in names]
    if not extra:
        return "repeats a column"
    shown, what = ", ".join(name or NAMELESS for name in extra), "it" if len(extra) == 1 else "them"
    return (
        f"also has {shown}: declare {what} there, or leave {what} aside (--ignore "
        f"{shlex.join(extra)})"
    )


def _read_csv(path: str, names: Sequence[str], ignore: Collection[str] | None) -> TableFile:
    with _opened(path) as file:
        form = _form(path, file, names)
        check_header(path, form.names, names, ignore)
        lines = _lines(file.read(), form.encoding)
    rows = [_row(line, form.separator) for line in lines]
    places = {name: form.names.index(name) for name in _wanted(form.names, names, ignore)}
    cells = {
        name: [row[at] if at < len(row) else "" for row in rows] for name, at in places.items()
    }
    width = len(form.names)
    short, long = (sum(len(row) < width for row in rows), sum(len(row) > width for row in rows))
    return TableFile(form.names, cells, short, long)


def _wanted(
    header: Sequence[str], names: Sequence[str], ignore: Collection[str] | None
) -> Sequence[str]:
    return names if ignore is not None else header


@contextmanager
def _opened(path: str) -> Iterator[BufferedReader]:
    """The bytes of a file, unpacked where they are gzip, whatever its name."""
    try:
        with open(path, "rb") as plain:
            packed = plain.peek(len(GZIP)).startswith(GZIP)
            yield cast(BufferedReader, gzip.GzipFile(fileobj=plain)) if packed else plain
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "it is damaged and cannot be read to its end"
        raise DataError(f"data={path}: {reason}") from None


def _form(path: str, file: BufferedReader, declared: Collection[str]) -> Form:
    """What the first line says. The separator is that under which it has most of the declared
    names and, of equals, most names."""
    csv.field_size_limit(sys.maxsize)  # no line is too long, the header neither
    encoding = UTF_16.get(file.peek(2)[:2], "")
    header = _first_line(file, encoding)
    if not header.strip():
        raise DataError(
            f"data={path} is empty, or its first line is: expected a header with the names of the "
            "columns"
        )
    if "\0" in header:
        raise DataError(
            f"data={path} is no text, or UTF-16 without a byte order mark: save it as CSV in UTF-8"
        )
    if "\r" in header.rstrip("\r"):  # then what is taken for the header holds records
        raise DataError(f"data={path}: its lines end in CR alone; save it with line feeds")
    names = {mark: [name.strip() for name in _row(header, mark)] for mark in SEPARATORS}
    separator = max(
        SEPARATORS, key=lambda mark: (len({*names[mark]} & {*declared}), len(names[mark]))
    )
    return Form(encoding, separator, names[separator])


def _first_line(file: BufferedReader, encoding: str) -> str:
    if not encoding:
        line = file.readline().removeprefix(UTF_8_MARK)
        return _decoded(line.removesuffix(b"\n"))
    file.read(2)  # the mark
    units, end = [], "\n".encode(encoding)
    while (unit := file.read(2)) and unit != end:
        units.append(unit)
    return b"".join(units).decode(encoding, errors="replace")


def _lines(content: bytes, encoding: str) -> list[str]:
    """A line break ends a line: without a line after it, none begins."""
    if not content:
        return []
    if encoding:  # an odd byte at the end is half a character
        text = content[: len(content) // 2 * 2].decode(encoding, errors="replace")
        return text.removesuffix("\n").split("\n")
    return [_decoded(line) for line in content.removesuffix(b"\n").split(b"\n")]


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("cp1252", errors="replace")


def _row(line: str, separator: str) -> list[str]:
    """The cells of one line, whatever is in it: no line is a mistake, or the whole file would
    depend on it."""
    text = line.replace("\r", " ")
    return next(csv.reader([text], delimiter=separator)) if '"' in text else text.split(separator)


def _is_parquet(path: str) -> bool:
    return Path(path).suffix in (".parquet", ".pq")


def _read_parquet(path: str, names: Sequence[str], ignore: Collection[str] | None) -> TableFile:
    pyarrow = _pyarrow(path)
    table = _parsed(path, lambda: pyarrow.parquet.read_table(path))
    header = list(table.column_names)
    check_header(path, header, names, ignore)
    wanted = _wanted(header, names, ignore)
    columns = {name: table.column(header.index(name)) for name in wanted}
    return TableFile(header, {name: [*map(_cell, column)] for name, column in columns.items()})


def _pyarrow(path: str) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"data={path}: reading Parquet needs pyarrow: pip install 'equipoise[parquet]'"
        ) from None
    return pyarrow


def _parsed(path: str, parse: Callable[[], Any]) -> Any:
    if not Path(path).is_file():
        raise DataError(f"data={path}: there is no such file")
    with UserCode():  # what a parser says may hold cells
        return parse()
    raise DataError(f"data={path} is not a Parquet file")


def _cell(scalar: Any) -> str:
    """As a CSV file would write it; what Python cannot hold, such as a far date, is a missing
    cell."""
    with UserCode():  # a cell must not stop a run, nor stand in an error
        value = scalar.as_py()
        if isinstance(value, bytes):
            return _decoded(value)
        text = "" if value is None else str(value)
        return text.lower() if isinstance(value, bool) else text
    return ""
