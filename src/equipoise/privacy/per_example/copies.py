"""What known layers run on: copies of their parameters, and outputs that are no views."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def copied(parameter: Tensor | None) -> Any:
    """The numbers of a parameter, at the start of a graph of their own."""
    return None if parameter is None else parameter.detach().requires_grad_()


def linear(input: Tensor, weight: Tensor, offset: Tensor | None = None) -> Tensor:
    """As torch's, but never a view of another tensor. What is done to a view in place goes around
    the node at which its gradient is asked for, and the layer would seem to be used for nothing."""
    output = functional.linear(input, weight, offset)
    if not output._is_view():
        return output
    base = output._base
    assert base is not None
    return torch.ops.aten._unsafe_view(base, output.shape)  # type: ignore[no-any-return]
