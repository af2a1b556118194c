"""The picture one shows to a data-protection officer: what more budget buys, and for whom."""

from html import escape
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from equipoise.errors import EquipoiseError, InvalidValue
from equipoise.planning.plan import Plan
from equipoise.privacy.promise import Promise
from equipoise.reports.study import task_name
from equipoise.settings import Settings

LIBRARY = {".png": "matplotlib", ".svg": "matplotlib", ".html": "plotly"}
TITLE = "What a privacy budget buys"
PLANS = "best private plan (rounds × local steps)"
UNTRAINED, PUBLIC, SILO = "without training", "public records alone", "each silo alone"
NOT_TRAINING = "not training"  # as the plan calls it
COLOUR = {PLANS: "#0072B2", UNTRAINED: "#555555", PUBLIC: "#009E73", SILO: "#D55E00"}
UNIT = {
    "client": "all data of one client",
    "record": "one record of one client",
    "person": "all that one client holds of one person",
}
TRUST = {
    "local": "the adversary sees every message",
    "secure-aggregation": "the adversary sees only the sum of each round",
}

LETTERS = 110  # of a line below the title, in a figure for print
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


class Point(NamedTuple):
    """The best plan for a budget."""

    epsilon: float
    predicted: float
    low: float
    high: float
    """Where 90 % of the worlds lie."""
    schedule: str
    """Rounds × local steps."""


class TradeOff(NamedTuple):
    """What the picture shows: a point for every budget, the references, and in words what was
    planned, what came out and what is promised."""

    title: str
    measure: str
    points: list[Point]
    references: list[Reference]
    words: list[str]
    """Lines below the title: the verdict of every budget; what ε protects, from whom, and with
    which δ."""

    @property
    def epsilons(self) -> list[float]:
        return [point.epsilon for point in self.points]

    @property
    def predicted(self) -> list[float]:
        return [point.predicted for point in self.points]

    @property
    def margins(self) -> tuple[list[float], list[float]]:
        """How far the interval reaches below and above."""
        below = [max(0.0, point.predicted - point.low) for point in self.points]
        return below, [max(0.0, point.high - point.predicted) for point in self.points]


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
    measure = _measure(drawn)
    points = [_point(plan, measure) for plan in drawn]
    return TradeOff(
        title=f"{TITLE}: {_about(drawn[0].settings)}",
        measure=measure.replace("_", " "),
        points=points,
        references=_references(drawn[0], measure),
        words=[_verdicts(plans), *_promise(drawn[0])],
    )


def _about(settings: Settings | None) -> str:
    """The task, as one names it to somebody who has not planned it."""
    assert settings
    clients = settings.clients or (len(settings.data) if settings.label else 0)
    words = [
        task_name(settings.task),
        f"predicting {settings.label}" if settings.label else "",
        f"{clients} client{'' if clients == 1 else 's'}" if clients else "",
    ]
    return ", ".join(filter(None, words))


def _verdicts(plans: list[Plan]) -> str:
    """Every verdict with its budgets, in the order of these."""
    budgets: dict[str, list[str]] = {}
    for plan in sorted(plans, key=lambda plan: plan.epsilon):
        private = ", not private" if plan.vacuous else ""
        budgets.setdefault(plan.verdict + private, []).append(f"{plan.epsilon:g}")
    verdicts = [f"{verdict} (ε = {', '.join(values)})" for verdict, values in budgets.items()]
    return f"Verdict: {'; '.join(verdicts)}"


def _measure(plans: list[Plan]) -> str:
    predictions = [plan.predicted for plan in plans if plan.predicted]
    known = all(predicted.test_error is not None for predicted in predictions)
    return "test_error" if known else "excess_loss"


def _point(plan: Plan, measure: str) -> Point:
    option = plan.chosen
    assert option
    mean, interval = getattr(option.predicted, measure), option.predicted.interval(measure)
    assert interval
    return Point(plan.epsilon, mean, *interval, f"{option.rounds} × {option.local_steps}")


def _references(plan: Plan, measure: str) -> list[Reference]:
    """Those that are known: predicted in the same worlds as the plan, where there are any."""
    known = {
        UNTRAINED: getattr(plan.untrained, measure),
        PUBLIC: getattr(plan.public_only, measure, None),
        SILO: None,
    }
    names = {NOT_TRAINING: UNTRAINED, PUBLIC: PUBLIC, SILO: SILO}
    for way in plan.ways:
        predicted = getattr(way.predicted, measure)
        if way.name in names and predicted is not None:
            known[names[way.name]] = predicted
    styles = {UNTRAINED: ("dash", "--"), PUBLIC: ("dot", ":"), SILO: ("dashdot", "-.")}
    return [Reference(name, at, *styles[name]) for name, at in known.items() if at is not None]


def _promise(plan: Plan) -> list[str]:
    promise = plan.promise
    return [
        f"Protected: {UNIT[promise.unit]} (unit = {promise.unit}, "
        f"neighbours = {promise.neighbours}); δ = {promise.delta:g}",
        f"Trust = {promise.trust}: {TRUST[promise.trust]}{_colluders(promise)}",
    ]


def _colluders(promise: Promise) -> str:
    """Who else may help the adversary; under local trust everybody may."""
    if promise.colluding is None:
        return ""
    plural = "" if promise.colluding == 1 else "s"
    return f"; up to {promise.colluding} client{plural} may collude"


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
        words = [fill(line, LETTERS) for line in shown.words]
        axes.set_title("\n".join(words), fontsize=8.5, loc="left", color="#333333")
        figure.suptitle(
            fill(shown.title, LETTERS // 2), fontsize=12, fontweight="bold", x=0.01, ha="left"
        )
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
        label=PLANS,
    )
    for point in shown.points:
        axes.annotate(
            point.schedule,
            (point.epsilon, point.predicted),
            textcoords="offset points",
            xytext=(6, 8),
            fontsize=8,
            color=COLOUR[PLANS],
        )


def _y_label(shown: TradeOff) -> str:
    return f"predicted {shown.measure} (bars: 90 % of worlds)"


def html_picture(shown: TradeOff) -> str:
    """A page of plotly that needs no network."""
    from plotly import graph_objects

    figure = graph_objects.Figure(
        graph_objects.Scatter(
            x=shown.epsilons,
            y=shown.predicted,
            error_y={
                "symmetric": False,
                "arrayminus": shown.margins[0],
                "array": shown.margins[1],
            },
            text=[point.schedule for point in shown.points],
            mode="lines+markers+text",
            textposition="top right",
            textfont={"color": COLOUR[PLANS]},
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
        title={
            "text": escape(shown.title),
            "subtitle": {"text": "<br>".join(escape(line) for line in shown.words)},
        },
        xaxis={
            "title": "privacy budget ε of the whole run (smaller is more private)",
            "type": "log",
            "tickvals": shown.epsilons,
            "ticktext": [f"{epsilon:g}" for epsilon in shown.epsilons],
        },
        yaxis={"title": _y_label(shown), "rangemode": "tozero"},
        legend={"orientation": "h", "y": -0.2},
        margin={"t": 150},
        template="simple_white",
    )
    page = figure.to_html(include_plotlyjs=True, full_html=True, config=NOTHING_IS_SENT)
    return str(page)
