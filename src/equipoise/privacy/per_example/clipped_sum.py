"""Per-example clipping: the sum over examples of min(1, C / |g_j|) g_j, in one forward and one
backward pass.

`layout_of` looks at a model once, on made-up inputs; `clipped_sum` then clips with the books that
its layers keep. Models with layers or calls that the books do not know take a slow way, torch.func,
which forms the gradient of every example. Slowest, and the only one that trusts nothing about
batches, is a pass for every example (`ISOLATED`).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import grad, vmap

from equipoise.errors import UnsafeModel, require
from equipoise.privacy.per_example.books import Entry, first_names, run_with_books
from equipoise.privacy.per_example.one_pass import Loss, one_pass
from equipoise.privacy.per_example.shares import PIECE, Share, Use, materialised, of_uses

TOGETHER = 64  # examples that run together at most
NUMBERS = 2**27  # about how many numbers may be kept for the examples that run together


@dataclass(frozen=True)
class Layout:
    """What a dry run tells of a model: which axis of each layer's output is the batch, what forces
    the slow way, if any, and about how many numbers the books keep for one example."""

    axes: dict[str, int]
    slow: tuple[str, ...]
    numbers: int = 0
    isolated: bool = False  # whether every example runs in a pass of its own
    follow: bool = False  # whether parameters are followed outside of known layers
    constant: frozenset[str] = frozenset()  # tables whose output is the same for all examples


ISOLATED = Layout({}, ("every record runs in a pass of its own (isolate)",), isolated=True)


def clipped_sum(
    module: nn.Module,
    parameters: dict[str, Tensor],
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    C: float,
    layout: Layout,
    micro_batch: int = TOGETHER,
) -> dict[str, Tensor]:
    """For each trainable parameter the sum over all examples of their gradients, each clipped to
    C over all parameters.

    An example whose gradient is not finite counts as zero. `loss` only ever sees one example;
    `layout` is the module's. At most micro_batch examples run together, fewer if they are large:
    that changes the memory and the rounding. The sum is in float64, so that its rounding does not
    depend on how many examples there are. As in `mechanism.clip`, norms are in float64 and the
    threshold is C less what rounding can add.
    """
    require(C > 0, f"C={C} must be positive")
    require(micro_batch >= 1, f"micro_batch={micro_batch} must be positive")
    values = _values(module, parameters)
    totals: dict[str, Tensor] = {}
    dimension = sum(value.numel() for value in values.values())
    micro_batch = min(micro_batch, together(layout, dimension))
    for start in range(0, len(inputs), micro_batch):
        x, y = inputs[start : start + micro_batch], targets[start : start + micro_batch]
        shares = None if layout.slow else _from_books(module, values, loss, x, y, layout)
        if shares is None:
            one_by_one = _by_passes if layout.isolated else _one_by_one
            shares = one_by_one(module, values, loss, x, y)
        squares = sum(
            (square for square, _ in shares.values()),
            torch.zeros(len(x), dtype=torch.float64, device=x.device),
        )
        rows, weights = _weights(squares, C, dimension, next(iter(values.values())).dtype)
        for name, (_, weighted_sum) in shares.items():
            _add(totals, name, weighted_sum(rows, weights))
    return {
        name: totals[name] if name in totals else torch.zeros_like(value, dtype=torch.float64)
        for name, value in values.items()
    }


def together(layout: Layout, dimension: int) -> int:
    """How many examples of a model with so many parameters run together at most."""
    of_one = layout.numbers + (dimension if layout.slow else 0)
    return min(TOGETHER, max(1, NUMBERS // max(1, of_one)))


def layout_of(module: nn.Module, parameters: dict[str, Tensor], inputs: Tensor) -> Layout:
    """How to clip the module, found on made-up inputs that differ from each other: no private value
    decides. Parameters are followed outside of known layers only if some are used there.
    """
    require(len(inputs) >= 2, "inputs: it takes two made-up examples or more to tell them apart")
    values = _values(module, parameters)
    layout = _layout(module, values, inputs, Layout({}, ()))
    if not layout.slow:
        return layout
    tables = (name for name, part in module.named_modules() if type(part) is nn.Embedding)
    constant = frozenset(name for name in tables if name not in layout.axes)
    return _layout(module, values, inputs, Layout({}, (), follow=True, constant=constant))


def _layout(module: nn.Module, values: dict[str, Tensor], inputs: Tensor, way: Layout) -> Layout:
    """How to clip if parameters are followed in this way. The axis of the batch is where output j
    of the module depends on slice j of the layer's output and on no other slice."""
    entries, reached = _reached(module, values, inputs, way)
    axes: dict[str, int] = {}
    slow: dict[str, str] = {}
    for entry, slices in zip(entries, reached, strict=False):
        if _is_used(slices):
            axis = next((axis for axis in entry.axes if _one_slice_each(slices, axis)), None)
            if axis is None:
                slow[entry.layer] = "no axis of its output is the batch"
            elif axes.setdefault(entry.layer, axis) != axis:
                slow[entry.layer] = "its calls have the batch on different axes"
    for name, slices in zip(values, reached[len(entries) :], strict=True):
        if _is_used(slices):
            layer = name.rpartition(".")[0]
            kind = type(module.get_submodule(layer)).__name__
            slow[layer] = f"{kind} used otherwise than in plain calls of known layers"
    numbers = sum(_numbers(entry, len(inputs)) for entry in entries)
    reasons = tuple(f"{layer or 'model'}: {why}" for layer, why in slow.items())
    return replace(way, axes=axes, slow=reasons, numbers=numbers)


def _is_used(slices: Sequence[Any]) -> bool:
    return any(part is not None for part in slices)


def _reached(
    module: nn.Module, values: dict[str, Tensor], inputs: Tensor, way: Layout
) -> tuple[list[Entry], list[tuple[Any, ...]]]:
    """The entries of the books, and for each of them, then for each parameter that is used
    directly, what every output depends on."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        leaves = _leaves(
            {name: value + 0.1 * torch.randn_like(value) for name, value in values.items()}
        )
        with one_pass(module, leaves):
            entries, outputs = _run(module, inputs, leaves, way)
            _check_unchanged(leaves)
            scores = (outputs * torch.randn_like(outputs)).unsqueeze(-1).flatten(1).sum(1)
            asked = [*(entry.edge for entry in entries), *map(get_gradient_edge, leaves.values())]
            axes = [*(entry.axes for entry in entries), *(range(0) for _ in leaves)]
            rows = []
            for score in scores:
                slopes = torch.autograd.grad(score, asked, retain_graph=True, allow_unused=True)
                pairs = zip(slopes, axes, strict=True)
                rows.append(
                    [slope if slope is None else _slices(slope, along) for slope, along in pairs]
                )
    return entries, list(zip(*rows, strict=True))


def _run(
    module: nn.Module, inputs: Tensor, leaves: dict[str, Tensor], layout: Layout
) -> tuple[list[Entry], Tensor]:
    return run_with_books(module, inputs, leaves if layout.follow else None, layout.constant)


def _check_unchanged(values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        if value._version:
            raise UnsafeModel(
                f"the model changes parameter {name} itself: that would carry data past clip and "
                f"noise"
            )


def _values(module: nn.Module, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """What is trained, by name: as given, or as it is in the module."""
    return {
        name: parameters.get(name, parameter).detach()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def _leaves(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies for one pass: whatever is done to them there, the next pass has others."""
    return {name: value.detach().clone().requires_grad_() for name, value in values.items()}


def _slices(slope: Tensor, axes: range) -> dict[int, Tensor]:
    """For each of these axes, which slices are not all zero."""
    return {axis: slope.movedim(axis, 0).unsqueeze(-1).flatten(1).ne(0).any(1) for axis in axes}


def _one_slice_each(slices: Sequence[dict[int, Tensor] | None], axis: int) -> bool:
    """Whether the slope of output j is zero but in slice j, for every j, and for two of them not
    all zero."""
    known = [of_axes[axis] for of_axes in slices if of_axes is not None]
    if len(known) != len(slices) or len(known[0]) != len(slices):
        return False
    where = torch.stack(known)
    return int(where.diagonal().sum()) >= 2 and not bool(where.fill_diagonal_(False).any())


def _numbers(entry: Entry, examples: int) -> int:
    """How many numbers an entry keeps for one example: its books, and the gradients of its
    parameters but those that are so much larger that they are never formed."""
    kept = entry.kept // examples
    own = entry.own()
    return kept + sum(p.numel() for p in own if p.numel() <= 2 * kept * p.shape[2:].numel())


def _weights(
    squares: Tensor, C: float, dimension: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Which examples count, and min(1, C / norm) for these. One that is not finite does not (its
    weight is 0 or nan), nor one whose weight is too small for the type to hold with precision."""
    info = torch.finfo(dtype)
    threshold = C * (
        1 - info.eps * (8 + math.log2(dimension)) - torch.finfo(torch.float64).eps * dimension
    )
    weights = (threshold / squares.sqrt()).clamp(max=1.0)
    rows = (weights >= info.tiny).nonzero().squeeze(1)
    return rows, weights[rows].to(dtype)


def _add(totals: dict[str, Tensor], name: str, part: Tensor) -> None:
    """totals[name] += part in float64, piece by piece: a parameter may be so large that no copy of
    it is welcome."""
    if name not in totals:
        totals[name] = part.double().contiguous()
        return
    pieces = (torch.split(numbers, PIECE) for numbers in (totals[name].view(-1), part.reshape(-1)))
    for total, piece in zip(*pieces, strict=True):
        total.add_(piece)


def _from_books(
    module: nn.Module,
    values: dict[str, Tensor],
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    layout: Layout,
) -> dict[str, Share] | None:
    """The parameters' shares in the gradients; None if this batch takes another way through the
    model than the layout tells."""
    leaves = _leaves(values)
    with torch.enable_grad(), one_pass(module, leaves, loss) as loss:
        entries, outputs = _run(module, inputs, leaves, layout)
        pairs = zip(torch.split(outputs, 1), torch.split(targets, 1), strict=True)
        single = (
            loss(output.clone(), target) for output, target in pairs
        )  # no record in another's loss
        total = torch.stack([*single]).sum()
        edges = [*(entry.edge for entry in entries), *map(get_gradient_edge, leaves.values())]
        gradients = torch.autograd.grad(total, edges, allow_unused=True)
    if any(gradient is not None for gradient in gradients[len(entries) :]):
        return None
    names, uses = first_names(module), defaultdict[str, list[Use]](list)
    for entry, gradient in zip(entries, gradients, strict=False):
        if gradient is None:
            continue
        axis = layout.axes.get(entry.layer)
        if axis is None or axis not in entry.axes or gradient.shape[axis] != len(inputs):
            return None
        for name, use in entry.uses(gradient, axis).items():
            uses[names.get(name, name)].append(use)
    return {name: of_uses(of_name) for name, of_name in uses.items() if name in values}


def _one_by_one(
    module: nn.Module, values: dict[str, Tensor], loss: Loss, inputs: Tensor, targets: Tensor
) -> dict[str, Share]:
    """The slow way. Where torch.func cannot follow the model, every example has its own pass."""

    def single(chosen: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with one_pass(module, chosen, loss) as own_loss:
            value: Tensor = own_loss(module(x.unsqueeze(0)), y.unsqueeze(0))
            return value

    try:
        gradients = vmap(grad(single), in_dims=(None, 0, 0), randomness="different")(
            {name: value.clone() for name, value in values.items()}, inputs, targets
        )
    except Exception:  # what vmap cannot follow; what is simply wrong raises again below
        return _by_passes(module, values, loss, inputs, targets)
    return {name: materialised(gradient) for name, gradient in gradients.items()}


def _by_passes(
    module: nn.Module, values: dict[str, Tensor], loss: Loss, inputs: Tensor, targets: Tensor
) -> dict[str, Share]:
    """A forward and a backward pass for every example, as if there were no other."""
    each = []
    for x, y in zip(torch.split(inputs, 1), torch.split(targets, 1), strict=True):
        leaves = _leaves(values)
        with torch.enable_grad(), one_pass(module, leaves, loss) as own_loss:
            each.append(
                torch.autograd.grad(
                    own_loss(module(x), y),
                    list(leaves.values()),
                    allow_unused=True,
                    materialize_grads=True,
                )
            )
    return {
        name: materialised(torch.stack(parts)) for name, *parts in zip(values, *each, strict=True)
    }
