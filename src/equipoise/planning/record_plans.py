"""Plans that protect one record: where the noise goes, how many local steps, in how many rounds,
under which clip.

With noise in the gradients every local step is paid for, so local steps save communication and no
privacy. With noise in the message a round is paid for, so that few rounds of many steps are as good
as it gets.
"""

import math
from importlib.metadata import version
from typing import Any

from equipoise.planning.candidates import Candidate, describe_with, smallest, untrained_error
from equipoise.planning.plan import Plan, Question
from equipoise.planning.record_trial import RecordProblem
from equipoise.planning.surrogate import Surrogate
from equipoise.planning.trial import Rehearsal, race
from equipoise.planning.verdict import WORTH_WHILE, judge, predict
from equipoise.privacy.gaussian import gdp_mu
from equipoise.privacy.promise import Budget
from equipoise.settings import Settings
from equipoise.tasks import Task
from equipoise.tasks.public import public_only

STEPS = (4, 8, 16, 32, 64, 128, 256, 512)
PACES = (1, 4, 16, 64)
FEW_ROUNDS = (1, 2, 3, 4, 8)
STAGES = ((4, 3), (24, 1), (64, 1))
AS_GOOD = 1.02  # a plan that leaves at most this much more than the best may win by its price


def plan_record(
    question: Question,
    task: Task,
    surrogate: Surrogate,
    records: int,
    sentences: list[str],
    epsilon: float,
) -> Plan:
    """The best plan for one budget: the best of every place for the noise, algorithm and pace, then
    the cheapest of these."""
    guarantee = question.guarantee(len(task.clients.sizes))
    problem = RecordProblem(surrogate, Budget(epsilon, question.delta), guarantee, records)
    paces = [
        race(group, problem.rehearse, STAGES)[0] for group in _groups(question, problem).values()
    ]
    least = min(tried.mean for tried in paces)
    best = min(
        (tried for tried in paces if tried.mean <= AS_GOOD * least),
        key=lambda tried: _price(tried, question.round_cost),
    )
    alone, untrained = public_only(task), float(surrogate.excess(surrogate.x0))
    verdict, reason = judge(best, untrained, alone, task)
    if best.candidate.noise_in == "gradient":
        reason += "; with noise in the gradients local steps save communication, not privacy"
    return Plan(
        verdict=verdict,
        reason=reason,
        unit="record",
        epsilon=epsilon,
        delta=question.delta,
        nu2=_noise_to_signal(problem, task),
        plan=_describe(best, problem),
        predicted=predict(best, task),
        untrained={"excess_loss": untrained, "test_error": untrained_error(task)},
        public_only=alone,
        compared={
            f"{c.noise_in}, {c.algorithm}, tau = {c.local_steps}": {
                **_describe(tried, problem),
                **predict(tried, task),
            }
            for tried in paces
            for c in (tried.candidate,)
        },
        corollary1=None,
        corrected=None,
        displacement=None,
        changes=_changes(question, problem, untrained) if verdict == "do not train" else None,
        public=[*sentences, f"about {records} records of each client"],
        settings=_settings(question, best.candidate, task, epsilon),
        version=version("equipoise"),
    )


def _price(tried: Rehearsal, round_cost: float) -> float:
    c = tried.candidate
    return c.rounds * (c.local_steps + round_cost)


def _groups(
    question: Question, problem: RecordProblem
) -> dict[tuple[str, str, int], list[Candidate]]:
    """Candidates by place of the noise, algorithm and local steps."""
    T, bound = question.iterations, problem.gradient_bound
    etas = [2 / (problem.surrogate.L + problem.surrogate.mu), 0.5 / problem.surrogate.L]
    paces = [tau for tau in range(1, T + 1) if T % tau == 0] if T else list(PACES)
    places = (
        [question.noise_in] if question.noise_in else ["gradient", "message", "hidden-gradient"]
    )
    groups: dict[tuple[str, str, int], list[Candidate]] = {}
    for noise_in in places:
        for algorithm in _algorithms(question, noise_in):
            for tau in paces:
                if T:
                    rounds = [T // tau]
                elif noise_in == "gradient":
                    rounds = [steps // tau for steps in STEPS if steps >= tau]
                else:
                    rounds = list(FEW_ROUNDS)
                clips = _clips(question, problem, noise_in, bound)
                plans = [(eta, K, C) for eta in etas for K in rounds for C in clips]
                if plans:
                    groups[noise_in, algorithm, tau] = [
                        Candidate(algorithm, eta, tau, K, C, 1.0, noise_in) for eta, K, C in plans
                    ]
    return groups


def _algorithms(question: Question, noise_in: str) -> list[str]:
    if question.algorithm != "both":
        return [question.algorithm]
    return ["dp-fedavg", "dp-scaffnew"] if noise_in == "gradient" else ["dp-fedavg"]


def _clips(question: Question, problem: RecordProblem, noise_in: str, bound: float) -> list[float]:
    if noise_in != "gradient" and not problem.clients.link.scalar:
        return [bound]  # a clipped multinomial loss is not convex
    if question.clip_norm:
        return [question.clip_norm]
    longest = bound if bound < math.inf else 1.0
    return (
        [longest, 0.3 * longest]
        if noise_in != "gradient"
        else [longest, 0.3 * longest, 0.1 * longest]
    )


def _noise_to_signal(problem: RecordProblem, task: Task) -> float:
    """nu^2 of one full-batch release: (Delta/C)^2 d / (mu(epsilon, delta)^2 N m^2), m the records
    of a client."""
    mu = gdp_mu(problem.budget.epsilon, problem.budget.delta)
    over_clip = problem.guarantee.sensitivity(1.0)
    return over_clip**2 * task.dimension / (mu**2 * problem.guarantee.clients * problem.records**2)


def _describe(tried: Rehearsal, problem: RecordProblem) -> dict[str, Any]:
    described = describe_with(tried.candidate, problem.sigma(tried.candidate), problem.guarantee)
    return {**described, "noise_in": tried.candidate.noise_in, "sampling_rate": 1.0}


def _changes(question: Question, problem: RecordProblem, untrained: float) -> dict[str, Any]:
    """The smallest epsilon, and the smallest number of records of a client, with which a plan would
    be worth while."""
    first, *_ = _groups(
        question, problem
    ).values()  # one place for the noise and one pace are enough to tell
    candidates = [
        c for c in first if c.eta * problem.surrogate.L > 1 and c.rounds * c.local_steps <= 64
    ] or first[:4]

    def worth(records: float) -> bool:
        more = RecordProblem(
            problem.surrogate, problem.budget, problem.guarantee, math.ceil(records)
        )
        best, *_ = race(candidates, more.rehearse, ((4, 3), (32, 1)))
        return best.mean + 2 * best.standard_error < WORTH_WHILE * untrained

    records = smallest(worth, problem.records, whole=True)
    if records is None:
        return {"epsilon": None, "records": None}
    wanted = gdp_mu(problem.budget.epsilon, problem.budget.delta) * records / problem.records
    epsilon = smallest(
        lambda value: gdp_mu(value, problem.budget.delta) >= wanted, problem.budget.epsilon
    )
    return {"epsilon": epsilon, "records": records}


def _settings(question: Question, candidate: Candidate, task: Task, epsilon: float) -> Settings:
    """What `train` needs to follow the plan."""
    assert question.task is not None
    released = candidate.algorithm == "dp-scaffnew" and candidate.noise_in == "message"
    return Settings.of(
        task=question.task,
        algorithm=candidate.algorithm,
        iterations=candidate.rounds * candidate.local_steps,
        local_steps=candidate.local_steps,
        eta=candidate.eta,
        h_update="released" if released else None,
        clip_norm=candidate.clip_norm,
        noise_in=candidate.noise_in,
        epsilon=epsilon,
        **question.shared(None if question.task == "csv" else len(task.clients.sizes)),
    )
