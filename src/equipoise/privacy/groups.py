"""What a guarantee for one unit says of several together, such as the rows of one person."""

import math
from typing import NamedTuple

from equipoise.privacy.events import Account

SHOWN = (2, 4, 10)  # units together, in statements


class Together(NamedTuple):
    """(epsilon, delta) for so many units of one client, all replaced at once."""

    units: int
    epsilon: float
    delta: float


def together(account: Account, delta: float, units: int) -> Together:
    """Where releases are Gaussian, k units move them k times as far: k mu, at the same delta (Dong,
    Roth and Su 2022). Where records are sampled: k epsilon, at delta (e^(k epsilon) - 1) /
    (e^epsilon - 1), since each of k steps from neighbour to neighbour costs epsilon.
    """
    if account.mu is not None:
        from equipoise.privacy.gaussian import epsilon_spent  # scipy: not for --help

        spent = [
            epsilon_spent(event.sigma, event.count, units * event.sensitivity, delta, event.slack)
            for event in set(account.events)
        ]
        return Together(units, max(spent), delta)
    return by_steps(account.epsilon, delta, units)


def by_steps(epsilon: float, delta: float, units: int) -> Together:
    """From neighbour to neighbour, whatever was released: k epsilon, at delta (e^(k epsilon) - 1) /
    (e^epsilon - 1)."""
    if epsilon == 0:
        return Together(units, 0.0, min(1.0, units * delta))
    if units * epsilon > 700:  # e^700 overflows: nothing is hidden by then
        return Together(units, math.inf, 1.0)
    grown = delta * math.expm1(units * epsilon) / math.expm1(epsilon)
    return Together(units, units * epsilon, min(1.0, grown))
