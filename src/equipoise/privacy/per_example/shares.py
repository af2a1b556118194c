"""Shares: what one parameter adds to the gradients of all examples of a batch, from what went into
its layer and the gradients of what came out. Every share has the examples' squared norms, and gives
the sum of their gradients with any weights.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

Share = tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]
"""A parameter's part in the examples' gradients: squared norms [B], and (rows, weights) -> the
weighted sum over these rows."""

HUGE = 1e20  # a factor that makes the rounding of tiny float32 numbers matter
PIECE = 2**18  # how many numbers are turned into float64 at a time


def materialised(gradients: Tensor) -> Share:
    """The share of a parameter whose gradients [B, ...] are there; of one that is a number, [B]."""
    flat = gradients.unsqueeze(-1).flatten(1)
    some = torch.split(flat, max(1, PIECE // max(1, flat.shape[1])))
    squares = torch.cat(
        [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in some]
    ).square()
    return squares, lambda rows, weights: torch.tensordot(weights, _pick(gradients, rows), 1)


def _pick(examples: Tensor, rows: Tensor) -> Tensor:
    """Only the examples that count: a zero weight would not silence one that is not finite."""
    return examples if len(rows) == len(examples) else examples[rows]


def of_bias(g: Tensor, axes: int = 1) -> Share:
    """What is added at every position of outputs [B, ..., O]; or O may be several `axes`."""
    return materialised(g.unsqueeze(1).flatten(1, -1 - axes).sum(1))


def of_matrix(x: Tensor, g: Tensor, pairs_of_g: Callable[[], Tensor] | None = None) -> Share:
    """A weight that maps x [B, ..., D] to outputs with gradients g [B, ..., O]."""
    x, g = (t.unsqueeze(1).flatten(1, -2) for t in (x, g))
    if not _pairs_are_cheaper(x.shape[1], x.shape[2], g.shape[2]):
        return materialised(g.mT @ x)
    squares = _by_pairs(all_pairs(x), pairs_of_g() if pairs_of_g else all_pairs(g), x.dtype)
    return squares, _weighted_sum(lambda x, g: g.flatten(0, 1).t() @ x.flatten(0, 1), x, g)


def of_kernel(layer: Any, x: Tensor, g: Tensor) -> Share:
    """A convolution's weight. With its own group of channels for each example, one convolution
    gives the gradients of all."""
    batch, shape, groups, spatial = len(x), layer.weight.shape, layer.groups, x.dim() - 2
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = functional.pad(x, layer._reversed_padding_repeated_twice, mode)
    of_weight = partial(
        (conv1d_weight, conv2d_weight, conv3d_weight)[spatial - 1],
        stride=layer.stride,
        dilation=layer.dilation,
    )
    if not _pairs_are_cheaper(g[0, 0].numel(), shape[1:].numel(), shape[0] // groups):
        x, g = (t.flatten(0, 1).unsqueeze(0) for t in (x, g))
        return materialised(
            of_weight(x, (batch * shape[0], *shape[1:]), g, groups=batch * groups).view(
                batch, *shape
            )
        )
    patches = x
    for axis, (size, stride, dilation) in enumerate(
        zip(shape[2:], layer.stride, layer.dilation, strict=True), 2
    ):
        patches = patches.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    patches = (
        _split(patches, groups)
        .movedim(2, 2 + spatial)
        .flatten(2, 1 + spatial)
        .flatten(3)
        .flatten(0, 1)
    )
    pairs = all_pairs(patches), all_pairs(_split(g, groups).flatten(3).flatten(0, 1).mT)
    squares = _by_pairs(*pairs, x.dtype).view(batch, groups).sum(1)
    return squares, _weighted_sum(lambda x, g: of_weight(x, shape, g, groups=groups), x, g)


def _split(channels: Tensor, groups: int) -> Tensor:
    """[B, C, ...] as [B, groups, C / groups, ...]."""
    return channels.reshape(len(channels), groups, channels.shape[1] // groups, *channels.shape[2:])


def of_table(layer: nn.Embedding, tokens: Tensor, g: Tensor) -> Share:
    """An embedding's weight: a gradient for each (example, token) that occurs."""
    if layer.padding_idx is not None:
        g = g.masked_fill((tokens == layer.padding_idx).unsqueeze(-1), 0)
    batch, entries, width = len(tokens), layer.num_embeddings, layer.embedding_dim
    row = torch.arange(batch, device=tokens.device).unsqueeze(1)
    keys = row * entries + tokens.reshape(batch, -1)
    keys, places = torch.unique(keys, return_inverse=True)
    gradients = g.new_zeros(len(keys), width).index_add_(0, places.flatten(), g.reshape(-1, width))
    examples, numbers = keys // entries, keys % entries
    squares, _ = materialised(gradients)

    def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
        of_example = weights.new_zeros(batch).index_copy_(0, rows, weights)
        chosen = of_example[examples].nonzero().squeeze(1)
        scaled = gradients[chosen] * of_example[examples[chosen]].unsqueeze(1)
        return g.new_zeros(entries, width).index_add_(0, numbers[chosen], scaled)

    return squares.new_zeros(batch).index_add_(0, examples, squares), weighted_sum


def _pairs_are_cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Whether all pairs of positions are less work than gradients [outputs, inputs], which would
    also have to be kept."""
    return 2 * positions * (inputs + outputs) <= inputs * outputs


def all_pairs(positions: Tensor) -> Tensor:
    """The products [B, L, L] of all pairs of positions, in float64."""
    positions = positions.double()
    return positions @ positions.mT


def _by_pairs(of_x: Tensor, of_g: Tensor, kind: torch.dtype) -> Tensor:
    """|sum_t g_t x_t'|^2 = sum_st (x_s' x_t)(g_s' g_t) for each example. What cancels here leaves
    its rounding in the weighted sum all the same, so that is added: the norm must not be smaller
    than what it is to bound."""
    rounding = (16 * torch.finfo(kind).eps) ** 2 + 16 * torch.finfo(torch.float64).eps
    products = of_x * of_g
    largest = products.diagonal(dim1=1, dim2=2).sum(1) * products.shape[1]
    return products.flatten(1).sum(1).clamp(min=0) + rounding * largest


def _weighted_sum(
    product: Callable[[Tensor, Tensor], Tensor], x: Tensor, g: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """product(x, weighted g), in float64 if x is so huge that what is lost of tiny g matters."""

    def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
        some_x, some_g, kind = _pick(x, rows), _pick(g, rows), x.dtype
        if some_x.numel() and float(torch.linalg.vector_norm(some_x, torch.inf)) > HUGE:
            some_x, some_g, weights = some_x.double(), some_g.double(), weights.double()
        return product(some_x, some_g * weights.reshape(-1, *(1 for _ in g.shape[1:]))).to(kind)

    return weighted_sum
