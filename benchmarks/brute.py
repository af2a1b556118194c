"""DP-FedAvg and DP-ScaffNew for many settings and seeds in one computation, and the best settings
that a search on the private clients finds.

This is the judge of planners, so it shares no code with them: it is written from the definitions of
the algorithms (docs/paper.md), in single precision, for linear models and the periodic schedule.
Only what must not differ comes from the product: how tasks read records, and the noise that a
mechanism needs. Messages are not rounded to a lattice.

Models are [features, outputs, columns], or [clients, features, outputs, columns] while they are
apart; a column is one seed of one candidate.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import groupby, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.settings import Settings
from equipoise.tasks import Task
from equipoise.tasks.linear import LOGISTIC, MULTINOMIAL, LinearClients
from equipoise.tasks.public import minimiser, public_model

FEDAVG, SCAFFNEW = "dp-fedavg", "dp-scaffnew"
RETURNS = ("last", "average")
SCREENING, FINAL, CLIMBING, SHAKING, AGAIN = 1, 2, 3, 4, 5  # streams of noise
SEEDS = 128  # of the last stage, and of plans: the same ones
NUMBERS_AT_ONCE = 2**18  # outputs of a chunk of columns
ROUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
LONGEST = 8192  # local steps of a candidate


@dataclass(frozen=True)
class Candidate:
    """Settings of a run: `rounds` K rounds of `local_steps` tau steps."""

    algorithm: str
    eta: float
    local_steps: int
    rounds: int
    clip: float
    gamma: float = 1.0
    noise_in: str = "message"
    warm_start: bool = False
    returns: str = "last"
    h_update: str = "paper"
    l2: float = 0.0

    @property
    def course(self) -> tuple[Any, ...]:
        """What candidates must have in common to be computed together. With one local step h
        cancels: both algorithms are gradient descent."""
        variate = self.algorithm == SCAFFNEW and self.local_steps > 1
        return self.eta, self.local_steps, self.noise_in, self.h_update if variate else ""

    def told(self) -> dict[str, Any]:
        return asdict(self)


def noise(shape: tuple[int, ...], *name: int) -> Tensor:
    """Standard normal numbers, the same for everybody who asks by this name."""
    seed = 0
    for number in name:
        seed = 1_000_003 * seed + number + 1
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Arena:
    """The private clients of a task, under a promise: what candidates are tried on.

    `unit`, `trust`, `epsilon` and `delta` are those of the promise.
    """

    def __init__(self, task: Task, **promise: Any) -> None:
        assert isinstance(task.clients, LinearClients)
        self.task, self.promise, self.clients = task, promise, task.clients
        single = task.clients.single()
        self.X, self.l2 = single.features, single.l2
        self.N, self.m, self.f = self.X.shape
        self.k = single.targets.shape[-1]
        self.targets = single.targets.unsqueeze(-1)
        self.weights = single.weights[:, :, None, None]
        self.norms = self.X.norm(dim=-1)[:, :, None, None]
        self.transposed = self.X.transpose(1, 2).contiguous()
        self.facts = task.facts(promise["unit"])
        self.by_record = promise["unit"] == "record"

    # ---- the problem itself, in double precision ----

    @cached_property
    def best(self) -> Tensor:
        return minimiser(self.clients, self.task.x0)

    @cached_property
    def least(self) -> float:
        return float(self.clients.loss(self.best))

    @cached_property
    def public(self) -> Tensor:
        return public_model(self.task)

    def start(self, warm: bool) -> Tensor:
        return self.public if warm else self.task.x0

    @cached_property
    def distance(self) -> float:
        """r0 = |x* - x0|."""
        return float((self.best - self.task.x0).norm())

    @cached_property
    def steepest(self) -> float:
        """The largest eigenvalue of any client's Hessian at the start."""
        eigenvalues = torch.linalg.eigvalsh(self.clients.hessians(self.task.x0))
        return float(eigenvalues.max())

    @cached_property
    def trace(self) -> float:
        return float(self.clients.hessians(self.best).mean(0).trace())

    def excess(self, x: Tensor) -> Tensor:
        """f(x) - f(x*) of models [..., d], in double precision."""
        flat = x.double().reshape(-1, x.shape[-1])
        size = max(1, 2**22 // (self.N * self.m * self.k))
        losses = [self.clients.loss(part) for part in flat.split(size)]
        return torch.cat(losses).reshape(x.shape[:-1]) - self.least

    def test(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Error and loss of models [..., d] on the public test records."""
        assert self.task.measure is not None
        flat = x.double().reshape(-1, x.shape[-1])
        parts = [self.task.measure(part) for part in flat.split(64)]
        return tuple(
            torch.cat([getattr(part, name) for part in parts]).reshape(x.shape[:-1])
            for name in ("error", "loss")
        )

    # ---- noise, from the product ----

    def sigmas(self, candidate: Candidate) -> Tensor:
        """What each client adds, per coordinate, to its message or to its sum of gradients: [N].

        Every mechanism's noise grows with the square root of the number of rounds.
        """
        c = candidate
        step = (c.eta, c.local_steps) if self.by_record else (1.0, 1)
        options = (("h_update", c.h_update),) if c.h_update == "released" else ()
        algorithm = c.algorithm if options else FEDAVG
        once = self._sigmas_once(algorithm, options, *step, c.clip, c.noise_in)
        return once * math.sqrt(c.rounds)

    @cache  # noqa: B019  # an arena lives as long as its case
    def _sigmas_once(self, algorithm, options, eta, tau, clip, noise_in) -> Tensor:
        run = Settings.of(
            task=self.task.name,
            algorithm=algorithm,
            options=dict(options),
            iterations=tau,
            local_steps=tau,
            eta=eta,
            clip=clip,
            noise_in=noise_in,
            **self.promise,
        ).resolve(self.facts)
        events = run.mechanism.events(run, self.facts, (tau,))
        added = [run.promise.client_sigma(e.sigma, self.N, e.lattice) for e in events]
        return torch.tensor(added, dtype=torch.float64).expand(self.N).clone()

    # ---- the algorithms ----

    def gradient(self, x: Tensor, clip: Tensor | None, together: bool) -> Tensor:
        """Of every client's mean loss at its own model, or at one model for all (`together`); each
        record's gradient clipped where a clip is given: [N, f, k, B]."""
        B = x.shape[-1]
        if together:
            outputs = self.X.reshape(-1, self.f) @ x.reshape(self.f, -1)
        else:
            outputs = torch.bmm(self.X, x.reshape(self.N, self.f, -1))
        residual = self._residual(outputs.view(self.N, self.m, self.k, B))
        if clip is not None:
            length = residual.abs() if self.k == 1 else residual.norm(dim=2, keepdim=True)
            residual.mul_((clip / (length * self.norms)).clamp_(max=1.0))
        residual.mul_(self.weights)
        summed = torch.bmm(self.transposed, residual.view(self.N, self.m, -1))
        return summed.view(self.N, self.f, self.k, B).add_(x, alpha=self.l2)

    def _residual(self, outputs: Tensor) -> Tensor:
        """The derivative of each record's loss by its outputs."""
        if self.clients.link is LOGISTIC:
            outputs.sigmoid_()
        elif self.clients.link is MULTINOMIAL:
            outputs = outputs.softmax(dim=2)
        return outputs.sub_(self.targets)

    def run(self, candidates: list[Candidate], seeds: int, stream: int) -> Tensor:
        """The last and the averaged model of every candidate: [candidates, 2, seeds, d]."""
        found = torch.empty(len(candidates), 2, seeds, self.f * self.k)
        size = max(1, NUMBERS_AT_ONCE // (self.N * max(self.m, self.f) * self.k * seeds))
        order = sorted(range(len(candidates)), key=lambda i: (candidates[i].course,))
        for _, group in groupby(order, key=lambda i: candidates[i].course):
            longest_first = sorted(group, key=lambda i: -candidates[i].rounds)
            for begin in range(0, len(longest_first), size):
                places = longest_first[begin : begin + size]
                found[places] = self._courses([candidates[i] for i in places], seeds, stream)
        return found

    def _courses(self, group: list[Candidate], seeds: int, stream: int) -> Tensor:
        """Of candidates with one course, the longest first."""
        eta, tau, noise_in, h_update = group[0].course
        sigma = torch.stack([self.sigmas(c) for c in group], 1)  # [N, candidates]
        in_gradients = self.by_record and noise_in != "message"
        if in_gradients:  # of the mean gradient
            sigma = sigma / torch.tensor(self.clients.sizes, dtype=torch.float64).unsqueeze(1)
        in_steps = in_gradients and tau > 1
        apart = in_steps or h_update == "released"
        if in_gradients and tau == 1:
            sigma = eta * sigma
        averaged = sigma.square().sum(0).sqrt() / self.N
        shape = (self.f, self.k)

        def columns(values: Iterable[float]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.float32).repeat_interleave(seeds)

        C, gamma = columns(c.clip for c in group), columns(c.gamma for c in group)
        averaged = columns(averaged.tolist())
        own = sigma.float().repeat_interleave(seeds, 1)[:, None, None, :]
        x = torch.stack([self._columns(self.start(c.warm_start)) for c in group], -1)
        x = x.repeat_interleave(seeds, -1)
        mean, h = x.clone(), None
        found = torch.empty(len(group), 2, seeds, self.f * self.k)
        live = len(group)
        for number in range(1, group[0].rounds + 1):
            B = live * seeds
            x_i = x
            for step in range(tau):
                g = self.gradient(x_i, C[:B] if self.by_record else None, together=step == 0)
                if in_steps:
                    z = noise((self.N, *shape, seeds), stream, number, step)
                    g = g + own[..., :B] * z.repeat(1, 1, 1, live)
                if h is not None:
                    g = g - h
                x_i = x_i - eta * g
            update = x_i - x if h is None else x_i - x - (eta * tau) * h
            sent = update if self.by_record else clipped(update, C[:B])
            if apart and not in_steps:
                z = noise((self.N, *shape, seeds), stream, number)
                sent = sent + own[..., :B] * z.repeat(1, 1, 1, live)
            moved = sent.mean(0)
            if not apart:
                z = noise((*shape, seeds), stream, number)
                moved = moved + averaged[:B] * z.repeat(1, 1, live)
            moved = gamma[:B] * moved
            x = x + moved
            if h_update:
                learnt = {"paper": update, "clipped": sent, "released": sent}[h_update]
                h = (moved - learnt) / (eta * tau)
            mean = torch.lerp(mean, x, 4 * number / (number + 1) ** 2)  # weights k^3
            while live and group[live - 1].rounds == number:
                live -= 1
                ended = slice(live * seeds, (live + 1) * seeds)
                found[live, 0] = x[..., ended].permute(2, 1, 0).flatten(1)
                found[live, 1] = mean[..., ended].permute(2, 1, 0).flatten(1)
            if live * seeds < B:
                x, mean = x[..., : live * seeds], mean[..., : live * seeds]
                h = None if h is None else h[..., : live * seeds]
        return found

    def _columns(self, x: Tensor) -> Tensor:
        """A flat model [k f] as [f, k]."""
        return x.reshape(self.k, self.f).T.float()

    def added(self, candidate: Candidate) -> Tensor:
        """The standard deviation of what noise adds to the model in a round, per coordinate."""
        sigma = self.sigmas(candidate)
        if self.by_record and candidate.noise_in != "message":
            sizes = torch.tensor(self.clients.sizes, dtype=torch.float64)
            sigma = candidate.eta * math.sqrt(candidate.local_steps) * sigma / sizes
        return sigma.square().sum().sqrt() / self.N

    @cached_property
    def start_excess(self) -> float:
        return float(self.excess(self.task.x0))

    def single_excess(self, x: Tensor) -> Tensor:
        return self.single_loss(x) - self.least

    def single_error(self, x: Tensor) -> Tensor:
        """Test error of models [..., d], in single precision: to screen with."""
        measure = self.task.measure
        X, targets = measure.features.float(), measure.targets.float()
        weights = X.new_full((len(X),), 1 / len(X))
        flat = x.reshape(-1, x.shape[-1])
        parts = []
        for part in flat.split(max(1, 4 * NUMBERS_AT_ONCE // (len(X) * self.k))):
            columns = part.reshape(-1, self.k, self.f).permute(2, 1, 0).reshape(self.f, -1)
            outputs = (X @ columns).view(len(X), self.k, -1).permute(2, 0, 1)
            parts.append(self.clients.link.error(outputs, targets, weights))
        error = torch.cat(parts).reshape(x.shape[:-1])
        return error.where(x.isfinite().all(-1), math.inf)

    def single_loss(self, x: Tensor) -> Tensor:
        """f of models [..., d], in single precision: to screen with."""
        flat = x.reshape(-1, x.shape[-1])
        size = max(1, 4 * NUMBERS_AT_ONCE // (self.N * self.m * self.k))
        parts = []
        for part in flat.split(size):
            columns = part.reshape(-1, self.k, self.f).permute(2, 1, 0).reshape(self.f, -1)
            outputs = (self.X.reshape(-1, self.f) @ columns).view(self.N, self.m, self.k, -1)
            losses = self._losses(outputs, self.targets) * self.weights[:, :, 0]
            squares = part.square().sum(-1)
            parts.append(losses.sum((0, 1)) / self.N + self.l2 / 2 * squares)
        return torch.cat(parts).reshape(x.shape[:-1])

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.clients.link is LOGISTIC:
            return torch.nn.functional.softplus((1 - 2 * targets) * outputs).sum(2)
        if self.clients.link is MULTINOMIAL:
            return -(outputs.log_softmax(2) * targets).sum(2)
        return (outputs - targets).square().sum(2) / 2


def clipped(update: Tensor, C: Tensor) -> Tensor:
    """Each client's update [N, f, k, B], shortened to length C where it is longer."""
    length = update.square().sum((1, 2), keepdim=True).sqrt()
    return update * (C / length.clamp_(min=1e-30)).clamp_(max=1.0)


# ---- the search ----


class Found(NamedTuple):
    """A candidate, and the mean of what counts."""

    candidate: Candidate
    value: float


@dataclass(frozen=True)
class Field:
    """What may be chosen in a case, and what counts: the excess loss on the private clients, or the
    test error where l2 may be chosen too.

    arena    of an l2, one of `l2s`
    clip, iterations   where they are fixed
    places   where noise may go
    """

    arena: Callable[[float], Arena]
    l2s: tuple[float, ...]
    clip: float | None
    iterations: int | None
    places: tuple[str, ...]

    @property
    def by_error(self) -> bool:
        return len(self.l2s) > 1

    @property
    def first(self) -> Arena:
        return self.arena(self.l2s[0])

    @property
    def work(self) -> float:
        """Of a local step of all clients, in units of a small problem's."""
        a = self.first
        return len(self.l2s) * a.N * a.m * a.f * a.k / 30_000

    # ---- what may be chosen ----

    def grid(self) -> list[Candidate]:
        return [
            candidate
            for l2, place in product(self.l2s, self.places)
            for candidate in self._cells(l2, place)
            if self.allows(candidate) and self._hopeful(candidate)
        ]

    def _cells(self, l2: float, place: str) -> Iterator[Candidate]:
        arena = self.arena(l2)
        dense, small = self.work < 1, self.work < 4
        by_clip = not arena.by_record  # the mechanism clips messages
        L, mu = arena.task.L, arena.task.mu
        most = 2 / arena.steepest if by_clip or place == "gradient" else 2 / (L + mu)
        etas = [4.0**j / L for j in range(-2 if small else 0, 8) if 4.0**j / L <= most]
        gammas = [1.0, 0.5, 0.25, 0.125] if self.clip and by_clip else [1.0]
        algorithms = [FEDAVG, SCAFFNEW] if by_clip else [FEDAVG]
        every = 1 if dense else 2
        if by_clip:
            paces, rounds, steps = [2**j for j in range(0, 7, every)], ROUNDS[::every], 1024
            clips = [arena.distance / 2**j for j in range(every - 1, 10, every)]
        else:
            longest = min(arena.task.gradient_bound, math.sqrt(2))
            clips = [longest / 2**j for j in range(0, 7, every)]
            etas += [most] if place != "gradient" else []
            paces, rounds, steps = {
                "gradient": ([1], ROUNDS[::every], 512),
                "message": ([4**j for j in range(5)], ROUNDS[::every], 1024),
                "hidden-gradient": ([64, 256], (1, 2), 512),
            }[place]
        if place != "gradient" and not by_clip and not arena.task.clipped_convex:
            clips = [arena.task.gradient_bound]
        elif self.clip:
            clips = [self.clip]
        if self.iterations:
            paces = [tau for tau in range(1, self.iterations + 1) if self.iterations % tau == 0]
        for tau, eta, C, gamma, warm in product(paces, etas, clips, gammas, (False, True)):
            for K in [self.iterations // tau] if self.iterations else rounds:
                if K * tau > steps:
                    continue
                for algorithm in algorithms if tau > 1 else algorithms[:1]:
                    yield Candidate(algorithm, eta, tau, K, C, gamma, place, warm, l2=l2)

    def allows(self, c: Candidate) -> bool:
        """What the case leaves open, and training would accept."""
        arena = self.arena(c.l2)
        L, mu = arena.task.L, arena.task.mu
        by_stability = arena.by_record and c.noise_in != "gradient"
        return (
            c.rounds >= 1
            and 1 <= c.local_steps <= 1024
            and c.rounds * c.local_steps <= LONGEST
            and c.gamma <= 1
            and (self.iterations in (None, c.rounds * c.local_steps))
            and not (by_stability and c.eta > 2 / (L + mu) * (1 + 1e-12))
            and not (c.noise_in == "gradient" and (c.local_steps > 1 or c.gamma < 1))
            and not (c.noise_in == "hidden-gradient" and c.local_steps == 1)
            and not (arena.by_record and c.algorithm != FEDAVG)
        )

    def _hopeful(self, c: Candidate) -> bool:
        """Whether noise alone, if nothing damped it, would leave less than many times the loss of
        not training."""
        arena = self.arena(c.l2)
        step = arena.added(c).item()
        alone = arena.trace / 2 * (c.gamma * step) ** 2 * c.rounds
        return alone < 30 * arena.start_excess

    def neighbours(self, c: Candidate, factor: float) -> list[Candidate]:
        """One choice changed by the factor, or turned round."""
        found = []
        for by in (factor, 1 / factor):
            changes = [
                {"eta": c.eta * by},
                {"gamma": c.gamma * by},
                {"rounds": _moved(c.rounds, by)},
                {"rounds": _moved(c.rounds, by), "clip": c.clip / by},
                {"local_steps": _moved(c.local_steps, by)},
                {"local_steps": _moved(c.local_steps, by), "eta": c.eta / by},
                {"rounds": _moved(c.rounds, by), "eta": c.eta / by},
                {"rounds": _moved(c.rounds, by), "local_steps": _moved(c.local_steps, 1 / by)},
            ]
            if self._clip_is_open(c):
                changes += [{"clip": c.clip * by}, {"clip": c.clip * by, "eta": c.eta * by}]
            else:
                changes = [change for change in changes if "clip" not in change]
            if self.iterations:
                changes += [
                    {"local_steps": tau, "rounds": self.iterations // tau}
                    for tau in [_moved(c.local_steps, by)]
                    if tau >= 1 and self.iterations % tau == 0
                ]
            if self.by_error:
                changes += [{"l2": l2} for l2 in self.l2s if l2 != c.l2]
            found += [replace(c, **change) for change in changes]
        turned = [
            replace(c, warm_start=not c.warm_start),
            replace(c, algorithm=SCAFFNEW if c.algorithm == FEDAVG else FEDAVG),
        ]
        new = dict.fromkeys(replace(other, returns="last") for other in [*found, *turned])
        return [
            other for other in new if other != replace(c, returns="last") and self.allows(other)
        ]

    def shaken(self, c: Candidate, number: int, spread: float, name: int = 0) -> list[Candidate]:
        """All choices changed at random, by factors of about 2^spread."""
        factors = torch.exp2(spread * noise((4 * number, 5), SHAKING, c.rounds, name)).tolist()
        found = []
        for eta, clip, gamma, rounds, tau in factors:
            local_steps = max(1, round(c.local_steps * tau)) if c.local_steps > 1 else 1
            K = max(1, round(c.rounds * rounds))
            if self.iterations:
                local_steps, K = c.local_steps, c.rounds
            other = replace(
                c,
                eta=c.eta * eta,
                clip=c.clip * clip if self._clip_is_open(c) else c.clip,
                gamma=1.0 if c.noise_in == "gradient" else min(1.0, c.gamma * gamma),
                rounds=K,
                local_steps=local_steps,
                returns="last",
            )
            if self.allows(other):
                found.append(other)
        return found[:number]

    def _clip_is_open(self, c: Candidate) -> bool:
        by_clip = not self.first.by_record or c.noise_in == "gradient"
        return not self.clip and (by_clip or self.first.task.clipped_convex)

    # ---- what it is worth ----

    def values(self, candidates: list[Candidate], seeds: int, stream: int) -> list[Found]:
        """Each candidate with the better of what it may return, the best first."""
        found = []
        for l2 in self.l2s:
            here = sorted((c for c in candidates if c.l2 == l2), key=lambda c: c.course)
            arena, size = self.arena(l2), max(16, 8192 // seeds)
            for begin in range(0, len(here), size):
                part = here[begin : begin + size]
                x = arena.run(part, seeds, stream)
                value = arena.single_error(x) if self.by_error else arena.single_excess(x)
                means = value.double().mean(-1).nan_to_num(math.inf, math.inf)
                for c, pair in zip(part, means.tolist(), strict=True):
                    returns = int(pair[1] < pair[0])
                    found.append(Found(replace(c, returns=RETURNS[returns]), pair[returns]))
        return sorted(found, key=lambda one: one.value)


def _moved(count: int, by: float) -> int:
    """A whole number times the factor, and never the same."""
    return max(count + 1, round(count * by)) if by > 1 else min(count - 1, round(count * by))


def search(field: Field, seconds: float) -> list[Found]:
    """The best candidates found, by SEEDS fresh seeds: a grid, thinned out with more and more
    seeds; then steps to neighbours, and to what is near in all choices at once, from the best of
    each kind. In about so many CPU seconds."""
    begin = time.process_time()
    few, many = (4, 32) if field.work < 4 else (2, 16)
    found = field.values(field.grid(), few, SCREENING)
    found = field.values([one.candidate for one in _kept(found, 80, 6)], 16, SCREENING)
    starts = [one.candidate for one in _kept(found, 3, 1)][:8]
    ended = []
    for number, start in enumerate(starts, start=1):
        until = begin + seconds * (0.3 + 0.4 * number / len(starts))
        ended.append(_climb(field, start, many, until))
    ended.sort(key=lambda one: one.value)
    for spread in (1.0, 0.5, 0.25):
        if time.process_time() - begin < seconds:
            others = field.shaken(ended[0].candidate, 48, spread)
            ended = _merged(ended, field.values(others, many, CLIMBING)[:2])
    found = field.values([one.candidate for one in ended], SEEDS, FINAL)
    for factor in (2.0, math.sqrt(2), math.sqrt(2)):
        best = found[0].candidate
        if time.process_time() - begin < 1.3 * seconds:
            near = field.neighbours(best, factor)
            found = _merged(found, field.values(near, SEEDS, FINAL))
    return found


def search_near(field: Field, known: Candidate, seconds: float) -> list[Found]:
    """The best candidates found from a good one on, by SEEDS fresh seeds."""
    until = time.process_time() + seconds
    seeds = 64 if field.work < 4 else 24
    passed = [_climb(field, known, seeds, until, AGAIN)]
    for attempt in range(9):
        if time.process_time() < until:
            here = passed[0].candidate
            others = field.shaken(here, 32, (1.0, 0.5, 0.25)[attempt % 3], attempt + 1)
            there = field.values(others, seeds, AGAIN)[:2]
            if there and there[0].value < 0.999 * passed[0].value:
                there.append(_climb(field, there[0].candidate, seeds, until, AGAIN))
            passed = _merged(passed, there)
    final = dict.fromkeys([known, *(one.candidate for one in passed[:6])])
    found = field.values(list(final), SEEDS, FINAL)
    return _merged(found, field.values(field.neighbours(found[0].candidate, 1.2), SEEDS, FINAL))


def _climb(
    field: Field, start: Candidate, seeds: int, until: float, stream: int = CLIMBING
) -> Found:
    """From neighbour to better neighbour, at first in long steps."""
    here = field.values([start], seeds, stream)[0]
    for factor in (4.0, 2.0, math.sqrt(2)):
        while time.process_time() < until:
            there = field.values(field.neighbours(here.candidate, factor), seeds, stream)[0]
            if there.value >= 0.999 * here.value:
                break
            here = there
    return here


def _kept(found: list[Found], number: int, of_each: int) -> list[Found]:
    """The best, and the best of each kind."""
    kinds: dict[tuple[Any, ...], int] = {}
    kept = []
    for place, one in enumerate(found):
        c = one.candidate
        kind = c.algorithm, c.warm_start, c.noise_in, c.l2
        kinds[kind] = kinds.get(kind, 0) + 1
        if (place < number or kinds[kind] <= of_each) and one.value < math.inf:
            kept.append(one)
    return kept


def _merged(*lists: list[Found]) -> list[Found]:
    return sorted((one for found in lists for one in found), key=lambda one: one.value)


class Worth(NamedTuple):
    """What a candidate is really worth, with SEEDS fresh seeds."""

    excess: float
    excess_se: float
    error: float
    loss: float
    errors: list[float]

    def told(self) -> dict[str, Any]:
        quantiles = np.quantile(self.errors, (0.05, 0.25, 0.5, 0.75, 0.95))
        return {
            **self._asdict(),
            "errors": [float(f"{error:.5g}") for error in self.errors],
            "quantiles": [float(f"{error:.5g}") for error in quantiles],
        }


def worth(arena: Arena, candidate: Candidate) -> Worth:
    x = arena.run([candidate], SEEDS, FINAL)[0, RETURNS.index(candidate.returns)]
    x = x.nan_to_num(math.inf)
    excess, (error, loss) = arena.excess(x), arena.test(x)
    spread = float(excess.std() / math.sqrt(SEEDS))
    return Worth(
        float(excess.mean()), spread, float(error.mean()), float(loss.mean()), error.tolist()
    )


# ---- what costs no privacy ----


def of_model(arena: Arena, x: Tensor) -> dict[str, float]:
    error, loss = arena.test(x)
    return {"excess": float(arena.excess(x)), "error": float(error), "loss": float(loss)}


OWN_L2S = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def alone(clients: LinearClients) -> Tensor:
    """Each client's own model, with the l2 that its own cross-validation likes best: [N, d]."""
    X, targets, weights, link = clients.features, clients.targets, clients.weights, clients.link
    chosen = cross_validated(clients, OWN_L2S).argmin(0)
    models = torch.stack([fitted(X, targets, weights, link, l2) for l2 in OWN_L2S])
    return models[chosen, torch.arange(len(X))]


def cross_validated(clients: LinearClients, l2s: Iterable[float]) -> Tensor:
    """Each client's summed loss on own records that were left out, a fifth of them five times:
    [l2s, N]."""
    X, targets, weights, link = clients.features, clients.targets, clients.weights, clients.link
    present = weights > 0
    number = present.sum(1, keepdim=True)
    fold = torch.arange(X.shape[1]).expand_as(weights) % number.clamp(max=5)
    validation = []
    for l2 in l2s:
        losses = torch.zeros(len(X), dtype=torch.float64)
        for left_out in range(5):
            training = present & (fold != left_out)
            share = training / training.sum(1, keepdim=True).clamp(min=1)
            x = fitted(X, targets, share.double(), link, l2)
            outputs = torch.einsum("nmf,nkf->nmk", X, x.reshape(len(X), -1, X.shape[-1]))
            held = link.loss(outputs, targets) * (present & (fold == left_out))
            losses += held.sum(1)
        validation.append(losses)
    return torch.stack(validation)


def fitted(X: Tensor, targets: Tensor, weights: Tensor, link: Any, l2: float) -> Tensor:
    """The minimiser of every client's own loss, by Newton's method with step halving: [N, d]."""
    N, _, f = X.shape
    k = targets.shape[-1]
    x = torch.zeros(N, k * f, dtype=torch.float64)

    def losses(x: Tensor) -> tuple[Tensor, Tensor]:
        outputs = torch.einsum("nmf,nkf->nmk", X, x.reshape(N, k, f))
        value = (link.loss(outputs, targets) * weights).sum(1) + l2 / 2 * x.square().sum(1)
        return value, outputs

    value, outputs = losses(x)
    for _ in range(30):
        residual = link.residual(outputs, targets) * weights.unsqueeze(-1)
        gradient = torch.einsum("nmk,nmf->nkf", residual, X).flatten(1) + l2 * x
        if float(gradient.norm(dim=1).max()) < 1e-7:
            break
        curvature = link.hessian(outputs) * weights[..., None, None]
        H = torch.zeros(N, k, f, k, f, dtype=torch.float64)
        for i, j in product(range(k), repeat=2):
            H[:, i, :, j] = X.transpose(1, 2) @ (curvature[:, :, i, j, None] * X)
        H = H.reshape(N, k * f, k * f) + l2 * torch.eye(k * f, dtype=torch.float64)
        step, scale = torch.linalg.solve(H, gradient), torch.ones(N, 1, dtype=torch.float64)
        for _ in range(20):
            after, outputs = losses(x - scale * step)
            worse = after > value
            if not worse.any():
                break
            scale = torch.where(worse.unsqueeze(1), scale / 2, scale)
        x, value = x - scale * step, after
    return x
