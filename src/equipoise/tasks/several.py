"""Models with several inputs, and models whose output is more than a tensor.

A record of several inputs (a dict, or a tuple of tensors) becomes one row of numbers, in which its
parts stand side by side; so everything that is done with records (splits, samples, files, tries)
knows tensors only. Just before the model runs, rows are parts again. Of an output that is an object
or a dict, the logits are what counts.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equipoise.errors import InvalidValue

LABELS = "labels"  # what a record that is a dict calls its target
LOGITS = "logits"  # what an output that is an object or a dict calls the answers


class Part(NamedTuple):
    """One input of a model: by name, or by position; its shape and type in one record."""

    key: str | int
    shape: torch.Size
    dtype: torch.dtype

    @property
    def is_mask(self) -> bool:
        """Whether it says which places of another input are filled."""
        return self.dtype == torch.bool or (isinstance(self.key, str) and "mask" in self.key)


Parts = tuple[Part, ...]


def is_several(given: Any) -> bool:
    """Whether an input is several: a dict, or a tuple of tensors that are more than numbers."""
    if isinstance(given, Mapping):
        return True
    return isinstance(given, tuple) and any(isinstance(x, Tensor) and x.dim() for x in given)


def row_type(parts: Parts) -> torch.dtype:
    """A type that holds the numbers of all parts without loss; whole ones up to 2^53."""
    kinds = {part.dtype for part in parts}
    if len(kinds) == 1:
        return kinds.pop()
    whole = not any(kind.is_floating_point for kind in kinds)
    return torch.int64 if whole else torch.float64


def rows_of(values: Sequence[Tensor], parts: Parts) -> Tensor:
    """Values [n, *shape] of each part as rows [n, numbers]."""
    kind = row_type(parts)
    return torch.cat([value.to(kind).reshape(len(value), -1) for value in values], 1)


def values_of(rows: Tensor, parts: Parts) -> list[Tensor]:
    """The parts [n, *shape] of rows [n, numbers]."""
    pieces = torch.split(rows, [math.prod(part.shape) for part in parts], 1)
    return [
        piece.reshape(-1, *part.shape).to(part.dtype)
        for piece, part in zip(pieces, parts, strict=True)
    ]


def taken_apart(model: nn.Module, parts: Parts) -> nn.Module:
    """The same model as a function of rows, whose output is a tensor; of its own input as it is,
    where that is not several. It shares all that the model holds."""
    module = copy.copy(model)
    vars(module)["forward"] = partial(_forward, module, parts)
    return module


def _forward(module: nn.Module, parts: Parts, rows: Tensor) -> Tensor:
    forward = partial(type(module).forward, module)
    if not parts:
        return answers(forward(rows))
    values = values_of(rows, parts)
    if isinstance(parts[0].key, int):
        return answers(forward(*values))
    names = (str(part.key) for part in parts)
    return answers(forward(**dict(zip(names, values, strict=True))))


def answers(output: Any) -> Tensor:
    """The tensor of an output: itself, or the logits of an object or a dict."""
    if isinstance(output, Tensor):
        return output
    logits = output.get(LOGITS) if isinstance(output, Mapping) else getattr(output, LOGITS, None)
    if isinstance(logits, Tensor):
        return logits
    raise InvalidValue(
        f"the model's output is of type {type(output).__name__}: return a tensor, or an object or "
        f"a dict with {LOGITS}, in a module around the model if need be"
    )
