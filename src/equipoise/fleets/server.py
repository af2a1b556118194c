"""The one server loop."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from equipoise.algorithms.schedule import Schedule
from equipoise.fleets.fleet import Broadcast, Fleet


class Round(NamedTuple):
    """The model after a communication: the only models that may be seen, or returned."""

    number: int
    iteration: int
    x: Tensor


def server_rounds(
    x: Tensor, schedule: Schedule, fleet: Fleet, gamma: float | Tensor = 1.0
) -> Iterator[Round]:
    """Broadcast, collect, average: one Round per communication, from the public initial model x
    [..., d]."""
    iteration = 0
    for number, local_steps in enumerate(schedule, start=1):
        steps = range(iteration, iteration + local_steps)
        x = x + gamma * fleet.exchange(Broadcast(number, steps, x))  # Alg. 1, l. 12; Alg. 2, l. 9
        iteration += local_steps
        yield Round(number, iteration, x)
