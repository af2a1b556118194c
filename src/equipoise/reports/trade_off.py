"""The picture one shows to a data-protection officer: what more budget buys, and for whom."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.errors import EquipoiseError, InvalidValue
from equipoise.planning.plan import Plan
from equipoise.settings import Settings

LIBRARY = {".png": "matplotlib", ".svg": "matplotlib", ".html": "plotly"}
TITLE = "What a privacy budget buys"
PLANS, UNTRAINED, PUBLIC = "best private plan", "without training", "public records alone"
COLOUR = {PLANS: "#0072B2", UNTRAINED: "#555555", PUBLIC: "#009E73"}
UNIT = {
    "client": "all data of one client",
    "record": "one record of one client",
}
TRUST = {
    "local": "the adversary sees every message",
    "secure-aggregation": "the adversary sees only the sum of each round",
}

NOTHING_IS_SENT = {
    "plotlyServerURL": "",
    "modeBarButtonsToRemove": ["sendChartToCloud"],
    "displaylogo": False,
}


class Reference(NamedTuple):
    """An error that needs no budget, to hold the plans against."""

    name: str
    error: float
    dash: str
    """Plotly's word for it."""
    linestyle: str
    """Matplotlib's."""


class TradeOff(NamedTuple):
    """What the picture shows: a point for every budget, the references, and the promise."""

    measure: str
    epsilons: list[float]
    predicted: list[float]
    margins: list[float]
    """Two standard errors of each prediction."""
    schedules: list[str]
    """Rounds x local steps of each plan."""
    references: list[Reference]
    promise: list[str]
    """Lines that say what ε protects, from whom, and with which δ."""


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before anything is computed."""
    if path.suffix not in LIBRARY:
        raise InvalidValue(f"save_plot={path}: the name must end with {', '.join(LIBRARY)}")
    if find_spec(LIBRARY[path.suffix]) is None:
        raise EquipoiseError(
            f"drawing {path.suffix} needs {LIBRARY[path.suffix]}: pip install 'equipoise[report]'"
        )


def draw_trade_off(plans: list[Plan], path: Path) -> None:
    """Predicted error against epsilon, beside not training and, where there is a public pool,
    training on that alone."""
    shown = trade_off(plans)
    if path.suffix == ".html":
        path.write_text(html_picture(shown), encoding="utf-8")
    else:
        picture(shown).savefig(path, dpi=150)


def trade_off(plans: list[Plan]) -> TradeOff:
    """Read the plans of one question."""
    drawn = [plan for plan in plans if plan.predicted and plan.settings]
    if not drawn:
        raise InvalidValue(
            "save_plot: these plans predict nothing to draw; plan for a task with a public pool"
        )
    predictions = [plan.predicted or {} for plan in drawn]
    measure = _measure(predictions)
    return TradeOff(
        measure=measure.replace("_", " "),
        epsilons=[plan.epsilon for plan in drawn],
        predicted=[predicted[measure] for predicted in predictions],
        margins=[2 * predicted[measure + "_se"] for predicted in predictions],
        schedules=[_schedule(plan) for plan in drawn],
        references=_references(drawn[0], measure),
        promise=_promise(drawn[0]),
    )


def _measure(predictions: list[dict[str, Any]]) -> str:
    known = all(predicted["test_error"] is not None for predicted in predictions)
    return "test_error" if known else "excess_loss"


def _schedule(plan: Plan) -> str:
    chosen = plan.plan or {}
    return f"{chosen['rounds']} × {chosen['local_steps']}"


def _references(plan: Plan, measure: str) -> list[Reference]:
    """Those that are known: an excess loss of public records alone is not."""
    untrained, alone = plan.untrained[measure], (plan.public_only or {}).get(measure)
    known = [] if untrained is None else [Reference(UNTRAINED, untrained, "dash", "--")]
    return known if alone is None else [*known, Reference(PUBLIC, alone, "dot", ":")]


def _promise(plan: Plan) -> list[str]:
    settings = plan.settings
    assert settings
    return [
        f"Protected: {UNIT[settings.unit]} (unit = {settings.unit}, "
        f"neighbours = {settings.neighbours}); δ = {settings.delta:g}",
        f"Trust = {settings.trust}: {TRUST[settings.trust]}{_colluders(settings)}",
    ]


def _colluders(settings: Settings) -> str:
    """Who else may help the adversary; under local trust everybody may."""
    if settings.trust == "local":
        return ""
    count = 1 if settings.colluding is None else settings.colluding
    return f"; up to {count} client{'' if count == 1 else 's'} may collude"


def picture(shown: TradeOff) -> Any:
    """A figure of matplotlib."""
    from matplotlib.figure import Figure

    from equipoise.reports.drawing import styled

    with styled():
        figure = Figure((7, 4.8), layout="constrained")
        axes = figure.subplots()
        _draw_points(axes, shown)
        for reference in shown.references:
            axes.axhline(
                reference.error,
                color=COLOUR[reference.name],
                linestyle=reference.linestyle,
                linewidth=1.3,
                label=reference.name,
            )
        axes.set_xscale("log")
        axes.set_xticks(shown.epsilons, [f"{epsilon:g}" for epsilon in shown.epsilons])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("privacy budget ε of the whole run (smaller is more private)")
        axes.set_ylabel(_y_label(shown))
        axes.set_title("\n".join(shown.promise), fontsize=8.5, loc="left", color="#333333")
        figure.suptitle(TITLE, fontsize=12, fontweight="bold", x=0.01, ha="left")
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def _draw_points(axes: Any, shown: TradeOff) -> None:
    axes.errorbar(
        shown.epsilons,
        shown.predicted,
        shown.margins,
        color=COLOUR[PLANS],
        marker="o",
        capsize=3,
        label=f"{PLANS} (rounds × local steps)",
    )
    for x, y, schedule in zip(shown.epsilons, shown.predicted, shown.schedules, strict=True):
        axes.annotate(
            schedule,
            (x, y),
            textcoords="offset points",
            xytext=(6, 8),
            fontsize=8,
            color=COLOUR[PLANS],
        )


def _y_label(shown: TradeOff) -> str:
    return f"predicted {shown.measure} (± 2 standard errors)"


def html_picture(shown: TradeOff) -> str:
    """A page of plotly that needs no network."""
    from plotly import graph_objects

    figure = graph_objects.Figure(
        graph_objects.Scatter(
            x=shown.epsilons,
            y=shown.predicted,
            error_y={"array": shown.margins},
            text=shown.schedules,
            mode="lines+markers",
            name=PLANS,
            line={"color": COLOUR[PLANS]},
            hovertemplate="ε = %{x}<br>%{y:.4f}<br>%{text} (rounds × local steps)",
        )
    )
    # lines as traces: the axis grows to show them, and the legend names them
    ends = [min(shown.epsilons) / 1.2, max(shown.epsilons) * 1.2]
    for reference in shown.references:
        figure.add_scatter(
            x=ends,
            y=[reference.error] * 2,
            mode="lines",
            name=reference.name,
            line={"color": COLOUR[reference.name], "dash": reference.dash},
            hovertemplate="%{y:.4f}",
        )
    figure.update_layout(
        title={"text": TITLE, "subtitle": {"text": "<br>".join(shown.promise)}},
        xaxis={
            "title": "privacy budget ε of the whole run (smaller is more private)",
            "type": "log",
            "tickvals": shown.epsilons,
            "ticktext": [f"{epsilon:g}" for epsilon in shown.epsilons],
        },
        yaxis={"title": _y_label(shown), "rangemode": "tozero"},
        legend={"orientation": "h", "y": -0.2},
        margin={"t": 130},
        template="simple_white",
    )
    page = figure.to_html(include_plotlyjs=True, full_html=True, config=NOTHING_IS_SENT)
    return str(page)
