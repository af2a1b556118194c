"""Fig. 5: optimal local steps against the clip threshold."""

import math
from typing import Any

from equipoise.reports.drawing import OKABE_ITO, finish, panels
from equipoise.reports.figures.common import key_line
from equipoise.reports.optima import NO_FIT, Law
from equipoise.reports.study import shared_meaning, task_name

LINEAR, ROOT = (OKABE_ITO[0], "-"), (OKABE_ITO[1], (0, (5, 2)))
"""Colour and line style of the two fits."""


def steps_by_clip(laws: list[Law]) -> Any | None:
    """Mean optimal local steps of a group against C, with both fits where there are points enough.
    The laws are those of one convention."""
    if not laws:
        return None
    groups = sorted({law.group for law in laws})
    algorithms = sorted({law.algorithm for law in laws})
    figure, grid = panels(len(groups), len(algorithms), width=3.4, height=2.7)
    for axes in grid.flat:
        axes.set_visible(False)
    for law in laws:
        _draw(grid[groups.index(law.group), algorithms.index(law.algorithm)], law)
    heading = f"Optimal local steps against the clip threshold ({laws[0].convention})"
    return finish(figure, heading, _below(laws), _keys(laws), 3)


def _below(laws: list[Law]) -> str:
    edge, total = sum(law.at_edge for law in laws), sum(law.count for law in laws)
    fits = ""
    if any(law.fits for law in laws):
        fits = (
            "The fits go through the means, one point per C. An R² on fewer than two residual "
            "degrees of freedom (d.o.f.) is no evidence. "
        )
    if any(law.fits is None for law in laws):
        fits += "A line always fits two points, so fewer than three have no fit. "
    meaning = shared_meaning({t: words for law in laws for t, words in law.meanings.items()})
    ends = f"Of {total} optima {edge} lie at an end of the range tried."
    return f"{fits}{ends} {meaning}. Simulation."


def _keys(laws: list[Law]) -> list[Any]:
    means = key_line("mean ± std over budgets and tasks", "#111111", "o", linestyle="")
    if not any(law.fits for law in laws):
        return [means]
    return [
        means,
        key_line("linear in C", LINEAR[0], "", linestyle=LINEAR[1]),
        key_line("linear in √C", ROOT[0], "", linestyle=ROOT[1]),
    ]


def _draw(axes: Any, law: Law) -> None:
    axes.set_visible(True)
    spread = [0.0 if math.isnan(variance) else math.sqrt(variance) for variance in law.variances]
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
    _draw_fits(axes, law)
    axes.text(
        0.03,
        0.97,
        fit_words(law),
        transform=axes.transAxes,
        va="top",
        fontsize=8,
        bbox={"facecolor": "#ffffffcc", "lw": 0},
    )
    highest = max(mean + wide for mean, wide in zip(law.means, spread, strict=True))
    axes.set_xlim(0, law.clips[-1] * 1.06)
    axes.set_ylim(0, highest * 1.3)
    axes.set_title(f"{law.algorithm}, {' + '.join(task_name(task) for task in law.tasks)}")
    axes.set_xlabel("clip threshold C")
    axes.set_ylabel("optimal local steps τ")


def _draw_fits(axes: Any, law: Law) -> None:
    if law.fits is None:
        return
    linear, root = law.fits
    clips = [law.clips[-1] * i / 200 for i in range(201)]
    straight = [linear.intercept + linear.slope * clip for clip in clips]
    bent = [root.intercept + root.slope * math.sqrt(clip) for clip in clips]
    axes.plot(clips, straight, color=LINEAR[0], linestyle=LINEAR[1])
    axes.plot(clips, bent, color=ROOT[0], linestyle=ROOT[1])


def fit_words(law: Law) -> str:
    """How good both fits are and on how little they rest; or why there is none."""
    if law.fits is None:
        return NO_FIT
    evidence = ": no evidence" if law.freedom < 2 else ""
    return (
        f"R²: linear {law.fits.linear}, root {law.fits.root}\n"
        f"{len(law.clips)} points, {law.freedom} d.o.f.{evidence}"
    )
