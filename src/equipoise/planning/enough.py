"""What would be enough: about the least epsilon, and the least number of clients or of records,
with which the verdict would be to train."""

import math
from collections.abc import Callable
from dataclasses import replace

from equipoise.algorithms.schedule import divisors_of
from equipoise.errors import InvalidValue
from equipoise.planning.candidates import Candidate, Pace, smallest
from equipoise.planning.outlook import Gain, Tried, gain_of, judge_models
from equipoise.planning.plan import Changes
from equipoise.planning.problems import (
    LADDER,
    ClientProblem,
    PlanningProblem,
    RecordProblem,
    averaged_noise,
)
from equipoise.planning.question import JudgeBy, Question
from equipoise.planning.trial import Trial, try_all
from equipoise.planning.worlds import Worlds
from equipoise.privacy.gaussian import gdp_mu
from equipoise.settings import MOST_CLIENTS

FEW = 8  # worlds
ROUGH = Pace(growth=4.0, within=1.15, most=1e4)  # every step of this search costs trials
STEPS = 512  # of a plan that goes farther than the one that was found
LITTLE = 1.02  # times what there is, which was not enough
WORTH_WHILE = 0.9  # where no error is known, of the excess loss of not training


def changes_of(problem: PlanningProblem, best: Trial, what: JudgeBy, ways: list[Tried]) -> Changes:
    """Judged by the plan that was found, and by others that do more with less noise."""
    worlds = problem.worlds.first(FEW)
    plans = _bolder(best.candidate, problem.question)
    needed = WORTH_WHILE * worlds.excess(worlds.start(False))

    def gain(trial: Trial) -> Gain:
        if ways:
            return gain_of(ways, judge_models(worlds, trial.x).by(what).mean(1))
        return Gain(needed - trial.excess.mean(1), 0.0)

    def worth(changed: PlanningProblem) -> bool:
        known = [plan for plan in plans if _possible(changed, plan)]
        return any(gain(t).sure for t in try_all(worlds, known, changed.level, range(2)))

    if isinstance(problem, ClientProblem):
        return _clients(problem, worlds, worth)
    assert isinstance(problem, RecordProblem)
    return _records(problem, worlds, worth)


def _possible(problem: PlanningProblem, candidate: Candidate) -> bool:
    """Whether there is such noise: for very many records, or a very small clip, there is none."""
    try:
        problem.level(candidate)
    except InvalidValue:
        return False
    return True


def _bolder(candidate: Candidate, question: Question) -> list[Candidate]:
    """The plan, and plans that go farther, within what the question fixes."""
    plain, T = replace(candidate, returns="last"), question.iterations
    tau, K = plain.local_steps, plain.rounds
    paces = [(t, min(LADDER[-1], K * more)) for more in (4, 16) for t in (tau, 8 * min(tau, 8))]
    if T:
        every = [(t, T // t) for t in divisors_of(T) if T // t <= LADDER[-1]]
        paces = every[:: max(1, len(every) // 4)]
    clips = (1.0,) if question.clip else (0.5, 1.0, 4.0, 32.0)
    gammas = {plain.gamma, question.gamma or 1.0}
    return [plain] + [
        replace(plain, local_steps=t, rounds=k, clip=plain.clip * times, gamma=gamma)
        for t, k in paces
        for times in clips
        for gamma in sorted(gammas)
        if T or t * k <= STEPS
    ]


def _clients(
    problem: ClientProblem, worlds: Worlds, worth: Callable[[PlanningProblem], bool]
) -> Changes:
    def enough(times: float) -> bool:
        return worth(replace(problem, worlds=worlds, less_noise=1 / times))

    less = smallest(enough, LITTLE, pace=ROUGH)  # how many times less noise would do
    if less is None:
        return Changes()
    facts, promise = problem.facts, problem.promise
    wanted = averaged_noise(problem.place, promise, facts) / less

    def with_clients(number: float) -> float:
        if number > MOST_CLIENTS:
            return math.inf
        return averaged_noise(problem.place, promise, facts._replace(clients=math.ceil(number)))

    def with_epsilon(epsilon: float) -> float:
        return averaged_noise(problem.place, replace(promise, epsilon=epsilon), facts)

    more = smallest(lambda number: with_clients(number) <= wanted, facts.clients, whole=True)
    return Changes(
        epsilon=smallest(lambda epsilon: with_epsilon(epsilon) <= wanted, promise.epsilon),
        clients=None if more is None else int(more),
    )


def _records(
    problem: RecordProblem, worlds: Worlds, worth: Callable[[PlanningProblem], bool]
) -> Changes:
    """More records of every client, with as much noise in their sums."""
    sizes = problem.facts.sizes or (1,)
    mean = round(sum(sizes) / len(sizes))

    def enough(records: float) -> bool:
        more = tuple(math.ceil(size * records / mean) for size in sizes)
        real = tuple(math.ceil(size * records / mean) for size in problem.worlds.sizes)
        return worth(
            replace(
                problem,
                worlds=replace(worlds, sizes=real),
                facts=problem.facts._replace(sizes=more),
            )
        )

    records = smallest(enough, math.ceil(LITTLE * mean), whole=True, pace=ROUGH)
    if records is None:
        return Changes()
    epsilon, delta = problem.promise.epsilon, problem.promise.delta
    wanted = gdp_mu(epsilon, delta) * records / mean
    less = smallest(lambda value: gdp_mu(value, delta) >= wanted, epsilon)
    return Changes(epsilon=less, records=int(records))
