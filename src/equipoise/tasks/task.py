"""What a task is: private records held by clients, a loss, a public measure of the result, and public constants."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor


class Clients(Protocol):
    """The private records of the clients, with their loss. Everything works on the last axis of x."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of records of each client."""
        ...

    def gradient(self, x: Tensor, t: int) -> Tensor:
        """The gradient of each client's mean loss at its own x [..., clients, d], on its minibatch t (or on all records)."""
        ...

    def error(self, x: Tensor) -> Tensor:
        """The error of the model x [..., d] on all private records: for simulations only."""
        ...

    def alone(self, client: int) -> Self:
        """One client by itself, for x of shape [..., d]."""
        ...


@dataclass(frozen=True)
class Task:
    """A problem that knows its public constants.

    x0              the public initial model, [d]
    clients         the private part
    test_error      of a model [..., d] on records declared public: outside every guarantee
    mu, L           strong convexity and smoothness of every client's loss where they are known without looking at data
    learning_rate   the step size where L is unknown
    batch           records in a minibatch; None for all
    iterations      local steps in total, if the user does not say
    """

    name: str
    x0: Tensor
    clients: Clients
    test_error: Callable[[Tensor], Tensor]
    learning_rate: float
    iterations: int
    batch: int | None = None
    mu: float | None = None
    L: float | None = None

    @property
    def dimension(self) -> int:
        return self.x0.shape[-1]

    @property
    def eta(self) -> float:
        """The default step size: 1/L where L is public."""
        return 1 / self.L if self.L else self.learning_rate
