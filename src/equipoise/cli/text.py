"""Results and plans for a reader: one fact a line, what matters first."""

import json
from math import inf
from typing import Any

from rich.console import Console
from rich.table import Table

from equipoise.planning.plan import Plan
from equipoise.result import Result
from equipoise.settings import Run


def run_facts(result: Result) -> list[tuple[str, str]]:
    """What came out, what was spent, and what was promised to whom: one fact a line."""
    pace = (
        f"{result.local_steps} local steps"
        if result.local_steps
        else f"about {1 / result.p:g} local steps (coin)"
    )
    facts = [
        (
            "",
            f"{result.task}, {result.algorithm}: {_number_of(result.rounds, 'round')} of {pace}, "
            f"{_number_of(result.clients, 'client')}, d = {result.dimension}, eta = "
            f"{result.eta:.4g}",
        ),
    ]
    if result.test_error is None or result.baseline_error is None:
        facts.append(("test error", "no public test records were given (--test FILE)"))
    else:
        facts += [
            (
                "test error",
                f"{result.test_error:.4f}   without training: {result.baseline_error:.4f}",
            ),
            (
                "",
                f"            {result.error_name}, on records declared public, outside the "
                f"guarantee",
            ),
        ]
        if result.test_error >= result.baseline_error:
            facts.append(
                (
                    "",
                    "            no better than not training: fewer rounds, a smaller clip or "
                    "more clients lessen the noise",
                )
            )
    if result.public_only:
        alone = result.public_only
        facts.append(
            (
                "public only",
                f"{alone['test_error']:.4f}   from {alone['records']} public records alone",
            )
        )
    if result.epsilon_spent == inf:
        facts.append(("spent", "everything: epsilon = inf"))
    else:
        would, how = "would spend" if result.simulation else "spent", result.account
        of = (
            f"epsilon = {result.epsilon_spent:.6g} of {result.epsilon:g} at delta = "
            f"{result.delta:g}"
        )
        facts.append((would, f"{of}: {how}, for {_number_of(result.releases, 'release')}"))
    if result.simulation:
        facts.append(("protects", "nobody: see the first line"))
    else:
        whom = {"client": "one client and all it holds", "record": "one record of one client"}[
            result.unit
        ]
        facts.append(("protects", f"{whom} (unit: {result.unit}; neighbours: {result.neighbours})"))
    seen = "every message" if result.trust == "local" else "only the sum of a round"
    colluding = (
        ""
        if result.colluding is None
        else f", while {_number_of(result.colluding, 'client')} may collude"
    )
    facts += [
        ("against", f"an adversary who sees {seen}{colluding} (trust: {result.trust})"),
        (
            "noise",
            f"sigma = {result.sigma:.4g} per coordinate of {_noised(result)}; each client adds "
            f"{result.client_sigma:.4g}",
        ),
        (
            "clip",
            f"C = {result.clip_norm:g}{_sampling(result)}; noise rule: {result.noise_rule}; "
            f"source: {result.noise_source}",
        ),
    ]
    return facts


def _noised(result: Result) -> str:
    if result.trust == "secure-aggregation":
        return "the sum of a round"
    return (
        "a message"
        if result.unit == "client" or result.noise_in == "message"
        else "a client's sum of gradients"
    )


def _sampling(result: Result) -> str:
    """The rates of the secret samples, where there are any."""
    if not result.sampled:
        return ""
    rates = sorted(client.sampling_rate for client in result.per_client or [])
    return f" for one record's gradient; sampling rate {rates[0]:.4g}" + (
        f" to {rates[-1]:.4g}" if rates[0] < rates[-1] else ""
    )


def _number_of(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def diagnostics(result: Result) -> Table:
    table = Table(title="private values, for simulation only", title_justify="left")
    for heading in ("round", "clipped", "mean |update|", "mean |h|", "train error"):
        table.add_column(heading, justify="right")
    for row in result.per_round or []:
        clipped, h_norm = (
            "" if value is None else told.format(value)
            for value, told in ((row.clipped, "{:.0%}"), (row.h_norm, "{:.4g}"))
        )
        table.add_row(
            str(row.round), clipped, f"{row.update_norm:.4g}", h_norm, _number(row.train_error)
        )
    return table


def plan_lines(plan: Plan) -> list[str]:
    """Verdict, reason, plan, prediction, and what else was considered: one fact a line."""
    lines = [
        f"verdict     {plan.verdict.upper()}",
        f"why         {plan.reason}",
        f"budget      epsilon = {plan.epsilon:g}, delta = {plan.delta:g} for one {plan.unit}",
        f"nu^2        {plan.nu2:.3g}, the noise against the signal of one release",
    ]
    if plan.plan:
        p = plan.plan
        lines.append(
            f"plan        {p['algorithm']}: {p['rounds']} round(s) of {p['local_steps']} local "
            f"steps (T = {p['iterations']}), "
            f"eta = {p['eta']:.4g}, C = {p['clip_norm']:.4g}, gamma = {p['gamma']:.3g}"
        )
        what = (
            "what is seen"
            if plan.unit == "client"
            else f"what is noised, the {p['noise_in'].removeprefix('hidden-')}"
        )
        lines.append(
            f"noise       sigma = {p['sigma']:.4g} per coordinate of {what}; each client adds "
            f"{p['client_sigma']:.4g}"
        )
    if plan.predicted:
        lines.append(
            f"predicted   excess loss {_pm(plan.predicted, 'excess_loss')}, test error "
            f"{_pm(plan.predicted, 'test_error')}"
            + (
                f", {plan.predicted['clipped']:.0%} of messages clipped"
                if plan.unit == "client"
                else ""
            )
        )
    if plan.unit == "client" and len(plan.compared) > 1:
        lines.append(f"better      {_better(plan.compared)}")
    if "excess_loss" in plan.untrained:
        lines.append(
            f"untrained   excess loss {plan.untrained['excess_loss']:.4g}, test error "
            f"{_number(plan.untrained['test_error'])}"
        )
    if plan.public_only:
        alone = plan.public_only
        lines.append(
            f"public only test error {alone['test_error']:.4f}, from {alone['records']} public "
            f"records alone"
        )
    if plan.changes:
        what = "clients" if plan.unit == "client" else "records"
        more = plan.changes[what] or "no number of"
        where = "" if plan.unit == "client" else " of each client"
        lines.append(
            f"would do    about epsilon = {plan.changes['epsilon'] or 'inf'}, or {more} "
            f"{what}{where}"
        )
    return [*lines, *(f"public      {sentence}" for sentence in plan.public)]


def _better(compared: dict[str, Any]) -> str:
    """Which algorithm, and whether the difference means anything."""
    (first, one), (second, two) = sorted(compared.items(), key=lambda item: item[1]["excess_loss"])
    ahead = 1 - one["excess_loss"] / two["excess_loss"]
    apart = (
        two["excess_loss"] - one["excess_loss"]
        > 2 * (one["excess_loss_se"] ** 2 + two["excess_loss_se"] ** 2) ** 0.5
    )
    return f"{first} than {second} for this budget, by {ahead:.0%} of the excess loss" + (
        "" if apart else " (within the noise: a tie)"
    )


def comparison(plan: Plan) -> Table | None:
    """The plan beside the other ones that were tried; for clients also the paper's corollary, the
    corrected bound, the law."""
    rows: list[tuple[str, dict[str, Any] | None]] = [
        *(
            (f"two-stage, {name}" if plan.unit == "client" else name.split(", tau")[0], row)
            for name, row in plan.compared.items()
        ),
        ("displacement law", plan.displacement),
        ("corrected bound", plan.corrected),
        ("Corollary 1 as printed", plan.corollary1),
    ]
    there = [(name, row) for name, row in rows if row]
    if not there:
        return None
    table = Table(
        title="what each planner proposes, and what that is worth on the stand-ins",
        title_justify="left",
    )
    columns = [
        "local_steps",
        "rounds",
        *(["bound"] if plan.unit == "client" else []),
        "excess_loss",
        "test_error",
    ]
    table.add_column("planner" if plan.unit == "client" else "noise in, algorithm", no_wrap=True)
    for heading in columns:
        table.add_column(heading.replace("_", " "), justify="right")
    for name, row in there:
        table.add_row(name, *(_number(row.get(key)) for key in columns))
    return table


def noise_table(plan: Plan) -> Table | None:
    """Exact noise for every pace, where nothing else can be said."""
    if not plan.noise:
        return None
    table = Table(
        title="exact noise for every number of local steps that divides T", title_justify="left"
    )
    for heading in ("local steps", "rounds", "sigma", "each client adds"):
        table.add_column(heading, justify="right")
    for row in plan.noise:
        table.add_row(
            *(_number(row[key]) for key in ("local_steps", "rounds", "sigma", "client_sigma"))
        )
    return table


def trade_off(plans: list[Plan]) -> Table:
    """One line per budget."""
    table = Table(title="what more budget buys", title_justify="left")
    for heading in ("epsilon", "nu^2", "rounds x steps", "excess loss", "test error", "verdict"):
        table.add_column(heading, justify="left" if heading == "verdict" else "right")
    for plan in plans:
        p, predicted = plan.plan or {}, plan.predicted or {}
        table.add_row(
            f"{plan.epsilon:g}",
            _number(plan.nu2),
            f"{p['rounds']} x {p['local_steps']}" if p else "",
            *(_pm(predicted, key) for key in ("excess_loss", "test_error")),
            {"public data alone is as good": "public alone"}.get(plan.verdict, plan.verdict),
        )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.4g}"


def _pm(predicted: dict[str, Any], key: str) -> str:
    if predicted.get(key) is None:
        return "not known"
    return f"{predicted[key]:.3f} ± {predicted[key + '_se']:.3f}"


def stock_lines(stocks: list[Any]) -> str:
    """Every data set in four lines: what is here, Table 1, where it must lie, its licence and how
    to get it."""
    lines = []
    for stock in stocks:
        of = "{:,} train and {:,} test records".format(*stock.records)
        here = (
            stock.state
            if stock.train is None
            else f"{stock.state}: {stock.train:,} train and {stock.test:,} test records"
        )
        lines += [
            f"{stock.name:<12}{here}" + ("" if stock.complete else f" (whole: {of})"),
            f"{'':<12}Table 1: {stock.table_1}",
            f"{'':<12}place:   {stock.place}",
            f"{'':<12}licence: {stock.licence}",
            *([] if stock.complete else [f"{'':<12}get it:  {stock.get}"]),
        ]
    return "\n".join(lines)


def best_table(runs: list[tuple[Run, float]]) -> Table:
    """The best local steps so far of every budget, clip and whatever else differs, by mean test
    error over the trials done."""
    cells: dict[Any, dict[int, list[float]]] = {}
    for run, error in runs:
        cells.setdefault(_but_trial(run), {}).setdefault(run.local_steps or 1, []).append(error)
    settings = [json.loads(cell) for cell in cells]
    shown = _columns(settings)
    table = Table(*shown, "best local steps", "test error", "trials", box=None)
    for said, taus in sorted(
        zip(settings, cells.values(), strict=True),
        key=lambda row: [_order(row[0][n]) for n in shown],
    ):
        tau = min(taus, key=lambda tau: (round(sum(taus[tau]) / len(taus[tau]), 12), tau))
        error = sum(taus[tau]) / len(taus[tau])
        table.add_row(
            *(str(said[name]) for name in shown), str(tau), f"{error:.4f}", str(len(taus[tau]))
        )
    return table


def found_table(answers: list[Any]) -> Table:
    """What a search found, and how sure it is."""
    said = [json.loads(_but_trial(answer.settings)) for answer in answers]
    shown = _columns(said)
    table = Table(
        *shown,
        "local steps",
        "predicted error",
        "best with probability",
        "others better by",
        "runs",
        box=None,
    )
    for answer, settings in zip(answers, said, strict=True):
        table.add_row(
            *(str(settings[name]) for name in shown),
            *(
                str(answer.local_steps),
                f"{answer.predicted:.3g}",
                f"{answer.probability:.0%}",
                f"{answer.regret:.2g}",
            ),
            f"{answer.runs} of {answer.of}",
        )
    return table


def _but_trial(run: Any) -> str:
    return str(
        run.model_dump_json(
            exclude={"seed", "simulate_noise_seed", "local_steps", "p", "diagnostics"}
        )
    )


def _columns(said: list[dict[str, Any]]) -> list[str]:
    """Which settings a table of these must show: some always, the others where they differ."""
    differ = [
        name
        for name in (said[0] if said else {})
        if len({json.dumps(one[name]) for one in said}) > 1
    ]
    return list(
        dict.fromkeys(["task", "unit", "algorithm", "iterations", *differ, "epsilon", "clip_norm"])
    )


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

    def told(value: Any) -> str:
        if isinstance(value, list | tuple):
            return f"[{', '.join(told(one) for one in value)}]"
        return json.dumps(value) if isinstance(value, str | bool) else str(value)

    def lines(table: dict[str, Any]) -> str:
        return "".join(
            f"{key} = {told(value)}\n" for key, value in table.items() if key != "variant"
        )

    return lines(document) + "".join(
        f"\n[[variant]]\n{lines(variant)}" for variant in document.get("variant", [])
    )
