"""What crosses the border between server and clients, and what a fleet is."""

from typing import NamedTuple, Protocol

from torch import Tensor


class Broadcast(NamedTuple):
    """All that clients hear: the round's number, the local iterations it asks for, and x [..., d]:
    the public model, with what else the algorithm's server knows behind it."""

    round: int
    iterations: range
    x: Tensor


class Release(NamedTuple):
    """All that leaves a client: its clipped and noised update [..., d] of a round."""

    round: int
    update: Tensor


class Fleet(Protocol):
    """Clients somewhere: in this process or behind a network."""

    def exchange(self, broadcast: Broadcast) -> Tensor:
        """Let every client do one round; returns the mean of their releases, [..., d], in which
        each counts as much as in the problem."""
        ...
