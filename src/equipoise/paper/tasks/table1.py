"""Tasks of networks: from records that clients hold to a Task; and the paper's five, from a data
set that lies on disk."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.cache import Arrays
from equipoise.errors import require
from equipoise.paper.tasks.rows import Row
from equipoise.seeds import stream
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.model_records import Rows
from equipoise.tasks.network import Augment, model_task
from equipoise.tasks.splits import Indices, pool_and_parts, split_records
from equipoise.tasks.task import Task, TaskOptions, fingerprint

PERSONS = "train_persons"
SAMPLE = 1000  # records that a data set is known again by


def federated_task(
    name: str,
    network: Callable[[], nn.Module],
    arrays: Arrays,
    row: Row,
    loss: Callable[[Tensor, Tensor], Tensor],
    metric: Callable[[Tensor, Tensor], Any],
    options: TaskOptions,
    *,
    whole: tuple[int, int],
    owner: str,
    natural: bool,
    constant_error: float,
    error_name: str,
    augment: Augment | None = None,
    person: str = "",
) -> Task:
    """A task of Table 1. `arrays` has inputs, targets and owners of train and test records.

    whole     train and test records of the whole data set
    owner     who a record comes from, in a word: split=natural deals whole owners to clients
    natural   whether that is the default
    person    who is one person, in a word, if that is known: the arrays have `train_persons`, or
              persons are the owners

    Arrays that are mapped into memory stay on disk: a client has the indices of its records (see
    `Rows`), and when it trains it copies rows of its own only, those of a minibatch.
    """
    by_owner = options.split == "natural" or (options.split is None and natural)
    deal = partial(_owners_dealt, owner=owner) if by_owner else partial(_records_dealt, name=name)
    persons = arrays.get(PERSONS, arrays["train_owners"]) if person else None
    if options.unit == "person" and persons is not None and not by_owner:
        deal = partial(_persons_dealt, persons=persons, person=person)
    dealt = deal(arrays, options, row.clients)
    return model_task(
        name,
        _initial(network, options.seed),
        loss,
        metric,
        tuple(_rows(arrays, "train", part) for part in dealt.parts),
        tuple(_rows(arrays, "test", part) for part in dealt.tests if len(part)),
        _rows(arrays, "train", dealt.pool) if len(dealt.pool) else None,
        batch=row.batch if options.batch is None else options.minibatch,
        seed=options.seed,
        augment=augment,
        fingerprint=fingerprint(_sample(arrays[key]) for key in sorted(arrays) if key != PERSONS),
        part=_part(arrays, whole),
        error_name=error_name,
        constant_error=constant_error,
        learning_rate=row.learning_rate,
        iterations=row.iterations,
        public=(
            "the initial weights of the model, and how inputs were prepared",
            "the test records",
            dealt.public,
        ),
        sizes_public=True,
        owners=None if persons is None else tuple(_numbers(persons, part) for part in dealt.parts),
    )


def _numbers(persons: Indices, part: Indices) -> Indices:
    """The persons of these records, from 0."""
    return np.unique(persons[np.sort(part)], return_inverse=True)[1].astype(np.int64)


def _part(arrays: Arrays, whole: tuple[int, int]) -> str:
    """How much of the data set is at hand, where that is not all of it."""
    here = len(arrays["train_targets"]), len(arrays["test_targets"])
    if here == whole:
        return ""
    (train, test), (all_train, all_test) = here, whole
    return f"{train:,} of {all_train:,} training and {test:,} of {all_test:,} test records"


def _initial(network: Callable[[], nn.Module], seed: int) -> FlatModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FlatModel(network())


class Dealt(NamedTuple):
    """Indices of training records declared public, of each client's training records, and of each
    client's test records; and what is public about it, in words."""

    pool: Indices
    parts: list[Indices]
    tests: list[Indices]
    public: str


def _owners_dealt(arrays: Arrays, options: TaskOptions, clients: int, owner: str) -> Dealt:
    """Whole owners belong to clients: as many owners to each, by seed."""
    train, test = arrays["train_owners"], arrays["test_owners"]
    owners = np.unique(train)
    number = clients if options.clients is None else options.clients
    require(
        1 <= number <= len(owners),
        f"clients={number} with split=natural: there are {len(owners)} {owner}s",
    )
    require(
        len(np.setdiff1d(test, owners)) == 0,
        f"split=natural: test records come from {owner}s that have no training record",
    )
    require(
        options.public_records <= len(train) // 2,
        f"public_records={options.public_records} is more than half of the {len(train)} training "
        f"records: too few are left to train on",
    )
    client = _client_of_owner(len(owners), number, options.seed)
    train_client, test_client = (client[np.searchsorted(owners, part)] for part in (train, test))
    order = stream(options.seed, "public records").permutation(len(train))
    pool, rest = order[: options.public_records], np.sort(order[options.public_records :])
    return Dealt(
        pool,
        [rest[train_client[rest] == i] for i in range(number)],
        [np.flatnonzero(test_client == i) for i in range(number)],
        f"which {owner} a record comes from, and which client has which",
    )


def _persons_dealt(
    arrays: Arrays, options: TaskOptions, clients: int, persons: Indices, person: str
) -> Dealt:
    """Whole persons belong to clients, and whole persons are declared public."""
    require(
        options.split in (None, "random"),
        f"split={options.split!r} with unit=person: deal persons at random, or by split=natural",
    )
    names, counts = np.unique(persons, return_counts=True)
    order = stream(options.seed, "public persons").permutation(len(names))
    public = int(np.searchsorted(counts[order].cumsum(), options.public_records, side="left")) + 1
    public = public if options.public_records else 0
    private, number = np.sort(order[public:]), options.clients or clients
    require(
        1 <= number <= len(private),
        f"clients={number} with unit=person: there are {len(private)} {person}s",
    )
    client = np.full(len(names), -1)
    client[private] = _client_of_owner(len(private), number, options.seed)
    of_record = client[np.searchsorted(names, persons)]
    tests = split_records(_no_labels(arrays["test_targets"]), number, "random", options.seed)
    return Dealt(
        np.flatnonzero(of_record < 0),
        [np.flatnonzero(of_record == i) for i in range(number)],
        tests,
        f"an equal random split of {person}s",
    )


def _client_of_owner(owners: int, clients: int, seed: int) -> Indices:
    """If every client has one owner, client i has owner i."""
    order = np.arange(owners) if clients == owners else stream(seed, "owners").permutation(owners)
    client = np.empty(owners, dtype=np.int64)
    for i, part in enumerate(np.array_split(order, clients)):
        client[part] = i
    return client


def _records_dealt(arrays: Arrays, options: TaskOptions, clients: int, name: str) -> Dealt:
    targets = arrays["train_targets"]
    skewed = (options.split or "").startswith("dirichlet")
    require(
        targets.ndim == 1 or not skewed,
        f"split={options.split!r}: a target of task={name} is not a class, so labels cannot be "
        f"skewed",
    )
    labels = targets if skewed else _no_labels(targets)
    pool, parts = pool_and_parts(labels, options, clients)
    tests = split_records(_no_labels(arrays["test_targets"]), len(parts), "random", options.seed)
    dealt_by = "a split skewed by the labels" if skewed else "an equal random split"
    return Dealt(pool, parts, tests, dealt_by)


def _no_labels(targets: NDArray[Any]) -> Indices:
    """Stand for targets where a split does not look at them, so that they stay on disk."""
    return np.zeros(len(targets), dtype=np.int64)


def _rows(arrays: Arrays, part: str, index: Indices) -> tuple[Rows, Rows]:
    chosen = torch.from_numpy(np.sort(index))
    inputs, targets = arrays[f"{part}_inputs"], arrays[f"{part}_targets"]
    return Rows(torch.from_numpy(inputs), chosen), Rows(torch.from_numpy(targets), chosen)


def _sample(array: NDArray[Any]) -> NDArray[Any]:
    return array[:: 1 + len(array) // SAMPLE]


def majority_error(labels: NDArray[np.int64]) -> float:
    """The error of always answering the most frequent class."""
    return 1 - float(np.bincount(labels).max() / len(labels))
