"""Cases side by side: one clip threshold, a row of panels for every algorithm, a column for every
task, as the paper shows them, or for every schedule of one task."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from equipoise.reports.drawing import clip_name, finish, name_steps, panels, scale_errors
from equipoise.reports.figures.common import (
    clip_beside,
    common_keys,
    diverged_keys,
    key_line,
    look,
    training_key,
)
from equipoise.reports.figures.lines import lines_of
from equipoise.reports.figures.strands import (
    Draw,
    Strands,
    any_diverged,
    cells_of,
    draw_over_iterations,
    draw_over_steps,
    draw_strands,
    over_iterations,
    over_steps,
    places_of,
)
from equipoise.reports.optima import reference_iterations
from equipoise.reports.study import Case, shared_meaning, task_name


class Column(NamedTuple):
    """The panels of a case."""

    case: Case
    title: str
    strands: Strands
    """Those of the clip threshold of the figure, and those without noise."""


class Across(NamedTuple):
    """What runs from left to right in every panel."""

    axis: str
    label: str
    draw: Draw


STEPS = Across("local_steps", "local steps τ", draw_over_steps)
ITERATIONS = Across("iterations", "iterations in total T", draw_over_iterations)


def common_clips(cases: Sequence[Case]) -> list[float]:
    """The clip thresholds with which at least two of the cases were run with noise."""
    tried = [{cell.clip for cell in case.private} - {math.inf} for case in cases]
    return [clip for clip in sorted(set().union(*tried)) if sum(clip in some for some in tried) > 1]


def steps_by_task(cases: Sequence[Case], clip: float) -> Any | None:
    """Figs. 2, 6 and 7: error against local steps, one line per budget. The cases are of different
    tasks and one convention."""
    columns = []
    for case in cases:
        T = reference_iterations(case)
        columns.append(Column(case, f"T = {T}", _with_clip(over_steps(case, T), clip)))
    return _figure("Error against local steps", columns, clip, STEPS)


def iterations_by_task(cases: Sequence[Case], clip: float) -> Any | None:
    """Figs. 3 and 10: error against iterations, local steps at their best."""
    columns = []
    for case in cases:
        strands, rule = over_iterations(case)
        columns.append(Column(case, rule, _with_clip(strands, clip)))
    return _figure("Error against iterations", columns, clip, ITERATIONS)


def steps_by_schedule(cases: Sequence[Case], clip: float) -> Any | None:
    """Periodic communication beside Algorithm 2's coin, for one task: there the local steps of a
    round are those that are expected."""
    columns = []
    for case in cases:
        strands = _with_clip(over_steps(case, reference_iterations(case)), clip)
        columns.append(Column(case, f"{case.schedule}, T = {reference_iterations(case)}", strands))
    return _figure("Error against local steps, by schedule", columns, clip, STEPS)


def _with_clip(strands: Strands, clip: float) -> Strands:
    return {
        line: strand
        for line, strand in strands.items()
        if line.clip == clip_beside(line.epsilon, clip)
    }


def _figure(shows: str, columns: Sequence[Column], clip: float, across: Across) -> Any | None:
    """One figure of all columns that have a line with noise; None if these are fewer than two."""
    columns = [column for column in columns if _has_line(column.strands)]
    if len(columns) < 2:
        return None
    algorithms = sorted({line.algorithm for column in columns for line in column.strands})
    budgets = look(sorted({line.epsilon for column in columns for line in column.strands}))
    figure, grid = panels(len(algorithms), len(columns), sharex="col", sharey="col")
    untrained = False
    for column, of_task in zip(columns, grid.T, strict=True):
        marks = places_of(column.strands.values(), across.axis)
        for algorithm, axes in zip(algorithms, of_task, strict=True):
            lines = lines_of(algorithm, budgets, clip)
            draw_strands(axes, column.strands, lines, budgets, across.draw)
            axes.set_title(f"{task_name(column.case.task)}, {algorithm}\n{column.title}")
            name_steps(axes, marks, across.label if axes is of_task[-1] else "")
        untrained |= _scaled(of_task, column, across)
    for axes in grid[:, 0]:
        axes.set_ylabel("test error")
    strands = [strand for column in columns for strand in column.strands.values()]
    keys = [
        *(key_line(_budget(e), budgets.colour[e], budgets.marker[e]) for e in budgets.values),
        *common_keys(untrained),
        *([training_key()] if across is ITERATIONS else []),
        *diverged_keys(any_diverged(strands)),
    ]
    heading = f"{shows}, {clip_name(clip)} ({columns[0].case.convention})"
    return finish(figure, heading, _below(columns), keys, 9)


def _has_line(strands: Strands) -> bool:
    return any(
        len(strand.cells) > 1 and line.epsilon < math.inf for line, strand in strands.items()
    )


def _scaled(of_task: Any, column: Column, across: Across) -> bool:
    """Give the panels of a task their errors; whether the error without training is seen."""
    drawn = cells_of(column.strands.values())
    known = [cell.train_mean for cell in drawn if cell.train_mean is not None]
    return scale_errors(of_task, drawn, column.case.baseline, known if across is ITERATIONS else ())


def _budget(epsilon: float) -> str:
    return "ε = ∞ (not private)" if epsilon == math.inf else f"ε = {epsilon:g}"


def _below(columns: Sequence[Column]) -> str:
    counts = {len(c.trials) for column in columns for c in cells_of(column.strands.values())}
    trials = " to ".join(map(str, sorted({min(counts), max(counts)})))
    meaning = shared_meaning({column.case.task: column.case.meaning for column in columns})
    return (
        f"Mean over {trials} trials, band: ± one standard deviation; {meaning}. "
        f"{_spent(columns)}Simulation; runs of one trial share noise, so their errors are "
        "correlated."
    )


def _spent(columns: Sequence[Column]) -> str:
    """What the budgets really spend, where they are only labels."""
    cases = [column.case for column in columns if column.case.nominal]
    if not cases:
        return ""
    of_tasks = []
    for case in cases:
        budgets = [epsilon for epsilon in case.values("epsilon") if epsilon < math.inf]
        spent = ", ".join(case.budget(epsilon).removeprefix("ε = ") for epsilon in budgets)
        of_tasks.append(f"{task_name(case.task)}: {spent}")
    return f"ε of {'; '.join(of_tasks)}. "
