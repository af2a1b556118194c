"""The picture one shows to a data-protection officer: what more budget buys."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError, InvalidValue
from equipoise.planning.plan import Plan

LIBRARY = {".png": "matplotlib", ".svg": "matplotlib", ".html": "plotly"}

PRIVATE = {
    "plotlyServerURL": "",
    "modeBarButtonsToRemove": ["sendChartToCloud"],
    "displaylogo": False,
}  # nothing is sent


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before anything is computed."""
    if path.suffix not in LIBRARY:
        raise InvalidValue(f"save_plot={path}: the name must end with {', '.join(LIBRARY)}")
    if find_spec(LIBRARY[path.suffix]) is None:
        raise EquipoiseError(
            f"drawing {path.suffix} needs {LIBRARY[path.suffix]}: pip install 'equipoise[report]'"
        )


def draw_trade_off(plans: list[Plan], path: Path) -> None:
    """Predicted error against epsilon, with not training and (where there is a pool) public data
    alone beside it."""
    key = (
        "test_error"
        if all(plan.predicted and plan.predicted["test_error"] is not None for plan in plans)
        else "excess_loss"
    )
    drawn = [plan for plan in plans if plan.predicted]
    if not drawn:
        raise InvalidValue(
            "save_plot: these plans predict nothing to draw; plan for a task with a public pool"
        )
    series: dict[str, Any] = {
        "epsilon": [plan.epsilon for plan in drawn],
        "predicted": [(plan.predicted or {})[key] for plan in drawn],
        "error": [2 * (plan.predicted or {})[key + "_se"] for plan in drawn],
        "untrained": drawn[0].untrained[key],
        "public": drawn[0].public_only["test_error"]
        if drawn[0].public_only and key == "test_error"
        else None,
        "text": [f"{(p.plan or {})['rounds']} x {(p.plan or {})['local_steps']}" for p in drawn],
        "label": key.replace("_", " "),
    }
    (_html if path.suffix == ".html" else _figure)(series, path)


def _figure(series: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    axes.errorbar(
        series["epsilon"],
        series["predicted"],
        series["error"],
        color="#0072B2",
        marker="o",
        capsize=3,
        label="best private plan",
    )
    for x, y, text in zip(series["epsilon"], series["predicted"], series["text"], strict=True):
        axes.annotate(
            text, (x, y), textcoords="offset points", xytext=(6, 8), fontsize=8, color="#0072B2"
        )
    axes.axhline(
        series["untrained"], color="#555555", linestyle="--", linewidth=1, label="without training"
    )
    if series["public"] is not None:
        axes.axhline(
            series["public"],
            color="#009E73",
            linestyle=":",
            linewidth=1.5,
            label="public records alone",
        )
    axes.set_xscale("log")
    axes.set_xticks(series["epsilon"], [f"{epsilon:g}" for epsilon in series["epsilon"]])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("privacy budget ε (smaller is more private)")
    axes.set_ylabel(f"predicted {series['label']} (± 2 s.e.)")
    axes.set_title("What a privacy budget buys (labels: rounds × local steps)", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _html(series: dict[str, Any], path: Path) -> None:
    from plotly import graph_objects

    figure = graph_objects.Figure(
        graph_objects.Scatter(
            x=series["epsilon"],
            y=series["predicted"],
            error_y={"array": series["error"]},
            text=series["text"],
            mode="lines+markers",
            name="best private plan",
            hovertemplate="ε = %{x}<br>%{y:.4f}<br>%{text} (rounds x local steps)",
        )
    )
    figure.add_hline(y=series["untrained"], line_dash="dash", annotation_text="without training")
    if series["public"] is not None:
        figure.add_hline(
            y=series["public"], line_dash="dot", annotation_text="public records alone"
        )
    figure.update_layout(
        title="What a privacy budget buys",
        xaxis={"title": "privacy budget ε (smaller is more private)", "type": "log"},
        yaxis={"title": f"predicted {series['label']} (± 2 s.e.)", "rangemode": "tozero"},
        template="simple_white",
    )
    path.write_text(
        figure.to_html(include_plotlyjs=True, full_html=True, config=PRIVATE), encoding="utf-8"
    )
