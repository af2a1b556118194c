"""guarantee.md: the complete statement of what a run guarantees, from its result alone."""

import math

from equipoise.run import Result

NEIGHBOURS = {
    "replace-one": "the data of one {unit} against any other data in its place; sensitivity of what is seen: 2C",
    "zero-out": "the data of one {unit} against a {unit} whose update is zero, noised like any other; "
    "sensitivity of what is seen: C",
}
TRUST = {
    "local": "every message of every client, and so every model that follows from them",
    "secure-aggregation": "the sum of the clients' messages of each round, and so every model; never a single message. "
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
                "epsilon, exact": _number(result.epsilon_spent),
                "epsilon, nominal": _number(result.epsilon),
                "delta": _number(result.delta),
                "unit": f"{result.unit}: everything that one client holds",
                "neighbours": f"{result.neighbours}: " + NEIGHBOURS[result.neighbours].format(unit=result.unit),
                "trust": result.trust,
                "the adversary sees": TRUST[result.trust],
                "colluding clients": "any number" if result.colluding is None else str(result.colluding),
                "clients": str(result.clients),
                "where it ran": "one process that read the records of all clients: nothing is hidden from its operator",
            }
        ),
        "## What was released",
        _table(
            {
                "releases": str(result.releases),
                "what": f"{result.dimension} numbers per client and round: a model update, "
                + ("neither clipped nor noised" if result.sigma == 0 else "clipped, plus Gaussian noise"),
                "clip norm C": _number(result.clip_norm),
                "sensitivity": _number(result.guarantee(result.clients).sensitivity(result.clip_norm)),
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
        "normal distribution function (Dong, Roth and Su 2022; Balle and Wang 2018). Its tail needs care: use erfc, or "
        "`equipoise.privacy.epsilon_spent(sigma, releases, sensitivity, delta)`.",
        _origin(result, model_sha256),
        "## What is not covered",
        _list(_not_covered(result)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _verdict(result: Result) -> str:
    notices = [f"**{notice}**" for notice in result.notices]
    if result.private:
        notices.append(
            f"The whole run is ({result.epsilon_spent:.6g}, {result.delta:g})-differentially private for one {result.unit}, "
            f"under the definitions below: but for a probability of {result.delta:g}, nothing that the adversary sees is more "
            f"than e^{result.epsilon_spent:.3g} = {math.exp(min(result.epsilon_spent, 700)):.3g} times as likely with the data "
            f"of one {result.unit} as with the other data. It protects a whole client, such as a hospital; it is no "
            "separate statement about one person among its records."
        )
    return "\n\n".join(notices)


def _origin(result: Result, model_sha256: str | None) -> str:
    parts = [
        f"Equipoise {result.version}, algorithm {result.algorithm}, {result.iterations} local steps in {result.rounds} rounds.",
        f"The model vouched for is the file with SHA-256 `{model_sha256}`." if model_sha256 else "",
        f"Command that was run (to run it again spends another budget): `{result.repeat}`" if result.repeat else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _not_covered(result: Result) -> list[str]:
    return [
        "Test errors and curves: they were computed on records declared public.",
        *(f"Taken as public: {sentence}." for sentence in result.public),
        "That the clients are different organisations: one that takes part twice is protected less.",
        "Other runs on the same data, such as trials with other settings: each spends its own budget, and together they spend "
        "more than any of them.",
        "Anything a client publishes by other ways, and what its own log says to itself.",
        "Gaps between floating-point numbers, through which the lowest bits of a release might tell more.",
        *(["The diagnostics, which show private values without noise."] if result.diagnostics else []),
        *(
            ["A breach of the secure aggregation, or more colluding clients than stated."]
            if result.trust == "secure-aggregation"
            else []
        ),
    ]


def _number(value: float) -> str:
    return "inf" if value == math.inf else repr(float(value))


def _table(rows: dict[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _list(items: list[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
