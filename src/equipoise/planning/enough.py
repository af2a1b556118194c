"""What would be enough: about the least epsilon, and the least number of clients or of records,
with which the verdict would be to train."""

import math
from collections.abc import Callable
from dataclasses import replace

from equipoise.planning.candidates import Candidate, Pace, smallest
from equipoise.planning.outlook import (
    AT_HOME,
    Gain,
    Tried,
    best_of,
    gain_of,
    judge_models,
    rules_of,
)
from equipoise.planning.plan import Changes
from equipoise.planning.problems import (
    ClientProblem,
    PlanningProblem,
    RecordProblem,
    averaged_noise,
    has_noise,
)
from equipoise.planning.question import JudgeBy
from equipoise.planning.trial import Trial, try_all
from equipoise.planning.worlds import Worlds
from equipoise.privacy.gaussian import gdp_mu
from equipoise.settings import MOST_CLIENTS

FEW = 8  # worlds
ROUGH = Pace(growth=4.0, within=1.15, most=1e4)  # every step of this search costs trials
STEPS = 128  # of the plans that are tried beside the one that was found
BEST = 3
LITTLE = 1.02  # times what there is, which was not enough
WORTH_WHILE = 0.9  # where no error is known, of the excess loss of not training


def changes_of(problem: PlanningProblem, best: Trial, what: JudgeBy, ways: list[Tried]) -> Changes:
    """Judged by the plan that was found, and by those that a search begins with."""
    worlds = problem.worlds.first(FEW)
    plans = _others(problem, best.candidate)
    needed, rules = WORTH_WHILE * worlds.excess(worlds.start(False)), rules_of(worlds)

    def gain(trial: Trial) -> Gain:
        if ways:
            value = judge_models(worlds, trial.x).by(what).mean(1)
            return gain_of(ways, value, what, rules)
        return Gain(needed - trial.excess.mean(1), 0.0, rules.kinds)

    def worth(changed: PlanningProblem) -> bool:
        known = [plan for plan in plans if has_noise(changed, plan)]
        trials = try_all(worlds, known, changed.level, range(1))
        best = sorted(trials, key=lambda trial: trial.mean)[:BEST]  # plans are chosen by their loss
        return any(gain(trial).sure for trial in best)

    if isinstance(problem, ClientProblem):
        return _clients(problem, worlds, worth)
    assert isinstance(problem, RecordProblem)
    changes = _records(problem, worlds, worth)
    if ways and best_of(ways, free=True).way.name in AT_HOME:  # which more records make better too
        changes = changes.model_copy(update={"records": None})
    return changes


def _roughly(enough: Callable[[float], bool], start: float, whole: bool = False) -> float | None:
    """About the smallest value that is enough, asking first whether the largest is."""
    most = ROUGH.most * start
    return smallest(enough, start, whole, ROUGH) if enough(most) else None


def _others(problem: PlanningProblem, candidate: Candidate) -> list[Candidate]:
    """The plan, and others of its line far apart, whatever the budget is."""
    chosen = replace(candidate, returns="last")
    (line,) = [
        each
        for each in problem.lines()
        if (each.algorithm, each.place.noise_in, each.warm)
        == (candidate.algorithm, candidate.noise_in, candidate.warm)
    ]
    steps = problem.question.iterations or STEPS
    return [chosen, *(plan for plan in problem.beginning(line) if plan.iterations <= steps)]


def _clients(
    problem: ClientProblem, worlds: Worlds, worth: Callable[[PlanningProblem], bool]
) -> Changes:
    def enough(times: float) -> bool:
        return worth(replace(problem, worlds=worlds, less_noise=1 / times))

    less = _roughly(enough, LITTLE)  # how many times less noise would do
    if less is None:
        return Changes()
    facts, promise = problem.facts, problem.promise
    place, weights = problem.place, problem.weights
    wanted = averaged_noise(place, promise, facts, weights) / less

    def with_clients(number: float) -> float:
        if number > MOST_CLIENTS:
            return math.inf
        return averaged_noise(place, promise, facts._replace(clients=math.ceil(number)), weights)

    def with_epsilon(epsilon: float) -> float:
        return averaged_noise(place, replace(promise, epsilon=epsilon), facts, weights)

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

    records = _roughly(enough, math.ceil(LITTLE * mean), whole=True)
    if records is None:
        return Changes()
    epsilon, delta = problem.promise.epsilon, problem.promise.delta
    wanted = gdp_mu(epsilon, delta) * records / mean
    less = smallest(lambda value: gdp_mu(value, delta) >= wanted, epsilon)
    return Changes(epsilon=less, records=int(records))
