"""What an attacker gains: the trade-off curve of all that a run releases.

The attacker sees everything that the adversary of the promise sees, knows all other records, and
decides which of two neighbouring data sets was used. alpha is its share of false alarms; beta, the
share of cases it misses, is at least

    beta(alpha) = Phi(Phi^-1(1 - alpha) - mu)

where all releases together are mu-GDP (Dong, Roth and Su, "Gaussian differential privacy", 2022,
equation 6), and no smaller beta is possible for the worst neighbours. What (epsilon, delta) alone
implies (their equation 2, after Wasserman and Zhou 2010) is less:

    beta(alpha) >= max(0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha)).

Of secret samples there is no mu. There the curve is the supremum of these bounds over every epsilon
>= 0 with its delta(epsilon) (their Proposition 2.12), which `sampled.profile` bounds from above for
both orders of the neighbours. That is the largest convex curve below both orders' own ones.

Outcomes whose probabilities are within e^(+-a) of those, `Event.slack`, raise alpha to e^a alpha at
most, and lower beta to e^-a beta. Every beta is rounded down.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from equipoise.errors import InvalidValue, require
from equipoise.privacy.events import Event
from equipoise.privacy.gaussian import epsilon_spent, gdp_mu
from equipoise.privacy.promise import OVER_CLIP
from equipoise.privacy.sampled import profile

_ROUNDING = 2.0**-44  # far more than arithmetic and special functions err, relative to their size
_MOST_EXPONENT = 709.0  # e to this power is a float
_ALWAYS, _NEVER = 1.0, 0.0


def trade_off(events: Iterable[Event], alpha: Any) -> Any:
    """The least share of misses at these shares of false alarms, an array or a number, for a unit
    at any client: a lower bound, and exact for the worst neighbours where nothing is sampled."""
    alphas = np.asarray(alpha, float)
    require(bool(((0 <= alphas) & (alphas <= 1)).all()), f"alpha={alpha} is not a share, 0 to 1")
    least = np.min([_of_event(event, alphas) for event in {*events}], axis=0)
    return float(least) if np.isscalar(alpha) else least


def power(events: Iterable[Event], alpha: Any) -> Any:
    """The largest share of cases that an attacker finds, with these shares of false alarms."""
    return 1 - trade_off(events, alpha)


def gaussian(mu: float, alpha: Any) -> Any:
    """beta(alpha) of a mu-GDP mechanism, rounded down."""
    alphas = np.asarray(alpha, float)
    inside = np.clip(alphas, 1e-300, 1 - 2.0**-53)
    quantile = -ndtri(inside)
    error = _ROUNDING * (1 + np.abs(quantile) + mu)
    beta = ndtr(quantile - mu - error) * (1 - _ROUNDING) if mu < math.inf else np.zeros(())
    return np.where(alphas <= 0, _ALWAYS, np.where(alphas >= 1, _NEVER, beta))


def implied(epsilon: Any, delta: Any, alpha: Any) -> Any:
    """beta(alpha) as far as (epsilon, delta) alone implies it."""
    alphas, epsilons = np.asarray(alpha, float), np.asarray(epsilon, float)
    false = np.where(alphas > 0, np.exp(np.minimum(epsilons, _MOST_EXPONENT)) * alphas, 0.0)
    few, many = 1 - delta - false, np.exp(-epsilons) * (1 - delta - alphas)
    return np.maximum(0.0, np.maximum(few, many))


def _of_event(event: Event, alphas: Any) -> Any:
    """Sampled or not: whoever knows the coins sees that all the better, so both bounds hold."""
    raised = np.minimum(1.0, math.exp(event.slack) * alphas)
    whole = replace(event, rate=1.0).mu
    assert whole is not None
    beta = gaussian(whole, raised)
    if event.rate < 1 and event.sigma > 0:
        noise = event.sigma / (event.sensitivity / OVER_CLIP[event.neighbours])
        sampled = profile(noise, event.count, event.rate, event.neighbours)
        if sampled:
            epsilons, deltas = np.array(sampled).T.reshape(2, -1, *(1,) * raised.ndim)
            bounds = implied(epsilons, deltas, raised).max(axis=0)
            beta = np.maximum(beta, bounds * (1 - _ROUNDING))
    return math.exp(-event.slack) * beta


def budget(max_tpr: float, fpr: float, delta: float) -> float:
    """The largest epsilon at this delta with which Gaussian releases let no attacker with a share
    `fpr` of false alarms find more than a share `max_tpr` of the cases.

    mu = Phi^-1(max_tpr) - Phi^-1(fpr), rounded down until `gaussian` was seen to obey.
    """
    require(
        0 < fpr < max_tpr < 1,
        f"max_tpr={max_tpr} and fpr={fpr}: these are shares of cases found and of false alarms, "
        "with 0 < fpr < max_tpr < 1, such as max_tpr=0.05 and fpr=0.01",
    )
    mu, step = float(ndtri(max_tpr) - ndtri(fpr)), 2.0**-50
    while 1 - gaussian(mu, fpr) > max_tpr:
        mu, step = mu * (1 - step), 2 * step
    epsilon, step = epsilon_spent(1.0, 1, mu, delta), 2.0**-50
    require(
        epsilon > 0,
        f"max_tpr={max_tpr} at fpr={fpr} is so near to guessing that it needs no epsilon at "
        f"delta={delta}: give a smaller delta, or epsilon",
    )
    while gdp_mu(epsilon, delta) > mu:
        epsilon, step = epsilon * (1 - step), 2 * step
    return epsilon


def kept_by(max_tpr: Any, fpr: Any, delta: Any, epsilon: Any = None) -> float | None:
    """The epsilon of `budget` for settings that have none yet, whatever they hold; None where
    settings that were settled before have it already."""
    require(
        max_tpr is not None and fpr is not None,
        f"max_tpr={max_tpr} and fpr={fpr}: a bound on attacks has both, such as max_tpr=0.05 and "
        "fpr=0.01; give the other one too",
    )
    follows = budget(*(_share(each) for each in (max_tpr, fpr, delta)))
    if epsilon is None:
        return follows
    several = epsilon if isinstance(epsilon, tuple | list) else (epsilon,)
    require(
        len(several) == 1 and math.isclose(_share(several[0]), follows, rel_tol=1e-9),
        f"epsilon={epsilon} with max_tpr={max_tpr} and fpr={fpr}, from which epsilon follows: give "
        "one of the two",
    )
    return None


def _share(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidValue(f"{value!r} is no number: give a share, such as 0.05") from None
