"""What each accountant claims as rounds go on."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError, require
from equipoise.privacy.accountants import Comparison, epsilons_by_rounds
from equipoise.reports.drawing import OKABE_ITO, finish, panels, styled
from equipoise.reports.figures.common import DASHED, draw_ring, key_line

SUFFIXES = (".png", ".svg")
BLUE, ORANGE, GREEN, _, _, SKY, _ = OKABE_ITO
WIDE, NARROW = ("-", 3.2), (DASHED, 1.4)
LOOK = {  # narrow lines lie on the wide ones that they nearly agree with
    "advanced composition": (BLUE, *WIDE),
    "zCDP, classic conversion": (ORANGE, *WIDE),
    "zCDP, improved conversion": (GREEN, *WIDE),
    "RDP, classic conversion": ("#7a2b00", *NARROW),
    "RDP, dp-accounting": ("#003d2b", *NARROW),
    "PLD, dp-accounting": (SKY, *NARROW),
}
OWN = ("#111111", *WIDE)


def check_figure(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before anything is computed."""
    require(
        path.suffix in SUFFIXES,
        f"figure={path}: the name must end with {', or '.join(SUFFIXES)}",
    )
    require(path.parent.is_dir(), f"figure={path}: there is no folder {path.parent}; make it")
    if find_spec("matplotlib") is None:
        raise EquipoiseError("a figure needs matplotlib: pip install 'equipoise[report]'")


def draw_accountants(comparison: Comparison, path: Path) -> None:
    with styled():
        metadata = {"Date": None} if path.suffix == ".svg" else None
        accountants(comparison).savefig(path, dpi=160, metadata=metadata)


def accountants(comparison: Comparison) -> Any:
    """A figure of matplotlib: epsilon against rounds, with the noise of the comparison, from one
    round to ten times as many as the job has."""
    lines = epsilons_by_rounds(comparison, round_numbers(10 * comparison.rounds))
    figure, grid = panels(1, 1, width=6.2, height=3.9)
    axes, keys = grid[0, 0], []
    for name, points in lines.items():
        colour, style, width = LOOK.get(name, OWN)
        look = {"color": colour, "linestyle": style, "linewidth": width}
        axes.plot(*zip(*points, strict=True), **look, zorder=4 - width / 2)
        label = name if points else f"{name}: no claim"
        keys.append(key_line(label, colour, "", linestyle=style, linewidth=width))
    draw_ring(axes, comparison.rounds, comparison.rows[-1].epsilon or comparison.epsilon)
    keys.append(
        key_line("the job", "#111111", "o", linestyle="", markersize=8, markerfacecolor="none")
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda rounds, _: f"{rounds:,.0f}")
    axes.yaxis.set_major_formatter(lambda epsilon, _: f"{epsilon:,g}")
    axes.set_xlabel("rounds")
    axes.set_ylabel("ε claimed")
    return finish(figure, "The same noise, as each accountant sees it", _below(comparison), keys, 3)


def round_numbers(most: int) -> list[int]:
    """1, 2, 3, 5, 7, 10, 20, ... and the last itself."""
    steps = [step * 10**power for power in range(len(str(most))) for step in (1, 2, 3, 5, 7)]
    return [*(step for step in steps if step < most), most]


def _below(comparison: Comparison) -> str:
    sample = "" if comparison.rate == 1 else f", sampling rate {comparison.rate:g}"
    return (
        f"σ = {comparison.sigma:.4g} with C = {comparison.clip:g}{sample}; δ = "
        f"{comparison.delta:g}; unit: one {comparison.unit} ({comparison.neighbours}). All claims "
        "hold: a larger ε is a worse proof about the same noise."
    )
