"""Results and plans in words: one fact a line, what matters first. Plain text, for every reader."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from math import inf
from typing import TYPE_CHECKING

from equipoise.describe_measures import measure_facts, number_of
from equipoise.facts import BY_RECORDS, EQUAL
from equipoise.measures import Measures
from equipoise.planning.plan import Option, Plan, Prediction, Way
from equipoise.result import Adapted, Result
from equipoise.settings import Run

if TYPE_CHECKING:
    from equipoise.estimate import DryRun

WHOM = {
    "client": "all data of one client",
    "record": "one record of one client",
    "person": "all that one client holds of one person",
}
WIDTH = 12  # of the names at the left
TIE = 0.02  # algorithms that are closer are called equal


def result_lines(result: Result, parts: bool = True) -> list[str]:
    """Notices first, then what came out, what was spent, and what was promised to whom. Without the
    groups of test records where a table shows them."""
    return [*result.notices, headline(result), *_aligned(result_facts(result, parts))]


def dry_run_lines(dry: "DryRun") -> list[str]:
    """Notices first, then what would be spent on what, and what it would take."""
    result, spent = dry.result, _spent(dry.result)[1]
    ledger = [("ledger then", str(standing)) for standing in dry.ledger or ()]
    facts = [("would spend", spent), *ledger]
    facts += [*_returns(result), *_promised(result), *_taken(dry)]
    return [*result.notices, headline(result), *_aligned(facts)]


def agreed_lines(result: Result) -> list[str]:
    """What the parties of an agreement agree on, given what is known of the run beforehand."""
    assert result.federated
    facts = [
        ("agreement", f"SHA-256 {result.federated.agreement}"),
        ("silos", ", ".join(result.federated.silos)),
        ("would spend", _spent(result)[1]),
    ]
    facts += [*_returns(result), *_promised(result)]
    return [*result.notices, headline(result), *_aligned(facts)]


def _taken(dry: "DryRun") -> list[tuple[str, str]]:
    memory = "" if dry.memory is None else f"; about {_bytes(dry.memory)} of memory"
    return [
        ("would take", f"about {duration(dry.seconds)} here, after the files are read{memory}"),
        ("dry run", "nothing was trained, nothing is spent, and nothing was written"),
    ]


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s" if seconds < 1 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _bytes(number: int) -> str:
    return f"{number / 1e9:.0f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


def _aligned(facts: list[tuple[str, str]]) -> list[str]:
    return [f"{name:<{WIDTH}}{text}" for name, text in facts]


def result_facts(result: Result, parts: bool = True) -> list[tuple[str, str]]:
    if result.adapted:
        return adapted_facts(result.adapted)
    measures = measure_facts(result.measures, parts) if result.measures else []
    facts = [*_errors(result), *measures]
    return [*facts, *_returns(result), _spent(result), *_promised(result)]


def _promised(result: Result) -> list[tuple[str, str]]:
    facts = [_protected(result)]
    if result.run.epsilon < inf:
        facts += [_adversary(result), _noise(result)]
    return [*facts, _clip(result), *_weights(result.run)]


def adapted_facts(adapted: Adapted) -> list[tuple[str, str]]:
    """How a model was tuned at home, and what cross-validation there says of it."""
    how = f"rho = {adapted.rho:g}, of own loss + (rho/2) |x - x_federated|^2"
    if adapted.rho == inf:
        how = "rho = inf: the federated model as it is"
    elif adapted.rho == 0:
        ridge = f", with l2 = {adapted.l2:g}" if adapted.l2 else ""
        how = f"rho = 0: one's own records alone{ridge}"
    return [
        ("tuned", f"{how}; {', '.join(adapted.tensors)}; {number_of(adapted.records, 'record')}"),
        (
            "at home",
            f"error {adapted.error:.4f} ± {adapted.standard_error:.4f} by cross-validation on "
            f"these records; federated model {adapted.federated_error:.4f}, own records alone "
            f"{adapted.alone_error:.4f}",
        ),
    ]


def headline(result: Result) -> str:
    """What was trained, how."""
    run = result.run
    pace = f"about {1 / run.p:g} local steps (coin)"
    if run.local_steps:
        pace = number_of(run.local_steps, "local step")
    return (
        f"{run.task}, {run.algorithm}{_options({**run.chosen_steps, **run.options})}: "
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


def measure_lines(measures: Measures, parts: bool = True) -> list[str]:
    return _aligned(measure_facts(measures, parts))


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
    more = f"{result.run.unit}s"
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
    return ("protects", f"{WHOM[run.unit]} (unit: {run.unit}; neighbours: {run.neighbours})")


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


def _weights(run: Run) -> list[tuple[str, str]]:
    """Where clients do not all count alike."""
    if run.weights == EQUAL:
        return []
    return [("weights", counting(run))]


def counting(run: Run) -> str:
    """How much clients count."""
    if run.weights == EQUAL:
        return "clients count 1/N each"
    if run.weights == BY_RECORDS:
        what = "person" if run.unit == "person" else "record"
        return f"clients count in proportion to their numbers of {what}s"
    return f"clients count in proportion to {run.weights}"


def clipped(run: Run) -> str:
    """What C bounds."""
    return "a message" if run.mechanism.clips_message else f"one {run.unit}'s gradient"


def plan_lines(plan: Plan, ways: bool = True) -> list[str]:
    """Without the ways where a table shows them."""
    return _aligned(plan_facts(plan, ways))


def plan_facts(plan: Plan, ways: bool = True) -> list[tuple[str, str]]:
    """What was guessed, verdict, reason, plan, prediction, and what else was considered."""
    return [
        *(("privacy", notice) for notice in plan.notices),
        *(("guessed", note.removeprefix(GUESSED)) for note in plan.notes if _guess(note)),
        ("verdict", plan.verdict.upper()),
        ("why", plan.reason),
        *(_ways(plan) if ways else []),
        ("budget", _budget(plan)),
        *_nu2(plan),
        *_chosen(plan),
        *_beside(plan),
        *(("note", note) for note in plan.notes if not _guess(note)),
        ("public", "; ".join(plan.public)),
    ]


GUESSED = "GUESSED: "


def _guess(note: str) -> bool:
    return note.startswith(GUESSED)


def _ways(plan: Plan) -> list[tuple[str, str]]:
    """One line for each way."""
    return [("ways" if not i else "", way_line(way)) for i, way in enumerate(plan.ways)]


def way_line(way: Way) -> str:
    text = f"{way.name}: error {interval(way.predicted, 'test_error')}"
    if way.smallest is not None:
        text += f"; the smallest silo {interval(way.smallest, 'test_error')}"
    if way.measured is not None:
        text += f"; on the task's test records {way.measured:.4g}"
    return text


def _nu2(plan: Plan) -> list[tuple[str, str]]:
    if plan.nu2 is None:
        return []
    text = f"{plan.nu2:.3g}: mean of |averaged noise|^2 / C^2 if there were one release"
    if plan.unit == "client" or plan.chosen:  # not of sampled gradients
        text += "; with K releases each has K times that"
    return [("nu^2", text)]


def _budget(plan: Plan) -> str:
    promise, asked, bound = plan.promise, plan.settings, ""
    if asked and asked.max_tpr is not None and asked.fpr is not None:
        rates = asked.fpr, asked.max_tpr
        bound = "; no attacker with {:.3g} of false alarms finds more than {:.3g}".format(*rates)
    return (
        f"epsilon = {plan.epsilon:g}, delta = {plan.delta:g} for one {plan.unit} "
        f"({promise.neighbours}; trust: {promise.trust}){bound}"
    )


def _chosen(plan: Plan) -> list[tuple[str, str]]:
    option = plan.chosen
    if option is None:
        return []
    what = "what the adversary sees"
    if plan.unit != "client":
        what = f"what is noised (noise in: {option.noise_in})"
    start = ", from the public model" if option.warm_start else ""
    returns = ", returns the average" if option.returns == "average" else ""
    others = "" if option.l2 is None else f", l2 = {option.l2:g}"
    if option.sampling_rate is not None:
        others += f", sampling rate = {option.sampling_rate:g}"
    facts = [
        (
            "plan",
            f"{option.algorithm}{_options(option.options)}{start}: "
            f"{number_of(option.rounds, 'round')} of "
            f"{number_of(option.local_steps, 'local step')} (T = {option.iterations}), eta = "
            f"{option.eta:.4g}, C = {option.clip:.4g}, gamma = {option.gamma:.3g}{others}{returns}",
        ),
        (
            "noise",
            f"sigma = {option.sigma:.4g} per coordinate of {what}; each client adds "
            f"{option.client_sigma:.4g}",
        ),
    ]
    return facts + _predicted(option)


def _predicted(option: Option) -> list[tuple[str, str]]:
    predicted = option.predicted
    if predicted.excess_loss is None and predicted.test_error is None:
        return []
    parts = [f"test error {interval(predicted, 'test_error')}"]
    if predicted.excess_loss is not None:
        parts.insert(0, f"excess loss {interval(predicted, 'excess_loss')}")
    if predicted.auroc is not None:
        parts.append(f"AUROC {interval(predicted, 'auroc')}")
    return [("predicted", f"{', '.join(parts)}; in brackets 90 % of what may be")]


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
    if alone and not plan.ways:
        text += f"; {alone.records} public records alone: test error {alone.test_error:.4g}"
    return text


def _needed(plan: Plan) -> str | None:
    changes = plan.changes
    if not changes:
        return None
    more, what = changes.clients, "clients"
    if plan.unit != "client":
        more, what = changes.records, f"{plan.unit}s of each client"
    text = "no epsilon that was tried"
    if changes.epsilon:
        needed = replace(plan.promise, epsilon=changes.epsilon)
        private = " (not private)" if needed.vacuous(plan.units) else ""
        text = f"about epsilon = {changes.epsilon}{private}"
    return f"{text}, or {more or 'no number of'} {what}"


def _better(plan: Plan) -> str | None:
    """Which algorithm does best, and how far the next is behind, in the same worlds."""
    best: dict[str, float] = {}
    for option in plan.options:
        if option.algorithm and option.predicted.excess_loss is not None and option.bound is None:
            left = min(best.get(option.algorithm, inf), option.predicted.excess_loss)
            best[option.algorithm] = left
    if len(best) < 2:
        return None
    first, second = sorted(best, key=best.__getitem__)[:2]
    ahead = 1 - best[first] / best[second]
    if ahead < TIE:
        return f"{first} and {second} tie: less than {TIE:.0%} of the excess loss apart"
    return f"{first} leaves {ahead:.0%} less excess loss than {second}"


def interval(predicted: Prediction, name: str) -> str:
    """A predicted mean, and where 90 % of what is possible lies."""
    mean, ends = getattr(predicted, name), predicted.interval(name)
    if mean is None or ends is None:
        return "not known"
    return f"{mean:.3f} [{ends[0]:.3f}, {ends[1]:.3f}]"


def number(value: float | None, digits: int = 4) -> str:
    """A number in a table; what is not known is left blank."""
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def as_html(facts: list[tuple[str, str]], above: Sequence[str] = ()) -> str:
    """For a notebook: what stands above, then a row for each fact."""
    lines = "".join(f"<div>{escape(line)}</div>" for line in above)
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in facts
    )
    return f"{lines}<table>{rows}</table>"
