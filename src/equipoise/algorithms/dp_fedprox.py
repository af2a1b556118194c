"""DP-FedProx: local steps on the loss plus (prox/2) |x_i - x|^2, which ties clients to the
broadcast x.

FedProx is of Li et al., "Federated optimization in heterogeneous networks", 2020 (Algorithm 2),
with `local_steps` gradient steps as the inexact local solve. Clipped and noised is the update, as
in DP-FedAvg, or the model itself, as in Wei et al., "Federated learning with differential privacy:
algorithms and performance analysis", 2020 (NbAFL, Algorithm 1); their noise is noise_rule=nbafl.
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
from equipoise.errors import require

if TYPE_CHECKING:
    from torch import Tensor

PROX = Option(
    0.1,
    "weight of DP-FedProx's proximal term (prox/2)|x_i - x|^2, which holds clients near the "
    "broadcast",
    rule="a number >= 0",
    holds=lambda value: 0 <= value < math.inf,
)
SENDS = Option(
    "update",
    "what DP-FedProx clips and sends: its progress in the round, or its whole model, as NbAFL does",
    choices=("update", "model"),
)


def dp_fedprox(eta: Any, prox: float, sends: str = "update") -> Algorithm:
    def init(x: "Tensor") -> State:
        return State()

    def local_round(
        x: "Tensor", state: State, iterations: range, gradient: Gradient
    ) -> "tuple[Tensor, State]":
        x_i = x
        for t in iterations:
            x_i = x_i - eta * (gradient(x_i, t) + prox * (x_i - x))
        return (x_i if sends == "model" else x_i - x), state

    def mean_model(x: "Tensor", mean: "Tensor", gamma: Any) -> "Tensor":
        step: Tensor = gamma * (mean - x)
        return x + step

    if sends == "model":
        return Algorithm(init, local_round, server=mean_model)
    return Algorithm(init, local_round)


def make(hyper: Hyper) -> Algorithm:
    sends = str(hyper.options.get("sends", SENDS.default))
    return dp_fedprox(hyper.eta, proximal(hyper.options), sends)


def proximal(options: Options) -> float:
    return float(options.get("prox", PROX.default))


def check(settings: Any) -> None:
    require(
        settings.options.get("sends") != "model" or settings.neighbours != "zero-out",
        "sends=model with neighbours=zero-out: a client that is silent sends no model of zeros; "
        "use neighbours=replace-one, or sends=update",
    )
    require(
        settings.options.get("sends") != "model" or settings.mechanism.clips_message,
        f"sends=model with unit={settings.unit}: no message is clipped; leave it out",
    )
    server = settings.chosen_steps.get("server_optimiser")
    require(
        settings.options.get("sends") != "model" or server is None,
        f"server_optimiser={server} with sends=model: the mean of whole models is no direction to "
        "step along; use sends=update",
    )


SPEC = AlgorithmSpec(
    "dp-fedprox",
    "local steps with a proximal term; clients remember nothing",
    make,
    no_memory,
    gradient_steps=True,
    step_settings=("eta_schedule", "server_optimiser"),
    why_its_steps="its proximal term is no part of the gradients that an optimiser would see: "
    "leave it out, or use dp-fedavg",
    options={"prox": PROX, "sends": SENDS},
    proximal=proximal,
    check=check,
)
