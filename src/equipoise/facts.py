"""Facts: what everybody may know about a task, and all that settings and accounts may depend on."""

from typing import NamedTuple


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

    def step_size(self, proximal: float) -> float:
        """The default: 1 / (L + proximal) where L is known, since a proximal term bends every local
        loss by as much; else the task's own."""
        return 1 / (self.L + proximal) if self.L else self.eta
