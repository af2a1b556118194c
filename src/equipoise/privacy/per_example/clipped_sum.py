"""Per-example clipping: the sum over examples of min(1, C / |g_j|) g_j, in one forward and one
backward pass.

`layout_of` looks at a model once, on made-up inputs; `clipped_sum` then clips with the books that
its layers keep. Models with layers or calls that the books do not know take a slow way, torch.func,
which forms the gradient of every example.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from equipoise.errors import UnsafeModel, require
from equipoise.privacy.per_example.books import Entry, run_with_books
from equipoise.privacy.per_example.shares import PIECE, Share, materialised

Loss = Callable[[Tensor, Tensor], Tensor]

NUMBERS = 2**27  # about how many numbers may be kept for the examples that run together


@dataclass(frozen=True)
class Layout:
    """What a dry run tells of a model: which axis of each layer's output is the batch, what forces
    the slow way, if any, and about how many numbers the books keep for one example."""

    axes: dict[str, int]
    slow: tuple[str, ...]
    numbers: int = 0


def clipped_sum(
    module: nn.Module,
    parameters: dict[str, Tensor],
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    C: float,
    layout: Layout,
    micro_batch: int = 64,
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
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    totals: dict[str, Tensor] = {}
    dimension = sum(values[name].numel() for name in names)
    of_one = layout.numbers + (dimension if layout.slow else 0)
    micro_batch = min(micro_batch, max(1, NUMBERS // max(1, of_one)))
    for start in range(0, len(inputs), micro_batch):
        x, y = inputs[start : start + micro_batch], targets[start : start + micro_batch]
        shares = None if layout.slow else _from_books(module, values, names, loss, x, y, layout)
        if shares is None:
            shares = _one_by_one(module, values, names, loss, x, y)
        squares = sum(
            (square for square, _ in shares.values()), torch.zeros(len(x), dtype=torch.float64)
        )
        rows, weights = _weights(squares, C, dimension, values[names[0]].dtype)
        for name, (_, weighted_sum) in shares.items():
            _add(totals, name, weighted_sum(rows, weights))
    return {
        name: totals[name]
        if name in totals
        else torch.zeros_like(values[name], dtype=torch.float64)
        for name in names
    }


def layout_of(module: nn.Module, parameters: dict[str, Tensor], inputs: Tensor) -> Layout:
    """How to clip the module, found on made-up inputs that differ from each other: no private value
    decides.

    The axis of the batch is where output j of the module depends on slice j of the layer's output
    and on no other slice.
    """
    require(len(inputs) >= 2, "inputs: it takes two made-up examples or more to tell them apart")
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    entries, reached = _reached(module, parameters, names, inputs)
    axes: dict[str, int] = {}
    slow: dict[str, str] = {}
    for entry, slices in zip(entries, reached, strict=False):
        if _is_used(slices):
            axis = next((axis for axis in entry.axes if _one_slice_each(slices, axis)), None)
            if axis is None:
                slow[entry.layer] = "no axis of its output is the batch"
            else:
                axes[entry.layer] = axis
    for name, slices in zip(names, reached[len(entries) :], strict=True):
        if _is_used(slices):
            layer = name.rpartition(".")[0]
            kind = type(module.get_submodule(layer)).__name__
            slow[layer] = f"{kind} used otherwise than in one plain call of a known layer"
    numbers = sum(_numbers(module, entry, len(inputs)) for entry in entries)
    return Layout(axes, tuple(f"{layer or 'model'}: {why}" for layer, why in slow.items()), numbers)


def _is_used(slices: Sequence[Any]) -> bool:
    return any(part is not None for part in slices)


def _reached(
    module: nn.Module, parameters: dict[str, Tensor], names: list[str], inputs: Tensor
) -> tuple[list[Entry], list[tuple[Any, ...]]]:
    """The entries of the books, and for each of them, then for each parameter that is used
    directly, what every output depends on."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        values = {
            name: value + 0.1 * torch.randn_like(value)
            for name, value in _values(module, parameters).items()
        }
        entries, direct, outputs = run_with_books(module, values, names, inputs)
        _check_unchanged(values)
        scores = (outputs * torch.randn_like(outputs)).unsqueeze(-1).flatten(1).sum(1)
        asked = [*(entry.edge for entry in entries), *direct]
        axes = [*(entry.axes for entry in entries), *(range(0) for _ in direct)]
        rows = []
        for score in scores:
            slopes = torch.autograd.grad(score, asked, retain_graph=True, allow_unused=True)
            pairs = zip(slopes, axes, strict=True)
            rows.append(
                [slope if slope is None else _slices(slope, along) for slope, along in pairs]
            )
    return entries, list(zip(*rows, strict=True))


def _check_unchanged(values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        if value._version:
            raise UnsafeModel(
                f"the model changes parameter {name} itself: that would carry data past clip and "
                f"noise"
            )


def mixes_examples(module: nn.Module, parameters: dict[str, Tensor], inputs: Tensor) -> bool:
    """Whether an example's output depends on the other examples in the batch: then no gradient is
    that of one example.

    Tried on made-up inputs that differ from each other. What is random in the module (dropout)
    repeats where only the other examples change; it is switched off where an example is compared
    with itself alone.
    """

    def run(batch: Tensor, seed: int = 0) -> Tensor:
        torch.manual_seed(seed)
        outputs: Tensor = functional_call(module, parameters, (batch,))
        return outputs

    modes = {part: part.training for part in module.modules()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            together = run(inputs)
            if together.dim() == 0 or len(together) != len(inputs):
                return True
            others_changed = [
                run(inputs[j : j + 1].expand_as(inputs).clone())[j] for j in range(len(inputs))
            ]
            if not _close(together, torch.stack(others_changed)):
                return True
            if not torch.equal(together, run(inputs, seed=1)):
                module.eval()
                together = run(inputs)
            return not _close(
                together, torch.cat([run(inputs[j : j + 1]) for j in range(len(inputs))])
            )
        finally:
            for part, mode in modes.items():
                part.training = mode


def _values(module: nn.Module, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: value.detach()
        for name, value in {**dict(module.named_parameters()), **parameters}.items()
    }


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal but for the rounding of sums in another order."""
    if a.shape != b.shape:
        return False
    tolerance = 256 * torch.finfo(a.dtype).eps
    return torch.allclose(
        a, b, tolerance, tolerance * float(a.abs().nan_to_num(0, 0).max()), equal_nan=True
    )


def _slices(slope: Tensor, axes: range) -> dict[int, Tensor]:
    """For each of these axes, which slices are not all zero."""
    return {axis: slope.movedim(axis, 0).unsqueeze(-1).flatten(1).ne(0).any(1) for axis in axes}


def _one_slice_each(slices: Sequence[dict[int, Tensor] | None], axis: int) -> bool:
    """Whether the slope of output j is zero but in slice j, for every j, and for two of them not
    all zero."""
    there = [of_axes[axis] for of_axes in slices if of_axes is not None]
    if len(there) != len(slices) or len(there[0]) != len(slices):
        return False
    where = torch.stack(there)
    return int(where.diagonal().sum()) >= 2 and not bool(where.fill_diagonal_(False).any())


def _numbers(module: nn.Module, entry: Entry, examples: int) -> int:
    """How many numbers an entry keeps for one example: its books, and the gradients of its
    parameters but those that are so much larger that they are never formed."""
    kept = entry.kept // examples
    own = module.get_submodule(entry.layer).parameters(recurse=False)
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
    names: list[str],
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    layout: Layout,
) -> dict[str, Share] | None:
    """The parameters' shares in the gradients; None if this batch takes another way through the
    model than the layout tells."""
    with torch.enable_grad():
        entries, direct, outputs = run_with_books(module, values, names, inputs)
        pairs = zip(torch.split(outputs, 1), torch.split(targets, 1), strict=True)
        single = (
            loss(output.clone(), target) for output, target in pairs
        )  # no record in another's loss
        total = torch.stack([*single]).sum()
        gradients = torch.autograd.grad(
            total, [*(entry.edge for entry in entries), *direct], allow_unused=True
        )
    if any(gradient is not None for gradient in gradients[len(entries) :]):
        return None
    shares: dict[str, Share] = {}
    for entry, gradient in zip(entries, gradients, strict=False):
        if gradient is None:
            continue
        axis = layout.axes.get(entry.layer)
        if axis is None or axis not in entry.axes or gradient.shape[axis] != len(inputs):
            return None
        shares |= entry.shares(gradient, axis, names)
    return shares


def _one_by_one(
    module: nn.Module,
    values: dict[str, Tensor],
    names: list[str],
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
) -> dict[str, Share]:
    """The slow way. Where torch.func cannot follow the model, it is a backward pass for each
    example."""

    def single(chosen: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(
            functional_call(module, {**values, **chosen}, (x.unsqueeze(0),)), y.unsqueeze(0)
        )

    chosen = {name: values[name] for name in names}
    try:
        gradients = vmap(grad(single), in_dims=(None, 0, 0), randomness="different")(
            chosen, inputs, targets
        )
    except (
        Exception
    ):  # whatever a user's code does that vmap cannot; what is simply wrong raises again below
        leaves = {name: value.clone().requires_grad_() for name, value in chosen.items()}
        asked = list(leaves.values())
        with torch.enable_grad():
            losses = (single(leaves, x, y) for x, y in zip(inputs, targets, strict=True))
            each = [
                torch.autograd.grad(one, asked, allow_unused=True, materialize_grads=True)
                for one in losses
            ]
        gradients = {name: torch.stack(parts) for name, *parts in zip(names, *each, strict=True)}
    return {name: materialised(gradient) for name, gradient in gradients.items()}
