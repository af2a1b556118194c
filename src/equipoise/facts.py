"""Facts: what everybody may know about a task, and all that settings and accounts may depend on."""

import math
from typing import NamedTuple

from equipoise.errors import InvalidValue, require

EQUAL, BY_RECORDS = "equal", "records"
Weights = tuple[float, ...] | None
"""How much each client counts in the average, w_i, which sum to one; None where all count 1/N."""


def default_weights(unit: str) -> str:
    """In proportion to records where their numbers are public for the sake of the unit."""
    return EQUAL if unit == "client" else BY_RECORDS


class Facts(NamedTuple):
    """The public side of a task. A silo that holds one file has the same facts as everybody else.

    clients, dimension      N and d
    eta, iterations, batch  the task's own choices where the user makes none (batch None: all
    records)
    sizes                   the number of records of every client; None where that is private
    mu, L                   strong convexity and smoothness of every client's loss, where known
    gradient_bound          the longest gradient of one record, where there is a bound
    clipped_convex          whether the loss stays convex, and as smooth, if gradients are clipped
    """

    task: str
    clients: int
    dimension: int
    eta: float
    iterations: int
    batch: int | None = None
    sizes: tuple[int, ...] | None = None
    mu: float | None = None
    L: float | None = None
    gradient_bound: float | None = None
    clipped_convex: bool = False

    def units(self, unit: str) -> int:
        """How many are protected: clients, or records of all clients (where `sizes` are those of
        some, all are taken to have their mean)."""
        sizes = self.sizes or (1,)
        return self.clients if unit == "client" else round(self.clients * sum(sizes) / len(sizes))

    def weights(self, said: str) -> Weights:
        """How much each client counts in f = sum_i w_i f_i, the w_i summing to one; None where all
        count 1/N. `said` is equal, records, or numbers with commas between."""
        if said == EQUAL:
            return None
        if said == BY_RECORDS:
            if self.sizes is None:
                raise InvalidValue(
                    f"weights={said} with task={self.task}, where each client's number of records "
                    "is private: give numbers that are public (weights=9000,2600,420), or equal"
                )
            numbers: tuple[float, ...] = self.sizes
        else:
            numbers = tuple(map(float, said.split(",")))
            require(
                len(numbers) == self.clients,
                f"weights={said}: {len(numbers)} for {self.clients} clients; give one for each",
            )
        total = math.fsum(numbers)
        same = len({*numbers}) == 1
        return None if same else tuple(number / total for number in numbers)

    def step_size(self, proximal: float) -> float:
        """The default: 1 / (L + proximal) where L is known, since a proximal term bends every local
        loss by as much; else the task's own."""
        return 1 / (self.L + proximal) if self.L else self.eta


def check_weights(said: str) -> None:
    """Refuse what says nothing of how much clients count."""
    if said in (EQUAL, BY_RECORDS):
        return
    try:
        numbers = [float(word) for word in said.split(",")]
    except ValueError:
        numbers = []
    require(
        len(numbers) > 0 and min(numbers) > 0 and sum(numbers) < math.inf,
        f"weights={said} is neither equal, records, nor one positive number for each client with "
        "commas between, such as 9000,2600,420",
    )
