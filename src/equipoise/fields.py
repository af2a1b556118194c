"""Kinds of fields that values share, and how what a user gives becomes one."""

import math
import os
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

LEARNING, DATA, PRIVACY, SIMULATION = (
    "What is learnt, and how",
    "Own data",
    "Privacy",
    "Simulation",
)


def flag(default: Any, group: str, description: str) -> Any:
    """A field that is a flag of the command, under this heading of its help."""
    return Field(default, description=description, json_schema_extra={"group": group})


def flag_words(name: str, value: Any) -> list[str]:
    """A field's value as a command line says it."""
    flag_name = "--" + name.replace("_", "-")
    values = value if isinstance(value, tuple) else (value,)
    return [flag_name] if value is True else [flag_name, *(str(part) for part in values)]


Real = Annotated[
    float, PlainSerializer(lambda x: x if math.isfinite(x) else str(x), when_used="json")
]
"""A number that JSON can hold: infinity is the string "inf"."""


class HashableOptions(dict[str, float | str]):
    """Options of an algorithm, in a value that can be hashed: nobody changes them."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items())))


def as_paths(value: Any) -> Any:
    """One path or several, each a str or anything that os.fspath takes."""
    if isinstance(value, str | os.PathLike):
        value = (value,)
    several = isinstance(value, list | tuple | Iterator)
    return tuple(_path(path) for path in value) if several else value


def _path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def as_weights(value: Any) -> Any:
    """Numbers as one word, as the command has them."""
    if isinstance(value, list | tuple):
        value = ",".join(f"{number:.17g}" for number in value)
    return value


Paths = Annotated[tuple[str, ...], BeforeValidator(as_paths)]
Path = Annotated[str, BeforeValidator(_path)]
Names = Annotated[tuple[str, ...], BeforeValidator(as_paths)]
AlgorithmOptions = Annotated[dict[str, float | str], AfterValidator(HashableOptions)]
Weighting = Annotated[str | None, BeforeValidator(as_weights)]
