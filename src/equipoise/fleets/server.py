"""The one server loop."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import Tensor

from equipoise.algorithms.algorithm import Algorithm
from equipoise.algorithms.schedule import Schedule
from equipoise.fleets.fleet import Broadcast, Fleet


class Round(NamedTuple):
    """The model after a communication: the only models that may be seen, or returned."""

    number: int
    iteration: int
    x: Tensor
    average: Tensor | None = None
    """Of the models so far, where `averaged` made it."""
    known: Tensor | None = None
    """All that the server knows, with x in front: what the next round begins from."""
    average64: Tensor | None = None
    """The average in the precision in which it goes on."""


def server_rounds(
    x: Tensor,
    schedule: Schedule,
    fleet: Fleet,
    algorithm: Algorithm,
    gamma: float | Tensor = 1.0,
    after: Round | None = None,
) -> Iterator[Round]:
    """Broadcast, collect, average: one Round per communication, from the public initial model x
    [..., d], or after a round that was made before."""
    begun, iteration, known = 0, 0, algorithm.begin(x)
    if after is not None and after.known is not None:
        begun, iteration, known = after.number, after.iteration, after.known
    d = x.shape[-1]
    for number, local_steps in enumerate(schedule[begun:], start=begun + 1):
        steps = range(iteration, iteration + local_steps)
        mean = fleet.exchange(Broadcast(number, steps, algorithm.told(known)))
        known = algorithm.server(known, mean, gamma)  # Alg. 1, l. 12; Alg. 2, l. 9
        iteration += local_steps
        yield Round(number, iteration, known[..., :d], known=known)


def averaged(rounds: Iterable[Round], after: Round | None = None) -> Iterator[Round]:
    """The same rounds, each with the average of x_1 ... x_k, weights 1^3 ... k^3: post-processing.

    Later models are nearer to the optimum, and each carries noise that an average evens out (as
    the polynomial-decay averaging of Shamir and Zhang 2013). x_0 has no part in it.
    """
    average: Tensor | float = 0.0
    if after is not None and after.average64 is not None:
        average = after.average64
    for round in rounds:
        k, x = round.number, round.x
        share = 4 * k / (k + 1) ** 2  # k^3 / (1^3 + ... + k^3)
        average = average + share * (x.double() - average)
        yield round._replace(average=average.to(x.dtype), average64=average)
