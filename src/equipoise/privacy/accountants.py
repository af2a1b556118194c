"""Accountants side by side: what each would claim, and which noise it would ask for.

All are told the same: K releases, adaptively, of a vector with L2 sensitivity Delta, plus
N(0, sigma^2 I); at rate q < 1 each of a secret Poisson sample. All claims hold. They differ in how
much larger than the exact epsilon they are, and so in the noise that a budget would be spent on.

Samples (q < 1). A step is at most as revealing as the same step with its coins made public, which
is a Gaussian release or nothing: what is claimed without counting the sampling holds with it. Some
accountants can do no better, and their row says so.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy.optimize import minimize_scalar

from equipoise.errors import require
from equipoise.privacy.events import Event
from equipoise.privacy.job import Job, check_library, quiet_library
from equipoise.privacy.promise import OVER_CLIP, Neighbours, Unit
from equipoise.privacy.sampled import LEAST_NOISE, Bounds

APART = 1e-5  # how far, as a share, the noise found may be above the least
MOST_NOISE = 2.0**40  # times the exact one: beyond, no noise is enough; so far below, none needed
MOST_EPSILON = 50.0  # beyond, losses are too far apart for a grid of 1e-4: millions of points
# Of delta, for the composition: all that is tried. Any of them holds.
SHARES = (0.0, *(float(share) for share in 1 / (1 + np.exp(-np.linspace(-8, 8, 129)))))
NOT_COUNTED = "sampling is not counted"
NOT_NEEDED = "no noise is needed: the sample alone is enough"


class Claim(NamedTuple):
    """An epsilon that holds, and how it was reached; infinite where nothing can be claimed."""

    epsilon: float
    how: str


Accountant = Callable[[Event, float], Claim]
"""What it claims of an event at a delta."""


def advanced_composition(event: Event, delta: float) -> Claim:
    """Of all ways to divide delta the best: a share of it for the composition, and the rest for
    the releases.

    One release with sigma = Delta sqrt(2 ln(1.25/delta')) / epsilon' is (epsilon', delta')-DP if
    epsilon' < 1 (Dwork and Roth, "The algorithmic foundations of differential privacy", 2014,
    Theorem 3.22; its proof, Theorem A.1, takes sqrt(2 ln(1.25/delta')) >= 3/2). Of a Poisson sample
    it is (ln(1 + q (e^epsilon' - 1)), q delta')-DP: Balle, Barthe and Gaboardi, "Privacy
    amplification by subsampling", 2018, Theorem 8 for add-remove. For replace-one the same follows
    from their Theorem 2 (advanced joint convexity), since a sum with the record differs from one
    without it by C, and from one with the other record by 2C = Delta. K of them compose as in
    `_composed`.
    """
    ways = [(*_composed(event, delta, share), share) for share in SHARES]
    epsilon, each, share = min(ways)
    if epsilon == math.inf:
        return Claim(math.inf, f"epsilon' = {each:.3g} is not below 1")
    small = each < 0.999
    release = f"epsilon' = {each:.3g} a release" if small else "held to epsilon' < 1 a release"
    split = f"{share:.0%} of delta to compose" if share else "basic composition"
    return Claim(epsilon, f"{release}; {split}")


def _composed(event: Event, delta: float, share: float) -> tuple[float, float]:
    """epsilon of all releases, and epsilon' of one, if `share` of delta is for the composition.

    (a, b)-DP, K times, is (a sqrt(2K ln(1/c)) + K a (e^a - 1), K b + c)-DP (Dwork, Rothblum and
    Vadhan, "Boosting and differential privacy", 2010, Theorem III.3), and (K a, K b)-DP (Dwork and
    Roth 2014, Theorem 3.16).
    """
    K, q = event.count, event.rate
    delta_each = min((1 - share) * delta / (K * q), 1.25 * math.exp(-9 / 8))
    each = event.sensitivity * math.sqrt(2 * math.log(1.25 / delta_each)) / event.sigma
    if each >= 1:
        return math.inf, each
    a = math.log1p(q * math.expm1(each))
    if share == 0:
        return K * a, each
    return a * math.sqrt(2 * K * -math.log(share * delta)) + K * a * math.expm1(a), each


def zcdp(event: Event, delta: float) -> Claim:
    """rho = K Delta^2 / (2 sigma^2), and epsilon = rho + 2 sqrt(rho ln(1/delta)) (Bun and Steinke,
    "Concentrated differential privacy", 2016, Proposition 1.6, Lemma 1.7 and Proposition 1.3)."""
    rho = _rho(event)
    epsilon = rho + 2 * math.sqrt(rho * -math.log(delta))
    return Claim(epsilon, _with_sampling(event, f"rho = {rho:.4g}"))


def zcdp_improved(event: Event, delta: float) -> Claim:
    """The same rho, and the conversion of Canonne, Kamath and Steinke, "The discrete Gaussian for
    differential privacy", 2020, Proposition 12, at the best order: rho-zCDP is (alpha, rho
    alpha)-RDP for every alpha > 1. Every order holds, so that a poor minimum would only cost."""
    epsilon, order = improved_conversion(_rho(event), delta)
    return Claim(epsilon, _with_sampling(event, f"order {order:.4g}"))


def improved_conversion(rho: float, delta: float) -> tuple[float, float]:
    """The epsilon of rho-zCDP at delta, and the order that gives it."""
    middle = math.log(math.sqrt(-math.log(delta) / rho))  # the best order of the classic conversion

    def epsilon(log_excess: float) -> float:
        alpha = 1 + max(math.exp(log_excess), 2.0**-50)  # a smaller excess is rounded away
        return rho * alpha + math.log1p(-1 / alpha) - math.log(delta * alpha) / (alpha - 1)

    best = minimize_scalar(epsilon, bounds=(middle - 3, middle + 3), method="bounded")
    return max(0.0, float(best.fun)), 1 + math.exp(best.x)


def rdp_classic(event: Event, delta: float) -> Claim:
    """epsilon = rdp(alpha) + ln(1/delta) / (alpha - 1) at the best order that dp-accounting tries
    (Mironov, "Rényi differential privacy", 2017, Proposition 3; the moments accountant of Abadi et
    al., "Deep learning with differential privacy", 2016, Theorem 2)."""
    accountant = _rdp_accountant(event)
    epsilons = accountant.rdp - math.log(delta) / (accountant.orders - 1)
    best = int(np.argmin(epsilons))
    return _rdp_claim(event, float(epsilons[best]), float(accountant.orders[best]))


def rdp(event: Event, delta: float) -> Claim:
    """dp-accounting's RDP accountant as it is: its orders, and the conversion of Canonne, Kamath
    and Steinke 2020, Proposition 12."""
    accountant = _rdp_accountant(event)
    with quiet_library():
        epsilon, order = accountant.get_epsilon_and_optimal_order(delta)
    return _rdp_claim(event, float(epsilon), float(order))


def pld(event: Event, delta: float) -> Claim:
    """dp-accounting's PLD accountant as it is: losses on a grid of 1e-4, rounded to the pessimistic
    side (Doroshenko et al., "Connect the dots", 2022)."""
    from dp_accounting.pld import PLDAccountant

    relation, composed = _as_dp_accounting_says(event)
    with quiet_library():
        epsilon = float(PLDAccountant(relation).compose(composed).get_epsilon(delta))
    if not epsilon < math.inf:
        return Claim(math.inf, f"its grid leaves out rare losses, by more than delta = {delta:g}")
    return Claim(epsilon, "grid of 1e-4")


ACCOUNTANTS: dict[str, Accountant] = {
    "advanced composition": advanced_composition,
    "zCDP, classic conversion": zcdp,
    "zCDP, improved conversion": zcdp_improved,
    "RDP, classic conversion": rdp_classic,
    "RDP, dp-accounting": rdp,
    "PLD, dp-accounting": pld,
}


def own_name(event: Event) -> str:
    return "exact (Gaussian DP)" if event.rate == 1 else "PLD, as used here"


def _rho(event: Event) -> float:
    return event.count * (event.sensitivity / event.sigma) ** 2 / 2


def _with_sampling(event: Event, how: str) -> str:
    return how if event.rate == 1 else f"{how}; {NOT_COUNTED}"


def _rdp_claim(event: Event, epsilon: float, order: float) -> Claim:
    if not epsilon < math.inf:
        return Claim(math.inf, "none of its orders has a finite epsilon")
    counted = event.neighbours == "add-remove"
    how = f"order {order:g}"
    return Claim(epsilon, how if counted else _with_sampling(event, how))


def _rdp_accountant(event: Event) -> Any:
    """With all of it composed. dp-accounting has no RDP of Poisson samples under replace-one, so
    that these are not counted."""
    from dp_accounting.rdp import RdpAccountant

    if event.neighbours != "add-remove":
        event = replace(event, rate=1.0)
    relation, composed = _as_dp_accounting_says(event)
    with quiet_library():
        return RdpAccountant(neighboring_relation=relation).compose(composed)


def _as_dp_accounting_says(event: Event) -> tuple[Any, Any]:
    """A neighbouring relation, and all releases as one event.

    Without sampling neighbours matter through the sensitivity alone: sigma / Delta, whatever they
    are. With it dp-accounting takes sigma / C, and for replace-one doubles the sensitivity itself.
    """
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
    )

    add_remove = NeighboringRelation.ADD_OR_REMOVE_ONE
    if event.rate == 1:
        release = GaussianDpEvent(event.sigma / event.sensitivity)
        return add_remove, SelfComposedDpEvent(release, event.count)
    replaced = event.neighbours == "replace-one"
    clip = event.sensitivity / OVER_CLIP[event.neighbours]
    release = PoissonSampledDpEvent(event.rate, GaussianDpEvent(event.sigma / clip))
    relation = NeighboringRelation.REPLACE_ONE if replaced else add_remove
    return relation, SelfComposedDpEvent(release, event.count)


# -------------------------------------------------------------------------------------------------
# side by side


class Row(BaseModel):
    """One accountant, and what it says; None where it has no answer.

    sigma      the noise that it asks for, for the epsilon of the job; 0 where it needs none
    ratio      sigma over that of the last row
    epsilon    what it claims with the noise of the job
    how        it came to its sigma, or why there is none
    no_claim   why there is no epsilon, where there is none
    """

    model_config = ConfigDict(frozen=True)
    accountant: str
    sigma: float | None
    ratio: float | None
    epsilon: float | None
    how: str
    no_claim: str = ""


class Comparison(BaseModel):
    """The numbers of a job, with the sigma that was given or follows, and a row for each
    accountant; the last is that of the runs here.

    epsilon         the budget, or what the given noise spends
    epsilon_lower   what `sigma` spends at least; what it spends, where that is exact
    """

    model_config = ConfigDict(frozen=True)
    epsilon: float
    epsilon_lower: float
    sigma: float
    delta: float
    rounds: int
    clip: float
    sensitivity: float
    rate: float
    unit: Unit
    neighbours: Neighbours
    rows: tuple[Row, ...]

    @property
    def event(self) -> Event:
        return Event(
            self.unit, self.neighbours, self.sensitivity, self.sigma, self.rate, self.rounds
        )


def compare_accountants(
    *,
    rounds: int,
    epsilon: float | None = None,
    sigma: float | None = None,
    delta: float = 1e-5,
    clip: float = 1.0,
    rate: float = 1.0,
    unit: Unit = "client",
    neighbours: Neighbours = "replace-one",
) -> Comparison:
    """What each accountant says of the same numbers (needs the extra `record`).

    rounds       releases, each to all that protects
    epsilon      the budget; or else sigma
    sigma        noise per coordinate of what the adversary sees in one release
    delta        at which epsilon is
    clip         C, the longest that what is noised can be
    rate         q: the probability with which a secret sample takes a unit; 1: no sampling
    unit, neighbours   as those of `Promise`

    >>> first, *_, last = equipoise.compare_accountants(epsilon=3.3, rounds=100).rows
    >>> first.accountant, round(first.ratio, 2), last.accountant  # times the noise of the last
    ('advanced composition', 7.68, 'exact (Gaussian DP)')
    """
    return compare(Job(rounds, epsilon, sigma, delta, clip, rate, unit, neighbours))


def compare(job: Job) -> Comparison:
    """Every accountant at the noise of the job: which epsilon it claims there, and which noise it
    would ask for instead, for the epsilon that the job has."""
    check_library("a comparison of accountants", "leave the comparison out")
    event = job.event()
    bounds = event.bounds(job.delta)
    epsilon = bounds.upper if job.epsilon is None else job.epsilon
    require(
        0 < epsilon < math.inf,
        f"sigma={event.sigma:g} spends epsilon={epsilon:g} at delta={job.delta:g}: nothing to "
        f"compare; give {'less' if epsilon == 0 else 'more'} noise",
    )
    rows = [_row(name, claim, event, epsilon, job.delta) for name, claim in ACCOUNTANTS.items()]
    own = Row(
        accountant=own_name(event),
        sigma=event.sigma,
        ratio=1.0,
        epsilon=bounds.upper,
        how=_own_words(event, bounds, job.delta),
    )
    return Comparison(
        epsilon=epsilon,
        epsilon_lower=bounds.lower,
        sigma=event.sigma,
        delta=job.delta,
        rounds=job.rounds,
        clip=job.clip,
        sensitivity=event.sensitivity,
        rate=job.rate,
        unit=job.unit,
        neighbours=job.neighbours,
        rows=(*rows, own),
    )


def _own_words(event: Event, bounds: Bounds, delta: float) -> str:
    """How the last row came about. Where no grid gives less than the releases without sampling
    spend, that is what is promised."""
    if event.rate == 1:
        return "exact"
    how = f"the exact one is at least {bounds.lower:.4g}"
    whole = replace(event, rate=1.0).epsilon(delta)
    return how if bounds.upper < whole * (1 - 1e-12) else f"{NOT_COUNTED}; {how}"


def _row(name: str, claim: Accountant, event: Event, epsilon: float, delta: float) -> Row:
    if claim is pld and epsilon > MOST_EPSILON:
        why = f"epsilon is above {MOST_EPSILON:g}, too far for its grid"
        return Row(
            accountant=name, sigma=None, ratio=None, epsilon=None, how="not computed", no_claim=why
        )

    def asked(sigma: float) -> Event:
        return replace(event, sigma=sigma)

    at_exact = claim(event, delta)
    if claim is pld and _hidden_by_sampling(event, delta):
        sigma: float | None = 0.0
    else:
        sigma = least_sigma(
            lambda sigma: claim(asked(sigma), delta).epsilon,
            epsilon,
            event.sigma,
            least=_least_for_a_grid(event) if claim is pld else 0.0,
            scale=event.sensitivity,
        )
    how = {None: "no noise is enough", 0.0: NOT_NEEDED}.get(sigma)
    return Row(
        accountant=name,
        sigma=sigma,
        ratio=None if sigma is None else sigma / event.sigma,
        epsilon=at_exact.epsilon if at_exact.epsilon < math.inf else None,
        how=how or claim(asked(sigma or 0.0), delta).how,
        no_claim=at_exact.how if at_exact.epsilon == math.inf else "",
    )


def _hidden_by_sampling(event: Event, delta: float) -> bool:
    """Whether a record is in any sample with probability delta at most: then (0, delta)-DP holds
    without noise, and the privacy loss is not zero with no larger probability."""
    return event.rate < 1 and -math.expm1(event.count * math.log1p(-event.rate)) <= delta


def _least_for_a_grid(event: Event) -> float:
    """The noise below which losses of samples are too far apart for a grid."""
    clip = event.sensitivity / OVER_CLIP[event.neighbours]
    return LEAST_NOISE * clip if event.rate < 1 else 0.0


def least_sigma(
    claim: Callable[[float], float],
    epsilon: float,
    start: float,
    least: float = 0.0,
    scale: float = 0.0,
) -> float | None:
    """The least sigma, up to APART, at which epsilon or less was seen to be claimed; searched from
    `start` with steps that grow, then by bisection. None where no noise is enough, 0 where none is
    needed: it is searched within MOST_NOISE of `start`, and upwards of `scale` if that is larger.
    Nothing below `least` is tried."""
    step, safe = 1.01, start
    while claim(safe) > epsilon:
        safe, step = safe * step, min(step * step, 2.0)
        if safe > max(start, scale) * MOST_NOISE:
            return None
    unsafe, step = safe / 1.01, 1.01
    while unsafe >= least and claim(unsafe) <= epsilon:
        safe, step = unsafe, min(step * step, 2.0)
        unsafe = safe / step
        if unsafe < start / MOST_NOISE:
            return 0.0
    if unsafe < least:
        return safe
    while safe > unsafe * (1 + APART):
        middle = math.sqrt(safe * unsafe)
        if claim(middle) <= epsilon:
            safe = middle
        else:
            unsafe = middle
    return safe


def epsilons_by_rounds(
    comparison: Comparison, rounds: Sequence[int]
) -> dict[str, list[tuple[int, float]]]:
    """What each accountant claims after so many rounds with the noise of the comparison, where it
    claims anything."""
    lines: dict[str, list[tuple[int, float]]] = {row.accountant: [] for row in comparison.rows}
    own = comparison.rows[-1].accountant
    for count in rounds:
        event = replace(comparison.event, count=count)
        spent = event.epsilon(comparison.delta)
        claims = {
            name: claim(event, comparison.delta).epsilon
            for name, claim in ACCOUNTANTS.items()
            if claim is not pld or spent <= MOST_EPSILON
        }
        for name, epsilon in {**claims, own: spent}.items():
            if 0 < epsilon < math.inf:
                lines[name].append((count, epsilon))
    return lines
