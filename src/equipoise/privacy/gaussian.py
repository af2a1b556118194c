"""The exact calculus of K adaptive Gaussian releases, and the noise rules built on it.

A Gaussian release with standard deviation sigma of a vector with L2 sensitivity Delta is mu-GDP
with mu = Delta / sigma. K adaptive ones compose to mu = Delta sqrt(K) / sigma, exactly (Dong, Roth
and Su, "Gaussian differential privacy", 2022, Theorem 2.7 and Corollary 3.3). mu-GDP is the same as
(epsilon, delta(epsilon))-DP for every epsilon >= 0 with

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

(Balle and Wang, "Improving the Gaussian mechanism", 2018, Theorem 8). With a = epsilon/mu - mu/2, b
= a + mu, and the Mills ratio M(x) = Phi(-x) / phi(x), the identity e^epsilon phi(b) = phi(a) turns
this into

    delta(epsilon) = phi(a) (M(a) - M(b)) = phi(a) integral_a^b (1 - x M(x)) dx

which neither overflows nor cancels. Every search below ends on a point where an upper bound of
delta was seen to hold, so rounding never spends more than the budget.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from scipy.special import erfcx, ndtr

from equipoise.errors import require
from equipoise.privacy.promise import check_budget

_NODES, _WEIGHTS = (half / 2 for half in np.polynomial.legendre.leggauss(16))
_NODES = _NODES + 0.5  # Gauss-Legendre on [0, 1]
_LOG_SQRT_2PI: Final = math.log(2 * math.pi) / 2


def _mills(x: float) -> float:
    return float(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))


def log_delta(epsilon: float, mu: float) -> float:
    """An upper bound of log delta(epsilon) of a mu-GDP mechanism, at most about 1e-11 above it."""
    a = epsilon / mu - mu / 2
    if a > 40:  # delta <= Phi(-a) <= e^(-a^2/2), below every positive float
        return -a * a / 2
    computed, rounding = _log_delta(epsilon, mu)
    return min(0.0, computed + rounding)


def log_delta_at_least(epsilon: float, mu: float) -> float:
    """A lower bound of log delta(epsilon), as close."""
    if epsilon / mu - mu / 2 > 40:
        return -math.inf
    computed, rounding = _log_delta(epsilon, mu)
    return computed - rounding


def _log_delta(epsilon: float, mu: float) -> tuple[float, float]:
    """As it is computed, and what rounding of mu, a, b and of the special functions can change."""
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if mu < 0.5:  # M(a) - M(b) would cancel
        x = a + mu * _NODES
        difference = mu * float(
            _WEIGHTS @ (1 - x * math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))
        )
        computed = math.log(difference) - a * a / 2 - _LOG_SQRT_2PI
    elif a >= 0:
        computed = math.log(_mills(a) - _mills(b)) - a * a / 2 - _LOG_SQRT_2PI
    else:  # here delta > 0.1: nothing cancels, while M(a) could overflow
        computed = math.log(float(ndtr(-a)) - math.exp(-a * a / 2 - _LOG_SQRT_2PI) * _mills(b))
    return computed, 2.0**-48 * (1 + a * a + (1 + abs(a)) * b)


def _outermost(safe: float, unsafe: float, is_safe: Callable[[float], bool]) -> float:
    """Bisect down to neighbouring floats; returns a point for which `is_safe` was seen to hold."""
    while True:
        middle = safe + (unsafe - safe) / 2
        if middle in (safe, unsafe) or not math.isfinite(middle):
            return safe
        if is_safe(middle):
            safe = middle
        else:
            unsafe = middle


@lru_cache(maxsize=1024)
def gdp_mu(epsilon: float, delta: float) -> float:
    """The largest mu for which a mu-GDP mechanism is (epsilon, delta)-DP: the whole budget as one
    number.

    epsilon, delta   the budget, as in `Promise`

    >>> round(equipoise.gdp_mu(epsilon=2, delta=1e-5), 4)
    0.5016
    """
    check_budget(epsilon, delta)
    if epsilon == math.inf:
        return math.inf

    def is_safe(mu: float) -> bool:
        return log_delta(epsilon, mu) <= math.log(delta)

    safe = unsafe = 1.0
    while not is_safe(safe):
        safe /= 2
    while is_safe(unsafe):
        unsafe *= 2
    return _outermost(safe, unsafe, is_safe)


def noise_sigma(epsilon: float, delta: float, releases: int, sensitivity: float) -> float:
    """The smallest noise with which `releases` Gaussian releases are together (epsilon, delta)-DP.

    sigma = sensitivity sqrt(releases) / mu(epsilon, delta): the standard deviation, per coordinate,
    of what the adversary sees in one release. Rounded up: `epsilon_spent` of the result is never
    above `epsilon`.

    epsilon, delta   the budget, as in `Promise`
    releases         noisy vectors that an adversary sees
    sensitivity      how far one unit can move one of them (L2 norm): 2C under replace-one

    >>> round(equipoise.noise_sigma(epsilon=2, delta=1e-5, releases=16, sensitivity=2), 3)
    15.95
    """
    _check_releases(releases, sensitivity)
    mu = gdp_mu(epsilon, delta)
    if mu == math.inf or releases == 0:
        return 0.0
    require(
        sensitivity < math.inf,
        "sensitivity=inf with a finite epsilon: no noise is enough, clip the updates",
    )
    sigma, step = sensitivity * math.sqrt(releases) / mu, 2.0**-52
    while epsilon_spent(sigma, releases, sensitivity, delta) > epsilon:
        sigma, step = sigma * (1 + step), 2 * step
    return sigma


@lru_cache(maxsize=1024)
def epsilon_spent(
    sigma: float, releases: int, sensitivity: float, delta: float, slack: float = 0.0
) -> float:
    """The smallest epsilon for which `releases` Gaussian releases with noise `sigma` are (epsilon,
    delta)-DP, rounded up.

    0 where even epsilon = 0 holds (total variation at most delta); infinite without noise. Of
    outcomes whose probabilities are within e^(+-slack) of the Gaussian ones, with epsilon 2 slack
    larger and delta e^slack times as large (`lattice.sum_slack`: a slack below 2^-60 is far within
    the margin of `log_delta`).

    sigma         standard deviation of the noise, per coordinate of a release
    releases      noisy vectors that an adversary sees
    sensitivity   how far one unit can move one of them (L2 norm): 2C under replace-one
    delta         of the guarantee
    slack         how far the noise may be from a Gaussian, as the logarithm of probabilities

    >>> round(equipoise.epsilon_spent(sigma=20, releases=16, sensitivity=2, delta=1e-5), 3)
    1.555
    """
    _check_releases(releases, sensitivity)
    require(0 < delta < 1, f"delta={delta} is not in (0, 1)")
    require(sigma >= 0, f"sigma={sigma} is not >= 0")
    if releases == 0:
        return 0.0
    if sigma == 0 or sensitivity == math.inf:
        return math.inf
    mu = sensitivity * math.sqrt(releases) / sigma

    def is_safe(epsilon: float) -> bool:
        return log_delta(epsilon - 2 * slack, mu) + slack <= math.log(delta)

    if mu == 0 or is_safe(0.0):
        return 0.0
    enough = (
        2 * slack + mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    )  # by zCDP, rho = mu^2/2 (Bun and Steinke 2016)
    while enough < math.inf and not is_safe(enough):  # rounding alone: doubles at most once
        enough *= 2
    return _outermost(enough, 0.0, is_safe) if enough < math.inf else math.inf


def _check_releases(releases: int, sensitivity: float) -> None:
    require(releases >= 0, f"releases={releases} is not a number of releases")
    require(sensitivity > 0, f"sensitivity={sensitivity} is not > 0")
