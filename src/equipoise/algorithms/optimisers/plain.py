"""A step is the direction itself: the server's plain average, and plain gradient steps."""

from typing import TYPE_CHECKING

from equipoise.algorithms.algorithm import Options
from equipoise.algorithms.optimisers.optimiser import Optimiser, OptimiserSpec

if TYPE_CHECKING:
    from torch import Tensor


def plain() -> Optimiser:
    def begin(x: "Tensor") -> "tuple[Tensor, ...]":
        return ()

    def step(
        memory: "tuple[Tensor, ...]", direction: "Tensor"
    ) -> "tuple[Tensor, tuple[Tensor, ...]]":
        return direction, memory

    return Optimiser(0, begin, step)


def make(options: Options) -> Optimiser:
    return plain()


SPEC = OptimiserSpec("plain", "the direction itself", make)
