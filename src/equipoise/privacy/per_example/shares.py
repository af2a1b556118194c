"""Shares: what one parameter adds to the gradients of all examples of a batch, from what went into
its layer and the gradients of what came out. Every share has the examples' squared norms, and gives
the sum of their gradients with any weights.

A parameter may be used several times: by a layer that is called twice, or by two layers that share
it. Then its gradient is the sum over its uses, of which the norm is not that of any one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

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


class Use(Protocol):
    """One use of a parameter by all examples of a batch."""

    def share(self) -> Share:
        """The share of a parameter that is used only so."""
        ...

    def gradients(self) -> Tensor:
        """[B, ...], one for each example."""
        ...


@dataclass(frozen=True)
class Formed:
    """Gradients [B, ...] that are no larger than what they are formed of."""

    gradients: Callable[[], Tensor]

    def share(self) -> Share:
        return materialised(self.gradients())


def bias(g: Tensor, axes: int = 1) -> Formed:
    """What is added at every position of outputs [B, ..., O]; or O may be several `axes`."""
    return Formed(lambda: g.unsqueeze(1).flatten(1, -1 - axes).sum(1))


@dataclass(frozen=True)
class Matrix:
    """A weight [O, D] that maps x [B, ..., D] to outputs with gradients g [B, ..., O]."""

    x: Tensor
    g: Tensor
    pairs_of_g: Callable[[], Tensor] | None = None

    def positions(self) -> tuple[Tensor, Tensor]:
        """x [B, L, D] and g [B, L, O]."""
        x, g = (t.unsqueeze(1).flatten(1, -2) for t in (self.x, self.g))
        return x, g

    def gradients(self) -> Tensor:
        x, g = self.positions()
        return g.mT @ x

    def share(self) -> Share:
        x, g = self.positions()
        if not _pairs_are_cheaper(x.shape[1], x.shape[2], g.shape[2]):
            return materialised(g.mT @ x)
        pairs_of_g = self.pairs_of_g() if self.pairs_of_g else all_pairs(g)
        return _by_pairs(all_pairs(x), pairs_of_g, x.dtype), self.weighted_sum

    def weighted_sum(self, rows: Tensor, weights: Tensor) -> Tensor:
        x, g = self.positions()
        return _weighted_sum(lambda x, g: g.flatten(0, 1).t() @ x.flatten(0, 1), x, g)(
            rows, weights
        )


@dataclass(frozen=True)
class Kernel:
    """A convolution's weight. With its own group of channels for each example, one convolution
    gives the gradients of all."""

    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d
    x: Tensor
    g: Tensor

    def padded(self) -> Tensor:
        layer = self.layer
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        return functional.pad(self.x, layer._reversed_padding_repeated_twice, mode)

    def of_weight(self) -> Callable[..., Tensor]:
        return partial(
            (conv1d_weight, conv2d_weight, conv3d_weight)[self.x.dim() - 3],
            stride=self.layer.stride,
            dilation=self.layer.dilation,
        )

    def gradients(self) -> Tensor:
        batch, shape, groups = len(self.x), self.layer.weight.shape, self.layer.groups
        x, g = (t.flatten(0, 1).unsqueeze(0) for t in (self.padded(), self.g))
        return self.of_weight()(x, (batch * shape[0], *shape[1:]), g, groups=batch * groups).view(
            batch, *shape
        )

    def share(self) -> Share:
        layer, x, g = self.layer, self.x, self.g
        batch, shape, groups, spatial = len(x), layer.weight.shape, layer.groups, x.dim() - 2
        if not _pairs_are_cheaper(g[0, 0].numel(), shape[1:].numel(), shape[0] // groups):
            return materialised(self.gradients())
        x = self.padded()
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
        of_weight = self.of_weight()
        return squares, _weighted_sum(lambda x, g: of_weight(x, shape, g, groups=groups), x, g)


def _split(channels: Tensor, groups: int) -> Tensor:
    """[B, C, ...] as [B, groups, C / groups, ...]."""
    return channels.reshape(len(channels), groups, channels.shape[1] // groups, *channels.shape[2:])


@dataclass(frozen=True)
class Table:
    """An embedding's weight [entries, D]: `tokens` [B, ...] were looked up, and g [B, ..., D] are
    the gradients of what was found; nothing is learnt from the token that fills up."""

    tokens: Tensor
    g: Tensor
    entries: int
    filler: int | None

    def positions(self) -> tuple[Tensor, Tensor]:
        """tokens [B, L] and g [B, L, D]."""
        g = self.g
        if self.filler is not None:
            g = g.masked_fill((self.tokens == self.filler).unsqueeze(-1), 0)
        return self.tokens.reshape(len(g), -1), g.reshape(len(g), -1, g.shape[-1])

    def gradients(self) -> Tensor:
        tokens, g = self.positions()
        formed = g.new_zeros(len(g), self.entries, g.shape[2])
        return formed.scatter_add_(1, tokens.unsqueeze(2).expand_as(g), g)

    def share(self) -> Share:
        """A gradient for each (example, token) that occurs."""
        tokens, g = self.positions()
        batch, width = len(g), g.shape[2]
        rows = torch.arange(batch, device=tokens.device).unsqueeze(1)
        keys = rows * self.entries + tokens
        keys, places = torch.unique(keys, return_inverse=True)
        gradients = g.new_zeros(len(keys), width).index_add_(
            0, places.flatten(), g.reshape(-1, width)
        )
        examples, numbers = keys // self.entries, keys % self.entries
        squares, _ = materialised(gradients)

        def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
            of_example = weights.new_zeros(batch).index_copy_(0, rows, weights)
            chosen = of_example[examples].nonzero().squeeze(1)
            scaled = gradients[chosen] * of_example[examples[chosen]].unsqueeze(1)
            return g.new_zeros(self.entries, width).index_add_(0, numbers[chosen], scaled)

        return squares.new_zeros(batch).index_add_(0, examples, squares), weighted_sum

    def weighted_sum(self, rows: Tensor, weights: Tensor) -> Tensor:
        tokens, g = (_pick(part, rows) for part in self.positions())
        scaled = (g * weights.view(-1, 1, 1)).flatten(0, 1)
        return g.new_zeros(self.entries, g.shape[2]).index_add_(0, tokens.flatten(), scaled)


def of_uses(uses: Sequence[Use]) -> Share:
    """The share of a parameter that is used in all of these ways."""
    if len(uses) == 1:
        return uses[0].share()
    matrices = [use for use in uses if isinstance(use, Matrix)]
    tables = [use for use in uses if isinstance(use, Table)]
    joined = _joined(matrices)[:1]
    if len(matrices) == len(uses):
        return joined[0].share()
    if joined and len(matrices) + len(tables) == len(uses):
        (x, g), length = joined[0].positions(), sum(use.positions()[1].shape[1] for use in tables)
        if _pairs_are_cheaper(g.shape[1] + length, x.shape[2], g.shape[2]):
            return _of_matrix_and_tables(joined[0], tables)
    return materialised(torch.stack([use.gradients() for use in uses]).sum(0))


def _joined(matrices: Sequence[Matrix]) -> list[Matrix]:
    """One use, at the positions of all."""
    if not matrices:
        return []
    x, g = zip(*(matrix.positions() for matrix in matrices), strict=True)
    return [Matrix(torch.cat(x, 1), torch.cat(g, 1))]


def _of_matrix_and_tables(matrix: Matrix, tables: Sequence[Table]) -> Share:
    """Of a weight [O, D] that also is the table of O tokens. At a position where token k was looked
    up the gradient is e_k h', where e_k is one at k alone and h is what the table's output has; at
    one where x was mapped it is g x'. Norms follow from all pairs of both kinds of positions."""
    x, g = matrix.positions()
    tokens, h = (
        torch.cat(side, 1) for side in zip(*(use.positions() for use in tables), strict=True)
    )
    alike = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).double()
    met = g.double().gather(2, tokens.unsqueeze(1).expand(-1, g.shape[1], -1))
    inner = all_pairs(torch.cat([x, h], 1))
    outer = torch.cat([torch.cat([all_pairs(g), met], 2), torch.cat([met.mT, alike], 2)], 1)

    def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
        return matrix.weighted_sum(rows, weights) + sum(
            (use.weighted_sum(rows, weights) for use in tables), g.new_zeros(())
        )

    return _by_pairs(inner, outer, x.dtype), weighted_sum


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
