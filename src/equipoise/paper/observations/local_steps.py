"""Observations 1 and 3 of the paper: the best number of local steps."""

import math
from collections.abc import Callable

from equipoise.paper.observations.claims import CLOSE, Finding, Findings, inside
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
from equipoise.reports.optima import curves, optimum, reference_iterations
from equipoise.reports.study import Case, Cell


def swept(case: Case, algorithm: str) -> dict[tuple[float, float], list[Cell]]:
    """By epsilon and clip norm: the curves over local steps at the reference number of
    iterations.
    """
    iterations = reference_iterations(case)
    return {
        (epsilon, clip): cells
        for (name, epsilon, clip, T), cells in curves(case).items()
        if name == algorithm and T == iterations
    }


def interior(case: Case, algorithm: str) -> Findings:
    found = {
        key: cells
        for key, cells in swept(case, algorithm).items()
        if key[0] < math.inf and len(cells) > 2
    }
    for clip in sorted({clip for _, clip in found}):
        seen = inside(case, [cells for key, cells in found.items() if key[1] == clip])
        yield Finding(
            "1",
            "At fixed T some τ in between is better than the smallest and than the largest τ, on "
            "average over budgets",
            f"C = {clip:g}",
            "error at each end of τ minus error at the best τ in between; and most budgets have "
            "their lowest mean in between",
            seen.told("τ"),
            seen.trials,
            seen.verdict,
        )


def near(case: Case, algorithm: str) -> Findings:
    found = swept(case, algorithm)
    free = [cell for (epsilon, _), cells in found.items() for cell in cells if epsilon == math.inf]
    for epsilon in sorted({epsilon for epsilon, _ in found if epsilon < math.inf}) if free else []:
        noisy = [cell for key, cells in found.items() for cell in cells if key[0] == epsilon]
        cost = paired(chosen(noisy), chosen(free))
        verdict = opposite(
            judged(paired(best(noisy), chosen(free)), paired(chosen(noisy), best(free)), CLOSE)
        )
        yield Finding(
            "2",
            f"With its best τ and C the private error is less than {CLOSE:g} above the "
            f"non-private one with its best τ",
            case.budget(epsilon),
            f"private minus non-private error, against the margin {CLOSE:g}",
            f"difference {cost}",
            cost.n,
            verdict,
        )


def interior_without_noise(case: Case, algorithm: str) -> Findings:
    cells = swept(case, algorithm).get((math.inf, math.inf), [])
    if len(cells) < 3 or not algorithm.startswith("dp-scaffnew"):
        return
    seen, found = inside(case, [cells]), optimum(cells)
    theory = "μ and L of the task are not known, so that 1/p* = √(L/μ) is not compared"
    if case.constants:
        mu, L = case.constants
        theory = f"1/p* = √(L/μ) = {math.sqrt(L / mu):.3g}"
    steps = f"best τ = {found.best.local_steps} (plausible: {', '.join(map(str, found.plausible))})"
    yield Finding(
        "3",
        "Without noise and clip DP-ScaffNew has its best τ in between",
        case.budget(math.inf),
        "error at each end of τ minus error at the best τ in between, where the lowest mean must "
        "lie too",
        f"{seen.told('τ')}; {steps}; {theory}",
        seen.trials,
        seen.verdict,
    )


def rises(case: Case, algorithm: str) -> Findings:
    found = {
        key: optimum(cells).best
        for key, cells in swept(case, algorithm).items()
        if key[0] < math.inf and len(cells) > 1
    }
    yield ranked(
        "6a", "The optimal τ rises as ε falls", found, lambda cell: cell.local_steps, rising=True
    )


def ranked(
    number: str,
    hypothesis: str,
    found: dict[tuple[float, float], Cell],
    axis: Callable[[Cell], int],
    rising: bool,
) -> Finding:
    """Optima by epsilon and clip norm against the budget: one row of them for every clip norm that
    has all budgets."""
    optima = {key: axis(cell) for key, cell in found.items()}
    budgets = sorted({epsilon for epsilon, _ in optima})
    clips = [
        clip
        for clip in sorted({clip for _, clip in optima})
        if all((epsilon, clip) in optima for epsilon in budgets)
    ]
    if len(budgets) < 4 or not clips:
        needs = "needs optima at four budgets or more: fewer have too few orders"
        return Finding(number, hypothesis, "", needs, f"{len(budgets)} in the store", 0, UNKNOWN)
    rows = [[optima[epsilon, clip] for epsilon in budgets] for clip in clips]
    trials = min(len(found[epsilon, clip].trials) for epsilon in budgets for clip in clips)
    rho, low, high = rank_test(budgets, rows)
    claimed, contrary = (low, high) if rising else (high, low)
    told = "; ".join(
        f"C = {clip:g}: {', '.join(map(str, row))}" for clip, row in zip(clips, rows, strict=True)
    )
    return Finding(
        number,
        hypothesis,
        "",
        f"rank correlation with ε, mean over {len(clips)} clips; p by all orders of the "
        f"{len(budgets)} budgets",
        f"ρ = {rho:+.2f}, p = {claimed:.3f}; optima by rising ε: {told}",
        trials,
        UNKNOWN
        if trials < FEWEST
        else HOLDS
        if claimed <= LEVEL
        else FAILS
        if contrary <= LEVEL
        else UNKNOWN,
    )
