"""Noise for gradients of a secret Poisson sample, by privacy loss distributions.

Every local step releases the sum of the sampled records' clipped gradients, plus N(0, sigma^2).
Without sampling (rate 1) the exact calculus of `gaussian` holds. With sampling the loss of one
step has no closed form; Google's dp-accounting composes its distribution numerically, on a grid
rounded to the pessimistic side (Doroshenko et al., "Connect the dots", 2022).

It takes sigma/C under both neighbours: for replace-one it doubles the sensitivity by itself.
"""

import math
from collections.abc import Callable
from functools import lru_cache

from equipoise.errors import InvalidValue, require
from equipoise.privacy.gaussian import epsilon_spent, noise_sigma
from equipoise.privacy.promise import OVER_CLIP, Neighbours, check_budget

_COARSE, _FINE = 2e-3, 2e-4  # grids of the privacy loss: to search on, and to tell
# Below it sampling is not counted: losses grow beyond what a grid can hold.
_LEAST_NOISE = 0.1
_KNOWN = ("replace-one", "add-remove")


def sampled_epsilon(
    noise: float, steps: int, rate: float, delta: float, neighbours: Neighbours
) -> float:
    """The epsilon that `steps` steps spend, an upper bound: `noise` is sigma/C, `rate` the sampling
    rate.

    Never above what the same steps without sampling spend: whoever knew the coins would see that at
    most.
    """
    _check(steps, rate, neighbours)
    whole = epsilon_spent(noise, steps, OVER_CLIP[neighbours], delta)
    if rate == 1 or noise < _LEAST_NOISE or whole == 0:
        return whole
    return min(whole, _composed(noise, steps, rate, delta, neighbours, _FINE))


@lru_cache(maxsize=256)
def sampled_noise(
    epsilon: float, delta: float, steps: int, rate: float, neighbours: Neighbours
) -> float:
    """sigma/C with which `steps` steps together are (epsilon, delta)-DP: `sampled_epsilon` of it is
    never above epsilon."""
    check_budget(epsilon, delta)
    _check(steps, rate, neighbours)
    safe = noise_sigma(epsilon, delta, steps, OVER_CLIP[neighbours])  # enough without sampling
    if rate == 1 or safe <= _LEAST_NOISE:
        return safe

    def excess(noise: float, grid: float) -> float:
        """log(epsilon spent / epsilon): falling, and nearly a straight line in log(noise)."""
        return math.log(max(_composed(noise, steps, rate, delta, neighbours, grid), 1e-9) / epsilon)

    for grid, apart in ((_COARSE, 2.0), (_FINE, 1.01)):
        safe = _least(lambda noise, grid=grid: excess(noise, grid), safe, apart)  # type: ignore[misc]
    return safe


def _least(excess: Callable[[float], float], safe: float, apart: float) -> float:
    """The least argument, up to 1e-4, for which `excess` was seen not to be positive, by regula
    falsi in its logarithm.

    `safe` itself where the grid is too coarse to see that it is enough.
    """
    above = excess(safe)
    if above > 0:
        return safe
    unsafe, below = safe, above
    while below <= 0:
        safe, above = unsafe, below
        if safe <= _LEAST_NOISE:
            return safe
        unsafe = max(safe / apart, _LEAST_NOISE)
        below = excess(unsafe)
        apart *= apart  # from 1.01 to a factor of 2 in seven leaps
    while safe > unsafe * (1 + 1e-4):
        # Of the way from safe to unsafe, in logarithms.
        share = above / (above - below) if below < math.inf else 0.5
        middle = safe * (unsafe / safe) ** min(max(share, 0.05), 0.95)
        value = excess(middle)
        if value <= 0:
            safe, above, below = middle, value, below / 2  # halved: both ends move (Illinois)
        else:
            unsafe, below, above = middle, value, above / 2
    return safe


@lru_cache(maxsize=4096)
def _composed(
    noise: float, steps: int, rate: float, delta: float, neighbours: Neighbours, grid: float
) -> float:
    try:
        from dp_accounting import (
            GaussianDpEvent,
            NeighboringRelation,
            PoissonSampledDpEvent,
            SelfComposedDpEvent,
        )
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise InvalidValue(
            f"sampling_rate={rate:g} needs dp-accounting: pip install 'equipoise[record]', or use "
            f"sampling_rate=1"
        ) from None
    relation = {
        "replace-one": NeighboringRelation.REPLACE_ONE,
        "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    }
    accountant = PLDAccountant(relation[neighbours], value_discretization_interval=grid)
    accountant.compose(
        SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
    )
    epsilon = float(accountant.get_epsilon(delta))
    return math.inf if math.isnan(epsilon) else epsilon


def _check(steps: int, rate: float, neighbours: Neighbours) -> None:
    require(steps >= 0, f"steps={steps} is not a number of steps")
    require(0 < rate <= 1, f"sampling_rate={rate} is not in (0, 1]")
    require(neighbours in _KNOWN, f"neighbours={neighbours!r} is not one of {', '.join(_KNOWN)}")
