"""All clients, and all stacked runs, in this process."""

import torch
from torch import Tensor

from equipoise.algorithms import Algorithm, Gradient
from equipoise.device import HOST
from equipoise.facts import Weights
from equipoise.fleets.client import Memory, client_round
from equipoise.fleets.fleet import Broadcast
from equipoise.privacy.clip import average
from equipoise.privacy.mechanisms.mechanism import Releaser
from equipoise.privacy.noise import NoiseSource


class SimulatedFleet:
    """Clients as an axis: the broadcast model [..., d] becomes [..., clients, d], and all work in
    one computation.

    `memory` is what the clients keep to themselves. A simulation may look at it; what is seen there
    is not private.
    """

    def __init__(
        self,
        clients: int,
        gradient: Gradient,
        algorithm: Algorithm,
        releaser: Releaser,
        noise: NoiseSource,
        weights: Weights = None,
        device: str = HOST,
    ) -> None:
        self._clients, self._gradient, self._weights = clients, gradient, weights
        self._device = device
        self.algorithm, self._releaser, self._noise = algorithm, releaser, noise
        self.memory: Memory | None = None

    def exchange(self, broadcast: Broadcast) -> Tensor:
        mean = average(self.collect(broadcast), self._releaser.lattice, self._weights)
        return mean.to(broadcast.x.dtype)

    def collect(self, broadcast: Broadcast) -> Tensor:
        """What every client releases in a round, [..., clients, d]."""
        x = self._everywhere(broadcast.x)
        state = self.memory.state if self.memory else self.algorithm.init(x)
        release, self.memory = client_round(
            broadcast._replace(x=x),
            state,
            self.algorithm,
            self._releaser,
            self._gradient,
            self._noise,
        )
        return release.update

    def _everywhere(self, x: Tensor) -> Tensor:
        """[..., d] as every client has it, [..., clients, d], where the clients are."""
        return x.to(self._device).unsqueeze(-2).expand(*x.shape[:-1], self._clients, -1)

    def remembered(self) -> dict[str, Tensor]:
        """What the clients of one run carry to the next round, by name: private. It is one row
        where that is the same for all of them."""
        carried = self.memory.state._asdict() if self.memory else {}
        return {
            name: (rows if rows.stride(0) else rows[:1]).cpu() for name, rows in carried.items()
        }

    def remember(self, carried: dict[str, Tensor], known: Tensor) -> None:
        """Go on with what the clients of a run carried when the server knew `known`."""
        kind = type(self.algorithm.init(self._everywhere(self.algorithm.told(known))))
        placed = {name: rows.to(self._device) for name, rows in carried.items()}
        state = kind(**{name: rows.expand(self._clients, -1) for name, rows in placed.items()})
        no_update, finite = known.new_empty(0), torch.ones(1, 1, dtype=torch.bool)
        self.memory = Memory(state, no_update, finite)

    @property
    def overflowed(self) -> bool:
        """Whether some client's last update was not finite, and was replaced by zero."""
        return self.memory is not None and not bool(self.memory.finite.all())
