"""Stage two: the real algorithm on the surrogate, by successive halving with common random
numbers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.algorithms import Gradient, Hyper, algorithm_spec
from equipoise.algorithms.schedule import periodic
from equipoise.fleets import SimulatedFleet, server_rounds
from equipoise.planning.candidates import Candidate
from equipoise.planning.surrogate import Surrogate
from equipoise.privacy.mechanisms.mechanism import Releaser
from equipoise.privacy.noise import NoiseSource
from equipoise.privacy.samplers import Law
from equipoise.seeds import stream


@dataclass(frozen=True)
class Trial:
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


class TrialNoise:
    """Normals of run `seeds[r]`, client i and round k that are the same for every plan."""

    name = "trial"

    def __init__(self, seeds: range) -> None:
        self._seeds = seeds

    def whole(
        self, law: Law, round: int, shape: tuple[int, ...], scale: Any
    ) -> NDArray[np.float64]:
        """Of either law, as near as a trial needs it."""
        noise: NDArray[np.float64] = np.rint(scale * self.normals(round, shape))
        return noise

    def normals(self, round: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return np.stack([_normals(seed, round, *shape[-2:]) for seed in self._seeds])

    def uniforms(self, step: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        rows = [stream(seed, "rehearsed sample", step).random(shape[-2:]) for seed in self._seeds]
        return np.stack(rows)


@lru_cache(maxsize=4096)
def _normals(seed: int, round: int, clients: int, d: int) -> NDArray[np.float64]:
    return stream(seed, "rehearsal", round).standard_normal((clients, d))


def try_plan(
    surrogate: Surrogate,
    candidate: Candidate,
    gradient: Gradient,
    releaser: Releaser,
    noise: NoiseSource,
    runs: int,
) -> Trial:
    """The real algorithm on the surrogate with these gradients and this noise, `runs` times in one
    computation."""
    hyper = Hyper(candidate.eta, 1 / candidate.local_steps, candidate.clip, candidate.options)
    algorithm = algorithm_spec(candidate.algorithm).make(hyper)
    fleet = SimulatedFleet(surrogate.number, gradient, algorithm, releaser, noise)
    start = surrogate.x0.expand(runs, -1)
    x, clipped = start, 0.0
    schedule = periodic(candidate.iterations, candidate.local_steps)
    for round in server_rounds(start, schedule, fleet, candidate.gamma):
        assert fleet.memory is not None
        x = round.x
        beyond = fleet.memory.update.norm(dim=-1) > candidate.clip
        clipped += float(beyond.double().mean()) / candidate.rounds
    return Trial(candidate, x.double(), surrogate.excess(x).double(), clipped)


Stages = tuple[tuple[int, int], ...]
"""(seeds, survivors) of each stage of a race."""


def race(
    candidates: list[Candidate], tried_on: Callable[[Candidate, range], Trial], stages: Stages
) -> Trial:
    """Successive halving: after `seeds` seeds the best `keep` go on. The winner, with all its
    seeds."""
    tried: dict[int, list[Trial]] = {i: [] for i in range(len(candidates))}
    before = 0
    for seeds, keep in stages:
        for i, parts in tried.items():
            parts.append(tried_on(candidates[i], range(before, seeds)))
        before = seeds
        order = sorted(tried, key=lambda i: _mean(tried[i]))
        tried = {i: tried[i] for i in order[:keep]}
    return _joined(next(iter(tried.values())))


def _mean(parts: list[Trial]) -> float:
    return float(torch.cat([part.excess for part in parts]).mean())


def _joined(parts: list[Trial]) -> Trial:
    sizes = [len(part.excess) for part in parts]
    clipped = sum(part.clipped * n for part, n in zip(parts, sizes, strict=True)) / sum(sizes)
    x = torch.cat([part.x for part in parts])
    joined = Trial(parts[0].candidate, x, torch.cat([part.excess for part in parts]), clipped)
    known = replace(joined.candidate, excess=joined.mean, standard_error=joined.standard_error)
    return replace(joined, candidate=known)
