"""Results, plans, data sets and sweeps for a terminal: tables by rich."""

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from equipoise.describe import interval, number
from equipoise.describe_measures import estimate_text
from equipoise.measures import MEASURES, SHORT, Measures
from equipoise.planning.plan import Plan, Prediction
from equipoise.result import Result
from equipoise.settings import Run

if TYPE_CHECKING:
    from equipoise.privacy.accountants import Comparison
    from equipoise.privacy.events import Account
    from equipoise.privacy.foreign.report import Spending
    from equipoise.privacy.ledger_books import Charged, Standing

TIGHT: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}


def diagnostics(result: Result) -> Table:
    table = Table(title="private values, for simulation only", title_justify="left")
    for heading in ("round", "clipped", "mean |update|", "mean |h|", "train error"):
        table.add_column(heading, justify="right")
    for row in result.per_round or []:
        clipped = "" if row.clipped is None else f"{row.clipped:.0%}"
        h_norm = "" if row.h_norm is None else f"{row.h_norm:.4g}"
        update_norm, train_error = f"{row.update_norm:.4g}", number(row.train_error)
        table.add_row(str(row.round), clipped, update_norm, h_norm, train_error)
    return table


def groups_table(measures: Measures | None) -> Table | None:
    """Measures for each group of the test records."""
    if not measures or not measures.groups:
        return None
    shown = [name for name in SHORT if name in measures.estimates]
    title = f"by {measures.grouped_by}, in brackets 95 % intervals"
    table = Table(title=title, title_justify="left", **TIGHT)
    table.add_column(measures.grouped_by, no_wrap=True)
    for heading in ("records", *(MEASURES[name].words for name in shown)):
        table.add_column(heading, justify="right", no_wrap=True)
    for part in measures.groups:
        values = (estimate_text(part.estimates[name], digits=2) for name in shown)
        table.add_row(part.name, str(part.records), *values)
    return table


def ways_table(plan: Plan) -> Table | None:
    """Every way, and what it is worth."""
    if not plan.ways:
        return None
    name, heading = {
        "error": ("test_error", "error"),
        "loss": ("test_loss", "loss"),
        "auroc": ("auroc", "AUROC"),
    }[plan.judged_by]
    table = Table(title="what each way is worth", title_justify="left", **TIGHT)
    table.add_column("way", no_wrap=True)
    for column in (heading, "90 % of worlds", "smallest silo", "known"):
        table.add_column(column, justify="right", no_wrap=True)
    for way in plan.ways:
        ends = way.predicted.interval(name)
        table.add_row(
            way.name,
            decimal(getattr(way.predicted, name)),
            f"{ends[0]:.3f} to {ends[1]:.3f}" if ends else "",
            decimal(getattr(way.smallest, name)) if way.smallest else "",
            decimal(way.measured) if name == "test_error" else "",
        )
    return table


def decimal(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def comparison(plan: Plan) -> Table | None:
    """The best plan of every line, and the closed forms."""
    if not plan.options:
        return None
    title = "what was tried, and what is predicted of it"
    table = Table(title=title, title_justify="left", **TIGHT)
    clients = plan.unit == "client"
    table.add_column("plan", no_wrap=True)
    headings = ["steps", "rounds", "C", *(["bound"] if clients else []), "excess", "error"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for option in plan.options:
        bound = [number(option.bound, 3)] if clients else []
        predicted = option.predicted
        values = (option.local_steps, option.rounds, option.clip)
        errors = (number(predicted.excess_loss, 3), number(predicted.test_error, 3))
        table.add_row(option.origin, *(number(value, 3) for value in values), *bound, *errors)
    return table


def noise_table(plan: Plan) -> Table | None:
    """Exact noise for every pace, where nothing else can be said."""
    if not plan.noise:
        return None
    title = "exact noise for every number of local steps that divides T"
    table = Table(title=title, title_justify="left")
    for heading in ("local steps", "rounds", "sigma", "each client adds"):
        table.add_column(heading, justify="right")
    for level in plan.noise:
        values = (level.local_steps, level.rounds, level.sigma, level.client_sigma)
        table.add_row(*map(number, values))
    return table


def trade_off(plans: list[Plan]) -> Table:
    """One line per budget."""
    table = Table(title="what more budget buys", title_justify="left")
    for heading in ("epsilon", "nu^2", "rounds x steps", "excess loss", "test error", "verdict"):
        table.add_column(heading, justify="left" if heading == "verdict" else "right")
    short = {
        "public data alone is as good": "public alone",
        "each silo alone is as good": "silos alone",
    }
    for plan in plans:
        option, predicted = plan.chosen, plan.predicted or Prediction()
        table.add_row(
            f"{plan.epsilon:g}",
            number(plan.nu2),
            f"{option.rounds} x {option.local_steps}" if option else "",
            interval(predicted, "excess_loss"),
            interval(predicted, "test_error"),
            short.get(plan.verdict, plan.verdict) + (", not private" if plan.vacuous else ""),
        )
    return table


def accounts_table(accounts: "Sequence[Account]") -> Table:
    """What the rounds of a job spend, one line for each neighbouring relation."""
    table = Table(**TIGHT)
    sampled = not accounts[0].exact
    spent = ("epsilon at most", "at least") if sampled else ("mu", "epsilon")
    table.add_column("neighbours", no_wrap=True)
    for heading in ("sensitivity", "sigma", *spent):
        table.add_column(heading, justify="right", no_wrap=True)
    for account in accounts:
        epsilons = (account.epsilon, account.epsilon_lower)
        values = epsilons if sampled else (account.mu, account.epsilon)
        shown = map(number, (account.sensitivity, account.sigma, *values))
        table.add_row(account.events[0].neighbours, *shown)
    return table


def spending_table(spends: "Sequence[Spending]") -> Table:
    """What a job spends under each relation, and what an attacker may find."""
    table = Table(**TIGHT)
    exact = all(spending.exact for spending in spends)
    gaussian = any(spending.mu is not None for spending in spends)
    bounded = not exact and any(spending.epsilon_lower for spending in spends)
    headings = ["mu"] * gaussian + ["epsilon" if exact else "epsilon at most"]
    headings += ["at least"] * bounded
    table.add_column("neighbours", no_wrap=True)
    for heading in (*headings, *["found at 1% false alarms"] * gaussian):
        table.add_column(heading, justify="right", no_wrap=True)
    for spending in spends:
        values = [spending.mu] * gaussian + [spending.epsilon]
        values += [spending.epsilon_lower] * bounded
        shown = ["" if value is None else number(value) for value in values]
        rate = "" if spending.tpr is None else f"{spending.tpr:.1%}"
        table.add_row(spending.neighbours, *shown, *[rate] * gaussian)
    return table


def ledger_table(runs: "Sequence[Charged]", standings: "Sequence[Standing]") -> Table:
    """The runs of a ledger, each with its epsilon at the delta of a cap that it is charged to."""
    table = Table(**TIGHT)
    for heading in ("run", "since", "unit"):
        table.add_column(heading, no_wrap=True)
    for heading in ("rounds", "", "mu", "epsilon"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("about")
    for run in runs:
        charged = [standing for standing in standings if standing.counts(run)]
        table.add_row(
            run.name[:16],
            run.when[:10],
            run.cost.unit,
            f"{run.released} of {run.cost.rounds}",
            "open" if run.open else "closed",
            number(math.sqrt(run.row.mu2)),
            number(charged[0].epsilon(Fraction(run.row.mu2))),
            " ".join(str(run.about[name]) for name in ("task", "algorithm") if name in run.about),
        )
    return table


def accountants_table(comparison: "Comparison") -> Table:
    """What each accountant asks for, and what it claims."""
    table = Table(**TIGHT)
    table.add_column("accountant", no_wrap=True)
    asked = f"sigma for epsilon = {comparison.epsilon:.4g}"
    for heading in (asked, "ratio", f"epsilon at sigma = {comparison.sigma:.4g}"):
        table.add_column(heading, justify="right")
    table.add_column("how")
    for row in comparison.rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        table.add_row(row.accountant, number(row.sigma), ratio, number(row.epsilon), row.how)
    return table


def stock_lines(stocks: list[Any]) -> str:
    """Every data set in four lines: what is here, Table 1, where it must lie, its licence and how
    to get it."""
    lines = []
    for stock in stocks:
        whole = "{:,} train and {:,} test records".format(*stock.records)
        here = stock.state
        if stock.train is not None:
            here = f"{stock.state}: {stock.train:,} train and {stock.test:,} test records"
        lines += [
            f"{stock.name:<12}{here}" + ("" if stock.complete else f" (whole: {whole})"),
            f"{'':<12}Table 1: {stock.table_1}",
            f"{'':<12}place:   {stock.place}",
            f"{'':<12}licence: {stock.licence}",
        ]
        if not stock.complete:
            lines.append(f"{'':<12}get it:  {stock.get}")
    return "\n".join(lines)


def best_table(runs: list[tuple[Run, float]]) -> Table:
    """The best local steps so far of every budget, clip and whatever else differs, by mean test
    error over the trials finished."""
    cells: dict[str, dict[int, list[float]]] = {}
    for run, error in runs:
        by_steps = cells.setdefault(_without_trial(run), {})
        by_steps.setdefault(round(1 / run.p), []).append(error)
    settings = [json.loads(cell) for cell in cells]
    shown = _columns(settings)
    table = Table(*shown, "best local steps", "test error", "trials", box=None)
    rows = sorted(
        zip(settings, cells.values(), strict=True),
        key=lambda row: [_order(row[0][name]) for name in shown],
    )
    for cell, by_steps in rows:
        means = {tau: sum(errors) / len(errors) for tau, errors in by_steps.items()}
        tau = min(means, key=lambda tau: (round(means[tau], 12), tau))
        values = (str(cell[name]) for name in shown)
        table.add_row(*values, str(tau), f"{means[tau]:.4f}", str(len(by_steps[tau])))
    return table


def found_table(answers: list[Any]) -> Table:
    """What a search found, and how sure it is."""
    cells = [json.loads(_without_trial(answer.settings)) for answer in answers]
    shown = _columns(cells)
    headings = ("local steps", "predicted error", "best with probability", "others better by")
    table = Table(*shown, *headings, "runs", box=None)
    for answer, cell in zip(answers, cells, strict=True):
        table.add_row(
            *(str(cell[name]) for name in shown),
            str(answer.local_steps),
            f"{answer.predicted:.3g}",
            f"{answer.probability:.0%}",
            f"{answer.regret:.2g}",
            f"{answer.runs} of {answer.of}",
        )
    return table


def _without_trial(run: Any) -> str:
    trial = {"seed", "simulate_noise_seed", "local_steps", "p", "diagnostics"}
    return str(run.model_dump_json(exclude=trial))


def _columns(cells: list[dict[str, Any]]) -> list[str]:
    """Which settings a table of these must show: some always, the others where they differ."""
    names = cells[0] if cells else {}
    differ = [name for name in names if len({json.dumps(cell[name]) for cell in cells}) > 1]
    always = ["task", "unit", "algorithm", "iterations"]
    return list(dict.fromkeys([*always, *differ, "epsilon", "clip"]))


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, before words."""
    return (False, value) if isinstance(value, int | float) else (True, str(value))


def as_text(table: Table) -> str:
    """A table in full width, whatever the terminal's."""
    console = Console(width=240, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def toml_text(document: dict[str, Any]) -> str:
    """A document as TOML: settings, and tables of them under [[variant]]."""
    variants = document.get("variant", [])
    return _toml_lines(document) + "".join(
        f"\n[[variant]]\n{_toml_lines(variant)}" for variant in variants
    )


def _toml_lines(table: dict[str, Any]) -> str:
    lines = [f"{key} = {_toml(value)}\n" for key, value in table.items() if key != "variant"]
    return "".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(part) for part in value)}]"
    return json.dumps(value) if isinstance(value, str | bool) else str(value)
