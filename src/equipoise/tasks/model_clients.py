"""Clients of a network: gradients of a batch, and of single examples."""

import logging
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError, InvalidValue, UnsafeModel
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

        def of(part: slice, *number: int) -> Tensor:
            with warnings.catch_warnings(record=True):
                return self.model.clipped_sum(
                    x, self.loss, inputs[part], targets[part], clip_norm, layout, draw, client, *number
                )

        if not self.one_by_one:
            try:
                return of(slice(None))
            except Exception as error:  # whatever a user's code raises
                log.warning("client %d: %s: %s; its records are tried one by one", client, type(error).__name__, error)
        total = torch.zeros_like(x, dtype=torch.float64)
        for j in range(len(inputs)):
            with suppress(Exception):
                total += of(slice(j, j + 1), j)  # its own dropout, as independent of the others' as in a batch
        return total

    def regulariser(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    @cached_property
    def layout(self) -> Layout:
        """How the gradients of single examples are clipped; a model whose examples cannot be told apart is refused."""
        examples, targets = self._examples
        if self.model.mixes(examples):
            raise UnsafeModel(
                "an example's output depends on the other examples of its batch, so one record's gradient cannot be clipped by "
                "itself; change the model, or use unit=client"
            )
        try:
            layout = self.model.layout(examples)
            self.model.clipped_sum(self.model.somewhere()[1], self.loss, examples, targets, math.inf, layout, 0)
            return layout
        except EquipoiseError:
            raise
        except Exception as error:  # whatever a user's code raises where it is taken apart
            slow = Layout({}, (f"model: {type(error).__name__} when it is taken apart",))
        try:
            self.model.clipped_sum(self.model.somewhere()[1], self.loss, examples, targets, math.inf, slow, 0)
        except Exception as error:
            raise InvalidValue(f"no gradient of a single example can be formed: {str(error).splitlines()[0][:200]}") from None
        return slow

    @cached_property
    def one_by_one(self) -> bool:
        """Whether the model draws at random for a batch as a whole, so that records must run by themselves."""
        return self.model.random_beyond_dropout(self._examples[0])

    @property
    def _examples(self) -> Records:
        inputs, targets = next(records for records in self.data if len(records[0]))
        return made_up(inputs.shape[1:], inputs.dtype), made_up_targets(targets.shape[1:], targets.dtype)

    @property
    def slow_layers(self) -> tuple[str, ...]:
        """What makes single examples' gradients slow: they are formed one by one then."""
        return (*self.layout.slow, *(["random layers other than dropout"] if self.one_by_one else []))

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


def made_up_targets(shape: torch.Size, kind: torch.dtype) -> Tensor:
    """Targets for four made-up examples: zeros and ones."""
    return (torch.arange(4) % 2).reshape(4, *(1 for _ in shape)).expand(4, *shape).to(kind)


def made_up(shape: torch.Size, kind: torch.dtype) -> Tensor:
    """Four examples that are nobody's, to try a model on: different from each other, and small where they are integers."""
    generator = torch.Generator().manual_seed(0)
    if kind.is_floating_point:
        return torch.randn((4, *shape), generator=generator).abs().to(kind)
    return torch.randint(0, 3, (4, *shape), generator=generator).to(kind)
