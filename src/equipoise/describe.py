"""Results and plans in words: one fact a line, what matters first. Plain text, for every reader."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from math import inf

from equipoise.planning.plan import Option, Plan, Prediction
from equipoise.result import Result
from equipoise.settings import Run

WIDTH = 12  # of the names at the left


def result_lines(result: Result) -> list[str]:
    """Notices first, then what came out, what was spent, and what was promised to whom."""
    return [*result.notices, headline(result), *_aligned(result_facts(result))]


def _aligned(facts: list[tuple[str, str]]) -> list[str]:
    return [f"{name:<{WIDTH}}{text}" for name, text in facts]


def result_facts(result: Result) -> list[tuple[str, str]]:
    facts = [*_errors(result), *_returns(result), _spent(result), _protected(result)]
    if result.run.epsilon < inf:
        facts += [_adversary(result), _noise(result)]
    return [*facts, _clip(result)]


def headline(result: Result) -> str:
    """What was trained, how."""
    run = result.run
    pace = f"about {1 / run.p:g} local steps (coin)"
    if run.local_steps:
        pace = number_of(run.local_steps, "local step")
    return (
        f"{run.task}, {run.algorithm}{_options(run.options)}: "
        f"{number_of(result.rounds, 'round')} of {pace}, {number_of(run.clients, 'client')}, "
        f"d = {result.dimension}, eta = {run.eta:.4g}"
    )


def _options(options: dict[str, float | str]) -> str:
    return (
        f" ({', '.join(f'{name} {value}' for name, value in options.items())})" if options else ""
    )


def _errors(result: Result) -> list[tuple[str, str]]:
    error, start = result.test_error, result.baseline_error
    if error is None or start is None:
        return [("test error", "no public test records were given (--test FILE)")]
    text = f"{error:.4f}; without training {start:.4f}"
    if alone := result.public_only:
        text += f"; from {alone.records} public records alone {alone.test_error:.4f}"
    facts = [("test error", f"{text} ({result.error_name}, on public records)")]
    if error >= start:
        facts.append(("", f"no better than not training{_way_out(result)}"))
    return facts


def _returns(result: Result) -> list[tuple[str, str]]:
    """Where it is not the last model."""
    if result.run.returns == "last":
        return []
    return [("returns", "the average of all rounds' models (weights k^3)")]


def _way_out(result: Result) -> str:
    """What lessens the noise, where there is any."""
    if result.account.sigma == 0:
        return ""
    per_round = result.run.mechanism.paid_per == "round"
    fewer = "fewer rounds, " if per_round else "fewer local steps in all, "
    fewer = fewer if result.account.releases > 1 else ""
    more = "clients" if result.run.unit == "client" else "records"
    return f": {fewer}a smaller clip or more {more} would lessen the noise"


def _spent(result: Result) -> tuple[str, str]:
    run, account = result.run, result.account
    if account.epsilon == inf:
        return ("privacy", "none (epsilon = inf)")
    how = "exact" if account.exact else "an upper bound"
    if account.sampled and account.epsilon_lower:
        how += f" (the exact one is at least {account.epsilon_lower:.6g})"
    return (
        "would spend" if run.simulation else "spent",
        f"epsilon = {account.epsilon:.6g} of {run.epsilon:g} at delta = {run.delta:g}: {how}, for "
        f"{number_of(account.releases, 'release')}",
    )


def _protected(result: Result) -> tuple[str, str]:
    run = result.run
    if run.simulation:
        return ("protects", "nobody: see the first line")
    if result.vacuous:
        return ("protects", f"nobody: {result.vacuous}")
    whom = {"client": "all data of one client", "record": "one record of one client"}[run.unit]
    return ("protects", f"{whom} (unit: {run.unit}; neighbours: {run.neighbours})")


def _adversary(result: Result) -> tuple[str, str]:
    run = result.run
    seen = "every message" if run.trust == "local" else "only the sum of a round"
    colluding = ""
    if run.colluding is not None:
        colluding = f", while {number_of(run.colluding, 'client')} may collude"
    return ("against", f"an adversary who sees {seen}{colluding} (trust: {run.trust})")


def _noise(result: Result) -> tuple[str, str]:
    sigmas = [event.sigma for event in result.account.events]
    least, most = min(sigmas), max(sigmas)
    size, added = f"{most:.4g}", f"each client adds {result.client_sigma:.4g}"
    if least < most:
        size, added = f"{least:.4g} to {most:.4g}", "each client adds its own"
    return ("noise", f"sigma = {size} per coordinate of {noised(result)}; {added}")


def noised(result: Result) -> str:
    """What sigma is the noise of."""
    if result.run.trust == "secure-aggregation":
        return "the sum of a round"
    return result.run.mechanism.words.noised


def _clip(result: Result) -> tuple[str, str]:
    run, rates = result.run, sorted({event.rate for event in result.account.events})
    sampling = ""
    if result.account.sampled:
        to = f" to {rates[-1]:.4g}" if len(rates) > 1 else ""
        sampling = f"; sampling rate {rates[0]:.4g}{to}"
    return (
        "clip",
        f"C = {run.clip:g}, of {clipped(run)}{sampling}; noise rule: {run.noise_rule}; source: "
        f"{result.noise_source}",
    )


def clipped(run: Run) -> str:
    """What C bounds."""
    return "a message" if run.mechanism.clips_message else "one record's gradient"


def plan_lines(plan: Plan) -> list[str]:
    return _aligned(plan_facts(plan))


def plan_facts(plan: Plan) -> list[tuple[str, str]]:
    """Verdict, reason, plan, prediction, and what else was considered."""
    return [
        *(("privacy", notice) for notice in plan.notices),
        ("verdict", plan.verdict.upper()),
        ("why", plan.reason),
        ("budget", _budget(plan)),
        *_nu2(plan),
        *_chosen(plan),
        *_beside(plan),
        ("public", "; ".join(plan.public)),
    ]


def _nu2(plan: Plan) -> list[tuple[str, str]]:
    if plan.nu2 is None:
        return []
    text = f"{plan.nu2:.3g}: mean of |averaged noise|^2 / C^2 if there were one release"
    if plan.unit == "client" or plan.chosen:  # not of sampled gradients
        text += "; with K releases each has K times that"
    return [("nu^2", text)]


def _budget(plan: Plan) -> str:
    promise = plan.promise
    return (
        f"epsilon = {plan.epsilon:g}, delta = {plan.delta:g} for one {plan.unit} "
        f"({promise.neighbours}; trust: {promise.trust})"
    )


def _chosen(plan: Plan) -> list[tuple[str, str]]:
    option = plan.chosen
    if option is None:
        return []
    what = "what the adversary sees"
    if plan.unit == "record":
        what = f"what is noised (noise in: {option.noise_in})"
    facts = [
        (
            "plan",
            f"{option.algorithm}{_options(option.options)}: {number_of(option.rounds, 'round')} of "
            f"{number_of(option.local_steps, 'local step')} (T = {option.iterations}), eta = "
            f"{option.eta:.4g}, C = {option.clip:.4g}, gamma = {option.gamma:.3g}",
        ),
        (
            "noise",
            f"sigma = {option.sigma:.4g} per coordinate of {what}; each client adds "
            f"{option.client_sigma:.4g}",
        ),
    ]
    predicted = option.predicted
    if predicted.excess_loss is not None:
        clipped = ""
        if plan.unit == "client" and predicted.clipped is not None:
            clipped = f", {predicted.clipped:.0%} of messages clipped"
        facts.append(
            (
                "predicted",
                f"excess loss {pm(predicted, 'excess_loss')}, test error "
                f"{pm(predicted, 'test_error')}{clipped}",
            )
        )
    return facts


def _beside(plan: Plan) -> list[tuple[str, str]]:
    """The comparison of algorithms, not training, public records alone, and what would be
    enough.
    """
    facts = {
        "compared": _better(plan) if plan.unit == "client" else None,
        "untrained": _untrained(plan),
        "needed": _needed(plan),
    }
    return [(name, text) for name, text in facts.items() if text]


def _untrained(plan: Plan) -> str | None:
    start, alone = plan.untrained, plan.public_only
    if start.excess_loss is None:
        return None
    text = f"excess loss {start.excess_loss:.4g}"
    if start.test_error is not None:
        text += f", test error {start.test_error:.4g}"
    if alone:
        text += f"; {alone.records} public records alone: test error {alone.test_error:.4g}"
    return text


def _needed(plan: Plan) -> str | None:
    changes = plan.changes
    if not changes:
        return None
    more, what = changes.clients, "clients"
    if plan.unit == "record":
        more, what = changes.records, "records of each client"
    epsilon = changes.epsilon or inf
    private = (
        "" if not replace(plan.promise, epsilon=epsilon).vacuous(plan.units) else " (not private)"
    )
    return f"about epsilon = {epsilon}{private}, or {more or 'no number of'} {what}"


def _better(plan: Plan) -> str | None:
    """Which algorithm, and whether the difference means anything."""
    tried = [option for option in plan.options if option.predicted.excess_loss_se is not None]
    tried = [option for option in tried if option.origin == option.algorithm]
    if len(tried) < 2:
        return None
    first, second = sorted(tried, key=lambda option: option.predicted.excess_loss or 0.0)[:2]
    least, next_least = (_excess(option) for option in (first, second))
    ahead = 1 - least / next_least
    spread = (_excess_se(first) ** 2 + _excess_se(second) ** 2) ** 0.5
    if next_least - least <= 2 * spread:
        return f"{first.algorithm} and {second.algorithm} tie, within the spread of the trials"
    return f"{first.algorithm} leaves {ahead:.0%} less excess loss than {second.algorithm}"


def _excess(option: Option) -> float:
    return option.predicted.excess_loss or 0.0


def _excess_se(option: Option) -> float:
    return option.predicted.excess_loss_se or 0.0


def pm(predicted: Prediction, name: str) -> str:
    """A predicted mean and its standard error."""
    mean, error = getattr(predicted, name), getattr(predicted, f"{name}_se")
    return "not known" if mean is None else f"{mean:.3f} ± {error:.3f}"


def number(value: float | None) -> str:
    """A number in a table; what is not known is left blank."""
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def number_of(count: float, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def as_html(facts: list[tuple[str, str]], above: Sequence[str] = ()) -> str:
    """For a notebook: what stands above, then a row for each fact."""
    lines = "".join(f"<div>{escape(line)}</div>" for line in above)
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in facts
    )
    return f"{lines}<table>{rows}</table>"
