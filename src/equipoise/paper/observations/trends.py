"""Whether an optimum rises or falls as a setting changes: tested within trials, each of which has
an optimum of its own at every value of the setting."""

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from equipoise.reports.evidence import FAILS, FEWEST, HOLDS, LEVEL, UNKNOWN, common, page_trend
from equipoise.reports.findings import Finding
from equipoise.reports.study import Cell

FEWEST_VALUES = 3  # two have a sign, but no trend
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


def trend(claimed: Claimed, where: str, curves: Sequence[Sequence[Cell]], value: Axis) -> Finding:
    """Page's trend test on the optima of every trial, in the order of the curves."""
    rows = _optima(_on_common_values(curves, value), value)
    if len(curves) < FEWEST_VALUES or not rows:
        return too_few(claimed, where, len(curves))
    page = page_trend(rows)
    for_it, against_it = page.p_rising, page.p_falling
    if not claimed.rising:
        for_it, against_it = against_it, for_it
    middle = ", ".join(f"{statistics.median(column):g}" for column in zip(*rows, strict=True))
    return Finding(
        claimed.number,
        claimed.hypothesis,
        where,
        f"Page's trend test: in every trial the best {claimed.axis} at each {claimed.each}, as "
        f"{claimed.order}; p over all orders within trials",
        f"L = {page.L:g} (without a trend {page.expected:g} on average), p = "
        f"{for_it:.2g}; median optimum as {claimed.order}: {middle}",
        len(rows),
        _verdict(len(rows), for_it, against_it),
    )


def too_few(claimed: Claimed, where: str, curves: int) -> Finding:
    needs = (
        f"needs at least {FEWEST_VALUES} {claimed.each}s with two values or more in common, and "
        "trials that have all of them"
    )
    return Finding(
        claimed.number,
        claimed.hypothesis,
        where,
        needs,
        f"{curves} {claimed.each}s",
        0,
        UNKNOWN,
    )


def _on_common_values(curves: Sequence[Sequence[Cell]], value: Axis) -> list[list[Cell]]:
    """The cells with values that all curves have, so that optima differ by the setting alone; none
    if they have fewer than two."""
    shared = set.intersection(*({value(cell) for cell in cells} for cells in curves))
    if len(shared) < 2:
        return []
    return [[cell for cell in cells if value(cell) in shared] for cells in curves]


def _optima(curves: Sequence[Sequence[Cell]], value: Axis) -> list[list[float]]:
    """A row for every trial that all cells have: its optimum on each curve."""
    seeds = common([cell.errors for cells in curves for cell in cells])
    return [[_optimum(cells, seed, value) for cells in curves] for seed in seeds]


def _optimum(cells: Sequence[Cell], seed: int, value: Axis) -> float:
    """The value with the lowest error in a trial; of several, their middle on a logarithmic scale:
    to prefer the smallest would make flat curves look like those with a small optimum."""
    lowest = min(cell.errors[seed] for cell in cells) + 1e-12
    tied = [value(cell) for cell in cells if cell.errors[seed] <= lowest]
    return round(statistics.geometric_mean(tied), 9)


def _verdict(trials: int, for_it: float, against_it: float) -> str:
    if trials < FEWEST:
        return UNKNOWN
    if for_it <= LEVEL:
        return HOLDS
    return FAILS if against_it <= LEVEL else UNKNOWN
