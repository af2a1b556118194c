"""The books that layers keep for per-example clipping: what went in, and the gradient of what came
out.

Both have one slice per example, and the gradient of a layer's weight follows from them: so do its
norm for each example and the clipped sum over examples, without a gradient of each (Bu et al.,
"Differentially private optimization on large model at small cost", 2023). A model runs with books
by `run_with_books`; each kind of layer then has a forward of its own (`layers.py`).
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from equipoise.privacy.per_example.followed import Followed
from equipoise.privacy.per_example.layers import FORWARDS, Parts, is_known


@dataclass(frozen=True)
class Entry:
    """One call of a layer, or use of a parameter outside of one. `parts(gradient of the output,
    *saved)` gives the uses of its parameters, all with the batch on axis 0."""

    layer: str
    prefix: str  # before the names that the parts have, in the model
    edge: GradientEdge  # of the output as it left the layer, whatever is done to it in place
    axes: range  # which axes of the output may be the batch; it is the same one in everything saved
    saved: tuple[Tensor, ...]
    versions: tuple[int, ...]
    kept: int  # how many numbers: the saved ones, and as many as the output has for its gradient
    own: Callable[[], Iterable[Tensor]]  # the parameters that the call may use
    parts: Callable[..., Parts]

    def uses(self, gradient: Tensor, axis: int) -> Parts:
        """By the parameters' names in the model."""
        if self.versions != tuple(tensor._version for tensor in self.saved):
            raise RuntimeError(
                f"layer {self.layer}: its input was changed by an in-place operation after its use"
            )
        moved = (tensor.detach().movedim(axis, 0) for tensor in (gradient, *self.saved))
        return {self.prefix + key: use for key, use in self.parts(*moved).items()}


def entry_of(
    layer: str,
    prefix: str,
    own: Callable[[], Iterable[Tensor]],
    output: Tensor,
    axes: range,
    saved: tuple[Tensor, ...],
    parts: Callable[..., Parts],
) -> Entry:
    assert output.is_leaf or not output._is_view(), f"{layer}: what is done in place is not seen"
    versions = tuple(tensor._version for tensor in saved)
    kept = sum(tensor.numel() for tensor in (output, *saved))
    edge = get_gradient_edge(output)
    return Entry(layer, prefix, edge, axes, saved, versions, kept, own, parts)


def run_with_books(
    module: nn.Module,
    inputs: Tensor,
    follow: dict[str, Tensor] | None = None,
    constant: Collection[str] = (),
) -> tuple[list[Entry], Tensor]:
    """The entries of the known layers, one for each call, and the module's outputs; inside of
    `one_pass`, which takes the books away again. Parameters that are to be followed have entries
    for what is done with them outside of known layers, too, and with what the tables `constant`
    give, which is the same for all examples.

    A known layer runs on copies of its parameters that start a graph of their own. So a gradient
    gets to a parameter only if it is used in another way: in an unknown layer, or outside of its
    layer.
    """
    entries: list[Entry] = []

    def enter_use(name: str, own: tuple[Tensor, ...], *entry: Any) -> None:
        entries.append(entry_of(name, "", lambda: own, *entry))

    followed = Followed(follow or {}, enter_use)

    def forward(name: str, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return type(layer).forward(layer, *args, **kwargs)
        if name in constant:
            return followed.looked_up(layer, *args)

        def enter(*entry: Any) -> None:
            entries.append(entry_of(name, f"{name}." if name else "", layer.parameters, *entry))

        return FORWARDS[type(layer)](enter, layer, *args, **kwargs)

    for name, layer in module.named_modules():
        if is_known(layer):
            vars(layer)["forward"] = partial(forward, name, layer)
    with followed if follow else nullcontext():
        outputs: Tensor = module(inputs)
    return [*entries], outputs


def first_names(module: nn.Module) -> dict[str, str]:
    """Of parameters that have several names, the one that they are trained by."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }
