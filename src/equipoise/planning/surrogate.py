"""Public stand-ins for the private clients, on which plans can be tried for nothing."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import DataError, require
from equipoise.seeds import stream
from equipoise.tasks.linear import SHARE_WRONG, LinearClients, Link, linear_clients, linear_measure
from equipoise.tasks.public import minimiser
from equipoise.tasks.task import Convex, Table, Task

FEWEST_RECORDS = 8
GUESSED_RECORDS = 100  # of a client whose size is private
STAND_INS, THEIR_RECORDS = 40, 60  # at most: more cost time and change little
LARGEST_MAPS = 2e7  # numbers in the clients' Hessians; fewer stand-ins are made beyond


@dataclass(frozen=True)
class Surrogate:
    """Clients made of public records, and what a plan needs to know about them.

    best        x*, the minimiser of their mean loss
    hessians    of each client, [clients, d, d], on the way from x0 to x*
    slopes      the gradient of each client at x*, [clients, d]
    """

    clients: Convex
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


def surrogate_of(clients: Convex, x0: Tensor, L: float, mu: float) -> Surrogate:
    best = minimiser(clients, x0)
    halfway = x0 + 0.7 * (best - x0)
    slopes = clients.gradient(best.expand(len(clients.sizes), -1), 0)
    return Surrogate(clients, x0, best, clients.hessians(halfway), slopes, L, mu)


Kind = Literal["real records", "drawn by the task", "made up"]


@dataclass(frozen=True)
class StandIns:
    """The surrogate, the records of a real client (known or guessed), and what was taken as public.

    kind   what they are made of. Only real records predict a test error: others have another
           optimum. Made-up labels do not even tell whether there is anything to learn.
    """

    surrogate: Surrogate
    records: int
    sentences: list[str]
    kind: Kind


def stand_ins(task: Task, records: int | None, seed: int) -> StandIns:
    """Stand-ins for the clients: from the pool, from made-up records, or by the task's own
    generator."""
    if task.L is None or task.mu is None:
        raise DataError(f"task={task.name}: no smoothness is known, so no plan can be tried")
    clients, sentences = len(task.clients.sizes), list(task.public)
    number = max(2, min(clients, STAND_INS, int(LARGEST_MAPS / task.dimension**2)))
    private = task.clients
    kind: Kind = "real records"
    if not isinstance(private, LinearClients):
        if not isinstance(private, Generated):
            raise DataError(
                f"task={task.name}: nothing public can stand in for its clients, so no plan can be "
                "tried"
            )
        drawn = private.like_these(number, seed + 10**6)
        sentences.append("stand-ins drawn by the task's public generator with another seed")
        records, kind = 1, "drawn by the task"
    else:
        require(
            records is None or not task.sizes_public,
            f"records={records} with task={task.name}, whose clients have public numbers of "
            "records: leave it out",
        )
        records = records or _records(task)
        outputs, features = task.shapes["weight"]
        pool = task.pool
        if not isinstance(pool, Table):
            norm = math.sqrt(max(0.0, (task.L - task.mu) / private.link.curvature - 1))
            pool = synthetic_pool(200, features, outputs, private.link, norm, seed)
            sentences.append(
                "nothing else: the stand-ins have made-up records, which predict no test error; "
                "expect plans 10 to 20 % worse"
            )
            kind = "made up"
        few = min(records, THEIR_RECORDS)
        drawn = bootstrap(pool, number, few, private.link, private.l2, seed)
    surrogate = surrogate_of(drawn, task.x0, task.L, task.mu)
    return StandIns(surrogate.single() if surrogate.large else surrogate, records, sentences, kind)


@runtime_checkable
class Generated(Protocol):
    """Clients that a public generator draws."""

    def like_these(self, number: int, seed: int) -> Convex: ...


def _records(task: Task) -> int:
    """Of a client: the mean where sizes are public, else a guess."""
    sizes = task.clients.sizes
    return round(sum(sizes) / len(sizes)) if task.sizes_public else GUESSED_RECORDS


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
