"""A task with canaries among its clients or records: made-up ones whose data pull along a
coordinate of their own as hard as the clip allows, each on the side that a fair coin chose.

They are what Nasr et al. (2023) call Dirac canaries. No two of them interfere, and what the task's
own records do along the same coordinates the adversary knows, and subtracts.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import InvalidValue
from equipoise.tasks.task import Task

_FAR = 1e9  # of an update, in clips


@dataclass(frozen=True, repr=False)
class Canaries:
    """`coordinates` [m], one for each, and `sides` [m]: 1 or -1, or 1 and 0 (absent)."""

    coordinates: Tensor
    sides: Tensor

    def __len__(self) -> int:
        return len(self.sides)

    def absent(self) -> Self:
        """As they would be if none were there."""
        return replace(self, sides=torch.zeros_like(self.sides))


def canaries_of(
    number: int, dimension: int, over_clip: float, coins: np.random.Generator
) -> Canaries:
    """On coordinates and sides that coins choose; the other side is absent where neighbours are a
    unit's data and none."""
    if not 2 <= number <= dimension:
        raise InvalidValue(
            f"canaries={number} with a model of {dimension} numbers: each needs a coordinate of "
            f"its own; give from 2 to {dimension}"
        )
    heads = coins.integers(0, 2, number)
    sides = 2 * heads - 1 if over_clip == 2 else heads
    coordinates = coins.choice(dimension, number, replace=False)
    return Canaries(torch.from_numpy(coordinates), torch.from_numpy(sides))


@dataclass(frozen=True, repr=False)
class CanaryClients:
    """The task's clients, and each canary as a client behind them."""

    clients: Any
    canaries: Canaries
    far: float

    @property
    def sizes(self) -> tuple[int, ...]:
        return (*self.clients.sizes, *(1,) * len(self.canaries))

    def gradient(self, x: Tensor, t: int) -> Tensor:
        """An absent client's is not finite: it sends zero, noised like any other message."""
        own = len(self.clients.sizes)
        pulls = torch.zeros_like(x[..., own:, :])
        sides = self.canaries.sides.to(x.dtype)
        far = torch.where(sides == 0, math.nan, -self.far * sides)
        pulls[..., torch.arange(len(sides)), self.canaries.coordinates] = far
        return torch.cat([self.clients.gradient(x[..., :own, :], t), pulls], -2)

    def error(self, x: Tensor) -> Tensor:
        error: Tensor = self.clients.error(x)
        return error

    def alone(self, client: int) -> Self:
        raise InvalidValue("a task with canaries is for audits in one process")


@dataclass(frozen=True, repr=False)
class CanaryRecords:
    """The task's records, and the canaries as records of client 0 behind its own. `longest` bounds
    a gradient where the clip does not."""

    clients: Any
    canaries: Canaries
    longest: float

    @property
    def sizes(self) -> tuple[int, ...]:
        first, *others = self.clients.sizes
        return (first + len(self.canaries), *others)

    def clipped_sum(self, x: Tensor, chosen: Tensor | None, C: float | Tensor, draw: int) -> Tensor:
        sizes, first = self.clients.sizes, self.clients.sizes[0]
        own = None if chosen is None else chosen[..., : max(sizes)]
        total: Tensor = self.clients.clipped_sum(x, own, C, draw).double()
        pulls = -self.canaries.sides.double() * min(float(C), self.longest) * (1 - 1e-12)
        if chosen is not None:
            pulls = pulls * chosen[..., 0, first : first + len(pulls)]
        added = torch.zeros_like(total)
        added[..., 0, self.canaries.coordinates] = pulls
        return total + added

    def regulariser(self, x: Tensor) -> Tensor:
        added: Tensor = self.clients.regulariser(x)
        return added

    def check_records(self) -> None:
        self.clients.check_records()

    def isolated(self) -> Self:
        return replace(self, clients=self.clients.isolated())

    def slow_layers(self) -> tuple[str, ...]:
        slow: tuple[str, ...] = self.clients.slow_layers()
        return slow

    def gradient(self, x: Tensor, t: int) -> Tensor:
        raise InvalidValue("records with canaries are for audits of unit=record")

    error = CanaryClients.error
    alone = CanaryClients.alone


def with_canaries(task: Task, canaries: Canaries, unit: str, clip: float, eta: float) -> Task:
    clients: Any
    if unit == "client":
        clients = CanaryClients(task.clients, canaries, _FAR * clip / min(1.0, eta))
    else:
        longest = math.inf if task.gradient_bound is None else task.gradient_bound
        clients = CanaryRecords(task.clients, canaries, longest)
    return replace(task, clients=clients)
