"""`audit`: what an attack on the product's own border proves, held against the account."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from equipoise.device import HOST
from equipoise.errors import EquipoiseError, InvalidValue, require

if TYPE_CHECKING:
    from equipoise.planning.plan import Plan
    from equipoise.settings import Run, Settings

CONFIDENCE = 0.95
SURE = 1 - 1e-6
"""From where on a claim is called broken. If a claim is true, and met, then the bound of the best
attack is above it in one audit of twenty at 95 % confidence, and in one of a million at this."""


_MEANING = {
    "holds": ": nothing was found that contradicts the claim",
    "in doubt": ": the bound is above the claim, as it is now and then if a claim is true and met; "
    "repeat with more runs",
    "broken": f": this happens in one of {1 / (1 - SURE):,.0f} audits if the claim is true",
}


@dataclass(frozen=True)
class Audit:
    """A lower bound of epsilon, and the claim that it was held against.

    how         `many runs` of a small case, or `one run` with canaries
    epsilon     the lower bound: exceeds the truth in at most 1 - confidence of all audits
    claim       the epsilon of the account, at delta
    surely      the same bound with the confidence SURE, where `epsilon` is above the claim
    bounds      what each way of reasoning proves; they hold together
    delta       at which both epsilons are
    confidence  of the lower bound
    mu          the lower bound of mu, where all is one Gaussian
    claimed_mu  what the account says of it
    saw         what the adversary saw
    pair        what it had to tell apart
    trials      runs, or canaries, that counted
    guesses     how many of these the adversary dared to guess
    wrong       how many guesses were wrong
    statistic   how it weighed what it saw
    noise       where the noise came from
    settings    of the runs that were audited
    """

    how: str
    epsilon: float
    claim: float
    surely: float | None
    delta: float
    confidence: float
    bounds: dict[str, float]
    mu: float | None
    claimed_mu: float | None
    saw: str
    pair: str
    trials: int
    guesses: int
    wrong: int
    statistic: str
    noise: str
    settings: dict[str, Any]

    @property
    def ratio(self) -> float:
        """The bound over the claim: 1 if nobody could prove more."""
        return self.epsilon / self.claim if self.claim else math.inf if self.epsilon else 1.0

    @property
    def verdict(self) -> Literal["holds", "in doubt", "broken"]:
        """Of the claim. In doubt: the bound is above it, but would not be with the confidence
        SURE."""
        if self.surely is None:
            return "holds"
        return "broken" if self.surely > self.claim else "in doubt"

    @property
    def sentence(self) -> str:
        """What a statement may say of it."""
        return (
            f"An audit by {self.how} found epsilon >= {self.epsilon:.4g} at delta = "
            f"{self.delta:g} with {100 * self.confidence:.6g} % confidence; the account says at "
            f"most {self.claim:.4g}."
        )

    def lines(self) -> list[str]:
        """All of it, for people."""
        certainty = f"with {100 * self.confidence:.6g} % confidence"
        mus = "" if self.mu is None else f"; mu >= {self.mu:.4g}"
        claimed = "" if self.claimed_mu is None else f"; mu = {self.claimed_mu:.4g}"
        what = "runs" if self.how == "many runs" else "canaries"
        return [
            f"bound       epsilon >= {self.epsilon:.4g} {certainty}{mus}",
            f"claim       epsilon <= {self.claim:.4g} at delta = {self.delta:g}{claimed}",
            f"tightness   {self.ratio:.3f}: the bound over the claim",
            f"verdict     {self.verdict}{_MEANING[self.verdict]}",
            *(f"reasoning   {name}: {value:.4g}" for name, value in self.bounds.items()),
            f"attack      {self.pair}",
            f"adversary   sees {self.saw}",
            f"guesses     {self.guesses} on {self.trials} {what}, {self.wrong} of them wrong; by "
            f"{self.statistic}",
            f"noise       {self.noise}",
        ]

    def to_json(self) -> str:
        """One JSON document."""
        return json.dumps({**asdict(self), "ratio": self.ratio, "verdict": self.verdict}, indent=2)


class BrokenClaim(EquipoiseError):
    """An audit proved more than the account allows: `audit` has the figures."""

    def __init__(self, audit: Audit) -> None:
        certainty = f"{100 * _sure(audit.confidence):.6g} % confidence"
        super().__init__(
            f"VIOLATION: epsilon is at least {audit.surely:.4g} with {certainty}, and the account "
            f"says {audit.claim:.4g}: what these settings release does not protect as stated; see "
            "SECURITY.md"
        )
        self.audit = audit


def audit(
    settings: "Settings | Plan | None" = None,
    *,
    runs: int | None = None,
    canaries: int | None = None,
    confidence: float = CONFIDENCE,
    **values: Any,
) -> Audit:
    """A lower bound of epsilon by experiment: ``audit(task="breast-cancer", epsilon=2, clip=1)``.
    `BrokenClaim` is raised if it is above what the account says.

    Without `canaries` the noise, clip and algorithm of these settings are run many times on a small
    made-up case that no other is worse than; no record is read. With `canaries` the task itself is
    trained once, on its public records and so many canaries, each in or out by a coin.

    settings     Settings or a Plan; or else the fields of `Settings` as keywords
    runs         of the small case; None: enough for a bound that is nearly tight
    canaries     clients or records of the attack's own, with which the task is trained
    confidence   with which the bound holds
    values       as those of `train`

    >>> found = equipoise.audit(task="quadratic", epsilon=2, clip=0.1, iterations=2, runs=1000)
    >>> found.verdict, found.epsilon < found.claim <= 2
    ('holds', True)
    """
    from equipoise.auditing.bounds import check_confidence

    check_confidence(confidence)
    device = values.get("device", getattr(settings, "device", HOST))
    require(
        device == HOST,
        f"device={device} with an audit, which is of the border, on the processor: leave it out",
    )
    require(
        runs is None or canaries is None,
        f"runs={runs} and canaries={canaries}: an audit is by many runs of a small case, or by one "
        "run with canaries; give one of the two",
    )
    proved = (
        _by_many_runs(settings, values, runs, confidence)
        if canaries is None
        else _by_one_run(settings, values, canaries, confidence)
    )
    if proved.verdict == "broken":
        raise BrokenClaim(proved)
    return proved


def _by_many_runs(
    settings: "Settings | Plan | None", values: dict[str, Any], runs: int | None, confidence: float
) -> Audit:
    from equipoise.algorithms.schedule import schedule_of
    from equipoise.auditing.many_runs import LEAST_RUNS, RUNS, many_runs, noise_of_audit
    from equipoise.auditing.worst_case import small_case
    from equipoise.tasks import Task, TaskOptions
    from equipoise.tasks.catalogue import load_to_plan
    from equipoise.training import settings_of

    runs = RUNS if runs is None else runs
    require(runs >= LEAST_RUNS, f"runs={runs} is not >= {LEAST_RUNS}, which prove next to nothing")
    own = values.get("task")
    chosen = settings_of(settings, values)
    task = own if isinstance(own, Task) else load_to_plan(chosen.task, TaskOptions.of(chosen))
    facts = task.facts(chosen.unit)
    run = chosen.resolve(facts)
    _check_private(run.epsilon)
    case = small_case(run, facts, schedule_of(run))
    proved = many_runs(case, runs)
    return Audit(
        how="many runs",
        **_held_against(case.account.epsilon, proved.bounds, confidence),
        delta=run.delta,
        mu=proved.mu(1 - confidence),
        claimed_mu=case.account.mu,
        saw=_what_was_heard(run),
        pair=_PAIRS[run.neighbours].format(unit=run.unit),
        trials=proved.tested,
        guesses=proved.tested,
        wrong=proved.wrong,
        statistic=proved.statistic,
        noise=noise_of_audit(run.simulate_noise_seed).name,
        settings=case.run.model_dump(mode="json", exclude_defaults=True),
    )


def _held_against(
    claim: float, bounds: Callable[[float], dict[str, float]], confidence: float
) -> dict[str, Any]:
    """The bounds, given what they are at any alpha."""
    proved = bounds(1 - confidence)
    epsilon = max(proved.values())
    surely = max(bounds(1 - _sure(confidence)).values()) if epsilon > claim else None
    return {
        "epsilon": epsilon,
        "claim": claim,
        "surely": surely,
        "confidence": confidence,
        "bounds": proved,
    }


def _sure(confidence: float) -> float:
    return max(confidence, SURE)


_PAIRS = {
    "replace-one": "a {unit} that pulls as hard as the clip allows, or one that pulls back",
    "zero-out": "a {unit} that pulls as hard as the clip allows, or a message of zero",
    "add-remove": "a {unit} that pulls as hard as the clip allows, or none",
}


def _what_was_heard(run: "Run") -> str:
    if run.mechanism.paid_per == "local step":
        return "every noised gradient, of which messages are made, knowing all but what differs"
    if run.trust == "local":
        return "every message, knowing all but what differs"
    colluders = f"{run.colluding} colluding client{'' if run.colluding == 1 else 's'}"
    return f"the sum of every round, less what {colluders} added"


def _check_private(epsilon: float) -> None:
    if epsilon == math.inf:
        raise InvalidValue("epsilon=inf promises nothing that could be audited: give a budget")


def _by_one_run(
    settings: "Settings | Plan | None", values: dict[str, Any], canaries: int, confidence: float
) -> Audit:
    from equipoise.auditing.many_runs import noise_of_audit
    from equipoise.auditing.one_run import one_run
    from equipoise.tasks import Task, TaskOptions, load_task
    from equipoise.tasks.catalogue import task_spec
    from equipoise.training import settings_of

    own = values.get("task")
    chosen = settings_of(settings, values)
    _check_private(chosen.epsilon)
    if isinstance(own, Task):
        task = own
    else:
        require(
            not task_spec(chosen.task).own_files,
            f"canaries={canaries} with task={chosen.task}: its records are private, and no "
            "guarantee covers an audit; audit the same settings on a public task, or by many runs, "
            "which read no record",
        )
        task = load_task(chosen.task, TaskOptions.of(chosen))
    proved = one_run(chosen, task, canaries)
    run = proved.run
    return Audit(
        how="one run",
        **_held_against(proved.account.epsilon, proved.bounds, confidence),
        delta=run.delta,
        mu=proved.mu(1 - confidence),
        claimed_mu=proved.account.mu,
        saw=_what_was_heard(run),
        pair=f"each of {canaries} canaries: " + _PAIRS[run.neighbours].format(unit=run.unit),
        trials=proved.canaries,
        guesses=proved.guesses,
        wrong=proved.guesses - proved.correct,
        statistic="the highest and the lowest scores",
        noise=noise_of_audit(run.simulate_noise_seed).name,
        settings=run.model_dump(mode="json", exclude_defaults=True),
    )
