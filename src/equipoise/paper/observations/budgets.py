"""Observation 3 of the paper: as ε falls, the best number of local steps rises and the best number
of iterations falls. Tested within trials: each has an optimum of its own at every budget."""

import statistics
from collections.abc import Callable, Sequence

from equipoise.paper.observations.interior import Findings
from equipoise.paper.observations.iterations import over_iterations, short_of_table
from equipoise.paper.observations.local_steps import by_clip, private, swept
from equipoise.reports.evidence import FAILS, FEWEST, HOLDS, LEVEL, UNKNOWN, common, page_trend
from equipoise.reports.findings import Finding
from equipoise.reports.optima import along_iterations
from equipoise.reports.study import Case, Cell

FEWEST_BUDGETS = 3  # two have a sign, but no trend
Axis = Callable[[Cell], int]


def rises(case: Case, algorithm: str) -> Findings:
    curves = by_clip(private(swept(case, algorithm)))
    for clip, by_budget in curves.items():
        yield _trend("3a", "τ", clip, by_budget, lambda cell: cell.local_steps, rising=True)


def falls(case: Case, algorithm: str) -> Findings:
    curves = by_clip(private(over_iterations(case, algorithm)))
    if not curves:
        yield _too_few("3b", _claim("T", rising=False), "", 0)
    for clip, by_budget in curves.items():
        finding = _trend("3b", "T", clip, by_budget, lambda cell: cell.iterations, rising=False)
        finding = finding._replace(test=f"{finding.test}; {along_iterations(case)[1]}")
        short = short_of_table(case, [cell for cells in by_budget.values() for cell in cells])
        if finding.verdict == FAILS and short:
            finding = finding._replace(effect=f"{finding.effect}; {short}", verdict=UNKNOWN)
        yield finding


def _claim(axis: str, rising: bool) -> str:
    return f"The optimal {axis} {'rises' if rising else 'falls'} as ε falls"


def _trend(
    number: str,
    axis: str,
    clip: float,
    by_budget: dict[float, list[Cell]],
    value: Axis,
    rising: bool,
) -> Finding:
    """Page's trend test on the optima of every trial, from the largest budget to the smallest."""
    hypothesis, where = _claim(axis, rising), f"C = {clip:g}"
    curves = _on_common_values([by_budget[epsilon] for epsilon in sorted(by_budget)[::-1]], value)
    rows = _optima(curves, value)
    if len(curves) < FEWEST_BUDGETS or not rows:
        return _too_few(number, hypothesis, where, len(by_budget))
    trend = page_trend(rows)
    claimed, contrary = trend.p_rising, trend.p_falling
    if not rising:
        claimed, contrary = contrary, claimed
    middle = ", ".join(f"{statistics.median(column):g}" for column in zip(*rows, strict=True))
    return Finding(
        number,
        hypothesis,
        where,
        f"Page's trend test: in every trial the best {axis} at each budget, in order of falling ε; "
        "p over all orders within trials",
        f"L = {trend.L:g} (without a trend {trend.expected:g} on average), p = {claimed:.2g}; "
        f"median optimum in order of falling ε: {middle}",
        len(rows),
        _verdict(len(rows), claimed, contrary),
    )


def _too_few(number: str, hypothesis: str, where: str, budgets: int) -> Finding:
    needs = (
        f"needs at least {FEWEST_BUDGETS} budgets with two values or more in common, and trials "
        "that have all of them"
    )
    return Finding(number, hypothesis, where, needs, f"{budgets} budgets", 0, UNKNOWN)


def _on_common_values(curves: Sequence[Sequence[Cell]], value: Axis) -> list[list[Cell]]:
    """The cells with values that all curves have, so that optima differ by the budget alone; none
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


def _verdict(trials: int, claimed: float, contrary: float) -> str:
    if trials < FEWEST:
        return UNKNOWN
    if claimed <= LEVEL:
        return HOLDS
    return FAILS if contrary <= LEVEL else UNKNOWN
