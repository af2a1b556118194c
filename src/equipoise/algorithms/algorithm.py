"""What an algorithm is: how a client begins, and what it does between two communications."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

Gradient = Callable[[Tensor, int], Tensor]
"""`gradient(x, t)`: the (stochastic) gradient of each client's loss at its x, at local iteration t
of the whole run."""


class Algorithm(NamedTuple):
    """Two pure functions on the last axis of x: [d], [clients, d] or [runs, clients, d].

    init(x) -> state
        A client's memory before the first round, at the public initial model x.
    local_round(x, state, iterations, gradient) -> (update, state)
        The local steps t in `iterations` from the broadcast model x, as one update not yet clipped,
        and the new memory. Both are private: only `fleets.client.client_round` may turn the update
        into a release.
    heard(state, update, release) -> state
        The memory once the update was released.
    """

    init: Callable[[Tensor], Any]
    local_round: Callable[[Tensor, Any, range, Gradient], tuple[Tensor, Any]]
    heard: Callable[[Any, Tensor, Tensor], Any] = lambda state, update, release: state
