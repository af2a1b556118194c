"""How the local step size falls during a run: public, and fixed before it begins.

A schedule says by what eta is multiplied in a round, given the share of the run's local steps that
were made before it. It is 1 in the first round, and never 0. Within a round eta stays the same, so
that a round is what the algorithm's file says.
"""

import math
from collections.abc import Callable


def constant(done: float) -> float:
    return 1.0


def linear(done: float) -> float:
    return 1.0 - done


def cosine(done: float) -> float:
    """Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017 (equation
    5), down to zero and without restarts."""
    return (1.0 + math.cos(math.pi * done)) / 2


def step(done: float) -> float:
    """A tenth from the middle of the run on, and a hundredth in its last quarter, as networks are
    trained since He et al., "Deep residual learning for image recognition", 2016."""
    return 0.1 ** ((done >= 0.5) + (done >= 0.75))


ETA_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": constant,
    "cosine": cosine,
    "linear": linear,
    "step": step,
}
