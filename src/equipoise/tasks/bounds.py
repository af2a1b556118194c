"""Public knowledge about the columns of a table: what scales, clips and codes private values
without looking at them."""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import DataError, require
from equipoise.tasks.table_file import read_header

LARGEST = 1e100  # a limit beyond is a slip
TEMPLATE_HEAD = """\
# Public knowledge about each column: from a code book, a norm, or common sense. Never read it off
# private data. A number needs low and high; values outside are clipped to them. A category needs
# the list of its values. `fill` stands in for a missing or unreadable cell; without it, the middle,
# or "none of these". The label: two categories give logistic regression, more give multinomial, low
# and high give least squares. Where 1.5 is written 1,5 in a file, say decimal = "," too.
"""
TEMPLATE_COLUMN = """
[{name}]
low = nan     # fill in both, or
high = nan    # write instead: categories = ["a", "b"]
"""


@dataclass(frozen=True)
class Column:
    """A number in [low, high], or one of `categories`. A number may be written with `decimal` in
    place of its point."""

    name: str
    low: float = math.nan
    high: float = math.nan
    categories: tuple[str, ...] = ()
    fill: str | None = None
    decimal: str = "."

    @property
    def width(self) -> int:
        return len(self.categories) or 1

    def code(self, cells: list[str]) -> tuple[NDArray[np.float64], int]:
        """Cells as numbers [n, width], each row of norm at most 1, and how many had to be changed
        to fit."""
        return self._code_categories(cells) if self.categories else self._code_numbers(cells)

    def _code_numbers(self, cells: list[str]) -> tuple[NDArray[np.float64], int]:
        middle = (self.low + self.high) / 2
        fill = middle if self.fill is None else _number(self.fill)
        values = self.numbers(cells)
        missing, outside = np.isnan(values), (values < self.low) | (values > self.high)
        values = np.clip(np.where(missing, fill, values), self.low, self.high)
        coded = np.clip(
            (values - middle) / ((self.high - self.low) / 2), -1, 1
        )  # rounding of a tiny range could exceed 1
        return coded[:, None], int((missing | outside).sum())

    def _code_categories(self, cells: list[str]) -> tuple[NDArray[np.float64], int]:
        index = self.index(cells)
        unknown = index < 0
        if self.fill is not None:
            index = np.where(unknown, self.categories.index(self.fill), index)
        return (index[:, None] == np.arange(self.width)).astype(np.float64), int(unknown.sum())

    def readable(self, cells: list[str]) -> NDArray[np.bool_]:
        """Which cells hold a number, or a declared category."""
        return self.index(cells) >= 0 if self.categories else ~np.isnan(self.numbers(cells))

    def numbers(self, cells: list[str]) -> NDArray[np.float64]:
        """Cells as numbers; NaN where a cell is none."""
        return np.array([_number(cell, self.decimal) for cell in cells]).reshape(-1)

    def index(self, cells: list[str]) -> NDArray[np.int64]:
        """Which category each cell is; -1 for none of them. A cell is the category of the same
        text; else the only one of the same letters, small or capital; else the only one of the same
        value, where both are numbers: a missing cell makes a column real, and 1 is 1.0 there."""
        texts = {category: i for i, category in enumerate(self.categories)}
        words = _only([category.casefold() for category in self.categories])
        values = _only([_number(category) for category in self.categories])

        def place(text: str) -> int:
            word = words.get(text.casefold(), -1)
            return texts.get(
                text, word if word >= 0 else values.get(_number(text, self.decimal), -1)
            )

        stripped = [cell.strip() for cell in cells]
        places = {text: place(text) for text in {*stripped}}
        return np.array([places[text] for text in stripped], dtype=np.int64).reshape(-1)


def _only(keys: list[Any]) -> dict[Any, int]:
    """The place of every key that is there once; NaN is none."""
    known = [key for key in keys if not (isinstance(key, float) and math.isnan(key))]
    return {key: keys.index(key) for key in known if keys.count(key) == 1}


TRUTH = {"true": 1.0, "false": 0.0}


def _number(cell: str, decimal: str = ".") -> float:
    """The number that a cell holds, NaN if none: true is 1 and false 0, as where a table keeps
    booleans as numbers."""
    try:
        return float(cell.replace(decimal, "."))
    except ValueError:
        return TRUTH.get(cell.strip().casefold(), math.nan)


class GivenBounds(str):
    """Bounds whose text is at hand: the string is what errors call them, in place of a path."""

    text: str

    @classmethod
    def of(cls, name: str, text: str) -> "GivenBounds":
        bounds = cls(name)
        bounds.text = text
        return bounds


def read_text(path: str) -> str:
    """The text of a bounds file."""
    if isinstance(path, GivenBounds):
        return path.text
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"bounds={path}: {error.strerror}; `equipoise data bounds --columns ...` writes a "
            f"template"
        ) from None
    except UnicodeDecodeError:
        raise DataError(f"bounds={path} is not UTF-8 text") from None


def parse_bounds(text: str, where: str) -> dict[str, Column]:
    """The columns that the text of a bounds file declares, in its order."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{where} is not TOML: {error}") from None
    return {
        name: _column(f"{where}, column {name}", name, entry) for name, entry in document.items()
    }


def _column(where: str, name: str, entry: Any) -> Column:
    if not isinstance(entry, dict) or set(entry) - {"low", "high", "categories", "fill", "decimal"}:
        raise DataError(
            f"{where}: expected low and high, or categories, and perhaps fill and decimal"
        )
    if ("categories" in entry) == ("low" in entry or "high" in entry):
        raise DataError(f"{where}: give either low and high, or categories")
    fill = None if "fill" not in entry else _text(entry["fill"])
    decimal = entry.get("decimal", ".")
    if decimal not in (".", ","):
        raise DataError(f'{where}: decimal={decimal!r} is neither "." nor ","')
    if "categories" in entry:
        categories = _categories(where, entry["categories"], fill)
        return Column(name, categories=categories, fill=fill, decimal=decimal)
    low, high = _limits(where, entry, fill)
    return Column(name, low, high, fill=fill, decimal=decimal)


def _categories(where: str, values: Any, fill: str | None) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise DataError(f"{where}: categories={values!r} is not a list of values")
    categories = tuple(_text(value) for value in values)
    if len(categories) < 2 or len(set(categories)) < len(categories):
        raise DataError(
            f"{where}: categories={list(categories)} needs two or more different values"
        )
    if fill is not None and fill not in categories:
        raise DataError(f"{where}: fill={fill!r} is not one of its categories")
    return categories


def _limits(where: str, entry: dict[str, Any], fill: str | None) -> tuple[float, float]:
    low, high = (_limit(entry.get(end)) for end in ("low", "high"))
    if not (low < high and abs(low) < LARGEST and abs(high) < LARGEST):
        raise DataError(
            f"{where}: low={low} and high={high} are not two numbers with low < high: fill in what "
            "is publicly known"
        )
    if fill is not None and not low <= _number(fill) <= high:
        raise DataError(f"{where}: fill={fill} is not between low={low} and high={high}")
    return low, high


def _text(value: Any) -> str:
    """A TOML value as a cell would write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _limit(value: Any) -> float:
    """A limit as a number; NaN where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return math.inf if abs(value) >= LARGEST else float(value)


def bounds_template(columns: tuple[str, ...]) -> str:
    """A bounds file to fill in by hand."""
    require(
        len(columns) >= 1,
        "columns is empty: name the columns, the label too (--columns age sex outcome)",
    )
    require(
        not any("," in name for name in columns),
        "columns: separate the names by blanks, not by commas",
    )
    return _template(columns, f"columns={', '.join(columns)}")


def template_from(path: str) -> str:
    """A bounds file to fill in by hand, for the columns in the header of a file."""
    columns = tuple(name for name in read_header(path) if name)
    require(
        all(math.isnan(_number(name)) for name in columns),
        f"from={path}: its first line holds numbers, as a record does: give it a header, or name "
        "the columns (--columns age sex outcome)",
    )
    return _template(columns, f"from={path}: its header")


def _template(columns: tuple[str, ...], where: str) -> str:
    require(len(set(columns)) == len(columns), f"{where} repeats a name")
    require(
        all(name.isprintable() and name for name in columns),
        f"{where}: a name is empty or holds characters that cannot be printed",
    )
    return TEMPLATE_HEAD + "".join(TEMPLATE_COLUMN.format(name=toml_key(name)) for name in columns)


def toml_key(name: str) -> str:
    """A TOML key: bare where that is allowed, quoted elsewhere."""
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
