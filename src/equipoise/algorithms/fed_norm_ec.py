"""Fed-alpha-NormEC of Shulgin, Malinovsky, Khirirat and Richtarik, arXiv 2512.21521, "First
provable guarantees for practical private FL: beyond restrictive assumptions", 2025, with all
clients in every round.

Error feedback as in Clip21, with a smoothed normalisation C d / (alpha + |d|) in place of the clip:
every message is shorter than C, whatever d is. The server steps in the direction of its estimate g,
and the length of the step is gamma C.

Readings: d is the progress per step size less g_i, as the paper writes it; messages are C times the
paper's, whose bound is 1, and g grows by beta times a message over C; the server's step size is
gamma C, so that C alone says how far a run can get. Near its end g_i goes beta / alpha of the way
to its goal: beyond 1 it overshoots, beyond 2 it never settles.
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
    descend,
    of_server,
)
from equipoise.algorithms.feedback import FEEDBACK, check_feedback, hears_release
from equipoise.algorithms.scaffold import halves, joined
from equipoise.errors import require

if TYPE_CHECKING:
    from torch import Tensor

ALPHA = Option(
    0.1,
    "Fed-alpha-NormEC's alpha: differences d are sent as C d / (alpha + |d|)",
    rule="a number > 0",
    holds=lambda value: 0 < value < math.inf,
)
BETA = Option(
    0.1,
    "Fed-alpha-NormEC's beta: how much of a message, in units of C, is added to the estimates; at "
    "most alpha, or they overshoot",
    rule="a number > 0",
    holds=lambda value: 0 < value < math.inf,
)
TINY = 1e-30  # of a vector without a direction


class State(NamedTuple):
    """What the server is thought to know of the client's progress per step size."""

    g_i: "Tensor"


def fed_norm_ec(eta: Any, clip: Any, options: Options) -> Algorithm:
    alpha = float(options.get("alpha", ALPHA.default))
    beta = float(options.get("beta", BETA.default))

    def begin(x: "Tensor") -> "Tensor":
        return joined(x, x.new_zeros(x.shape))

    def init(server: "Tensor") -> State:
        x, _ = halves(server)
        return State(x.new_zeros(x.shape))

    def local_round(
        server: "Tensor", state: State, iterations: range, gradient: Gradient
    ) -> "tuple[Tensor, State]":
        x, _ = halves(server)
        x_i = descend(x, iterations, gradient, eta)
        d = (x_i - x) / eta - state.g_i
        message: Tensor = clip * d / (alpha + length(d))
        return message.to(x.dtype), state

    def after_release(state: State, update: "Tensor", release: "Tensor") -> State:
        message = release if hears_release(options) else update
        return State((state.g_i + beta / clip * message).to(update.dtype))

    def server(known: "Tensor", mean: "Tensor", gamma: Any) -> "Tensor":
        x, g = halves(known)
        C = of_server(clip)
        g = g + beta / C * mean
        moved: Tensor = x + gamma * C * g / length(g).clamp(min=TINY)
        return joined(moved, g).to(known.dtype)

    return Algorithm(init, local_round, after_release, begin, server)


def length(x: "Tensor") -> "Tensor":
    import torch

    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm


def make(hyper: Hyper) -> Algorithm:
    return fed_norm_ec(hyper.eta, hyper.clip, hyper.options)


def memory(options: Options) -> Memory:
    return "released" if hears_release(options) else "updates"


def check(settings: Any) -> None:
    check_feedback(settings)
    C = settings.clip
    require(
        C is not None and C < math.inf,
        f"clip={C} with algorithm=fed-norm-ec, whose messages have length C at most: give one",
    )


SPEC = AlgorithmSpec(
    "fed-norm-ec",
    "error feedback with smoothed normalisation in place of the clip",
    make,
    memory,
    options={"alpha": ALPHA, "beta": BETA, "feedback": FEEDBACK},
    hears_release=hears_release,
    check=check,
    why_its_steps="the server steps along an estimate of its own: leave it out, or use dp-fedavg",
    units=("client",),
    why="it normalises messages, and for unit=record no message is bounded: use unit=client, or "
    "another algorithm",
)
