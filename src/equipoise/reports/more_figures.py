"""Optimal local steps against the clip threshold (Fig. 5); and beyond the paper: exact budgets,
units, the way there."""

import math
from pathlib import Path
from typing import Any

from equipoise.reports.drawing import (
    MARKERS,
    OKABE_ITO,
    colours,
    finish,
    from_zero,
    markers,
    panels,
)
from equipoise.reports.figures import MOST_COLUMNS, below, key_line, untrained_line
from equipoise.reports.optima import Law, curves, optimum, r2, reference_iterations
from equipoise.reports.study import Case, Cell, number


def steps_by_clip(laws: list[Law]) -> Any | None:
    """Fig. 5: mean optimal local steps of a group against C, with both fits. The laws are those of
    one convention."""
    groups, algorithms = (
        sorted({law.group for law in laws}),
        sorted({law.algorithm for law in laws}),
    )
    if not laws:
        return None
    figure, grid = panels(len(groups), len(algorithms), width=3.4, height=2.7)
    for axes in grid.flat:
        axes.set_visible(False)
    for law in laws:
        axes = grid[groups.index(law.group), algorithms.index(law.algorithm)]
        axes.set_visible(True)
        spread = [
            0.0 if math.isnan(variance) else math.sqrt(variance) for variance in law.variances
        ]
        axes.errorbar(
            law.clips,
            law.means,
            spread,
            color="#111111",
            marker="o",
            linestyle="",
            capsize=3,
            zorder=4,
        )
        x = [law.clips[-1] * i / 200 for i in range(201)]
        for fit, at, colour, style in (
            (law.linear, lambda c: c, *LINEAR),
            (law.root, math.sqrt, *ROOT),
        ):
            axes.plot(
                x, [fit.intercept + fit.slope * at(c) for c in x], color=colour, linestyle=style
            )
        told = (
            f"R²: linear {r2(law.linear)}, root {r2(law.root)}\n{len(law.clips)} points, "
            f"{law.freedom} d.o.f."
        )
        if law.freedom < 2:
            told += ": no evidence"
        axes.text(
            0.03,
            0.97,
            told,
            transform=axes.transAxes,
            va="top",
            fontsize=8,
            bbox={"facecolor": "#ffffffcc", "lw": 0},
        )
        high = max(mean + s for mean, s in zip(law.means, spread, strict=True))
        axes.set_ylim(0, high * 1.3)
        axes.set_title(f"{law.algorithm}, {' + '.join(Path(task).name for task in law.tasks)}")
        axes.set_xlabel("clip threshold C")
        axes.set_ylabel("optimal local steps τ")
    keys = [
        key_line("mean ± std over budgets, tasks", "#111111", "o", linestyle=""),
        key_line("linear in C", LINEAR[0], "", linestyle=LINEAR[1]),
        key_line("linear in √C", ROOT[0], "", linestyle=ROOT[1]),
    ]
    edge, total = sum(law.at_edge for law in laws), sum(sum(map(len, law.optima)) for law in laws)
    said = (
        f"The fits go through the means, one point per C. Of {total} optima {edge} lie at an end "
        f"of what was tried. "
        f"An R² on fewer than two residual degrees of freedom (d.o.f.) says nothing. "
        f"{laws[0].meaning}. Simulation."
    )
    return finish(
        figure,
        f"Optimal local steps against the clip threshold ({laws[0].convention})",
        said,
        keys,
        3,
    )


LINEAR, ROOT = (OKABE_ITO[0], "-"), (OKABE_ITO[1], (0, (5, 2)))


def nominal_and_exact(cases: list[Case]) -> Any | None:
    """What Lemma 1 really spends, beside its label. The cases are those of one task."""
    nominal = [case for case in cases if case.nominal]
    if not nominal:
        return None
    figure, grid = panels(1, 1, width=5.6, height=3.4)
    axes, keys = grid[0, 0], []
    every: list[float] = []
    for i, case in enumerate(nominal):
        spent = sorted({(cell.epsilon, cell.epsilon_spent) for cell in case.cells if cell.private})
        v = {cell.epsilon: f", v = {cell.v:.2g}" for cell in case.cells if cell.v is not None}
        colour, marker = OKABE_ITO[i % len(OKABE_ITO)], MARKERS[i % len(MARKERS)]
        axes.plot(
            *zip(*spent, strict=True), color=colour, marker=marker, markersize=6, linestyle=":"
        )
        for label, exact in dict(spent).items():
            told = number(exact) + v.get(label, "")
            side, place = (
                ("right", (-2, 9))
                if label == spent[-1][0] and len(spent) > 1
                else ("left", (6, -13))
            )
            axes.annotate(
                told,
                (label, exact),
                place,
                textcoords="offset points",
                fontsize=8,
                color=colour,
                ha=side,
            )
        keys.append(key_line(case.convention, colour, marker))
        every += [value for pair in spent for value in pair]
    ends = [
        min(every) * 0.8,
        max(e for case in nominal for e in case.values("epsilon") if e < math.inf) * 1.3,
    ]
    axes.plot(ends, ends, color="#555555", linestyle=(0, (4, 3)), linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    labels = sorted({cell.epsilon for case in nominal for cell in case.cells if cell.private})
    axes.set_xticks(labels, [f"{label:g}" for label in labels])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    axes.set_xlim(labels[0] * 0.8, labels[-1] * 1.35)
    axes.set_xlabel("nominal ε, the label of the run")
    axes.set_ylabel("exact ε that is spent")
    keys.append(key_line("a label that is true", "#555555", "", linestyle=(0, (4, 3)), linewidth=1))
    meanings = " | ".join(dict.fromkeys(case.meaning for case in nominal))
    heading = f"{Path(nominal[0].task).name}: what Lemma 1 spends, and what it says"
    return finish(
        figure,
        heading,
        f"Above the dashed line a run is not private at its label. {meanings}.",
        keys,
    )


def units(cases: list[Case]) -> Any | None:
    """One client against one record as what is protected, each in a panel of its own. The cases are
    those of one task."""
    of = {
        unit: [c for c in cases if c.unit == unit and not c.nominal and _private(c)]
        for unit in ("client", "record")
    }
    if not all(of.values()):
        return None
    figure, grid = panels(1, 2, width=3.5, height=3.0, sharey=True)
    keys: dict[str, Any] = {}
    drawn: list[Cell] = []
    for axes, (unit, alike) in zip(grid[0], of.items(), strict=True):
        budgets = sorted({cell.epsilon for case in alike for cell in case.cells if cell.private})
        for i, case in enumerate(alike):
            for j, algorithm in enumerate(case.values("algorithm")):
                if not (best := _best(case, algorithm)):
                    continue  # it was run without noise only
                colour, marker = OKABE_ITO[j % len(OKABE_ITO)], MARKERS[i % len(MARKERS)]
                x, y = [cell.epsilon for cell in best], [cell.mean for cell in best]
                wide = [0.0 if math.isnan(cell.std) else cell.std for cell in best]
                axes.errorbar(
                    x,
                    y,
                    wide,
                    color=colour,
                    marker=marker,
                    capsize=2,
                    linestyle=("-", "--", ":", "-.")[j % 4],
                )
                label = f"{algorithm}, {case.convention}"
                keys[label] = key_line(
                    label, colour, marker, linestyle=("-", "--", ":", "-.")[j % 4]
                )
                drawn += best
        axes.set_xscale("log")
        axes.set_xticks(budgets, [f"{epsilon:g}" for epsilon in budgets])
        axes.minorticks_off()
        totals = sorted({reference_iterations(case) for case in alike})
        axes.set_title(
            f"protected: one {unit} (T = {', '.join(map(str, totals))})", fontweight="bold"
        )
        axes.set_xlabel(f"ε for one {unit}")
    grid[0, 0].set_ylabel("test error, best τ and C")
    if from_zero(grid, drawn, cases[0].baseline):
        keys["without training"] = untrained_line()
    meanings = " | ".join(dict.fromkeys(case.meaning for alike in of.values() for case in alike))
    said = (
        f"An ε for a client and the same ε for a record are different promises: do not compare "
        f"them by number. {meanings}."
    )
    return finish(
        figure,
        f"{Path(cases[0].task).name}: whom the budget protects",
        said,
        list(keys.values()),
        2,
    )


def _private(case: Case) -> bool:
    return any(cell.private for cell in case.cells)


def _best(case: Case, algorithm: str) -> list[Cell]:
    """The cell with the lowest mean at each private budget, over local steps and clip norms at the
    reference iterations."""
    iterations = reference_iterations(case)
    found: dict[float, Cell] = {}
    for (name, epsilon, _, T), cells in curves(case).items():
        if (name, T) == (algorithm, iterations) and epsilon < math.inf:
            found[epsilon] = optimum([*cells, *([found[epsilon]] if epsilon in found else [])]).best
    return [cell for _, cell in sorted(found.items())]


def progress(case: Case) -> Any | None:
    """Train and test error and the share of clipped messages along iterations, at the best local
    steps of each budget."""
    algorithms = case.values("algorithm")[:MOST_COLUMNS]
    iterations = reference_iterations(case)
    best = {algorithm: _best(case, algorithm) for algorithm in algorithms}
    for (name, epsilon, _, T), cells in curves(case).items():
        if name in best and epsilon == math.inf and T == iterations:
            best[name].append(optimum(cells).best)
    budgets = case.values("epsilon")
    if not any(len(cell.curve) > 1 for cells in best.values() for cell in cells):
        return None
    figure, grid = panels(3, len(algorithms), width=3.6, height=1.75, sharex=True, sharey="row")
    colour, marker = colours(budgets), markers(budgets)
    for column, algorithm in enumerate(algorithms):
        for cell in best[algorithm]:
            for row, name in enumerate(("test_error", "train_error", "clipped")):
                known = [
                    (m.iteration, getattr(m, name))
                    for m in cell.curve
                    if getattr(m, name) is not None
                ]
                if known and (name != "clipped" or cell.private):
                    size = 5 if len(known) < 6 else 2.5
                    x, y = zip(*known, strict=True)
                    grid[row, column].plot(
                        x,
                        y,
                        color=colour[cell.epsilon],
                        marker=marker[cell.epsilon],
                        markersize=size,
                    )
        told = ", ".join(
            f"{cell.local_steps} ({number(cell.clip_norm)})" for cell in best[algorithm]
        )
        grid[0, column].set_title(f"{algorithm}\nbest τ (C) by rising ε: {told}")
        grid[2, column].set_xlabel("iterations done")
        grid[2, column].set_ylim(-0.05, 1.05)
    for row, label in enumerate(
        ("test error", "training error", "share of updates\nthat is clipped")
    ):
        grid[row, 0].set_ylabel(label)
    for axes in grid[:2].flat:
        axes.set_ylim(bottom=0)
    keys = [key_line(case.budget(epsilon), colour[epsilon], marker[epsilon]) for epsilon in budgets]
    heading = f"{case.title}: along the iterations, at the best τ and C of each budget"
    return finish(figure, heading, below(case, band=False), keys)
