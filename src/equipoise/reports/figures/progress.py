"""During training: errors and the fraction of clipped updates, against iterations."""

import math
from collections.abc import Sequence
from textwrap import fill
from typing import Any

from equipoise.reports.drawing import finish, limits, panels
from equipoise.reports.figures.budgets import best_by_budget
from equipoise.reports.figures.common import MOST_COLUMNS, Look, below, budget_keys, look
from equipoise.reports.optima import curves, optimum, reference_iterations
from equipoise.reports.study import Case, Cell, joined, number

WIDTH = 3.6  # inches of a panel
LETTERS = 13  # of a title, in an inch of it
ROWS = {
    "test_error": "test error",
    "train_error": "training error",
    "clipped": "fraction of\nupdates clipped",
}


def progress(case: Case) -> Any | None:
    """Train and test error and the fraction of clipped updates during training, at the best local
    steps of each budget."""
    algorithms = case.values("algorithm")[:MOST_COLUMNS]
    best = {algorithm: _best(case, algorithm) for algorithm in algorithms}
    drawn = joined(best.values())
    if not any(len(cell.curve) > 1 for cell in drawn):
        return None
    figure, grid = panels(3, len(algorithms), width=WIDTH, height=1.75, sharex=True, sharey="row")
    budgets = look(case.values("epsilon"))
    for column, (algorithm, cells) in zip(grid.T, best.items(), strict=True):
        for cell in cells:
            _draw(column, cell, budgets)
        column[0].set_title(_title(algorithm, cells))
        column[2].set_xlabel("iterations done")
        column[2].xaxis.get_major_locator().set_params(integer=True)
    _scale(grid)
    heading = f"{case.title}: error during training, at the best τ and C of each budget"
    return finish(figure, heading, below(case, band=False), budget_keys(case, budgets, drawn))


def _best(case: Case, algorithm: str) -> list[Cell]:
    """The best cell of every budget, and that without noise."""
    free = [
        optimum(cells).best
        for curve, cells in curves(case, reference_iterations(case)).items()
        if curve.algorithm == algorithm and curve.epsilon == math.inf
    ]
    return [*best_by_budget(case, algorithm), *free]


def _title(algorithm: str, best: Sequence[Cell]) -> str:
    """The best settings of each budget, in as many lines as they need."""
    settings = [f"{cell.local_steps}\u00a0({number(cell.clip)})" for cell in best]
    listed = f"best τ (C) in order of ε: {', '.join(settings)}"
    return f"{algorithm}\n{fill(listed, int(WIDTH * LETTERS), break_long_words=False)}"


def _draw(column: Any, cell: Cell, budgets: Look) -> None:
    """Each quantity along a run in its row, as far as it was measured; without noise nothing is
    clipped."""
    for axes, name in zip(column, ROWS, strict=True):
        known = cell.along(name) if cell.private or name != "clipped" else []
        axes.plot(
            [iteration for iteration, _ in known],
            [value for _, value in known],
            color=budgets.colour[cell.epsilon],
            marker=budgets.marker[cell.epsilon],
            markersize=5 if len(known) < 6 else 2.5,
        )


def _scale(grid: Any) -> None:
    for axes, label in zip(grid[:, 0], ROWS.values(), strict=True):
        axes.set_ylabel(label)
    for row in grid:
        ends = [end for axes in row for end in (axes.dataLim.ymin, axes.dataLim.ymax)]
        known = [end for end in ends if math.isfinite(end)]
        if known and max(known) > 0:
            bottom, top = limits(min(known), max(known))
            row[0].set_ylim(bottom - 0.03 * (top - bottom), top)  # a line at zero is seen
