"""DP-FedProx: local steps on the loss plus (prox/2) |x_i - x|^2, which ties clients to the
broadcast x.

FedProx is of Li et al., "Federated optimization in heterogeneous networks", 2020 (Algorithm 2),
with `local_steps` gradient steps as the inexact local solve. Clipped and noised is the update, as
in DP-FedAvg; the account is exact. (Wei et al., 2020, clip the model and use a rule of their own.)
"""

import math
from typing import TYPE_CHECKING, Any

from equipoise.algorithms.algorithm import (
    Algorithm,
    AlgorithmSpec,
    Gradient,
    Hyper,
    Option,
    Options,
    no_memory,
)
from equipoise.algorithms.dp_fedavg import State

if TYPE_CHECKING:
    from torch import Tensor

PROX = Option(
    0.1,
    "weight of DP-FedProx's proximal term (prox/2)|x_i - x|^2, which holds clients near the "
    "broadcast",
    rule="a number >= 0",
    holds=lambda value: 0 <= value < math.inf,
)


def dp_fedprox(eta: Any, prox: float) -> Algorithm:
    def init(x: "Tensor") -> State:
        return State()

    def local_round(
        x: "Tensor", state: State, iterations: range, gradient: Gradient
    ) -> "tuple[Tensor, State]":
        x_i = x
        for t in iterations:
            x_i = x_i - eta * (gradient(x_i, t) + prox * (x_i - x))
        return x_i - x, state

    return Algorithm(init, local_round)


def make(hyper: Hyper) -> Algorithm:
    return dp_fedprox(hyper.eta, proximal(hyper.options))


def proximal(options: Options) -> float:
    return float(options.get("prox", PROX.default))


SPEC = AlgorithmSpec(
    "dp-fedprox",
    "local steps with a proximal term; clients remember nothing",
    make,
    no_memory,
    gradient_steps=True,
    options={"prox": PROX},
    proximal=proximal,
)
