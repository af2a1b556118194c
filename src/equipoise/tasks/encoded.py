"""A task of images or texts as a linear one: every record goes once through a public, frozen
encoder (`encoder.py`), and what is learnt is a multinomial or logistic head on its features.

So all that holds of linear tasks holds of it: constants that follow from the public bound on the
features, closed forms, stability, worlds of a planner, persons, stacks.
"""

import os
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.errors import InvalidValue, require
from equipoise.tasks.answers import meaning_of, shares
from equipoise.tasks.encoder import FEATURE_NORM, Encoder, encoder_of
from equipoise.tasks.linear import LOGISTIC, MULTINOMIAL, joined, linear_task, one_hot
from equipoise.tasks.made_up import kind_of
from equipoise.tasks.model_records import Records
from equipoise.tasks.network import ModelClients, ModelMeasure
from equipoise.tasks.own_data import read_public
from equipoise.tasks.task import Table, Task, TaskOptions, fingerprint

L2 = 1e-3
ITERATIONS = 100


class Constant(nn.Module):
    """The same scores for every record: stands for the head where a task file names an encoder and
    the number of classes, and no model."""

    def __init__(self, classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(classes, dtype=dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scores.expand(len(inputs), -1)


def encoded_task(task: Task, features: nn.Module, feature_norm: float = FEATURE_NORM) -> Task:
    """The task of a network whose targets are classes, with a linear head on the features that a
    public, frozen module gives its records, in place of the network.

    task           of a network: its clients, public records, batch and iterations are kept
    features       makes one vector of each record; it is frozen, and must let no records mix
    feature_norm   the length that features are clipped to, public

    >>> x, model = torch.randn(400, 3), torch.nn.Linear(3, 2)
    >>> clients = [(part, (part[:, 0] > 0).long()) for part in x.split(20)]
    >>> loss = torch.nn.functional.cross_entropy
    >>> task = equipoise.own_task(model, clients, loss, equipoise.accuracy)
    >>> equipoise.encoded_task(task, torch.nn.Linear(3, 5), feature_norm=2.0)
    Task('own': 20 clients, d = 6)
    """
    encoder = encoder_of(features, feature_norm, type(features).__name__)
    return with_encoder(task, encoder, TaskOptions(batch=task.batch or "full"), task.iterations)


def with_encoder(
    task: Task, encoder: Encoder, options: TaskOptions, iterations: int = ITERATIONS
) -> Task:
    """The same clients, public records and test records, as features with a linear head."""
    clients = task.clients
    if not isinstance(clients, ModelClients):
        raise InvalidValue(
            f"features={encoder.name} with task={task.name}, whose model is linear already: leave "
            "it out"
        )
    classes = _classes(task, clients, encoder)
    widths = {encoder.checked(kind_of(*records)) for records in clients.data}
    require(
        len(widths) == 1,
        f"features={encoder.name} gives clients vectors of {sorted(widths)} numbers, as their "
        "records differ in shape: make them alike",
    )
    table = partial(_table, encoder, classes, widths.pop())
    measure, pool = task.measure, task.pool
    marks = clients.unreadable or tuple(torch.zeros(n, dtype=torch.bool) for n in clients.sizes)
    made = linear_task(
        task.name,
        (
            [table(records, mark) for records, mark in zip(clients.data, marks, strict=True)],
            table(*_only(pool)) if isinstance(pool, ModelClients) else None,
        ),
        joined([table(records) for records in measure.parts])
        if isinstance(measure, ModelMeasure)
        else None,
        LOGISTIC if classes == 2 else MULTINOMIAL,
        L2,
        encoder.norm,
        options,
        (*task.public, f"the encoder {encoder.name}, and that its features are cut to a length"),
        outside=task.outside,
        part=task.part,
        sizes_public=task.sizes_public,
        number=task.number,
        iterations=iterations,
        reading={"encoder": encoder.fingerprint},
        encoder=encoder,
    )
    linear: Any = made.clients
    linear = linear if clients.single is None else linear.alone(0)
    batches = clients.minibatches if made.batch == task.batch else linear.minibatches
    linear = replace(linear, owners=clients.owners, minibatches=batches)
    names = (np.frombuffer(bytes.fromhex(n), np.uint8) for n in _names(task, encoder))
    return replace(made, clients=linear, fingerprint=fingerprint(names))


def own_table(task: Task, data: Any) -> Table:
    """Somebody's own records, a pair (inputs, targets), as the head of this task sees them."""
    if task.encoder is None or isinstance(data, str | os.PathLike):
        raise InvalidValue(
            f"data with task={task.name}, which reads no tables: give client, the number of one of "
            "its clients, or in Python data=(inputs, targets) for a head on an encoder"
        )
    outputs, features = task.shapes["weight"]
    records = read_public(data, "data", task.encoder.dtype)
    return _table(task.encoder, max(outputs, 2), features - 1, records)


def _names(task: Task, encoder: Encoder) -> tuple[str, str]:
    return task.fingerprint, encoder.fingerprint


def _classes(task: Task, clients: ModelClients, encoder: Encoder) -> int:
    """How many, by the outputs of the task's network; refused if targets are something else."""
    kind = kind_of(*clients.data[0])
    with torch.no_grad():
        outputs = clients.model(clients.model.initial(), kind.examples()[0])
    require(
        meaning_of(clients.loss) is shares
        and outputs.dim() == 2
        and kind.target_shape == ()
        and not kind.target_dtype.is_floating_point,
        f"features={encoder.name} with task={task.name}: a linear head answers with one class for "
        "each record, which is not what this task's targets are; leave it out",
    )
    return int(outputs.shape[1])


def _only(pool: ModelClients) -> tuple[Records, Tensor]:
    return pool.data[0], pool.unreadable[0]


def _table(
    encoder: Encoder, classes: int, width: int, records: Records, unreadable: Tensor | None = None
) -> Table:
    """A label that is no class makes a record count for nothing."""
    inputs, labels = records[0], np.asarray(records[1][:], dtype=np.int64)
    odd = torch.from_numpy((labels < 0) | (labels >= classes))
    useless = odd if unreadable is None else odd | unreadable
    features = encoder.table(inputs, useless, width)
    return Table(features, one_hot(np.where(useless.numpy(), 0, labels), classes))
