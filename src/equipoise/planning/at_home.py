"""What a silo can do at home, for nothing: train on its own records alone, or tune the federated
model on them. Such a model stays at home, so it needs no noise."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import InvalidValue, require
from equipoise.planning.question import Question
from equipoise.tasks import TaskOptions, task_spec
from equipoise.tasks.linear import LinearClients, Link, linear_clients, linear_measure
from equipoise.tasks.public import rough_minimiser
from equipoise.tasks.task import Table

PULLS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
FOLDS = 5


@dataclass(frozen=True)
class Towards:
    """A client whose regulariser pulls towards a model instead of zero."""

    client: LinearClients
    centre: Tensor

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.client.sizes

    def gradient(self, x: Tensor, t: int) -> Tensor:
        return self.client.gradient(x, t) - self.client.l2 * self.centre

    def loss(self, x: Tensor) -> Tensor:
        return self.client.loss(x) - self.client.l2 * (x * self.centre).sum(-1)

    def hessians(self, x: Tensor) -> Tensor:
        return self.client.hessians(x)

    def single(self) -> "Towards":
        return Towards(self.client.single(), self.centre.float())


def tuned(records: Table, link: Link, centre: Tensor, pull: float) -> Tensor:
    """The minimiser of a silo's own mean loss + (pull / 2) |x - centre|^2. Alone, the centre is
    zero, and the pull is l2."""
    client = linear_clients([records], link, pull, None, 0)
    return rough_minimiser(Towards(client, centre.double()), centre.double())


@dataclass(frozen=True)
class AtHome:
    """What a silo finds by cross-validation on its own records: the pull that is best, and its
    error on records that were left out, with its standard error over the folds."""

    pull: float
    error: float
    standard_error: float


def cross_validated(records: Table, link: Link, centre: Tensor, seed: int = 0) -> AtHome:
    """Of every pull, the error on a fifth of the records that was left out, five times."""
    order = np.random.default_rng(seed).permutation(len(records.features))
    folds = np.arange(len(order)) % min(FOLDS, len(order))
    by_loss = []
    for pull in PULLS:
        errors, losses = [], []
        for k in range(folds.max() + 1):
            used, left_out = (records.rows(order[at]) for at in (folds != k, folds == k))
            measured = linear_measure(left_out, link)(tuned(used, link, centre, pull))
            errors.append(float(measured.error))
            losses.append(float(measured.loss))
        spread = float(np.std(errors) / np.sqrt(max(1, len(errors) - 1)))
        by_loss.append((float(np.mean(losses)), AtHome(pull, float(np.mean(errors)), spread)))
    return min(by_loss, key=lambda pair: pair[0])[1]


FEWEST_RECORDS = 10


def alone(question: Question, path: str) -> AtHome:
    """What a silo would reach by itself with the records of its own file: nothing leaves."""
    spec = task_spec(question.task) if question.task else None
    if spec is None or spec.own_records is None:
        raise InvalidValue(
            f"alone={path} with task={question.task}: only task csv has a file for each client; "
            "leave it out"
        )
    records, link = spec.own_records(TaskOptions.of(question), path)
    require(
        len(records.features) >= FEWEST_RECORDS,
        f"alone={path} has fewer than {FEWEST_RECORDS} records with a declared label: too few to "
        "leave some out",
    )
    zero = torch.zeros(records.features.shape[1] * records.targets.shape[1], dtype=torch.float64)
    return cross_validated(records, link, zero)


def pull_for(records: int, distance: Tensor) -> float:
    """The pull of a normal prior around the centre, where optima lie so far away (root mean square
    over all coordinates of `distance` [..., d]): 1 / (records x variance). It stands for what a
    silo finds by cross-validation."""
    variance = float(distance.square().mean())
    return 1 / (records * max(variance, 1e-9))
