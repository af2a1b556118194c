"""SCAFFOLD of Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated
learning", 2020 (Algorithm 1), with all clients in every round.

A client steps along its gradient less its own variate c_i plus the server's c, the mean of all c_i.
Option I makes c_i the gradient at the broadcast model, which is a second message; option II makes
it the mean gradient of the round's steps, which follows from the first. So under option II the
server can compute c from what it hears.
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
    of_server,
)
from equipoise.errors import require

if TYPE_CHECKING:
    from torch import Tensor

VARIATES = Option(
    "II",
    "SCAFFOLD's control variates: the gradient at the broadcast model (I), or the mean gradient of "
    "the round's local steps (II)",
    choices=("I", "II"),
)

WHY_ITS_STEPS = (
    "the server reads its control variate off the mean of messages that were made with plain steps "
    "of one size: leave it out, or use dp-fedavg"
)


class State(NamedTuple):
    """The client's control variate."""

    c_i: "Tensor"


def scaffold(eta: Any, p: Any, variates: str = "II", warm_up: bool = False) -> Algorithm:
    """1/p is the number of local steps in every round.

    With `warm_up` the first round finds the control variates only, and the model stays (Noble et
    al. 2022).
    """
    first = variates == "I"

    def begin(x: "Tensor") -> "Tensor":
        return joined(x, x.new_zeros(x.shape))  # the server's c is zero, as are the clients' c_i

    def init(server: "Tensor") -> State:
        x, _ = halves(server)
        return State(x.new_zeros(x.shape))

    def local_round(
        server: "Tensor", state: State, iterations: range, gradient: Gradient
    ) -> "tuple[Tensor, State]":
        x, c = halves(server)
        y = x  # l. 7
        for t in iterations:  # l. 8
            at = x if warm_up and iterations.start == 0 else y
            y = y - eta * (gradient(at, t) - state.c_i + c)  # l. 9-10
        if first:
            c_i = gradient(x, iterations.start)  # l. 12 (i)
            return joined(y - x, c_i - state.c_i), State(c_i)  # l. 13
        return y - x, State(state.c_i - c + p / eta * (x - y))  # l. 12 (ii), 13

    def server(known: "Tensor", mean: "Tensor", gamma: Any) -> "Tensor":
        x, c = halves(known)
        if first:
            progress, change = halves(mean)
            return joined(x + gamma * progress, c + change)  # l. 16-17
        moved = x + gamma * mean
        if warm_up:  # nothing was heard before: c is still zero
            moved = moved.where(c.any(-1, keepdim=True), x)
        return joined(moved, -of_server(p / eta) * mean)  # l. 16-17, where c is the mean of the c_i

    return Algorithm(init, local_round, begin=begin, server=server)


def joined(x: "Tensor", other: "Tensor") -> "Tensor":
    """The model, and another vector of its length behind it."""
    import torch

    return torch.cat([x, other], -1)


def halves(server: "Tensor") -> "tuple[Tensor, Tensor]":
    d = server.shape[-1] // 2
    return server[..., :d], server[..., d:]


def make(hyper: Hyper) -> Algorithm:
    return scaffold(hyper.eta, hyper.p, str(hyper.options.get("variates", VARIATES.default)))


def memory(options: Options) -> Memory:
    """c_i is a function of the client's last update and of broadcasts, in option II."""
    return "private" if options.get("variates") == "I" else "updates"


def check(settings: Any) -> None:
    require(
        settings.schedule == "periodic",
        f"schedule={settings.schedule} with SCAFFOLD, whose rounds all have as many local steps: "
        "use periodic, or ScaffNew",
    )


SPEC = AlgorithmSpec(
    "scaffold",
    "local steps corrected by control variates of client and server; not private",
    make,
    memory,
    options={"variates": VARIATES},
    check=check,
    units=(),
    why_its_steps=WHY_ITS_STEPS,
    why="use dp-scaffold (unit record) or dp-scaffnew, which is its option II in one message",
)
