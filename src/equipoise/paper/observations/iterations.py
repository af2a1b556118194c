"""Observations 2 and 3 of the paper: the best number of iterations in total. They need a store with
several."""

import math
from collections.abc import Callable

from equipoise.paper.observations.claims import STEADY, Finding, Findings, inside
from equipoise.paper.observations.local_steps import ranked
from equipoise.reports.evidence import (
    UNKNOWN,
    Difference,
    Errors,
    all_of,
    best,
    chosen,
    judged,
    opposite,
    paired,
)
from equipoise.reports.optima import along_iterations
from equipoise.reports.study import Case, Cell


def over_iterations(case: Case, algorithm: str) -> dict[tuple[float, float], list[Cell]]:
    """By epsilon and clip norm: three cells or more over the number of iterations, local steps at
    their best."""
    found, _ = along_iterations(case)
    return {
        (epsilon, clip): cells
        for (name, epsilon, clip), cells in found.items()
        if name == algorithm and len(cells) > 2
    }


def best_iterations(case: Case, algorithm: str) -> Findings:
    found = {
        key: cells for key, cells in over_iterations(case, algorithm).items() if key[0] < math.inf
    }
    hypothesis = (
        "Some T in between is better than the smallest and than the largest T, τ at its "
        "best, on average over budgets"
    )
    if not found:
        yield Finding(
            "4", hypothesis, "", "needs three values of T", "not in the store", 0, UNKNOWN
        )
    for clip in sorted({clip for _, clip in found}):
        seen = inside(case, [cells for key, cells in found.items() if key[1] == clip])
        yield Finding(
            "4",
            hypothesis,
            f"C = {clip:g}",
            "error at each end of T minus error at the best T in between; and most budgets have "
            "their lowest mean in between; " + along_iterations(case)[1],
            seen.told("T"),
            seen.trials,
            seen.verdict,
        )


def degrades(case: Case, algorithm: str) -> Findings:
    falls = algorithm.startswith("dp-scaffnew")
    does = "gets worse" if falls else "does not get worse"
    hypothesis = (
        f"Without noise and clip {algorithm} {does} by more than {STEADY:g} with many "
        f"iterations, on test and train"
    )
    cells = over_iterations(case, algorithm).get((math.inf, math.inf))
    if not cells:
        yield Finding(
            "5",
            hypothesis,
            "ε = ∞",
            "needs three values of T at ε = ∞",
            "not in the store",
            0,
            UNKNOWN,
        )
        return

    def growth(errors: Callable[[Cell], Errors], choose: Callable[..., Errors]) -> Difference:
        return paired(errors(cells[-1]), choose(cells[:-1], errors))

    kinds: dict[str, Callable[[Cell], Errors]] = {
        "test": lambda cell: cell.errors,
        "train": lambda cell: cell.train_errors,
    }
    growths = {name: growth(errors, chosen) for name, errors in kinds.items()}
    verdicts = [
        judged(growths[name], growth(errors, best), STEADY) for name, errors in kinds.items()
    ]
    yield Finding(
        "5",
        hypothesis,
        "ε = ∞",
        f"error at the largest T minus error at the best smaller T, against the margin {STEADY:g}",
        ", ".join(f"{name}: {grown}" for name, grown in growths.items()),
        growths["test"].n,
        all_of(verdicts if falls else [opposite(verdict) for verdict in verdicts]),
    )


def falls(case: Case, algorithm: str) -> Findings:
    found = {
        key: min(cells, key=lambda cell: (cell.mean, cell.iterations))
        for key, cells in over_iterations(case, algorithm).items()
        if key[0] < math.inf
    }
    yield ranked(
        "6b", "The optimal T falls as ε falls", found, lambda cell: cell.iterations, rising=False
    )
