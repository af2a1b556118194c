"""The books that layers keep for per-example clipping: what went in, and the gradient of what came out.

Both have one slice per example, and the gradient of a layer's weight follows from them: so do its norm for each example and the
clipped sum over examples, without a gradient of each (Bu et al., "Differentially private optimization on large model at small
cost", 2023). A model runs with books by `run_with_books`; each kind of layer then has a forward of its own.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.nn import functional
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

Share = tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]
"""A parameter's part in the examples' gradients: squared norms [B], and (rows, weights) -> the weighted sum over these rows."""

Parts = dict[str, Callable[[], Share]]
HUGE = 1e20  # a factor that makes the rounding of tiny float32 numbers matter


@dataclass(frozen=True)
class Entry:
    """One call of a layer. `parts(gradient of the output, *saved)` gives the shares, all with the batch on axis 0."""

    layer: str
    edge: GradientEdge  # of the output as it left the layer, whatever is done to it in place
    axes: range  # which axes of the output may be the batch; it is the same one in everything saved
    saved: tuple[Tensor, ...]
    versions: tuple[int, ...]
    parts: Callable[..., Parts]

    def shares(self, gradient: Tensor, axis: int, names: Collection[str]) -> dict[str, Share]:
        if self.versions != tuple(tensor._version for tensor in self.saved):
            raise RuntimeError(f"layer {self.layer}: its input was changed by an in-place operation after its use")
        moved = (tensor.detach().movedim(axis, 0) for tensor in (gradient, *self.saved))
        named = {f"{self.layer}.{key}".lstrip("."): share for key, share in self.parts(*moved).items()}
        return {name: share() for name, share in named.items() if name in names}


def run_with_books(
    module: nn.Module, values: dict[str, Tensor], names: list[str], inputs: Tensor
) -> tuple[list[Entry], list[GradientEdge], Tensor]:
    """The entries of the known layers, the edges to the parameters `names`, and the module's outputs.

    A known layer runs on copies of its parameters that start a graph of their own. So a gradient gets to a parameter only if it
    is used in another way: in an unknown layer, in a layer's second call, by several layers, or outside of its layer.
    """
    entries: list[Entry] = []
    called: set[str] = set()

    def forward(name: str, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if name in called or not torch.is_grad_enabled():
            return type(layer).forward(layer, *args, **kwargs)
        called.add(name)

        def enter(output: Tensor, axes: range, saved: tuple[Tensor, ...], parts: Callable[..., Parts]) -> None:
            versions = tuple(tensor._version for tensor in saved)
            entries.append(Entry(name, get_gradient_edge(output), axes, saved, versions, parts))

        return FORWARDS[type(layer)](enter, layer, *args, **kwargs)

    leaves = {name: values[name].detach().requires_grad_() for name in names}
    users = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    known = {name: layer for name, layer in module.named_modules() if _known(layer, users)}
    try:
        for name, layer in known.items():
            vars(layer)["forward"] = partial(forward, name, layer)
        outputs = functional_call(module, {**values, **leaves}, (inputs,))
        return entries, [get_gradient_edge(leaf) for leaf in leaves.values()], outputs
    finally:
        for layer in known.values():
            vars(layer).pop("forward", None)


def _known(layer: nn.Module, users: Counter[int]) -> bool:
    """Whether the layer has something to train, shares none of it, and is of a kind that keeps books."""
    own = dict(layer.named_parameters(recurse=False))
    if not any(parameter.requires_grad for parameter in own.values()) or any(users[id(p)] > 1 for p in own.values()):
        return False
    if type(layer) not in FORWARDS or "forward" in vars(layer):
        return False
    if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq):
        return False
    if isinstance(layer, nn.LSTM):
        return not layer.bidirectional and not layer.proj_size and set(own) <= set(layer._flat_weights_names)
    return set(own) <= {"weight", "bias"}  # others come from weight norm, pruning and the like


def _copy(parameter: Tensor | None) -> Any:
    return None if parameter is None else parameter.detach().requires_grad_()


# ---- forwards ----


def _linear(enter: Any, layer: nn.Linear, input: Tensor) -> Tensor:
    output = functional.linear(input, _copy(layer.weight), _copy(layer.bias))
    enter(output, range(output.dim() - 1), (input,), lambda g, x: {"weight": lambda: _matrix(x, g), "bias": lambda: _bias(g)})
    return output


def _conv(enter: Any, layer: Any, input: Tensor) -> Tensor:
    output: Tensor = layer._conv_forward(input, _copy(layer.weight), _copy(layer.bias))

    def parts(g: Tensor, x: Tensor) -> Parts:
        return {"weight": lambda: _kernel(layer, x, g), "bias": lambda: _bias(g.movedim(1, -1))}

    enter(output, range(output.dim() - layer.weight.dim() + 1), (input,), parts)
    return output


def _embedding(enter: Any, layer: nn.Embedding, input: Tensor) -> Tensor:
    output = functional.embedding(input, _copy(layer.weight), layer.padding_idx)
    enter(output, range(input.dim()), (input,), lambda g, tokens: {"weight": lambda: _table(layer, tokens, g)})
    return output


def _group_norm(enter: Any, layer: nn.GroupNorm, input: Tensor) -> Tensor:
    output = functional.group_norm(input, layer.num_groups, _copy(layer.weight), _copy(layer.bias), layer.eps)

    def parts(g: Tensor, x: Tensor) -> Parts:
        normal = functional.group_norm(x, layer.num_groups, eps=layer.eps)
        return {"weight": lambda: _bias((g * normal).movedim(1, -1)), "bias": lambda: _bias(g.movedim(1, -1))}

    enter(output, range(1), (input,), parts)
    return output


def _layer_norm(enter: Any, layer: nn.LayerNorm, input: Tensor) -> Tensor:
    shape = layer.normalized_shape
    output = functional.layer_norm(input, list(shape), _copy(layer.weight), _copy(layer.bias), layer.eps)

    def parts(g: Tensor, x: Tensor) -> Parts:
        normal = functional.layer_norm(x, list(shape), eps=layer.eps)
        return {"weight": lambda: _bias(g * normal, len(shape)), "bias": lambda: _bias(g, len(shape))}

    enter(output, range(output.dim() - len(shape)), (input,), parts)
    return output


def _lstm(enter: Any, layer: nn.LSTM, input: Any, hx: Any = None) -> Any:
    """Unrolled. The gradient of a level's projected input is that of its gates before they act, for all steps at once."""
    if not isinstance(input, Tensor) or input.dim() != 3:
        return nn.LSTM.forward(layer, input, hx)
    x = input.transpose(0, 1) if layer.batch_first else input
    zeros = x.new_zeros(layer.num_layers, x.shape[1], layer.hidden_size)
    h_0, c_0 = (zeros, zeros) if hx is None else hx
    last = []
    for level in range(layer.num_layers):
        names = [f"{kind}_l{level}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        w_x, w_h, *biases = (getattr(layer, name).detach() for name in names[: 4 if layer.bias else 2])
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
            pairs = cache(lambda: _pairs(g))
            each = (lambda: _matrix(x, g, pairs), lambda: _matrix(h, g, pairs), lambda: _bias(g), lambda: _bias(g))
            return dict(zip(names, each, strict=True))

        enter(projected, range(1, 2), (x, torch.stack([*before, *hidden[:-1]])), parts)
        x = torch.stack(hidden)
        last.append((h, c))
    h_n, c_n = (torch.stack(states) for states in zip(*last, strict=True))
    return x.transpose(0, 1) if layer.batch_first else x, (h_n, c_n)


FORWARDS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.Linear: _linear,
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Conv3d: _conv,
    nn.Embedding: _embedding,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.LSTM: _lstm,
}


# ---- shares ----


def materialised(gradients: Tensor) -> Share:
    """The share of a parameter whose gradients [B, ...] are there."""
    squares = torch.linalg.vector_norm(gradients.flatten(1), dim=1, dtype=torch.float64).square()
    return squares, lambda rows, weights: torch.tensordot(weights, _pick(gradients, rows), 1)


def _pick(examples: Tensor, rows: Tensor) -> Tensor:
    """Only the examples that count: a zero weight would not silence one that is not finite."""
    return examples if len(rows) == len(examples) else examples[rows]


def _bias(g: Tensor, axes: int = 1) -> Share:
    """What is added at every position of outputs [B, ..., O]; or O may be several `axes`."""
    return materialised(g.unsqueeze(1).flatten(1, -1 - axes).sum(1))


def _matrix(x: Tensor, g: Tensor, pairs_of_g: Callable[[], Tensor] | None = None) -> Share:
    """A weight that maps x [B, ..., D] to outputs with gradients g [B, ..., O]."""
    x, g = (t.unsqueeze(1).flatten(1, -2) for t in (x, g))
    if not _pairs_are_cheaper(x.shape[1], x.shape[2], g.shape[2]):
        return materialised(g.mT @ x)
    squares = _by_pairs(_pairs(x), pairs_of_g() if pairs_of_g else _pairs(g), x.dtype)
    return squares, _weighted_sum(lambda x, g: g.flatten(0, 1).t() @ x.flatten(0, 1), x, g)


def _kernel(layer: Any, x: Tensor, g: Tensor) -> Share:
    """A convolution's weight. With its own group of channels for each example, one convolution gives the gradients of all."""
    batch, shape, groups, spatial = len(x), layer.weight.shape, layer.groups, x.dim() - 2
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = functional.pad(x, layer._reversed_padding_repeated_twice, mode)
    of_weight = partial(
        (conv1d_weight, conv2d_weight, conv3d_weight)[spatial - 1], stride=layer.stride, dilation=layer.dilation
    )
    if not _pairs_are_cheaper(g[0, 0].numel(), shape[1:].numel(), shape[0] // groups):
        x, g = (t.flatten(0, 1).unsqueeze(0) for t in (x, g))
        return materialised(of_weight(x, (batch * shape[0], *shape[1:]), g, groups=batch * groups).view(batch, *shape))
    patches = x
    for axis, (size, stride, dilation) in enumerate(zip(shape[2:], layer.stride, layer.dilation, strict=True), 2):
        patches = patches.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    patches = _split(patches, groups).movedim(2, 2 + spatial).flatten(2, 1 + spatial).flatten(3).flatten(0, 1)
    pairs = _pairs(patches), _pairs(_split(g, groups).flatten(3).flatten(0, 1).mT)
    squares = _by_pairs(*pairs, x.dtype).view(batch, groups).sum(1)
    return squares, _weighted_sum(lambda x, g: of_weight(x, shape, g, groups=groups), x, g)


def _split(channels: Tensor, groups: int) -> Tensor:
    """[B, C, ...] as [B, groups, C / groups, ...]."""
    return channels.reshape(len(channels), groups, channels.shape[1] // groups, *channels.shape[2:])


def _table(layer: nn.Embedding, tokens: Tensor, g: Tensor) -> Share:
    """An embedding's weight: a gradient for each (example, token) that occurs."""
    if layer.padding_idx is not None:
        g = g.masked_fill((tokens == layer.padding_idx).unsqueeze(-1), 0)
    batch, entries, width = len(tokens), layer.num_embeddings, layer.embedding_dim
    keys = torch.arange(batch).unsqueeze(1) * entries + tokens.reshape(batch, -1)
    keys, places = torch.unique(keys, return_inverse=True)
    gradients = g.new_zeros(len(keys), width).index_add_(0, places.flatten(), g.reshape(-1, width))
    examples, numbers = keys // entries, keys % entries
    squares, _ = materialised(gradients)

    def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
        of_example = weights.new_zeros(batch).index_copy_(0, rows, weights)
        chosen = of_example[examples].nonzero().squeeze(1)
        scaled = gradients[chosen] * of_example[examples[chosen]].unsqueeze(1)
        return g.new_zeros(entries, width).index_add_(0, numbers[chosen], scaled)

    return torch.zeros(batch, dtype=torch.float64).index_add_(0, examples, squares), weighted_sum


def _pairs_are_cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Whether all pairs of positions are less work than gradients [outputs, inputs], which would also have to be kept."""
    return 2 * positions * (inputs + outputs) <= inputs * outputs


def _pairs(positions: Tensor) -> Tensor:
    """The products [B, L, L] of all pairs of positions, in float64."""
    positions = positions.double()
    return positions @ positions.mT


def _by_pairs(of_x: Tensor, of_g: Tensor, kind: torch.dtype) -> Tensor:
    """|sum_t g_t x_t'|^2 = sum_st (x_s' x_t)(g_s' g_t) for each example. What cancels here leaves its rounding in the weighted
    sum all the same, so that is added: the norm must not be smaller than what it is to bound."""
    rounding = (16 * torch.finfo(kind).eps) ** 2 + 16 * torch.finfo(torch.float64).eps
    products = of_x * of_g
    largest = products.diagonal(dim1=1, dim2=2).sum(1) * products.shape[1]
    return products.flatten(1).sum(1).clamp(min=0) + rounding * largest


def _weighted_sum(product: Callable[[Tensor, Tensor], Tensor], x: Tensor, g: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """product(x, weighted g), in float64 if x is so huge that what is lost of tiny g matters."""

    def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
        some_x, some_g, kind = _pick(x, rows), _pick(g, rows), x.dtype
        if some_x.numel() and float(torch.linalg.vector_norm(some_x, torch.inf)) > HUGE:
            some_x, some_g, weights = some_x.double(), some_g.double(), weights.double()
        return product(some_x, some_g * weights.reshape(-1, *(1 for _ in g.shape[1:]))).to(kind)

    return weighted_sum
