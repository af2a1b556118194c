"""What training makes of a client's own file, told to its owner before anything is spent.

It is read by the code that training reads it with, and all that is told here is private. Guesses
from rows, such as that commas stand for points, are made here alone, and change nothing.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from equipoise.errors import DataError, printable, require
from equipoise.tasks.bounds import Column, toml_key
from equipoise.tasks.catalogue import task_spec
from equipoise.tasks.csv import Coded, Model, code_cells, table_model
from equipoise.tasks.libsvm import Form, declared, known_lines
from equipoise.tasks.libsvm_text import Lines, read_lines, read_names
from equipoise.tasks.table_file import NAMELESS, TableFile, check_header, read_table_file
from equipoise.tasks.task import TaskOptions

PRIVATE = (
    "PRIVATE: this is read off the records themselves, for their owner's eyes only; nothing was "
    "sent or saved."
)
FEW = 5  # of the cells that could not be read, those that occur most often
LONGEST = 40  # characters of a cell
NO_CELL = ("", "na", "n/a", "nan", "null")  # what programs write for a cell that is missing
FINE, LOOK, USELESS = 0, 1, 2
VERDICTS = ("fine", "can be used; look at what is said below", "CANNOT BE USED")


@dataclass(frozen=True, repr=False)
class TriedColumn:
    """What became of the cells of a column.

    filled             cells that another value stands in for; of the label, rows that are left out
    unreadable         those of them that hold something: no number, or none of the categories
    clipped            numbers beyond the bounds
    most_unreadable    the most frequent of the unreadable ones, and how often each is there
    smallest, largest  of the numbers, before they are clipped
    """

    name: str
    filled: int
    unreadable: int
    clipped: int
    most_unreadable: dict[str, int]
    smallest: float | None = None
    largest: float | None = None


@dataclass(frozen=True, repr=False)
class Persons:
    """How many persons a column names, how many rows they have, and rows without one."""

    column: str
    number: int
    median: float
    largest: int
    missing: int


@dataclass(frozen=True, repr=False)
class TriedFile:
    """What training makes of one file.

    refused     why it is of no use, in a sentence; empty if it is. Where nothing could be read,
                there is nothing else
    classes     how many rows have each label; empty where the label is a number
    mean        of the labels, where they are numbers
    undeclared  columns of the file that are neither in bounds nor ignored
    ignored     columns of the file that are ignored
    look        what a person should look at, in sentences
    """

    file: str
    refused: str = ""
    rows: int = 0
    kept: int = 0
    columns: tuple[TriedColumn, ...] = ()
    label: TriedColumn | None = None
    classes: dict[str, int] = field(default_factory=dict)
    mean: float | None = None
    persons: Persons | None = None
    undeclared: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    look: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """0: all is fine; 1: there is something that a person should look at; 2: of no use."""
        return USELESS if self.refused else LOOK if self.look else FINE

    @property
    def made(self) -> tuple[TriedColumn, ...]:
        """The columns, and the label."""
        return (*self.columns, *([self.label] if self.label else []))


@dataclass(frozen=True, repr=False)
class Tried:
    """What training makes of files, each by itself. `print` shows it; its repr does not, since it
    is private.

    files   what becomes of each
    """

    files: tuple[TriedFile, ...]

    @property
    def code(self) -> int:
        """The worst of the files: the exit code of the command."""
        return max(file.code for file in self.files)

    def __repr__(self) -> str:
        return f"Tried(files={len(self.files)}, code={self.code})"

    def __str__(self) -> str:
        return "\n\n".join([PRIVATE, *("\n".join(_words(file)) for file in self.files)])

    def to_json(self) -> str:
        """One JSON document."""
        files = [{**asdict(file), "code": file.code} for file in self.files]
        return json.dumps({"notice": PRIVATE, "code": self.code, "files": files}, indent=2)


Path = str | os.PathLike[str]


def try_data(
    data: Path | Sequence[Path],
    *,
    bounds: Path,
    label: str | None = None,
    task: str | None = None,
    person: str | None = None,
    ignore: str | Sequence[str] = (),
) -> Tried:
    r"""What task csv or libsvm makes of one's own file or files, for the owner's eyes: rows that
    are left out, cells that are clipped or filled, categories that were not declared. Nothing is
    sent or saved.

    data     the file or files
    bounds   the file with public bounds of every column
    task     which reads such files; None: the one for tables
    label    the column to predict (task csv)
    person   the column that says whose a row is, or the file that does (task libsvm), to count the
             rows of each
    ignore   columns of the files that are left aside (task csv)

    >>> _ = pathlib.Path("bounds.toml").write_text(
    ...     '[age]\nlow = 0\nhigh = 100\n[ill]\ncategories = ["no", "yes"]\n')
    >>> _ = pathlib.Path("mine.csv").write_text("age,ill\n71,yes\n300,no\n55,perhaps\n")
    >>> (file,) = equipoise.try_data("mine.csv", bounds="bounds.toml", label="ill").files
    >>> file.rows, file.kept, [(column.name, column.clipped) for column in file.columns]
    (3, 2, [('age', 1)])
    """
    paths, where = _several(data), os.fspath(bounds)
    require(len(paths) >= 1, "data is empty: give the files to try, before any flag")
    takes = None if task is None else task_spec(task).takes
    require(
        takes is None or takes.columns or takes.bounds,
        f"task={task}: tables (csv) and LIBSVM texts (libsvm) can be tried",
    )
    if takes and not takes.columns:
        require(
            label is None and not ignore,
            f"label and ignore with task={task}, which has no columns: leave them out",
        )
        require(
            person is None or len(paths) == 1,
            f"person={person} with {len(paths)} files: try each with its own file of names",
        )
        form = declared(where)
        return Tried(tuple(_tried_text(path, form, person) for path in paths))
    model = table_model(TaskOptions(bounds=where, label=label, ignore=_several(ignore)))
    require(person != label, f"person={person} is the label: give the column that names persons")
    return Tried(tuple(_tried(path, model, person, where) for path in paths))


def _several(value: Path | Sequence[Path]) -> tuple[str, ...]:
    values = (value,) if isinstance(value, str | os.PathLike) else value
    return tuple(os.fspath(text) for text in values)


def _tried(path: str, model: Model, person: str | None, bounds: str) -> TriedFile:
    try:
        file = read_table_file(path, model.names, ignore=None)
    except DataError as error:
        return TriedFile(path, str(error))
    coded = code_cells(file.cells, model)
    others = [name for name in file.header if name not in (*model.names, person)]
    tried = TriedFile(
        path,
        rows=len(coded.known),
        kept=int(coded.known.sum()),
        columns=tuple(_column(column, file, coded) for column in model.columns),
        label=_column(model.label, file, coded),
        classes=_classes(model.label, file.cells[model.label.name]),
        mean=_mean(model.label, file.cells[model.label.name]),
        persons=_persons(person, file.cells[person]) if person in file.cells else None,
        undeclared=tuple(name for name in others if name not in model.ignore),
        ignored=tuple(name for name in others if name in model.ignore),
    )
    refused = _refused(tried, file, model, person)
    look = (*_look_at_rows(tried, file), *_look_at_columns(tried, file, model, bounds))
    return replace(tried, refused=refused, look=look)


def _tried_text(path: str, form: Form, person: str | None) -> TriedFile:
    """What becomes of the lines of a LIBSVM text."""
    try:
        lines, names = read_lines(path), read_names(person) if person else []
    except DataError as error:
        return TriedFile(path, str(error))
    known, record = known_lines(lines, form), ~np.isnan(lines.labels)
    others = [f"{value:g}" for value in lines.labels[record & ~known]]
    label = TriedColumn(
        "label",
        filled=int((~known).sum()),
        unreadable=len(others),
        clipped=0,
        most_unreadable=dict(Counter(others).most_common(FEW)),
    )
    classes = {f"{each:g}": int((lines.labels == each).sum()) for each in form.classes}
    tried = TriedFile(
        path,
        rows=len(known),
        kept=int(known.sum()),
        columns=(_indices(lines, form),),
        label=label,
        classes=classes,
        persons=_persons(person, names) if person else None,
    )
    return replace(
        tried,
        refused=_refused_text(tried, names, person),
        look=(*_look_at_text(tried, lines, form),),
    )


def _indices(lines: Lines, form: Form) -> TriedColumn:
    outside = (lines.indices < form.first) | (lines.indices >= form.first + form.features)
    some = len(lines.indices) > 0
    return TriedColumn(
        "index",
        filled=0,
        unreadable=0,
        clipped=int(outside.sum()),
        most_unreadable={},
        smallest=float(lines.indices.min()) if some else None,
        largest=float(lines.indices.max()) if some else None,
    )


def _refused_text(tried: TriedFile, names: Sequence[str], person: str | None) -> str:
    if person and len(names) != tried.rows:
        return (
            f"person={person} has {len(names)} lines, and {tried.file} {tried.rows}: give one name "
            "for each, in the same order"
        )
    if empty := sum(not name for name in names):
        return f"person={person}: {empty} of its lines are empty; every line needs a name"
    return "" if tried.kept else f"no line of {tried.file} has a declared label: none is left"


def _look_at_text(tried: TriedFile, lines: Lines, form: Form) -> Iterator[str]:
    (index,), label = tried.columns, tried.label
    assert label is not None
    if odd := int(np.isnan(lines.labels).sum()):
        yield f"{odd} of {tried.rows} lines are no `label index:value ...`, and teach nothing"
    if label.unreadable:
        yield (
            f"{label.unreadable} of {tried.rows} lines have a label that is not declared, and "
            f"teach nothing: {_examples(label)}"
        )
    if index.clipped:
        yield (
            f"{index.clipped} of {len(lines.indices)} values are at an index beyond {form.first} "
            f"to {form.first + form.features - 1}, and left out{_range(index)}"
        )
    for name, count in tried.classes.items():
        if tried.kept and not count:
            yield f"no line has the label {name}"


def _column(column: Column, file: TableFile, coded: Coded) -> TriedColumn:
    cells = file.cells[column.name]
    unread = [
        cell.strip()
        for cell, readable in zip(cells, column.readable(cells), strict=True)
        if not readable
    ]
    texts = [cell for cell in unread if cell.casefold() not in NO_CELL]
    values = np.array([]) if column.categories else column.numbers(cells)
    finite = values[np.isfinite(values)]
    return TriedColumn(
        column.name,
        filled=len(unread),
        unreadable=len(texts),
        clipped=coded.changed.get(column.name, len(unread)) - len(unread),
        most_unreadable=dict(Counter(map(_shown, texts)).most_common(FEW)),
        smallest=float(finite.min()) if len(finite) else None,
        largest=float(finite.max()) if len(finite) else None,
    )


def _shown(cell: str) -> str:
    text = printable(cell)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _classes(label: Column, cells: list[str]) -> dict[str, int]:
    index = label.index(cells)
    return {name: int((index == i).sum()) for i, name in enumerate(label.categories)}


def _mean(label: Column, cells: list[str]) -> float | None:
    values = label.numbers(cells)
    finite = values[np.isfinite(values)]
    return None if label.categories or not len(finite) else float(finite.mean())


def _persons(column: str, cells: list[str]) -> Persons:
    names = [cell.strip() for cell in cells]
    rows = Counter(name for name in names if name.casefold() not in NO_CELL)
    return Persons(
        column,
        len(rows),
        float(np.median([*rows.values()] or [0])),
        max(rows.values(), default=0),
        len(names) - rows.total(),
    )


def _refused(tried: TriedFile, file: TableFile, model: Model, person: str | None) -> str:
    """Why training would not take the file, or could learn nothing from it."""
    header = file.header
    if person and person not in header:
        return f"person={person} is no column of {tried.file}, which has {_printed(header)}"
    names = [*model.names, *([person] if person and person not in model.names else [])]
    try:
        check_header(tried.file, header, names, model.ignore)
    except DataError as error:
        return str(error)
    if person and (empty := sum(not cell.strip() for cell in file.cells[person])):
        return f"person={person}: {empty} rows of {tried.file} have none; every row needs one"
    return "" if tried.kept else f"no row of {tried.file} has a declared label: none is left"


def _printed(names: Sequence[str]) -> str:
    return printable(", ".join(name or NAMELESS for name in names))


def _look_at_rows(tried: TriedFile, file: TableFile) -> Iterator[str]:
    if file.long:
        yield (
            f"{file.long} of {tried.rows} rows have more cells than the header, and are cut: a "
            "separator within a cell, such as a decimal comma, needs quotes around the cell"
        )
    if file.short:
        yield (
            f"{file.short} of {tried.rows} rows have fewer cells than the header: blank lines, or "
            "line breaks within cells"
        )
    if tried.kept < tried.rows:
        yield (
            f"{tried.rows - tried.kept} of {tried.rows} rows have no declared label, and are left "
            "out (unit record: kept, and teach nothing)"
        )
    if tried.persons and tried.persons.missing:
        yield f"{tried.persons.missing} of {tried.rows} rows name no {tried.persons.column}"
    for name, count in tried.classes.items():
        if tried.kept and not count:
            yield f"no row has the label {name}"


def _look_at_columns(tried: TriedFile, file: TableFile, model: Model, bounds: str) -> Iterator[str]:
    """Cells that are merely missing are as expected, unless a column has no others."""
    for column, made in zip((*model.columns, model.label), tried.made, strict=True):
        cells = file.cells[column.name]
        if made.filled == tried.rows and not made.unreadable:
            yield f"column {column.name} is empty"
        if made.unreadable:
            yield (
                f"column {column.name}: {made.unreadable} of {tried.rows} cells are "
                f"{'none of its categories' if column.categories else 'not numbers'}: "
                f"{_examples(made)}{_commas(column, cells, bounds)}"
            )
        if made.clipped:
            yield (
                f"column {column.name}: {made.clipped} of {tried.rows} cells are beyond "
                f"{column.low:g} to {column.high:g}, and clipped{_range(made)}"
            )


def _examples(made: TriedColumn) -> str:
    texts = [f'"{text}" {count}' for text, count in made.most_unreadable.items()]
    more = [] if sum(made.most_unreadable.values()) == made.unreadable else ["..."]
    odd = not all(text.isascii() for text in made.most_unreadable)
    return ", ".join(texts + more) + " (if letters look wrong, save it as UTF-8)" * odd


def _range(made: TriedColumn) -> str:
    return "" if made.smallest is None else f"; there is {made.smallest:g} to {made.largest:g}"


def _commas(column: Column, cells: list[str], bounds: str) -> str:
    """Whether commas would make numbers of cells that are none."""
    with_commas = replace(column, decimal=",")
    count = int((with_commas.readable(cells) & ~column.readable(cells)).sum())
    if not count:
        return ""
    return (
        f"; {count} would be with decimal commas: if that is how they are written, say decimal = "
        f'"," under [{toml_key(column.name)}] in {bounds}'
    )


def _words(file: TriedFile) -> Iterator[str]:
    """A file in lines."""
    if not file.label:
        yield f"{file.file}: CANNOT BE USED"
        yield f"  {file.refused}"
        return
    yield f"{file.file}: {VERDICTS[file.code]}"
    label = file.label
    missing = label.filled - label.unreadable
    yield (
        f"  rows      {file.kept} kept, {label.filled} left out: {missing} without a label, "
        f"{label.unreadable} with one that is not declared"
    )
    yield f"  label     {label.name}: {_balance(file, label)}"
    if persons := file.persons:
        yield (
            f"  persons   {persons.number} in {persons.column}; rows of each: median "
            f"{persons.median:g}, largest {persons.largest}; rows without a person: "
            f"{persons.missing}"
        )
    if file.ignored:
        yield f"  ignored   {_printed(file.ignored)}"
    width = max(map(len, (column.name for column in file.columns)))
    yield f"  {'':{width}}  filled  unreadable  clipped"
    for column in file.columns:
        counts = f"{column.filled:6}  {column.unreadable:10}  {column.clipped:7}"
        yield f"  {column.name:{width}}  {counts}"
    for sentence in (*([file.refused] if file.refused else []), *file.look):
        yield f"  - {sentence}"


def _balance(file: TriedFile, label: TriedColumn) -> str:
    if file.classes:
        return ", ".join(f"{name}: {count}" for name, count in file.classes.items())
    return "no number" if file.mean is None else f"mean {file.mean:g}{_range(label)}"
