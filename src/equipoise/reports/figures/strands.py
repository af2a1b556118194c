"""What a panel shows of one algorithm, budget and clip threshold: its cells along local steps or
along iterations, and where runs diverged."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from equipoise.reports.figures.common import (
    Look,
    draw_diverged,
    draw_line,
    draw_ring,
)
from equipoise.reports.optima import (
    Line,
    along_iterations,
    curves,
    diverged_steps,
    diverged_totals,
    optimum,
)
from equipoise.reports.study import Case, Cell


class Strand(NamedTuple):
    cells: Sequence[Cell]
    diverged: Sequence[int]
    """Local steps, or totals of iterations."""


Strands = Mapping[Line, Strand]
Draw = Callable[[Any, Sequence[Cell], Any, str], None]


def over_steps(case: Case, iterations: int) -> Strands:
    by_curve, lost = curves(case, iterations), diverged_steps(case, iterations)
    return {
        Line(*curve[:3]): Strand(by_curve.get(curve, []), lost.get(curve, []))
        for curve in sorted({*by_curve, *lost})
    }


def over_iterations(case: Case) -> tuple[Strands, str]:
    """With local steps at their best; and what that means."""
    along, rule = along_iterations(case)
    return {
        line: Strand(cells, diverged_totals(case, line, cells))
        for line, cells in along.items()
        if len(cells) > 1
    }, rule


def cells_of(strands: Iterable[Strand]) -> list[Cell]:
    return [*chain.from_iterable(strand.cells for strand in strands)]


def any_diverged(strands: Iterable[Strand]) -> bool:
    return any(strand.diverged for strand in strands)


def places_of(strands: Iterable[Strand], axis: str) -> list[int]:
    """All values of the axis, "local_steps" or "iterations", that have a mark."""
    strands = list(strands)
    known = {getattr(cell, axis) for cell in cells_of(strands)}
    return sorted(known.union(*(strand.diverged for strand in strands)))


def draw_strands(
    axes: Any, strands: Strands, lines: Mapping[float, Line], looks: Look, draw: Draw
) -> None:
    """One strand for each value that has a look of its own: `lines` says which."""
    for row, value in enumerate(looks.values):
        strand = strands.get(lines[value], Strand([], []))
        draw(axes, strand.cells, looks.colour[value], looks.marker[value])
        draw_diverged(axes, strand.diverged, looks.colour[value], row)


def draw_over_steps(axes: Any, cells: Sequence[Cell], colour: Any, marker: str) -> None:
    """With a ring around the lowest mean."""
    if cells:
        draw_line(axes, cells, colour, marker)
        best = optimum(cells).best
        draw_ring(axes, best.local_steps, best.mean)


def draw_over_iterations(axes: Any, cells: Sequence[Cell], colour: Any, marker: str) -> None:
    """With a ring around the lowest mean; and the training error, dotted."""
    if not cells:
        return
    draw_line(axes, cells, colour, marker, lambda cell: cell.iterations)
    best = min(cells, key=lambda cell: (cell.mean, cell.iterations))
    draw_ring(axes, best.iterations, best.mean)
    known = [cell for cell in cells if cell.train_mean is not None]
    x, y = [cell.iterations for cell in known], [cell.train_mean for cell in known]
    axes.plot(x, y, color=colour, linestyle=":", linewidth=1)
