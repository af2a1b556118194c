"""DP-FedSplit: FedSplit of Pathak and Wainwright, "FedSplit: an algorithmic framework for fast
federated optimization", 2020 (Algorithm 1), with a clipped and noised message.

A client's z_i is reflected at the broadcast model and at its own proximal step, here `local_steps`
gradient steps from the broadcast model, with s = 1/prox. What it sends is the change of z_i. Where
every update is zero, the model is optimal, so that clipping moves no fixed point: z_i changes by
the message as the client remembers it.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from equipoise.algorithms.algorithm import (
    Algorithm,
    AlgorithmSpec,
    Gradient,
    Hyper,
    Memory,
    Options,
)
from equipoise.algorithms.dp_fedprox import PROX, proximal
from equipoise.algorithms.feedback import FEEDBACK, check_feedback, hears_release, remembered

if TYPE_CHECKING:
    from torch import Tensor


class State(NamedTuple):
    z: "Tensor"


def dp_fedsplit(eta: Any, prox: float, clip: Any, options: Options) -> Algorithm:
    def init(x: "Tensor") -> State:
        return State(x)

    def local_round(
        x: "Tensor", state: State, iterations: range, gradient: Gradient
    ) -> "tuple[Tensor, State]":
        centre = 2 * x - state.z
        w = x
        for t in iterations:  # w is about prox_{s f_i}(2 x - z_i)
            w = w - eta * (gradient(w, t) + prox * (w - centre))
        return 2 * (w - x), state

    def after_release(state: State, update: "Tensor", release: "Tensor") -> State:
        return State(state.z + remembered(update, release, clip, options))

    return Algorithm(init, local_round, after_release)


def make(hyper: Hyper) -> Algorithm:
    return dp_fedsplit(hyper.eta, proximal(hyper.options), hyper.clip, hyper.options)


def memory(options: Options) -> Memory:
    return "released" if hears_release(options) else "updates"


SPEC = AlgorithmSpec(
    "dp-fedsplit",
    "reflected proximal steps; clients remember what they sent",
    make,
    memory,
    options={"prox": PROX, "feedback": FEEDBACK},
    hears_release=hears_release,
    proximal=proximal,
    check=check_feedback,
    why_its_steps="the model has to be the mean of its clients' z_i, which plain steps lead to: "
    "leave it out, or use dp-fedavg",
)
