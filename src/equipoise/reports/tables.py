"""The report's numbers as CSV: one file per table, one line per fact."""

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from equipoise.measures import MEASURES
from equipoise.reports.findings import Observation
from equipoise.reports.optima import Fits, Law, Optimum, curves, optimum
from equipoise.reports.study import NOT_PRIVATE, Case, Cell, Place, Study

CASE = ("task", "convention", "unit")
CELL = ("algorithm", "epsilon", "epsilon_spent", "clip", "iterations", "local_steps", "rounds")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


class Table(NamedTuple):
    head: Sequence[str]
    lines: list[Sequence[Any]]


def tables(
    study: Study, laws: Sequence[Law], observations: Sequence[Observation]
) -> dict[str, Table]:
    """Every table of a report, by the name of its file."""
    return {
        "cells.csv": cells_table(study),
        "measures.csv": measures_table(study),
        "optimal.csv": optimal_table(study),
        "r2.csv": r2_table(laws),
        "observations.csv": observations_table(observations),
        "curves.csv": curves_table(study),
    }


def cells_table(study: Study) -> Table:
    """All cells: mean and standard deviation of the error over trials, on test and training
    records. Where all trials diverged there are none; what was never run has no line."""
    numbers = (
        "test_error",
        "test_error_std",
        "train_error",
        "train_error_std",
        "trials",
        "diverged",
    )
    lines: list[Sequence[Any]] = []
    for case, label, cell in study.cells():
        errors = (cell.mean, cell.std, cell.train_mean, cell.train_std)
        lines.append((*_case(case, label), *_cell(cell), *errors, len(cell.trials), cell.diverged))
    lines += [_lost_line(*lost) for lost in study.lost()]
    return Table((*CASE, *CELL, *numbers), lines)


def measures_table(study: Study) -> Table:
    """AUROC and the like of all cells, one line each: mean and standard deviation over trials."""
    lines: list[Sequence[Any]] = []
    for case, label, cell in study.cells():
        for name in MEASURES:
            values = [trial.measures[name] for trial in cell.trials if name in trial.measures]
            if values:
                spread = stdev(values) if len(values) > 1 else math.nan
                numbers = (name, fmean(values), spread, len(values))
                lines.append((*_case(case, label), *_cell(cell), *numbers))
    return Table((*CASE, *CELL, "measure", "mean", "std", "trials"), lines)


def _lost_line(case: Case, label: str, place: Place, diverged: int) -> Sequence[Any]:
    rounds = place.iterations // place.local_steps
    cell = (place.algorithm, place.epsilon, None, *place[2:], rounds)
    return (*_case(case, label), *cell, *(None,) * 4, 0, diverged)


def optimal_table(study: Study) -> Table:
    """The best local steps of every curve, what is within one standard error of it, and whether it
    lies at an end. What has no noise is listed once."""
    more = (
        "test_error",
        "test_error_std",
        "trials",
        "plausible_low",
        "plausible_high",
        "plausible",
        "tried",
        "at_end",
    )
    lines: dict[int, Sequence[Any]] = {}
    for case in study.cases:
        for cells in curves(case).values():
            shown = optimum(cells)
            lines.setdefault(id(shown.best), _optimal_line(case, shown))
    return Table((*CASE, *CELL, *more), list(lines.values()))


def _optimal_line(case: Case, shown: Optimum) -> Sequence[Any]:
    best, plausible = shown.best, shown.plausible
    return (
        *_case(case, case.convention if best.private else NOT_PRIVATE),
        *_cell(best),
        best.mean,
        best.std,
        len(best.trials),
        plausible[0],
        plausible[-1],
        " ".join(map(str, plausible)),
        " ".join(map(str, shown.tried)),
        shown.edge,
    )


def r2_table(laws: Sequence[Law]) -> Table:
    """Optimal local steps against C: both fits, and on how little they rest. Fewer than three
    clips have no fit: its columns are empty."""
    names = (
        "group tasks convention algorithm clips mean_optima variances points "
        "degrees_of_freedom optima at_end"
    ).split()
    fits = (
        "r2_linear slope_linear intercept_linear r2_sqrt slope_sqrt intercept_sqrt "
        "r2_linear_all r2_sqrt_all"
    ).split()
    return Table((*names, *fits), [_law_line(law) for law in laws])


def _law_line(law: Law) -> Sequence[Any]:
    return (
        law.group,
        " ".join(law.tasks),
        law.convention,
        law.algorithm,
        _spaced(law.clips),
        _spaced(law.means),
        _spaced(law.variances),
        len(law.clips),
        law.freedom,
        law.count,
        law.at_edge,
        *_fit_numbers(law.fits),
        *_r2_numbers(law.fits_of_all),
    )


def _spaced(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)


def _fit_numbers(fits: Fits | None) -> Sequence[float | None]:
    if fits is None:
        return (None,) * 6
    linear, root = fits
    return (linear.r2, linear.slope, linear.intercept, root.r2, root.slope, root.intercept)


def _r2_numbers(fits: Fits | None) -> Sequence[float | None]:
    return (fits.linear.r2, fits.root.r2) if fits else (None, None)


def observations_table(observations: Sequence[Observation]) -> Table:
    names = "number hypothesis task convention algorithm where test effect trials verdict".split()
    lines: list[Sequence[Any]] = []
    for seen in observations:
        number, hypothesis, *rest = seen.finding
        tasks = " + ".join(seen.tasks)
        lines.append((number, hypothesis, tasks, seen.convention, seen.algorithm, *rest))
    return Table(names, lines)


def curves_table(study: Study) -> Table:
    """Along the rounds: means over the trials of a cell."""
    names = ("round", "iteration", "test_error", "train_error", "clipped", "update_norm")
    lines: list[Sequence[Any]] = []
    for case, label, cell in study.cells():
        for moment in cell.curve:
            numbers = (getattr(moment, name) for name in names)
            lines.append((*_case(case, label), *_cell(cell), *numbers))
    return Table((*CASE, *CELL, *names), lines)


def write_csv(path: Path, table: Table) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.head)
        writer.writerows(_plain(line) for line in table.lines)


def _case(case: Case, label: str) -> tuple[str, str, str]:
    return case.task, label, "" if label == NOT_PRIVATE else case.unit


def _cell(cell: Cell) -> tuple[Any, ...]:
    return tuple(getattr(cell, name) for name in CELL)


def _plain(values: Iterable[Any]) -> list[Any]:
    return [_plain_value(value) for value in values]


def _plain_value(value: Any) -> Any:
    """NaN and None are empty. A text that a spreadsheet would take for a formula begins with an
    apostrophe."""
    if isinstance(value, str):
        return "'" + value if value.startswith(FORMULA) else value
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return "" if value is None else value
