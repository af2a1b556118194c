"""What plans are tried on, for either unit: candidates, the noise of each, and a trial on
stand-ins."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from equipoise.algorithms import ALGORITHMS, algorithm_spec
from equipoise.algorithms.algorithm import Options
from equipoise.algorithms.schedule import divisors_of
from equipoise.errors import InvalidValue
from equipoise.facts import Facts
from equipoise.planning.bounds import trainability, trainability_of_gradients
from equipoise.planning.candidates import Candidate, smallest
from equipoise.planning.plan import Changes, Question
from equipoise.planning.screening import Screen, screen, shortlist
from equipoise.planning.surrogate import Surrogate
from equipoise.planning.trial import Stages, Trial, TrialNoise, race, try_plan
from equipoise.privacy.clip import own_lattice
from equipoise.privacy.events import Event
from equipoise.privacy.gaussian import gdp_mu
from equipoise.privacy.mechanisms.catalogue import mechanism
from equipoise.privacy.mechanisms.mechanism import Mechanism
from equipoise.privacy.promise import Promise
from equipoise.settings import Run, Settings
from equipoise.tasks.linear import LinearClients

WORTH_WHILE = 0.9  # a plan must leave less than this share of the loss of not training
PACES = (1, 2, 4, 8, 16, 32)
ROUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LONGEST = 512  # local iterations of a plan, if they are not given
MOST_ROUNDS = 512  # considered at a fixed number of iterations


class PlanningProblem(Protocol):
    """Stand-ins, a promise, and what can be tried."""

    @property
    def surrogate(self) -> Surrogate: ...
    @property
    def promise(self) -> Promise: ...
    @property
    def facts(self) -> Facts: ...
    @property
    def stages(self) -> Stages: ...

    def groups(self, question: Question) -> dict[str, list[Candidate]]:
        """Candidates by what a table compares; each group has one winner."""
        ...

    def try_out(self, candidate: Candidate, seeds: range) -> Trial: ...

    def event(self, candidate: Candidate) -> Event:
        """What protects the releases of the real run's first client."""
        ...

    def choose(self, trials: Iterable[Trial], question: Question) -> Trial:
        """The plan among the winners."""
        ...

    def nu2(self, candidate: Candidate) -> float | None:
        """|averaged noise|^2 / C^2 of a run with a single release; None where the noise is no
        multiple of the clip."""
        ...

    def changes(self, question: Question, untrained: float) -> Changes:
        """What would make training worth while."""
        ...


@dataclass(frozen=True)
class ClientProblem:
    """The unit is a client: many plans are screened, then the best are tried."""

    surrogate: Surrogate
    promise: Promise
    facts: Facts
    place: Mechanism

    @property
    def stages(self) -> Stages:
        """Few seeds in many dimensions, where seeds differ little and cost much."""
        few, many = ((2, 10), (8, 4), (32, 1)), ((8, 10), (32, 4), (128, 1))
        return few if self.surrogate.large else many

    @property
    def noise_per_clip(self) -> float:
        return self._noise_per_clip(self.promise, self.facts.clients)

    def _noise_per_clip(self, promise: Promise, clients: int) -> float:
        """Of the average, per coordinate, for one release with C = 1."""
        once = Candidate(next(iter(ALGORITHMS)), 1.0, 1, 1, 1.0, 1.0, self.place.noise_in)
        sigma = _event(once, promise, self.facts).sigma
        return promise.client_sigma(sigma, clients) / math.sqrt(clients)

    def nu2(self, candidate: Candidate) -> float:
        return trainability(self.promise, self.facts.clients, self.facts.dimension)

    def groups(self, question: Question) -> dict[str, list[Candidate]]:
        return {
            name: shortlist(self._screened(question, name, self.noise_per_clip))
            for name in question.algorithms
        }

    def _screened(
        self, question: Question, algorithm: str, noise: float, seeds: int = 8
    ) -> list[Candidate]:
        r0 = float((self.surrogate.best - self.surrogate.x0).norm())
        clips = [question.clip] if question.clip else [r0 / 2**j for j in range(1, 6)]
        gammas = [question.gamma] if question.gamma else _gammas(question)
        few = 3 if self.surrogate.large else seeds
        options = question.options_of(algorithm)
        L = self.surrogate.L
        bent = L + algorithm_spec(algorithm).proximal(options)
        etas = list(dict.fromkeys((1 / L, 1 / bent, 0.25 / bent)))  # a round of one step needs 1/L
        what = Screen(algorithm, options, etas, _paces(question), clips, gammas, noise, few)
        place = self.place
        screened = screen(self.surrogate, what, place)
        return [replace(candidate, noise_in=place.noise_in) for candidate in screened]

    def event(self, candidate: Candidate) -> Event:
        return _event(candidate, self.promise, self.facts)

    def try_out(self, candidate: Candidate, seeds: range) -> Trial:
        return self.try_with(candidate, seeds, self.noise_per_clip)

    def try_with(self, candidate: Candidate, seeds: range, noise_per_clip: float) -> Trial:
        """Run the plan on the surrogate once for every seed, all seeds in one computation.

        The surrogate may have fewer clients than there are: its clients' noise is scaled so that
        the average has the right size.
        """
        averaged = noise_per_clip * candidate.clip * math.sqrt(candidate.rounds)
        sigma, rates = averaged * math.sqrt(self.surrogate.number), (1.0,) * self.surrogate.number
        noise = TrialNoise(seeds)
        clip, lattice = candidate.clip, own_lattice(candidate.clip, sigma)
        gradient = self.place.gradient(self.surrogate.clients, clip, sigma, lattice, rates, noise)
        releaser = self.place.releaser(clip, sigma, lattice)
        return try_plan(self.surrogate, candidate, gradient, releaser, noise, len(seeds))

    def choose(self, trials: Iterable[Trial], question: Question) -> Trial:
        return min(trials, key=lambda trial: trial.mean)

    def changes(self, question: Question, untrained: float) -> Changes:
        """The smallest epsilon, and the smallest number of clients, judged like a plan."""
        noise, clients = self.noise_per_clip, self.facts.clients
        algorithm = question.algorithms[0]

        def worth(factor: float) -> bool:
            screened = self._screened(question, algorithm, noise * factor, seeds=6)
            best = race(
                shortlist(screened)[:6],
                lambda c, seeds: self.try_with(c, seeds, noise * factor),
                ((16, 2), (64, 1)),
            )
            return best.mean + 2 * best.standard_error < WORTH_WHILE * untrained

        less = smallest(lambda times: worth(1 / times), 1.0)  # how many times less noise would do
        if less is None:
            return Changes()
        wanted = noise / less

        def enough(promise: Promise, others: int) -> bool:
            return self._noise_per_clip(promise, others) <= wanted

        more = smallest(lambda number: enough(self.promise, math.ceil(number)), clients, whole=True)
        return Changes(
            epsilon=smallest(
                lambda epsilon: enough(replace(self.promise, epsilon=epsilon), clients),
                self.promise.epsilon,
            ),
            clients=None if more is None else int(more),
        )


def _gammas(question: Question) -> list[float]:
    return [1.0, 0.5, 0.25, 0.125] if question.clip else [1.0, 0.5]


def _paces(question: Question) -> list[tuple[int, list[int]]]:
    """Local steps, and the numbers of rounds to try with each."""
    T = question.iterations
    if T:
        return [(tau, [T // tau]) for tau in divisors_of(T) if T // tau <= MOST_ROUNDS]
    return [(tau, [K for K in ROUNDS if K * tau <= LONGEST]) for tau in PACES]


RECORD_STEPS = (4, 8, 16, 32, 64, 128, 256, 512)
RECORD_PACES = (1, 4, 16, 64)
FEW_ROUNDS = (1, 2, 3, 4, 8)
AS_GOOD = 1.02  # a plan that leaves at most this much more than the best may win by its price


@dataclass(frozen=True)
class RecordProblem:
    """The unit is a record. Where a local step is paid for, local steps save communication and no
    privacy; where a round is, few rounds of many steps are as good as it gets.

    `facts.sizes` holds the number of records of one real client.
    """

    surrogate: Surrogate
    promise: Promise
    facts: Facts
    stages: Stages = ((4, 3), (24, 1), (64, 1))

    @property
    def clients(self) -> LinearClients:
        return cast(LinearClients, self.surrogate.clients)

    @property
    def records(self) -> int:
        return (self.facts.sizes or (1,))[0]

    def nu2(self, candidate: Candidate) -> float | None:
        return trainability_of_gradients(_run(candidate, self.promise, self.facts), self.facts)

    def groups(self, question: Question) -> dict[str, list[Candidate]]:
        """By place of the noise, algorithm and local steps; without what training refuses."""
        groups: dict[str, list[Candidate]] = {}
        refusals = []
        for place, algorithm in _pairs(question):
            options = _options(question, algorithm, place)
            plans = self._plans(question, place, algorithm, options)
            refusal = self._refusal(plans)
            if refusal and question.options_of(algorithm):
                raise refusal  # what was asked for is not left out
            if refusal:
                refusals.append(refusal)
                continue
            for plan in plans:
                name = f"{place.noise_in}, {algorithm}, tau = {plan.local_steps}"
                groups.setdefault(name, []).append(plan)
        if refusals and not groups:
            raise refusals[0]
        return groups

    def _plans(
        self, question: Question, place: Mechanism, algorithm: str, options: Options
    ) -> list[Candidate]:
        T = question.iterations
        return [
            Candidate(algorithm, eta, tau, K, C, 1.0, place.noise_in, options)
            for tau in (divisors_of(T) if T else RECORD_PACES)
            for eta in self._etas(algorithm, options)
            for K in _rounds(T, tau, place)
            for C in self._clips(question, place)
        ]

    def _refusal(self, plans: list[Candidate]) -> InvalidValue | None:
        """Why training would not follow these plans: what it refuses is not tried."""
        try:
            for plan in plans[:1]:
                settings_of(plan, self.promise, task=self.facts.task)
        except InvalidValue as refusal:
            return refusal
        return None

    def _etas(self, algorithm: str, options: Options) -> list[float]:
        """The longest step that contracts, and a short one."""
        pull = algorithm_spec(algorithm).proximal(options)
        L, mu = self.surrogate.L + pull, self.surrogate.mu + pull
        return [2 / (L + mu), 0.5 / L]

    def _clips(self, question: Question, place: Mechanism) -> list[float]:
        bound = self.facts.gradient_bound or math.inf
        if place.by_stability and not self.facts.clipped_convex:
            return [bound]  # a clipped multinomial loss is not convex
        if question.clip:
            return [question.clip]
        longest = bound if bound < math.inf else 1.0
        shares = (1.0, 0.3) if place.by_stability else (1.0, 0.3, 0.1)
        return [share * longest for share in shares]

    def event(self, candidate: Candidate) -> Event:
        """Of the sum of a client's gradients, or of its message: from the mechanism itself."""
        return _event(candidate, self.promise, self.facts)

    def try_out(self, candidate: Candidate, seeds: range) -> Trial:
        """The plan on the stand-ins, whose mean gradients get the noise that those of real clients
        would have."""
        noise = TrialNoise(seeds)
        place = mechanism("record", candidate.noise_in)
        sigma = self.promise.client_sigma(self.event(candidate).sigma, self.facts.clients)
        # Fewer stand-ins than clients: the noise of the average counts.
        fewer = math.sqrt(self.surrogate.number / self.facts.clients)
        scaled = sigma * fewer
        if not place.noises_message:
            scaled = sigma * self.clients.sizes[0] / self.records * fewer
        rates = (1.0,) * self.surrogate.number
        lattice = own_lattice(0.0, scaled)
        gradient = place.gradient(self.clients, candidate.clip, scaled, lattice, rates, noise)
        releaser = place.releaser(candidate.clip, scaled, lattice)
        return try_plan(self.surrogate, candidate, gradient, releaser, noise, len(seeds))

    def choose(self, trials: Iterable[Trial], question: Question) -> Trial:
        """The cheapest of those that are as good as the best."""
        trials = list(trials)
        least = min(trial.mean for trial in trials)
        good = [trial for trial in trials if trial.mean <= AS_GOOD * least]
        return min(good, key=lambda trial: _price(trial.candidate, question.round_cost))

    def changes(self, question: Question, untrained: float) -> Changes:
        """The smallest epsilon, and the smallest number of records of a client."""
        # One place for the noise and one pace are enough to tell.
        first, *_ = self.groups(question).values()
        longest = max(candidate.eta for candidate in first)
        short = [c for c in first if c.eta == longest and c.iterations <= 64]
        candidates = short or first[:4]

        def worth(records: float) -> bool:
            more = replace(self, facts=self.facts._replace(sizes=(math.ceil(records),)))
            best = race(candidates, more.try_out, ((4, 3), (32, 1)))
            return best.mean + 2 * best.standard_error < WORTH_WHILE * untrained

        records = smallest(worth, self.records, whole=True)
        if records is None:
            return Changes()
        epsilon, delta = self.promise.epsilon, self.promise.delta
        wanted = gdp_mu(epsilon, delta) * records / self.records
        less = smallest(lambda value: gdp_mu(value, delta) >= wanted, epsilon)
        return Changes(epsilon=less, records=int(records))


def _rounds(T: int | None, tau: int, place: Mechanism) -> list[int]:
    if T:
        return [T // tau]
    if place.paid_per == "local step":
        return [steps // tau for steps in RECORD_STEPS if steps >= tau]
    return list(FEW_ROUNDS)


def _pairs(question: Question) -> Iterator[tuple[Mechanism, str]]:
    """Places for the noise, and what is planned for each."""
    for place in question.mechanisms:
        for algorithm in _algorithms(question, place):
            yield place, algorithm


def _algorithms(question: Question, place: Mechanism) -> list[str]:
    """Those asked for; of several, where stability bounds only those that remember nothing."""
    names = question.algorithms
    if len(names) == 1 or not place.by_stability:
        return names
    return [name for name in names if algorithm_spec(name).memory({}) == "none"]


def _options(question: Question, algorithm: str, place: Mechanism) -> dict[str, float | str]:
    """Where noise is in the message, clients may remember only what was released."""
    spec = algorithm_spec(algorithm)
    private = place.by_stability and place.noises_message and spec.memory({}) != "none"
    return {**(spec.open_memory if private else {}), **question.options_of(algorithm)}


def _price(candidate: Candidate, round_cost: float) -> float:
    return candidate.rounds * (candidate.local_steps + round_cost)


def _event(candidate: Candidate, promise: Promise, facts: Facts) -> Event:
    run = _run(candidate, promise, facts)
    schedule = (candidate.local_steps,) * candidate.rounds
    return run.mechanism.events(run, facts, schedule)[0]


def _run(candidate: Candidate, promise: Promise, facts: Facts) -> Run:
    return settings_of(candidate, promise, task=facts.task).resolve(facts)


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
            "epsilon": promise.epsilon,
            "delta": promise.delta,
            "unit": promise.unit,
            "neighbours": promise.neighbours,
            "trust": promise.trust,
            "colluding": promise.colluding,
            **others,
        }
    )
