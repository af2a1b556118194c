"""What a task is: private records held by clients, a loss, a public measure of the result, and public constants."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

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


class Measured(NamedTuple):
    """The error (the paper's 1 - metric) and the mean loss of a model, or of models [...]."""

    error: Tensor
    loss: Tensor


Measure = Callable[[Tensor], Measured]


@dataclass(frozen=True)
class Options:
    """What a user may say to a task; None is the task's own default (for batch: all records).

    data, test   files with private records and with public test records, for tasks that read files
    label        the column to predict
    bounds       the file with public knowledge about columns
    """

    clients: int | None = None
    split: str = "random"
    batch: int | None = None
    seed: int = 0
    data: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    label: str | None = None
    bounds: str | None = None


@dataclass(frozen=True)
class Task:
    """A problem that knows its public constants.

    x0              the public initial model, [d]
    shapes          how x falls into named tensors, in this order
    clients         the private part
    measure         error and loss on records declared public, outside every guarantee; None if there are none
    error_name      what the error is, in words
    constant_error  the error of the best constant answer on the public records, where it is known
    learning_rate   the step size where L is unknown
    iterations      local steps in total, if the user does not say
    public          what was taken as public, in sentences
    batch           records in a minibatch; None for all
    mu, L           strong convexity and smoothness of every client's loss where they are known without looking at data
    sizes_public    whether the numbers of records may decide anything
    """

    name: str
    x0: Tensor
    shapes: dict[str, tuple[int, ...]]
    clients: Clients
    measure: Measure | None
    error_name: str
    learning_rate: float
    iterations: int
    public: tuple[str, ...]
    constant_error: float | None = None
    batch: int | None = None
    mu: float | None = None
    L: float | None = None
    sizes_public: bool = True

    @property
    def dimension(self) -> int:
        return self.x0.shape[-1]

    @property
    def eta(self) -> float:
        """The default step size: 1/L where L is public."""
        return 1 / self.L if self.L else self.learning_rate
