"""Whether a user's model and loss work, tried on made-up examples: no private value decides."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError, InvalidValue, UnsafeModel, UserCode, require
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.made_up import Kind
from equipoise.tasks.own_data import DataSet, check_arrays, no_kind, possible_kinds


def with_logits(flat: FlatModel, kinds: Iterable[Kind]) -> FlatModel:
    """The same model; if its output is no tensor, with the logits of that as its output."""
    for kind in kinds:
        with UserCode() as tried, warnings.catch_warnings(record=True), torch.no_grad():
            outputs: Any = flat(flat.initial(), kind.examples()[0])
        if not tried.kind:
            return flat if isinstance(outputs, Tensor) else FlatModel(flat.module, ())
    return flat


def kinds_that_work(
    model: FlatModel,
    loss: Callable[[Tensor, Tensor], Tensor],
    clients: dict[int, DataSet],
    declared: Sequence[Kind],
) -> dict[int, Kind]:
    """For each client the first kind of examples on which model and loss work: of those declared,
    or else of its own, so that no client decides how another is read. Where there is none, that of
    the first client with one, which its records will not fit."""
    check_arrays(clients, declared)
    possible = {i: declared or possible_kinds(data, model.dtype) for i, data in clients.items()}
    refusal = cache(partial(_refusal, model, loss))
    working = {
        i: next((kind for kind in kinds if not refusal(kind)), None)
        for i, kinds in possible.items()
    }
    anybodys = next(filter(None, working.values()), None)
    if anybodys is None:
        raise next(map(refusal, chain(*possible.values())), None) or no_kind(clients)
    return {i: kind or anybodys for i, kind in working.items()}


def _refusal(
    model: FlatModel, loss: Callable[[Tensor, Tensor], Tensor], kind: Kind
) -> InvalidValue | None:
    """Why model and loss do not work on examples of this kind, if they do not."""
    try:
        _check_examples(model, loss, kind)
    except InvalidValue as refusal:
        return refusal
    return None


def _check_examples(model: FlatModel, loss: Callable[[Tensor, Tensor], Tensor], kind: Kind) -> None:
    """Refuse a model or loss that fails or remembers, and a loss that is not a mean, on made-up
    examples: no private value decides."""
    for x in model.somewhere():
        with UserCode(EquipoiseError) as tried:
            with warnings.catch_warnings(record=True):  # strange examples may well cause some
                changed = model.changed_buffer(x, loss, kind.examples(), kind.intruders())
                remembers = model.remembers(x, loss, kind.examples(), kind.intruders())
            if changed is not None:
                raise UnsafeModel(
                    f"buffer {changed} changes when the model runs: what it learns would leave a "
                    "client without clip and noise; make it a parameter, or compute it in __init__ "
                    "if it is constant"
                )
            if remembers:
                raise UnsafeModel(
                    "the model or the loss remembers earlier inputs, or changes a parameter "
                    "itself: that would carry data from one record or client to the next"
                )
            require(
                not model.creates_parameters(x, kind.examples()[0]),
                "the model creates parameters when it runs, which would never be trained: create "
                "all of them in __init__",
            )
            require(
                not model.checkpoints_reentrantly(x, kind.examples()[0]),
                "the model uses activation checkpointing with use_reentrant=True, which loses the "
                "gradients of what it computes again: pass use_reentrant=False",
            )
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")  # whatever filters the user has set
                losses = _losses(model, loss, x, *kind.examples())
        if tried.kind:
            raise InvalidValue(
                f"the model and loss fail on examples shaped like the clients', {_shapes(kind)}: "
                f"{tried.kind_and_place}"
            )
        for warning in warned:
            raise InvalidValue(
                f"the model and loss warn on examples shaped like the clients', {_shapes(kind)}: "
                f"{warning.category.__name__} at {Path(warning.filename).name}, line "
                f"{warning.lineno}"
            )
        _check_mean(*losses)


def _losses(
    model: FlatModel, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, *batch: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The loss of all examples together, and of each; refused if it is not one number. It must
    have a gradient."""
    inputs, targets = batch
    with torch.no_grad():
        outputs = model(x, inputs)
        whole = loss(outputs, targets)
        parts = [loss(outputs[j : j + 1], targets[j : j + 1]) for j in range(len(inputs))]
    require(
        whole.dim() == 0,
        "the loss must be a mean over examples (reduction='mean'): it is not one number",
    )
    model.gradient(x, loss, inputs, targets, 0)
    return whole, parts


def _check_mean(whole: Tensor, parts: list[Tensor]) -> None:
    mean = torch.stack(parts).mean()
    require(
        bool(torch.isclose(whole, mean, rtol=1e-3, atol=1e-6)),
        f"the loss of 4 examples is {whole.item():.6g}, the mean of their single losses "
        f"{mean.item():.6g}: "
        "the loss must be a mean over examples (reduction='mean', no class weights)",
    )


def _shapes(kind: Kind) -> str:
    """What examples of this kind look like."""
    pairs = (kind.shape, kind.dtype), (kind.target_shape, kind.target_dtype)
    inputs, targets = (f"{[*shape]} {str(dtype).removeprefix('torch.')}" for shape, dtype in pairs)
    return f"inputs {inputs} and targets {targets}"
