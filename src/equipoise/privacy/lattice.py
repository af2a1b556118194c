"""The lattice gamma Z^d on which everything lies that is noised (proofs in docs/privacy.md).

A sum of floating-point numbers tells by its lowest bits which numbers were added, whatever the
noise. So a client rounds its bounded vector to whole multiples of gamma, a public power of two, and
adds noise that is a whole multiple of gamma too, sampled exactly (`samplers`). Two laws of noise:

rounded    round(sigma N / gamma), for what the adversary sees by itself: with y a whole number,
           y + round(z) = round(y + z), so the release is post-processing of y gamma + N(0, sigma^2)
discrete   the discrete Gaussian, for what is seen as a sum over clients only: its sums are again
           discrete Gaussian up to e^(+-slack), which rounded Gaussians' are not
"""

import math
from typing import Any, NamedTuple

from equipoise.errors import InvalidValue

BITS = 32  # of one coordinate of a message; sums are modulo 2^32
SMOOTHING = 2.0
"""s: a discrete Gaussian of variance v is a Gaussian of variance v - s^2, rounded at random, up to
factors of about 1 +- 4 exp(-2 pi^2 s^2) (in steps of the lattice)."""
_TAIL = 8.0  # standard deviations that 2^32 values hold; beyond it a sum wraps, which harms nobody
_COARSEST = 0.01  # of the clip: what rounding may take from it
_LEAST_NOISE = 8.0  # steps of the lattice, for discrete Gaussians


class Lattice(NamedTuple):
    """Where the noised vectors of a run lie: whole multiples of `gamma`, a number, or a tensor that
    broadcasts as sigma does; 0 where there is no noise, and nothing is rounded. `sums` says that
    the adversary sees only sums over clients."""

    gamma: Any
    sums: bool = False


NOT_ROUNDED = Lattice(0.0)


class Sums(NamedTuple):
    """Of how many clients the adversary sees only the sum, and how many of them are honest."""

    clients: int
    honest: int


def spacing(reach: float, sigma: float, sums: Sums | None = None) -> float:
    """gamma, for noise `sigma` in what the adversary sees: the least power of two with which 32
    bits hold a number up to `reach` and its noise, or the sum of all clients' numbers and noise.

    0 where there is no noise: nothing is rounded then.
    """
    if sigma == 0:
        return 0.0
    clients, honest = sums or Sums(1, 1)
    width = 2 * (clients * reach + _TAIL * sigma * math.sqrt(clients / honest))
    below = power_of_two_below(width / 2**BITS)
    return below if below * 2**BITS == width else 2 * below


def power_of_two_below(value: float) -> float:
    """The largest power of two that is not above the value, which must be ordinary: a step that
    underflows would mean that there is no noise."""
    if not 2.0**-900 < value < 2.0**900:
        raise InvalidValue(
            f"noise and messages of about {value:g} are beyond what double precision can round: "
            "choose clip and eta nearer to 1"
        )
    return math.ldexp(0.5, math.frexp(value)[1])


def rounding(gamma: float, dimension: int) -> float:
    """The farthest that rounding to the lattice moves a vector: gamma sqrt(d) / 2."""
    return gamma * math.sqrt(dimension) / 2


def inner_clip(C: Any, gamma: Any, dimension: int, records: int) -> Any:
    """The clip of one record's gradient with which a sum over `records` records moves by no more
    than C for each record that is added or removed, after rounding.

    Rounding two sums to the lattice moves them apart by gamma sqrt(d) at most; adding m numbers in
    double precision, in any order, by m^2 2^-52 C (docs/privacy.md).
    """
    return C * (1 - records**2 * 2.0**-52) - gamma * math.sqrt(dimension)


def check_spacing(gamma: float, lost: float, clip: float, way_out: str, name: str = "clip") -> None:
    """Refuse a lattice on which rounding costs a noticeable part, `lost`, of what may move."""
    if lost > _COARSEST * clip:
        raise InvalidValue(
            f"{name}={clip:g} and steps of {gamma:g}, the finest that 32 bits allow: rounding "
            f"would take {lost / clip:.2g} of it, and {_COARSEST:g} is the limit; {way_out}"
        )


LESS_NOISE = "the noise is so large; give a larger epsilon, fewer rounds, or a smaller model"
SHORTER_SUMS = (
    "the sum of all messages is so long; take fewer clients or a smaller model, or trust=local"
)


def discrete_sigma(sigma: float, gamma: float, sums: Sums) -> float:
    """What each client adds, a discrete Gaussian, so that the sum of the honest ones hides as much
    as N(0, sigma^2): sqrt((sigma^2 + s^2 gamma^2) / honest), rounded up."""
    needed = math.hypot(sigma, SMOOTHING * gamma) * (1 + 2.0**-50) if gamma else sigma
    share = needed / math.sqrt(sums.honest)
    while share * math.sqrt(sums.honest) < needed:
        share = math.nextafter(share, math.inf)
    if sigma and share < _LEAST_NOISE * gamma:
        raise InvalidValue(
            f"sigma={sigma:g} of a sum of {sums.clients} clients, in steps of {gamma:g}: the noise "
            f"of each is {share / gamma:.2g} steps, and {_LEAST_NOISE:g} are needed for a sum to "
            "be what the accountant describes; give a smaller epsilon, fewer clients, or "
            "trust=local"
        )
    return share


def sum_slack(sigma: float, gamma: float, sums: Sums | None, numbers: int) -> float:
    """a: the probability of every outcome of `numbers` sums, to which each client adds
    `discrete_sigma`, lies within e^(+-a) of what post-processing of N(0, sigma^2) gives it.

    So K releases of d numbers are (epsilon + 2a, e^a delta)-DP if the Gaussian ones are (epsilon,
    delta)-DP. 0 where messages are seen by themselves: there the law is exact.
    """
    if sums is None or sigma == 0:
        return 0.0
    each = discrete_sigma(sigma, gamma, sums)
    # The sum of k + 1 clients against that of k and one more: never farther apart than of two.
    sums_apart = (sums.honest - 1) * _closeness(each / gamma / math.sqrt(2))
    return numbers * (_closeness(SMOOTHING) + sums_apart)


def _closeness(width: float) -> float:
    """ln((1 + rho) / (1 - rho)), with rho = 2 sum_j exp(-2 pi^2 width^2 j^2) by Poisson summation:
    how far sums over Z of exp(-(k - x)^2 / (2 width^2)) lie apart for different x."""
    rho = 2 * math.exp(-2 * (math.pi * width) ** 2) * (1 + 2.0**-20)
    return math.log1p(rho) - math.log1p(-rho)
