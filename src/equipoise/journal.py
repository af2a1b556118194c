"""A journal: one file that holds all that is needed to go on with what was begun, and nothing
older.

It is written before anybody sees what it holds, and replaced as a whole: after a crash it is the
newest that was written, or the one before, never half of one. What it holds is private: only its
owner may read it, and it is wiped at the end. It does not know what a run is: a run in one process
keeps its state in one, and whoever has to give the same answer twice keeps the answer.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.errors import DataError

MAGIC = b"equipoise journal 1\n"
DIGEST = hashlib.sha256().digest_size
AT_ONCE = 2**20  # bytes that are overwritten at a time


class Entry(NamedTuple):
    """`head` says whose it is, in JSON; `body` is the rest, in whatever form its owner likes."""

    head: dict[str, Any]
    body: bytes

    def __repr__(self) -> str:
        return "Entry(private)"


def keep(path: Path, head: dict[str, Any], body: Iterable[bytes]) -> None:
    """Put a new entry in the place of the one before; when this returns, it is on the disk."""
    words = json.dumps(head).encode()
    parts = [len(words).to_bytes(8), words, *body]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    new = _beside(path)
    new.unlink(missing_ok=True)  # what a crash left there may have another mode
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for part in (MAGIC, digest.digest(), *parts):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    _sync_folder(path.parent)


def kept(path: Path) -> Entry | None:
    """The newest entry, None where there is none; one that is not whole is refused."""
    if not path.exists():
        return None
    content = memoryview(path.read_bytes())
    start = len(MAGIC) + DIGEST
    whole = content[len(MAGIC) : start] == hashlib.sha256(content[start:]).digest()
    if content[: len(MAGIC)] != MAGIC or not whole:
        raise DataError(
            f"{path} is damaged, so what was begun there cannot go on: choose another folder"
        )
    size, begin = int.from_bytes(content[start : start + 8]), start + 8
    head = json.loads(bytes(content[begin : begin + size]))
    return Entry(head, bytes(content[begin + size :]))


def wipe(path: Path) -> None:
    """Overwrite the journal with zeros, and remove it."""
    _beside(path).unlink(missing_ok=True)
    if not path.exists():
        return
    with open(path, "r+b") as file:
        left = path.stat().st_size
        while left > 0:
            left -= file.write(bytes(min(left, AT_ONCE)))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()
    _sync_folder(path.parent)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _sync_folder(folder: Path) -> None:
    """A new name is on the disk once its folder is."""
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)
