"""Where a run came from, and what its owner says about it: for statements, and no part of what the
run is.
"""

import hashlib
import hmac
import os
import re
import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from equipoise.errors import DataError, EquipoiseError, InvalidValue, require
from equipoise.facts import BY_RECORDS, EQUAL

if TYPE_CHECKING:
    from equipoise.settings import Run

_SALT_BYTES = 32


class About(BaseModel):
    """What only the owner of a run can say. Every field is free text but `published`, a date.

    purpose      what the model is for
    controller   who is responsible for the data (of the GDPR, article 4)
    contact      whom to ask
    retention    how long the data, the model and this statement are kept
    name         for a public registry, as all that follow: the model's
    description  of the model
    region       where the data come from
    sector       of what part of life they are
    published    when the model was, as 2026-11-19
    sources      where more can be read
    authors      who fills in the entry
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, strict=True)

    purpose: str = ""
    controller: str = ""
    contact: str = ""
    retention: str = ""
    name: str = ""
    description: str = ""
    region: str = ""
    sector: str = ""
    published: str = ""
    sources: str = ""
    authors: str = ""

    @field_validator("published")
    @classmethod
    def _date(cls, value: str) -> str:
        require(
            not value or re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None,
            f"published={value!r} is not a date: write it as 2026-11-19, in quotes",
        )
        return value


class Origin(BaseModel):
    """How a run came about.

    run          its name; in a ledger it has the same
    when         the end of training, UTC
    plan, pool   SHA-256 of the plan file that it followed, and what that plan was made from, all of
                 it public; None where it followed none
    earlier      how many runs its ledger held before; None without a ledger
    ledger       how the ledger's caps stood afterwards
    fingerprints of each data file, in the order of the clients: HMAC-SHA-256, under a salt that
                 its owner keeps, of its SHA-256
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    run: str
    when: str
    plan: str | None = None
    pool: tuple[str, ...] = ()
    earlier: int | None = None
    ledger: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()


class Told(NamedTuple):
    """What is told of a run besides its settings, before it begins."""

    about: About | None = None
    plan: str | None = None
    pool: tuple[str, ...] = ()
    salt: "str | os.PathLike[str] | None" = None

    def planned(self, document: bytes, pool: Iterable[str]) -> "Told":
        """By the plan of this file."""
        return self._replace(plan=hashlib.sha256(document).hexdigest(), pool=tuple(pool))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_about(path: "str | os.PathLike[str]") -> About:
    """A TOML file with the fields of About, all of them optional."""
    place = Path(path)
    try:
        return About.model_validate(tomllib.loads(place.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidValue(f"about={place}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"about={place} is not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InvalidValue):
            raise InvalidValue(f"about={place}: {cause}") from None
        raise InvalidValue(
            f"about={place}: {first['loc'][0]} is no text that is asked for: give "
            f"{', '.join(About.model_fields)}, each a text in quotes"
        ) from None


def fingerprints(files: Iterable[str], salt: "str | os.PathLike[str] | None") -> tuple[str, ...]:
    """Of these files, under the salt in a file of its owner's, which is made if need be. Without
    the salt nobody can try whether a guess is the data: a bare hash would let everybody."""
    if salt is None:
        return ()
    names = tuple(files)
    require(
        len(names) > 0,
        f"salt={salt} with a task that reads no data files: there is nothing to take a fingerprint "
        "of; leave it out",
    )
    try:
        key = _salt(Path(salt))
        return tuple(_fingerprint(key, name) for name in names)
    except OSError as error:
        raise EquipoiseError(f"{error.filename or salt}: {error.strerror}") from None


def _salt(place: Path) -> bytes:
    if not place.exists():
        with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(_SALT_BYTES))
    salt = place.read_bytes()
    require(
        len(salt) == _SALT_BYTES,
        f"salt={place} has {len(salt)} bytes where {_SALT_BYTES} random ones are needed: name a "
        "file that is not there yet, and it is made",
    )
    return salt


def _fingerprint(salt: bytes, name: str) -> str:
    with open(name, "rb") as file:
        inner = hashlib.file_digest(file, "sha256").digest()
    return hmac.digest(salt, inner, "sha256").hex()


def taken_as_public(run: "Run") -> list[str]:
    """What of private records was declared public by the settings, in sentences."""
    sentences = []
    if run.unit != "client":
        sentences.append(f"the number of {run.unit}s of each client")
    if run.unit == "client" and run.weights != EQUAL:
        what = "number of records of each client" if run.weights == BY_RECORDS else run.weights
        sentences.append(f"how much each client counts: {what}")
    if "dirichlet" in (run.split or ""):
        sentences.append(f"which client holds which record, dealt by label (split {run.split})")
    if run.warm_start:
        sentences.append("the initial model, trained on public records")
    return sentences
