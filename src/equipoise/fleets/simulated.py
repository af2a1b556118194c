"""All clients, and all stacked runs, in this process."""

from torch import Tensor

from equipoise.algorithms import Algorithm, Gradient
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
    ) -> None:
        self._clients, self._gradient, self._weights = clients, gradient, weights
        self.algorithm, self._releaser, self._noise = algorithm, releaser, noise
        self.memory: Memory | None = None

    def exchange(self, broadcast: Broadcast) -> Tensor:
        x = broadcast.x.unsqueeze(-2).expand(*broadcast.x.shape[:-1], self._clients, -1)
        state = self.memory.state if self.memory else self.algorithm.init(x)
        release, self.memory = client_round(
            broadcast._replace(x=x),
            state,
            self.algorithm,
            self._releaser,
            self._gradient,
            self._noise,
        )
        mean = average(release.update, self._releaser.lattice, self._weights)
        return mean.to(broadcast.x.dtype)

    @property
    def overflowed(self) -> bool:
        """Whether some client's last update was not finite, and was replaced by zero."""
        return self.memory is not None and not bool(self.memory.finite.all())
