"""What a job claims, what it spends, and what is no differential privacy in it: `equipoise
account`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_serializer

from equipoise.errors import printable, require
from equipoise.privacy.composed import Gaussian, Part, Spent, spend
from equipoise.privacy.foreign import numbers
from equipoise.privacy.foreign.catalogue import read
from equipoise.privacy.foreign.reading import Claimed, Given, Reading
from equipoise.privacy.promise import Neighbours, Unit

DELTA = 1e-5
FPR = 0.01


class Numbers(BaseModel):
    """epsilons of JSON: infinity is a word there."""

    model_config = ConfigDict(frozen=True)

    @field_serializer("epsilon", "epsilon_lower", when_used="json", check_fields=False)
    def _finite(self, value: float | None) -> float | str | None:
        return str(value) if value in (float("inf"),) else value


class Units(Numbers):
    """What so many units of one person, changed at once, are promised."""

    units: int
    epsilon: float
    delta: float


class Spending(Numbers):
    """What all of it spends under one relation.

    epsilon         exact, or an upper bound
    epsilon_lower   what is spent at least; None where nothing is known
    mu              all of it as one Gaussian release; None where it is none
    tpr             the most that an attack with 1 % false alarms finds; None without mu
    several         the same for several units
    """

    neighbours: Neighbours
    delta: float
    mu: float | None
    epsilon: float
    epsilon_lower: float | None
    exact: bool
    tpr: float | None
    several: tuple[Units, ...] = ()


class PartRead(BaseModel):
    """A part as it was read: Gaussian noise over what one unit adds, and a rate; or an epsilon."""

    model_config = ConfigDict(frozen=True)
    rounds: int
    noise: float | None = None
    rate: float | None = None
    epsilon: float | None = None


class JobAccount(BaseModel):
    """What a job claims, and what it spends.

    engine     the program that the job is of
    unit       what its noise protects
    runs       how many such runs there are
    delta      at which every epsilon is
    parts      what is released, for each kind of neighbours
    spends     the epsilon of all of it, for each kind of neighbours
    claims     what the job says of itself
    verdicts   where a claim about all of it is less than what is spent
    void       why it is no differential privacy; then `spends` is what its noise alone would be
    beside     what no epsilon here covers, or what is assumed
    asks       what must be given before more can be said
    """

    model_config = ConfigDict(frozen=True)
    engine: str
    unit: Unit
    runs: int
    delta: float
    claims: tuple[str, ...]
    verdicts: tuple[str, ...]
    parts: dict[Neighbours, tuple[PartRead, ...]]
    spends: tuple[Spending, ...]
    void: tuple[str, ...]
    beside: tuple[str, ...]
    asks: tuple[str, ...]


def account(
    file: str | Path | None = None,
    *,
    phases: Sequence[Mapping[str, float] | str] = (),
    unit: Unit = "client",
    runs: int = 1,
    delta: float | None = None,
    rows: Sequence[int] = (),
    rounds: int | None = None,
    given: Mapping[str, Any] | Sequence[str] = (),
) -> JobAccount:
    """What another program's job spends, from its file, which is never run, or from numbers:
    ``account("pyproject.toml", rounds=100)``.

    file     of Flower, NVFlare, Opacus or dp-accounting
    phases   instead of a file: rounds, sigma, clip and rate of each phase
    unit     what phases protect
    runs     how many such runs there are on the same records
    delta    at which epsilon is; None: the job's own, or 1e-5
    rows     numbers of units that one person may have, for each of which epsilon is told too
    rounds   how many, where the file does not say
    given    other facts that no file has, by name

    >>> job = equipoise.account(phases=[{"rounds": 100, "sigma": 25.6, "clip": 1}])
    >>> [(spent.neighbours, round(spent.epsilon, 2)) for spent in job.spends]
    [('replace-one', 3.3), ('zero-out', 1.51)]
    """
    require(
        (file is None) != (not phases),
        "a file or phases are needed: one of them, and not both",
    )
    require(runs >= 1, f"runs={runs} is not a number of runs")
    require(all(count >= 1 for count in rows), f"rows={[*rows]}: give whole numbers >= 1")
    facts = [f"{k}={v}" for k, v in given.items()] if isinstance(given, Mapping) else given
    if file is None:
        require(rounds is None and not facts, "rounds and given are facts about a file")
        spelled = [numbers.words(phase) if isinstance(phase, str) else phase for phase in phases]
        reading = numbers.phases(spelled, unit)
    else:
        known = Given(facts, rounds, DELTA if delta is None else delta)
        reading = read(Path(file), known)
        known.check_all_asked_for(str(file))
    at = delta if delta is not None else reading.delta if reading.delta is not None else DELTA
    return _accounted(reading, runs, at, rows)


def _accounted(reading: Reading, runs: int, delta: float, rows: Sequence[int]) -> JobAccount:
    spent = [
        spend([_repeated(part, runs) for part in parts], way, delta, runs * reading.chance)
        for way, parts in reading.parts.items()
    ]
    return JobAccount(
        engine=reading.engine,
        unit=reading.unit,
        runs=runs,
        delta=delta,
        claims=_printable(claim.words for claim in reading.claims),
        verdicts=_verdicts(reading.claims, spent) if runs == 1 else (),
        parts={way: tuple(map(_shown, parts)) for way, parts in reading.parts.items()},
        spends=tuple(_spending(own, rows) for own in spent),
        void=_printable(reading.void),
        beside=_printable(reading.beside),
        asks=_printable(reading.asks),
    )


def _printable(sentences: Iterable[str]) -> tuple[str, ...]:
    """Names from files may hold anything, such as words to a terminal."""
    return tuple(map(printable, sentences))


def _repeated(part: Part, runs: int) -> Part:
    if isinstance(part, Gaussian):
        return Gaussian(part.rounds * runs, part.noise, part.rate)
    return type(part)(part.rounds * runs, part.epsilon)


def _shown(part: Part) -> PartRead:
    if isinstance(part, Gaussian):
        return PartRead(rounds=part.rounds, noise=part.noise, rate=part.rate)
    return PartRead(rounds=part.rounds, epsilon=part.epsilon)


def _spending(spent: Spent, rows: Sequence[int]) -> Spending:
    together = [spent.of_units(count) for count in rows]
    return Spending(
        neighbours=spent.neighbours,
        delta=spent.delta,
        mu=spent.mu,
        epsilon=spent.epsilon,
        epsilon_lower=spent.lower or None,
        exact=spent.exact,
        tpr=None if spent.mu is None else _power(spent.mu),
        several=tuple(Units(units=t.units, epsilon=t.epsilon, delta=t.delta) for t in together),
    )


def _power(mu: float) -> float:
    from equipoise.privacy.trade_off import gaussian  # scipy: not for --help

    return float(1 - gaussian(mu, FPR))


def _verdicts(claims: Sequence[Claimed], spent: Sequence[Spent]) -> tuple[str, ...]:
    """Where a claim about all of a run is below what is spent at least, at the same delta."""
    verdicts = []
    for claim in claims:
        for own in spent:
            alike = claim.neighbours == own.neighbours and claim.delta == own.delta
            if alike and claim.epsilon is not None and claim.epsilon < own.lower:
                verdicts.append(
                    f"epsilon = {claim.epsilon:.4g} is claimed, and at least {own.lower:.4g} is "
                    f"spent under {own.neighbours}"
                )
    return tuple(verdicts)
