"""Adam as in Reddi et al., "Adaptive federated optimization", 2021 (Algorithm 2, FedAdam).

Every coordinate is divided by the root of its own mean square. v begins at tau^2, and nothing is
corrected for the start. At the clients the same formulas take local gradients, anew in every round.
Noise is part of what is squared: where it is larger than what is learnt, all coordinates are
divided by about the same, and only the step size changes.
"""

from typing import TYPE_CHECKING, Any

from equipoise.algorithms.algorithm import Options
from equipoise.algorithms.optimisers.optimiser import (
    BETA,
    BETA2,
    TAU,
    Optimiser,
    OptimiserSpec,
    Place,
)
from equipoise.errors import require

if TYPE_CHECKING:
    from torch import Tensor


def adam(beta: float, beta2: float, tau: float) -> Optimiser:
    def begin(x: "Tensor") -> "tuple[Tensor, ...]":
        return x.new_zeros(x.shape), x.new_full(x.shape, tau**2)  # l. 1

    def step(
        memory: "tuple[Tensor, ...]", direction: "Tensor"
    ) -> "tuple[Tensor, tuple[Tensor, ...]]":
        m, v = memory
        m = beta * m + (1 - beta) * direction
        v = beta2 * v + (1 - beta2) * direction**2
        return m / (v.sqrt() + tau), (m, v)

    return Optimiser(2, begin, step)


def make(options: Options) -> Optimiser:
    beta, beta2, tau = (float(options.get(name, OPTIONS[name].default)) for name in OPTIONS)
    return adam(beta, beta2, tau)


def check(place: Place, settings: Any) -> None:
    """Its steps have about the length of the step size in every coordinate: what is right for plain
    steps is far too long."""
    if place == "server":
        require(
            settings.gamma < 1,
            f"gamma={settings.gamma:g} with server_optimiser={SPEC.name}: every coordinate of the "
            "model would move by about that in each round; give a gamma below 1, such as 0.03",
        )
    else:
        require(
            settings.eta is not None,
            f"local_optimiser={SPEC.name} without eta: every coordinate of the model moves by "
            "about eta in a local step, and no default is known; give one, such as 0.01",
        )


OPTIONS = {"beta": BETA, "beta2": BETA2, "tau": TAU}
SPEC = OptimiserSpec("adam", "Adam", make, OPTIONS, check)
