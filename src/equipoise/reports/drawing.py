"""The look of the report's figures: colours for every reader, type that survives print, files that
repeat byte by byte."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError
from equipoise.reports.study import Cell, number

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
MARKERS = "osD^vP*X"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.markersize": 4,
    "lines.linewidth": 1.4,
    "svg.hashsalt": "equipoise",
    "text.parse_math": False,
}


def check_libraries() -> None:
    """Refuse to begin what could not be drawn."""
    for library in ("matplotlib", "plotly"):
        if find_spec(library) is None:
            raise EquipoiseError(f"a report needs {library}: pip install 'equipoise[report]'")


@contextmanager
def styled() -> Iterator[None]:
    """Within it figures are drawn and saved in our style, whatever the user's own is."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def panels(
    rows: int, columns: int, width: float = 2.7, height: float = 2.2, **shared: Any
) -> tuple[Any, Any]:
    """A figure of equal panels, and their axes as an array [rows, columns]; room is left for a
    heading and a legend."""
    from matplotlib.figure import Figure

    figure = Figure((max(columns * width + 0.7, 6.2), rows * height + 1.3), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def finish(
    figure: Any, heading: str, below: str, legend: Sequence[Any] = (), columns: int = 5
) -> Any:
    """A heading, under it what is shown and under which conditions, and at the foot one legend for
    all panels."""
    from textwrap import fill

    width = figure.get_figwidth()
    said = fill(below.replace(" = ", "\u00a0=\u00a0"), int(width * 15.5), break_on_hyphens=False)
    heading = fill(
        heading.replace(" = ", "\u00a0=\u00a0"), int(width * 11.5), break_on_hyphens=False
    )
    room = " \n" * (heading.count("\n") + 1)
    figure.suptitle(
        f"{room}{said}", fontsize=8.5, color="#333333", x=0.01, ha="left", linespacing=1.4
    )
    top = 1 - 0.042 / figure.get_figheight()
    figure.text(0.01, top, heading, fontsize=10.5, fontweight="bold", va="top", linespacing=1.13)
    if legend:
        longest = max(len(str(line.get_label())) for line in legend)
        fitting = max(1, int(width * 13 / (longest + 6)))
        figure.legend(
            handles=legend, loc="outside lower center", ncols=min(columns, fitting, len(legend))
        )
    return figure


def save(figure: Any, stem: Path) -> list[Path]:
    """PNG for eyes and SVG for print."""
    files = [stem.with_name(stem.name + suffix) for suffix in (".png", ".svg")]
    figure.savefig(files[0], dpi=160)
    figure.set_layout_engine("none")  # everything has its place now
    figure.savefig(files[1], metadata={"Date": None})
    return files


def colours(values: Sequence[float]) -> dict[float, Any]:
    """Ordered colours for ordered values, from dark for the smallest; infinity is black, as in the
    paper."""
    from matplotlib import colormaps

    finite = [value for value in sorted(values) if value < math.inf]
    places = [0.06 + 0.78 * i / max(1, len(finite) - 1) for i in range(len(finite))]
    return {
        math.inf: "#000000",
        **{value: colormaps["plasma"](place) for value, place in zip(finite, places, strict=True)},
    }


def markers(values: Sequence[float]) -> dict[float, str]:
    return {value: MARKERS[i % len(MARKERS)] for i, value in enumerate(sorted(values))}


def name_steps(axes: Any, values: Sequence[int], name: str = "local steps τ") -> None:
    """A logarithmic axis with the values that were tried, as many as can be read."""
    axes.set_xscale("log")
    low, high = min(values), max(values)
    every = max(0.16 * math.log(high / low), 1e-9) if high > low else 1.0
    shown: list[int] = []
    for value in sorted(values):
        if not shown or math.log(value / shown[-1]) >= every:
            shown.append(value)
    if shown[-1] != high:
        shown[-1] = high
    axes.set_xticks(shown, [f"{value}" if value < 10_000 else number(value) for value in shown])
    axes.minorticks_off()
    axes.set_xlabel(name)


def clip_name(clip_norm: float) -> str:
    return "no clip" if clip_norm == math.inf else f"clip C = {clip_norm:g}"


def wide_span(means: Sequence[float]) -> bool:
    """Whether errors differ so much that only a logarithmic scale shows them all."""
    return len(means) > 0 and min(means) > 0 and max(means) > 100 * min(means)


def from_zero(
    grid: Any, cells: Sequence[Cell], baseline: float | None, more: Sequence[float] = ()
) -> bool:
    """Error axes from zero to where every mean is seen, and most of the bands; whether the error
    without training is seen.

    Logarithmic axes where means span orders of magnitude.
    """
    tops = [cell.mean + (0 if math.isnan(cell.std) else cell.std) for cell in cells]
    highest = max([*(cell.mean for cell in cells), *more], default=1.0)
    top = 1.06 * max(highest, min(max(tops, default=1.0), 1.5 * highest)) or 1.0
    means = [cell.mean for cell in cells]
    bottom = min(means) / 2.5 if wide_span(means) else 0.0
    seen = baseline is not None and bottom < baseline < top
    for axes in grid.flat:
        if bottom:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda error, _: f"{error:g}")
        axes.set_ylim(bottom, top * 2 if bottom else top)
        if seen:
            axes.axhline(baseline, color="#555555", linestyle=(0, (4, 3)), linewidth=0.9, zorder=1)
    return seen
