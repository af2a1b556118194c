"""Public stand-ins for the private clients, on which plans can be tried for nothing."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import DataError
from equipoise.seeds import stream
from equipoise.tasks.linear import SHARE_WRONG, LinearClients, Link, linear_clients, linear_measure
from equipoise.tasks.public import ConvexClients, minimiser
from equipoise.tasks.task import Table

FEWEST_RECORDS = 8


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

    @property
    def large(self) -> bool:
        """Whether seeds differ so little, and cost so much, that few of them do."""
        return self.x0.shape[-1] > 150

    @cached_property
    def spectra(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues [clients, d] and eigenvectors [clients, d, d] of the Hessians."""
        values, vectors = torch.linalg.eigh(self.hessians)
        return values, vectors

    def single(self) -> "Surrogate":
        """The same in single precision, which is enough to compare plans and takes half the
        time.
        """
        single = {
            name: getattr(self, name).float() for name in ("x0", "best", "hessians", "slopes")
        }
        return replace(self, clients=self.clients.single(), **single)

    def excess(self, x: Tensor) -> Tensor:
        """f(x) - f(x*) on the surrogate, of models [..., d]."""
        return self.clients.loss(x) - self.clients.loss(self.best)


def surrogate_of(clients: ConvexClients, x0: Tensor, L: float, mu: float) -> Surrogate:
    best = minimiser(clients, x0)
    halfway = x0 + 0.7 * (best - x0)
    slopes = clients.gradient(best.expand(len(clients.sizes), -1), 0)
    return Surrogate(clients, x0, best, clients.hessians(halfway), slopes, L, mu)


def bootstrap(
    pool: Table, clients: int, records: int, link: Link, l2: float, seed: int
) -> LinearClients:
    """`clients` stand-ins with `records` records each, drawn with replacement from a public pool.

    A small pool is easier to separate than the many private records: plans made on it take too many
    rounds. So a third of the class labels, at random, are drawn anew from a regularised fit of the
    pool.
    """
    if len(pool.features) < FEWEST_RECORDS:
        raise DataError(
            f"{len(pool.features)} public records are too few to stand for clients: give "
            f"{FEWEST_RECORDS} or more"
        )
    rng = stream(seed, "surrogate")
    index = rng.integers(len(pool.features), size=(clients, records))
    tables = [pool.rows(part) for part in index]
    if link.error_name == SHARE_WRONG:
        weights = _regularised_fit(pool, link, l2)
        for i, (features, targets) in enumerate(tables):
            anew = rng.random((records, 1)) < 1 / 3
            tables[i] = Table(
                features, np.where(anew, _targets(link, features @ weights.T, rng), targets)
            )
    return linear_clients(tables, link, l2, None, seed)


def _regularised_fit(pool: Table, link: Link, l2: float) -> NDArray[np.float64]:
    """The linear model [outputs, features] of the pool, its regulariser chosen among multiples of
    l2 by cross-validation."""
    folds = np.arange(len(pool.features)) % 5

    def fit(part: Table, strength: float) -> Tensor:
        alone = linear_clients([part], link, strength, None, 0)
        return minimiser(
            alone,
            torch.zeros(part.features.shape[1] * part.targets.shape[1], dtype=torch.float64),
            1e-4,
        )

    def loss_elsewhere(strength: float) -> float:
        parts = [
            (pool.rows(np.flatnonzero(folds != k)), pool.rows(np.flatnonzero(folds == k)))
            for k in range(5)
        ]
        return sum(
            float(linear_measure(left_out, link)(fit(used, strength)).loss)
            for used, left_out in parts
        )

    strength = min((l2 * times for times in (0.3, 1, 3, 10, 30)), key=loss_elsewhere)
    return fit(pool, strength).numpy().reshape(pool.targets.shape[1], -1)


def synthetic_pool(
    records: int, features: int, outputs: int, link: Link, norm: float, seed: int
) -> Table:
    """Made-up records from public constants alone: features with a decaying spectrum, targets from
    a random linear teacher."""
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


def _targets(
    link: Link, scores: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    if link.error_name != SHARE_WRONG:
        clipped: NDArray[np.float64] = np.clip(scores / 6, -1, 1)
        return clipped
    if scores.shape[1] == 1:
        heads: NDArray[np.float64] = (rng.random(scores.shape) < 1 / (1 + np.exp(-scores))).astype(
            np.float64
        )
        return heads
    chosen = (scores + rng.gumbel(size=scores.shape)).argmax(1)
    one_hot: NDArray[np.float64] = np.eye(scores.shape[1])[chosen]
    return one_hot
