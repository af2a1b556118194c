"""`fix`: a model whose norms learn nothing outside of its parameters."""

import copy
from typing import NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from equipoise.errors import require
from equipoise.privacy.per_example.layers import is_fixed

GROUPS = 32  # at most, as Wu and He have it in "Group normalization" (2018)
CHANNELS = 8  # in a group, at least: few numbers have no statistics worth the name


class Fixed(NamedTuple):
    """What became of a model.

    model    a copy in which no layer learns from other examples
    changes  what was changed in it, a sentence for each layer
    """

    model: nn.Module
    changes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.changes) or "nothing had to be changed"


def fix(model: nn.Module) -> Fixed:
    """A copy of a model with nn.GroupNorm in the place of every batch norm, and with instance norms
    that keep no running statistics; print it to see what was changed.

    Factors and shifts stay as they are, running statistics are dropped: train, or fine-tune, the
    model that comes out. A batch norm in eval mode learns nothing and stays.

    model  any module; it is left as it is

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    >>> equipoise.fix(model).model
    Sequential(
      (0): Linear(in_features=4, out_features=8, bias=True)
      (1): GroupNorm(1, 8, eps=1e-05, affine=True, bias=True)
    )
    """
    require(isinstance(model, nn.Module), f"model={type(model).__name__} is not a torch nn.Module")
    fixed = copy.deepcopy(model)
    changes: dict[int, tuple[nn.Module, str]] = {}
    for name, part in list(fixed.named_modules(remove_duplicate=False)):
        other = _other(part) if isinstance(part, _NormBase) and not is_fixed(part) else None
        if other is None:
            continue
        other, _ = changes.setdefault(
            id(part), (other, f"layer {name or 'model'}: {part} became {other}")
        )
        if name:
            parent, _, last = name.rpartition(".")
            setattr(fixed.get_submodule(parent), last, other)
        else:
            fixed = other
    return Fixed(fixed, tuple(sentence for _, sentence in changes.values()))


def _other(norm: _NormBase) -> nn.Module | None:
    """What takes a norm's place; None if it keeps no statistics and does not look at the batch."""
    if isinstance(norm, _InstanceNorm):
        if not norm.track_running_stats:
            return None
        other = copy.deepcopy(norm)
        other.track_running_stats = False
        other.running_mean = other.running_var = other.num_batches_tracked = None
        return other
    assert isinstance(norm, _BatchNorm)
    groups = nn.GroupNorm(_groups(norm.num_features), norm.num_features, norm.eps, norm.affine)
    if norm.affine:
        groups.weight, groups.bias = norm.weight, norm.bias
    return groups.train(norm.training)


def _groups(channels: int) -> int:
    """The most groups that are of one size and not too small."""
    most = max(1, min(GROUPS, channels // CHANNELS))
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)
