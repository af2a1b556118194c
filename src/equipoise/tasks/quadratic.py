"""A heterogeneous quadratic whose constants are known exactly: f_i(x) = (x - b_i)' A_i (x - b_i) /
2, and |x*| = 1."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.seeds import stream
from equipoise.tasks.task import Measured, Takes, Task, TaskOptions, TaskSpec

CLIENTS = 20
MOST_CLIENTS = 100_000
DIMENSION = 10
ITERATIONS = 64
MU, L = 0.01, 1.0


@dataclass(frozen=True, repr=False)
class QuadraticClients:
    """`A` is [clients, d, d] with eigenvalues in [MU, L]; `b`, each client's own minimiser, is
    [clients, d]."""

    A: Tensor
    b: Tensor

    @property
    def sizes(self) -> tuple[int, ...]:
        return (1,) * (self.A.shape[-3] if self.A.dim() > 2 else 1)

    @property
    def minimiser(self) -> Tensor:
        """x*, where the mean of the clients' gradients vanishes."""
        x: Tensor = torch.linalg.solve(
            self.A.sum(-3), torch.einsum("...cij,...cj->...i", self.A, self.b)
        )
        return x

    def gradient(self, x: Tensor, t: int) -> Tensor:
        return torch.einsum("...ij,...j->...i", self.A, x - self.b)

    def loss(self, x: Tensor) -> Tensor:
        """f(x) less a constant: the mean over the clients."""
        return self.excess(x)

    def hessians(self, x: Tensor) -> Tensor:
        """The Hessian of every client's loss, [clients, d, d]."""
        return self.A

    def excess(self, x: Tensor) -> Tensor:
        """f(x) - f(x*) of a model [..., d], f the mean over the clients."""
        gap = x.to(self.A.device) - self.minimiser
        return torch.einsum("...i,...ij,...j->...", gap, self.A.mean(-3), gap).cpu() / 2

    def error(self, x: Tensor) -> Tensor:
        """The share of the excess loss of x = 0 that is left: 1 without training, 0 at the
        minimiser."""
        return self.excess(x) / self.excess(torch.zeros_like(x))

    @staticmethod
    def stacked(rows: "list[QuadraticClients]", axes: int = 1) -> "QuadraticClients":
        """The clients of several problems in one, for gradients at x [problems, settings, clients,
        d], with as many axes of settings as are said."""
        A, b = torch.stack([row.A for row in rows]), torch.stack([row.b for row in rows])
        ones = (1,) * axes
        return QuadraticClients(
            A.reshape(len(rows), *ones, *A.shape[1:]), b.reshape(len(rows), *ones, *b.shape[1:])
        )

    def like_these(self, number: int, seed: int) -> "QuadraticClients":
        """Other clients of the same public generator: stand-ins for a planner."""
        task = quadratic(TaskOptions(clients=number, seed=seed))
        assert isinstance(task.clients, QuadraticClients)
        return task.clients

    def single(self) -> Self:
        """The same clients in single precision."""
        return self.to(torch.float32)

    def to(self, where: torch.dtype | torch.device) -> Self:
        """The same clients on a device, or in another precision."""
        return replace(self, A=self.A.to(where), b=self.b.to(where))

    def alone(self, client: int) -> Self:
        return replace(self, A=self.A[client], b=self.b[client])


@dataclass(frozen=True, repr=False)
class QuadraticMeasure:
    """Error and loss: all of this problem is public."""

    clients: QuadraticClients

    def __call__(self, x: Tensor) -> Measured:
        return Measured(self.clients.error(x), self.clients.excess(x))

    def to(self, device: torch.device) -> Self:
        return replace(self, clients=self.clients.to(device))

    @staticmethod
    def stacked(rows: "list[QuadraticMeasure]") -> "QuadraticMeasure":
        return QuadraticMeasure(QuadraticClients.stacked([row.clients for row in rows]))


def quadratic(options: TaskOptions) -> Task:
    """Public synthetic data: every client is drawn from (seed, client)."""
    require(
        options.split in (None, "random"),
        f"split={options.split!r}: the task quadratic has no labels to skew; leave it out",
    )
    require(
        options.minibatch is None,
        f"batch={options.batch}: the task quadratic has no records to sample; leave it out",
    )
    number = CLIENTS if options.clients is None else options.clients
    require(
        number <= MOST_CLIENTS,
        f"clients={number} is more than {MOST_CLIENTS:,}, the most that are supported",
    )
    centre = stream(options.seed, "quadratic").standard_normal(DIMENSION)
    A, b = zip(*(_client(centre, options.seed, i) for i in range(number)), strict=True)
    drawn = QuadraticClients(torch.tensor(np.stack(A)), torch.tensor(np.stack(b)))
    private = replace(
        drawn, b=drawn.b / drawn.minimiser.norm()
    )  # so that |x*| = 1, a public constant
    return Task(
        name="quadratic",
        x0=torch.zeros(DIMENSION, dtype=torch.float64),
        shapes={"x": (DIMENSION,)},
        clients=private,
        measure=QuadraticMeasure(private),
        error_name="share of the excess loss that is left",
        learning_rate=1 / L,
        fingerprint="drawn from the seed",
        iterations=ITERATIONS,
        public=("all of it: the problem is synthetic",),
        mu=MU,
        L=L,
    )


def _client(centre: np.ndarray, seed: int, client: int) -> tuple[np.ndarray, np.ndarray]:
    rng = stream(seed, "quadratic", client)
    rotation, _ = np.linalg.qr(rng.standard_normal((DIMENSION, DIMENSION)))
    A = rotation @ np.diag(np.geomspace(MU, L, DIMENSION)) @ rotation.T
    b = centre + rng.standard_normal(DIMENSION)
    return (A + A.T) / 2, b


SPEC = TaskSpec("quadratic", quadratic, Takes(public_records=False))
