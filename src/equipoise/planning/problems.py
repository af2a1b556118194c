"""What is planned, for either unit: the plans to begin with, the neighbours of a plan, and the
noise of each."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from equipoise.algorithms import ALGORITHMS, algorithm_spec
from equipoise.algorithms.algorithm import Options
from equipoise.algorithms.schedule import divisors_of
from equipoise.errors import InvalidValue
from equipoise.facts import Facts, Weights
from equipoise.planning.bounds import trainability, trainability_of_gradients
from equipoise.planning.candidates import Candidate
from equipoise.planning.plan import Question
from equipoise.planning.trial import Level
from equipoise.planning.worlds import Worlds
from equipoise.privacy.events import Event
from equipoise.privacy.mechanisms.catalogue import mechanism
from equipoise.privacy.mechanisms.mechanism import Mechanism
from equipoise.privacy.promise import Promise
from equipoise.settings import Run, Settings

MOST_ROUNDS = 512
LONGEST = 2048  # local iterations of a plan, if they are not given
LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of rounds, or of local steps where these are paid for."""


class PlanningProblem(Protocol):
    """A question, worlds, and what can be tried."""

    @property
    def question(self) -> Question: ...
    @property
    def worlds(self) -> Worlds: ...
    @property
    def promise(self) -> Promise: ...
    @property
    def facts(self) -> Facts: ...

    def lines(self) -> "list[Line]":
        """What a table compares: the best plan of each is sought."""
        ...

    def beginning(self, line: "Line") -> list[Candidate]:
        """Plans far apart, to begin with."""
        ...

    def neighbours(self, candidate: Candidate) -> list[Candidate]: ...

    def level(self, candidate: Candidate) -> Level:
        """The noise of the stand-ins: fewer of them than clients have so much less that their
        average has the right noise."""
        ...

    def event(self, candidate: Candidate) -> Event:
        """What protects the releases of the real run's first client."""
        ...

    def nu2(self, candidate: Candidate) -> float | None:
        """|averaged noise|^2 / C^2 of a run with a single release; None where the noise is no
        multiple of the clip."""
        ...


@dataclass(frozen=True)
class Line:
    """One algorithm with its options, one place for the noise, one start."""

    algorithm: str
    options: Options
    place: Mechanism
    warm: bool

    def candidate(self, eta: float, tau: int, K: int, C: float, gamma: float = 1.0) -> Candidate:
        return Candidate(
            self.algorithm, eta, tau, K, C, gamma, self.place.noise_in, self.options, self.warm
        )

    @property
    def origin(self) -> str:
        place = "" if self.place.unit == "client" else f"{self.place.noise_in}: "
        return f"{place}{self.algorithm}{', warm' if self.warm else ''}"


def has_noise(problem: PlanningProblem, candidate: Candidate) -> bool:
    """Whether there is such noise: for very many records, or a very small clip, there is none."""
    try:
        problem.level(candidate)
    except InvalidValue:
        return False
    return True


def _starts(worlds: Worlds) -> list[bool]:
    return [False, True] if worlds.warm else [False]


@dataclass(frozen=True)
class ClientProblem:
    """The unit is a client: every round is paid for."""

    question: Question
    worlds: Worlds
    promise: Promise
    facts: Facts
    place: Mechanism
    less_noise: float = 1.0
    """Of what the promise needs: to find out what would be enough."""

    def lines(self) -> list[Line]:
        return [
            Line(name, self.question.options_of(name), self.place, warm)
            for name in self.question.algorithms
            for warm in _starts(self.worlds)
        ]

    def beginning(self, line: Line) -> list[Candidate]:
        candidates = []
        for eta in dict.fromkeys((self._etas(line)[0], self._etas(line)[-1])):
            for tau, rounds in self._paces():
                for K in rounds:
                    for C, gamma in self._clips(line, K):
                        candidates.append(line.candidate(eta, tau, K, C, gamma))
        return candidates

    def _etas(self, line: Line) -> list[float]:
        """From 1/L, which is stable whatever the records are, up by factors of four to what is
        stable for the stand-ins."""
        assert self.facts.L
        pull = algorithm_spec(line.algorithm).proximal(line.options)
        first, longest = 1 / (self.facts.L + pull), 1 / (1 / self.worlds.longest + pull)
        etas = [first]
        while etas[-1] * 4 <= longest:
            etas.append(etas[-1] * 4)
        if longest > 1.5 * etas[-1]:
            etas.append(longest)
        return etas

    def _paces(self) -> list[tuple[int, list[int]]]:
        T = self.question.iterations
        if T:
            every = _paces_of(T)
            few = every[:: max(1, len(every) // 6)]
            return [(tau, [T // tau]) for tau in dict.fromkeys((*few, every[-1]))]
        return [(1, [1, 3, 8, 24, 64]), (4, [1, 3, 8, 24, 64]), (16, [1, 3, 8, 24])]

    def _clips(self, line: Line, K: int) -> list[tuple[float, float]]:
        """Clips and server steps: so many rounds should be able to go the distance, or a part of
        it."""
        question = self.question
        gammas = [question.gamma] if question.gamma else [1.0, 0.25]
        if question.clip:
            return [(question.clip, gamma) for gamma in gammas]
        r = self._distance(line.warm)
        drowned = 0.1 / (self.noise_per_clip * math.sqrt(self.facts.dimension))
        ways = (0.2, 0.7, 2.0, 6.0) if K > 1 else (min(0.05, drowned), 0.2, 0.5, 1.0)
        gamma = question.gamma or 1.0
        return [(r * way / K, gamma) for way in ways if r * way / K <= 2 * r]

    def _distance(self, warm: bool) -> float:
        return max(self.worlds.distance(warm), 1e-6)

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        question, near = self.question, []
        line = Line(candidate.algorithm, candidate.options, self.place, candidate.warm)
        tau, K = candidate.local_steps, candidate.rounds
        if question.iterations:
            near += _paces_beside(candidate, question.iterations)
        else:
            near += [replace(candidate, local_steps=t) for t in (tau // 2, tau * 2) if t >= 1]
            near += [replace(candidate, rounds=k) for k in _beside(K)]
        if question.clip is None:
            near += [replace(candidate, clip=candidate.clip * f) for f in (2**-0.5, 2**0.5)]
            if not question.iterations:  # as far in more and shorter, or fewer and longer rounds
                near += [
                    replace(candidate, rounds=k, clip=candidate.clip * K / k) for k in _beside(K, 2)
                ]
        elif question.gamma is None:
            gammas = (candidate.gamma / 2, candidate.gamma * 2)
            near += [replace(candidate, gamma=g) for g in gammas if 2**-6 <= g <= 1]
        etas = self._etas(line)
        place = min(range(len(etas)), key=lambda i: abs(etas[i] - candidate.eta))
        near += [replace(candidate, eta=eta) for eta in etas[max(0, place - 1) : place + 2]]
        return [c for c in near if c.rounds <= MOST_ROUNDS and c.iterations <= self.longest]

    @property
    def weights(self) -> Weights:
        return self.question.counted(self.facts)

    @property
    def longest(self) -> int:
        return self.question.iterations or LONGEST

    @cached_property
    def noise_per_clip(self) -> float:
        """Of the average, per coordinate, for one release with C = 1."""
        noise = averaged_noise(self.place, self.promise, self.facts, self.weights)
        return self.less_noise * noise

    def level(self, candidate: Candidate) -> Level:
        averaged = self.noise_per_clip * candidate.clip * math.sqrt(candidate.rounds)
        weights = self.worlds.weights if self.weights else None
        return Level(self.place, (1.0,) * self.worlds.number, weights).scaled_to(averaged)

    def event(self, candidate: Candidate) -> Event:
        return _events(candidate, self.promise, self.facts)[0]

    def nu2(self, candidate: Candidate) -> float:
        facts = self.facts
        return trainability(self.promise, facts.clients, facts.dimension, self.weights)


def averaged_noise(
    place: Mechanism, promise: Promise, facts: Facts, weights: Weights = None
) -> float:
    """Standard deviation per coordinate of the average of all clients' noise, for one release with
    C = 1."""
    once = Candidate(next(iter(ALGORITHMS)), 1.0, 1, 1, 1.0, 1.0, place.noise_in)
    sigma = _events(once, promise, facts)[0].sigma
    return sigma / math.sqrt(promise.averaging(facts.clients, weights))


def _beside(rounds: int, far: int = 1) -> list[int]:
    """The rounds before and after on the ladder, and those `far` away."""
    place = min(range(len(LADDER)), key=lambda i: abs(LADDER[i] - rounds))
    steps = {-far, -1, 1, far}
    return [LADDER[place + step] for step in sorted(steps) if 0 <= place + step < len(LADDER)]


def _paces_of(T: int) -> list[int]:
    """Local steps a round, of T in all."""
    return [tau for tau in divisors_of(T) if T // tau <= MOST_ROUNDS]


def _paces_beside(candidate: Candidate, T: int) -> list[Candidate]:
    every = _paces_of(T)
    place = every.index(candidate.local_steps)
    return [
        replace(candidate, local_steps=tau, rounds=T // tau)
        for tau in every[max(0, place - 1) : place + 2]
        if tau != candidate.local_steps
    ]


AS_GOOD = 1.02  # a plan for records that leaves at most this much more may win by its price


@dataclass(frozen=True)
class RecordProblem:
    """The unit is a record. Where a local step is paid for, local steps save communication and no
    privacy; where a round is, few rounds of many steps are as good as it gets."""

    question: Question
    worlds: Worlds
    promise: Promise
    facts: Facts

    def lines(self) -> list[Line]:
        """Without what training refuses, unless that was asked for."""
        lines, refusals = [], []
        for place, algorithm in _pairs(self.question):
            options = _options(self.question, algorithm, place)
            line = Line(algorithm, options, place, False)
            try:
                settings_of(line.candidate(1.0, 1, 1, 1.0), self.promise, task=self.facts.task)
            except InvalidValue as refusal:
                if self.question.options_of(algorithm):
                    raise
                refusals.append(refusal)
                continue
            lines += [replace(line, warm=warm) for warm in _starts(self.worlds)]
        if refusals and not lines:
            raise refusals[0]
        return lines

    def beginning(self, line: Line) -> list[Candidate]:
        clips, etas = self._clips(line), self._etas(line)
        T = self.question.iterations
        return [
            line.candidate(eta, tau, K, C)
            for tau in ((_paces_of(T)[0],) if T else (1, 8) if self._by_round(line) else (1,))
            for K in ([T // tau] if T else [2, 8] if self._by_round(line) else [4, 16, 64, 192])
            for eta in dict.fromkeys((etas[0], etas[-1]))
            for C in clips[::2]
        ]

    def _by_round(self, line: Line) -> bool:
        return line.place.paid_per == "round"

    def _etas(self, line: Line) -> list[float]:
        """The longest step that contracts whatever the records are, a shorter one, and, where no
        stability is needed, longer ones that are stable for the stand-ins."""
        pull = algorithm_spec(line.algorithm).proximal(line.options)
        assert self.facts.L
        assert self.facts.mu
        contracts = 2 / (self.facts.L + self.facts.mu + 2 * pull)
        etas = [contracts / 4, contracts]
        longest = 1 / (1 / self.worlds.longest + pull)
        while not line.place.by_stability and etas[-1] * 4 <= longest:
            etas.append(etas[-1] * 4)
        return etas

    def _clips(self, line: Line) -> list[float]:
        bound = self.facts.gradient_bound or math.inf
        if line.place.by_stability and not self.facts.clipped_convex:
            return [bound]  # a clipped multinomial loss is not convex
        if self.question.clip:
            return [self.question.clip]
        longest = bound if bound < math.inf else 1.0
        return [longest * 2 ** (-j) for j in range(5)]

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        place = mechanism(self.promise.unit, candidate.noise_in)
        line = Line(candidate.algorithm, candidate.options, place, candidate.warm)
        near, T, tau = [], self.question.iterations, candidate.local_steps
        if T:
            near += _paces_beside(candidate, T)
        elif place.paid_per == "round":
            near += [replace(candidate, local_steps=t) for t in (tau // 2, tau * 2) if t >= 1]
            near += [replace(candidate, rounds=k) for k in _beside(candidate.rounds)]
        else:
            near += [replace(candidate, rounds=k) for k in _beside(candidate.rounds, 2)]
        if len(self._clips(line)) > 1:
            near += [replace(candidate, clip=candidate.clip * f) for f in (2**-0.5, 2**0.5)]
        etas = self._etas(line)
        at = min(range(len(etas)), key=lambda i: abs(etas[i] - candidate.eta))
        near += [replace(candidate, eta=eta) for eta in etas[max(0, at - 1) : at + 2]]
        bound = math.inf if self.question.clip else self.facts.gradient_bound or math.inf
        longest = self.question.iterations or LONGEST
        return [c for c in near if c.iterations <= longest and c.clip <= 1.001 * bound]

    def cheaper(self, candidate: Candidate) -> list[Candidate]:
        """The same with more local steps a round, where these save communication alone."""
        T, place = candidate.iterations, mechanism(self.promise.unit, candidate.noise_in)
        if place.paid_per == "round":
            return []
        return [
            replace(candidate, local_steps=tau, rounds=T // tau)
            for tau in divisors_of(T)
            if tau > 1 and tau in (2, 4, 8, 16, 32, 64, T)
        ]

    def price(self, candidate: Candidate) -> float:
        return candidate.rounds * (candidate.local_steps + self.question.round_cost)

    def level(self, candidate: Candidate) -> Level:
        """Stand-ins may be fewer than the clients, and have fewer records: what counts is the noise
        of their messages, or of their mean gradients, in the average that of all clients."""
        place = mechanism(self.promise.unit, candidate.noise_in)
        sizes, N = self.facts.sizes or (1,), self.facts.clients
        noise = {
            own: self.promise.client_sigma(event.sigma, N) / (1 if place.noises_message else own)
            for own, event in zip(sizes, self._events(candidate, len(sizes)), strict=True)
        }
        known = [noise[own] for own in sizes]
        real = self.promise.averaged(known, self.weights) * math.sqrt(len(sizes) / N)
        stand_ins = tuple(noise[own] for own in self.worlds.sizes)
        level = Level(place, stand_ins, self.worlds.weights).scaled_to(real)
        clients: Any = self.worlds.rows[0].clients
        return level if place.noises_message else level.of_sums(clients.sizes)

    def _events(self, candidate: Candidate, clients: int) -> list[Event]:
        events = _events(candidate, self.promise, self.facts, self.question.weights)
        return events if len(events) == clients else events * clients

    def event(self, candidate: Candidate) -> Event:
        return _events(candidate, self.promise, self.facts, self.question.weights)[0]

    @property
    def weights(self) -> Weights:
        return self.question.counted(self.facts)

    def nu2(self, candidate: Candidate) -> float | None:
        run = _run(candidate, self.promise, self.facts, self.question.weights)
        return trainability_of_gradients(run, self.facts)


def _pairs(question: Question) -> Iterator[tuple[Mechanism, str]]:
    """Places for the noise, and what is planned for each."""
    for place in question.mechanisms:
        for algorithm in _algorithms(question, place):
            yield place, algorithm


def _algorithms(question: Question, place: Mechanism) -> list[str]:
    """Those asked for; of several, where stability bounds only gradient steps of clients that
    remember nothing."""
    names = question.algorithms
    if len(names) == 1 or not place.by_stability:
        return names
    specs = [algorithm_spec(name) for name in names]
    return [spec.name for spec in specs if spec.gradient_steps and spec.memory({}) == "none"]


def _options(question: Question, algorithm: str, place: Mechanism) -> dict[str, float | str]:
    """Where noise is in the message, clients may remember only what was released."""
    spec = algorithm_spec(algorithm)
    private = place.by_stability and place.noises_message and spec.memory({}) != "none"
    return {**(spec.open_memory if private else {}), **question.options_of(algorithm)}


def _events(
    candidate: Candidate, promise: Promise, facts: Facts, weights: str | None = None
) -> list[Event]:
    run = _run(candidate, promise, facts, weights)
    schedule = (candidate.local_steps,) * candidate.rounds
    return run.mechanism.events(run, facts, schedule)


def _run(candidate: Candidate, promise: Promise, facts: Facts, weights: str | None = None) -> Run:
    return settings_of(candidate, promise, task=facts.task, weights=weights).resolve(facts)


def settings_of(candidate: Candidate, promise: Promise, **others: Any) -> Settings:
    """What `train` needs to follow the candidate."""
    return Settings.of(
        **{
            "algorithm": candidate.algorithm,
            "options": candidate.options,
            "iterations": candidate.iterations,
            "local_steps": candidate.local_steps,
            "eta": candidate.eta,
            "gamma": candidate.gamma,
            "clip": candidate.clip,
            "noise_in": candidate.noise_in,
            "warm_start": candidate.warm,
            "returns": candidate.returns,
            "sampling_rate": candidate.sampling_rate,
            "epsilon": promise.epsilon,
            "delta": promise.delta,
            "unit": promise.unit,
            "neighbours": promise.neighbours,
            "trust": promise.trust,
            "colluding": promise.colluding,
            **others,
        }
    )
