"""Whether an optimum rises or falls as a setting changes.

The optimum of a single trial says little: under loud noise it lies anywhere, so that optima of
trials drift towards the middle of the range tried as noise grows, whatever the truth. What is
tested is an exchange: of two values of the axis one is better on the first curve, the other on the
second. Both values are chosen on the other trials, as the best of either curve.
"""

import statistics
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

from equipoise.reports.evidence import (
    FAILS,
    FEWEST,
    HOLDS,
    LEVEL,
    UNKNOWN,
    Difference,
    common,
    difference,
)
from equipoise.reports.findings import Finding
from equipoise.reports.study import Cell

Axis = Callable[[Cell], int]


class Claimed(NamedTuple):
    """That the optimal `axis` rises, or falls, in the `order` of the curves."""

    number: str
    axis: str
    order: str
    each: str
    """What a curve belongs to: a budget, a clip threshold."""
    rising: bool = True

    @property
    def hypothesis(self) -> str:
        return f"The optimal {self.axis} {'rises' if self.rising else 'falls'} as {self.order}"


class Exchange(NamedTuple):
    """Two curves: by how much the optimum of each is better there than that of the other. Positive
    where the second optimum is the larger, negative where it is the smaller."""

    on_first: Difference
    on_second: Difference

    @property
    def verdict(self) -> str:
        """Whether the optimum rises: both differences must say so."""
        verdicts = {self.on_first.above(0.0), self.on_second.above(0.0)}
        return verdicts.pop() if len(verdicts) == 1 else UNKNOWN


def trend(claimed: Claimed, where: str, curves: Sequence[Sequence[Cell]], value: Axis) -> Finding:
    """Exchanges between all pairs of curves, at the 5 % level divided by their number. The claim
    holds if some pair says so and none the contrary."""
    curves = _on_common_values(curves, value)
    pairs = list(combinations(curves, 2))
    level = LEVEL / max(1, len(pairs))
    exchanges = [_exchange(first, second, value, level) for first, second in pairs]
    trials = min((exchange.on_first.n for exchange in exchanges), default=0)
    if trials < FEWEST:
        return too_few(claimed, where, len(curves))
    verdicts = [exchange.verdict for exchange in exchanges]
    rises, falls = verdicts.count(HOLDS), verdicts.count(FAILS)
    for_it, against_it = (rises, falls) if claimed.rising else (falls, rises)
    optima = ", ".join(f"{_of_means(cells, value):g}" for cells in curves)
    return Finding(
        claimed.number,
        claimed.hypothesis,
        where,
        f"of two {claimed.each}s: the best {claimed.axis} of each, chosen on the other trials, is "
        "better there than that of the other one; for all pairs, at the 5 % level divided by their "
        "number",
        f"of {len(pairs)} pairs {rises} say that it rises, {falls} that it falls; optimum of the "
        f"means as {claimed.order}: {optima}",
        trials,
        _verdict(for_it, against_it),
    )


def too_few(claimed: Claimed, where: str, curves: int) -> Finding:
    needs = (
        f"needs two {claimed.each}s with two values or more in common, and {FEWEST} trials that "
        "have all of them"
    )
    effect = f"{curves} {claimed.each}s"
    return Finding(claimed.number, claimed.hypothesis, where, needs, effect, 0, UNKNOWN)


def _verdict(for_it: int, against_it: int) -> str:
    if for_it and not against_it:
        return HOLDS
    return FAILS if against_it and not for_it else UNKNOWN


def _on_common_values(curves: Sequence[Sequence[Cell]], value: Axis) -> list[Sequence[Cell]]:
    """The cells with values that all curves have, so that optima differ by the setting alone; none
    if they have fewer than two."""
    shared = set.intersection(*({value(cell) for cell in cells} for cells in curves))
    if len(shared) < 2:
        return []
    return [[cell for cell in cells if value(cell) in shared] for cells in curves]


def _exchange(first: Sequence[Cell], second: Sequence[Cell], value: Axis, level: float) -> Exchange:
    seeds = common([cell.errors for cell in (*first, *second)])
    gains = [_gains(first, second, value, seed, seeds) for seed in seeds if len(seeds) > 1]
    on_first, on_second = zip(*gains, strict=True) if gains else ((), ())
    return Exchange(difference(on_first, level), difference(on_second, level))


def _gains(
    first: Sequence[Cell], second: Sequence[Cell], value: Axis, seed: int, seeds: Sequence[int]
) -> tuple[float, float]:
    """In one trial, by how much the optimum of either curve is better there than that of the other;
    with a minus where the second is the smaller one."""
    others = [other for other in seeds if other != seed]
    at_first, at_second = (_best(cells, value, others) for cells in (first, second))
    sign = (at_second > at_first) - (at_second < at_first)
    errors_1, errors_2 = (
        {value(cell): cell.errors[seed] for cell in cells} for cells in (first, second)
    )
    return (
        sign * (errors_1[at_second] - errors_1[at_first]),
        sign * (errors_2[at_first] - errors_2[at_second]),
    )


def _best(cells: Sequence[Cell], value: Axis, seeds: Sequence[int]) -> int:
    """The value with the lowest mean error over these trials; of equal ones the smallest."""

    def error(cell: Cell) -> tuple[float, int]:
        return round(statistics.fmean(cell.errors[seed] for seed in seeds), 12), value(cell)

    return value(min(cells, key=error))


def _of_means(cells: Sequence[Cell], value: Axis) -> int:
    return _best(cells, value, common([cell.errors for cell in cells]))
