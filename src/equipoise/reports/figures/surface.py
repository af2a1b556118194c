"""The trade-off as a map: mean error over local steps and budget."""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from equipoise.reports.drawing import clip_name, finish, panels, wide_span
from equipoise.reports.figures.common import (
    MOST_COLUMNS,
    Panel,
    below,
    clip_beside,
    each_panel,
    key_line,
)
from equipoise.reports.optima import (
    Curve,
    curves,
    diverged_steps,
    optimum,
    reference_iterations,
)
from equipoise.reports.study import Case, Cell, joined

CROSS = "×"
NEVER_RUN: dict[str, Any] = {
    "facecolor": "#ffffff",
    "edgecolor": "#bbbbbb",
    "hatch": "////",
    "linewidth": 0,
}
MOST_NUMBERED = 10  # local steps in a map with numbers


class Map(NamedTuple):
    """What all panels of a map share."""

    case: Case
    iterations: int
    by_curve: dict[Curve, list[Cell]]
    lost: dict[Curve, list[int]]
    budgets: list[float]
    steps: list[int]
    shade: Any

    @property
    def numbered(self) -> bool:
        return len(self.steps) <= MOST_NUMBERED

    @property
    def digits(self) -> int:
        return 2 if self.shade.vmax - self.shade.vmin > 0.1 else 3

    @property
    def width(self) -> float:
        """Of a panel, in inches."""
        return max(2.7, 0.36 * len(self.steps) + 0.6) if self.numbered else 3.4

    @property
    def height(self) -> float:
        return 0.36 * len(self.budgets) + 0.7

    def curve(self, panel: Panel, epsilon: float) -> Curve:
        clip = clip_beside(epsilon, panel.value)
        return Curve(panel.algorithm, epsilon, clip, self.iterations)


def surface(case: Case) -> Any | None:
    """Mean error over local steps and budget, one panel per algorithm and clip threshold."""
    iterations = reference_iterations(case)
    by_curve = curves(case, iterations)
    drawn = joined(by_curve.values())
    lost = diverged_steps(case, iterations)
    steps = sorted({*(cell.local_steps for cell in drawn), *chain(*lost.values())})
    budgets = case.values("epsilon")
    if len(budgets) < 2 or len(steps) < 2:
        return None
    shade = _shade([cell.mean for cell in drawn])
    shown = Map(case, iterations, by_curve, lost, budgets, steps, shade)
    algorithms, clips = case.values("algorithm"), case.values("clip")[:MOST_COLUMNS]
    figure, grid = panels(
        len(algorithms), len(clips), shown.width, shown.height, sharex=True, sharey=True
    )
    images = [_draw_panel(shown, panel) for panel in each_panel(grid, algorithms, clips)]
    figure.colorbar(
        images[-1],
        ax=grid,
        label="mean test error",
        shrink=0.8,
        format=lambda error, _: f"{error:g}",
    )
    heading = (
        f"{case.title}: error over local steps and budget, T = {iterations} iterations "
        f"(box: lowest in its row)"
    )
    return finish(figure, heading, below(case, band=False), _keys(grid, lost))


def _keys(grid: Any, lost: dict[Curve, list[int]]) -> list[Any]:
    """What fields without a colour mean, as far as there are any."""
    from matplotlib.patches import Patch

    colourless = sum(int(axes.images[0].get_array().mask.sum()) for axes in grid.flat)
    crosses = sum(text.get_text() == CROSS for axes in grid.flat for text in axes.texts)
    diverged = key_line("diverged in a trial", "#555555", "x", linestyle="")
    never = Patch(**NEVER_RUN, label="never run")
    return [*([diverged] if lost else []), *([never] if colourless > crosses else [])]


def _shade(means: Sequence[float]) -> Any:
    from matplotlib.colors import LogNorm, Normalize

    scale = LogNorm if wide_span(means) else Normalize
    return scale(min(means), max(means))


def _draw_panel(shown: Map, panel: Panel) -> Any:
    """The colours of a panel, its numbers and boxes, and crosses where runs diverged."""
    values = [[math.nan] * len(shown.steps) for _ in shown.budgets]
    panel.axes.add_patch(_fields(shown))  # seen wherever nothing lies above it
    for y, epsilon in enumerate(shown.budgets):
        curve = shown.curve(panel, epsilon)
        for steps in shown.lost.get(curve, []):
            _draw_cross(panel.axes, shown.steps.index(steps), y)
        cells = shown.by_curve.get(curve, [])
        for cell in cells:
            x = shown.steps.index(cell.local_steps)
            values[y][x] = cell.mean
            _write_number(shown, panel.axes, cell.mean, (x, y))
        if cells:
            best = shown.steps.index(optimum(cells).best.local_steps)
            panel.axes.add_patch(_box(best, y))
    image = panel.axes.imshow(
        values, cmap="viridis_r", norm=shown.shade, aspect="auto", origin="lower"
    )
    _frame(shown, panel)
    return image


def _fields(shown: Map) -> Any:
    """All fields of a panel, as if nothing had been run."""
    from matplotlib.patches import Rectangle

    return Rectangle((-0.5, -0.5), len(shown.steps), len(shown.budgets), zorder=0, **NEVER_RUN)


def _draw_cross(axes: Any, x: int, y: int) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="#e4e4e4", zorder=1))
    axes.annotate(CROSS, (x, y), ha="center", va="center", fontsize=9, color="#555555")


def _write_number(shown: Map, axes: Any, error: float, at: tuple[int, int]) -> None:
    if shown.numbered:
        colour = "white" if shown.shade(error) > 0.55 else "black"
        text = short_error(error, shown.digits)
        axes.annotate(text, at, ha="center", va="center", fontsize=8, color=colour)


def _frame(shown: Map, panel: Panel) -> None:
    axes, steps = panel.axes, shown.steps
    ticks = range(0, len(steps), 1 if shown.numbered else 2)
    turned = 90 if max(steps) > 999 else 0
    axes.set_xticks(ticks, [str(steps[i]) for i in ticks], rotation=turned)
    names = [_short_budget(shown.case, epsilon) for epsilon in shown.budgets]
    axes.set_yticks(range(len(names)), names)
    axes.grid(False)
    axes.set_title(f"{panel.algorithm}, {clip_name(panel.value)}")
    axes.set_xlabel("local steps τ" if panel.lowest else "")
    axes.set_ylabel("budget ε" if panel.leftmost else "")


def short_error(error: float, digits: int) -> str:
    """A few characters: .14, 1.38, 17.1, 176, 3e4."""
    if 0 < error < 0.5 * 10**-digits or error >= 1000:
        return f"{error:.0e}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return f"{error:.3g}" if error >= 10 else f"{error:.{digits}f}".removeprefix("0")


def _short_budget(case: Case, epsilon: float) -> str:
    return (
        case.budget(epsilon)
        .removeprefix("ε = ")
        .replace(" (not private)", "")
        .replace(" (", "\n(")
        .replace("ε = ", "")
    )


def _box(x: int, y: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (x - 0.46, y - 0.46), 0.92, 0.92, fill=False, edgecolor="#D55E00", linewidth=1.8, zorder=4
    )
