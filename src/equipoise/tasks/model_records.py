"""The records of networks, in memory or on disk; and what moves to a device."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.tasks.flat_model import FlatModel


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
    return FlatModel(module.to(device)), loss.to(device) if isinstance(loss, nn.Module) else loss


def records_on(device: torch.device, data: tuple[Records, ...]) -> tuple[Records, ...]:
    """The records of data sets that lie in memory, on a device; others as they are."""
    return tuple(
        (inputs.to(device), targets.to(device))
        if isinstance(inputs, Tensor) and isinstance(targets, Tensor)
        else (inputs, targets)
        for inputs, targets in data
    )  # type: ignore[return-value]
