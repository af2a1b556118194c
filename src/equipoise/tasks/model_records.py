"""The records of networks, in memory or on disk; and what moves to a device."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.tasks.flat_model import FlatModel

AT_ONCE = 2**20  # numbers that go into a model, or come out of it, at a time when it is measured


@dataclass(frozen=True, repr=False)
class Rows:
    """Some rows of a large tensor, which may lie on disk: copied when they are used, and not
    before."""

    whole: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        return self.whole[self.index[chosen]]

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.index), *self.whole.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return self.whole.dtype


Records = tuple[Tensor, Tensor] | tuple[Rows, Rows]
"""Inputs and targets of all records of a data set, stacked."""


def moved(model: FlatModel, loss: Any, device: torch.device) -> tuple[FlatModel, Any]:
    """Copies of a model and its loss, which may hold the model, on a device."""
    module, loss = copy.deepcopy((model.module, loss))
    model = FlatModel(module.to(device), model.parts or None)
    return model, loss.to(device) if isinstance(loss, nn.Module) else loss


def records_on(device: torch.device, data: tuple[Records, ...]) -> tuple[Records, ...]:
    """The records of data sets that lie in memory, on a device; others as they are."""

    def placed(records: Records) -> Records:
        inputs, targets = records
        if isinstance(inputs, Tensor) and isinstance(targets, Tensor):
            return inputs.to(device), targets.to(device)
        return records

    return tuple(map(placed, data))


def passes(model: FlatModel, records: Records, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Outputs and targets of the records, some at a time."""
    inputs, targets = records
    with torch.no_grad():
        numbers = (
            max(math.prod(inputs.shape[1:]), model(x, inputs[:1].to(x.device)).numel())
            if len(inputs)
            else 1
        )
        at_once = min(256, max(1, AT_ONCE // numbers))
        for start in range(0, len(inputs), at_once):
            some, wanted = inputs[start : start + at_once], targets[start : start + at_once]
            yield model(x, some.to(x.device)), wanted.to(x.device)
