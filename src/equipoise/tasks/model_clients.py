"""Clients of a network: gradients of a batch, and of single examples."""

import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from equipoise.errors import UnsafeModel
from equipoise.privacy.per_example import Layout
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.records import Minibatches
from equipoise.tasks.task import Measured

log = logging.getLogger("equipoise.client")

Records = tuple[Tensor, Tensor]
"""Inputs and targets of all records of a data set, stacked."""


@dataclass(frozen=True)
class ModelClients:
    """Clients that hold the records `data[i]` of a network. Each is a gradient by itself: stacking networks gains nothing."""

    model: FlatModel
    loss: Callable[[Tensor, Tensor], Tensor]
    metric: Callable[[Tensor, Tensor], Any]
    data: tuple[Records, ...]
    seed: int = 0
    minibatches: Minibatches | None = None
    single: int | None = None  # which client this is, if it is alone

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(inputs) for inputs, _ in self.data)

    def gradient(self, x: Tensor, t: int) -> Tensor:
        if x.dim() > (2 if self.single is None else 1):  # stacked runs
            return torch.stack([self.gradient(run, t) for run in x])
        if self.single is not None:
            return self._gradient(0, x, t)
        return torch.stack([self._gradient(i, x_i, t) for i, x_i in enumerate(x)])

    def _gradient(self, i: int, x: Tensor, t: int) -> Tensor:
        """A client whose records make the model or the loss fail gets NaN: it will release zero and noise, and nobody hears."""
        inputs, targets = self.data[i]
        if len(inputs) == 0:
            return torch.zeros_like(x)
        if self.minibatches:
            chosen = torch.from_numpy(self.minibatches.of(i, t))
            inputs, targets = inputs[chosen], targets[chosen]
        x = x.detach().requires_grad_()
        client = i if self.single is None else self.single
        try:
            with warnings.catch_warnings(record=True):
                loss = self.loss(self.model.training(x, inputs, self.seed, client, t), targets)
                (gradient,) = torch.autograd.grad(loss, x)
        except Exception as error:  # whatever a user's code raises
            log.warning("client %d, local step %d: %s: %s", client, t, type(error).__name__, error)
            return torch.full_like(x, torch.nan)
        return gradient

    def clipped_sum(self, x: Tensor, chosen: Tensor | None, clip_norm: float | Tensor, draw: int) -> Tensor:
        if x.dim() > (2 if self.single is None else 1):  # stacked runs
            masks = [None] * len(x) if chosen is None else chosen
            return torch.stack([self.clipped_sum(run, mask, clip_norm, draw) for run, mask in zip(x, masks, strict=True)])
        if self.single is not None:
            return self._clipped_sum(0, x, chosen, float(clip_norm), draw)
        masks = [None] * len(x) if chosen is None else chosen
        return torch.stack([self._clipped_sum(i, x[i], masks[i], float(clip_norm), draw) for i in range(len(x))])

    def _clipped_sum(self, i: int, x: Tensor, chosen: Tensor | None, clip_norm: float, draw: int) -> Tensor:
        """A record on which the model or the loss fails counts as zero, and the others are as if it were not there."""
        inputs, targets = self.data[i]
        if chosen is not None:
            index = chosen[: len(inputs)].nonzero().squeeze(-1)
            inputs, targets = inputs[index], targets[index]
        client, layout = i if self.single is None else self.single, self.layout

        def of(part: slice) -> Tensor:
            with warnings.catch_warnings(record=True):
                return self.model.clipped_sum(x, self.loss, inputs[part], targets[part], clip_norm, layout, draw, client)

        try:
            return of(slice(None))
        except Exception as error:  # whatever a user's code raises
            log.warning("client %d: %s: %s; its records are tried one by one", client, type(error).__name__, error)
        total = torch.zeros_like(x)
        for j in range(len(inputs)):
            with suppress(Exception):
                total += of(slice(j, j + 1))
        return total

    def regulariser(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    @cached_property
    def layout(self) -> Layout:
        """How the gradients of single examples are clipped; a model whose examples cannot be told apart is refused."""
        inputs, _ = next(records for records in self.data if len(records[0]))
        examples = made_up(inputs.shape[1:], inputs.dtype)
        if self.model.mixes(examples):
            raise UnsafeModel(
                "an example's output depends on the other examples of its batch, so one record's gradient cannot be clipped by "
                "itself; change the model, or use unit=client"
            )
        return self.model.layout(examples)

    @property
    def slow_layers(self) -> tuple[str, ...]:
        """What makes single examples' gradients slow: they are formed one by one then."""
        return self.layout.slow

    def error(self, x: Tensor) -> Tensor:
        inputs, targets = (torch.cat(parts) for parts in zip(*self.data, strict=True))
        return measure(self.model, self.loss, self.metric, (inputs, targets), x).error

    def alone(self, client: int) -> Self:
        batches = self.minibatches and self.minibatches.alone(client)
        data = self.data[client : client + 1]
        return type(self)(self.model, self.loss, self.metric, data, self.seed, batches, single=client)


def measure(model: FlatModel, loss: Any, metric: Any, records: Records, x: Tensor) -> Measured:
    if x.dim() > 1:
        errors, losses = zip(*(measure(model, loss, metric, records, run) for run in x), strict=True)
        return Measured(torch.stack(errors), torch.stack(losses))
    inputs, targets = records
    with torch.no_grad():
        outputs = model(x, inputs)
        values = 1 - float(metric(outputs, targets)), float(loss(outputs, targets))
    return Measured(*torch.tensor(values, dtype=torch.float64))


def made_up(shape: torch.Size, kind: torch.dtype) -> Tensor:
    """Four examples that are nobody's, to try a model on: different from each other, and small where they are integers."""
    generator = torch.Generator().manual_seed(0)
    if kind.is_floating_point:
        return torch.randn((4, *shape), generator=generator).abs().to(kind)
    return torch.randint(0, 3, (4, *shape), generator=generator).to(kind)
