"""What a file of another program says (Reading), and what it is read with: bounded files, and facts
that the user gives because no file has them."""

import json
import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from equipoise.errors import DataError, InvalidValue, require
from equipoise.privacy.composed import Part
from equipoise.privacy.promise import Neighbours, Unit

MOST_BYTES = 4_000_000
MOST_DEPTH = 64


@dataclass(frozen=True)
class Claimed:
    """What the job promises in its own words; epsilon, delta and the relation where the words are
    about all of it, so that they can be compared with what is spent."""

    words: str
    epsilon: float | None = None
    delta: float | None = None
    neighbours: Neighbours | None = None


@dataclass(frozen=True)
class Reading:
    """A job as far as its file says it.

    claims    what it promises
    parts     what is released with noise, for each relation; empty if that cannot be said
    void      why it is no differential privacy at all
    beside    what leaves besides, or is assumed: no epsilon here covers it
    asks      what no file says and the user must, as whole sentences
    delta     that the job itself names
    chance    a probability with which less noise is added than the parts say
    """

    engine: str
    unit: Unit
    claims: tuple[Claimed, ...] = ()
    parts: Mapping[Neighbours, tuple[Part, ...]] = field(default_factory=dict)
    void: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    delta: float | None = None
    chance: float = 0.0


class Given:
    """Facts that the user gives: `--given name=value`, and `--rounds` as `rounds`. Those that no
    reader asks for are refused, since a misspelt one would otherwise be passed over."""

    def __init__(
        self, facts: Sequence[str] = (), rounds: int | None = None, delta: float = 1e-5
    ) -> None:
        self.delta = delta  # of the account, where the job names none
        self.facts: dict[str, str] = {} if rounds is None else {"rounds": str(rounds)}
        self.asked: set[str] = set()
        for fact in facts:
            name, equals, value = (part.strip() for part in fact.partition("="))
            name = name.replace("-", "_")
            require(
                bool(name and equals and value) and name not in self.facts,
                f"given={fact!r} is not one more fact: write name=value, each name once",
            )
            self.facts[name] = value

    def text(self, name: str) -> str | None:
        name = name.replace("-", "_")
        self.asked.add(name)
        return self.facts.get(name)

    def number(self, name: str) -> float | None:
        """A number, or a fraction such as 1/20; None where it was not given."""
        value = self.text(name)
        if value is None:
            return None
        try:
            number = float(Fraction(value)) if "/" in value else float(value)
        except (ValueError, ZeroDivisionError):
            number = math.nan
        require(math.isfinite(number), f"given={name}={value} is not a number")
        return number

    def whole(self, name: str) -> int | None:
        number = self.number(name)
        require(
            number is None or (number.is_integer() and 1 <= number <= 1e15),
            f"given={name}={self.facts.get(name.replace('-', '_'))} is not a whole number >= 1",
        )
        return None if number is None else int(number)

    def check_all_asked_for(self, file: str) -> None:
        unknown = sorted({*self.facts} - self.asked)
        require(
            not unknown,
            f"given={', '.join(unknown)}: nothing in {file} asks for it"
            + (f"; what can be given: {', '.join(sorted(self.asked))}" if self.asked else ""),
        )


def read_text(path: Path) -> str:
    """A text file that is not too large to be a configuration."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(f"{path} is larger than {MOST_BYTES:,} bytes: no configuration is")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(
            f"{path} is not a text file: a pickled state (.pt, .pth) is never opened, because that "
            "would run what it holds; write its numbers as JSON"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def parse_json(text: str, path: Path) -> Any:
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except InvalidValue as error:
        raise DataError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{path}{where} is not valid JSON") from None
    check_depth(document, path)
    return document


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):
        raise DataError(f"{path} is not valid TOML") from None
    check_depth(document, path)
    return document


def check_depth(document: Any, path: Path) -> None:
    layer, depth = [document], 0
    while layer:
        require(depth <= MOST_DEPTH, f"{path} is nested more than {MOST_DEPTH} deep")
        inside = (part.values() if isinstance(part, dict) else part for part in layer)
        layer = [v for values in inside if not isinstance(values, str) for v in _several(values)]
        layer, depth = [value for value in layer if isinstance(value, dict | list)], depth + 1


def is_number(value: Any) -> bool:
    """A finite number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def check_keys(said: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """A field that is passed over could be the one that matters."""
    unknown = sorted({*said} - {*known})
    require(
        not unknown,
        f"{where} has {', '.join(map(repr, unknown[:5]))}, which is not known here: known are "
        f"{', '.join(known)}",
    )


def _several(values: Any) -> list[Any]:
    return list(values) if not isinstance(values, int | float | bool | None) else []


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    require(not twice, f"{', '.join(map(repr, twice[:3]))} is said twice, and one must be wrong")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise InvalidValue(f"{name} is no number of JSON")
