"""The layers that keep books: a forward for each kind, on copies of its parameters, which says how
the parameters' gradients follow from the gradient of the output.

A forward calls `enter(output, axes, saved, parts)`: which axes of the output may be the batch, what
else to save, and `parts(gradient of the output, *saved)`, all with the batch on axis 0.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from equipoise.privacy.per_example.attention import attention, is_plain_attention
from equipoise.privacy.per_example.copies import copied, linear
from equipoise.privacy.per_example.shares import (
    Formed,
    Kernel,
    Matrix,
    Table,
    Use,
    all_pairs,
    bias,
)

IN_ATTENTION = {
    *("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
    "in_proj_bias",
}
Parts = dict[str, Use]
"""By the names that a layer has for its parameters."""


def is_known(layer: nn.Module) -> bool:
    """Whether the layer has something to train, and is of a kind that keeps books."""
    if type(layer) not in FORWARDS or "forward" in vars(layer):
        return False
    if not any(parameter.requires_grad for parameter in layer.parameters()):
        return False
    own = dict(layer.named_parameters(recurse=False))
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq and set(own) <= {"weight"}
    if isinstance(layer, nn.LSTM):
        return (
            not layer.bidirectional
            and not layer.proj_size
            and set(own) <= set(layer._flat_weights_names)
        )
    if isinstance(layer, _BatchNorm) and not is_fixed(layer):
        return False
    if isinstance(layer, nn.MultiheadAttention):
        return is_plain_attention(layer) and set(own) <= IN_ATTENTION
    return set(own) <= {"weight", "bias"}  # others come from weight norm, pruning and the like


def is_fixed(layer: _NormBase) -> bool:
    """Whether a norm with statistics uses those that it has, and learns no others."""
    return not layer.training and layer.running_mean is not None


def _linear(enter: Any, layer: nn.Linear, input: Tensor) -> Tensor:
    output = linear(input, copied(layer.weight), copied(layer.bias))
    enter(
        output,
        range(output.dim() - 1),
        (input,),
        lambda g, x: {"weight": Matrix(x, g), "bias": bias(g)},
    )
    return output


def _conv(enter: Any, layer: Any, input: Tensor) -> Tensor:
    output: Tensor = layer._conv_forward(input, copied(layer.weight), copied(layer.bias))

    def parts(g: Tensor, x: Tensor) -> Parts:
        return {"weight": Kernel(layer, x, g), "bias": bias(g.movedim(1, -1))}

    enter(output, range(output.dim() - layer.weight.dim() + 1), (input,), parts)
    return output


def _embedding(enter: Any, layer: nn.Embedding, input: Tensor) -> Tensor:
    output = functional.embedding(input, copied(layer.weight), layer.padding_idx)
    enter(
        output,
        range(input.dim()),
        (input,),
        lambda g, tokens: {"weight": Table(tokens, g, layer.num_embeddings, layer.padding_idx)},
    )
    return output


def _of_norm(g: Tensor, normal: Callable[[], Tensor], axes: int = 1) -> Parts:
    """Of a factor and a shift for every number that was made normal, on the last axes."""
    factor = Formed(lambda: bias(g * normal(), axes).gradients())
    return {"weight": factor, "bias": bias(g, axes)}


def _group_norm(enter: Any, layer: nn.GroupNorm, input: Tensor) -> Tensor:
    output = functional.group_norm(
        input, layer.num_groups, copied(layer.weight), copied(layer.bias), layer.eps
    )

    def parts(g: Tensor, x: Tensor) -> Parts:
        def normal() -> Tensor:
            return functional.group_norm(x, layer.num_groups, eps=layer.eps).movedim(1, -1)

        return _of_norm(g.movedim(1, -1), normal)

    enter(output, range(1), (input,), parts)
    return output


def _layer_norm(enter: Any, layer: nn.LayerNorm, input: Tensor) -> Tensor:
    shape = list(layer.normalized_shape)
    output = functional.layer_norm(
        input, shape, copied(layer.weight), copied(layer.bias), layer.eps
    )

    def parts(g: Tensor, x: Tensor) -> Parts:
        return _of_norm(g, lambda: functional.layer_norm(x, shape, eps=layer.eps), len(shape))

    enter(output, range(output.dim() - len(shape)), (input,), parts)
    return output


def _rms_norm(enter: Any, layer: nn.RMSNorm, input: Tensor) -> Tensor:
    shape = list(layer.normalized_shape)
    output = functional.rms_norm(input, shape, copied(layer.weight), layer.eps)

    def parts(g: Tensor, x: Tensor) -> Parts:
        return _of_norm(g, lambda: functional.rms_norm(x, shape, eps=layer.eps), len(shape))

    enter(output, range(output.dim() - len(shape)), (input,), parts)
    return output


def _fixed_norm(enter: Any, layer: _NormBase, input: Tensor) -> Tensor:
    """A batch norm with the statistics that it has."""
    layer._check_input_dim(input)  # type: ignore[no-untyped-call]
    mean, variance = layer.running_mean, layer.running_var
    output = functional.batch_norm(
        input, mean, variance, copied(layer.weight), copied(layer.bias), eps=layer.eps
    )

    def parts(g: Tensor, x: Tensor) -> Parts:
        def normal() -> Tensor:
            return functional.batch_norm(x, mean, variance, eps=layer.eps).movedim(1, -1)

        return _of_norm(g.movedim(1, -1), normal)

    enter(output, range(1), (input,), parts)
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
        projected = linear(x, copied(w_x), sum(biases) if biases else None)
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
            each = (Matrix(x, g, pairs), Matrix(h, g, pairs), bias(g), bias(g))
            return dict(zip(names, each, strict=True))

        enter(projected, range(1, 2), (x, torch.stack([*before, *hidden[:-1]])), parts)
        x = torch.stack(hidden)
        last.append((h, c))
    h_n, c_n = (torch.stack(states) for states in zip(*last, strict=True))
    return x.transpose(0, 1) if layer.batch_first else x, (h_n, c_n)


def _prelu(enter: Any, layer: nn.PReLU, input: Tensor) -> Tensor:
    """One slope below zero for all, or one for each channel."""
    output = functional.prelu(input, copied(layer.weight))
    single = layer.weight.numel() == 1

    def parts(g: Tensor, x: Tensor) -> Parts:
        below = g * x.clamp(max=0)
        return {"weight": bias(below.unsqueeze(-1) if single else below.movedim(1, -1))}

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
    nn.RMSNorm: _rms_norm,
    nn.BatchNorm1d: _fixed_norm,
    nn.BatchNorm2d: _fixed_norm,
    nn.BatchNorm3d: _fixed_norm,
    nn.MultiheadAttention: attention,
    nn.LSTM: _lstm,
    nn.PReLU: _prelu,
}
