"""Clients of a network: gradients of a batch, and of single examples."""

import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.errors import EquipoiseError, InvalidValue, UnsafeModel, UserCode
from equipoise.privacy.per_example.clipped_sum import ISOLATED, Layout
from equipoise.seeds import digest
from equipoise.tasks.answers import meaning_of
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.made_up import Kind, kind_of
from equipoise.tasks.model_records import Records, moved, passes, records_on
from equipoise.tasks.persons import ModelPersons
from equipoise.tasks.splits import Minibatches
from equipoise.tasks.task import Measured, Predictions, Task

log = logging.getLogger("equipoise.client")


MIXED = (
    "the other examples of its batch, so one record's gradient cannot be clipped by itself; change "
    "the model, use isolate, which runs record by record, or unit=client"
)

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""Changes inputs at random, every example by itself, before they are trained on."""


@dataclass(frozen=True)
class PerExample:
    """A metric that is a weighted mean over examples: `score(outputs, targets)` gives their values
    and their weights."""

    score: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.score.__doc__)  # what `help` and the docs say

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        values, weights = self.score(outputs, targets)
        return float(values.double().sum() / weights.double().sum())


@dataclass(frozen=True, repr=False)
class ModelClients:
    """Clients that hold the records `data[i]` of a network. Each is a gradient by itself: stacking
    networks gains nothing."""

    model: FlatModel
    loss: Callable[[Tensor, Tensor], Tensor]
    metric: Callable[[Tensor, Tensor], Any]
    data: tuple[Records, ...]
    seed: int = 0
    minibatches: Minibatches | None = None
    single: int | None = None  # which client this is, if it is alone
    augment: Augment | None = None
    unreadable: tuple[Tensor, ...] = ()
    """For each client which of its records could not be read: they count for nothing."""
    useless: tuple[Tensor, ...] = ()
    """These, and those on which the model or the loss was found to fail from the start."""
    isolate: bool = False  # whether every record runs in a pass of its own
    owners: tuple[NDArray[np.int64], ...] | None = None  # the person of each record, if known
    at_home: Self | None = None  # these clients on the host, if they are elsewhere

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(inputs) for inputs, _ in self.data)

    def to(self, device: torch.device) -> Self:
        """These clients on a device. Records that lie on disk, or are augmented, which takes random
        numbers of the host, stay on the host until they are used. Which of them are used is
        decided there, and so is, on made-up examples, how their gradients are clipped."""
        model, loss = moved(self.model, self.loss, device)
        data = self.data if self.augment else records_on(device, self.data)
        placed = replace(self, model=model, loss=loss, data=data, at_home=self)
        for kind in self._kinds[:1]:
            why = "" if self._fails_on(kind) else placed._fails_on(kind)
            if why:
                raise InvalidValue(
                    f"device={device}: model and loss compute on the host, and fail there with "
                    f"{why}; hold every tensor that they use in a parameter (one that needs no "
                    "gradient, if it is constant), or make it where the inputs are"
                )
        return placed

    def _fails_on(self, kind: Kind) -> str:
        """How the gradient of made-up examples fails where the model is; empty if it does not."""
        inputs, targets = (part.to(self.model.device) for part in kind.examples())
        with UserCode() as tried, warnings.catch_warnings(record=True):
            self.model.gradient(self.model.initial(), self.loss, inputs, targets, 0)
        return tried.kind_and_place

    @property
    def module(self) -> nn.Module:
        """The task's own module, as it was given."""
        return (self.at_home or self).model.module

    def gradient(self, x: Tensor, t: int) -> Tensor:
        if x.dim() > (2 if self.single is None else 1):  # stacked runs
            return torch.stack([self.gradient(run, t) for run in x])
        if self.single is not None:
            return self._gradient(0, x, t)
        return torch.stack([self._gradient(i, x_i, t) for i, x_i in enumerate(x)])

    def _gradient(self, i: int, x: Tensor, t: int) -> Tensor:
        return self.gradient_of(i, self._chosen(i, t), x, f"local step {t}", self.seed, t)

    def _chosen(self, i: int, t: int) -> Tensor | slice:
        return torch.from_numpy(self.minibatches.of(i, t)) if self.minibatches else slice(None)

    @property
    def steps(self) -> "ModelSteps":
        return ModelSteps(self)

    def of_persons(self, most: int) -> ModelPersons:
        return ModelPersons(self, most)

    def gradient_of(
        self, i: int, chosen: Tensor | slice, x: Tensor, what: str, draw: int, number: int
    ) -> Tensor:
        """The gradient of the mean loss of these records of a client. One whose records make the
        model or the loss fail gets NaN: it will release zero and noise, and nobody hears."""
        inputs, targets = self._readable(i, chosen)
        if len(inputs) == 0:
            return torch.zeros_like(x)
        client = i if self.single is None else self.single
        with UserCode() as tried, warnings.catch_warnings(record=True):
            batch = self._augmented(inputs, draw, client, number).to(x.device), targets.to(x.device)
            return self.model.gradient(x, self.loss, *batch, draw, client, number)
        return failed(client, what, tried, x)

    def batch(self, i: int, t: int) -> tuple[Tensor, Tensor]:
        """A client's readable records in local step t, as the model gets them."""
        inputs, targets = self._readable(i, self._chosen(i, t))
        if len(inputs) == 0:
            return inputs, targets
        client = i if self.single is None else self.single
        inputs, device = self._augmented(inputs, self.seed, client, t), self.model.device
        return inputs.to(device), targets.to(device)

    def _readable(self, i: int, chosen: Tensor | slice) -> tuple[Tensor, Tensor]:
        """The chosen records of a client, less those that could not be read."""
        inputs, targets = self.data[i]
        unreadable = self.unreadable[i]
        if unreadable.any():
            index = torch.arange(len(inputs))[chosen]
            chosen = index[~unreadable[index]]
        return inputs[chosen], targets[chosen]

    def clipped_sum(self, x: Tensor, chosen: Tensor | None, C: float | Tensor, draw: int) -> Tensor:
        if x.dim() > (2 if self.single is None else 1):  # stacked runs
            masks = [None] * len(x) if chosen is None else chosen
            return torch.stack(
                [self.clipped_sum(run, mask, C, draw) for run, mask in zip(x, masks, strict=True)]
            )
        if self.single is not None:
            return self._clipped_sum(0, x, chosen, float(C), draw)
        masks = [None] * len(x) if chosen is None else chosen
        return torch.stack(
            [self._clipped_sum(i, x[i], masks[i], float(C), draw) for i in range(len(x))]
        )

    def _clipped_sum(self, i: int, x: Tensor, chosen: Tensor | None, C: float, draw: int) -> Tensor:
        """A record on which the model or the loss fails counts as zero, and the others are as if it
        were not there. It is found by halving; if it fails at the initial model too, it is left out
        from then on, so that it costs no more than any other."""
        useless = self.useless[i]
        counted = ~useless if chosen is None else chosen[: len(useless)] & ~useless
        index = counted.nonzero().squeeze(-1)
        inputs, targets = (part[index] for part in self.data[i])
        client, layout = i if self.single is None else self.single, self.layout

        def tried(x: Tensor, part: slice, *number: int) -> Tensor | None:
            """The sum over some of the records, None where it fails; `number` makes their dropout
            independent of the others'."""
            with UserCode() as run, warnings.catch_warnings(record=True):
                some = self._augmented(inputs[part], draw, client, *number).to(x.device)
                wanted = targets[part].to(x.device)
                return self.model.clipped_sum(
                    x, self.loss, some, wanted, C, layout, draw, client, *number
                )
            log.warning("client %d: %s", client, run.kind_and_place)
            return None

        def summed(start: int, stop: int, *number: int) -> Tensor:
            total = tried(x, slice(start, stop), *number)
            if total is not None:
                return total
            if stop - start > 1:
                middle = (start + stop) // 2
                return summed(start, middle, start, middle) + summed(middle, stop, middle, stop)
            useless[index[start:stop]] = tried(self.model.initial(), slice(start, stop)) is None
            return torch.zeros_like(x, dtype=torch.float64)

        if not self.one_by_one:
            return summed(0, len(index))
        total = torch.zeros_like(x, dtype=torch.float64)
        for j in range(len(index)):
            total += summed(j, j + 1, j)
        return total

    def _augmented(self, inputs: Tensor, *draw: int) -> Tensor:
        """The inputs, changed at random if the task says so; the change depends only on the
        integers `draw`."""
        if self.augment is None:
            return inputs
        return self.augment(
            inputs, torch.Generator().manual_seed(int.from_bytes(digest(7, *draw, "augment")))
        )

    def regulariser(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def check_records(self) -> None:
        _ = self.layout

    def isolated(self) -> Self:
        """The same clients, every record in a pass of its own: whatever the model does to batches,
        no record meets another."""
        at_home = self.at_home and self.at_home.isolated()
        return replace(self, isolate=True, at_home=at_home)

    @cached_property
    def layout(self) -> Layout:
        """How the gradients of single examples are clipped; a model whose examples cannot be told
        apart is refused."""
        if self.at_home:
            return self.at_home.layout
        with UserCode(EquipoiseError) as tried:
            layouts = [
                self._tried(ISOLATED, 1, kind) if self.isolate else self._together(kind)
                for kind in self._kinds
            ]
            slow = Layout({}, ("the clients' examples differ in shape or type",))
            return layouts[0] if layouts.count(layouts[0]) == len(layouts) else slow
        raise InvalidValue(f"no gradient of a single example can be formed: {tried.kind_and_place}")

    def _together(self, kind: Kind) -> Layout:
        """How to clip examples of this kind that run together, if they do not mix."""
        examples, _ = kind.examples()
        if self.model.mixes(examples):
            raise UnsafeModel(f"an example's output depends on {MIXED}")
        with UserCode(EquipoiseError) as apart:
            layout = self._tried(self.model.layout(examples), 4, kind)
        if apart.kind:
            slow = f"model: {apart.kind} when it is taken apart"
            layout = self._tried(Layout({}, (slow,)), 4, kind)
        if self.one_by_one:  # nobody meets anybody
            return layout
        if not layout.slow and self.model.mixes_in_company(kind, layout):
            raise UnsafeModel(f"an example's output depends on {MIXED}")
        if self.model.mixes_gradients(self.loss, kind.examples(), kind.intruders(), layout):
            raise UnsafeModel(f"an example's gradient depends on {MIXED}")
        return layout

    def _tried(self, layout: Layout, number: int, kind: Kind) -> Layout:
        """The layout, after some made-up examples were clipped with it."""
        inputs, targets = (part[:number] for part in kind.examples())
        x = self.model.somewhere()[1]
        self.model.clipped_sum(x, self.loss, inputs, targets, math.inf, layout, 0)
        return layout

    @cached_property
    def one_by_one(self) -> bool:
        """Whether records must run by themselves: asked for, or because the model draws at random
        for a batch as a whole."""
        if self.at_home:
            return self.at_home.one_by_one
        return self.isolate or any(
            self.model.random_beyond_dropout(kind.examples()[0]) for kind in self._kinds
        )

    @property
    def _kinds(self) -> list[Kind]:
        """Of all clients' examples: one, unless their types differ."""
        kinds = (kind_of(*records) for records in self.data if len(records[0]))
        kinds = (kind._replace(parts=self.model.parts) for kind in kinds)
        return list(dict.fromkeys(kinds))

    def slow_layers(self) -> tuple[str, ...]:
        """What makes single examples' gradients slow: they are formed one by one then."""
        return (
            *self.layout.slow,
            *(["random layers other than dropout"] * (self.one_by_one and not self.isolate)),
        )

    def error(self, x: Tensor) -> Tensor:
        """NaN where the model or the loss fails on a record."""
        data = tuple(self._readable(i, slice(None)) for i in range(len(self.data)))
        with UserCode() as tried:
            return measure(self.model, self.loss, self.metric, data, x).error
        log.warning("train error: %s", tried.kind_and_place)
        return torch.full(x.shape[:-1], torch.nan, dtype=torch.float64)

    def alone(self, client: int) -> Self:
        batches = self.minibatches and self.minibatches.alone(client)
        here = slice(client, client + 1)
        return replace(
            self,
            data=self.data[here],
            minibatches=batches,
            single=client,
            unreadable=self.unreadable[here],
            useless=self.useless[here],
            owners=self.owners and self.owners[here],
        )


@dataclass(frozen=True, repr=False)
class ModelSteps:
    """The clients' gradient, which makes plain local steps by itself: client by client, and in
    memory of one model, so that a step finds near the processor what the one before it wrote."""

    clients: ModelClients

    def __call__(self, x: Tensor, t: int) -> Tensor:
        return self.clients.gradient(x, t)

    def descend(self, x: Tensor, iterations: range, eta: float, h: Tensor | None) -> Tensor:
        if self.clients.single is not None:
            return self._of_client(0, x, iterations, eta, h)
        rows = [None] * len(x) if h is None else h
        return torch.stack(
            [
                self._of_client(i, x_i, iterations, eta, h_i)
                for i, (x_i, h_i) in enumerate(zip(x, rows, strict=True))
            ]
        )

    def _of_client(
        self, i: int, x: Tensor, iterations: range, eta: float, h: Tensor | None
    ) -> Tensor:
        """One whose records make the model or the loss fail gets NaN, as in `gradient_of`."""
        clients, t = self.clients, iterations.start
        client = i if clients.single is None else clients.single
        with (
            UserCode() as tried,
            warnings.catch_warnings(record=True),
            clients.model.steps(x, clients.loss, eta, h) as step,
        ):
            for t in iterations:
                x = step(*clients.batch(i, t), clients.seed, client, t)
            return x
        return failed(client, f"local step {t}", tried, x)


def failed(client: int, what: str, tried: UserCode, x: Tensor) -> Tensor:
    """What stands for the outcome of code that failed on a client's records: its update will be
    zero, and its own side alone is told."""
    log.warning("client %d, %s: %s", client, what, tried.kind_and_place)
    return torch.full_like(x, torch.nan)


def measure(
    model: FlatModel, loss: Any, metric: Any, parts: tuple[Records, ...], x: Tensor
) -> Measured:
    """Error and mean loss on all records of `parts`; and, of several parts, the mean of their
    errors. Metrics look at outputs on the host."""
    x = x.to(model.device)
    if x.dim() > 1:
        errors, losses, means = zip(
            *(measure(model, loss, metric, parts, run) for run in x), strict=True
        )
        return Measured(
            torch.stack(errors),
            torch.stack(losses),
            None if means[0] is None else torch.stack(means),
        )
    if not isinstance(metric, PerExample):
        inputs, targets = (
            torch.cat([part[:].to(x.device) for part in both]) for both in zip(*parts, strict=True)
        )
        with torch.no_grad():
            outputs = model(x, inputs)
            score = float(metric(outputs.cpu(), targets.cpu()))
            values = 1 - score, float(loss(outputs, targets))
        return Measured(*torch.tensor(values, dtype=torch.float64))
    sums = torch.stack([_sums(model, loss, metric, records, x) for records in parts])
    value, weight, total, number = sums.sum(0)
    mean = (1 - sums[:, 0] / sums[:, 1]).mean() if len(parts) > 1 else None
    return Measured(1 - value / weight, total / number, mean)


def _sums(model: FlatModel, loss: Any, metric: PerExample, records: Records, x: Tensor) -> Tensor:
    """Over the records: the sums of their scores, of their weights and of their losses, and their
    number."""
    sums = torch.zeros(4, dtype=torch.float64)
    for outputs, wanted in passes(model, records, x):
        values, weights = metric.score(outputs.cpu(), wanted.cpu())
        total = float(loss(outputs, wanted)) * len(wanted)
        sums += torch.tensor(
            [float(values.double().sum()), float(weights.double().sum()), total, len(wanted)]
        )
    return sums


class Parts(tuple[Records, ...]):
    """Test records, together or by client; no repr shows them."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Parts({sum(len(inputs) for inputs, _ in self)} records)"


@dataclass(frozen=True, repr=False)
class ModelMeasure:
    """Error and mean loss of a network on records declared public, together or one part for each
    client; and its answers, where the loss says what they are."""

    model: FlatModel
    loss: Any
    metric: Any
    parts: Parts

    def __call__(self, x: Tensor) -> Measured:
        return measure(self.model, self.loss, self.metric, self.parts, x)

    def to(self, device: torch.device) -> Self:
        model, loss = moved(self.model, self.loss, device)
        return replace(self, model=model, loss=loss, parts=Parts(records_on(device, self.parts)))

    def predictions(self, x: Tensor) -> Predictions | None:
        meaning = meaning_of(self.loss)
        if meaning is None:
            return None
        x = x.to(self.model.device)
        pairs = [[*passes(self.model, records, x)] for records in self.parts]
        outputs, targets = (torch.cat(many) for many in zip(*chain(*pairs), strict=True))
        sizes = [sum(len(wanted) for _, wanted in part) for part in pairs]
        clients = [i for i, size in enumerate(sizes) for _ in range(size)]
        answers = meaning(outputs.cpu().double(), targets.cpu())
        return answers and answers._replace(clients=clients if len(sizes) > 1 else ())


def model_task(
    name: str,
    model: FlatModel,
    loss: Callable[[Tensor, Tensor], Tensor],
    metric: Callable[[Tensor, Tensor], Any],
    data: tuple[Records, ...],
    tests: tuple[Records, ...] = (),
    pool: Records | None = None,
    *,
    batch: int | None,
    seed: int,
    augment: Augment | None = None,
    unreadable: tuple[Tensor, ...] | None = None,
    owners: tuple[NDArray[np.int64], ...] | None = None,
    **facts: Any,
) -> Task:
    """The task of a network whose clients hold `data`; `tests` are public, together or one for each
    client. `unreadable` marks those records of `data` that count for nothing."""

    def together(data: tuple[Records, ...], marks: tuple[Tensor, ...] | None) -> ModelClients:
        marks = marks or tuple(torch.zeros(len(inputs), dtype=torch.bool) for inputs, _ in data)
        batches = (
            Minibatches(seed, batch, tuple(len(inputs) for inputs, _ in data)) if batch else None
        )
        return ModelClients(
            model,
            loss,
            metric,
            data,
            seed,
            batches,
            augment=augment,
            unreadable=marks,
            useless=tuple(mark.clone() for mark in marks),
        )

    return Task(
        name=name,
        x0=model.initial(),
        shapes=model.shapes,
        clients=replace(together(data, unreadable), owners=owners),
        measure=ModelMeasure(model, loss, metric, Parts(tests)) if tests else None,
        pool=None if pool is None else together((pool,), None),
        batch=batch,
        test_records=sum(len(inputs) for inputs, _ in tests),
        **facts,
    )
