"""Noise for gradients of a secret Poisson sample, by privacy loss distributions.

Every local step releases the sum of the sampled records' clipped gradients, plus N(0, sigma^2).
Without sampling (rate 1) the exact calculus of `gaussian` holds. With sampling the loss of one
step has no closed form; Google's dp-accounting composes its distribution numerically, on a grid
rounded to the pessimistic side (Doroshenko et al., "Connect the dots", 2022): an upper bound of
epsilon. It takes sigma/C under both neighbours: for replace-one it doubles the sensitivity by
itself.

The same distribution gives a lower bound. Connecting the dots moves the loss l of one step to one
of the two points of the grid around it, at random, so that the mean of e^(-l) stays. With points h
apart, the loss then rises by at most h^2/8 in the mean (Hoeffding's lemma), and its mean apart, T
steps together raise it by more than h sqrt(T ln(1/eta) / 2) only with probability eta
(Hoeffding's inequality). With D the sum of both, delta_grid(epsilon) <= delta(epsilon - D) + eta:
the exact epsilon at delta is at least that of the grid at delta + eta, less D. The grid is refined
until D is at most TOLERANCE of epsilon.

All deltas of it together are what `least_gaussian` compares with those of one Gaussian release.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from equipoise.errors import InvalidValue, require
from equipoise.privacy.gaussian import epsilon_spent, log_delta_at_least, noise_sigma
from equipoise.privacy.job import quiet_library
from equipoise.privacy.promise import OVER_CLIP, Neighbours, check_budget

TOLERANCE = 0.01  # of epsilon, between its two bounds
# Grids of the privacy loss, powers of two. On finer ones rounding adds more than the grid takes
# away: masses of one step are differences of deltas, divided by the grid.
_COARSEST, _FINEST = 2.0**-9, 2.0**-20
_MOST_POINTS = 2**19  # of the losses of one step: about two seconds
_APART = 1e-4  # how far, as a share, calibrated noise may be from the least that is enough
_ETA = 1e-3  # the share of delta that the lower bound gives away
# Of what T steps compose, Fourier transforms have an error of at most T times this: against
# binomial distributions, summed over all points, up to two thirds of it.
_ROUNDING = 2.0**-50
# dp-accounting cuts rare losses off, up to 1e-15 in all, and adds as much to delta, whether it cut
# or not: once for the steps, and once where they are joined to what was composed before.
_CUT = 2e-15
# Below it sampling is not counted: losses grow beyond what a grid can hold.
LEAST_NOISE = 0.1
_KNOWN = ("replace-one", "add-remove")
_CELLS = 4096  # of epsilon, in which deltas are compared
_MOST_MU = 100.0
# A delta at which a profile is about as fine as a curve can be seen, and where it ends: there
# alpha is too small to matter.
_USUAL, _RAREST = 1e-3, 1e-9


class Sampled(NamedTuple):
    """Steps that are composed: `noise` is sigma/C, `rate` the sampling rate."""

    noise: float
    steps: int
    rate: float
    neighbours: Neighbours

    @property
    def kinds(self) -> int:
        return 1

    def events(self) -> list[Any]:
        """In dp-accounting's words. It takes sigma/C under both neighbours."""
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

        step = PoissonSampledDpEvent(self.rate, GaussianDpEvent(self.noise))
        return [SelfComposedDpEvent(step, self.steps)]


class Several(NamedTuple):
    """Steps of several kinds, composed with each other and with Gaussian releases, which are one:
    `whole` is its sigma/C, infinite where there is none."""

    parts: tuple[Sampled, ...]
    whole: float
    neighbours: Neighbours

    @property
    def noise(self) -> float:
        """The least of any, where losses are furthest apart."""
        return min(self.whole, *(part.noise for part in self.parts))

    @property
    def steps(self) -> int:
        """Losses that are moved to a grid: the Gaussian releases are one."""
        return sum(part.steps for part in self.parts) + (self.whole < math.inf)

    @property
    def rate(self) -> float:
        return min(part.rate for part in self.parts)

    @property
    def kinds(self) -> int:
        return len(self.parts) + (self.whole < math.inf)

    def events(self) -> list[Any]:
        from dp_accounting import GaussianDpEvent

        gaussian = [GaussianDpEvent(self.whole)] if self.whole < math.inf else []
        return [*gaussian, *(event for part in self.parts for event in part.events())]


class Bounds(NamedTuple):
    """The exact epsilon lies between them: `upper` is what is promised."""

    lower: float
    upper: float


def sampled_epsilon(
    noise: float, steps: int, rate: float, delta: float, neighbours: Neighbours
) -> float:
    """The epsilon that `steps` steps spend, an upper bound: `noise` is sigma/C, `rate` the sampling
    rate."""
    return sampled_bounds(noise, steps, rate, delta, neighbours).upper


def sampled_bounds(
    noise: float, steps: int, rate: float, delta: float, neighbours: Neighbours
) -> Bounds:
    """The least and the most that `steps` steps may spend, on grids that are refined until the two
    agree to TOLERANCE, or until finer ones cost too much.

    Never above what the same steps without sampling spend: whoever knew the coins would see that at
    most.
    """
    _check(steps, rate, neighbours)
    whole = epsilon_spent(noise, steps, OVER_CLIP[neighbours], delta)
    if rate == 1 or whole == 0:
        return Bounds(whole, whole)
    if noise < LEAST_NOISE:
        return Bounds(0.0, whole)
    return refined(Sampled(noise, steps, rate, neighbours), whole, delta)


def refined(what: Sampled | Several, whole: float, delta: float) -> Bounds:
    """Both bounds on a grid that is fine enough; `whole` is what is spent without sampling."""
    upper, grid, wanted = whole, 2 * _COARSEST, _COARSEST
    while upper > 0 and grid > wanted:
        grid = min(grid / 2, wanted)
        upper = min(upper, _upper(what, delta, grid))  # every grid's bound holds
        wanted = grid_of(what, upper, delta)
    return Bounds(min(_lower(what, delta, grid), upper), upper)


def total_variation(noise: float, steps: int, rate: float, neighbours: Neighbours) -> float:
    """delta at epsilon = 0, an upper bound: no attack has a larger TPR - FPR."""
    _check(steps, rate, neighbours)
    composed = _composed(Sampled(noise, steps, rate, neighbours), _COARSEST)
    return min(1.0, float(composed.get_delta(0.0)) + steps * _ROUNDING)


@lru_cache(maxsize=256)
def least_gaussian(noise: float, steps: int, rate: float, delta0: float) -> float:
    """The least mu of which one Gaussian release tells all that `steps` steps do under replace-one,
    but for delta0: delta(epsilon) <= (1 - delta0) delta_mu(epsilon) + delta0 for every epsilon >=
    0. Infinite where no grid shows that there is one.

    Both sides fall with epsilon. So a cell of a grid of epsilons is in order if the left side at
    its beginning is at most the right side at its end; and beyond the last cell the left side is at
    most delta0.
    """
    _check(steps, rate, "replace-one")
    what = Sampled(noise, steps, rate, "replace-one")
    rounded = steps * _ROUNDING
    if noise < LEAST_NOISE or rounded > delta0 / 2:
        return math.inf
    middle = min(1e4 * delta0, 0.1)  # a delta at which rows are used
    grid = grid_of(what, sampled_epsilon(noise, steps, rate, middle, "replace-one"), middle)
    last = _epsilon(_composed(what, grid), delta0 - rounded)
    if last == math.inf:
        return math.inf
    ends = [last * cell / _CELLS for cell in range(_CELLS + 1)]
    deltas = [float(delta) + rounded for delta in _composed(what, grid).get_delta(ends[:-1])]
    mu = 0.0
    for end, delta in zip(ends[1:], deltas, strict=True):
        if delta > delta0 and mu < math.inf:
            mu = _enlarged(mu, end, math.log((delta - delta0) / (1 - delta0)))
    return mu


@lru_cache(maxsize=64)
def profile(
    noise: float, steps: int, rate: float, neighbours: Neighbours
) -> tuple[tuple[float, float], ...]:
    """Pairs (epsilon, delta) that all hold for `steps` steps, from epsilon = 0 on, for both orders
    of the neighbours: what `trade_off` makes a curve of. None where no grid can hold the losses.
    """
    _check(steps, rate, neighbours)
    if noise < LEAST_NOISE or steps == 0:
        return ()
    what = Sampled(noise, steps, rate, neighbours)
    grid = grid_of(what, sampled_epsilon(noise, steps, rate, _USUAL, neighbours), _USUAL)
    composed, rounded = _composed(what, grid), steps * _ROUNDING
    last = _epsilon(composed, max(_RAREST, 2 * rounded) - rounded)
    if last == math.inf:
        return ()
    epsilons = [last * cell / _CELLS for cell in range(_CELLS + 1)]
    deltas = composed.get_delta(epsilons)
    return tuple((e, float(d) + rounded) for e, d in zip(epsilons, deltas, strict=True))


def _enlarged(mu: float, epsilon: float, log_delta: float) -> float:
    """mu, or the least larger one (to 1e-6) whose delta at epsilon is at least this; infinite
    beyond all that protects anybody."""

    def enough(candidate: float) -> bool:
        return log_delta_at_least(epsilon, candidate) >= log_delta

    if mu and enough(mu):
        return mu
    low, high = mu, max(mu, 2.0**-10)
    while not enough(high):
        if high > _MOST_MU:
            return math.inf
        low, high = high, 2 * high
    while high > low * (1 + 1e-6):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def grid_of(what: Sampled | Several, epsilon: float, delta: float) -> float:
    """The coarsest grid on which the two bounds of this epsilon agree to TOLERANCE, if it is not
    too fine for the losses of one step, up to ten sigmas from their centre."""
    spread = math.sqrt(what.steps * -math.log(_ETA * delta) / 2)
    apart = TOLERANCE * epsilon  # D, solved for the grid
    grid = 2 * apart / (spread + math.sqrt(spread**2 + what.steps * apart / 2))
    shift = OVER_CLIP[what.neighbours] / what.noise
    finest = max(_FINEST, shift * (shift + 20) / _MOST_POINTS)
    return min(_COARSEST, 2.0 ** math.floor(math.log2(max(grid, finest))))


@lru_cache(maxsize=256)
def sampled_noise(
    epsilon: float, delta: float, steps: int, rate: float, neighbours: Neighbours
) -> float:
    """sigma/C with which `steps` steps together are (epsilon, delta)-DP: `sampled_epsilon` of it is
    never above epsilon."""
    check_budget(epsilon, delta)
    _check(steps, rate, neighbours)
    safe = noise_sigma(epsilon, delta, steps, OVER_CLIP[neighbours])  # enough without sampling
    if rate == 1 or safe <= LEAST_NOISE:
        return safe

    def excess(noise: float, coarser: int) -> float:
        """log(epsilon spent / epsilon): falling, and nearly a straight line in log(noise)."""
        what = Sampled(noise, steps, rate, neighbours)
        grid = min(_COARSEST, coarser * grid_of(what, epsilon, delta))
        return math.log(max(_upper(what, delta, grid), 1e-9) / epsilon)

    for coarser, apart in ((32, 2.0), (2, 1.01)):
        safe = _least(lambda noise, by=coarser: excess(noise, by), safe, apart)  # type: ignore[misc]
    # What is told may come from another grid. It is at most what is spent without sampling, and so
    # the end is reached.
    while sampled_epsilon(safe, steps, rate, delta, neighbours) > epsilon:
        safe *= 1 + _APART
    return safe


def _least(excess: Callable[[float], float], safe: float, apart: float) -> float:
    """The least argument, up to _APART, for which `excess` was seen not to be positive, by regula
    falsi in its logarithm.

    `safe` itself where the grid is too coarse to see that it is enough.
    """
    above = excess(safe)
    if above > 0:
        return safe
    unsafe, below = safe, above
    while below <= 0:
        safe, above = unsafe, below
        if safe <= LEAST_NOISE:
            return safe
        unsafe = max(safe / apart, LEAST_NOISE)
        below = excess(unsafe)
        apart *= apart  # from 1.01 to a factor of 2 in seven leaps
    while safe > unsafe * (1 + _APART):
        # Of the way from safe to unsafe, in logarithms: to a point just on the safe side.
        share = above / (above - below) if below < math.inf else 0.5
        middle = safe * (unsafe / safe) ** min(share, 0.95) * (1 + _APART / 4)
        middle = min(middle, safe / (1 + _APART / 2))
        value = excess(middle)
        if value <= 0:
            safe, above, below = middle, value, below / 2  # halved: both ends move (Illinois)
        else:
            unsafe, below, above = middle, value, above / 2
    return safe


@lru_cache(maxsize=4096)
def _upper(what: Sampled | Several, delta: float, grid: float) -> float:
    return _epsilon(_composed(what, grid), delta - what.steps * _ROUNDING)


@lru_cache(maxsize=4096)
def _lower(what: Sampled | Several, delta: float, grid: float) -> float:
    composed, eta = _composed(what, grid), _ETA * delta
    # Masses below zero were counted as zero, so that together they may be more than 1.
    mass = float(composed.get_delta(-math.inf))
    risen = what.steps * grid**2 / 8 + grid * math.sqrt(what.steps * -math.log(eta) / 2)
    lower = (
        _epsilon(composed, mass * (delta + eta + what.steps * _ROUNDING + what.kinds * _CUT))
        - risen
    )
    return max(0.0, lower) if lower < math.inf else 0.0


def _epsilon(composed: Any, delta: float) -> float:
    """Infinite where rounding left no delta, or where no epsilon was found."""
    epsilon = float(composed.get_epsilon(delta)) if delta > 0 else math.inf
    return math.inf if math.isnan(epsilon) else epsilon


@lru_cache(maxsize=1)  # both bounds of one composition: it may hold millions of numbers
def _composed(what: Sampled | Several, grid: float) -> Any:
    try:
        from dp_accounting import ComposedDpEvent, NeighboringRelation
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise InvalidValue(
            f"sampling_rate={what.rate:g} needs dp-accounting: pip install 'equipoise[record]', or "
            f"use sampling_rate=1"
        ) from None
    relation = {
        "replace-one": NeighboringRelation.REPLACE_ONE,
        "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    }
    accountant = PLDAccountant(relation[what.neighbours], value_discretization_interval=grid)
    with quiet_library():
        return accountant.compose(ComposedDpEvent(what.events()))


def _check(steps: int, rate: float, neighbours: Neighbours) -> None:
    require(steps >= 0, f"steps={steps} is not a number of steps")
    require(0 < rate <= 1, f"sampling_rate={rate} is not in (0, 1]")
    require(neighbours in _KNOWN, f"neighbours={neighbours!r} is not one of {', '.join(_KNOWN)}")
