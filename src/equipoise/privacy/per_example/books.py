"""The books that layers keep for per-example clipping: what went in, and the gradient of what came
out.

Both have one slice per example, and the gradient of a layer's weight follows from them: so do its
norm for each example and the clipped sum over examples, without a gradient of each (Bu et al.,
"Differentially private optimization on large model at small cost", 2023). A model runs with books
by `run_with_books`; each kind of layer then has a forward of its own.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from equipoise.privacy.per_example.shares import (
    Share,
    all_pairs,
    of_bias,
    of_kernel,
    of_matrix,
    of_table,
)

Parts = dict[str, Callable[[], Share]]


@dataclass(frozen=True)
class Entry:
    """One call of a layer. `parts(gradient of the output, *saved)` gives the shares, all with the
    batch on axis 0."""

    layer: str
    edge: GradientEdge  # of the output as it left the layer, whatever is done to it in place
    axes: range  # which axes of the output may be the batch; it is the same one in everything saved
    saved: tuple[Tensor, ...]
    versions: tuple[int, ...]
    kept: int  # how many numbers: the saved ones, and as many as the output has for its gradient
    parts: Callable[..., Parts]

    def shares(self, gradient: Tensor, axis: int, names: Collection[str]) -> dict[str, Share]:
        if self.versions != tuple(tensor._version for tensor in self.saved):
            raise RuntimeError(
                f"layer {self.layer}: its input was changed by an in-place operation after its use"
            )
        moved = (tensor.detach().movedim(axis, 0) for tensor in (gradient, *self.saved))
        named = {
            f"{self.layer}.{key}".lstrip("."): share for key, share in self.parts(*moved).items()
        }
        return {name: share() for name, share in named.items() if name in names}


def run_with_books(module: nn.Module, inputs: Tensor) -> tuple[list[Entry], Tensor]:
    """The entries of the known layers, and the module's outputs; inside of `one_pass`, which takes
    the books away again.

    A known layer runs on copies of its parameters that start a graph of their own. So a gradient
    gets to a parameter only if it is used in another way: in an unknown layer, in a layer's second
    call, by several layers, or outside of its layer.
    """
    entries: list[Entry] = []
    called: set[str] = set()

    def forward(name: str, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if name in called or not torch.is_grad_enabled():
            return type(layer).forward(layer, *args, **kwargs)
        called.add(name)

        def enter(
            output: Tensor, axes: range, saved: tuple[Tensor, ...], parts: Callable[..., Parts]
        ) -> None:
            versions = tuple(tensor._version for tensor in saved)
            kept = sum(tensor.numel() for tensor in (output, *saved))
            entries.append(
                Entry(name, get_gradient_edge(output), axes, saved, versions, kept, parts)
            )

        return FORWARDS[type(layer)](enter, layer, *args, **kwargs)

    users = Counter(
        id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False)
    )
    for name, layer in module.named_modules():
        if _known(layer, users):
            vars(layer)["forward"] = partial(forward, name, layer)
    return entries, module(inputs)


def _known(layer: nn.Module, users: Counter[int]) -> bool:
    """Whether the layer has something to train, shares none of it, and is of a kind that keeps
    books."""
    own = dict(layer.named_parameters(recurse=False))
    if not any(parameter.requires_grad for parameter in own.values()) or any(
        users[id(p)] > 1 for p in own.values()
    ):
        return False
    if type(layer) not in FORWARDS or "forward" in vars(layer):
        return False
    if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq):
        return False
    if isinstance(layer, nn.LSTM):
        return (
            not layer.bidirectional
            and not layer.proj_size
            and set(own) <= set(layer._flat_weights_names)
        )
    return set(own) <= {"weight", "bias"}  # others come from weight norm, pruning and the like


def _copy(parameter: Tensor | None) -> Any:
    return None if parameter is None else parameter.detach().requires_grad_()


# ---- forwards ----


def _linear(enter: Any, layer: nn.Linear, input: Tensor) -> Tensor:
    output = functional.linear(input, _copy(layer.weight), _copy(layer.bias))
    enter(
        output,
        range(output.dim() - 1),
        (input,),
        lambda g, x: {"weight": lambda: of_matrix(x, g), "bias": lambda: of_bias(g)},
    )
    return output


def _conv(enter: Any, layer: Any, input: Tensor) -> Tensor:
    output: Tensor = layer._conv_forward(input, _copy(layer.weight), _copy(layer.bias))

    def parts(g: Tensor, x: Tensor) -> Parts:
        return {"weight": lambda: of_kernel(layer, x, g), "bias": lambda: of_bias(g.movedim(1, -1))}

    enter(output, range(output.dim() - layer.weight.dim() + 1), (input,), parts)
    return output


def _embedding(enter: Any, layer: nn.Embedding, input: Tensor) -> Tensor:
    output = functional.embedding(input, _copy(layer.weight), layer.padding_idx)
    enter(
        output,
        range(input.dim()),
        (input,),
        lambda g, tokens: {"weight": lambda: of_table(layer, tokens, g)},
    )
    return output


def _group_norm(enter: Any, layer: nn.GroupNorm, input: Tensor) -> Tensor:
    output = functional.group_norm(
        input, layer.num_groups, _copy(layer.weight), _copy(layer.bias), layer.eps
    )

    def parts(g: Tensor, x: Tensor) -> Parts:
        normal = functional.group_norm(x, layer.num_groups, eps=layer.eps)
        return {
            "weight": lambda: of_bias((g * normal).movedim(1, -1)),
            "bias": lambda: of_bias(g.movedim(1, -1)),
        }

    enter(output, range(1), (input,), parts)
    return output


def _layer_norm(enter: Any, layer: nn.LayerNorm, input: Tensor) -> Tensor:
    shape = layer.normalized_shape
    output = functional.layer_norm(
        input, list(shape), _copy(layer.weight), _copy(layer.bias), layer.eps
    )

    def parts(g: Tensor, x: Tensor) -> Parts:
        normal = functional.layer_norm(x, list(shape), eps=layer.eps)
        return {
            "weight": lambda: of_bias(g * normal, len(shape)),
            "bias": lambda: of_bias(g, len(shape)),
        }

    enter(output, range(output.dim() - len(shape)), (input,), parts)
    return output


def _lstm(enter: Any, layer: nn.LSTM, input: Any, hx: Any = None) -> Any:
    """Unrolled. The gradient of a level's projected input is that of its gates before they act, for
    all steps at once."""
    if not isinstance(input, Tensor) or input.dim() != 3:
        return nn.LSTM.forward(layer, input, hx)
    x = input.transpose(0, 1) if layer.batch_first else input
    zeros = x.new_zeros(layer.num_layers, x.shape[1], layer.hidden_size)
    h_0, c_0 = (zeros, zeros) if hx is None else hx
    last = []
    for level in range(layer.num_layers):
        names = [f"{kind}_l{level}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        w_x, w_h, *biases = (
            getattr(layer, name).detach() for name in names[: 4 if layer.bias else 2]
        )
        if level:
            x = functional.dropout(x, layer.dropout, layer.training)
        projected = functional.linear(x, _copy(w_x), sum(biases) if biases else None)
        h, c, hidden = h_0[level], c_0[level], []
        before = [h]
        for step in projected.unbind(0):
            i, f, u, o = torch.addmm(step, h, w_h.t()).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * u.tanh()
            h = o.sigmoid() * c.tanh()
            hidden.append(h)

        def parts(g: Tensor, x: Tensor, h: Tensor, names: list[str] = names) -> Parts:
            g = g.contiguous()
            pairs = cache(lambda: all_pairs(g))
            each = (
                lambda: of_matrix(x, g, pairs),
                lambda: of_matrix(h, g, pairs),
                lambda: of_bias(g),
                lambda: of_bias(g),
            )
            return dict(zip(names, each, strict=True))

        enter(projected, range(1, 2), (x, torch.stack([*before, *hidden[:-1]])), parts)
        x = torch.stack(hidden)
        last.append((h, c))
    h_n, c_n = (torch.stack(states) for states in zip(*last, strict=True))
    return x.transpose(0, 1) if layer.batch_first else x, (h_n, c_n)


def _prelu(enter: Any, layer: nn.PReLU, input: Tensor) -> Tensor:
    """One slope below zero for all, or one for each channel."""
    output = functional.prelu(input, _copy(layer.weight))
    single = layer.weight.numel() == 1

    def parts(g: Tensor, x: Tensor) -> Parts:
        below = g * x.clamp(max=0)
        return {"weight": lambda: of_bias(below.unsqueeze(-1) if single else below.movedim(1, -1))}

    enter(output, range(input.dim() if single else 1), (input,), parts)
    return output


FORWARDS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.Linear: _linear,
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Conv3d: _conv,
    nn.Embedding: _embedding,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.LSTM: _lstm,
    nn.PReLU: _prelu,
}
