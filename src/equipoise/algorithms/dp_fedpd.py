"""DP-FedPD: FedPD of Zhang, Hong, Dhople, Yin and Liu, "FedPD: a federated learning framework with
adaptivity to non-IID data", 2021 (Algorithm 2), with a clipped and noised message.

A client minimises its augmented Lagrangian around its own copy of the model, moves its dual
variable, and sends the new copy. The local problem is solved by gradient steps from that copy, with
1/prox for their eta. `solve_steps` of them make one local solve; a round has as many as
its local steps make (the paper's skipped communications), the last one with those that are left;
one if it is not given.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from equipoise.algorithms.algorithm import (
    Algorithm,
    AlgorithmSpec,
    Gradient,
    Hyper,
    Memory,
    Option,
    Options,
)
from equipoise.algorithms.dp_fedprox import PROX, proximal
from equipoise.errors import require

if TYPE_CHECKING:
    from torch import Tensor

SOLVE_STEPS = Option(
    0,
    "gradient steps of one local solve of FedPD; a round has several if this is less than its "
    "local steps (0: one solve)",
    rule="a whole number >= 0",
    holds=lambda value: 0 <= value < math.inf and value == int(value),
)


class State(NamedTuple):
    """The dual variable."""

    dual: "Tensor"


def dp_fedpd(eta: Any, prox: float, solve_steps: int = 0) -> Algorithm:
    def init(x: "Tensor") -> State:
        return State(x.new_zeros(x.shape))

    def local_round(
        x: "Tensor", state: State, iterations: range, gradient: Gradient
    ) -> "tuple[Tensor, State]":
        copy, dual = x, state.dual
        size = solve_steps or len(iterations)
        for start in range(0, len(iterations), size):
            x_i = copy
            for t in iterations[start : start + size]:
                x_i = x_i - eta * (gradient(x_i, t) + dual + prox * (x_i - copy))
            dual = dual + prox * (x_i - copy)
            copy = x_i + dual / prox
        return copy - x, State(dual)

    return Algorithm(init, local_round)


def make(hyper: Hyper) -> Algorithm:
    solve_steps = int(hyper.options.get("solve_steps", SOLVE_STEPS.default))
    return dp_fedpd(hyper.eta, proximal(hyper.options), solve_steps)


def memory(options: Options) -> Memory:
    """After one solve the dual is (dual + prox update) / 2."""
    return "private" if options.get("solve_steps") else "updates"


def check(settings: Any) -> None:
    prox = proximal(settings.options)
    require(prox > 0, f"prox={prox} with algorithm=dp-fedpd, which divides by it: give one > 0")


SPEC = AlgorithmSpec(
    "dp-fedpd",
    "local augmented Lagrangians; clients remember a dual variable",
    make,
    memory,
    options={"prox": PROX, "solve_steps": SOLVE_STEPS},
    proximal=proximal,
    check=check,
    why_its_steps="the model has to be the mean of its clients' copies, which plain steps lead to: "
    "leave it out, or use dp-fedavg",
)
