"""Test error against local steps, clip thresholds and iterations: the paper's figures, for one case
each."""

import math
from collections.abc import Iterable
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
    each_panel,
    key_line,
    look,
    training_key,
)
from equipoise.reports.figures.strands import (
    Strand,
    any_diverged,
    cells_of,
    draw_over_iterations,
    draw_over_steps,
    draw_strands,
    over_iterations,
    over_steps,
    places_of,
)
from equipoise.reports.optima import Line, reference_iterations
from equipoise.reports.study import Case


def error_by_steps(case: Case, iterations: int) -> Any | None:
    """Figs. 2, 6 to 9: one line per budget, one row of panels per algorithm, one column per clip
    threshold."""
    strands = over_steps(case, iterations)
    if not _any_line(strands.values()):
        return None
    algorithms, clips = case.values("algorithm"), case.values("clip")[:MOST_COLUMNS]
    figure, grid = panels(len(algorithms), len(clips), sharex=True, sharey=True)
    budgets, steps = look(case.values("epsilon")), places_of(strands.values(), "local_steps")
    for panel in each_panel(grid, algorithms, clips):
        lines = lines_of(panel.algorithm, budgets, panel.value)
        draw_strands(panel.axes, strands, lines, budgets, draw_over_steps)
        panel.frame(f"{panel.algorithm}, {clip_name(panel.value)}", steps)
    drawn = cells_of(strands.values())
    untrained = scale_errors(grid, drawn, case.baseline)
    heading = f"{case.title}: error against local steps, T = {iterations} iterations"
    common = [*common_keys(untrained), *diverged_keys(any_diverged(strands.values()))]
    keys = [*budget_keys(case, budgets, drawn), *common]
    return finish(figure, heading, below(case), keys)


def error_by_clip(case: Case) -> Any | None:
    """Fig. 4: one line per clip threshold, one column per budget."""
    iterations = reference_iterations(case)
    strands = over_steps(case, iterations)
    clips, budgets = look(_finite(case, "clip")), _finite(case, "epsilon")[:MOST_COLUMNS]
    if len(clips.values) < 2 or not budgets or not _any_line(strands.values()):
        return None
    shown = [strand for line, strand in strands.items() if line.epsilon in budgets]
    algorithms, steps = case.values("algorithm"), places_of(shown, "local_steps")
    figure, grid = panels(len(algorithms), len(budgets), width=2.5, sharex=True, sharey=True)
    for panel in each_panel(grid, algorithms, budgets):
        lines = {clip: Line(panel.algorithm, panel.value, clip) for clip in clips.values}
        draw_strands(panel.axes, strands, lines, clips, draw_over_steps)
        panel.frame(f"{panel.algorithm}\n{case.budget(panel.value)}", steps)
    untrained = scale_errors(grid, cells_of(shown), case.baseline)
    keys = [*_clip_keys(clips), *common_keys(untrained), *diverged_keys(any_diverged(shown))]
    heading = (
        f"{case.title}: error against local steps by clip threshold, T = {iterations} iterations"
    )
    return finish(figure, heading, below(case), keys)


def error_by_iterations(case: Case) -> Any | None:
    """Figs. 3 and 10: error against the total of iterations, local steps at their best; dotted: on
    training records."""
    strands, rule = over_iterations(case)
    if not strands:
        return None
    algorithms, clips = case.values("algorithm"), case.values("clip")[:MOST_COLUMNS]
    figure, grid = panels(len(algorithms), len(clips), height=2.4, sharex=True, sharey=True)
    budgets, totals = look(case.values("epsilon")), places_of(strands.values(), "iterations")
    for panel in each_panel(grid, algorithms, clips):
        lines = lines_of(panel.algorithm, budgets, panel.value)
        draw_strands(panel.axes, strands, lines, budgets, draw_over_iterations)
        title = f"{panel.algorithm}, {clip_name(panel.value)}"
        panel.frame(title, totals, "iterations in total T")
    drawn = cells_of(strands.values())
    known = [cell.train_mean for cell in drawn if cell.train_mean is not None]
    untrained = scale_errors(grid, drawn, case.baseline, known)
    lost = diverged_keys(any_diverged(strands.values()))
    keys = [*budget_keys(case, budgets, drawn), *common_keys(untrained), training_key(), *lost]
    return finish(figure, f"{case.title}: error against iterations, {rule}", below(case), keys)


def lines_of(algorithm: str, budgets: Look, clip: float) -> dict[float, Line]:
    """What a panel for this clip shows of every budget: without noise there is no clip."""
    return {
        epsilon: Line(algorithm, epsilon, clip_beside(epsilon, clip)) for epsilon in budgets.values
    }


def _any_line(strands: Iterable[Strand]) -> bool:
    return any(len(strand.cells) > 1 for strand in strands)


def _finite(case: Case, axis: str) -> list[float]:
    return [value for value in case.values(axis) if value < math.inf]


def _clip_keys(clips: Look) -> list[Any]:
    return [
        key_line(clip_name(clip), clips.colour[clip], clips.marker[clip]) for clip in clips.values
    ]
