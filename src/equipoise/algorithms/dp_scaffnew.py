"""DP-ScaffNew, Algorithm 2 of the paper: local steps corrected by a control variate h, so that
clients do not drift apart.

Between communications h stands still, so lines 4-13 of all iterations up to the next communication
are one round, and line 13 can wait for the next broadcast: the client needs only the model it
receives.
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
    Stack,
    descend,
)
from equipoise.errors import require

if TYPE_CHECKING:
    from torch import Tensor

H_UPDATE = Option(
    "paper",
    "what DP-ScaffNew's control variate learns from: its message before the clip (paper) or after "
    "it (clipped), or as released",
    choices=("paper", "clipped", "released"),
)


class State(NamedTuple):
    """The control variate, where the client got to, and where it began: the broadcast model."""

    h: "Tensor"
    x_hat: "Tensor"
    x: "Tensor"


def dp_scaffnew(
    eta: Any, p: Any, h_update: str = "paper", clip: Any = math.inf, learning: Any = 1.0
) -> Algorithm:
    """The paper's algorithm, and two variants of what the control variate learns from.

    Line 13 equals h = (p/eta)(x_new - x - update). `clipped` writes clip(update) there: the same
    until the clip acts, and |h| stays bounded when it does (the paper's h then sends clients on
    long excursions that are clipped away). `released` writes the released message: h is then known
    to whoever sees the messages, and clients keep nothing private between rounds.

    Where `learning` is 0 instead of 1, h stays zero, and what is left is DP-FedAvg: so runs of both
    can be stacked.
    """
    choices = H_UPDATE.choices
    require(h_update in choices, f"h_update={h_update!r} is not one of {', '.join(choices)}")

    def init(x: "Tensor") -> State:
        return State(h=x.new_zeros(x.shape), x_hat=x, x=x)  # l. 1: the h sum to zero

    def local_round(
        x: "Tensor", state: State, iterations: range, gradient: Gradient
    ) -> "tuple[Tensor, State]":
        if state.x_hat is x:  # the first round, in which h is zero
            x_hat = descend(x, iterations, gradient, eta)
            return x_hat - x, State(state.h, x_hat, x)
        h = state.h + learning * p / eta * (x - state.x_hat)  # l. 13, with the x just received
        x_hat = descend(x, iterations, gradient, eta, h)  # l. 4-5
        return x_hat - eta / p * h - x, State(h, x_hat, x)  # l. 8, before clip and noise

    def after_release(state: State, update: "Tensor", release: "Tensor") -> State:
        if h_update == "released":  # of public values alone, or rounding would keep private ones
            return state._replace(x_hat=state.x + eta / p * state.h + release)
        if h_update == "clipped":
            return state._replace(x_hat=state.x_hat - (update - _clipped(update, clip)))
        return state

    return Algorithm(init, local_round, after_release)


def _clipped(update: "Tensor", C: Any) -> "Tensor":
    from equipoise.privacy.clip import clip

    return clip(update, C)


def make(hyper: Hyper) -> Algorithm:
    return with_variate_where(hyper, 1.0)


def with_variate_where(hyper: Hyper, learning: Any) -> Algorithm:
    """DP-ScaffNew where `learning` is 1, DP-FedAvg where it is 0, in one computation."""
    h_update = str(hyper.options.get("h_update", "paper"))
    return dp_scaffnew(hyper.eta, hyper.p, h_update, hyper.clip, learning)


def memory(options: Options) -> Memory:
    """h is a function of the client's updates, or of its released messages, and of broadcasts."""
    return "released" if options.get("h_update") == "released" else "updates"


def check(settings: Any) -> None:
    h_update = settings.options.get("h_update")
    require(
        h_update != "released" or settings.trust == "local",
        "h_update=released under trust=secure-aggregation, where no message is released by itself: "
        "use paper or clipped",
    )
    require(
        h_update != "clipped" or settings.mechanism.clips_message,
        "h_update=clipped with unit=record: no message is clipped; leave it out",
    )


SPEC = AlgorithmSpec(
    "dp-scaffnew",
    "local steps corrected by a control variate",
    make,
    memory,
    gradient_steps=True,
    options={"h_update": H_UPDATE},
    hears_release=lambda options: options.get("h_update") == "released",
    open_memory={"h_update": "released"},
    check=check,
    why_its_steps="its control variates take the model's move for the mean of messages that were "
    "made with steps of one size: leave it out, or use dp-fedavg",
    variate=True,
    paper="Algorithm 2",
    stack=Stack("control variates", with_variate_where, own=1.0),
)
