"""Prepared data: arrays in a folder, mapped into memory when they are used.

What is in the cache is whole: it is written beside its place and then renamed, so that several
processes may start at once and share one copy.
"""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import DataError
from equipoise.places import cache_folder

Arrays = dict[str, NDArray[Any]]


def load(place: Path) -> Arrays | None:
    """The arrays in `place`, mapped into memory; None if there are none, or if they are damaged."""
    try:
        forms = json.loads((place / "arrays.json").read_text())
        arrays = {name: np.load(place / f"{name}.npy", mmap_mode="c") for name in forms}
        return arrays if arrays and _forms(arrays) == forms else None
    except Exception:  # whatever the damage raises, the arrays are made again
        return None


def _forms(arrays: Arrays) -> dict[str, Any]:
    return {name: [list(array.shape), str(array.dtype)] for name, array in arrays.items()}


def keep(arrays: Arrays, place: Path) -> None:
    """Write the arrays to `place`, unless another process was faster."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as beside:
            _write_arrays(arrays, Path(beside) / "arrays")
            _move(Path(beside) / "arrays", place)
    except OSError as error:
        if load(place) is None:
            raise DataError(
                f"prepared data cannot be kept in {place.parent}: {error.strerror or error}; the "
                f"environment variable EQUIPOISE_CACHE moves the cache"
            ) from None


def _write_arrays(arrays: Arrays, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for name, array in arrays.items():
        _write(folder / f"{name}.npy", partial(np.save, arr=array))
    forms = json.dumps(_forms(arrays)).encode()
    _write(folder / "arrays.json", lambda file: file.write(forms))


def _write(path: Path, write: Callable[[Any], Any]) -> None:
    """For nobody else to read: prepared records are as private as records."""
    with open(path, "wb", opener=partial(os.open, mode=0o600)) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _move(made: Path, place: Path) -> None:
    if place.exists() and load(place) is None:
        with suppress(FileNotFoundError):  # another process has moved the damaged one
            place.rename(made.with_name("damaged"))
    made.rename(place)


def checksums(paths: list[Path]) -> dict[Path, str]:
    """SHA-256 of each file; remembered for as long as its size and its times of change stay."""
    memory = cache_folder() / "checksums.json"
    known = _remembered(memory)
    states = {path: _state(path) for path in paths}
    new = {state: _sha256(path) for path, state in states.items() if state not in known}
    known |= new
    if new:
        _remember(known, memory)
    return {path: known[state] for path, state in states.items()}


def _state(path: Path) -> str:
    stat = path.stat()
    return f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remembered(memory: Path) -> dict[str, str]:
    try:
        known = json.loads(memory.read_text())
        return {state: digest for state, digest in known.items() if isinstance(digest, str)}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def _remember(known: dict[str, str], memory: Path) -> None:
    with suppress(OSError):  # if it cannot be written, it is computed again
        memory.parent.mkdir(parents=True, exist_ok=True)
        beside = memory.with_name(f".checksums-{os.getpid()}")
        beside.write_text(json.dumps(known))
        beside.replace(memory)
