"""Clip and the Gaussian release: what turns a private update into something that may leave (Alg. 1,
l. 9-10)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.privacy.noise import NoiseSource

_SMALLEST, _EPS = torch.finfo(torch.float64).tiny, torch.finfo(torch.float64).eps
# lengths below this, and thresholds above its inverse, are far from what float32 cannot hold
_ORDINARY = 1e15


@dataclass(frozen=True)
class ClippedRelease:
    """Release clip(update) + N(0, sigma^2 I), for the update of each client on the last axis.

    Without noise (`sigma` = 0) and without bound (`clip` = inf) it is the identity: not private,
    the same code. Both may be tensors that broadcast against the update, e.g. [runs, 1, 1].
    """

    clip: float | Tensor
    sigma: float | Tensor

    def __post_init__(self) -> None:
        noisy, unclipped = _double(self.sigma) > 0, _double(self.clip).isinf()
        require(
            not bool((noisy & unclipped).any()),
            "clip=inf with noise: unclipped updates have unbounded sensitivity",
        )

    def release(self, update: Tensor, noise: NoiseSource, round: int) -> Tensor:
        return _noised(clip(zero_unless_finite(update), self.clip), self.sigma, noise, round)


@dataclass(frozen=True)
class NoisedRelease:
    """Release update + N(0, sigma^2 I): for updates of bounded sensitivity, which need no clip."""

    sigma: float | Tensor

    def release(self, update: Tensor, noise: NoiseSource, round: int) -> Tensor:
        return _noised(zero_unless_finite(update), self.sigma, noise, round)


@dataclass(frozen=True)
class AsItIs:
    """Release the update itself: for updates that are made of noised gradients."""

    def release(self, update: Tensor, noise: NoiseSource, round: int) -> Tensor:
        return zero_unless_finite(update)


def _noised(sent: Tensor, sigma: float | Tensor, noise: NoiseSource, round: int) -> Tensor:
    if not _double(sigma).any():
        return sent
    normals = torch.tensor(noise.normals(round, tuple(sent.shape)))
    return sent + (sigma * normals).to(sent.dtype)


def zero_unless_finite(update: Tensor) -> Tensor:
    """A client's update that overflowed becomes the zero vector: to stop instead would reveal
    it.
    """
    finite = is_finite(update)
    return update if finite.all() else torch.where(finite, update, 0.0)


def is_finite(update: Tensor) -> Tensor:
    """Whether all entries of each update are finite, [..., 1]. If one is not, neither is their sum,
    which is quickly had."""
    quick = update.sum(-1, keepdim=True).isfinite()
    return quick if quick.all() else update.isfinite().all(-1, keepdim=True)


def clip(update: Tensor, C: float | Tensor) -> Tensor:
    """min(1, C / |update|) update, along the last axis; a zero update stays zero.

    The norm is taken in float64, and out of the ordinary range of the update scaled to largest
    entry 1, so that it neither overflows nor vanishes. Rounding must not push the result past C,
    which is what the noise is made for: so the threshold is C less what rounding can add, and half
    precision is widened to float32.
    """
    wide = torch.promote_types(update.dtype, torch.float32)
    threshold = C * (
        1 - torch.finfo(wide).eps * (8 + math.log2(update.shape[-1])) - _EPS * update.shape[-1]
    )
    length = torch.linalg.vector_norm(update, dim=-1, keepdim=True, dtype=torch.float64)
    if bool((length < _ORDINARY).all()) and bool((_double(threshold) > 1 / _ORDINARY).all()):
        factor: Tensor = (threshold / length).clamp(max=1.0).to(wide)
        return update.to(wide) * factor
    largest = update.abs().amax(-1, keepdim=True).double().clamp_min(_SMALLEST)
    scaled = update / largest
    length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True, dtype=torch.float64)
    return torch.where(largest * length <= threshold, update, scaled * (threshold / length)).to(
        wide
    )


def _double(value: float | Tensor) -> Tensor:
    """A number or tensor in float64, whatever torch's default is: a tiny sigma must not become
    zero."""
    return torch.as_tensor(value, dtype=torch.float64)
