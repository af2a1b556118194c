"""guarantee.md: the complete statement of what a run guarantees, from its result alone."""

import math

from equipoise.describe import adapted_facts, clipped, counting
from equipoise.describe_measures import estimate_text
from equipoise.facts import EQUAL
from equipoise.measures import MEASURES, SHORT
from equipoise.privacy.promise import REASONABLE, STRONG
from equipoise.privacy.statement.document import (
    Guarantee,
    guarantee_of,
    strength,
)
from equipoise.privacy.statement.place import where_it_ran, why_only_sums
from equipoise.privacy.statement.rounding import as_given, at_least, at_most
from equipoise.privacy.statement.words import (
    LAW,
    NEIGHBOURS,
    RETURNED,
    TRUST,
    UNIT,
)
from equipoise.result import Adapted, Result


def statement(result: Result, model_sha256: str | None = None) -> str:
    """Markdown; the numbers in its tables are written so that they read back exactly."""
    if result.adapted:
        return _not_to_be_released(result, result.adapted, model_sha256)
    title, promised = "# Privacy guarantee of a training run", "## What is guaranteed"
    if not result.private:
        title, promised = "# NOT a privacy guarantee", "## What the run spends"
    if result.run.simulation and result.account.sigma > 0:
        promised = "## What the run would spend, were the noise secret and nothing else shown"
    guarantee = guarantee_of(result, model_sha256)
    sections = [title, *(f"**{notice}**" for notice in result.notices)]
    if result.private:
        sections += [f"> {guarantee.sentence}", _definition(result, guarantee)]
    if guarantee.attack:
        sections += ["## What an attacker gains", _attack(guarantee)]
    if result.private and guarantee.attack:
        sections += ["## Two situations that are to look alike, and two that are not"]
        sections += [
            f"- {guarantee.attack.likeness()}: {guarantee.alike}\n"
            f"- May well be told apart: {guarantee.unlike}"
        ]
    if result.run.epsilon < math.inf:
        sections += [promised, _table(_promised(result)), guarantee.delta_sentence]
        sections += [_several(guarantee)]
    sections += ["## What was released", _table(_released(result))]
    if result.account.sigma > 0:
        sections += [_per_client(result), _conditions(result)]
        sections += ["## How to check it", _accountant(result)]
    sections += ["## How the settings were chosen", guarantee.chosen]
    sections += ["## What the model is worth", _worth(result, guarantee)]
    sections += ["## The run", _origin(result, model_sha256), _owner(guarantee)]
    if result.run.epsilon < math.inf:
        sections += ["## What is not covered", _list(guarantee.assumptions)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _attack(guarantee: Guarantee) -> str:
    """The curve in words, and at some points."""
    attack = guarantee.attack
    assert attack
    rows = [f"| {' | '.join(row)} |" for row in attack.table()]
    bound = "exact for the worst neighbours" if attack.exact else "an upper bound"
    asked = ""
    if attack.max_tpr is not None:
        asked = (
            f" The run was asked to let nobody find more than {as_given(attack.max_tpr)} at "
            f"{as_given(attack.fpr)}."
        )
    heading = "| false alarms | found at most | of which epsilon and delta alone would warn |"
    return "\n".join(
        [f"{attack.sentence}{asked} This is {bound}.", "", heading, "|---|---|---|", *rows]
    )


def _worth(result: Result, guarantee: Guarantee) -> str:
    """Utility beside privacy, by group where that was measured."""
    lines, measures = [guarantee.utility.sentence], result.measures
    for part in measures.groups if measures else ():
        shown = (name for name in SHORT if name in part.estimates)
        words = (f"{MEASURES[name].words} {estimate_text(part.estimates[name])}" for name in shown)
        lines.append(f"- {part.name} ({part.records} records): {', '.join(words)}")
    if measures and measures.groups:
        lines.insert(1, f"\nBy {measures.grouped_by}, with 95 % intervals:\n")
    return "\n".join(lines)


def _owner(guarantee: Guarantee) -> str:
    """What only the owner can say, to be filled in."""
    about = guarantee.about
    asked = ("purpose", "controller", "contact", "retention")
    answers = {name: " ".join(getattr(about, name).split()) for name in asked}
    return _list([f"{name}: {text or '(not stated)'}" for name, text in answers.items()])


def _not_to_be_released(result: Result, adapted: Adapted, model_sha256: str | None) -> str:
    """Of a model that was tuned at home; the account is that of the run that it came from."""
    account, unit = result.account, result.run.unit
    spent = "epsilon = inf: no noise was added"
    if account.epsilon < math.inf:
        spent = f"epsilon = {_number(account.epsilon)} at delta = {_number(result.run.delta)}"
    sections = [
        "# NOT TO BE RELEASED",
        *(f"**{notice}**" for notice in result.notices),
        f"This model was tuned on {adapted.records} records of one client, without clip and noise. "
        "It may give any of these records away, and no guarantee covers it. It stays where the "
        "records are: it is not sent, published, averaged with others, or used as the start of a "
        "federation.",
        _table(dict(adapted_facts(adapted))),
        f"The run that it came from spent {spent} for one {unit} ({result.run.algorithm}, "
        f"{result.run.clients} clients); tuning at home spent nothing, since nothing of it leaves. "
        "The guarantee of that run is about its own model, which lies in its own folder.",
        f"Equipoise {result.version}."
        if not model_sha256
        else f"Equipoise {result.version}. This "
        f"is about the model in the file with SHA-256 `{model_sha256}`.",
    ]
    return "\n\n".join(sections) + "\n"


def _promised(result: Result) -> dict[str, str]:
    run, account = result.run, result.account
    how = "exact" if account.exact else "upper bound"
    others = "; of the clients that do not collude" if run.colluding else ""
    lower = None if account.exact else account.epsilon_lower
    return {
        f"epsilon, {how}": _number(account.epsilon),
        **({} if lower is None else {"epsilon, lower bound": _number(lower)}),
        "epsilon, nominal": _number(run.epsilon),
        "delta": _number(run.delta),
        "mu of Gaussian DP": "not defined (sampled)" if account.mu is None else _number(account.mu),
        "unit": f"{run.unit}: {UNIT[run.unit]}{others}",
        "neighbours": f"{run.neighbours}: " + NEIGHBOURS[run.neighbours].format(unit=run.unit),
        "trust": run.trust,
        "the adversary sees": TRUST[run.trust] + why_only_sums(result),
        "colluding clients": "any number" if run.colluding is None else str(run.colluding),
        "clients": str(run.clients),
        "where it ran": where_it_ran(result),
    }


def _released(result: Result) -> dict[str, str]:
    run, account = result.run, result.account
    what = "nothing noised" if account.sigma == 0 else run.mechanism.words.released
    if account.sampled:
        what += f"; the {run.unit}s of a step are a secret Poisson sample, {_rates(result)}"
    rule = run.noise_rule if run.v is None else f"{run.noise_rule}, v = {run.v}"
    return {
        "releases": str(account.releases),
        "what": f"of each client, {result.dimension} numbers at a time: {what}",
        "clip C": _number(run.clip),
        "C bounds": clipped(run),
        "sensitivity": _number(account.sensitivity),
        "sigma": _number(account.sigma),
        "sigma is": f"per coordinate, of {_noised(result)}{_largest(result)}",
        "sigma of one client": _number(result.client_sigma),
        "weights": _weights(result),
        "schedule": f"{run.schedule}, drawn before training from public values only",
        **_lattice(result),
        "noise source": result.noise_source,
        "noise rule": rule,
    }


def _weights(result: Result) -> str:
    """How much clients count, and where their messages become shorter by it."""
    run = result.run
    text = counting(run)
    if run.weights != EQUAL and run.trust == "secure-aggregation":
        text += (
            "; before noise is added, each multiplies its message by its weight over the largest "
            "client's; the sensitivity is that of what is sent"
        )
    return text


def _lattice(result: Result) -> dict[str, str]:
    """Where releases lie, and the law of the noise that was drawn."""
    run = result.run
    if not result.lattice:
        return {}
    words = run.mechanism.words
    steps = f"{_number(result.lattice)}: {words.on_lattice} is a whole multiple of it"
    return {"lattice": steps, "law of the noise": words.law or LAW[run.trust]}


def _rates(result: Result) -> str:
    """Which sampling rates were used."""
    if len({event.rate for event in result.account.events}) == 1:
        return "with one rate for all clients"
    return (
        f"each client with a rate of its own, such that it has about {result.run.batch} "
        f"{result.run.unit}s on average (all of them where there are fewer)"
    )


def _largest(result: Result) -> str:
    differ = len({event.sigma for event in result.account.events}) > 1
    return (
        "; the largest: each client has its own, so that none adds more than its own records need"
        if differ
        else ""
    )


def _noised(result: Result) -> str:
    if result.run.trust == "secure-aggregation":
        return "the sum of a round, after the colluders subtract their own noise"
    return result.run.mechanism.words.noised


def _conditions(result: Result) -> str:
    """What the sensitivity follows from, where it is not the clip's."""
    constants = result.account.follows_from
    if not constants:
        return ""
    listed = ", ".join(f"{name} = {_number(value)}" for name, value in constants.items())
    return result.run.mechanism.words.follows_from.format(constants=listed)


def _per_client(result: Result) -> str:
    """What each client adds and spends, where that is told."""
    if not result.sizes or len(result.sizes) != len(result.account.events):
        return ""
    account = result.account
    rows = []
    for i, (size, event, epsilon) in enumerate(
        zip(result.sizes, account.events, account.epsilons, strict=True)
    ):
        numbers = (event.rate, event.sensitivity, event.sigma, epsilon)
        rows.append(f"| {i} | {size} | {' | '.join(map(_number, numbers))} |")
    heading = f"| client | {result.run.unit}s | sampling rate | sensitivity | sigma | epsilon |"
    introduction = "The run's epsilon is the largest of its clients':"
    return "\n".join([introduction, "", heading, "|---|---|---|---|---|---|", *rows])


def _several(guarantee: Guarantee) -> str:
    """What it means for somebody who has several records."""
    if not guarantee.several:
        return ""
    rows = []
    for group in guarantee.several:
        epsilon = float(group.epsilon)
        hidden = "nothing is promised" if group.delta >= 1 else f"epsilon = {at_most(epsilon, 3)}"
        at = "" if group.delta >= 1 else f" at delta = {at_most(group.delta, 2)}"
        rows.append(f"- {group.units} records: {hidden}{at}")
    return "\n".join(
        [
            "Somebody with several records at one client is protected less, all of them taken "
            "together (unit person protects all records of a person at the full strength):",
            "",
            *rows,
        ]
    )


def _accountant(result: Result) -> str:
    if result.account.sampled:
        relation = {"replace-one": "REPLACE_ONE", "add-remove": "ADD_OR_REMOVE_ONE"}
        return (
            "Accountant: privacy loss distributions of Google's dp-accounting, rounded to the "
            "pessimistic side: an upper bound. With `noise` = sigma / C (for replace-one too: the "
            "accountant doubles the sensitivity itself), for each client:\n\n"
            "```python\n"
            "from dp_accounting import GaussianDpEvent, NeighboringRelation\n"
            "from dp_accounting import PoissonSampledDpEvent, SelfComposedDpEvent\n"
            "from dp_accounting.pld import PLDAccountant\n\n"
            f"relation, grid = NeighboringRelation.{relation[result.run.neighbours]}, "
            f"{_grid(result)!r}\n"
            "accountant = PLDAccountant(relation, value_discretization_interval=grid)\n"
            "sampled = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))\n"
            "accountant.compose(SelfComposedDpEvent(sampled, releases))\n"
            "epsilon = accountant.get_epsilon(delta)\n"
            "```"
        )
    return (
        "Accountant: exact Gaussian differential privacy. With mu = sensitivity * sqrt(releases) / "
        "sigma, epsilon is the smallest number with Phi(mu/2 - epsilon/mu) - exp(epsilon) * "
        "Phi(-mu/2 - epsilon/mu) <= delta, Phi the standard normal distribution function (Dong, "
        "Roth and Su 2022; Balle and Wang 2018). Its tail needs care: use erfc, or "
        "`equipoise.privacy.epsilon_spent(sigma, releases, sensitivity, delta)`."
    )


def _grid(result: Result) -> float:
    """On which every client's epsilon comes out as told."""
    from equipoise.privacy.sampled import Sampled, grid_of  # scipy

    account, run = result.account, result.run
    sampled = [event for event in account.events if event.rate < 1]
    steps = [Sampled(e.sigma / run.clip, e.count, e.rate, run.neighbours) for e in sampled]
    return min(grid_of(step, account.epsilon, run.delta) for step in steps)


def _definition(result: Result, guarantee: Guarantee) -> str:
    unit, epsilon, delta = result.run.unit, result.account.epsilon, result.run.delta
    return (
        f"The whole run is (epsilon, delta)-differentially private for one {unit}, with "
        f"epsilon = {at_most(epsilon)} (rounded up; the table has all digits{_between(result)}) "
        f"and delta = {at_most(delta)}{_mu(result)}, "
        "under the definitions below: for all neighbouring data sets, in either order, and "
        "every set S of outcomes that the adversary may see, P(S) <= e^epsilon * P'(S) + "
        "delta, where P and P' are the distributions of the outcome under the one and under "
        f"the other.{_strength(epsilon)} {guarantee.reach}"
    )


def _mu(result: Result) -> str:
    """The parameter of the calculus in which the run was accounted for."""
    mu = result.account.mu
    if mu is None:
        return ""
    slack = max(event.slack for event in result.account.events)
    nearly = f" (up to factors of e^(+-{slack:.2g}), which epsilon includes)" if slack else ""
    return f", since it is mu-Gaussian differentially private, mu = {at_most(mu)}{nearly}"


def _between(result: Result) -> str:
    """Where the exact epsilon lies, if what is told is only an upper bound of it."""
    account = result.account
    if account.exact or account.epsilon_lower is None:
        return ""
    lower, upper = at_least(account.epsilon_lower), at_most(account.epsilon)
    return f"; the exact one is between {lower} and {upper}"


def _strength(epsilon: float) -> str:
    """What this epsilon lets anybody conclude, and how strong that is called."""
    factor, name = math.exp(epsilon), strength(epsilon)
    sure = at_most(100 * factor / (1 + factor), 4)
    return (
        f" Here e^epsilon is about {factor:.3g}: delta aside, of two neighbouring data sets that "
        f"seemed equally likely before, nobody becomes more than {sure} % sure "
        f"of one. Such an epsilon is called {name}: strong up to {STRONG:g}, reasonable up to "
        f"{REASONABLE:g}, weak above (Ponomareva et al. 2023, How to DP-fy ML)."
    )


def _origin(result: Result, model_sha256: str | None) -> str:
    parts = [
        f"Equipoise {result.version}, algorithm {result.run.algorithm}, {result.run.iterations} "
        f"local steps in {result.rounds} rounds. {RETURNED[result.run.returns]}"
    ]
    if origin := result.origin:
        parts.append(f"Run `{origin.run}`, ended {origin.when}.")
    if model_sha256:
        parts.append(f"This is about the model in the file with SHA-256 `{model_sha256}`.")
    if result.origin and result.origin.fingerprints:
        prints = "\n".join(f"- `{text}`" for text in result.origin.fingerprints)
        parts.append(
            "Fingerprints of the data files, in the order of the clients, for their owner alone: "
            f"HMAC-SHA-256, under a salt that stays with the owner, of their SHA-256.\n\n{prints}"
        )
    if result.repeat:
        parts.append(
            f"Command that says the same (each run spends a budget of its own): `{result.repeat}`"
        )
    return "\n\n".join(parts)


def _number(value: float) -> str:
    return "inf" if value == math.inf else repr(float(value))


def _table(rows: dict[str, str]) -> str:
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _list(items: list[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
