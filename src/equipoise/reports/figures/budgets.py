"""What a budget means: Lemma 1's label beside the exact epsilon, and one client beside one
record."""

import math
from collections.abc import Sequence
from typing import Any

from equipoise.reports.drawing import MARKERS, OKABE_ITO, finish, panels, scale_errors
from equipoise.reports.figures.common import DASHED, key_line, spread, untrained_key
from equipoise.reports.optima import curves, optimum, reference_iterations
from equipoise.reports.study import Case, Cell, number, task_name

STYLES = ("-", "--", ":", "-.")


def nominal_and_exact(cases: Sequence[Case]) -> Any | None:
    """What Lemma 1 really spends, beside its label. The cases are those of one task."""
    nominal = [case for case in cases if case.nominal and case.private]
    if not nominal:
        return None
    figure, grid = panels(1, 1, width=5.6, height=3.4)
    axes, keys = grid[0, 0], []
    for i, case in enumerate(nominal):
        colour, marker = OKABE_ITO[i % len(OKABE_ITO)], MARKERS[i % len(MARKERS)]
        _draw_spent(axes, case, colour, marker)
        keys.append(key_line(case.convention, colour, marker))
    _draw_equality(axes, [pair for case in nominal for pair in _spent(case)])
    keys.append(key_line("exact ε = nominal ε", "#555555", "", linestyle=DASHED, linewidth=1))
    heading = f"{task_name(nominal[0].task)}: the ε that Lemma 1 states, and the ε that is spent"
    words = f"Above the dashed line a run spends more than its label says. {_meanings(nominal)}."
    return finish(figure, heading, words, keys)


def _meanings(cases: Sequence[Case]) -> str:
    return " | ".join(dict.fromkeys(case.meaning for case in cases))


def _spent(case: Case) -> list[tuple[float, float]]:
    """Nominal and exact epsilon of the private cells, sorted."""
    return sorted({(cell.epsilon, cell.epsilon_spent) for cell in case.private})


def _draw_equality(axes: Any, spent: Sequence[tuple[float, float]]) -> None:
    """Where a label would be true; and the scales."""
    labels = sorted({label for label, _ in spent})
    ends = [min(min(pair) for pair in spent) * 0.8, labels[-1] * 1.3]
    axes.plot(ends, ends, color="#555555", linestyle=DASHED, linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(labels, [f"{label:g}" for label in labels])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    axes.set_xlim(labels[0] * 0.8, labels[-1] * 1.35)
    axes.set_xlabel("nominal ε, the label of the run")
    axes.set_ylabel("exact ε that is spent")


def _draw_spent(axes: Any, case: Case, colour: Any, marker: str) -> None:
    spent = _spent(case)
    axes.plot(*zip(*spent, strict=True), color=colour, marker=marker, markersize=6, linestyle=":")
    v = {cell.epsilon: f", v = {cell.v:.2g}" for cell in case.cells if cell.v is not None}
    last = spent[-1][0] if len(spent) > 1 else None
    for label, exact in dict(spent).items():
        side, place = ("right", (-2, 9)) if label == last else ("left", (6, -13))
        axes.annotate(
            number(exact) + v.get(label, ""),
            (label, exact),
            place,
            textcoords="offset points",
            fontsize=8,
            color=colour,
            ha=side,
        )


def units(cases: Sequence[Case]) -> Any | None:
    """One client against one record as what is protected, each in a panel of its own. The cases are
    those of one task."""
    exact = [case for case in cases if case.private and not case.nominal]
    by_unit = [_with_unit(exact, "client"), _with_unit(exact, "record")]
    if not all(by_unit):
        return None
    figure, grid = panels(1, 2, width=3.5, height=3.0, sharey=True)
    keys: dict[str, Any] = {}
    drawn: list[Cell] = []
    for axes, alike in zip(grid[0], by_unit, strict=True):
        drawn += _draw_unit(axes, alike, keys)
    grid[0, 0].set_ylabel("test error, best τ and C")
    if scale_errors(grid, drawn, cases[0].baseline):
        keys["without training"] = untrained_key()
    warning = (
        "An ε for a client and the same ε for a record are different promises; with replace-one "
        f"neighbours and the same trust the client's is the stronger. {_meanings(exact)}."
    )
    heading = f"{task_name(cases[0].task)}: whom the budget protects"
    return finish(figure, heading, warning, list(keys.values()), 2)


def _with_unit(cases: Sequence[Case], unit: str) -> list[Case]:
    return [case for case in cases if case.unit == unit]


def _draw_unit(axes: Any, alike: Sequence[Case], keys: dict[str, Any]) -> list[Cell]:
    """The panel of one unit, which all these cases have; the cells drawn."""
    drawn: list[Cell] = []
    for i, case in enumerate(alike):
        drawn += _draw_best(axes, case, MARKERS[i % len(MARKERS)], keys)
    budgets = sorted({cell.epsilon for cell in drawn})
    axes.set_xscale("log")
    axes.set_xticks(budgets, [f"{epsilon:g}" for epsilon in budgets])
    axes.minorticks_off()
    totals = sorted({reference_iterations(case) for case in alike})
    title = f"protected: one {alike[0].unit} (T = {', '.join(map(str, totals))})"
    axes.set_title(title, fontweight="bold")
    axes.set_xlabel(f"ε for one {alike[0].unit}")
    return drawn


def _draw_best(axes: Any, case: Case, marker: str, keys: dict[str, Any]) -> list[Cell]:
    """A line for every algorithm that was run with noise, and its key; the cells drawn."""
    drawn: list[Cell] = []
    for j, algorithm in enumerate(case.values("algorithm")):
        best = best_by_budget(case, algorithm)
        if not best:
            continue
        colour, style = OKABE_ITO[j % len(OKABE_ITO)], STYLES[j % len(STYLES)]
        axes.errorbar(
            [cell.epsilon for cell in best],
            [cell.mean for cell in best],
            [spread(cell) for cell in best],
            color=colour,
            marker=marker,
            capsize=2,
            linestyle=style,
        )
        label = f"{algorithm}, {case.convention}"
        keys[label] = key_line(label, colour, marker, linestyle=style)
        drawn += best
    return drawn


def best_by_budget(case: Case, algorithm: str) -> list[Cell]:
    """The cell with the lowest mean at each private budget, over local steps and clips at the
    reference iterations."""
    best: dict[float, Cell] = {}
    for curve, cells in curves(case, reference_iterations(case)).items():
        if curve.algorithm == algorithm and curve.epsilon < math.inf:
            before = [best[curve.epsilon]] if curve.epsilon in best else []
            best[curve.epsilon] = optimum([*cells, *before]).best
    return [cell for _, cell in sorted(best.items())]
