"""What an optimiser is: how a step is made of directions that are heard one after the other.

It works at two places. At the server a direction is the mean release of a round, and all that is
remembered is public. At the clients it is the gradient of a local step, noised where the mechanism
noises gradients; clients begin anew in every round, so they carry nothing from one to the next.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from equipoise.algorithms.algorithm import Option, Options

if TYPE_CHECKING:
    from torch import Tensor

Place = Literal["server", "local"]

BETA = Option(
    0.9,
    "how much of earlier steps momentum keeps; beta_1 of Adam",
    rule="a number in [0, 1)",
    holds=lambda value: 0 <= value < 1,
)
BETA2 = Option(
    0.99,
    "how much of earlier squares Adam keeps; its beta_2",
    rule="a number in [0, 1)",
    holds=lambda value: 0 <= value < 1,
)
TAU = Option(
    1e-3,
    "Adam's tau: it divides by sqrt(v) + tau, and v begins at tau^2; about the size of an entry "
    "that matters",
    rule="a number > 0",
    holds=lambda value: 0 < value < math.inf,
)


class Optimiser(NamedTuple):
    """Pure functions on vectors of the model's length, the last axis; as many as `vectors` are
    remembered.

    begin(x) -> memory
    step(memory, direction) -> (step, memory)
        What is added to the model in place of the direction, still to be multiplied by the step
        size of its place.
    """

    vectors: int
    begin: "Callable[[Tensor], tuple[Tensor, ...]]"
    step: "Callable[[tuple[Tensor, ...], Tensor], tuple[Tensor, tuple[Tensor, ...]]]"


@dataclass(frozen=True)
class OptimiserSpec:
    """An optimiser as the rest of the product knows it.

    make      it, with its options, here without the name of their place
    options   the settings that it alone understands
    check     refuses settings with which it has no meaning at a place
    """

    name: str
    summary: str
    make: Callable[[Options], Optimiser]
    options: Mapping[str, Option] = field(default_factory=dict)
    check: Callable[[Place, Any], None] = lambda place, settings: None
