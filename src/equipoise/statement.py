"""guarantee.md: the complete statement of what a run guarantees, from its result alone."""

import math

from equipoise.run import Result

NEIGHBOURS = {
    "replace-one": "the data of one {unit} against any other data in its place; sensitivity of what is seen: 2C",
    "zero-out": "the data of one {unit} against an absent {unit} that sends zero; sensitivity of what is seen: C",
}
TRUST = {
    "local": "every message of every client, and so every model that follows from them",
    "secure-aggregation": "the sum of the clients' messages of each round, and so every model; never a single message. "
    "This holds only if a secure aggregation protocol enforces it",
}


def statement(result: Result) -> str:
    """Markdown; the numbers in its tables are written so that they read back exactly."""
    sensitivity = result.guarantee(result.clients).sensitivity(result.clip_norm)
    sections = [
        "# Privacy guarantee of a training run",
        _verdict(result),
        "## What is guaranteed",
        _table(
            {
                "epsilon, exact": _number(result.epsilon_spent),
                "epsilon, nominal": _number(result.epsilon),
                "delta": _number(result.delta),
                "unit": f"{result.unit}: everything that one client holds",
                "neighbours": f"{result.neighbours}: " + NEIGHBOURS[result.neighbours].format(unit=result.unit),
                "trust": result.trust,
                "the adversary sees": TRUST[result.trust],
                "colluding clients": "any number" if result.colluding is None else str(result.colluding),
                "clients": str(result.clients),
            }
        ),
        "## What was released",
        _table(
            {
                "releases": str(result.releases),
                "what": f"{result.dimension} numbers per client and round: a clipped model update plus Gaussian noise",
                "clip norm C": _number(result.clip_norm),
                "sensitivity": _number(sensitivity),
                "sigma": _number(result.sigma),
                "sigma is": "per coordinate, of "
                + ("one message" if result.trust == "local" else "the sum of a round, after the colluders subtract their own"),
                "sigma of one client": _number(result.client_sigma),
                "schedule": f"{result.schedule}, drawn before training from public values only",
                "noise source": result.noise_source,
                "noise rule": result.noise_rule + ("" if result.v is None else f", v = {result.v}"),
            }
        ),
        "## How to check it",
        "Accountant: exact Gaussian differential privacy. With mu = sensitivity * sqrt(releases) / sigma, epsilon is the "
        "smallest number with Phi(mu/2 - epsilon/mu) - exp(epsilon) * Phi(-mu/2 - epsilon/mu) <= delta, Phi the standard "
        "normal distribution function (Dong, Roth and Su 2022; Balle and Wang 2018).",
        f"Repeat the run: `{result.repeat}`",
        f"Equipoise {result.version}, algorithm {result.algorithm}, {result.iterations} local iterations.",
        "## What is not covered",
        _list(
            [
                "Test errors and curves: they were computed on records declared public.",
                *(f"Taken as public: {sentence}." for sentence in result.public),
                "Other runs on the same data, such as trials with other settings: each spends its own budget, and they add up.",
                "Anything a client publishes by other ways, and what its own log says to itself.",
                "Gaps between floating-point numbers, through which the lowest bits of a release might tell more.",
                *(
                    []
                    if result.trust == "local"
                    else ["A breach of the secure aggregation, or more colluding clients than stated."]
                ),
            ]
        ),
    ]
    return "\n\n".join(sections) + "\n"


def _verdict(result: Result) -> str:
    if result.notices:
        return "\n\n".join(f"**{notice}**" for notice in result.notices)
    return (
        f"The whole run is ({result.epsilon_spent:.6g}, {result.delta:g})-differentially private for one {result.unit}, "
        "under the definitions below."
    )


def _number(value: float) -> str:
    return "inf" if value == math.inf else repr(float(value))


def _table(rows: dict[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _list(items: list[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
