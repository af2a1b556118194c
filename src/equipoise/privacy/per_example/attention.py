"""nn.MultiheadAttention with books: its projections are linear layers, and what is between them has
nothing to train."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipoise.privacy.per_example.copies import copied, linear
from equipoise.privacy.per_example.shares import Matrix, Use, bias


def is_plain_attention(layer: nn.MultiheadAttention) -> bool:
    """Whether keys and values are the projected ones and no others."""
    return layer.bias_k is None and layer.bias_v is None and not layer.add_zero_attn


def attention(
    enter: Any,
    layer: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As nn.MultiheadAttention.forward."""
    options = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
    if query.dim() != 3 or (is_causal and attn_mask is None):  # which torch refuses
        return nn.MultiheadAttention.forward(layer, query, key, value, *options)
    if is_causal and key_padding_mask is None and not need_weights:
        mask = None
    else:
        is_causal = False
        mask = _mask(layer, query, key_padding_mask, attn_mask)
    q, k, v = (
        _heads(layer, projected) for projected in _projected(enter, layer, query, key, value)
    )
    drop = layer.dropout if layer.training else 0.0
    weights = None
    if need_weights:
        scores = (q * math.sqrt(1 / layer.head_dim)) @ k.mT
        weights = functional.softmax(scores if mask is None else scores + mask, -1)
        weights = functional.dropout(weights, drop) if drop else weights
        mixed = weights @ v
    else:
        mixed = functional.scaled_dot_product_attention(q, k, v, mask, drop, is_causal)
    # [B, heads, L, width] as [B, L, E], or [L, B, E]
    joined = mixed.permute(*((0, 2, 1, 3) if layer.batch_first else (2, 0, 1, 3))).flatten(2)
    last = layer.out_proj
    output = linear(joined, copied(last.weight), copied(last.bias))
    enter(output, range(2), (joined,), _parts("out_proj.weight", "out_proj.bias"))
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    return output, weights


def _projected(
    enter: Any, layer: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor
) -> list[Tensor]:
    """Queries, keys and values. One matrix may hold what projects several of them: then its rows
    from `start` on are for this one."""
    width, offset = layer.embed_dim, layer.in_proj_bias
    if layer._qkv_same_embed_dim and query is key and key is value:
        output = linear(query, copied(layer.in_proj_weight), copied(offset))
        enter(output, range(2), (query,), _parts("in_proj_weight", "in_proj_bias"))
        return list(output.chunk(3, -1))
    outputs = []
    for number, (letter, input) in enumerate(zip("qkv", (query, key, value), strict=True)):
        rows, around = slice(number * width, (number + 1) * width), _around(number, width)
        if layer._qkv_same_embed_dim:
            name, weight = "in_proj_weight", layer.in_proj_weight[rows]
        else:
            name, weight = f"{letter}_proj_weight", getattr(layer, f"{letter}_proj_weight")
        shift = None if offset is None else offset[rows]
        output = linear(input, copied(weight), copied(shift))
        parts = _parts(name, "in_proj_bias", around, layer._qkv_same_embed_dim)
        enter(output, range(2), (input,), parts)
        outputs.append(output)
    return outputs


def _around(number: int, width: int) -> tuple[int, int]:
    """How many zeros stand before and after the gradient of one of three."""
    return number * width, (2 - number) * width


def _parts(weight: str, offset: str, around: tuple[int, int] = (0, 0), packed: bool = False) -> Any:
    """The uses of a matrix and of what is added; of packed ones some rows are used."""

    def parts(g: Tensor, x: Tensor) -> dict[str, Use]:
        wide = functional.pad(g, around)
        return {weight: Matrix(x, wide if packed else g), offset: bias(wide)}

    return parts


def _heads(layer: nn.MultiheadAttention, projected: Tensor) -> Tensor:
    """[B, L, E], or [L, B, E], as [B, heads, L, width]."""
    split = projected.view(*projected.shape[:2], layer.num_heads, layer.head_dim)
    return split.permute(*((0, 2, 1, 3) if layer.batch_first else (1, 2, 0, 3)))


def _mask(
    layer: nn.MultiheadAttention, query: Tensor, padding: Tensor | None, mask: Tensor | None
) -> Tensor | None:
    """What is added to scores [B, heads, L, S]: minus infinity where nobody may look."""
    parts = []
    if mask is not None:
        shape = (-1, layer.num_heads) if mask.dim() == 3 else (1, 1)
        parts.append(_added(mask, query.dtype).view(*shape, *mask.shape[-2:]))
    if padding is not None:
        parts.append(_added(padding, query.dtype)[:, None, None])
    return sum(parts[1:], parts[0]) if parts else None


def _added(mask: Tensor, kind: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(kind)
    return torch.zeros_like(mask, dtype=kind).masked_fill_(mask, -math.inf)
