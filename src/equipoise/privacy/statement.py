"""guarantee.md: the complete statement of what a run guarantees, from its result alone."""

import math

from equipoise.describe import adapted_facts, clipped, counting
from equipoise.facts import EQUAL
from equipoise.privacy.groups import SHOWN, together
from equipoise.privacy.promise import REASONABLE, STRONG
from equipoise.result import Adapted, Result

UNIT = {
    "client": "everything that one client holds",
    "record": "one record of one client, a row of its data as it was read; the other records are "
    "assumed known",
    "person": "one person at one client, with all records that it holds of that person; those of "
    "all others are assumed known",
}
NEIGHBOURS = {
    "replace-one": "the data of one {unit}, and any other data in its place",
    "zero-out": "the data of one {unit}, and a {unit} whose messages are zero, noised like any "
    "other",
    "add-remove": "the data of a client with one {unit}, and without it, all sampling rates and "
    "divisors unchanged",
}
REACH = {
    "client": "It protects everything that one client, such as a hospital, holds, and so each "
    "person whose records are at that client alone; one with records at several is protected less.",
    "record": "It protects one record, a row of a table. Someone with several records is "
    "protected less, and what a client's records have in common is not hidden at all.",
    "person": "It protects one person, with all records that one client holds of that person. "
    "Somebody with records at several clients is protected less, and what a client's persons have "
    "in common is not hidden at all.",
}
TRUST = {
    "local": "every message of every client, and so every model that follows from them",
    "secure-aggregation": "the sum of the clients' messages of each round, and so every model, and "
    "all that colluding clients know; no other message by itself. This holds only where a secure "
    "aggregation protocol enforces it",
}


LAW = {
    "local": "a Gaussian of standard deviation sigma, rounded to the lattice and sampled exactly: "
    "what leaves is post-processing of exact Gaussian noise",
    "secure-aggregation": "discrete Gaussian on the lattice, sampled exactly and summed modulo "
    "2^32 steps. Its variance, times the honest clients, is sigma^2 plus the square of two steps: "
    "so the sum hides as much as Gaussian noise of sigma, up to factors that epsilon includes; mu "
    "is that of this Gaussian noise",
}
RETURNED = {
    "last": "Returned was the model after the last round.",
    "average": "Returned was the average of the models after rounds k = 1, 2, ..., with weights "
    "k^3: it follows from these models alone, and so spends nothing more.",
}
FLOATING_POINT = (
    "Gaps between floating-point numbers: the lowest bits of a release can tell more than epsilon "
    "allows. (Made by a version that did not yet round releases to a lattice.)"
)


def statement(result: Result, model_sha256: str | None = None) -> str:
    """Markdown; the numbers in its tables are written so that they read back exactly."""
    if result.adapted:
        return _not_to_be_released(result, result.adapted, model_sha256)
    title, promised = "# Privacy guarantee of a training run", "## What is guaranteed"
    if not result.private:
        title, promised = "# NOT a privacy guarantee", "## What the run spends"
    if result.run.simulation and result.account.sigma > 0:
        promised = "## What the run would spend, were the noise secret and nothing else shown"
    sections = [title, _verdict(result)]
    if result.run.epsilon < math.inf:
        sections += [promised, _table(_promised(result))]
    sections += ["## What was released", _table(_released(result))]
    if result.account.sigma > 0:
        sections += [_per_client(result), _several(result), _conditions(result)]
        sections += ["## How to check it", _accountant(result)]
    sections += [_origin(result, model_sha256)]
    if result.run.epsilon < math.inf:
        sections += ["## What is not covered", _list(_not_covered(result))]
    return "\n\n".join(section for section in sections if section) + "\n"


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
        "the adversary sees": TRUST[run.trust],
        "colluding clients": "any number" if run.colluding is None else str(run.colluding),
        "clients": str(run.clients),
        "where it ran": "one process that read the records of all clients: nothing is hidden from "
        "its operator",
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


def _several(result: Result) -> str:
    """What it means for somebody who has several records."""
    run = result.run
    if run.unit != "record":
        return ""
    rows = []
    for units in SHOWN:
        group = together(result.account, run.delta, units)
        hidden = "nothing is promised" if group.delta >= 1 else f"epsilon = {group.epsilon:.3g}"
        at = "" if group.delta >= 1 else f" at delta = {group.delta:.2g}"
        rows.append(f"- {units} records: {hidden}{at}")
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


def _verdict(result: Result) -> str:
    notices = [f"**{notice}**" for notice in result.notices]
    if result.private:
        unit, epsilon, delta = result.run.unit, result.account.epsilon, result.run.delta
        notices.append(
            f"The whole run is (epsilon, delta)-differentially private for one {unit}, with "
            f"epsilon = {epsilon:.6g} (rounded; the table has all digits{_between(result)}) and "
            f"delta = {delta:g}, "
            "under the definitions below: for all neighbouring data sets, in either order, and "
            "every set S of outcomes that the adversary may see, P(S) <= e^epsilon * P'(S) + "
            "delta, where P and P' are the distributions of the outcome under the one and under "
            f"the other.{_strength(epsilon)} {REACH[unit]}"
        )
    return "\n\n".join(notices)


def _between(result: Result) -> str:
    """Where the exact epsilon lies, if what is told is only an upper bound of it."""
    account = result.account
    if account.exact or account.epsilon_lower is None:
        return ""
    return f"; the exact one is between {account.epsilon_lower:.6g} and {account.epsilon:.6g}"


def _strength(epsilon: float) -> str:
    """What this epsilon lets anybody conclude, and how strong that is called."""
    factor = math.exp(epsilon)
    name = "strong" if epsilon <= STRONG else "reasonable" if epsilon <= REASONABLE else "weak"
    return (
        f" Here e^epsilon is about {factor:.3g}: delta aside, of two neighbouring data sets that "
        f"seemed equally likely before, nobody becomes more than {factor / (1 + factor):.2%} sure "
        f"of one. Such an epsilon is called {name}: strong up to {STRONG:g}, reasonable up to "
        f"{REASONABLE:g}, weak above (Ponomareva et al. 2023, How to DP-fy ML)."
    )


def _origin(result: Result, model_sha256: str | None) -> str:
    parts = [
        f"Equipoise {result.version}, algorithm {result.run.algorithm}, {result.run.iterations} "
        f"local steps in {result.rounds} rounds. {RETURNED[result.run.returns]}"
    ]
    if model_sha256:
        parts.append(f"This is about the model in the file with SHA-256 `{model_sha256}`.")
    if result.repeat:
        parts.append(
            f"Command that says the same (each run spends a budget of its own): `{result.repeat}`"
        )
    return "\n\n".join(parts)


ONCE = {
    "client": "Assumed: that the clients are different organisations. One that takes part twice is "
    "protected less.",
    "record": "Assumed: that a record is in the data once, and at one client. One that is there "
    "twice is protected less.",
    "person": "Assumed: that the same person has the same name in all records of a client, and has "
    "records at one client only. A person with records at two of them, or under two names, is "
    "protected less.",
}


def _not_covered(result: Result) -> list[str]:
    measured = result.test_error is not None
    items = [
        *(["Test errors and curves: they were computed on records declared public."] * measured),
        *(f"Taken as public: {sentence}." for sentence in result.public),
        ONCE[result.run.unit],
        "Other runs on the same data, such as trials with other settings: each spends its own "
        "budget, and together they spend more than any of them.",
        "Anything a client publishes in other ways, and its own log, which stays with it.",
        "How long a client takes for a round.",
    ]
    if result.account.sigma > 0 and not result.lattice:
        items.append(FLOATING_POINT)
    if result.run.mechanism.words.not_covered:
        items.append(result.run.mechanism.words.not_covered)
    if result.run.unit == "record" and result.L is None and not result.run.isolate:
        items.append(
            "Assumed: that the network treats every record by itself, and that what single "
            "precision rounds away in a batch does not matter. The first was tried on made-up "
            "records, which is no proof; a run with isolate assumes neither."
        )
    if result.L is None:
        items.append(
            "Assumed: that model and loss keep nothing outside of themselves, in global variables, "
            "variables that a function closes over, or files."
        )
    if result.run.diagnostics:
        items.append("The diagnostics, which show private values without noise.")
    if result.run.trust == "secure-aggregation":
        items.append("A breach of the secure aggregation, or more colluding clients than stated.")
    return items


def _number(value: float) -> str:
    return "inf" if value == math.inf else repr(float(value))


def _table(rows: dict[str, str]) -> str:
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _list(items: list[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
