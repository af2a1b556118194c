"""Clip and noise: what turns a private update into something that may leave (Alg. 1, l. 9-10)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.device import has_double
from equipoise.errors import require
from equipoise.facts import Weights
from equipoise.privacy.lattice import BITS, NOT_ROUNDED, Lattice, spacing
from equipoise.privacy.noise import NoiseSource
from equipoise.privacy.samplers import Law

_SMALLEST, _EPS = torch.finfo(torch.float64).tiny, torch.finfo(torch.float64).eps
# lengths below this, and thresholds above its inverse, are far from what float32 cannot hold
_ORDINARY = 1e15


@dataclass(frozen=True)
class ClippedRelease:
    """Release clip(update) + noise of standard deviation sigma, for the update of each client on
    the last axis.

    What leaves is a whole multiple of the lattice's step gamma in every coordinate. The clip is C -
    gamma sqrt(d) / 2, so that the update is no longer than C after it was rounded to the lattice.
    Without noise (`sigma` = 0) and without bound (`clip` = inf) it is the identity: not private,
    the same code. All may be tensors that broadcast against the update, e.g. [runs, 1, 1]. The
    lattice is that of a message that is seen by itself, unless it is said. What is sent of a client
    that counts less than another is `share`, at most 1, times its clipped update.
    """

    clip: float | Tensor
    sigma: float | Tensor
    lattice: Lattice = None  # type: ignore[assignment]  # made below
    share: float | Tensor = 1.0

    def __post_init__(self) -> None:
        noisy, unclipped = _double(self.sigma) > 0, _double(self.clip).isinf()
        require(
            not bool((noisy & unclipped).any()),
            "clip=inf with noise: unclipped updates have unbounded sensitivity",
        )
        if self.lattice is None:
            object.__setattr__(self, "lattice", own_lattice(self.clip, self.sigma))

    def release(self, update: Tensor, noise: NoiseSource, round: int) -> Tensor:
        drawn, update = drawn_for(update, self.sigma, self.lattice, noise, round), update.cpu()
        lost = _double(self.lattice.gamma) * (math.sqrt(update.shape[-1]) / 2)
        sent = part_of(clip(zero_unless_finite(update), self.clip - lost), self.share)
        return on_lattice(sent, drawn, self.lattice)


@dataclass(frozen=True)
class NoisedRelease:
    """Release update + noise, on the lattice: for updates of bounded sensitivity, which need no
    clip. Rounding may add gamma sqrt(d) to that sensitivity. `share` as above."""

    sigma: float | Tensor
    lattice: Lattice
    share: float | Tensor = 1.0

    def release(self, update: Tensor, noise: NoiseSource, round: int) -> Tensor:
        drawn, update = drawn_for(update, self.sigma, self.lattice, noise, round), update.cpu()
        sent = part_of(zero_unless_finite(update), self.share)
        return on_lattice(sent, drawn, self.lattice)


@dataclass(frozen=True)
class RoundedRelease:
    """Release the update, rounded to the lattice: for updates that hide noised gradients."""

    lattice: Lattice

    def release(self, update: Tensor, noise: NoiseSource, round: int) -> Tensor:
        return _rounded(zero_unless_finite(update.cpu()), self.lattice) + 0.0


@dataclass(frozen=True)
class AsItIs:
    """Release the update itself: for updates that are made of gradients released before."""

    lattice: Lattice = NOT_ROUNDED

    def release(self, update: Tensor, noise: NoiseSource, round: int) -> Tensor:
        return zero_unless_finite(update.cpu())


def drawn_for(
    update: Tensor, sigma: float | Tensor, lattice: Lattice, noise: NoiseSource, round: int
) -> Tensor | None:
    """The noise of an update, whatever that is, in steps of the lattice; None where there is none.

    A device may still be at work on the update: nobody waits for it here.
    """
    gamma, spread = _double(lattice.gamma), _double(sigma)
    if not spread.any():
        return None
    require(
        bool(((spread == 0) | (gamma > 0)).all()),
        "noise without a lattice: in floating point it protects nobody",
    )
    # Where there is no noise any scale will do: a large one is drawn quickly.
    scale = torch.where(gamma > 0, spread / gamma, 2.0**20)
    law: Law = "discrete" if lattice.sums else "rounded"
    return torch.tensor(noise.whole(law, round, tuple(update.shape), scale.numpy()))


def on_lattice(sent: Tensor, drawn: Tensor | None, lattice: Lattice) -> Tensor:
    """The vector rounded to the lattice, plus noise that is on the lattice by itself.

    In float64, where both are exact: a whole number of steps below 2^53, times a power of two.
    """
    if drawn is None:
        return sent
    gamma = _double(lattice.gamma)
    # Plus zero: -0.0 is a zero, but says that both the update and the noise were below zero.
    return _rounded(sent, lattice) + gamma * drawn + 0.0


def _rounded(sent: Tensor, lattice: Lattice) -> Tensor:
    """The nearest point of the lattice; where its step is 0, the vector itself."""
    gamma = _double(lattice.gamma)
    step = torch.where(gamma > 0, gamma, 1.0)
    nearest = (sent.double() / step).round() * step
    return nearest if bool((gamma > 0).all()) else torch.where(gamma > 0, nearest, sent.double())


def part_of(update: Tensor, share: float | Tensor) -> Tensor:
    """What is sent of an update by a client that counts less than another, in float64."""
    return update if isinstance(share, float) and share == 1 else update.double() * share


def average(releases: Tensor, lattice: Lattice, weights: Weights = None) -> Tensor:
    """sum_i w_i release_i of the clients' releases [..., clients, d]; their mean if all count
    alike. Where only sums are seen, whole numbers are summed modulo 2^32, as masks need it, and
    clients sent w_i / max w of theirs."""
    if not lattice.sums:
        return releases.mean(-2) if weights is None else _double(weights) @ releases.double()
    total, gamma = releases.sum(-2), _double(lattice.gamma)
    gamma = gamma.squeeze(-2) if gamma.dim() > 1 else gamma
    step = torch.where(gamma > 0, gamma, 1.0) * 2.0**BITS
    wraps = (total / step).round()
    total = torch.where(gamma > 0, total - wraps * step, total)
    return mean_of_sum(total, releases.shape[-2], weights)


def whole_steps(release: Tensor, gamma: float) -> NDArray[np.uint32]:
    """A release of one client as whole numbers of steps, modulo 2^32, which is as long as a
    lattice is made to be."""
    steps: NDArray[np.uint32] = (release / gamma).round().to(torch.int64).numpy().astype(np.uint32)
    return steps


def of_steps(steps: NDArray[Any], gamma: float) -> Tensor:
    """The vector of so many steps, each nearer to zero than to 2^32, in float64."""
    return torch.from_numpy(steps.astype(np.int32).astype(np.float64)) * gamma


def mean_of_sum(total: Tensor, clients: int, weights: Weights) -> Tensor:
    """The mean release, given the sum of what clients sent, who sent w_i / max w of theirs."""
    return total / clients if weights is None else total * max(weights)


def own_lattice(reach: float | Tensor, sigma: float | Tensor) -> Lattice:
    """The lattice of messages that are seen by themselves: `spacing` for every reach and sigma,
    which broadcast."""
    # Zeros of the other's shape: what broadcasts is then as long as both.
    sigmas = _double(sigma) + torch.zeros_like(_double(reach))
    reaches = _double(reach) + torch.zeros_like(sigmas)
    steps = map(spacing, reaches.flatten().tolist(), sigmas.flatten().tolist())
    return Lattice(torch.tensor([*steps], dtype=torch.float64).reshape(sigmas.shape))


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
    if not has_double(update.device):
        return clip(update.cpu(), C).to(update.device)
    wide, d = torch.promote_types(update.dtype, torch.float32), update.shape[-1]
    share = 1 - torch.finfo(wide).eps * (8 + math.log2(d)) - _EPS * d
    least = torch.finfo(wide).tiny * torch.finfo(wide).eps  # between the smallest numbers
    threshold = _double(C * share - least * math.sqrt(d) / 2).clamp_min(0.0)
    length = torch.linalg.vector_norm(update, dim=-1, keepdim=True, dtype=torch.float64)
    if bool((length < _ORDINARY).all()) and bool((threshold > 1 / _ORDINARY).all()):
        factor: Tensor = (threshold / length).clamp(max=1.0).to(wide)
        return update.to(wide) * factor
    largest = update.abs().amax(-1, keepdim=True).double().clamp_min(_SMALLEST)
    scaled = update / largest
    length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True, dtype=torch.float64)
    return torch.where(largest * length <= threshold, update, scaled * (threshold / length)).to(
        wide
    )


def _double(value: float | tuple[float, ...] | Tensor) -> Tensor:
    """A number or tensor in float64, whatever torch's default is: a tiny sigma must not become
    zero."""
    return torch.as_tensor(value, dtype=torch.float64)
