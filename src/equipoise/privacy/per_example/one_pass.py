"""One pass through a model, forward and backward, that leaves nothing behind for the next."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import UnsafeModel

Loss = Callable[[Tensor, Tensor], Tensor]

FIXED = {bool, int, float, str, type(None), type, FunctionType, BuiltinFunctionType, torch.dtype}
CODE = {FunctionType, classmethod, staticmethod, property, type, ModuleType}
LIBRARIES = {"builtins", "abc", "typing", "torch"}
CONTAINERS = {dict, OrderedDict, set, list}


@contextmanager
def one_pass(module: nn.Module, values: dict[str, Tensor], loss: Any = None) -> Iterator[Any]:
    """Inside, the module has `values` as its parameters, and copies of all else that its parts
    hold: frozen parameters, attributes, also those of their classes, hooks. Afterwards it is as
    before. Gives the loss, on copies too.

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
    kinds = {type(part) for part in (*before, loss)}
    of_classes = {own: _attributes(own) for kind in kinds for own in _own_classes(kind)}
    try:
        for kind, attributes in of_classes.items():
            for name, value in _copies(kind, attributes, memo).items():
                setattr(kind, name, value)
        for part, attributes in before.items():
            vars(part).update(_copies(type(part), attributes, memo))
        yield copy.deepcopy(loss, memo)
    finally:
        for kind, attributes in of_classes.items():
            _restore(kind, attributes)
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


def _own_classes(kind: type) -> tuple[type, ...]:
    """Of a class and those it is derived from, the ones that neither Python nor torch defines."""
    own = tuple(k for k in kind.__mro__ if k.__module__.partition(".")[0] not in LIBRARIES)
    for part in own:
        if issubclass(part, nn.Module) and vars(part).get("__slots__"):
            raise UnsafeModel(
                f"class {part.__name__} has __slots__, and what they learn from records could not "
                "be taken back; use plain attributes"
            )
    return own


def _attributes(kind: type) -> dict[str, Any]:
    """What a class holds besides its code."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not (name.startswith("__") or name == "_abc_impl" or type(value) in CODE)
    }


def _restore(kind: type, attributes: dict[str, Any]) -> None:
    now = _attributes(kind)
    for name in now.keys() - attributes.keys():
        delattr(kind, name)
    for name, value in attributes.items():
        if name not in now or now[name] is not value:
            setattr(kind, name, value)


def _copies(kind: type, attributes: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
    """Of all attributes that can be written to."""
    copies = {}
    for name, value in attributes.items():
        sort = type(value)
        if sort in CONTAINERS and not value:  # as nearly all are of torch's own
            copies[name] = memo.setdefault(id(value), sort())
            continue
        if sort in FIXED:
            continue
        try:
            copies[name] = _copied(name, value, memo)
        except Exception as error:  # whatever a user's object raises
            raise UnsafeModel(
                f"attribute {name} of {kind.__name__} cannot be copied "
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
