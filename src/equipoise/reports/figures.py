"""Test error against local steps, clip thresholds, iterations and budgets: the paper's figures, for
one case each."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from equipoise.reports.drawing import (
    clip_name,
    colours,
    finish,
    from_zero,
    markers,
    name_steps,
    panels,
    wide_span,
)
from equipoise.reports.optima import along_iterations, curves, optimum, reference_iterations
from equipoise.reports.study import Case, Cell

MOST_COLUMNS = 6
MANY = {"clip_norm": "clip thresholds", "epsilon": "budgets"}
MOST_TOLD = 10  # local steps in a map with numbers


def _x_steps(cell: Cell) -> float:
    return cell.local_steps


def _line(
    axes: Any,
    cells: Sequence[Cell],
    colour: Any,
    marker: str,
    x: Callable[[Cell], float] = _x_steps,
) -> None:
    """Mean and standard deviation over trials."""
    places, means = [x(cell) for cell in cells], [cell.mean for cell in cells]
    stds = [0.0 if math.isnan(cell.std) else cell.std for cell in cells]
    axes.plot(places, means, color=colour, marker=marker, markeredgewidth=0)
    low, high = ([m + sign * s for m, s in zip(means, stds, strict=True)] for sign in (-1, 1))
    axes.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)


def _ring(axes: Any, x: float, y: float) -> None:
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


def key_line(label: str, colour: Any, marker: str, **more: Any) -> Any:
    """A line for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker=marker, label=label, **more)


def _common_keys(untrained: bool) -> list[Any]:
    ring = key_line(
        "lowest mean", "#111111", "o", linestyle="", markersize=8, markerfacecolor="none"
    )
    return [ring, untrained_line()] if untrained else [ring]


def untrained_line() -> Any:
    return key_line("without training", "#555555", "", linestyle=(0, (4, 3)), linewidth=0.9)


def below(case: Case, band: bool = True) -> str:
    """What a figure of a case shows, and under which conditions."""
    counts = sorted({len(cell.trials) for cell in case.cells})
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    shown = f"Mean over {many} trial{'s' if counts[-1] > 1 else ''}"
    shown += ", band: ± one standard deviation" if band and counts[-1] > 1 else ""
    more = [name for name in ("clip_norm", "epsilon") if len(case.values(name)) > MOST_COLUMNS]
    cut = "".join(
        f" Only the first {MOST_COLUMNS} of {len(case.values(name))} {MANY[name]} have a panel."
        for name in more
    )
    noise = (
        "Simulation; runs of a trial share their noise, so that neighbouring curves have the "
        "same accidents."
    )
    return f"{shown}; error: {case.error_name}; {case.meaning}{v_by_budget(case)}. {noise}{cut}"


def v_by_budget(case: Case) -> str:
    """The numbers that v stands for, by budget."""
    found = {
        cell.epsilon: f"{cell.v:.2g} at ε = {cell.epsilon:g}"
        for cell in case.cells
        if cell.v is not None
    }
    return f"; v = {', '.join(found[epsilon] for epsilon in sorted(found))}" if found else ""


def error_by_steps(case: Case, iterations: int) -> Any | None:
    """Figs. 2, 6 to 9: one line per budget, one row of panels per algorithm, one column per clip
    threshold."""
    found = {key: cells for key, cells in curves(case).items() if key[3] == iterations}
    algorithms, clips = case.values("algorithm"), case.values("clip_norm")[:MOST_COLUMNS]
    if not any(len(cells) > 1 for cells in found.values()):
        return None
    figure, grid = panels(len(algorithms), len(clips), sharex=True, sharey=True)
    budgets = case.values("epsilon")
    colour, marker = colours(budgets), markers(budgets)
    steps = sorted({cell.local_steps for cells in found.values() for cell in cells})
    for row, algorithm in enumerate(algorithms):
        for column, clip in enumerate(clips):
            axes = grid[row, column]
            for epsilon in budgets:
                cells = found.get(
                    (algorithm, epsilon, math.inf if epsilon == math.inf else clip, iterations)
                )
                if cells:
                    _line(axes, cells, colour[epsilon], marker[epsilon])
                    best = optimum(cells).best
                    _ring(axes, best.local_steps, best.mean)
            _frame(
                axes,
                f"{algorithm}, {clip_name(clip)}",
                row == len(algorithms) - 1,
                column == 0,
                steps,
            )
    untrained = from_zero(grid, [cell for cells in found.values() for cell in cells], case.baseline)
    keys = [key_line(case.budget(epsilon), colour[epsilon], marker[epsilon]) for epsilon in budgets]
    heading = f"{case.title}: error against local steps, T = {iterations} iterations"
    return finish(figure, heading, below(case), [*keys, *_common_keys(untrained)])


def _frame(axes: Any, title: str, lowest: bool, leftmost: bool, steps: Sequence[int]) -> None:
    axes.set_title(title)
    name_steps(axes, steps)
    if not lowest:
        axes.set_xlabel("")
    axes.set_ylabel("test error" if leftmost else "")


def error_by_clip(case: Case) -> Any | None:
    """Fig. 4: one line per clip threshold, one column per budget."""
    iterations = reference_iterations(case)
    found = {key: cells for key, cells in curves(case).items() if key[3] == iterations}
    algorithms, clips = (
        case.values("algorithm"),
        [clip for clip in case.values("clip_norm") if clip < math.inf],
    )
    budgets = [epsilon for epsilon in case.values("epsilon") if epsilon < math.inf][:MOST_COLUMNS]
    if len(clips) < 2 or not budgets or not any(len(cells) > 1 for cells in found.values()):
        return None
    figure, grid = panels(len(algorithms), len(budgets), width=2.5, sharex=True, sharey=True)
    colour, marker = colours(clips), markers(clips)
    steps = sorted({cell.local_steps for cells in found.values() for cell in cells})
    for row, algorithm in enumerate(algorithms):
        for column, epsilon in enumerate(budgets):
            axes = grid[row, column]
            for clip in clips:
                if cells := found.get((algorithm, epsilon, clip, iterations)):
                    _line(axes, cells, colour[clip], marker[clip])
                    best = optimum(cells).best
                    _ring(axes, best.local_steps, best.mean)
            title = f"{algorithm}\n{case.budget(epsilon)}"
            _frame(axes, title, row == len(algorithms) - 1, column == 0, steps)
    untrained = from_zero(
        grid,
        [cell for key, cells in found.items() for cell in cells if key[1] in budgets],
        case.baseline,
    )
    keys = [key_line(clip_name(clip), colour[clip], marker[clip]) for clip in clips]
    heading = (
        f"{case.title}: error against local steps by clip threshold, T = {iterations} iterations"
    )
    return finish(figure, heading, below(case), [*keys, *_common_keys(untrained)])


def error_by_iterations(case: Case) -> Any | None:
    """Figs. 3 and 10: error against the total of iterations, local steps at their best; dotted: on
    training records."""
    algorithms, clips = case.values("algorithm"), case.values("clip_norm")[:MOST_COLUMNS]
    along, rule = along_iterations(case)
    totals = sorted(
        {cell.iterations for cells in along.values() for cell in cells if len(cells) > 1}
    )
    if not totals:
        return None
    figure, grid = panels(len(algorithms), len(clips), height=2.4, sharex=True, sharey=True)
    budgets = case.values("epsilon")
    colour, marker = colours(budgets), markers(budgets)
    drawn: list[Cell] = []
    for row, algorithm in enumerate(algorithms):
        for column, clip in enumerate(clips):
            axes = grid[row, column]
            for epsilon in budgets:
                cells = along.get(
                    (algorithm, epsilon, math.inf if epsilon == math.inf else clip), []
                )
                if len(cells) > 1:
                    drawn += cells
                    _line(
                        axes, cells, colour[epsilon], marker[epsilon], lambda cell: cell.iterations
                    )
                    best = min(cells, key=lambda cell: (cell.mean, cell.iterations))
                    _ring(axes, best.iterations, best.mean)
                    known = [
                        (cell.iterations, cell.train_mean)
                        for cell in cells
                        if cell.train_mean is not None
                    ]
                    axes.plot(
                        *zip(*known, strict=True), color=colour[epsilon], linestyle=":", linewidth=1
                    ) if known else None
            _frame(
                axes,
                f"{algorithm}, {clip_name(clip)}",
                row == len(algorithms) - 1,
                column == 0,
                totals,
            )
            if row == len(algorithms) - 1:
                axes.set_xlabel("iterations in total T")
    untrained = from_zero(grid, drawn, case.baseline, [cell.train_mean or 0.0 for cell in drawn])
    keys = [key_line(case.budget(epsilon), colour[epsilon], marker[epsilon]) for epsilon in budgets]
    keys += [
        *_common_keys(untrained),
        key_line("training error (mean)", "#777777", "", linestyle=":", linewidth=1),
    ]
    heading = f"{case.title}: error against iterations, {rule}"
    return finish(figure, heading, below(case), keys)


def surface(case: Case) -> Any | None:
    """The trade-off as a map: mean error over local steps and budget."""
    from matplotlib.colors import LogNorm, Normalize

    iterations = reference_iterations(case)
    found = {key: cells for key, cells in curves(case).items() if key[3] == iterations}
    algorithms, clips = case.values("algorithm"), case.values("clip_norm")[:MOST_COLUMNS]
    budgets = case.values("epsilon")
    steps = sorted({cell.local_steps for cells in found.values() for cell in cells})
    if len(budgets) < 2 or len(steps) < 2:
        return None
    told = len(steps) <= MOST_TOLD
    wide = max(2.7, 0.36 * len(steps) + 0.6) if told else 3.4
    figure, grid = panels(
        len(algorithms),
        len(clips),
        width=wide,
        height=0.36 * len(budgets) + 0.7,
        sharex=True,
        sharey=True,
    )
    means = [cell.mean for cells in found.values() for cell in cells]
    low, high = min(means), max(means)
    shade = LogNorm(low, high) if wide_span(means) else Normalize(low, high)
    digits, image = 2 if high - low > 0.1 else 3, None
    for row, algorithm in enumerate(algorithms):
        for column, clip in enumerate(clips):
            axes = grid[row, column]
            values = [[math.nan] * len(steps) for _ in budgets]
            for y, epsilon in enumerate(budgets):
                cells = found.get(
                    (algorithm, epsilon, math.inf if epsilon == math.inf else clip, iterations), []
                )
                for cell in cells:
                    values[y][steps.index(cell.local_steps)] = cell.mean
                    light = shade(cell.mean) > 0.55
                    text = _short_error(cell.mean, digits) if told else ""
                    at = (steps.index(cell.local_steps), y)
                    axes.annotate(
                        text,
                        at,
                        ha="center",
                        va="center",
                        fontsize=8,
                        color="white" if light else "black",
                    )
                if cells:
                    axes.add_patch(_box(steps.index(optimum(cells).best.local_steps), y))
            image = axes.imshow(values, cmap="viridis_r", norm=shade, aspect="auto", origin="lower")
            every = range(0, len(steps), 1 if told else 2)
            axes.set_xticks(
                every, [str(steps[i]) for i in every], rotation=90 if max(steps) > 999 else 0
            )
            axes.set_yticks(
                range(len(budgets)), [_short_budget(case, epsilon) for epsilon in budgets]
            )
            axes.grid(False)
            axes.set_title(f"{algorithm}, {clip_name(clip)}")
            axes.set_xlabel("local steps τ" if row == len(algorithms) - 1 else "")
            axes.set_ylabel("budget ε" if column == 0 else "")
    figure.colorbar(
        image, ax=grid, label="mean test error", shrink=0.8, format=lambda error, _: f"{error:g}"
    )
    heading = (
        f"{case.title}: error over local steps and budget, T = {iterations} iterations "
        f"(box: lowest in its row)"
    )
    return finish(figure, heading, below(case, band=False))


def _short_error(error: float, digits: int) -> str:
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
