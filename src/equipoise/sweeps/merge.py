"""Stores joined into one, and what is in a store."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.errors import DataError, InvalidValue, require
from equipoise.saved import write_whole
from equipoise.sweeps.store import Store


class Inside(NamedTuple):
    """What is in a store. `arithmetic` are the versions of the arithmetic that gave its numbers;
    None stands for one from before they were noted."""

    store: str
    sweeps: list[str]
    tasks: list[str]
    runs: int
    failed: int
    bytes: int
    arithmetic: list[int | None]


def inside(path: Path) -> Inside:
    with Store(path, read_only=True) as kept:
        return Inside(
            str(path),
            [row["sweep"] for row in kept.table("DISTINCT sweep")],
            [row["task"] for row in kept.table("DISTINCT task")],
            len(kept.keys()),
            len(kept.failures()),
            path.stat().st_size,
            sorted(kept.arithmetic(), key=lambda numbers: numbers or 0),
        )


def merge(stores: Sequence["str | os.PathLike[str]"], out: "str | os.PathLike[str]") -> Inside:
    """Join stores into a new one. A run may be in several if its results are equal there; if they
    are not, nothing is written."""
    paths, target = [Path(store) for store in stores], Path(out)
    require(len(paths) > 0, "stores=[] leaves nothing to merge: give some")
    if target.exists():
        raise InvalidValue(f"out={target} is there already: give another name, or remove it")
    _check_arithmetic(paths)

    try:
        write_whole(target, lambda part: _write(paths, part))
    except OSError as error:
        raise DataError(f"out={target}: {error.strerror}") from None
    return inside(target)


def _write(paths: list[Path], part: Path) -> None:
    for name in (part, f"{part}-wal", f"{part}-shm"):
        Path(name).unlink(missing_ok=True)  # of a merge that was killed
    with Store(part) as merged:
        for n, path in enumerate(paths):
            if key := merged.take_over(path):
                first = next(before for before in paths[:n] if key in _keys(before))
                raise DataError(
                    f"run {key} has one result in store={first} and another in store={path}: find "
                    "out which machine computes otherwise; nothing was written"
                )


def _keys(path: Path) -> set[str]:
    with Store(path, read_only=True) as kept:
        return kept.keys()


def _check_arithmetic(paths: list[Path]) -> None:
    """Numbers of two versions of the arithmetic differ, and a run has a key in each."""
    first: tuple[Path, Any] | None = None
    for path in paths:
        with Store(path, read_only=True) as kept:
            versions = kept.arithmetic()
        for numbers in sorted(versions, key=lambda numbers: numbers or 0):
            first = first or (path, numbers)
            require(
                numbers == first[1],
                f"store={path} has runs of {_named(numbers)}, store={first[0]} of "
                f"{_named(first[1])}: their numbers differ; sweep the grid of the older with this "
                "version, into a new store",
            )


def _named(numbers: int | None) -> str:
    return f"arithmetic version {numbers}" if numbers else "an arithmetic version that is not noted"
