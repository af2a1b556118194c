"""Which record belongs to which client, and which to which minibatch: by public seeds (and labels,
to skew a split)."""

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import DataError, require
from equipoise.seeds import stream
from equipoise.tasks.task import TaskOptions

Indices = NDArray[np.int64]


def pool_and_parts(
    labels: NDArray[np.int64], options: TaskOptions, clients: int
) -> tuple[Indices, list[Indices]]:
    """The records declared public, and those of each client (`clients` of them if the user does not
    say), as indices."""
    require(
        options.public_records < max(len(labels), 1),
        f"public_records={options.public_records} leaves no private record of {len(labels)}: "
        "give fewer",
    )
    order = stream(options.seed, "public records").permutation(len(labels))
    pool, rest = order[: options.public_records], np.sort(order[options.public_records :])
    number = clients if options.clients is None else options.clients
    return pool, [
        rest[part] for part in split_records(labels[rest], number, options.split, options.seed)
    ]


def persons_dealt(
    owners: Indices, options: TaskOptions, clients: int
) -> tuple[Indices, list[Indices]]:
    """The same for whole persons, given that of each record, a number from 0. Declared public are
    as many as have `public_records` records; clients get equal numbers of the others."""
    require(
        options.split in (None, "random"),
        f"split={options.split!r} with unit=person: whole persons are dealt at random; leave it "
        "out",
    )
    counts = np.bincount(owners)
    order = stream(options.seed, "public persons").permutation(len(counts))
    enough = int(np.searchsorted(counts[order].cumsum(), options.public_records)) + 1
    public = enough if options.public_records else 0
    private, number = np.sort(order[public:]), options.clients or clients
    require(
        1 <= number <= len(private),
        f"clients={number} with unit=person: there are {len(private)} persons to deal among them, "
        "and every client needs one; give fewer clients",
    )
    client = np.full(len(counts), -1)
    for i, part in enumerate(split_records(private, number, None, options.seed)):
        client[private[part]] = i
    of_record = client[owners]
    return np.flatnonzero(of_record < 0), [np.flatnonzero(of_record == i) for i in range(number)]


def split_records(
    labels: NDArray[np.int64], clients: int, split: str | None, seed: int
) -> list[Indices]:
    """The records of each client, as indices; sizes differ by one at most.

    `random`: an equal random split. `dirichlet:A`: label skew, as Hsu, Qi and Brown (2019) make it:
    every client draws its own label distribution from a Dirichlet distribution with mean the
    overall one and concentration A (small: skewed).
    """
    require(clients >= 1, f"clients={clients} is not a number of clients")
    if clients > len(labels):
        raise DataError(
            f"clients={clients} is more than the {len(labels)} records to distribute among them: "
            "every client needs one"
        )
    concentration = parse_split(split)
    rng = stream(seed, "split")
    shuffled = rng.permutation(len(labels))
    parts: list[Indices] = np.array_split(shuffled, clients)
    if concentration == math.inf:
        return parts
    return skewed(labels, shuffled, [len(part) for part in parts], concentration, rng)


def skewed(
    labels: NDArray[np.int64],
    order: Indices,
    sizes: list[int],
    concentration: float,
    rng: np.random.Generator,
) -> list[Indices]:
    """Records in this order, dealt by label: `sizes` of them to each client, whose label
    distribution is drawn from a Dirichlet distribution with the overall one as its mean."""
    pools = [list(order[labels[order] == label]) for label in np.unique(labels)]
    overall = np.array([len(pool) / len(labels) for pool in pools])
    return [_draw(pools, rng.dirichlet(concentration * overall), size, rng) for size in sizes]


def _draw(
    pools: list[list[int]], wanted: NDArray[np.float64], size: int, rng: np.random.Generator
) -> Indices:
    """`size` records with label distribution `wanted`, as far as the pools (which shrink) still
    allow it."""
    taken: list[int] = []
    bounds = _bounds(pools, wanted)
    for coin in rng.random(size):
        pool = pools[int(bounds.searchsorted(coin, side="right"))]
        taken.append(pool.pop())
        if not pool and len(taken) < size:
            bounds = _bounds(pools, wanted)
    return np.array(taken)


def _bounds(pools: list[list[int]], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where on (0, 1) the records of each pool begin to be wanted, the empty ones left out."""
    left = np.array([len(pool) > 0 for pool in pools])
    weights = np.where(left, wanted + 1e-12, 0)
    bounds: NDArray[np.float64] = (weights / weights.sum()).cumsum()
    bounds /= bounds[-1]
    return bounds


def parse_split(split: str | None) -> float:
    """The Dirichlet concentration that `split` asks for; inf for the equal random split."""
    if split in (None, "random"):
        return math.inf
    kind, _, value = split.partition(":")
    try:
        concentration = float(value)
    except ValueError:
        concentration = math.nan
    require(
        kind == "dirichlet" and 0 < concentration < math.inf,
        f"split={split!r} is neither random nor dirichlet:A with a concentration A > 0, such as "
        f"dirichlet:0.3",
    )
    return concentration


class Minibatches:
    """Minibatch t of client i: a slice of a fresh permutation per epoch. It depends only on (seed,
    i, t).

    A client with fewer records than the batch uses all it has.
    """

    def __init__(
        self, seed: int, batch: int, sizes: tuple[int, ...], first_client: int = 0
    ) -> None:
        require(batch >= 1, f"batch={batch} is not >= 1")
        self._seed, self._batch, self._sizes, self._first_client = seed, batch, sizes, first_client

    def at(self, t: int) -> tuple[Tensor, Tensor]:
        """The indices of the records in minibatch t and their weights, both [clients, batch];
        unused places weigh nothing."""
        shape = len(self._sizes), min(self._batch, max(*self._sizes, 1))
        index, weights = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        for i in range(len(self._sizes)):
            chosen = self.of(i, t)
            index[i, : len(chosen)] = chosen
            weights[i, : len(chosen)] = 1 / max(len(chosen), 1)
        return torch.from_numpy(index), torch.from_numpy(weights)

    def of(self, i: int, t: int) -> Indices:
        """The indices of the records in minibatch t of the i-th client here."""
        size = self._sizes[i]
        epoch, k = divmod(t, max(size // self._batch, 1))
        return _permutation(self._seed, self._first_client + i, epoch, size)[
            k * self._batch : (k + 1) * self._batch
        ]

    def alone(self, client: int) -> "Minibatches":
        """The same minibatches, of one client only."""
        sizes = self._sizes[client : client + 1]
        return Minibatches(self._seed, self._batch, sizes, self._first_client + client)


class StackedMinibatches:
    """The minibatches of several tasks alike, as [tasks, 1, clients, batch]."""

    def __init__(self, rows: list[Minibatches]) -> None:
        self._rows = rows

    def at(self, t: int) -> tuple[Tensor, Tensor]:
        index, weights = zip(*(row.at(t) for row in self._rows), strict=True)
        return torch.stack(index).unsqueeze(1), torch.stack(weights).unsqueeze(1)


@lru_cache(maxsize=1024)
def _permutation(seed: int, client: int, epoch: int, size: int) -> Indices:
    return stream(seed, "minibatch", client, epoch).permutation(size)
