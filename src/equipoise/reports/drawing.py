"""The look of the report's figures: colours for every reader, type that survives print, files that
repeat byte by byte."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
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
    for library in ("jinja2", "matplotlib", "plotly"):
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
    width = figure.get_figwidth()
    heading = _wrapped(heading, width * 11.5)
    room = " \n" * (heading.count("\n") + 1)
    figure.suptitle(
        room + _wrapped(below, width * 15.5),
        fontsize=8.5,
        color="#333333",
        x=0.01,
        ha="left",
        linespacing=1.4,
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


def _wrapped(text: str, letters: float) -> str:
    """In lines of so many letters; an equation stays together."""
    return fill(text.replace(" = ", "\u00a0=\u00a0"), int(letters), break_on_hyphens=False)


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


def name_steps(axes: Any, values: Sequence[int], name: str) -> None:
    """A logarithmic axis with the values that were tried, as many as can be read."""
    axes.set_xscale("log")
    shown = _apart(sorted(values))
    axes.set_xticks(shown, [f"{value}" if value < 10_000 else number(value) for value in shown])
    axes.minorticks_off()
    axes.set_xlabel(name)


def _apart(values: Sequence[int]) -> list[int]:
    """Of sorted values so many that their names do not touch; the first and the last are among
    them."""
    distance = 0.16 * math.log(values[-1] / values[0])
    shown = [values[0]]
    for value in values[1:]:
        if math.log(value / shown[-1]) >= distance:
            shown.append(value)
    return [*shown[:-1], values[-1]] if len(shown) > 1 else shown


def clip_name(clip: float) -> str:
    return "no clip" if clip == math.inf else f"clip C = {clip:g}"


FAR_BELOW = 1000.0


def wide_span(means: Sequence[float]) -> bool:
    """Whether errors differ so much that only a logarithmic scale shows them all."""
    return len(means) > 0 and min(means) > 0 and max(means) > 100 * min(means)


def scale_errors(
    grid: Any, cells: Sequence[Cell], baseline: float | None, more: Sequence[float] = ()
) -> bool:
    """Error axes on which every mean is seen, and most of the bands; whether the error without
    training is seen.

    Logarithmic axes where means span orders of magnitude. Means without noise that are far below
    all with noise leave them at the bottom, or the others would lie on one line.
    """
    means = [cell.mean for cell in cells]
    bottom, top = _limits_of(cells, [*means, *more], baseline)
    if wide_span(means):
        least = min((cell.mean for cell in cells if cell.private), default=min(means))
        bottom, top = max(min(means), least / FAR_BELOW) / 2.5, 2 * top
        for axes in grid.flat:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda error, _: f"{error:g}")
    for axes in grid.flat:
        axes.set_ylim(bottom, top)
    return _draw_baseline(grid, baseline, bottom, top)


def limits(low: float, high: float) -> tuple[float, float]:
    """Where an axis begins and ends that shows values from low to high: at zero, unless that would
    hide how they differ."""
    if 2 * low < high:
        return 0.0, 1.06 * high
    room = 0.06 * max(high - low, 0.02 * high) or 1.0
    return max(low - room, 0.0), high + room


def _limits_of(
    cells: Sequence[Cell], errors: Sequence[float], baseline: float | None
) -> tuple[float, float]:
    """For these errors, for bands unless they reach much further, and for the error without
    training if it is near."""
    low, high = min(errors, default=0.0), max(errors, default=1.0)
    reach = max(high - low, 0.02 * high) if 2 * low >= high else high / 2
    known = [cell for cell in cells if not math.isnan(cell.std)]
    lower = min((cell.mean - cell.std for cell in known), default=low)
    upper = max((cell.mean + cell.std for cell in known), default=high)
    shown = [min(low, max(lower, low - reach)), max(high, min(upper, high + reach))]
    if baseline is not None and low - reach <= baseline <= high + reach and 2 * low >= high:
        shown.append(baseline)
    return limits(min(shown), max(shown))


def _draw_baseline(grid: Any, baseline: float | None, bottom: float, top: float) -> bool:
    """A line for the error without training, if that is in sight."""
    if baseline is None or not bottom < baseline < top:
        return False
    for axes in grid.flat:
        axes.axhline(baseline, color="#555555", linestyle=(0, (4, 3)), linewidth=0.9, zorder=1)
    return True
