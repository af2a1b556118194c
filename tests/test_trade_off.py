"""The picture for a data-protection officer: what it is held against, and whom it protects."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.errors import InvalidValue
from equipoise.planning.plan import Plan, Prediction
from equipoise.reports.trade_off import draw_trade_off, html_picture, picture, trade_off
from equipoise.result import PublicOnly

GOLDEN = Path(__file__).parent / "golden" / "v0.1"
PROMISE = ["unit = client", "neighbours = replace-one", "δ = 1e-05", "Trust = secure-aggregation"]


@pytest.fixture
def plans():
    plan = Plan.model_validate_json((GOLDEN / "plan.json").read_text())
    alike = {
        "chosen": predicting(plan, test_error=0.2, test_error_se=0.01),
        "untrained": Prediction(test_error=0.4, excess_loss=0.6),
        "public_only": PublicOnly(records=40, test_error=0.05, test_loss=0.1),
    }
    promises = [replace(plan.promise, epsilon=epsilon, colluding=2) for epsilon in (0.5, 2.0)]
    return [plan.model_copy(update={**alike, "promise": promise}) for promise in promises]


def predicting(plan, **changes):
    predicted = plan.predicted.model_copy(update=changes)
    return plan.chosen.model_copy(update={"predicted": predicted})


def words(figure):
    """Everything that is written in a figure, the legend too."""
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))


def traces(page):
    """The traces and the layout that the page gives to plotly."""
    start = re.search(r'Plotly\.newPlot\(\s*"[^"]+",\s*', page).end()
    decoder = json.JSONDecoder()
    drawn, end = decoder.raw_decode(page, start)
    layout, _ = decoder.raw_decode(page, re.compile(r",\s*").match(page, end).end())
    return {trace["name"]: trace for trace in drawn}, layout


def test_a_page_draws_its_references_and_names_the_promise(plans):
    drawn, layout = traces(html_picture(trade_off(plans)))
    assert set(drawn["without training"]["y"]) == {0.4}
    assert set(drawn["public records alone"]["y"]) == {0.05}
    for name in ("without training", "public records alone"):
        low, high = drawn[name]["x"]
        assert low < 0.5 < 2.0 < high
        assert drawn[name]["mode"] == "lines"
    for words in (*PROMISE, "up to 2 clients may collude"):
        assert words in layout["title"]["subtitle"]["text"]


def test_a_figure_draws_its_references_and_names_the_promise(plans):
    figure = picture(trade_off(plans))
    for expected in (*PROMISE, "without training", "public records alone"):
        assert expected in words(figure)
    heights = {
        line.get_ydata()[0] for line in figure.axes[0].lines if len(set(line.get_ydata())) < 2
    }
    assert {0.4, 0.05} <= heights


def test_both_pictures_name_the_task_the_verdicts_and_the_schedules(plans):
    unlike = [plans[0].model_copy(update={"verdict": "do not train"}), plans[1]]
    shown = trade_off(unlike)
    verdicts = "Verdict: do not train (ε = 0.5); public data alone is as good (ε = 2)"
    drawn, layout = traces(html_picture(shown))
    page = layout["title"]["text"] + layout["title"]["subtitle"]["text"]
    for text in (words(picture(shown)), page):
        assert "breast-cancer, 20 clients" in text
        assert verdicts in text
    named = drawn["best private plan (rounds × local steps)"]
    assert (named["mode"], named["text"]) == ("lines+markers+text", ["16 × 16", "16 × 16"])
    assert "16 × 16" in words(picture(shown))


def test_a_table_of_ones_own_is_named_by_its_label_and_its_clients(plans):
    own = {"task": "csv", "data": ("a.csv", "b.csv"), "label": "<b>ill", "clients": None}
    settings = plans[0].settings.model_copy(update=own)
    shown = trade_off([plan.model_copy(update={"settings": settings}) for plan in plans])
    assert shown.title.endswith(": csv, predicting <b>ill, 2 clients")
    assert "a.csv" not in html_picture(shown)
    assert traces(html_picture(shown))[1]["title"]["text"].endswith("&lt;b&gt;ill, 2 clients")


def test_what_is_not_known_is_not_drawn(plans):
    """Without a test error the excess loss is drawn, which nobody predicts for public records
    alone."""
    unknown = [
        plan.model_copy(update={"chosen": predicting(plan, test_error=None)}) for plan in plans
    ]
    shown = trade_off(unknown)
    assert shown.measure == "excess loss"
    assert [(reference.name, reference.error) for reference in shown.references] == [
        ("without training", 0.6)
    ]


def test_plans_without_predictions_are_refused(plans, tmp_path):
    empty = [plan.model_copy(update={"chosen": None}) for plan in plans]
    with pytest.raises(InvalidValue, match="predict nothing to draw"):
        draw_trade_off(empty, tmp_path / "x.html")


@pytest.mark.parametrize("suffix", ["png", "svg", "html"])
def test_every_format_is_written(plans, tmp_path, suffix):
    path = tmp_path / f"trade-off.{suffix}"
    draw_trade_off(plans, path)
    assert path.stat().st_size > 5000
