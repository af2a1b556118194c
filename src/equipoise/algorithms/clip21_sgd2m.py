"""Clip21-SGD2M of Islamov, Horvath, Lucchi, Richtarik and Gorbunov, "Double momentum and error
feedback for clipping with fast rates and differential privacy", 2025.

Server and client keep estimates g and g_i of the client's progress; sent is the clipped difference
between the progress, smoothed by a first momentum, and g_i, of which a second momentum is added to
both. In time g_i catches up, and nothing is clipped any more: clipping does not bias the result.

Readings, where the paper has no local steps: the progress of a round takes the place of -eta times
the gradient, which it is for one local step; the server's step is gamma g. So the threshold is eta
times that of the paper.
"""

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
)
from equipoise.algorithms.feedback import FEEDBACK, check_feedback, hears_release, remembered
from equipoise.algorithms.scaffold import halves, joined

if TYPE_CHECKING:
    from torch import Tensor

MOMENTUM = Option(
    0.9,
    "share of the newest progress in that which a client of Clip21-SGD2M smooths (beta)",
    rule="a number in (0, 1]",
    holds=lambda value: 0 < value <= 1,
)
CATCH_UP = Option(
    0.9,
    "share of a message that is added to the estimates of Clip21-SGD2M (beta-hat)",
    rule="a number in (0, 1]",
    holds=lambda value: 0 < value <= 1,
)


class State(NamedTuple):
    """The smoothed progress, and what the server is thought to know of it."""

    v: "Tensor"
    g_i: "Tensor"


def clip21_sgd2m(eta: Any, clip: Any, options: Options) -> Algorithm:
    beta = float(options.get("momentum", MOMENTUM.default))
    catch_up = float(options.get("catch_up", CATCH_UP.default))

    def begin(x: "Tensor") -> "Tensor":
        return joined(x, x.new_zeros(x.shape))

    def init(server: "Tensor") -> State:
        zero = server.new_zeros(halves(server)[0].shape)
        return State(zero, zero)

    def local_round(
        server: "Tensor", state: State, iterations: range, gradient: Gradient
    ) -> "tuple[Tensor, State]":
        x, _ = halves(server)
        x_i = descend(x, iterations, gradient, eta)
        v = (1 - beta) * state.v + beta * (x_i - x)
        return v - state.g_i, State(v, state.g_i)

    def after_release(state: State, update: "Tensor", release: "Tensor") -> State:
        g_i = state.g_i + catch_up * remembered(update, release, clip, options)
        return state._replace(g_i=g_i)

    def server(known: "Tensor", mean: "Tensor", gamma: Any) -> "Tensor":
        x, g = halves(known)
        g = g + catch_up * mean
        return joined(x + gamma * g, g)

    return Algorithm(init, local_round, after_release, begin, server)


def make(hyper: Hyper) -> Algorithm:
    return clip21_sgd2m(hyper.eta, hyper.clip, hyper.options)


def memory(options: Options) -> Memory:
    return "private"


SPEC = AlgorithmSpec(
    "clip21-sgd2m",
    "error feedback: what the clip took away is sent later",
    make,
    memory,
    options={"momentum": MOMENTUM, "catch_up": CATCH_UP, "feedback": FEEDBACK},
    hears_release=hears_release,
    check=check_feedback,
    why_its_steps="clients and server have estimates with momentum of their own: leave it out, or "
    "use dp-fedavg",
    units=("client",),
    why="it mends what clipped messages lose, and for unit=record no message is clipped: use "
    "unit=client, or another algorithm",
)
