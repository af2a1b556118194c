"""What the figures of a case share: lines and rings, panels, keys of the legend, the words below
the heading."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from equipoise.reports.drawing import colours, markers, name_steps
from equipoise.reports.study import Case, Cell

MOST_COLUMNS = 6
MANY = {"clip": "clip thresholds", "epsilon": "budgets"}
DASHED = (0, (4, 3))


class Look(NamedTuple):
    """Colour and mark for every value that has a line of its own."""

    values: list[float]
    colour: dict[float, Any]
    marker: dict[float, str]


def look(values: list[float]) -> Look:
    return Look(values, colours(values), markers(values))


class Panel(NamedTuple):
    """One panel of a figure with a row for every algorithm."""

    axes: Any
    algorithm: str
    value: float
    """What its column stands for: a clip threshold, or a budget."""
    lowest: bool
    leftmost: bool

    def frame(self, title: str, steps: Sequence[int], x_label: str = "local steps τ") -> None:
        self.axes.set_title(title)
        name_steps(self.axes, steps, x_label if self.lowest else "")
        self.axes.set_ylabel("test error" if self.leftmost else "")


def each_panel(grid: Any, algorithms: Sequence[str], columns: Sequence[float]) -> Iterator[Panel]:
    for row, algorithm in enumerate(algorithms):
        for column, value in enumerate(columns):
            lowest = row == len(algorithms) - 1
            yield Panel(grid[row, column], algorithm, value, lowest, column == 0)


def clip_beside(epsilon: float, clip: float) -> float:
    """The clip of the runs that a panel for this clip shows: without noise there is none."""
    return math.inf if epsilon == math.inf else clip


def tau(cell: Cell) -> float:
    return cell.local_steps


def draw_line(
    axes: Any,
    cells: Sequence[Cell],
    colour: Any,
    marker: str,
    x: Callable[[Cell], float] = tau,
) -> None:
    """Mean and standard deviation over trials."""
    places, means = [x(cell) for cell in cells], [cell.mean for cell in cells]
    axes.plot(places, means, color=colour, marker=marker, markeredgewidth=0)
    low = [cell.mean - spread(cell) for cell in cells]
    high = [cell.mean + spread(cell) for cell in cells]
    axes.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)


def spread(cell: Cell) -> float:
    """The standard deviation as a figure shows it: nothing where it is not known."""
    return 0.0 if math.isnan(cell.std) else cell.std


def draw_ring(axes: Any, x: float, y: float) -> None:
    axes.plot(
        [x],
        [y],
        marker="o",
        markersize=9,
        markerfacecolor="none",
        markeredgecolor="#111111",
        markeredgewidth=1.1,
        zorder=5,
    )


def draw_diverged(axes: Any, places: Sequence[float], colour: Any, row: int) -> None:
    """Crosses at the top edge, where runs diverged; lines of other colours have other rows."""
    height = [0.97 - 0.055 * row] * len(places)
    across = axes.get_xaxis_transform()
    axes.plot(places, height, "x", color=colour, transform=across, markersize=5, zorder=6)


def diverged_keys(any_diverged: bool) -> list[Any]:
    label = "diverged (no mark: never run)"
    return [key_line(label, "#555555", "x", linestyle="", markersize=5)] if any_diverged else []


def key_line(label: str, colour: Any, marker: str, **more: Any) -> Any:
    """A line for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker=marker, label=label, **more)


def budget_keys(case: Case, budgets: Look, drawn: Sequence[Cell]) -> list[Any]:
    """A key for each budget that has a line."""
    shown = {cell.epsilon for cell in drawn}
    return [
        key_line(case.budget(epsilon), budgets.colour[epsilon], budgets.marker[epsilon])
        for epsilon in budgets.values
        if epsilon in shown
    ]


def common_keys(untrained: bool) -> list[Any]:
    ring = key_line(
        "lowest mean", "#111111", "o", linestyle="", markersize=8, markerfacecolor="none"
    )
    return [ring, untrained_key()] if untrained else [ring]


def untrained_key() -> Any:
    return key_line("without training", "#555555", "", linestyle=DASHED, linewidth=0.9)


def training_key() -> Any:
    return key_line("training error (mean)", "#777777", "", linestyle=":", linewidth=1)


def below(case: Case, band: bool = True) -> str:
    """What a figure of a case shows, and under which conditions."""
    shown = f"{_mean_over(case, band)}; error: {case.error_name}"
    noise = "Simulation; runs of one trial share noise, so their errors are correlated."
    return f"{shown}; {case.meaning}{v_by_budget(case)}. {noise}{_left_out(case)}"


def _mean_over(case: Case, band: bool) -> str:
    counts = sorted({len(cell.trials) for cell in case.cells})
    if counts[-1] == 1:
        return "One trial"
    many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"Mean over {many} trials" + (", band: ± one standard deviation" if band else "")


def _left_out(case: Case) -> str:
    return "".join(
        f" Only the first {MOST_COLUMNS} of {len(case.values(name))} {many} have a panel."
        for name, many in MANY.items()
        if len(case.values(name)) > MOST_COLUMNS
    )


def v_by_budget(case: Case) -> str:
    """The numbers that v stands for, by budget."""
    by_budget = {cell.epsilon: cell.v for cell in case.cells if cell.v is not None}
    numbers = [f"{by_budget[epsilon]:.2g} at ε = {epsilon:g}" for epsilon in sorted(by_budget)]
    return f"; v = {', '.join(numbers)}" if numbers else ""
