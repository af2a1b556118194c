"""What a silo can do at home, for nothing: train on its own records alone, or tune the federated
model on them. Such a model stays at home, so it needs no noise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import InvalidValue, require
from equipoise.planning.question import Question
from equipoise.tasks import TaskOptions, task_spec
from equipoise.tasks.linear import LinearClients, Link, linear_clients, linear_measure
from equipoise.tasks.public import ROUGH, rough_minimiser
from equipoise.tasks.task import Measured, Table

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


def tuned(
    records: Table, link: Link, centre: Tensor, pull: float, tolerance: float = ROUGH
) -> Tensor:
    """The minimiser of a silo's own mean loss + (pull / 2) |x - centre|^2, up to a gradient of
    length `tolerance`; an infinite pull leaves the centre. Alone, the centre is zero, and the pull
    is l2."""
    if pull == math.inf:
        return centre
    client = linear_clients([records], link, pull, None, 0)
    return rough_minimiser(Towards(client, centre.double()), centre.double(), tolerance)


@dataclass(frozen=True)
class AtHome:
    """What a silo finds by cross-validation on its own records: a pull, and the error on records
    that were left out, with its standard error over the folds, and the mean loss."""

    pull: float
    error: float
    standard_error: float
    loss: float


Indices = NDArray[np.int64]
Fit = Callable[[float, Indices], Tensor]
"""The model that a pull gives on the records of these indices."""


def every_pull(
    pulls: Sequence[float],
    number: int,
    fit: Fit,
    measure: Callable[[Tensor, Indices], Measured],
    seed: int = 0,
) -> list[AtHome]:
    """Of every pull, how the model does on a fifth of the records that was left out, five times."""
    order = np.random.default_rng(seed).permutation(number)
    folds = np.arange(number) % min(FOLDS, number)
    tried = []
    for pull in pulls:
        errors, losses = [], []
        for k in range(folds.max() + 1):
            measured = measure(fit(pull, order[folds != k]), order[folds == k])
            errors.append(float(measured.error))
            losses.append(float(measured.loss))
        spread = float(np.std(errors) / np.sqrt(max(1, len(errors) - 1)))
        tried.append(AtHome(pull, float(np.mean(errors)), spread, float(np.mean(losses))))
    return tried


def pulled(
    records: Table, link: Link, centre: Tensor, pulls: Sequence[float] = PULLS, seed: int = 0
) -> list[AtHome]:
    """Of every pull from the centre, what linear models do on records that were left out."""
    return every_pull(
        pulls,
        len(records.features),
        lambda pull, used: tuned(records.rows(used), link, centre, pull),
        lambda x, left_out: linear_measure(records.rows(left_out), link)(x),
        seed,
    )


def best_of(tried: Sequence[AtHome]) -> AtHome:
    """That with the smallest loss, the first of several: errors of few records are coarse."""
    return min(tried, key=lambda at_home: (math.isnan(at_home.loss), at_home.loss))


def cross_validated(records: Table, link: Link, centre: Tensor, seed: int = 0) -> AtHome:
    """The best pull."""
    return best_of(pulled(records, link, centre, seed=seed))


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
