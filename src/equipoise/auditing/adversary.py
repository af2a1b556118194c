"""What an adversary sees of many runs, and how it tells two worlds apart.

It hears what the account says that it hears: every message of the target client; or the sum of a
round, from which colluders subtracted their own; or every noised gradient, where the account counts
these. It knows everything but the world: for either it does the client's arithmetic again, with the
product's own code and no noise, and looks at what is left. The likelihood ratio of Gaussian noise
is the projection of that on what the worlds differ by, summed over all releases; where records are
sampled it is that of two mixtures.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.algorithms import Algorithm, Gradient
from equipoise.auditing.worst_case import TARGET, SmallCase
from equipoise.engine import algorithm_of, noise_of
from equipoise.fleets import Broadcast, SimulatedFleet, client_round, server_rounds
from equipoise.privacy.clip import average
from equipoise.privacy.mechanisms.mechanism import Releaser
from equipoise.privacy.noise import NoiseSource
from equipoise.privacy.samplers import Law

Floats = NDArray[np.float64]
BESIDE = -1  # the client whose messages, or noise, are heard besides
GROUPS = 32  # of releases that are weighed alike, at most


class NoNoise:
    """A source of nothing: every number is zero, and every record is in the sample, or none is."""

    name = "none"

    def __init__(self, everybody: bool = True) -> None:
        self._coin = 0.0 if everybody else 1.0

    def whole(self, law: Law, round: int, shape: tuple[int, ...], scale: Any) -> Floats:
        return np.zeros(shape)

    def normals(self, round: int, shape: tuple[int, ...]) -> Floats:
        return np.zeros(shape)

    def uniforms(self, step: int, shape: tuple[int, ...]) -> Floats:
        return np.full(shape, self._coin)


class Seen(NamedTuple):
    """What is left of some runs, more of it in world 1 than in world 0.

    ratio        log of the likelihood ratio, up to a factor, [runs]
    releases     the projections of releases, or of groups of them, [runs, groups]
    coordinates  those of coordinates, summed over releases, [runs, d]
    beside       that of the noise of another client whose messages are heard, [runs]: nothing, if
                 clients do not share noise
    """

    ratio: Floats
    releases: Floats
    coordinates: Floats
    beside: Floats

    @staticmethod
    def joined(parts: "list[Seen]") -> "Seen":
        return Seen(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def rows(self, index: NDArray[Any]) -> "Seen":
        return Seen(*(column[index] for column in self))


class Ear:
    """Collects releases, each with what it would be without noise in either world (and without the
    target, where it may not have been in the sample)."""

    def __init__(self, runs: int, releases: int, rate: float, scale: float) -> None:
        self._heard, self._rate, self._scale = 0, rate, scale
        self._width = -(-releases // GROUPS)
        self._ratio = torch.zeros(runs, dtype=torch.float64)
        self._groups = torch.zeros(runs, -(-releases // self._width), dtype=torch.float64)
        self._coordinates: Tensor | float = 0.0
        self._beside = torch.zeros(runs, dtype=torch.float64)

    def hear(
        self,
        release: Tensor,
        worlds: tuple[Tensor, Tensor],
        beside: Tensor,
        without: Tensor | None = None,
    ) -> None:
        """All [runs, d]; `worlds` are 0 and 1, `beside` is another client's noise."""
        zero, first = worlds
        projected = (release - (zero + first) / 2) * (first - zero)
        total = projected.sum(-1)
        self._groups[:, self._heard // self._width] += total
        self._coordinates = self._coordinates + projected
        self._beside += (beside * (first - zero)).sum(-1)
        self._heard += 1
        if without is None:
            self._ratio += total
        else:
            logs = [self._mixture(release, world, without) for world in worlds]
            self._ratio += logs[1] - logs[0]

    def _mixture(self, release: Tensor, there: Tensor, without: Tensor) -> Tensor:
        """log((1 - q) phi(release - without) + q phi(release - there)), up to a constant."""
        parts = [
            math.log(share) - (release - centre).square().sum(-1) / (2 * self._scale**2)
            for share, centre in ((1 - self._rate, without), (self._rate, there))
        ]
        return torch.logaddexp(*parts)

    def seen(self) -> Seen:
        assert isinstance(self._coordinates, Tensor)
        parts = self._ratio, self._groups, self._coordinates, self._beside
        return Seen(*(part.numpy() for part in parts))


def play(case: SmallCase, world: int, runs: int, noise: NoiseSource) -> Seen:
    """So many whole runs in one of the worlds, side by side, as the adversary hears them."""
    return _Game(case, world, noise).played(runs)


class _Game:
    """The target pulls to the other side at every release: noise that is used twice would cancel.
    (Nothing forbids data to depend on the time: composition is adaptive.)"""

    def __init__(self, case: SmallCase, world: int, noise: NoiseSource) -> None:
        self.case, self.world, self.noise = case, world, noise
        self.algorithm, self.event = algorithm_of(case.run), case.account.events[TARGET]
        self.by_step = case.run.mechanism.paid_per == "local step"  # the account counts gradients
        ends = np.cumsum(case.schedule)
        self._round_of = [int(np.searchsorted(ends, t, "right")) for t in range(int(ends[-1]))]
        self._real, self.releaser = self._sides(noise)
        self._silent = {who: self._sides(NoNoise(who)) for who in (True, False)}

    def _sides(self, noise: NoiseSource) -> tuple[dict[int, Gradient], Releaser]:
        case = self.case
        made = {
            side: noise_of(case.run, task, case.account, noise, case.weights)
            for side, task in case.tasks.items()
        }
        return {side: gradient for side, (gradient, _) in made.items()}, made[1][1]

    def _in_world(self, gradients: dict[int, Gradient], world: int) -> Gradient:
        def gradient(x: Tensor, t: int) -> Tensor:
            sign = 1 if (t if self.by_step else self._round_of[t]) % 2 else -1
            return gradients[self.case.side(world, sign)](x, t)

        return gradient

    def played(self, runs: int) -> Seen:
        case, run = self.case, self.case.run
        self.ear = Ear(runs, self.event.count, self.event.rate, self._scale())
        gradient = self._in_world(self._real, self.world)
        if self.by_step:
            gradient = self._overheard(gradient)
        how = self.algorithm, self.releaser, self.noise, case.weights
        fleet = Overheard(run.clients, gradient, *how)
        fleet.listener = None if self.by_step else self._told()
        x = case.starting.expand(runs, -1)
        for _ in server_rounds(x, case.schedule, fleet, self.algorithm, run.gamma):
            pass
        return self.ear.seen()

    def _scale(self) -> float:
        """The standard deviation of the noise in a gradient."""
        expected = self.case.tasks[1].facts(self.case.run.unit).sizes[TARGET] * self.event.rate  # type: ignore[index]
        return self.event.sigma / expected

    def _overheard(self, gradient: Gradient) -> Gradient:
        everybody, nobody = (self._silent[who][0] for who in (True, False))
        worlds = [self._in_world(everybody, world) for world in (0, 1)]
        absent = self._in_world(nobody, 1) if self.event.rate < 1 else None

        def overheard(x: Tensor, t: int) -> Tensor:
            noised = gradient(x, t)
            zero, first = (world(x, t) for world in worlds)
            without = absent(x, t)[..., TARGET, :] if absent else None
            beside = noised[..., BESIDE, :] - first[..., BESIDE, :]
            both = zero[..., TARGET, :], first[..., TARGET, :]
            self.ear.hear(noised[..., TARGET, :], both, beside, without)
            return noised

        return overheard

    def _told(self) -> Callable[[Broadcast, Tensor], None]:
        run, (gradients, releaser) = self.case.run, self._silent[True]
        worlds = [Thought(self.algorithm, releaser, self._in_world(gradients, w)) for w in (0, 1)]

        def listener(broadcast: Broadcast, releases: Tensor) -> None:
            zero, first = (world.release(broadcast, releases) for world in worlds)
            beside = (releases - first)[..., BESIDE, :].double()
            if run.trust != "local" and not run.colluding:  # nobody tells
                beside = torch.zeros_like(beside)
            both = self._visible(zero), self._visible(first)
            self.ear.hear(self._visible(releases), both, beside)

        return listener

    def _visible(self, releases: Tensor) -> Tensor:
        run = self.case.run
        if run.trust == "local":
            return releases[..., TARGET, :].double()
        return sum_of_others(
            releases, self.releaser, slice(run.clients - (run.colluding or 0), None)
        )


def sum_of_others(releases: Tensor, releaser: Releaser, colluders: slice) -> Tensor:
    """The sum that the server sees, less what colluders added and told."""
    releases = releases.double()
    total = average(releases, releaser.lattice) * releases.shape[-2]
    return total - releases[..., colluders, :].sum(-2)


class Thought:
    """The clients as they would be in one of the worlds, given what was heard."""

    def __init__(self, algorithm: Algorithm, releaser: Releaser, gradient: Gradient) -> None:
        self._algorithm, self._releaser, self._gradient = algorithm, releaser, gradient
        self._state: Any = None

    def release(self, broadcast: Broadcast, heard: Tensor) -> Tensor:
        """What they would release without noise. They remember what was heard in its place."""
        known = self._algorithm._replace(
            after_release=lambda state, update, release: self._algorithm.after_release(
                state, update, heard.to(update.dtype)
            )
        )
        if self._state is None:
            self._state = self._algorithm.init(broadcast.x)
        release, memory = client_round(
            broadcast, self._state, known, self._releaser, self._gradient, NoNoise()
        )
        self._state = memory.state
        return release.update


class Overheard(SimulatedFleet):
    """Clients whose releases somebody hears."""

    listener: Callable[[Broadcast, Tensor], None] | None = None

    def collect(self, broadcast: Broadcast) -> Tensor:
        releases = super().collect(broadcast)
        if self.listener:
            self.listener(broadcast._replace(x=self._everywhere(broadcast.x)), releases)
        return releases
