"""A job in numbers: phases in a TOML or JSON file, or as words of the command."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from equipoise.errors import InvalidValue, require
from equipoise.privacy.composed import Gaussian
from equipoise.privacy.foreign.reading import Given, Reading, check_keys, is_number
from equipoise.privacy.job import Job
from equipoise.privacy.promise import NEIGHBOURS_OF, Neighbours, Unit

KEYS = ("rounds", "sigma", "clip", "rate", "runs")


def fits(document: Any) -> bool:
    return isinstance(document, dict) and "phase" in document


def read(document: Any, path: Path, given: Given) -> Reading:
    check_keys(document, ("phase", "unit", "delta"), str(path))
    listed = document["phase"]
    require(
        isinstance(listed, list)
        and len(listed) > 0
        and all(isinstance(phase, dict) for phase in listed),
        f"{path}: phase is not a list of tables: write [[phase]] before each",
    )
    unit = document.get("unit", "client")
    require(unit in get_args(Unit), f"{path}: unit={unit!r} is not one of client, record, person")
    delta = document.get("delta")
    require(delta is None or is_number(delta), f"{path}: delta={delta!r} is not a number")
    return phases(listed, unit, delta)


def phases(
    said: Sequence[Mapping[str, Any]], unit: Unit, delta: float | None = None, runs: int = 1
) -> Reading:
    """All phases of all runs, on the same data."""
    require(runs >= 1, f"runs={runs} is not a number of runs")
    parts = tuple(_phase(phase, unit, runs) for phase in said)
    relations: tuple[Neighbours, ...] = NEIGHBOURS_OF[unit]
    return Reading("numbers", unit, parts=dict.fromkeys(relations, parts), delta=delta)


def words(phase: str) -> dict[str, float]:
    """`rounds=100 sigma=20 clip=1 rate=1`, as a phase is given to the command."""
    values: dict[str, float] = {}
    for word in phase.replace(",", " ").split():
        name, equals, value = word.partition("=")
        require(
            bool(equals) and name not in values,
            f"phase={phase!r}: {word!r} is not one more name=value; write for example "
            '"rounds=100 sigma=20 clip=1 rate=1"',
        )
        try:
            values[name] = float(value)
        except ValueError:
            raise InvalidValue(f"phase={phase!r}: {word!r} has no number") from None
    return values


def _phase(said: Mapping[str, Any], unit: Unit, runs: int) -> Gaussian:
    check_keys(said, KEYS, "a phase")
    for name in ("rounds", "sigma"):
        require(name in said, f"a phase has no {name}: it needs rounds and sigma")
    for name, value in said.items():
        require(is_number(value), f"{name}={value!r} of a phase is not a number")
    counts = [said["rounds"], said.get("runs", 1)]
    for name, count in zip(("rounds", "runs"), counts, strict=True):
        require(
            float(count).is_integer() and count >= 1,
            f"{name}={count:g} of a phase is not a whole number >= 1",
        )
    rate = float(said.get("rate", 1.0))
    job = Job(
        int(counts[0]),
        sigma=float(said["sigma"]),
        clip=float(said.get("clip", 1.0)),
        rate=rate,
        unit=unit,
    )
    assert job.sigma
    return Gaussian(int(counts[0]) * int(counts[1]) * runs, job.sigma / job.clip, rate)
