"""One pass through a model, forward and backward, that leaves nothing behind for the next."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import UnsafeModel

Loss = Callable[[Tensor, Tensor], Tensor]

FIXED = {bool, int, float, str, type(None), type, FunctionType, BuiltinFunctionType, torch.dtype}
CONTAINERS = {dict, OrderedDict, set, list}


@contextmanager
def one_pass(module: nn.Module, values: dict[str, Tensor], loss: Any = None) -> Iterator[Any]:
    """Inside, the module has `values` as its parameters, and copies of all else that its parts
    hold: frozen parameters, attributes, hooks. Afterwards it is as before. Gives the loss, on
    copies too.

    So nothing that a pass writes reaches another one, be it of another record, step or client, or
    on test data. What is outside (a global variable, what a function closes over) is not copied.
    Parameters stay in place to the end, so that what backward computes again (checkpointing) sees
    the same ones as forward did.
    """
    roots = [root for root in (loss, module) if isinstance(root, nn.Module)]
    before = {part: dict(vars(part)) for root in roots for part in root.modules()}
    memo: dict[int, Any] = {id(part): part for part in before}
    for root in roots:  # the module last: a loss may hold the model that it is the loss of
        memo |= _parameters(root, values if root is module else {})
    try:
        for part, attributes in before.items():
            vars(part).update(_copies(part, attributes, memo))
        yield copy.deepcopy(loss, memo)
    finally:
        for part, attributes in before.items():
            vars(part).clear()
            vars(part).update(attributes)


def _parameters(root: nn.Module, values: dict[str, Tensor]) -> dict[int, Tensor]:
    """By the identity of a parameter, what stands for it in a pass."""
    return {
        id(parameter): values[name] if name in values else _copy(parameter)
        for name, parameter in root.named_parameters()
    }


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _copies(part: nn.Module, attributes: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
    """Of all attributes that can be written to."""
    copies = {}
    for name, value in attributes.items():
        kind = type(value)
        if kind in CONTAINERS and not value:  # as nearly all are of torch's own
            copies[name] = memo.setdefault(id(value), kind())
            continue
        if kind in FIXED:
            continue
        try:
            copies[name] = _copied(name, value, memo)
        except Exception as error:  # whatever a user's object raises
            raise UnsafeModel(
                f"attribute {name} of {type(part).__name__} cannot be copied "
                f"({type(error).__name__}), so what it learns from records could not be taken "
                "back; leave it out, or make it a constant"
            ) from None
    return copies


def _copied(name: str, value: Any, memo: dict[int, Any]) -> Any:
    """As deepcopy, but quick with what torch's own modules hold."""
    if name in ("_parameters", "_modules"):
        return {key: memo.get(id(item)) for key, item in value.items()}
    if isinstance(value, Tensor):  # deepcopy refuses one that was computed
        return memo.setdefault(id(value), _copy(value))
    if type(value) is tuple and all(type(item) in FIXED for item in value):
        return value
    return copy.deepcopy(value, memo)
