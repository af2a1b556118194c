"""When clients communicate: local steps before each round, known before training and independent of
all data.

A schedule is a tuple; its length is the number of releases, its sum the number of local iterations.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from equipoise.errors import InvalidValue, require
from equipoise.seeds import stream

if TYPE_CHECKING:
    from equipoise.settings import Run

Schedule = tuple[int, ...]


def periodic(iterations: int, local_steps: int) -> Schedule:
    """Every `local_steps` iterations (Alg. 1; the paper's experiments). `local_steps` divides
    `iterations`."""
    require(iterations >= 1, f"iterations={iterations} is not >= 1")
    require(local_steps >= 1, f"local_steps={local_steps} is not >= 1")
    if iterations % local_steps:
        raise InvalidValue(
            f"local_steps={local_steps} does not divide iterations={iterations}: the nearest "
            + _nearest(iterations, local_steps)
        )
    return (local_steps,) * (iterations // local_steps)


def _nearest(iterations: int, local_steps: int) -> str:
    divisors = divisors_of(iterations)
    below = max((n for n in divisors if n < local_steps), default=None)
    above = min((n for n in divisors if n > local_steps), default=None)
    if below and above:
        return f"divisors are {below} and {above}"
    return f"divisor is {below or above}"


def divisors_of(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def coin(iterations: int, p: float, seed: int) -> Schedule:
    """One public coin for all clients after every iteration (Alg. 2, l. 6), drawn here once and for
    all.

    The last iteration communicates whatever its coin says: steps after the last communication would
    be wasted, since only a communicated model may be returned.
    """
    require(iterations >= 1, f"iterations={iterations} is not >= 1")
    require(
        0 < p <= 1,
        f"p={p} is not in (0, 1]: pass the probability of communicating, not the number of local "
        f"steps 1/p",
    )
    heads = stream(seed, "coin").random(iterations) < p
    heads[-1] = True
    ends = np.flatnonzero(heads) + 1
    return tuple(int(n) for n in np.diff(ends, prepend=0))


def schedule_of(run: "Run") -> Schedule:
    """The schedule of a run, which its public settings alone decide."""
    if run.schedule == "coin":
        return coin(run.iterations, run.p, run.seed)
    return periodic(run.iterations, run.local_steps or 1)
