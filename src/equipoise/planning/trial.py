"""Trials: the real algorithm in all worlds, many plans in one computation.

Common random numbers: a seed's noise in a round is the same for every plan. Noise is added in
floating point: what a lattice changes is far below what a trial can tell.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.algorithms import Algorithm, Hyper, algorithm_spec
from equipoise.algorithms.schedule import periodic
from equipoise.device import HOST
from equipoise.facts import Weights
from equipoise.fleets import Broadcast, Fleet, SimulatedFleet, averaged, server_rounds
from equipoise.fleets.client import Memory
from equipoise.planning.candidates import Candidate
from equipoise.planning.worlds import Worlds
from equipoise.privacy.clip import own_lattice
from equipoise.privacy.lattice import NOT_ROUNDED
from equipoise.privacy.mechanisms.mechanism import Mechanism
from equipoise.privacy.noise import NoiseSource
from equipoise.privacy.samplers import Law
from equipoise.seeds import stream
from equipoise.settings import Returns

AT_ONCE = 4_000_000  # numbers in the clients' models of one computation


class Level(NamedTuple):
    """The noise of a plan: of each stand-in [clients], and of their average where the message is
    noised; `place` is where it enters, and `weights` how much stand-ins count in the average."""

    place: Mechanism
    sigma: tuple[float, ...]
    weights: Weights = None

    @property
    def averaged(self) -> float:
        weights = self.weights or (1 / len(self.sigma),) * len(self.sigma)
        return math.hypot(*(w * sigma for w, sigma in zip(weights, self.sigma, strict=True)))

    def scaled_to(self, averaged: float) -> "Level":
        """The same in proportion, with this noise of the average."""
        scale = averaged / self.averaged
        return self._replace(sigma=tuple(scale * sigma for sigma in self.sigma))

    def of_sums(self, records: tuple[int, ...]) -> "Level":
        """For noise in sums over the stand-ins' records, instead of means."""
        sums = tuple(sigma * n for sigma, n in zip(self.sigma, records, strict=True))
        return self._replace(sigma=sums)


@dataclass(frozen=True)
class Trial:
    """A plan that was tried: its final models in every world and for every seed [worlds, seeds, d],
    and their excess losses."""

    candidate: Candidate
    x: Tensor
    excess: Tensor

    @property
    def mean(self) -> float:
        return float(self.excess.mean())


class TrialNoise:
    """Normals of seeds first, first + 1, ... in every world, the same for every plan."""

    name = "trial"

    def __init__(self, worlds: int, seeds: range) -> None:
        self._worlds, self._seeds = worlds, seeds

    def normals(self, round: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """[worlds, 1, seeds, ...] for models [worlds, plans, seeds, ...]."""
        rest = shape[3:]
        draws = [_normals(seed, round, (self._worlds, 1, 1, *rest)) for seed in self._seeds]
        return np.concatenate(draws, axis=2)

    def whole(
        self, law: Law, round: int, shape: tuple[int, ...], scale: Any
    ) -> NDArray[np.float64]:
        """Of either law, as near as a trial needs it."""
        noise: NDArray[np.float64] = np.rint(scale * self.normals(round, shape))
        return noise

    def uniforms(self, step: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        rows = [stream(seed, "trial sample", step).random(shape[-2:]) for seed in self._seeds]
        return np.stack(rows)


@lru_cache(maxsize=8192)
def _normals(seed: int, round: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return stream(seed, "trial", round).standard_normal(shape, dtype=np.float32)


@dataclass(frozen=True)
class NoisyMean:
    """A fleet whose mean release gets the noise that its clients' noise would average to: the same
    law, wherever clients do not look at their own noise."""

    fleet: Fleet
    sigma: Tensor | float
    noise: NoiseSource

    def exchange(self, broadcast: Broadcast) -> Tensor:
        mean = self.fleet.exchange(broadcast)
        normals = torch.tensor(self.noise.normals(broadcast.round, tuple(mean.shape)))
        return mean + (self.sigma * normals).to(mean.dtype)


class Noised(NamedTuple):
    """Where noise enters, that of each stand-in, that of their average, its source, and how much
    each stand-in counts."""

    place: Mechanism
    sigma: Tensor | float
    averaged: Tensor | float
    noise: NoiseSource
    weights: Weights = None
    device: str = HOST


def algorithm_of(plan: Candidate, clip: Any, place: Mechanism, eta: Any = None) -> Algorithm:
    """The plan's algorithm, with numbers for many plans in place of its own."""
    step, bound = plan.eta if eta is None else eta, clip if place.clips_message else math.inf
    hyper = Hyper(step, 1 / plan.local_steps, bound, plan.options)
    return algorithm_spec(plan.algorithm).make(hyper)


def noisy_fleet(
    plan: Candidate,
    clip: Any,
    clients: Any,
    rates: tuple[float, ...],
    noised: Noised,
    eta: Any = None,
) -> Fleet:
    """The stand-ins of a trial: noise enters their average where clients do not look at their own,
    else where the mechanism says. `eta` may be a tensor, in place of the plan's own."""
    place, sigma, of_mean, noise, weights, device = noised
    algorithm = algorithm_of(plan, clip, place, eta)
    hears_release = algorithm_spec(plan.algorithm).hears_release(plan.options)
    if place.noises_message and not hears_release:
        gradient = place.gradient(clients, clip, 0.0, NOT_ROUNDED, rates, noise)
        releaser = place.releaser(clip, 0.0, NOT_ROUNDED)
        quiet = SimulatedFleet(len(rates), gradient, algorithm, releaser, noise, weights, device)
        return NoisyMean(quiet, of_mean, noise)
    lattice = own_lattice(0.0, sigma) if place.noises_message else None
    gradient = place.gradient(clients, clip, sigma, lattice, rates, noise)
    releaser = place.releaser(clip, sigma, lattice or NOT_ROUNDED)
    return SimulatedFleet(len(rates), gradient, algorithm, releaser, noise, weights, device)


def try_all(
    worlds: Worlds,
    candidates: Sequence[Candidate],
    level: Callable[[Candidate], Level],
    seeds: range,
) -> list[Trial]:
    """Every candidate in every world for every seed: two trials of each, one that returns the last
    model and one that returns the average (only the last where there is one round)."""
    trials: list[Trial] = []
    for _, alike in groupby(sorted(candidates, key=_key), key=_key):
        rest = sorted(alike, key=lambda plan: -plan.rounds)
        width = len(worlds.rows) * len(seeds) * worlds.number * len(worlds.x0)
        count = max(1, AT_ONCE // width)
        while rest:
            trials += _run(worlds, rest[:count], [level(c) for c in rest[:count]], seeds)
            rest = rest[count:]
    return trials


def _key(candidate: Candidate) -> tuple[Any, ...]:
    """What plans of one computation have in common."""
    return (
        candidate.algorithm,
        candidate.noise_in or "",
        tuple(sorted(candidate.options.items())),
        candidate.local_steps,
    )


class FallingFleet:
    """A fleet of many plans, those with most rounds first: what has ended drops out, and gets no
    more messages. `make(count)` is the fleet of the first plans."""

    def __init__(self, rounds: list[int], make: Callable[[int], Fleet]) -> None:
        self._rounds, self._make = rounds, make
        self._count, self._fleet = len(rounds), make(len(rounds))

    def exchange(self, broadcast: Broadcast) -> Tensor:
        count = sum(rounds >= broadcast.round for rounds in self._rounds)
        if count < self._count:
            memory = _simulated(self._fleet).memory
            self._count, self._fleet = count, self._make(count)
            _simulated(self._fleet).memory = memory and _of_first(memory, count)
        mean = self._fleet.exchange(broadcast._replace(x=broadcast.x[:, :count]))
        messages = mean.new_zeros(*broadcast.x.shape[:-1], mean.shape[-1])
        messages[:, :count] = mean
        return messages


def _simulated(fleet: Fleet) -> SimulatedFleet:
    inner = fleet.fleet if isinstance(fleet, NoisyMean) else fleet
    assert isinstance(inner, SimulatedFleet)
    return inner


def _of_first(memory: Memory, count: int) -> Memory:
    """[worlds, plans, ...] of the first plans."""
    state = type(memory.state)(*(part[:, :count] for part in memory.state))
    return Memory(state, memory.update[:, :count], memory.finite[:, :count])


def _run(worlds: Worlds, plans: list[Candidate], levels: list[Level], seeds: range) -> list[Trial]:
    """Plans with the same local steps, those with most rounds first."""
    first, noise = plans[0], TrialNoise(len(worlds.rows), seeds)
    starts = {warm: worlds.start(warm) for warm in {plan.warm for plan in plans}}
    x = torch.stack([starts[plan.warm] for plan in plans], 1)[:, :, None]
    x = x.expand(-1, -1, len(seeds), -1)
    eta = torch.tensor([plan.eta for plan in plans], dtype=x.dtype)[:, None, None, None]
    clip = torch.tensor([plan.clip for plan in plans], dtype=torch.float64)[:, None, None, None]
    sigma = torch.tensor([level.sigma for level in levels])[:, None, :, None]
    of_mean = torch.tensor([level.averaged for level in levels])[:, None, None]

    def fleet_of(count: int) -> Fleet:
        place, weights = levels[0].place, levels[0].weights
        noised = Noised(place, sigma[:count], of_mean[:count], noise, weights)
        rates = (1.0,) * worlds.number
        return noisy_fleet(first, clip[:count], worlds.clients, rates, noised, eta=eta[:count])

    fleet = FallingFleet([plan.rounds for plan in plans], fleet_of)
    algorithm = algorithm_of(first, clip, levels[0].place, eta)
    gamma = torch.tensor([plan.gamma for plan in plans], dtype=x.dtype)[:, None, None]
    schedule = periodic(first.iterations, first.local_steps)
    last, averages = torch.empty(x.shape), torch.empty(x.shape)
    for round in averaged(server_rounds(x, schedule, fleet, algorithm, gamma)):
        for p, plan in enumerate(plans):
            if plan.rounds == round.number:
                assert round.average is not None
                last[:, p], averages[:, p] = round.x[:, p], round.average[:, p]
    return [
        trial
        for p, plan in enumerate(plans)
        for trial in _returned(worlds, plan, last[:, p], averages[:, p])
    ]


def _returned(worlds: Worlds, plan: Candidate, last: Tensor, average: Tensor) -> list[Trial]:
    models: dict[Returns, Tensor] = {"last": last}
    if plan.rounds > 1:
        models["average"] = average
    return [
        Trial(replace(plan, returns=returns), x, _finite(worlds.excess(x)))
        for returns, x in models.items()
    ]


def _finite(excess: Tensor) -> Tensor:
    return torch.where(excess.isfinite(), excess, math.inf)
