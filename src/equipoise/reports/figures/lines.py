"""Test error against local steps, clip thresholds and iterations: the paper's figures, for one case
each."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from equipoise.reports.drawing import clip_name, finish, panels, scale_errors
from equipoise.reports.figures.common import (
    MOST_COLUMNS,
    Look,
    below,
    budget_keys,
    clip_beside,
    common_keys,
    diverged_keys,
    draw_diverged,
    draw_line,
    draw_ring,
    each_panel,
    key_line,
    look,
)
from equipoise.reports.optima import (
    Curve,
    Line,
    along_iterations,
    curves,
    diverged_steps,
    diverged_totals,
    optimum,
    reference_iterations,
)
from equipoise.reports.study import Case, Cell, joined


def error_by_steps(case: Case, iterations: int) -> Any | None:
    """Figs. 2, 6 to 9: one line per budget, one row of panels per algorithm, one column per clip
    threshold."""
    by_curve = curves(case, iterations)
    if not _any_line(by_curve.values()):
        return None
    algorithms, clips = case.values("algorithm"), case.values("clip")[:MOST_COLUMNS]
    figure, grid = panels(len(algorithms), len(clips), sharex=True, sharey=True)
    budgets, drawn = look(case.values("epsilon")), joined(by_curve.values())
    lost = diverged_steps(case, iterations)
    for panel in each_panel(grid, algorithms, clips):
        for i, epsilon in enumerate(budgets.values):
            clip = clip_beside(epsilon, panel.value)
            curve = Curve(panel.algorithm, epsilon, clip, iterations)
            colour, marker = budgets.colour[epsilon], budgets.marker[epsilon]
            _draw_with_best(panel.axes, by_curve.get(curve, []), colour, marker)
            draw_diverged(panel.axes, lost.get(curve, []), colour, i)
        panel.frame(f"{panel.algorithm}, {clip_name(panel.value)}", _steps(drawn, lost))
    untrained = scale_errors(grid, drawn, case.baseline)
    heading = f"{case.title}: error against local steps, T = {iterations} iterations"
    common = [*common_keys(untrained), *diverged_keys(bool(lost))]
    keys = [*budget_keys(case, budgets, drawn), *common]
    return finish(figure, heading, below(case), keys)


def error_by_clip(case: Case) -> Any | None:
    """Fig. 4: one line per clip threshold, one column per budget."""
    iterations = reference_iterations(case)
    by_curve = curves(case, iterations)
    clips, budgets = look(_finite(case, "clip")), _finite(case, "epsilon")[:MOST_COLUMNS]
    if len(clips.values) < 2 or not budgets or not _any_line(by_curve.values()):
        return None
    drawn = [cell for cell in joined(by_curve.values()) if cell.epsilon in budgets]
    lost = {c: s for c, s in diverged_steps(case, iterations).items() if c.epsilon in budgets}
    algorithms, steps = case.values("algorithm"), _steps(drawn, lost)
    figure, grid = panels(len(algorithms), len(budgets), width=2.5, sharex=True, sharey=True)
    for panel in each_panel(grid, algorithms, budgets):
        for i, clip in enumerate(clips.values):
            curve = Curve(panel.algorithm, panel.value, clip, iterations)
            colour, marker = clips.colour[clip], clips.marker[clip]
            _draw_with_best(panel.axes, by_curve.get(curve, []), colour, marker)
            draw_diverged(panel.axes, lost.get(curve, []), colour, i)
        panel.frame(f"{panel.algorithm}\n{case.budget(panel.value)}", steps)
    untrained = scale_errors(grid, drawn, case.baseline)
    keys = [*_clip_keys(clips), *common_keys(untrained), *diverged_keys(bool(lost))]
    heading = (
        f"{case.title}: error against local steps by clip threshold, T = {iterations} iterations"
    )
    return finish(figure, heading, below(case), keys)


def _finite(case: Case, axis: str) -> list[float]:
    return [value for value in case.values(axis) if value < math.inf]


def _clip_keys(clips: Look) -> list[Any]:
    return [
        key_line(clip_name(clip), clips.colour[clip], clips.marker[clip]) for clip in clips.values
    ]


def error_by_iterations(case: Case) -> Any | None:
    """Figs. 3 and 10: error against the total of iterations, local steps at their best; dotted: on
    training records."""
    along, rule = along_iterations(case)
    along = {line: cells for line, cells in along.items() if len(cells) > 1}
    totals = sorted({cell.iterations for cell in joined(along.values())})
    if not totals:
        return None
    algorithms, clips = case.values("algorithm"), case.values("clip")[:MOST_COLUMNS]
    figure, grid = panels(len(algorithms), len(clips), height=2.4, sharex=True, sharey=True)
    budgets = look(case.values("epsilon"))
    drawn: list[Cell] = []
    lost = {line: diverged_totals(case, line, cells) for line, cells in along.items()}
    totals = sorted({*totals, *chain(*lost.values())})
    for panel in each_panel(grid, algorithms, clips):
        for i, epsilon in enumerate(budgets.values):
            line = Line(panel.algorithm, epsilon, clip_beside(epsilon, panel.value))
            cells, colour = along.get(line, []), budgets.colour[epsilon]
            _draw_totals(panel.axes, cells, colour, budgets.marker[epsilon])
            draw_diverged(panel.axes, lost.get(line, []), colour, i)
            drawn += cells
        title = f"{panel.algorithm}, {clip_name(panel.value)}"
        panel.frame(title, totals, "iterations in total T")
    known = [cell.train_mean for cell in drawn if cell.train_mean is not None]
    untrained = scale_errors(grid, drawn, case.baseline, known)
    training = key_line("training error (mean)", "#777777", "", linestyle=":", linewidth=1)
    common = [*common_keys(untrained), training, *diverged_keys(any(lost.values()))]
    keys = [*budget_keys(case, budgets, drawn), *common]
    return finish(figure, f"{case.title}: error against iterations, {rule}", below(case), keys)


def _any_line(many: Iterable[Sequence[Cell]]) -> bool:
    return any(len(cells) > 1 for cells in many)


def _steps(cells: Sequence[Cell], lost: dict[Curve, list[int]]) -> list[int]:
    return sorted({*(cell.local_steps for cell in cells), *chain(*lost.values())})


def _draw_with_best(axes: Any, cells: Sequence[Cell], colour: Any, marker: str) -> None:
    """A line over local steps, with a ring around its lowest mean."""
    if cells:
        draw_line(axes, cells, colour, marker)
        best = optimum(cells).best
        draw_ring(axes, best.local_steps, best.mean)


def _draw_totals(axes: Any, cells: Sequence[Cell], colour: Any, marker: str) -> None:
    """A line over iterations, with a ring around its lowest mean, and the training error."""
    if not cells:
        return
    draw_line(axes, cells, colour, marker, lambda cell: cell.iterations)
    best = min(cells, key=lambda cell: (cell.mean, cell.iterations))
    draw_ring(axes, best.iterations, best.mean)
    known = [cell for cell in cells if cell.train_mean is not None]
    x, y = [cell.iterations for cell in known], [cell.train_mean for cell in known]
    axes.plot(x, y, color=colour, linestyle=":", linewidth=1)
