"""Everything Equipoise raises on purpose.

EquipoiseError
├── InvalidValue      a value that breaks a rule; the text says name=value, the rule and the way out
├── UnsafeModel       a model that would carry data statistics past the noise
├── DataError         records that cannot be read or do not fit together
└── LinkDown, LinkRefused, MissingSilo   what goes wrong between machines (fleets/link.py)
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self


class EquipoiseError(Exception):
    """The root: one clear sentence for the user, no traceback needed. Made printable: names from
    files may hold anything."""

    def __init__(self, sentence: str = "") -> None:
        super().__init__(printable(sentence))


class InvalidValue(EquipoiseError, ValueError):
    """A value was refused where it was made."""


class UnsafeModel(EquipoiseError):
    """A model has state that would leave a client without clip and noise."""


class DataError(EquipoiseError):
    """Records are missing, malformed, or too few."""


def printable(text: str) -> str:
    """The text, with what cannot be printed escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def require(condition: bool, sentence: str) -> None:
    """Refuse a value with `sentence` unless `condition` holds (a NaN makes any comparison fail)."""
    if not condition:
        raise InvalidValue(sentence)


def told(error: BaseException) -> str:
    """The kind of an error that a user's code raised, and where: never its words, which may hold a
    record. The place is the innermost line of the user's own files, if there is one."""
    places = [*_places(error.__traceback__)]
    own = [place for place in places if not _is_library(place)]
    name = type(error).__name__
    return f"{name} at {(own or places)[-1].name}" if places else name


class UserCode:
    """`with UserCode() as tried:` runs a user's code, which sees private records, and keeps what it
    raises, SystemExit too, from everybody: afterwards only its kind and place are known. An error
    that follows must be raised after the `with`: raised within an `except`, it would carry the
    first one along. The errors in `through`, and Ctrl-C, are let through."""

    kind = ""  # of what was raised; empty if nothing was
    kind_and_place = ""

    def __init__(self, *through: type[BaseException]) -> None:
        self.through: tuple[type[BaseException], ...] = (KeyboardInterrupt, *through)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None or isinstance(error, self.through):
            return False
        self.kind, self.kind_and_place = type(error).__name__, told(error)
        return True


def _places(trace: TracebackType | None) -> Iterator[Path]:
    while trace:
        yield Path(f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}")
        trace = trace.tb_next


def _is_library(place: Path) -> bool:
    return "site-packages" in place.parts or place.is_relative_to(Path(__file__).parent)
