"""guarantee.json: what a run guarantees, as numbers and sentences; from its result alone.

It validates against guarantee.schema.json beside this file, which is made of the models here. On
disk it carries "format": 1; fields are only added. From `events`, `neighbours` and `delta` alone
epsilon, mu and the curve can be computed anew.
"""

import json
import math
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from equipoise.errors import InvalidValue
from equipoise.origin import About, Origin
from equipoise.privacy.events import Event
from equipoise.privacy.groups import SHOWN, together
from equipoise.privacy.promise import REASONABLE, STRONG, Neighbours, Trust, Unit
from equipoise.privacy.statement.place import where_it_ran, why_only_sums
from equipoise.privacy.statement.rounding import as_given, at_least, at_most, percent
from equipoise.privacy.statement.words import (
    ALIKE,
    BEYOND,
    COLLUDING,
    FLOATING_POINT,
    MORE_COLLUDING,
    ONCE,
    REACH,
    SEEING,
    TRUST,
    UNLIKE,
    WHETHER,
    WHOSE,
)
from equipoise.result import Federated, Result

TOLD = (0.001, 0.01, 0.05, 0.1, 0.2)  # shares of false alarms that tables show
FPR = 0.01  # of which the sentence speaks, unless the run was asked for another
ALPHAS = (0.0, *TOLD, *np.logspace(-4, -1, 31).round(6), *np.linspace(0.12, 1, 45).round(2))
_NEAR = 0.1  # of 1/n: from here on delta is called near to it
_HARDLY = 1 / 3  # found less false alarms: two of three guesses right, where a coin has one of two

Number = float | Literal["inf"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Release(_Part):
    """One kind of release: `count` times, v + N(0, sigma^2 I), where v moves by at most
    `sensitivity` in L2 norm if one unit changes; at rate < 1, of a secret Poisson sample.

    slack     the probability of every outcome is within e^(+-slack) of that
    epsilon   what all of it spends at `delta`, and `mu` as one Gaussian (null: sampled)
    """

    count: int
    sensitivity: Number
    sigma: Number
    rate: float
    lattice: float
    slack: float
    epsilon: Number
    mu: Number | None


class Attack(_Part):
    """The best attack on one unit, by anybody who sees all that the adversary sees and knows all
    other data: shares of false alarms (alpha), and the least shares of misses (beta) that the
    releases allow; `implied` is what would follow from epsilon and delta alone.

    fpr, tpr, implied_tpr   at one share of false alarms, the largest share that is found
    max_tpr                 the bound that the run was asked to keep there; null where it was not
    """

    alpha: list[float]
    beta: list[float]
    implied: list[float]
    fpr: float
    tpr: float
    implied_tpr: float
    max_tpr: float | None
    exact: bool
    sentence: str

    def table(self) -> list[tuple[str, ...]]:
        """Some points in words: false alarms, found at most, and what both numbers alone allow."""
        points = zip(self.alpha, self.beta, self.implied, strict=True)
        return [
            (as_given(alpha), percent(1 - beta), percent(1 - implied))
            for alpha, beta, implied in points
            if alpha in (*TOLD, self.fpr)
        ]

    def likeness(self) -> str:
        """How well the two situations are told apart that are to look alike."""
        if max(1 - a - b for a, b in zip(self.alpha, self.beta, strict=True)) <= _HARDLY:
            return "Hardly to be told apart"
        alarms = f"{as_given(self.fpr)} false alarms"
        return f"Told apart in up to {percent(self.tpr)} of the cases, with {alarms}"


class Several(_Part):
    """What is promised to so many records of one client together, (epsilon, delta)."""

    units: int
    epsilon: Number
    delta: float


class Utility(_Part):
    """How good the model is on public test records, by its error and otherwise; null: not known."""

    error_name: str
    error: Number | None
    without_training: Number | None
    public_alone: Number | None
    public_records: int | None
    grouped_by: str
    groups: dict[str, dict[str, float | None]]
    sentence: str


class Guarantee(_Part):
    """What one run guarantees, to whom, and against whom."""

    format: Literal[1] = 1
    version: str
    private: bool
    sentence: str
    notices: list[str]
    strength: Literal["strong", "reasonable", "weak", "none"]

    unit: Unit
    neighbours: Neighbours
    trust: Trust
    colluding: int | None
    sees: str
    reach: str
    alike: str
    unlike: str

    epsilon: Number
    epsilon_lower: Number | None
    epsilon_nominal: Number
    delta: float
    exact: bool
    mu: Number | None
    protected: int
    delta_times_units: float
    delta_sentence: str
    attack: Attack | None
    several: list[Several]

    events: list[Release]
    follows_from: dict[str, float] | None
    algorithm: str
    mechanism: str
    clip: Number
    dimension: int
    clients: int
    rounds: int
    noise_source: str
    noise_rule: str
    where: Federated | None
    ran: str

    chosen: str
    utility: Utility
    assumptions: list[str]
    origin: Origin | None
    about: About
    model_sha256: str | None
    repeat: str | None

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False)

    @classmethod
    def schema_text(cls) -> str:
        """What guarantee.schema.json holds."""
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **cls.model_json_schema(),
        }
        return json.dumps(schema, indent=2) + "\n"


def guarantee_of(result: Result, model_sha256: str | None = None) -> Guarantee:
    """Refused of a model that was tuned at home, of which nothing is guaranteed."""
    if result.adapted:
        raise InvalidValue(
            "this model was tuned at home, without noise: nothing is guaranteed of it, and it is "
            "not to be released; ask for the guarantee of the run that it came from"
        )
    run, account = result.run, result.account
    attack = attack_on(result)
    return Guarantee(
        version=result.version,
        private=result.private,
        sentence=quoted(result, attack),
        notices=result.notices,
        strength=strength(account.epsilon) if result.private else "none",
        unit=run.unit,
        neighbours=run.neighbours,
        trust=run.trust,
        colluding=run.colluding,
        sees=TRUST[run.trust] + why_only_sums(result),
        reach=REACH[run.unit] + BEYOND.get(run.neighbours, ""),
        alike=ALIKE[run.unit][run.neighbours],
        unlike=UNLIKE[run.unit],
        epsilon=_number(account.epsilon),
        epsilon_lower=_maybe(account.epsilon_lower),
        epsilon_nominal=_number(run.epsilon),
        delta=run.delta,
        exact=account.exact,
        mu=_maybe(account.mu),
        protected=protected(result),
        delta_times_units=run.delta * protected(result),
        delta_sentence=delta_beside(result),
        attack=attack,
        several=several(result),
        events=[
            _release(event, epsilon)
            for event, epsilon in zip(account.events, account.epsilons, strict=True)
        ],
        follows_from=account.follows_from,
        algorithm=run.algorithm,
        mechanism="nothing noised" if account.sigma == 0 else run.mechanism.words.released,
        clip=_number(run.clip),
        dimension=result.dimension,
        clients=run.clients,
        rounds=result.rounds,
        noise_source=result.noise_source,
        noise_rule=run.noise_rule if run.v is None else f"{run.noise_rule}, v = {run.v}",
        where=result.federated,
        ran=where_it_ran(result),
        chosen=how_chosen(result),
        utility=utility(result),
        assumptions=not_covered(result) if run.epsilon < math.inf else [],
        origin=result.origin,
        about=result.about or About(),
        model_sha256=model_sha256,
        repeat=result.repeat,
    )


def protected(result: Result) -> int:
    """How many units are protected."""
    return sum(result.sizes) if result.sizes else result.run.clients


def strength(epsilon: float) -> Literal["strong", "reasonable", "weak"]:
    return "strong" if epsilon <= STRONG else "reasonable" if epsilon <= REASONABLE else "weak"


def attack_on(result: Result) -> Attack | None:
    """None where there is no noise, or where it is no secret."""
    from equipoise.privacy.trade_off import implied, trade_off  # scipy

    run, account = result.run, result.account
    if account.sigma == 0 or run.simulation:
        return None
    fpr = run.fpr or FPR
    alphas = np.array(sorted({*map(float, ALPHAS), fpr}))
    beta = trade_off(account.events, alphas)
    alone = implied(account.epsilon, run.delta, alphas)
    at = int(np.searchsorted(alphas, fpr))
    tpr, implied_tpr = 1 - float(beta[at]), 1 - float(alone[at])
    return Attack(
        alpha=alphas.tolist(),
        beta=beta.tolist(),
        implied=alone.tolist(),
        fpr=fpr,
        tpr=tpr,
        implied_tpr=implied_tpr,
        max_tpr=run.max_tpr,
        exact=account.exact and not account.sampled,
        sentence=(
            f"An attacker who accepts false alarms in {as_given(fpr)} of cases finds at most "
            f"{percent(tpr)} of the cases; guessing finds {as_given(fpr)}. (From epsilon and delta "
            f"alone one would have to fear {percent(implied_tpr)}.)"
        ),
    )


def quoted(result: Result, attack: Attack | None) -> str:
    """One sentence that may be quoted, true word for word."""
    if not result.private or attack is None:
        reasons = [notice for notice in result.notices if "NOT PRIVATE" in notice]
        reason = (*reasons, *result.notices, "NOT PRIVATE.")[0]
        return f"Nothing is guaranteed that may be quoted: {reason}"
    run = result.run
    number = run.colluding or 0
    whose = WHOSE[run.unit] + (" that does not collude" if number else "")
    case = WHETHER[run.neighbours].format(whose=whose)
    others = COLLUDING.get(number, MORE_COLLUDING.format(number=number))
    seeing = SEEING[run.trust].format(others=others)
    return (
        f"Anyone who sees {seeing}, knows all data except those of {whose}, and tests whether "
        f"{case} will detect this in at most {percent(attack.tpr)} of the cases in which it is so, "
        f"if the test raises a false alarm in at most {as_given(attack.fpr)} of the cases in which "
        "it is not."
    )


def delta_beside(result: Result) -> str:
    """Delta against publishing one unit chosen at random."""
    run, units = result.run, protected(result)
    text = (
        f"delta = {at_most(run.delta)}, of {units} protected {run.unit}s: publishing one of them, "
        f"chosen at random, would satisfy a delta of 1/{units} = {1 / units:.3g}"
    )
    if run.delta * units >= 1:
        return f"{text}. This delta is not below that: it promises nothing."
    times = 1 / (run.delta * units)
    how = f"{f'{math.floor(times):,}' if times >= 10 else at_least(times, 2)} times less"
    if run.delta * units > _NEAR:
        return f"{text}; this delta is {how}, which is near. Choose a smaller one."
    return f"{text}; this delta is {how}."


def several(result: Result) -> list[Several]:
    """What it means for somebody who has several records at one client."""
    account, run = result.account, result.run
    if run.unit != "record" or account.sigma == 0:
        return []
    groups = [together(account, run.delta, units) for units in SHOWN]
    return [Several(units=g.units, epsilon=_number(g.epsilon), delta=g.delta) for g in groups]


def how_chosen(result: Result) -> str:
    """By a plan, by hand, or after earlier runs."""
    origin = result.origin
    if origin is None:
        return "It was not noted how the settings were chosen."
    if result.federated:
        text = (
            "The settings are those of the agreement. Whether trials on the same private data led "
            "to them is not known here; these would have spent budgets of their own."
        )
    elif origin.plan:
        text = (
            f"The settings are those of a plan (SHA-256 of its file: `{origin.plan}`), which spent "
            f"0 of the budget. It was made from public information alone: {'; '.join(origin.pool)}."
        )
    else:
        text = (
            "The settings were given by whoever started the run. If trials on the same private "
            "data led to them, these spent budgets of their own, which are not counted here."
        )
    return text + _ledger(origin)


def _ledger(origin: Origin) -> str:
    if origin.earlier is None:
        return ""
    before = {0: "no earlier run", 1: "one earlier run"}.get(
        origin.earlier, f"{origin.earlier} earlier runs"
    )
    return (
        f" The ledger of these data held {before} when this one was admitted as {origin.run}; "
        f"afterwards all runs in it together: {'; '.join(origin.ledger)}."
    )


def utility(result: Result) -> Utility:
    """What was measured, on public records."""
    alone, measures = result.public_only, result.measures
    groups: dict[str, dict[str, float | None]] = {}
    for part in measures.groups if measures else ():
        values = {name: estimate.value for name, estimate in part.estimates.items()}
        groups[part.name] = {"records": float(part.records), **values}
    return Utility(
        error_name=result.error_name,
        error=_maybe(result.test_error),
        without_training=_maybe(result.baseline_error),
        public_alone=_maybe(alone.test_error) if alone else None,
        public_records=alone.records if alone else None,
        grouped_by=measures.grouped_by if measures else "",
        groups=groups,
        sentence=_worth(result),
    )


def _worth(result: Result) -> str:
    error, start = result.test_error, result.baseline_error
    if error is None or start is None:
        return "How good the model is, is not known here: no record was declared public to test on."
    text = f"Test error {error:.4g} ({result.error_name}); without training {start:.4g}"
    if alone := result.public_only:
        text += f"; from {alone.records} public records alone {alone.test_error:.4g}"
    worse = "" if error < start else " The model is no better than none."
    groups = result.measures.groups if result.measures else ()
    by = "" if groups else " It was not measured by group."
    return f"{text}.{worse} What privacy costs by itself was not measured.{by}"


def not_covered(result: Result) -> list[str]:
    """What is assumed, and what the guarantee says nothing about."""
    measured, run = result.test_error is not None, result.run
    items = [
        *(["Test errors and curves: they were computed on records declared public."] * measured),
        *(f"Taken as public: {sentence}." for sentence in result.public),
        ONCE[run.unit],
        "Other runs on the same data, such as trials with other settings: each spends its own "
        "budget, and together they spend more than any of them.",
        "Anything a client publishes in other ways, and its own log, which stays with it.",
        "How long a client takes for a round.",
    ]
    if result.account.sigma > 0 and not result.lattice:
        items.append(FLOATING_POINT)
    if run.mechanism.words.not_covered:
        items.append(run.mechanism.words.not_covered)
    if run.unit == "record" and result.L is None and not run.isolate:
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
    if run.diagnostics:
        items.append("The diagnostics, which show private values without noise.")
    if run.trust == "secure-aggregation":
        items.append("A breach of the secure aggregation, or more colluding clients than stated.")
    return items


def _release(event: Event, epsilon: float) -> Release:
    return Release(
        count=event.count,
        sensitivity=_number(event.sensitivity),
        sigma=_number(event.sigma),
        rate=event.rate,
        lattice=event.lattice,
        slack=event.slack,
        epsilon=_number(epsilon),
        mu=_maybe(event.mu),
    )


def _number(value: float) -> Any:
    return "inf" if value == math.inf else float(value)


def _maybe(value: float | None) -> Any:
    return None if value is None or math.isnan(value) else _number(value)
