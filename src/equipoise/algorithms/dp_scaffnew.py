"""DP-ScaffNew, Algorithm 2 of the paper: local steps corrected by a control variate h, so that
clients do not drift apart.

Between communications h stands still, so lines 4-13 of all iterations up to the next communication
are one round, and line 13 can wait for the next broadcast: the client needs only the model it
receives.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.algorithms.algorithm import Algorithm, Gradient
from equipoise.errors import require
from equipoise.privacy.clip import clip

H_UPDATES = "paper", "clipped", "released"


class State(NamedTuple):
    h: Tensor
    x_hat: Tensor


def dp_scaffnew(
    eta: float | Tensor,
    p: float | Tensor,
    h_update: str = "paper",
    clip_norm: float | Tensor = math.inf,
    learning: float | Tensor = 1.0,
) -> Algorithm:
    """The paper's algorithm, and two variants of what the control variate learns from.

    Line 13 equals h = (p/eta)(x_new - x - update). `clipped` writes clip(update) there: the same
    until the clip acts, and |h| stays bounded when it does (the paper's h then sends clients on
    long excursions that are clipped away). `released` writes the released message: h is then known
    to whoever sees the messages, and clients keep nothing private between rounds.

    Where `learning` is 0 instead of 1, h stays zero, and what is left is DP-FedAvg: so runs of both
    can be stacked.
    """
    require(h_update in H_UPDATES, f"h_update={h_update!r} is not one of {', '.join(H_UPDATES)}")

    def init(x: Tensor) -> State:
        return State(h=torch.zeros_like(x), x_hat=x)  # l. 1: the h sum to zero

    def local_round(
        x: Tensor, state: State, iterations: range, gradient: Gradient
    ) -> tuple[Tensor, State]:
        h = state.h
        if state.x_hat is not x:  # not in the first round
            h = h + learning * p / eta * (x - state.x_hat)  # l. 13, with the x just received
        x_hat = x
        for t in iterations:
            x_hat = x_hat - eta * (gradient(x_hat, t) - h)  # l. 4-5
        return x_hat - eta / p * h - x, State(h, x_hat)  # l. 8, before clip and noise

    def heard(state: State, update: Tensor, release: Tensor) -> State:
        if h_update == "paper":
            return state
        learns_from = clip(update, clip_norm) if h_update == "clipped" else release
        return State(state.h, state.x_hat - (update - learns_from))

    return Algorithm(init, local_round, heard)
