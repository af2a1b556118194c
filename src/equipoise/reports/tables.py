"""The report's numbers as CSV: one file per table, one line per fact."""

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from equipoise.paper.observations.check import Observation
from equipoise.reports.optima import curves, laws, optimum
from equipoise.reports.study import NOT_PRIVATE, Case, Cell, Study

CASE = ("task", "convention", "unit")
CELL = ("algorithm", "epsilon", "epsilon_spent", "clip_norm", "iterations", "local_steps", "rounds")

Table = tuple[Sequence[str], list[Sequence[Any]]]
"""Headings and lines."""


def tables(study: Study, observations: list[Observation]) -> dict[str, Table]:
    """Every table of a report, by the name of its file."""
    return {
        "cells.csv": cells_table(study),
        "optimal.csv": optimal_table(study),
        "r2.csv": r2_table(study),
        "observations.csv": observations_table(observations),
        "curves.csv": curves_table(study),
    }


def cells_table(study: Study) -> Table:
    """All cells: mean and standard deviation of the error over trials, on test and training
    records."""
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
    return (*CASE, *CELL, *numbers), lines


def optimal_table(study: Study) -> Table:
    """The best local steps of every curve, what is within one standard error of it, and whether it
    lies at an end."""
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
    lines: list[Sequence[Any]] = []
    seen = set()
    for case in study.cases:
        for cells in curves(case).values():
            found = optimum(cells)
            best = found.best
            if id(best) in seen:
                continue
            seen.add(id(best))
            plausible, tried = (
                " ".join(map(str, steps)) for steps in (found.plausible, found.tried)
            )
            ends = (found.plausible[0], found.plausible[-1])
            label = case.convention if best.private else NOT_PRIVATE
            numbers = (best.mean, best.std, len(best.trials), *ends, plausible, tried, found.edge)
            lines.append((*_case(case, label), *_cell(best), *numbers))
    return (*CASE, *CELL, *more), lines


def r2_table(study: Study) -> Table:
    """Optimal local steps against C: both fits, and on how little they rest."""
    names = (
        "group tasks convention algorithm clips mean_optima variances points "
        "degrees_of_freedom optima at_end"
    ).split()
    fits = (
        "r2_linear slope_linear intercept_linear r2_sqrt slope_sqrt intercept_sqrt "
        "r2_linear_all r2_sqrt_all"
    ).split()
    lines: list[Sequence[Any]] = []
    for law in laws(study):
        listed = (
            " ".join(f"{value:g}" for value in values)
            for values in (law.clips, law.means, law.variances)
        )
        count = (len(law.clips), law.freedom, sum(map(len, law.optima)), law.at_edge)
        both = [
            value for fit in (law.linear, law.root) for value in (fit.r2, fit.slope, fit.intercept)
        ]
        lines.append(
            (
                law.group,
                " ".join(law.tasks),
                law.convention,
                law.algorithm,
                *listed,
                *count,
                *both,
                *law.r2_of_all,
            )
        )
    return (*names, *fits), lines


def observations_table(observations: list[Observation]) -> Table:
    names = "number hypothesis task convention algorithm where test effect trials verdict".split()
    lines: list[Sequence[Any]] = []
    for seen in observations:
        number, hypothesis, *rest = seen.finding
        lines.append((number, hypothesis, seen.task, seen.convention, seen.algorithm, *rest))
    return names, lines


def curves_table(study: Study) -> Table:
    """Along the rounds: means over the trials of a cell."""
    names = ("round", "iteration", "test_error", "train_error", "clipped", "update_norm")
    lines: list[Sequence[Any]] = [
        (*_case(case, label), *_cell(cell), *(getattr(moment, name) for name in names))
        for case, label, cell in study.cells()
        for moment in cell.curve
    ]
    return (*CASE, *CELL, *names), lines


def write_csv(path: Path, table: Table) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table[0])
        writer.writerows(_plain(line) for line in table[1])


def _case(case: Case, label: str) -> tuple[str, str, str]:
    return case.task, label, "" if label == NOT_PRIVATE else case.unit


def _cell(cell: Cell) -> tuple[Any, ...]:
    return tuple(getattr(cell, name) for name in CELL)


def _plain(values: Iterable[Any]) -> list[Any]:
    """NaN and None are empty. A text that a spreadsheet would take for a formula begins with an
    apostrophe."""
    plain = []
    for value in values:
        if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
            plain.append("'" + value)
        elif value is None or (isinstance(value, float) and math.isnan(value)):
            plain.append("")
        else:
            plain.append(repr(value) if isinstance(value, float) else value)
    return plain
