"""Observations 1 and 3 of the paper: the best number of local steps."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from equipoise.paper.observations.interior import CLOSE, Findings, inside
from equipoise.reports.evidence import (
    FAILS,
    FEWEST,
    HOLDS,
    LEVEL,
    UNKNOWN,
    best,
    chosen,
    judged,
    opposite,
    paired,
    rank_test,
)
from equipoise.reports.findings import Finding
from equipoise.reports.optima import curves, optimum, reference_iterations
from equipoise.reports.study import Case, Cell, joined

MOST_BUDGETS = 7  # whose orders are all tried
FEWEST_BUDGETS = 4  # three have six orders: none of them is as rare as one in twenty


class Setting(NamedTuple):
    """What is fixed along a curve of one algorithm."""

    epsilon: float
    clip: float


Value = TypeVar("Value")


def private(by_setting: dict[Setting, Value]) -> dict[Setting, Value]:
    return {at: value for at, value in by_setting.items() if at.epsilon < math.inf}


def swept(case: Case, algorithm: str) -> dict[Setting, list[Cell]]:
    """The curves over local steps at the reference number of iterations."""
    return {
        Setting(curve.epsilon, curve.clip): cells
        for curve, cells in curves(case, reference_iterations(case)).items()
        if curve.algorithm == algorithm
    }


def by_clip(by_setting: dict[Setting, Value]) -> dict[float, list[Value]]:
    """By clip what there is at each budget, sorted."""
    values: dict[float, list[Value]] = defaultdict(list)
    for setting in sorted(by_setting):
        values[setting.clip].append(by_setting[setting])
    return dict(sorted(values.items()))


def interior(case: Case, algorithm: str) -> Findings:
    long = {at: cells for at, cells in private(swept(case, algorithm)).items() if len(cells) > 2}
    for clip, many in by_clip(long).items():
        tested = inside(case, many)
        yield Finding(
            "1",
            "At fixed T some τ in between is better than the smallest and than the largest τ, on "
            "average over budgets",
            f"C = {clip:g}",
            "error at each end of τ minus error at the best τ in between; and most budgets have "
            "their lowest mean in between",
            tested.effect("τ"),
            tested.trials,
            tested.verdict,
        )


def near(case: Case, algorithm: str) -> Findings:
    by_setting = swept(case, algorithm)
    free = _at_budget(by_setting, math.inf)
    if not free:
        return
    for epsilon in sorted({setting.epsilon for setting in private(by_setting)}):
        noisy = _at_budget(by_setting, epsilon)
        cost = paired(chosen(noisy), chosen(free))
        low, high = paired(best(noisy), chosen(free)), paired(chosen(noisy), best(free))
        yield Finding(
            "2",
            f"With its best τ and C the private error is less than {CLOSE:g} above the "
            f"non-private one with its best τ",
            case.budget(epsilon),
            f"private minus non-private error, against the margin {CLOSE:g}",
            f"difference {cost}",
            cost.n,
            opposite(judged(low, high, CLOSE)),
        )


def _at_budget(by_setting: dict[Setting, list[Cell]], epsilon: float) -> list[Cell]:
    return [cell for at, cells in by_setting.items() for cell in cells if at.epsilon == epsilon]


def interior_without_noise(case: Case, algorithm: str) -> Findings:
    """Claimed of DP-ScaffNew alone."""
    cells = swept(case, algorithm).get(Setting(math.inf, math.inf), [])
    if len(cells) < 3 or not algorithm.startswith("dp-scaffnew"):
        return
    tested, at_best = inside(case, [cells]), optimum(cells)
    plausible = ", ".join(map(str, at_best.plausible))
    steps = f"best τ = {at_best.best.local_steps} (plausible: {plausible})"
    yield Finding(
        "3",
        "Without noise and clip DP-ScaffNew has its best τ in between",
        case.budget(math.inf),
        "error at each end of τ minus error at the best τ in between, where the lowest mean must "
        "lie too",
        f"{tested.effect('τ')}; {steps}; {_theory(case)}",
        tested.trials,
        tested.verdict,
    )


def _theory(case: Case) -> str:
    if not case.constants:
        return "μ and L of the task are not known, so that 1/p* = √(L/μ) is not compared"
    mu, L = case.constants
    return f"1/p* = √(L/μ) = {math.sqrt(L / mu):.3g}"


def rises(case: Case, algorithm: str) -> Findings:
    best_cells = {
        setting: optimum(cells).best
        for setting, cells in private(swept(case, algorithm)).items()
        if len(cells) > 1
    }
    yield ranked(
        "6a",
        "The optimal τ rises as ε falls",
        best_cells,
        lambda cell: cell.local_steps,
        rising=True,
    )


def ranked(
    number: str,
    hypothesis: str,
    best_cells: dict[Setting, Cell],
    axis: Callable[[Cell], int],
    rising: bool,
) -> Finding:
    """Optima against the budget: a row of them for every clip that has all budgets. `rising`
    claims that they rise as epsilon falls."""
    budgets = sorted({setting.epsilon for setting in best_cells})
    rows = _rows(best_cells, budgets)
    if len(budgets) < FEWEST_BUDGETS or not rows:
        needs = f"needs at least {FEWEST_BUDGETS} budgets for a rank test"
        return Finding(number, hypothesis, "", needs, f"{len(budgets)} in the store", 0, UNKNOWN)
    optima = {clip: [axis(cell) for cell in row] for clip, row in rows.items()}
    rho, low, high = rank_test(budgets, list(optima.values()))
    claimed, contrary = (low, high) if rising else (high, low)
    trials = min(len(cell.trials) for cell in joined(rows.values()))
    listed = "; ".join(f"C = {clip:g}: {', '.join(map(str, row))}" for clip, row in optima.items())
    return Finding(
        number,
        hypothesis,
        "",
        f"rank correlation with ε, mean over {_clips(len(optima))}; p over {_orders(budgets)}",
        f"ρ = {rho:+.2f}, p = {claimed:.3f}; optima in order of ε: {listed}",
        trials,
        _rank_verdict(trials, claimed, contrary),
    )


def _rows(best_cells: dict[Setting, Cell], budgets: list[float]) -> dict[float, list[Cell]]:
    """By clip the cells at all budgets, where there are all."""
    return {clip: row for clip, row in by_clip(best_cells).items() if len(row) == len(budgets)}


def _clips(count: int) -> str:
    return f"{count} clip threshold{'' if count == 1 else 's'}"


def _orders(budgets: Sequence[float]) -> str:
    every = "all" if len(budgets) <= MOST_BUDGETS else "random"
    return f"{every} orders of the {len(budgets)} budgets"


def _rank_verdict(trials: int, claimed: float, contrary: float) -> str:
    if trials < FEWEST:
        return UNKNOWN
    if claimed <= LEVEL:
        return HOLDS
    return FAILS if contrary <= LEVEL else UNKNOWN
