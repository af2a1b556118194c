"""What several kinds of releases spend together: phases of a run, runs on the same data, and what
other programs release.

Gaussian releases add up in mu^2 (Dong, Roth and Su, "Gaussian differential privacy", 2022,
Corollary 3.3), exactly; secret samples are composed numerically, between two bounds (`sampled`);
releases that are epsilon-DP without a delta add up in epsilon, or in rho = epsilon^2/2 (Bun and
Steinke, "Concentrated differential privacy", 2016, Proposition 1.4), whichever says less: an upper
bound.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from equipoise.errors import require
from equipoise.privacy.groups import Together, by_steps
from equipoise.privacy.job import check_library
from equipoise.privacy.promise import OVER_CLIP, Neighbours

_UP = 1 + 2.0**-48  # more than the rounding of a sum of squares and its root
# Of secret samples: seconds of numerical composition, as measured.
_MOST_STEPS, _MOST_KINDS = 10**6, 50
_MOST = 1e100  # beyond, squares overflow


@dataclass(frozen=True)
class Gaussian:
    """`rounds` releases that are alike: clipped sums over everybody, or over a secret Poisson
    sample of this rate, plus Gaussian noise.

    noise   its standard deviation over C, the most that one unit adds to a sum (L2 norm)
    """

    rounds: int
    noise: float
    rate: float = 1.0

    def __post_init__(self) -> None:
        _check_rounds(self.rounds)
        require(
            1e-100 < self.noise < _MOST,
            f"noise={self.noise:g} is not a number > 0 that can be counted with: without noise "
            "nothing is hidden",
        )
        require(0 < self.rate <= 1, f"rate={self.rate} is not in (0, 1]")

    def mu2(self, neighbours: Neighbours) -> float:
        """mu^2 of all of them, if everybody knew the samples."""
        return self.rounds * (OVER_CLIP[neighbours] / self.noise) ** 2


@dataclass(frozen=True)
class Pure:
    """`rounds` releases that are alike, each epsilon-DP with delta = 0, as Laplace noise makes
    them."""

    rounds: int
    epsilon: float

    def __post_init__(self) -> None:
        _check_rounds(self.rounds)
        require(0 <= self.epsilon < _MOST, f"epsilon={self.epsilon:g} is nothing to count with")


Part = Gaussian | Pure


class Spent(NamedTuple):
    """What all parts spend together under one neighbouring relation: epsilon at delta.

    epsilon    exact, or an upper bound
    lower      what they spend at least; epsilon itself where that is exact, 0 where nothing is
               known
    mu         all of them as one Gaussian release; None where they are none
    """

    neighbours: Neighbours
    delta: float
    epsilon: float
    lower: float
    mu: float | None

    @property
    def exact(self) -> bool:
        return self.epsilon == self.lower

    def of_units(self, units: int) -> Together:
        """For so many units that change at once: k mu (Dong, Roth and Su 2022, Theorem 2.14), or
        from neighbour to neighbour."""
        if self.mu is None:
            return by_steps(self.epsilon, self.delta, units)
        return Together(units, _epsilon(units * self.mu, self.delta), self.delta)


def spend(
    parts: Sequence[Part], neighbours: Neighbours, delta: float, chance: float = 0.0
) -> Spent:
    """What the parts spend at delta; `chance` is a probability with which less noise than they say
    was added, and so a part of delta."""
    require(0 < delta < 1, f"delta={delta} is not in (0, 1)")
    require(chance < delta, f"delta={delta:g} is not above {chance:g}, which is left to chance")
    left = delta - chance
    pure = [part for part in parts if isinstance(part, Pure)]
    noised = [part for part in parts if isinstance(part, Gaussian)]
    if all(part.rate == 1 for part in noised):
        mu = math.sqrt(math.fsum(part.mu2(neighbours) for part in noised)) * _UP
        epsilon = lower = _epsilon(mu, left)
    else:
        mu, (lower, epsilon) = None, _sampled(noised, neighbours, left)
    if pure:
        in_all = epsilon + math.fsum(part.rounds * part.epsilon for part in pure)
        return Spent(neighbours, delta, min(in_all, _by_rho(mu, pure, left)), lower, None)
    if chance:
        return Spent(neighbours, delta, epsilon, 0.0, None)
    return Spent(neighbours, delta, epsilon, lower, mu)


def _epsilon(mu: float, delta: float) -> float:
    from equipoise.privacy.gaussian import epsilon_spent  # scipy: not for --help

    return epsilon_spent(1.0, 1, mu, delta) if mu else 0.0


def _sampled(
    parts: Sequence[Gaussian], neighbours: Neighbours, delta: float
) -> tuple[float, float]:
    """Between which epsilon lies. Samples that have too little noise for a grid are not counted,
    and then there is no lower bound."""
    check_library("rate < 1", "leave it out")
    from equipoise.privacy.sampled import LEAST_NOISE, Sampled, Several, refined

    counted = _merged([part for part in parts if part.rate < 1 and part.noise >= LEAST_NOISE])
    steps = sum(part.rounds for part in counted)
    require(
        steps <= _MOST_STEPS and len(counted) <= _MOST_KINDS,
        f"rounds={steps} of secret samples, of {len(counted)} kinds: at most {_MOST_STEPS:,} of "
        f"{_MOST_KINDS} kinds are composed; rate=1 is an upper bound",
    )
    rest = [part for part in parts if part.rate == 1 or part.noise < LEAST_NOISE]
    others = math.fsum(part.mu2(neighbours) for part in rest)
    whole = _epsilon(math.sqrt(math.fsum(part.mu2(neighbours) for part in parts)) * _UP, delta)
    mu = math.sqrt(others) * _UP
    alone = OVER_CLIP[neighbours] / mu if mu else math.inf
    if not counted or alone < LEAST_NOISE:
        return 0.0, whole
    kinds = (Sampled(part.noise, part.rounds, part.rate, neighbours) for part in counted)
    bounds = refined(Several(tuple(kinds), alone, neighbours), whole, delta)
    known = all(part.rate == 1 for part in rest)
    return bounds.lower if known else 0.0, bounds.upper


def _merged(parts: Sequence[Gaussian]) -> list[Gaussian]:
    """Those of one kind as one."""
    rounds: dict[tuple[float, float], int] = {}
    for part in parts:
        kind = part.noise, part.rate
        rounds[kind] = rounds.get(kind, 0) + part.rounds
    return [Gaussian(count, noise, rate) for (noise, rate), count in rounds.items()]


def _by_rho(mu: float | None, pure: Sequence[Pure], delta: float) -> float:
    """By zCDP, where nothing is sampled."""
    if mu is None:
        return math.inf
    from equipoise.privacy.accountants import improved_conversion  # scipy: not for --help

    rho = mu * mu / 2 + math.fsum(part.rounds * part.epsilon**2 / 2 for part in pure)
    return improved_conversion(rho, delta)[0] if rho else 0.0


def _check_rounds(rounds: int) -> None:
    require(
        isinstance(rounds, int) and 1 <= rounds <= 10**15,
        "rounds are not a whole number from 1 to 1e15",
    )
