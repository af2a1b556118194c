"""Rehearsals: a network's real algorithm on public records, with the real run's noise.

The public pool is split: stand-ins for the clients hold a half, the public model is trained on a
quarter, and a quarter judges; every record judges in turn (docs/planning.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.algorithms.schedule import divisors_of, periodic
from equipoise.errors import InvalidValue, UserCode
from equipoise.facts import Facts
from equipoise.fleets import averaged, server_rounds
from equipoise.planning.bounds import trainability, trainability_of_gradients
from equipoise.planning.candidates import Candidate
from equipoise.planning.outlook import (
    Judged,
    predicted,
)
from equipoise.planning.plan import Option, Prediction, Question
from equipoise.planning.problems import Line, settings_of
from equipoise.planning.question import JudgeBy
from equipoise.planning.trial import Noised, algorithm_of, noisy_fleet
from equipoise.planning.worlds import GUESSED_RECORDS
from equipoise.privacy.events import Event
from equipoise.privacy.mechanisms.catalogue import mechanism
from equipoise.privacy.noise import SimulatedNoise
from equipoise.privacy.promise import Promise
from equipoise.seeds import stream
from equipoise.settings import Returns, Run
from equipoise.tasks.network import ModelClients, measure
from equipoise.tasks.public import public_model
from equipoise.tasks.splits import Indices, Minibatches, parse_split
from equipoise.tasks.task import Task

FEWEST_RECORDS = 12  # of a pool on which anything can be rehearsed
PARTS = 4  # of the pool: one judges, one teaches the public model, the stand-ins hold the others
LARGE = 10_000  # parameters: fewer and shorter rehearsals beyond
MANY_RECORDS = 600  # of a pool of which one part judges well enough to begin with
SPLITS = 8, 4  # on which the best plans are rehearsed; of a large model
STAND_INS = 6, 5
LONGEST = 512, 256  # local steps of a plan
MOST_RECORDS = 256  # of a stand-in
STEP_RECORDS = 64  # of all stand-ins in a local step where gradients of single records are clipped
MOST_STEPS = 5000  # of training a public model
PASSES = 10  # of a plan for records through all records of a client that has minibatches
WAYS = (0.5, 1.5, 5.0)  # how far to go, in distances from the start to what the pool teaches
WORLDS = 64
LOSS = 0.01  # of the loss is added to the error: of plans with equal errors the more certain wins


class Split(NamedTuple):
    """One world: the stand-ins, where a cold and a warm start begin, and the records that judge."""

    stand_ins: ModelClients
    starts: tuple[Tensor, Tensor]
    judges: ModelClients
    free: Indices
    """The records that do not judge."""

    def judge(self, x: Tensor) -> tuple[float, float]:
        """Error and loss."""
        held = self.judges
        with UserCode() as tried:
            measured = measure(held.model, held.loss, held.metric, held.data, x)
            error, loss = float(measured.error), float(measured.loss)
            return (error if math.isfinite(error) else 1.0), min(loss, 1e6) if loss == loss else 1e6
        raise InvalidValue(
            f"model, loss and metric fail on the public pool: {tried.kind_and_place}"
        )


class Rehearsed(NamedTuple):
    """A plan, or another way to go, and its errors and losses [splits]."""

    candidate: Candidate | None
    errors: Tensor
    losses: Tensor

    def by(self, what: JudgeBy) -> Tensor:
        return self.errors if what == "error" else self.losses

    def score(self, what: JudgeBy) -> float:
        return float(self.by(what).mean() + LOSS * self.losses.clamp_max(10).mean())


@dataclass(frozen=True)
class Public:
    """All that is known of a network: the public side of its task. The same for all budgets."""

    question: Question
    task: Task
    facts: Facts
    pool: ModelClients
    made: dict[int, Split] = field(default_factory=dict)

    @property
    def large(self) -> bool:
        return self.facts.dimension > LARGE

    @property
    def records(self) -> int:
        return self.pool.sizes[0]

    @property
    def size(self) -> int:
        """Records of a client in the mean; a guess where that is private."""
        sizes = self.facts.sizes
        return round(sum(sizes) / len(sizes)) if sizes else GUESSED_RECORDS

    @property
    def first(self) -> range:
        """Splits to begin with: of a small pool those in which every record judges once."""
        return range(1 if self.records >= MANY_RECORDS else PARTS)

    @property
    def final(self) -> range:
        """Others; of a large model, whose public model takes long to train, one deal must do."""
        return range(SPLITS[True]) if self.large else range(PARTS, PARTS + SPLITS[False])

    def split(self, number: int) -> Split:
        if number not in self.made:
            self.made[number] = self._split(number)
        return self.made[number]

    def _split(self, number: int) -> Split:
        deal, part = divmod(number, PARTS)
        order = stream(self.question.seed, "rehearsal", deal).permutation(self.records)
        parts = [order[(part + i) % PARTS :: PARTS] for i in range(PARTS)]
        free = np.concatenate(parts[1:])
        public = self._model(parts[1])
        return Split(
            self._stand_ins(np.concatenate(parts[2:]), number),
            (self.task.x0, public),
            self._holding([parts[0]], None),
            free,
        )

    def alone(self, split: Split) -> Tensor:
        """What a silo's own records would teach it."""
        return self._model(split.free[: self.size])

    def gain(self, measured: float | None) -> float:
        """By how much the error of the whole pool's model is lower than that of a part's."""
        error = float(self.judged(lambda split: split.starts[True]).errors.mean())
        if measured is None:
            measured = float(self.judged(lambda split: self._model(split.free)).errors.mean())
        return max(0.0, error - measured)

    def judged(self, models: Callable[[Split], Tensor]) -> "Rehearsed":
        """Of a model for each of the last splits."""
        splits = [self.split(number) for number in self.final]
        values = [split.judge(models(split)) for split in splits]
        return Rehearsed(None, *torch.tensor(values, dtype=torch.float64).T)

    def _model(self, chosen: Indices) -> Tensor:
        """Trained as the public model is."""
        pool = self._holding([chosen], self.task.batch)
        steps = min(self.task.iterations, MOST_STEPS)
        return public_model(replace(self.task, pool=pool, iterations=steps))

    def _stand_ins(self, chosen: Indices, number: int) -> ModelClients:
        rng = stream(self.question.seed, "stand-ins", number)
        if self.question.unit != "client":  # with a round after each step, one is as good as many
            count = min(self.facts.clients, 2 if self.question.round_cost else 1)
            size = min(self.size * self.facts.clients, MOST_RECORDS, len(chosen))
        else:
            count = min(self.facts.clients, STAND_INS[self.large])
            size = max(min(self.size, MOST_RECORDS), self.task.batch or 1)
        weights = self._weights(chosen, count, rng)
        again = self.question.unit == "client" or weights[0] is not None
        held = [rng.choice(chosen, size, replace=again, p=weight) for weight in weights]
        return self._holding(held, self.task.batch)

    def _weights(self, chosen: Indices, count: int, rng: np.random.Generator) -> list[Any]:
        """How likely each record is to be drawn by each stand-in, whose labels may be skewed."""
        split = self.question.split or ""
        if not split.startswith("dirichlet"):
            return [None] * count
        _, labels, counts = np.unique(
            self.pool.data[0][1][torch.from_numpy(chosen)].cpu().numpy(),
            return_inverse=True,
            return_counts=True,
        )
        shares = counts / counts.sum()
        drawn = rng.dirichlet(parse_split(split) * shares + 1e-9, size=count)
        weights = (drawn / counts)[:, labels]
        return list(weights / weights.sum(1, keepdims=True))

    def _holding(self, held: list[Indices], batch: int | None) -> ModelClients:
        inputs, targets = self.pool.data[0]
        index = [torch.from_numpy(chosen) for chosen in held]
        none = tuple(torch.zeros(len(chosen), dtype=torch.bool) for chosen in held)
        sizes = tuple(len(chosen) for chosen in held)
        clients = replace(
            self.pool,
            data=tuple((inputs[chosen], targets[chosen]) for chosen in index),
            minibatches=Minibatches(self.question.seed, batch, sizes) if batch else None,
            unreadable=none,
            useless=none,
        )
        if self.question.unit != "client":
            vars(clients)["layout"] = self.pool.layout  # found out once, on made-up examples
        return clients

    def length(self, warm: bool) -> float:
        """Of the gradient of one record at the start, in the median."""
        split = self.split(0)
        alone = self._holding(
            [split.free[i : i + 1] for i in range(min(32, len(split.free)))], None
        )
        x = split.starts[warm]
        x = x.to(self.task.device)
        gradients = alone.gradient(x.expand(len(alone.sizes), -1), 0)
        return max(float(torch.linalg.vector_norm(gradients, dim=-1).median()), 1e-9)

    def distance(self, warm: bool) -> float:
        """From the start to where training may end: as far as the public model went, or half of
        that beyond it."""
        cold, public = self.split(0).starts
        return max(float(torch.linalg.vector_norm(public - cold)), 1e-6) / (2 if warm else 1)


@dataclass(frozen=True)
class Problem:
    """One budget: what can be tried, and its noise."""

    public: Public
    promise: Promise
    known: dict[tuple[Any, ...], list[Event]] = field(default_factory=dict)

    @property
    def question(self) -> Question:
        return self.public.question

    @property
    def facts(self) -> Facts:
        return self.public.facts

    @property
    def longest(self) -> int:
        return self.question.iterations or min(self.facts.iterations, LONGEST[self.public.large])

    def lines(self) -> list[Line]:
        """Places and algorithms that training takes, cold and warm; of several, refused ones are
        left out."""
        lines, refusals = [], []
        for place in self.question.mechanisms:
            names = self.question.algorithms
            # with a round after each local step algorithms hardly differ
            for name in names[:1] if place.paid_per == "local step" else names:
                line = Line(name, self.question.options_of(name), place, False)
                try:
                    self.events(line.candidate(1.0, 1, 1, 1.0))
                except InvalidValue as refusal:
                    refusals.append(refusal)
                    continue
                lines += [replace(line, warm=warm) for warm in (False, True)]
        if not lines:
            raise refusals[0]
        return lines

    def events(self, candidate: Candidate) -> list[Event]:
        """What protects each client's releases."""
        run = self.run(candidate)
        key = run.mechanism.noise_in, candidate.local_steps, candidate.rounds, run.sampling_rate
        if (*key, run.clip) not in self.known:
            schedule = (candidate.local_steps,) * candidate.rounds
            self.known[*key, run.clip] = run.mechanism.events(run, self.facts, schedule)
        return self.known[*key, run.clip]

    def run(self, candidate: Candidate) -> Run:
        settings = settings_of(
            candidate, self.promise, task=self.facts.task, weights=self.question.weights
        )
        return settings.resolve(self.facts)

    def noise(self, candidate: Candidate) -> float:
        """Standard deviation per coordinate of the mean over all clients: of their messages, or of
        their mean gradients. Noise is proportional to the clip."""
        once, clients = replace(candidate, clip=1.0), self.facts.clients
        events, sizes = self.events(once), self.facts.sizes or (1,)
        place = mechanism(self.promise.unit, candidate.noise_in)
        weights = self.question.counted(self.facts)
        if place.noises_message and len(events) == 1:  # all alike
            averaging = self.promise.averaging(clients, weights)
            return candidate.clip * events[0].sigma / math.sqrt(averaging)
        if place.noises_message:
            sigmas = [self.promise.client_sigma(event.sigma, clients) for event in events]
        else:
            sigmas = [e.sigma / (e.rate * n) for e, n in zip(events, sizes, strict=True)]
        known = math.sqrt(len(sigmas) / clients)
        return candidate.clip * self.promise.averaged(sigmas, weights) * known

    def beginning(self, line: Line) -> list[Candidate]:
        r = self.public.distance(line.warm)
        if line.place.paid_per == "local step":
            C = self.question.clip or self.public.length(line.warm) / 2
            return [
                self._sampled(line.candidate(2 * way * r / (K * C), 1, K, C))
                for K in dict.fromkeys(self._steps())
                for way in WAYS
            ]
        eta, gamma = self.facts.eta, self.question.gamma or 1.0
        if self.question.clip:
            gammas = [gamma] if self.question.gamma else [1.0, 0.25]
            return [
                line.candidate(eta, tau, K, self.question.clip, g)
                for tau, K in self._paces()
                for g in gammas
            ]
        return [
            line.candidate(eta, tau, K, r * way / K, gamma)
            for tau, K in self._paces()
            for way in WAYS
        ]

    def _steps(self) -> list[int]:
        T = self.longest
        return [T] if self.question.iterations else [max(1, T // 16), max(1, T // 4), T]

    def _paces(self) -> list[tuple[int, int]]:
        """Local steps and rounds."""
        T = self.longest
        if self.question.iterations:
            every = divisors_of(T)
            few = dict.fromkeys((*every[:: max(1, len(every) // 4)], every[-1]))
            return [(tau, T // tau) for tau in few]
        return [(tau, K) for tau in (4, 16) for K in (1, 4, 16, 64) if tau * K <= T] or [(1, T)]

    def _sampled(self, candidate: Candidate) -> Candidate:
        """With as large a sample as PASSES allow: a smaller one saves work, not noise."""
        if self.facts.batch is None:
            return candidate
        rate = min(1.0, PASSES / candidate.iterations)
        return replace(candidate, sampling_rate=float(f"{rate:.3g}"))

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        tau, K, C, eta = candidate.local_steps, candidate.rounds, candidate.clip, candidate.eta
        near, free = [], self.question.clip is None
        by_step = mechanism(self.promise.unit, candidate.noise_in).paid_per == "local step"
        near += [replace(candidate, eta=eta * f) for f in (0.5, 2.0)]
        if by_step and free:  # as far, with longer or shorter gradients
            near += [replace(candidate, clip=C * f, eta=eta / f) for f in (0.5, 2.0)]
        elif free:
            near += [replace(candidate, clip=C * f) for f in (0.5, 2.0)]
        if self.question.iterations:
            return near
        for k in (K // 2, K * 2):
            if k >= 1 and by_step:  # as far in more, or fewer, steps
                near.append(self._sampled(replace(candidate, rounds=k, eta=eta * K / k)))
            elif k >= 1:
                near.append(replace(candidate, rounds=k, clip=C * K / k if free else C))
        if not by_step:
            near += [replace(candidate, local_steps=t) for t in (tau // 2, tau * 2) if t >= 1]
        return [each for each in near if each.iterations <= self.longest]

    def rehearse(
        self, candidate: Candidate, number: int, seed: int
    ) -> dict[Returns, tuple[float, float]]:
        """Error and loss of what the plan can return, in one split, with the noise of a seed."""
        split = self.public.split(number)
        clients, start = split.stand_ins, split.starts[candidate.warm]
        place = mechanism(self.promise.unit, candidate.noise_in)
        noise, count, size = self.noise(candidate), len(clients.sizes), clients.sizes[0]
        rate = 1.0 if place.noises_message else self._rate(candidate, count, size)
        own = noise * math.sqrt(count) * (1.0 if place.noises_message else rate * size)
        device = self.public.task.device
        noised = Noised(place, own, noise, SimulatedNoise(seed), device=device)
        fleet = noisy_fleet(candidate, candidate.clip, clients, (rate,) * count, noised)
        schedule = periodic(candidate.iterations, candidate.local_steps)
        algorithm = algorithm_of(candidate, candidate.clip, place)
        rounds = server_rounds(start, schedule, fleet, algorithm, candidate.gamma)
        for round in averaged(rounds):
            last = round
        judged: dict[Returns, tuple[float, float]] = {"last": split.judge(last.x)}
        if candidate.rounds > 1:
            assert last.average is not None
            judged["average"] = split.judge(last.average)
        return judged

    def _rate(self, candidate: Candidate, count: int, size: int) -> float:
        """Of stand-ins, whose samples together are as large as the clients', up to a limit."""
        run = self.run(candidate)
        batch = self.public.size * (run.sampling_rate or 1.0)
        if run.sampling_rate is None and run.batch != "full":
            batch = run.batch
        together = min(batch * self.facts.clients, STEP_RECORDS)
        return min(1.0, max(1.0, together / count) / size)

    def option(self, origin: str, tried: Rehearsed, gain: float) -> Option:
        assert tried.candidate
        event = self.events(tried.candidate)[0]
        return tried.candidate.option(
            origin, event, self.promise, self.facts.clients, self.prediction(tried, gain)
        )

    def prediction(self, tried: Rehearsed, gain: float) -> Prediction:
        """The mean, and where worlds and test sets lie. With more records than a rehearsal has, the
        error may be lower by as much as the whole pool's model is better than that of a part."""
        error, loss = (worlds_of(values).unsqueeze(1) for values in (tried.errors, tried.losses))
        judged = Judged(error, loss, None, shares=bool((error <= 1).all()))
        whole = predicted(None, judged, self.public.task.test_records)
        low = max(0.0, (whole.test_error_low or 0.0) - gain)
        mean = float(tried.errors.mean())
        return whole.model_copy(update={"test_error": mean, "test_error_low": low})

    def nu2(self, candidate: Candidate) -> float | None:
        if self.promise.unit == "client":
            facts, weights = self.facts, self.question.counted(self.facts)
            return trainability(self.promise, facts.clients, facts.dimension, weights)
        return trainability_of_gradients(self.run(candidate), self.facts)


def worlds_of(values: Tensor) -> Tensor:
    """Means over as many splits as let every record judge once, drawn again and again."""
    draws = stream(0, "rehearsed worlds").integers(len(values), size=(WORLDS, PARTS))
    return values[torch.from_numpy(draws)].mean(1)


def known_of(question: Question, task: Task) -> Public:
    assert isinstance(task.pool, ModelClients)
    pool = task.pool
    inputs, targets = pool.data[0]
    pool = replace(pool, data=((inputs[:], targets[:]),))  # read once
    return Public(question, task, task.facts(question.unit), pool)
