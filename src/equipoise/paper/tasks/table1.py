"""Tasks of networks: from records that clients hold to a Task; and the paper's five, from a data
set that lies on disk."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.errors import require
from equipoise.paper.data.prepared import Arrays
from equipoise.seeds import stream
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.network import Augment, Rows, model_task
from equipoise.tasks.splits import Indices, pool_and_parts, split_records
from equipoise.tasks.task import Options, Task, fingerprint

SAMPLE = 1000  # records that a data set is known again by


class Row(NamedTuple):
    """A row of the paper's Table 1, and the learning rate that its text gives."""

    clients: int
    batch: int
    iterations: int
    clips: tuple[float, ...]
    learning_rate: float


def federated_task(
    name: str,
    network: Callable[[], nn.Module],
    arrays: Arrays,
    row: Row,
    loss: Callable[[Tensor, Tensor], Tensor],
    metric: Callable[[Tensor, Tensor], Any],
    options: Options,
    *,
    owner: str,
    natural: bool,
    constant_error: float,
    error_name: str,
    augment: Augment | None = None,
) -> Task:
    """A task of Table 1. `arrays` has inputs, targets and owners of train and test records.

    owner     who a record comes from, in a word: split natural deals whole owners to clients;
    `natural` if that is the default
    """
    train, test = (
        (torch.from_numpy(arrays[f"{part}_inputs"]), torch.from_numpy(arrays[f"{part}_targets"]))
        for part in ("train", "test")
    )
    labels = arrays["train_targets"]
    by_owner = options.split == "natural" or (options.split is None and natural)
    if by_owner:
        whose = _clients_of_owners(
            arrays["train_owners"], arrays["test_owners"], options, row.clients, owner
        )
        chosen = stream(options.seed, "public records").permutation(len(labels))[
            : options.public_records
        ]
        kept = np.setdiff1d(np.arange(len(labels)), chosen)
        parts = [kept[whose[0][kept] == i] for i in range(whose[0].max() + 1)]
        tests = [np.flatnonzero(whose[1] == i) for i in range(len(parts))]
    else:
        require(
            labels.ndim == 1 or not (options.split or "").startswith("dirichlet"),
            f"split={options.split!r}: a target of task={name} is not a class, so labels cannot "
            f"be skewed",
        )
        chosen, parts = pool_and_parts(labels, options, row.clients)
        tests = split_records(arrays["test_targets"], len(parts), "random", options.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        model = FlatModel(network())
    dealt = (
        f"which {owner} a record comes from, and which client has which"
        if by_owner
        else "an equal random split"
    )
    return model_task(
        name,
        model,
        loss,
        metric,
        tuple(_rows(*train, part) for part in parts),
        tuple(_rows(*test, part) for part in tests if len(part)),
        _rows(*train, chosen) if len(chosen) else None,
        batch=row.batch if options.batch is None else options.minibatch,
        seed=options.seed,
        augment=augment,
        fingerprint=fingerprint(
            arrays[name][:: 1 + len(arrays[name]) // SAMPLE] for name in sorted(arrays)
        ),
        error_name=error_name,
        constant_error=constant_error,
        learning_rate=row.learning_rate,
        iterations=row.iterations,
        public=(
            "the initial weights of the model, and how inputs were prepared",
            "the test records",
            dealt,
        ),
        sizes_public=True,
    )


def _rows(inputs: Tensor, targets: Tensor, index: Indices) -> tuple[Rows, Rows]:
    chosen = torch.from_numpy(np.sort(index))
    return Rows(inputs, chosen), Rows(targets, chosen)


def _clients_of_owners(
    train: NDArray[Any], test: NDArray[Any], options: Options, clients: int, owner: str
) -> tuple[Indices, Indices]:
    """The client of every train and test record, where whole owners belong to clients: as many
    owners to each, by seed."""
    owners = np.unique(train)
    number = clients if options.clients is None else options.clients
    require(
        1 <= number <= len(owners),
        f"clients={number} with split=natural: there are {len(owners)} {owner}s to deal",
    )
    strangers = np.setdiff1d(test, owners)
    require(
        not len(strangers),
        f"split=natural: test records come from {owner}s that have no training record",
    )
    require(
        options.public_records <= len(train) // 2,
        "public_records is more than half of all records: too few are left",
    )
    order = (
        np.arange(len(owners))
        if number == len(owners)
        else stream(options.seed, "owners").permutation(len(owners))
    )
    client = np.empty(len(owners), dtype=np.int64)
    for i, part in enumerate(np.array_split(order, number)):
        client[part] = i
    return client[np.searchsorted(owners, train)], client[np.searchsorted(owners, test)]


def majority_error(labels: NDArray[np.int64]) -> float:
    """The error of always answering the most frequent class."""
    return 1 - float(np.bincount(labels).max() / len(labels))
