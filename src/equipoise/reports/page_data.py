"""What the page's interactive figures need of a case, as plain values for JSON. Budgets and
clips are strings there: JSON has no infinity."""

import math
from collections.abc import Sequence
from typing import Any

from equipoise.reports.drawing import colours
from equipoise.reports.optima import (
    Curve,
    Line,
    along_iterations,
    curves,
    diverged_totals,
    optimum,
    reference_iterations,
)
from equipoise.reports.study import Case, Cell, Place, number


def case_data(case: Case) -> dict[str, Any]:
    every = curves(case)
    along, rule = along_iterations(case)
    reference = reference_iterations(case)
    return {
        "task": case.task,
        "convention": case.convention,
        "meaning": case.meaning,
        "error": case.error_name,
        "baseline": case.baseline,
        "budgets": _budgets(case),
        "algorithms": case.values("algorithm"),
        "clips": [_name(clip) for clip in case.values("clip")],
        "iterations": case.values("iterations"),
        "reference": reference,
        "cells": [_cell(cell) for cells in every.values() for cell in cells],
        "diverged": [_diverged(place) for place in sorted(case.diverged)],
        "optima": _optima(case, every),
        "rule": rule,
        "along": [_along(case, line, cells) for line, cells in along.items() if len(cells) > 1],
        "curves": _curves(curves(case, reference)),
    }


def _budgets(case: Case) -> list[dict[str, str]]:
    from matplotlib.colors import to_hex

    budgets = case.values("epsilon")
    colour = colours(budgets)
    return [
        {"epsilon": _name(e), "label": case.budget(e), "colour": to_hex(colour[e])} for e in budgets
    ]


def _line(line: Line | Curve) -> dict[str, Any]:
    return {
        "algorithm": line.algorithm,
        "epsilon": _name(line.epsilon),
        "clip": _name(line.clip),
    }


def _line_of(cell: Cell) -> Line:
    return Line(cell.algorithm, cell.epsilon, cell.clip)


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        **_line(_line_of(cell)),
        "spent": "inf" if cell.epsilon_spent == math.inf else number(cell.epsilon_spent),
        "iterations": cell.iterations,
        "local_steps": cell.local_steps,
        "rounds": cell.rounds,
        "mean": cell.mean,
        "std": None if math.isnan(cell.std) else cell.std,
        "train": cell.train_mean,
        "trials": len(cell.trials),
    }


def _diverged(place: Place) -> dict[str, Any]:
    """A cell with a trial that diverged."""
    line = _line(Line(*place[:3]))
    return {**line, "iterations": place.iterations, "local_steps": place.local_steps}


def _optima(case: Case, every: dict[Curve, list[Cell]]) -> list[dict[str, Any]]:
    totals = case.values("iterations")
    return [_optimum(cells) for curve, cells in every.items() if curve.iterations in totals]


def _optimum(cells: Sequence[Cell]) -> dict[str, Any]:
    shown = optimum(cells)
    return {
        **_line(_line_of(shown.best)),
        "iterations": shown.best.iterations,
        "local_steps": shown.best.local_steps,
        "low": shown.plausible[0],
        "high": shown.plausible[-1],
        "plausible": ", ".join(map(str, shown.plausible)),
    }


def _along(case: Case, line: Line, cells: Sequence[Cell]) -> dict[str, Any]:
    places = [(cell.iterations, cell.local_steps) for cell in cells]
    return {**_line(line), "cells": places, "diverged": diverged_totals(case, line, cells)}


def _curves(by_curve: dict[Curve, list[Cell]]) -> list[dict[str, Any]]:
    """The best cell of every curve along its iterations, where it was measured in between."""
    best = {curve: optimum(cells).best for curve, cells in by_curve.items()}
    return [
        {**_line(curve), "local_steps": cell.local_steps, "points": _points(cell)}
        for curve, cell in best.items()
        if len(cell.curve) > 1
    ]


def _points(cell: Cell) -> list[tuple[int, float | None, float | None, float | None]]:
    """Iteration, test error, training error, fraction clipped; without noise nothing is clipped."""
    return [
        (m.iteration, m.test_error, m.train_error, m.clipped if cell.private else None)
        for m in cell.curve
    ]


def _name(value: float) -> str:
    if value == math.inf:
        return "inf"
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
