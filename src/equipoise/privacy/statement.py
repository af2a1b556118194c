"""guarantee.md: the complete statement of what a run guarantees, from its result alone."""

import math

from equipoise.result import Result

UNIT = {
    "client": "everything that one client holds",
    "record": "one record of one client, a row of its data as it was read; the other records are "
    "assumed known",
}
NEIGHBOURS = {
    "replace-one": "the data of one {unit} against any other data in its place",
    "zero-out": "the data of one {unit} against a {unit} whose update is zero, noised like any "
    "other",
    "add-remove": "the data of a client with one {unit} and without it, all sampling rates and "
    "divisors unchanged",
}
REACH = {
    "client": "It protects a whole client, such as a hospital; it is no separate statement about "
    "one person among its records.",
    "record": "It protects one record, such as a patient's row. Someone with several records is "
    "protected less, and what a "
    "client's records have in common is not hidden at all.",
}
RELEASED = {
    "client": "a model update a round, clipped, plus Gaussian noise",
    "gradient": "the sum of the clipped gradients of a secret sample of its records, plus "
    "Gaussian noise, at every local step",
    "message": "a model update a round, plus Gaussian noise; the stability of its gradient steps "
    "bounds the sensitivity",
    "hidden-gradient": "a model update a round, made of gradient steps with Gaussian noise in "
    "each sum of gradients; "
    "sensitivity and sigma are for one round and include the hidden-state bound",
}
TRUST = {
    "local": "every message of every client, and so every model that follows from them",
    "secure-aggregation": "the sum of the clients' messages of each round, and so every model; "
    "never a single message. "
    "This holds only where a secure aggregation protocol enforces it",
}


def statement(result: Result, model_sha256: str | None = None) -> str:
    """Markdown; the numbers in its tables are written so that they read back exactly."""
    title, promised = "# Privacy guarantee of a training run", "## What is guaranteed"
    if result.simulation:
        title, promised = (
            "# NOT a privacy guarantee",
            "## What would be guaranteed, were the noise secret and nothing else shown",
        )
    sections = [
        title,
        _verdict(result),
        promised,
        _table(
            {
                f"epsilon, {result.account}": _number(result.epsilon_spent),
                "epsilon, nominal": _number(result.epsilon),
                "delta": _number(result.delta),
                "unit": f"{result.unit}: {UNIT[result.unit]}",
                "neighbours": f"{result.neighbours}: "
                + NEIGHBOURS[result.neighbours].format(unit=result.unit),
                "trust": result.trust,
                "the adversary sees": TRUST[result.trust],
                "colluding clients": "any number"
                if result.colluding is None
                else str(result.colluding),
                "clients": str(result.clients),
                "where it ran": "one process that read the records of all clients: nothing is "
                "hidden from its operator",
            }
        ),
        "## What was released",
        _table(
            {
                "releases": str(result.releases),
                "what": f"of each client, {result.dimension} numbers at a time: "
                + (
                    "nothing noised"
                    if result.sigma == 0
                    else RELEASED[result.noise_in if result.unit == "record" else "client"]
                ),
                "clip norm C": _number(result.clip_norm),
                "sensitivity": _number(result.sensitivity),
                "sigma": _number(result.sigma),
                "sigma is": f"per coordinate, of {_noised(result)}",
                "sigma of one client": _number(result.client_sigma),
                "schedule": f"{result.schedule}, drawn before training from public values only",
                "noise source": result.noise_source,
                "noise rule": result.noise_rule + ("" if result.v is None else f", v = {result.v}"),
            }
        ),
        _per_client(result),
        _conditions(result),
        "## How to check it",
        _accountant(result),
        _origin(result, model_sha256),
        "## What is not covered",
        _list(_not_covered(result)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _noised(result: Result) -> str:
    if result.trust == "secure-aggregation":
        return "the sum of a round, after the colluders subtract their own"
    return (
        "each local sum of gradients"
        if _where(result) in ("gradient", "hidden-gradient")
        else "one message"
    )


def _conditions(result: Result) -> str:
    """What the sensitivity follows from, where stability bounds it."""
    if not result.stability:
        return ""
    constants = ", ".join(f"{name} = {_number(value)}" for name, value in result.stability.items())
    return (
        f"The sensitivity follows from the stability of gradient steps, with {constants}. It "
        f"holds for full local gradients of "
        "a loss that is mu-strongly convex and L-smooth, single gradients of norm at most "
        "gradient_bound, and "
        "eta <= 2/(L + mu)."
    )


def _where(result: Result) -> str:
    return result.noise_in if result.unit == "record" else "client"


def _per_client(result: Result) -> str:
    """What each client adds and spends, where that is told."""
    if not result.per_client:
        return ""
    rows = [
        f"| {c.client} | {c.records} | {_number(c.sampling_rate)} | {_number(c.sensitivity)} | "
        f"{_number(c.sigma)} "
        f"| {_number(c.epsilon_spent)} |"
        for c in result.per_client
    ]
    heading = "| client | records | sampling rate | sensitivity | sigma | epsilon |"
    return "\n".join(
        [
            "The run's epsilon is the largest of its clients':",
            "",
            heading,
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )


def _accountant(result: Result) -> str:
    if result.sampled:
        relation = {"replace-one": "REPLACE_ONE", "add-remove": "ADD_OR_REMOVE_ONE"}[
            result.neighbours
        ]
        return (
            "Accountant: privacy loss distributions of Google's dp-accounting, rounded to the "
            "pessimistic side. With `noise` = "
            "sigma / C (for replace-one too: the accountant doubles the sensitivity itself), for "
            "each client:\n\n"
            "```python\n"
            "from dp_accounting import GaussianDpEvent, NeighboringRelation, "
            "PoissonSampledDpEvent, SelfComposedDpEvent\n"
            "from dp_accounting.pld import PLDAccountant\n\n"
            f"accountant = PLDAccountant(NeighboringRelation.{relation})\n"
            "accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, "
            "GaussianDpEvent(noise)), releases))\n"
            "epsilon = accountant.get_epsilon(delta)\n"
            "```"
        )
    return (
        "Accountant: exact Gaussian differential privacy. With mu = sensitivity * sqrt(releases) "
        "/ sigma, epsilon is the "
        "smallest number with Phi(mu/2 - epsilon/mu) - exp(epsilon) * Phi(-mu/2 - epsilon/mu) <= "
        "delta, Phi the standard "
        "normal distribution function (Dong, Roth and Su 2022; Balle and Wang 2018). Its tail "
        "needs care: use erfc, or "
        "`equipoise.privacy.epsilon_spent(sigma, releases, sensitivity, delta)`."
    )


def _verdict(result: Result) -> str:
    notices = [f"**{notice}**" for notice in result.notices]
    if result.private:
        notices.append(
            f"The whole run is ({result.epsilon_spent:.6g}, {result.delta:g})-differentially "
            f"private for one {result.unit}, "
            f"under the definitions below: but for a probability of {result.delta:g}, nothing "
            f"that the adversary sees is more "
            f"than e^{result.epsilon_spent:.3g} = {math.exp(min(result.epsilon_spent, 700)):.3g} "
            f"times as likely with the data "
            f"of one {result.unit} as with the other data. {REACH[result.unit]}"
        )
    return "\n\n".join(notices)


def _origin(result: Result, model_sha256: str | None) -> str:
    parts = [
        f"Equipoise {result.version}, algorithm {result.algorithm}, {result.iterations} local "
        f"steps in {result.rounds} rounds.",
        f"The model vouched for is the file with SHA-256 `{model_sha256}`." if model_sha256 else "",
        f"Command that was run (to run it again spends another budget): `{result.repeat}`"
        if result.repeat
        else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _not_covered(result: Result) -> list[str]:
    return [
        "Test errors and curves: they were computed on records declared public.",
        *(f"Taken as public: {sentence}." for sentence in result.public),
        {
            "client": "That the clients are different organisations: one that takes part twice is "
            "protected less.",
            "record": "That a record is in the data once, and at one client: one that is there "
            "twice is protected less.",
        }[result.unit],
        "Other runs on the same data, such as trials with other settings: each spends its own "
        "budget, and together they spend "
        "more than any of them.",
        "Anything a client publishes by other ways, and what its own log says to itself.",
        "How long a client takes for a round.",
        "Gaps between floating-point numbers, through which the lowest bits of a release might "
        "tell more.",
        *(
            ["The diagnostics, which show private values without noise."]
            if result.diagnostics
            else []
        ),
        *(
            ["A breach of the secure aggregation, or more colluding clients than stated."]
            if result.trust == "secure-aggregation"
            else []
        ),
    ]


def _number(value: float) -> str:
    return "inf" if value == math.inf else repr(float(value))


def _table(rows: dict[str, str]) -> str:
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    )


def _list(items: list[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
