"""DP-FedAvg, Algorithm 1 of the paper: plain local steps; the update is the progress.

Clients remember nothing.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from equipoise.algorithms.algorithm import (
    Algorithm,
    AlgorithmSpec,
    Gradient,
    Hyper,
    Stack,
    descend,
    no_memory,
)
from equipoise.algorithms.dp_scaffnew import with_variate_where

if TYPE_CHECKING:
    from torch import Tensor


class State(NamedTuple):
    """Nothing: every round starts from the broadcast model alone."""


def dp_fedavg(eta: Any) -> Algorithm:
    def init(x: "Tensor") -> State:
        return State()

    def local_round(
        x: "Tensor", state: State, iterations: range, gradient: Gradient
    ) -> "tuple[Tensor, State]":
        x_i = descend(x, iterations, gradient, eta)  # l. 4-8
        return x_i - x, state  # l. 9, before the clip

    return Algorithm(init, local_round)


def make(hyper: Hyper) -> Algorithm:
    return dp_fedavg(hyper.eta)


SPEC = AlgorithmSpec(
    "dp-fedavg",
    "plain local steps; clients remember nothing",
    make,
    no_memory,
    gradient_steps=True,
    step_settings=("eta_schedule", "local_optimiser", "server_optimiser"),
    paper="Algorithm 1",
    stack=Stack("control variates", with_variate_where, own=0.0),
)
