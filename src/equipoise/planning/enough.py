"""What would be enough: about the least epsilon, and the least number of clients or of records,
with which training would be better than what is free."""

import math
from collections.abc import Callable
from dataclasses import replace

from equipoise.planning.candidates import Candidate, smallest
from equipoise.planning.outlook import Tried, judge_models
from equipoise.planning.plan import Changes
from equipoise.planning.problems import (
    LADDER,
    ClientProblem,
    PlanningProblem,
    RecordProblem,
    averaged_noise,
)
from equipoise.planning.question import JudgeBy
from equipoise.planning.trial import Trial, try_all
from equipoise.planning.worlds import Worlds
from equipoise.privacy.gaussian import gdp_mu

FEW = 8  # worlds
WORTH_WHILE = 0.9  # where no error is known, of the excess loss of not training


def changes_of(problem: PlanningProblem, best: Trial, what: JudgeBy, ways: list[Tried]) -> Changes:
    """Judged by the plan that was found, and by others that do more with less noise."""
    worlds = problem.worlds.first(FEW)
    free = [float(tried.values.mean()) for tried in ways if tried.way.free]
    plans = _bolder(best.candidate)

    def value(trial: Trial) -> float:
        if not ways:
            start = worlds.excess(worlds.start(False)[:, None])
            return float((trial.excess.mean(1, keepdim=True) / start).mean())
        return float(judge_models(worlds, trial.x).by(what).mean())

    needed = min(free) if free else WORTH_WHILE

    def worth(changed: PlanningProblem) -> bool:
        tried = try_all(worlds, plans, changed.level, range(2))
        return min(value(trial) for trial in tried) < needed

    if isinstance(problem, ClientProblem):
        return _clients(problem, worlds, worth)
    assert isinstance(problem, RecordProblem)
    return _records(problem, worlds, worth)


def _bolder(candidate: Candidate) -> list[Candidate]:
    """The plan, and plans that go farther."""
    plans = [replace(candidate, returns="last")]
    for times in (4, 16):
        rounds = min(LADDER[-1], candidate.rounds * times)
        plans.append(replace(plans[0], rounds=rounds))
        plans.append(replace(plans[0], rounds=rounds, clip=candidate.clip / 2))
    return plans


def _clients(
    problem: ClientProblem, worlds: Worlds, worth: Callable[[PlanningProblem], bool]
) -> Changes:
    def enough(times: float) -> bool:
        return worth(replace(problem, worlds=worlds, less_noise=1 / times))

    less = smallest(enough, 1.0)  # how many times less noise would do
    if less is None:
        return Changes()
    facts, promise = problem.facts, problem.promise
    wanted = averaged_noise(problem.place, promise, facts) / less

    def with_clients(number: float) -> float:
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

    records = smallest(enough, mean, whole=True)
    if records is None:
        return Changes()
    epsilon, delta = problem.promise.epsilon, problem.promise.delta
    wanted = gdp_mu(epsilon, delta) * records / mean
    less = smallest(lambda value: gdp_mu(value, delta) >= wanted, epsilon)
    return Changes(epsilon=less, records=int(records))
