"""Observations 2 and 3 of the paper: the best number of iterations in total. They need a store with
several."""

import math
from collections.abc import Callable, Sequence

from equipoise.paper.observations.interior import STEADY, Findings, inside
from equipoise.paper.observations.local_steps import Setting, by_clip, private, ranked
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
from equipoise.reports.findings import Finding
from equipoise.reports.optima import along_iterations
from equipoise.reports.study import Case, Cell

ABSENT = "not in the store"


def over_iterations(case: Case, algorithm: str) -> dict[Setting, list[Cell]]:
    """By epsilon and clip: three cells or more over the number of iterations, local steps at
    their best."""
    along, _ = along_iterations(case)
    return {
        Setting(line.epsilon, line.clip): cells
        for line, cells in along.items()
        if line.algorithm == algorithm and len(cells) > 2
    }


def best_iterations(case: Case, algorithm: str) -> Findings:
    by_setting = private(over_iterations(case, algorithm))
    hypothesis = (
        "Some T in between is better than the smallest and than the largest T, τ at its "
        "best, on average over budgets"
    )
    if not by_setting:
        yield Finding("4", hypothesis, "", "needs three values of T", ABSENT, 0, UNKNOWN)
    for clip, many in by_clip(by_setting).items():
        tested = inside(case, many)
        yield Finding(
            "4",
            hypothesis,
            f"C = {clip:g}",
            "error at each end of T minus error at the best T in between; and most budgets have "
            "their lowest mean in between; " + along_iterations(case)[1],
            tested.effect("T"),
            tested.trials,
            tested.verdict,
        )


def degrades(case: Case, algorithm: str) -> Findings:
    """Claimed of DP-ScaffNew; of DP-FedAvg the contrary."""
    falls = algorithm.startswith("dp-scaffnew")
    does = "gets worse" if falls else "does not get worse"
    hypothesis = (
        f"Without noise and clip {algorithm} {does} by more than {STEADY:g} with many "
        f"iterations, on test and training records"
    )
    cells = over_iterations(case, algorithm).get(Setting(math.inf, math.inf))
    if not cells:
        needs = "needs three values of T at ε = ∞"
        yield Finding("5", hypothesis, "ε = ∞", needs, ABSENT, 0, UNKNOWN)
        return
    test, training = _growth(cells, _test_errors), _growth(cells, _train_errors)
    worse = [judged(*growth, STEADY) for growth in (test, training)]
    yield Finding(
        "5",
        hypothesis,
        "ε = ∞",
        f"error at the largest T minus error at the best smaller T, against the margin {STEADY:g}",
        f"test: {test[0]}, training: {training[0]}",
        test[0].n,
        all_of(worse if falls else [opposite(verdict) for verdict in worse]),
    )


def _growth(
    cells: Sequence[Cell], errors: Callable[[Cell], Errors]
) -> tuple[Difference, Difference]:
    """The error at the largest T minus that at the best smaller T: chosen on other trials, and in
    hindsight."""
    last, smaller = errors(cells[-1]), cells[:-1]
    return paired(last, chosen(smaller, errors)), paired(last, best(smaller, errors))


def _test_errors(cell: Cell) -> Errors:
    return cell.errors


def _train_errors(cell: Cell) -> Errors:
    return cell.train_errors


def falls(case: Case, algorithm: str) -> Findings:
    best_cells = {
        setting: min(cells, key=lambda cell: (cell.mean, cell.iterations))
        for setting, cells in private(over_iterations(case, algorithm)).items()
    }
    yield ranked(
        "6b",
        "The optimal T falls as ε falls",
        best_cells,
        lambda cell: cell.iterations,
        rising=False,
    )
