"""Stage two: the real algorithm on the surrogate, by successive halving with common random
numbers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.algorithms import Algorithm, Gradient, dp_fedavg, dp_scaffnew, periodic
from equipoise.fleets import SimulatedFleet, server_rounds
from equipoise.planning.candidates import Candidate
from equipoise.planning.surrogate import Surrogate
from equipoise.privacy.clip import GaussianMechanism, Mechanism
from equipoise.privacy.noise import NoiseSource
from equipoise.seeds import stream


@dataclass(frozen=True)
class Rehearsal:
    """A plan that was tried: the final models of all seeds [seeds, d], their excess losses, the
    share of clipped messages."""

    candidate: Candidate
    x: Tensor
    excess: Tensor
    clipped: float

    @property
    def mean(self) -> float:
        return float(self.excess.mean())

    @property
    def standard_error(self) -> float:
        return float(self.excess.std() / math.sqrt(len(self.excess)))


class RehearsalNoise:
    """Normals of run `seeds[r]`, client i and round k that are the same for every plan."""

    name = "rehearsal"

    def __init__(self, seeds: range) -> None:
        self._seeds = seeds

    def normals(self, round: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return np.stack([_normals(seed, round, *shape[-2:]) for seed in self._seeds])

    def uniforms(self, step: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return np.stack(
            [stream(seed, "rehearsed sample", step).random(shape[-2:]) for seed in self._seeds]
        )


@lru_cache(maxsize=4096)
def _normals(seed: int, round: int, clients: int, d: int) -> NDArray[np.float64]:
    return stream(seed, "rehearsal", round).standard_normal((clients, d))


def algorithm_of(candidate: Candidate, h_update: str) -> Algorithm:
    if candidate.algorithm == "dp-fedavg":
        return dp_fedavg(candidate.eta)
    return dp_scaffnew(candidate.eta, 1 / candidate.local_steps, h_update, candidate.clip_norm)


def rehearse(
    surrogate: Surrogate,
    candidate: Candidate,
    noise_per_clip: float,
    seeds: range,
    h_update: str = "paper",
) -> Rehearsal:
    """Run the plan on the surrogate once for every seed, all seeds in one computation.

    The surrogate may have fewer clients than there are: its clients' noise is scaled so that the
    average has the right size.
    """
    averaged = noise_per_clip * candidate.clip_norm * math.sqrt(candidate.rounds)
    mechanism = GaussianMechanism(candidate.clip_norm, averaged * math.sqrt(surrogate.number))
    return performed(
        surrogate,
        candidate,
        surrogate.clients.gradient,
        mechanism,
        RehearsalNoise(seeds),
        len(seeds),
        h_update,
    )


def performed(
    surrogate: Surrogate,
    candidate: Candidate,
    gradient: Gradient,
    mechanism: Mechanism,
    noise: NoiseSource,
    runs: int,
    h_update: str,
) -> Rehearsal:
    """The real algorithm on the surrogate with these gradients and this mechanism, `runs` times in
    one computation."""
    fleet = SimulatedFleet(
        surrogate.number, gradient, algorithm_of(candidate, h_update), mechanism, noise
    )
    start = surrogate.x0.expand(runs, -1)
    x, clipped = start, 0.0
    schedule = periodic(candidate.rounds * candidate.local_steps, candidate.local_steps)
    for _, _, x in server_rounds(start, schedule, fleet, candidate.gamma):
        assert fleet.memory is not None
        clipped += (
            float((fleet.memory.update.norm(dim=-1) > candidate.clip_norm).double().mean())
            / candidate.rounds
        )
    return Rehearsal(candidate, x.double(), surrogate.excess(x).double(), clipped)


Stages = tuple[tuple[int, int], ...]


def stages_of(surrogate: Surrogate) -> Stages:
    """(seeds, survivors) of each stage of a race."""
    return ((2, 10), (8, 4), (32, 1)) if surrogate.large else ((8, 10), (32, 4), (128, 1))


def race(
    candidates: list[Candidate], tried_on: Callable[[Candidate, range], Rehearsal], stages: Stages
) -> list[Rehearsal]:
    """Successive halving: after `seeds` seeds the best `keep` go on. The last survivors, best
    first, with all their seeds."""
    tried: dict[int, list[Rehearsal]] = {i: [] for i in range(len(candidates))}
    done = 0
    for seeds, keep in stages:
        for i, parts in tried.items():
            parts.append(tried_on(candidates[i], range(done, seeds)))
        done = seeds
        order = sorted(
            tried, key=lambda i: float(torch.cat([part.excess for part in tried[i]]).mean())
        )
        tried = {i: tried[i] for i in order[:keep]}
    return [_joined(parts) for parts in tried.values()]


def _joined(parts: list[Rehearsal]) -> Rehearsal:
    sizes = [len(part.excess) for part in parts]
    joined = Rehearsal(
        parts[0].candidate,
        torch.cat([part.x for part in parts]),
        torch.cat([part.excess for part in parts]),
        sum(part.clipped * n for part, n in zip(parts, sizes, strict=True)) / sum(sizes),
    )
    return replace(
        joined,
        candidate=replace(
            joined.candidate, excess=joined.mean, standard_error=joined.standard_error
        ),
    )


def shortlist(candidates: list[Candidate], most: int = 24, alike: int = 3) -> list[Candidate]:
    """The best of a screening, no more than `alike` with the same step size and local steps."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: c.excess):
        same = sum((c.eta, c.local_steps) == (candidate.eta, candidate.local_steps) for c in kept)
        if same < alike:
            kept.append(candidate)
        if len(kept) == most:
            break
    return kept
