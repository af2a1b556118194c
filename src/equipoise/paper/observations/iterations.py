"""Observation 2 of the paper: there is a best number of iterations in total. It needs a store with
several."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from equipoise.paper.observations.interior import STEADY, Beyond, Findings, Inside, inside
from equipoise.paper.observations.local_steps import Setting, at_each, private
from equipoise.paper.tasks.rows import ROWS
from equipoise.reports.evidence import (
    FAILS,
    HOLDS,
    LEVEL,
    UNKNOWN,
    Difference,
    Errors,
    all_of,
    best,
    chosen,
    errors_of,
    judged,
    opposite,
    paired,
)
from equipoise.reports.findings import Finding
from equipoise.reports.optima import FIXED, along_iterations
from equipoise.reports.study import Case, Cell, Trial

ABSENT = "not in the store"


def over_iterations(case: Case, algorithm: str) -> dict[Setting, list[Cell]]:
    """By epsilon and clip: three cells or more over the number of iterations, local steps at
    their best."""
    return {at: cells for at, cells in _along(case, algorithm).items() if len(cells) > 2}


def _along(case: Case, algorithm: str) -> dict[Setting, list[Cell]]:
    along, _ = along_iterations(case)
    return {
        Setting(line.epsilon, line.clip): cells
        for line, cells in along.items()
        if line.algorithm == algorithm
    }


def short_of_table(case: Case, cells: Sequence[Cell]) -> str:
    """Why these cells cannot refute a claim about T: what the paper claims, it claims of the T of
    its Table 1. "" where they reach that."""
    if case.task not in ROWS:
        return "the paper's Table 1 has no T for this task"
    largest, claimed = max(cell.iterations for cell in cells), ROWS[case.task].iterations
    if largest >= claimed:
        return ""
    return f"the largest T tried is {largest}, and {claimed} in the paper's Table 1"


def best_iterations(case: Case, algorithm: str) -> Findings:
    by_setting = private(over_iterations(case, algorithm))
    rule = along_iterations(case)[1]
    hypothesis = f"Some T in between is better than the smallest and than the largest T, {rule}"

    def tested(cells: Sequence[Cell], level: float = LEVEL) -> Inside:
        totals = [cell.iterations for cell in cells]
        return inside(cells, totals, _beyond_totals(case, cells, rule), level)

    if not by_setting:
        yield Finding("2a", hypothesis, "", "needs three values of T", ABSENT, 0, UNKNOWN)
    yield from at_each("2a", hypothesis, case, "T", by_setting, tested)


def _beyond_totals(case: Case, cells: Sequence[Cell], rule: str) -> Beyond:
    """Along iterations: the largest T must reach that of Table 1, for either end; the smallest
    possible are those of one round and of two."""
    short = short_of_table(case, cells)
    fixed = rule == FIXED or cells[1].local_steps == 1
    if fixed and [cell.rounds for cell in cells[:2]] == [1, 2]:
        return Beyond(short, short)
    smallest = f"the smallest T tried is {cells[0].iterations}: smaller ones might be better"
    return Beyond(short or smallest, short)


def degrades(case: Case, algorithm: str) -> Findings:
    """Claimed of DP-ScaffNew; of DP-FedAvg the contrary."""
    claimed = algorithm.startswith("dp-scaffnew")
    does = "gets worse" if claimed else "does not get worse"
    hypothesis = (
        f"Without noise and clip {algorithm} {does} by more than {STEADY:g} with many "
        f"iterations, on test and training records"
    )
    stored = _along(case, algorithm).get(Setting(math.inf, math.inf), [])
    cells = with_prefixes(stored)
    if len(cells) < 3:
        needs = "needs three values of T at ε = ∞"
        yield Finding("2b", hypothesis, "ε = ∞", needs, ABSENT, 0, UNKNOWN)
        return
    test, training = _growth(cells, errors_of), _growth(cells, _train_errors)
    worse = [_grows(cells, errors_of), _grows(cells, _train_errors)]
    verdict = all_of(worse if claimed else [opposite(each) for each in worse])
    # a T that is too small shows neither that the error does not grow, nor that a claim is wrong
    short = short_of_table(case, cells) if verdict == FAILS or not claimed else ""
    effect = [f"test: {test[0]}, training: {training[0]}", _read_off(cells, stored), short]
    yield Finding(
        "2b",
        hypothesis,
        "ε = ∞",
        f"error at the largest T minus error at the best smaller T, against the margin {STEADY:g}",
        "; ".join(filter(None, effect)),
        test[0].n,
        UNKNOWN if short else verdict,
    )


def with_prefixes(cells: Sequence[Cell]) -> list[Cell]:
    """With the shorter runs that these contain. Without noise and clip, with a periodic schedule, a
    run of T' iterations is the beginning of any longer one with the same local steps and seed, so
    its errors are those of a point at exactly T' on the curve of the longer."""
    by_total = {cell.iterations: cell for cell in cells}
    for cell in reversed(cells):
        for total in sorted({moment.iteration for moment in cell.curve} - {0, cell.iterations}):
            prefix = _prefix(cell, total)
            if prefix and total not in by_total:
                by_total[total] = prefix
    return [by_total[total] for total in sorted(by_total)]


def _prefix(cell: Cell, total: int) -> Cell | None:
    """What a cell had been after so many iterations, if every trial was measured there."""
    trials = [_cut(trial, total) for trial in cell.trials]
    known = tuple(trial for trial in trials if trial)
    if len(known) < len(trials):
        return None
    return replace(cell, iterations=total, rounds=known[0].curve[-1].round, trials=known)


def _cut(trial: Trial, total: int) -> Trial | None:
    curve = tuple(moment for moment in trial.curve if moment.iteration <= total)
    if not curve or curve[-1].iteration != total or curve[-1].test_error is None:
        return None
    return Trial(trial.seed, curve[-1].test_error, curve[-1].train_error, curve)


def _read_off(cells: Sequence[Cell], stored: Sequence[Cell]) -> str:
    totals = [cell.iterations for cell in cells if cell not in stored]
    if not totals:
        return ""
    listed = f"{totals[0]} to {totals[-1]} ({len(totals)} values)"
    if len(totals) < 4:
        listed = ", ".join(map(str, totals))
    return f"T = {listed} read off the curve of a longer run"


def _growth(
    cells: Sequence[Cell], errors: Callable[[Cell], Errors]
) -> tuple[Difference, Difference]:
    """The error at the largest T minus that at the best smaller T where it was measured: chosen on
    other trials, and in hindsight."""
    last, smaller = errors(cells[-1]), [cell for cell in cells[:-1] if errors(cell)]
    return paired(last, chosen(smaller, errors)), paired(last, best(smaller, errors))


def _grows(cells: Sequence[Cell], errors: Callable[[Cell], Errors]) -> str:
    """Whether the error at the largest T is worse than at the best smaller one. It may be where it
    was not measured at some of them."""
    worse = judged(*_growth(cells, errors), STEADY)
    return worse if all(map(errors, cells)) or worse == HOLDS else UNKNOWN


def _train_errors(cell: Cell) -> Errors:
    return cell.train_errors
