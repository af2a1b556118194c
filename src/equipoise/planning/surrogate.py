"""Public stand-ins for the private clients, on which plans can be tried for nothing."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import DataError
from equipoise.seeds import stream
from equipoise.tasks.linear import LinearClients, Link, linear_clients
from equipoise.tasks.task import Table

FEWEST_RECORDS = 8


class ConvexClients(Protocol):
    """Clients whose losses, gradients and Hessians are known in closed form."""

    @property
    def sizes(self) -> tuple[int, ...]: ...
    def gradient(self, x: Tensor, t: int) -> Tensor: ...
    def loss(self, x: Tensor) -> Tensor: ...
    def hessians(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Surrogate:
    """Clients made of public records, and what a plan needs to know about them.

    best        x*, the minimiser of their mean loss
    hessians    of each client, [clients, d, d], on the way from x0 to x*
    slopes      the gradient of each client at x*, [clients, d]
    """

    clients: ConvexClients
    x0: Tensor
    best: Tensor
    hessians: Tensor
    slopes: Tensor
    L: float
    mu: float

    @property
    def number(self) -> int:
        return len(self.clients.sizes)

    def excess(self, x: Tensor) -> Tensor:
        """f(x) - f(x*) on the surrogate, of models [..., d]."""
        return self.clients.loss(x) - self.clients.loss(self.best)


def surrogate_of(clients: ConvexClients, x0: Tensor, L: float, mu: float) -> Surrogate:
    best = minimiser(clients, x0)
    halfway = x0 + 0.7 * (best - x0)
    slopes = clients.gradient(best.expand(len(clients.sizes), -1), 0)
    return Surrogate(clients, x0, best, clients.hessians(halfway), slopes, L, mu)


def minimiser(clients: ConvexClients, x0: Tensor) -> Tensor:
    """x* of the mean loss, by Newton's method with step halving."""
    x, N = x0, len(clients.sizes)
    for _ in range(50):
        gradient = clients.gradient(x.expand(N, -1), 0).mean(0)
        if gradient.norm() < 1e-10:
            break
        step = torch.linalg.solve(clients.hessians(x).mean(0), gradient)
        scale = 1.0
        while scale > 1e-6 and clients.loss(x - scale * step) > clients.loss(x):
            scale /= 2
        x = x - scale * step
    return x


def bootstrap(pool: Table, clients: int, records: int, link: Link, l2: float, seed: int) -> LinearClients:
    """`clients` stand-ins with `records` records each, drawn with replacement from a public pool."""
    if len(pool.features) < FEWEST_RECORDS:
        raise DataError(f"{len(pool.features)} public records are too few to stand for clients: give {FEWEST_RECORDS} or more")
    rng = stream(seed, "surrogate")
    index = rng.integers(len(pool.features), size=(clients, records))
    return linear_clients([pool.rows(part) for part in index], link, l2, None, seed)


def synthetic_pool(records: int, features: int, outputs: int, link: Link, norm: float, seed: int) -> Table:
    """Made-up records from public constants alone: features with a decaying spectrum, targets from a random linear teacher."""
    rng = stream(seed, "synthetic")
    spectrum = 1 / np.sqrt(np.arange(1, features))
    rotation, _ = np.linalg.qr(rng.standard_normal((features - 1, features - 1)))
    rows = rng.standard_normal((records, features - 1)) * spectrum @ rotation
    rows *= norm / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), norm / 0.7)
    data = np.hstack([rows, np.ones((records, 1))])
    teacher = rng.standard_normal((outputs, features))
    scores = data @ teacher.T
    scores = 3 * (scores - scores.mean(0)) / np.maximum(scores.std(0), 1e-9)
    return Table(data, _targets(link, scores, rng))


def _targets(link: Link, scores: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    if link.error_name == "root mean squared error":
        clipped: NDArray[np.float64] = np.clip(scores / 6, -1, 1)
        return clipped
    if scores.shape[1] == 1:
        heads: NDArray[np.float64] = (rng.random(scores.shape) < 1 / (1 + np.exp(-scores))).astype(np.float64)
        return heads
    chosen = (scores + rng.gumbel(size=scores.shape)).argmax(1)
    one_hot: NDArray[np.float64] = np.eye(scores.shape[1])[chosen]
    return one_hot
