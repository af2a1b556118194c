"""Momentum: v = beta v + direction is the step.

At the server it is FedAvgM of Hsu, Qi and Brown, "Measuring the effects of non-identical data
distribution for federated visual classification", 2019. At the clients it is that of Sutskever et
al., "On the importance of initialization and momentum in deep learning", 2013 (equations 1 and 2),
from rest in every round. Steps in one direction grow 1 / (1 - beta) times as long as plain ones.
"""

from typing import TYPE_CHECKING

from equipoise.algorithms.algorithm import Options
from equipoise.algorithms.optimisers.optimiser import BETA, Optimiser, OptimiserSpec

if TYPE_CHECKING:
    from torch import Tensor


def momentum(beta: float) -> Optimiser:
    def begin(x: "Tensor") -> "tuple[Tensor, ...]":
        return (x.new_zeros(x.shape),)

    def step(
        memory: "tuple[Tensor, ...]", direction: "Tensor"
    ) -> "tuple[Tensor, tuple[Tensor, ...]]":
        (v,) = memory
        v = beta * v + direction
        return v, (v,)

    return Optimiser(1, begin, step)


def make(options: Options) -> Optimiser:
    return momentum(float(options.get("beta", BETA.default)))


SPEC = OptimiserSpec("momentum", "with momentum", make, {"beta": BETA})
