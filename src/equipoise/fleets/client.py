"""The privacy border."""

import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.algorithms import Algorithm, Gradient
from equipoise.fleets.fleet import Broadcast, Release
from equipoise.privacy.clip import is_finite
from equipoise.privacy.mechanisms.mechanism import Releaser
from equipoise.privacy.noise import NoiseSource

log = logging.getLogger("equipoise.client")


class Memory(NamedTuple):
    """What a client keeps to itself between rounds: the algorithm's state, and its last update
    without clip and noise.

    `finite` says whether that update was; if not, zero was released in its place.
    """

    state: Any
    update: Tensor
    finite: Tensor

    def __repr__(self) -> str:
        return "Memory(private)"


def client_round(
    broadcast: Broadcast,
    state: Any,
    algorithm: Algorithm,
    releaser: Releaser,
    gradient: Gradient,
    noise: NoiseSource,
) -> tuple[Release, Memory]:
    """The only place where private data turns into something that may be sent: the Release, and
    nothing else. The release is on the host; all else stays where the broadcast model is."""
    update, state = algorithm.local_round(broadcast.x, state, broadcast.iterations, gradient)
    release = Release(broadcast.round, releaser.release(update, noise, broadcast.round))
    state = algorithm.after_release(state, update, release.update.to(update))
    finite = is_finite(update)
    if not finite.all():  # such a client starts afresh, and says so on its own side only
        log.warning(
            "an update was not finite: zero was released in its place; a smaller eta usually helps"
        )
        fresh = algorithm.init(broadcast.x)
        state = type(state)(
            *(torch.where(finite, old, new) for old, new in zip(state, fresh, strict=True))
        )
    return release, Memory(state, update, finite)
