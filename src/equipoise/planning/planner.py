"""`plan`: a budget in, the best step size, local steps, rounds, clip, noise and an honest go or
no-go out.

Nothing of the budget is spent: plans are tried on stand-ins made of public records (theory in
docs/planning.md).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from equipoise.errors import require
from equipoise.planning.candidates import (
    Candidate,
    describe,
    describe_proposal,
    smallest,
    untrained_error,
)
from equipoise.planning.closed_forms import (
    Problem,
    Proposal,
    corollary_1,
    corrected_plan,
    displacement_law,
    trainability,
)
from equipoise.planning.plan import Plan, Question
from equipoise.planning.record_plans import plan_record
from equipoise.planning.screening import screen
from equipoise.planning.surrogate import Surrogate, bootstrap, surrogate_of, synthetic_pool
from equipoise.planning.trial import race, rehearse, shortlist, stages_of
from equipoise.planning.verdict import WORTH_WHILE, judge, predict
from equipoise.planning.without_data import plan_blind, plan_constants
from equipoise.privacy.promise import Budget, Guarantee
from equipoise.settings import Settings
from equipoise.tasks import Options, Task, load_task, load_to_plan
from equipoise.tasks.linear import LinearClients
from equipoise.tasks.public import public_only
from equipoise.tasks.quadratic import QuadraticClients
from equipoise.tasks.task import Table

PUBLIC_RECORDS = 40  # of an embedded or LIBSVM task, if the user names no pool
GUESSED_RECORDS = 100  # of a client whose size is private
PACES = (1, 2, 4, 8, 16, 32)
ROUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LONGEST = 512  # local iterations of a plan, if they are not given
STAND_INS, THEIR_RECORDS = 40, 60  # at most: more cost time and change little
MOST_ROUNDS = 512  # considered at a fixed number of iterations
MOST_STEPS = 4096  # rehearsed for a closed form that asks for more
LARGEST_MAPS = 2e7  # numbers in the clients' Hessians; fewer stand-ins are made beyond


@dataclass(frozen=True)
class Public:
    """All that the planner knows: public parts of the task, and stand-ins for its clients."""

    task: Task
    clients: int
    surrogate: Surrogate
    records: int  # of a client
    sentences: list[str]


def plan(
    question: Question,
    watch: Callable[[Iterable[float]], Iterable[float]] = lambda epsilons: epsilons,
) -> list[Plan]:
    """A plan for every budget of the question; `watch` may wrap the iterator of budgets, to show
    progress."""
    if question.task is None:
        return [plan_constants(question, epsilon) for epsilon in watch(question.epsilon)]
    options = _options(question)
    task = load_to_plan(question.task, options)
    clients = len(task.clients.sizes)
    question = question.model_copy(update={"public_records": options.public_records})
    if not isinstance(task.clients, LinearClients | QuadraticClients):
        return [plan_blind(question, task, clients, epsilon) for epsilon in watch(question.epsilon)]
    require(
        question.unit == "client" or isinstance(task.clients, LinearClients),
        f"unit=record with task={task.name}: its clients have no records to tell apart",
    )
    public = _public(question, task, clients)
    if question.unit == "record":
        return [_both_units(question, public, epsilon) for epsilon in watch(question.epsilon)]
    return [plan_public(question, public, epsilon) for epsilon in watch(question.epsilon)]


def _both_units(question: Question, public: Public, epsilon: float) -> Plan:
    """The plan that protects a record, and beside it what protecting whole clients would leave."""
    plan = plan_record(
        question, public.task, public.surrogate, public.records, public.sentences, epsilon
    )
    whole = {"unit": "client", "neighbours": "replace-one", "clip_norm": None, "noise_in": None}
    client = plan_public(question.model_copy(update=whole), public, epsilon)
    assert client.plan
    assert client.predicted
    beside = {f"unit client, {client.plan['algorithm']}": {**client.plan, **client.predicted}}
    return plan.model_copy(update={"compared": {**plan.compared, **beside}})


def _options(question: Question) -> Options:
    """What the question says to the task; where there is no other pool, some of its records are
    declared public."""
    own_pool = question.task in ("breast-cancer", "digits", "libsvm") and not (
        question.proxy or question.synthetic
    )
    return replace(
        Options.of(question),
        public_records=question.public_records or (PUBLIC_RECORDS if own_pool else 0),
    )


def _public(question: Question, task: Task, clients: int) -> Public:
    """Stand-ins for the clients: from the pool, from made-up records, or (quadratic) from the
    public generator."""
    assert task.L is not None
    assert task.mu is not None
    sentences, records = list(task.public), 1
    number = max(2, min(clients, STAND_INS, int(LARGEST_MAPS / task.dimension**2)))
    if isinstance(task.clients, QuadraticClients):
        stand_ins: Any = load_task(
            "quadratic", Options(clients=number, seed=question.seed + 10**6)
        ).clients
        sentences.append("stand-ins drawn by the task's public generator with another seed")
    else:
        private = task.clients
        assert isinstance(private, LinearClients)
        records = question.records or (
            round(sum(private.sizes) / clients) if task.sizes_public else GUESSED_RECORDS
        )
        outputs, features = task.shapes["weight"]
        pool = task.pool
        if not isinstance(pool, Table):
            norm = math.sqrt(max(0.0, (task.L - task.mu) / private.link.curvature - 1))
            pool = synthetic_pool(200, features, outputs, private.link, norm, question.seed)
            sentences.append(
                "nothing else: the stand-ins have made-up records, expect plans 10 to 20 % worse"
            )
        stand_ins = bootstrap(
            pool, number, min(records, THEIR_RECORDS), private.link, private.l2, question.seed
        )
    surrogate = surrogate_of(stand_ins, task.x0, task.L, task.mu)
    return Public(
        task, clients, surrogate.single() if surrogate.large else surrogate, records, sentences
    )


def plan_public(question: Question, public: Public, epsilon: float) -> Plan:
    """The two-stage planner for one budget."""
    budget, guarantee = Budget(epsilon, question.delta), question.guarantee(public.clients)
    surrogate, task = public.surrogate, public.task
    noise = math.sqrt(
        trainability(budget, guarantee, 1)
    )  # of the average, for one release with C = 1
    algorithms = (
        ["dp-fedavg", "dp-scaffnew"] if question.algorithm == "both" else [question.algorithm]
    )
    races = {}
    for algorithm in algorithms:
        candidates = shortlist(_screen(question, surrogate, algorithm, noise))
        races[algorithm], *_ = race(
            candidates,
            lambda c, seeds: rehearse(surrogate, c, noise, seeds, question.h_update),
            stages_of(surrogate),
        )
    best = min(races.values(), key=lambda tried: tried.mean)
    untrained = float(surrogate.excess(surrogate.x0))
    found = public_only(task)
    verdict, reason = judge(best, untrained, found, task)
    return Plan(
        verdict=verdict,
        reason=reason,
        unit="client",
        epsilon=epsilon,
        delta=question.delta,
        nu2=trainability(budget, guarantee, task.dimension),
        plan=describe(best.candidate, budget, guarantee),
        predicted=predict(best, task),
        untrained={"excess_loss": untrained, "test_error": untrained_error(task)},
        public_only=found,
        compared={
            name: {**describe(tried.candidate, budget, guarantee), **predict(tried, task)}
            for name, tried in races.items()
        },
        **_closed_forms(question, public, budget, guarantee, best.candidate.clip_norm, noise),
        changes=_changes(question, surrogate, noise, budget, guarantee, untrained)
        if verdict == "do not train"
        else None,
        public=public.sentences,
        settings=_settings(question, best.candidate, epsilon, public.clients),
        version=version("equipoise"),
    )


def _screen(
    question: Question, surrogate: Surrogate, algorithm: str, noise: float, seeds: int = 8
) -> list[Candidate]:
    r0 = float((surrogate.best - surrogate.x0).norm())
    clips = [question.clip_norm] if question.clip_norm else [r0 / 2**j for j in range(1, 6)]
    gammas = (
        [question.gamma]
        if question.gamma
        else [1.0, 0.5, 0.25, 0.125]
        if question.clip_norm
        else [1.0, 0.5]
    )
    if question.iterations:
        T = question.iterations
        paces = [
            (tau, [T // tau]) for tau in range(1, T + 1) if T % tau == 0 and T // tau <= MOST_ROUNDS
        ]
    else:
        paces = [(tau, [K for K in ROUNDS if K * tau <= LONGEST]) for tau in PACES]
    etas = [1 / surrogate.L, 0.25 / surrogate.L]
    return screen(
        surrogate, algorithm, etas, paces, clips, gammas, noise, 3 if surrogate.large else seeds
    )


def _closed_forms(
    question: Question,
    public: Public,
    budget: Budget,
    guarantee: Guarantee,
    clip_norm: float,
    noise: float,
) -> dict[str, Any]:
    """Corollary 1, the corrected bound and the displacement law with the surrogate's constants,
    each with its own result."""
    s = public.surrogate
    r0 = float((s.best - s.x0).norm())
    zeta = math.sqrt(float(s.slopes.square().sum(-1).mean()))
    problem = Problem(
        s.mu, s.L, public.task.dimension, budget, guarantee, clip_norm, r0=r0, zeta=zeta
    )
    gradients = s.clients.gradient(s.x0.expand(s.number, -1), 0)
    norms = gradients.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    direction, H = -(gradients / norms).mean(0), s.hessians.mean(0)
    law = displacement_law(
        float(-gradients.mean(0) @ direction),
        float(direction @ H @ direction),
        float(H.trace()),
        budget,
        guarantee,
    )
    tau = min(32, max(1, math.ceil(2 * clip_norm * s.L / float(norms.median()))))
    lawful = Candidate(
        "dp-fedavg", 1 / s.L, tau, law.rounds(clip_norm), clip_norm, law.gamma(clip_norm)
    )
    return {
        "corollary1": _with_result(corollary_1(problem, question.v), public, clip_norm, noise),
        "corrected": _with_result(corrected_plan(problem), public, clip_norm, noise),
        "displacement": {
            "distance": law.distance,
            "local_steps": tau,
            "rounds": lawful.rounds,
            "gamma": lawful.gamma,
            **_result(lawful, public, noise),
        },
    }


def _with_result(
    proposal: Proposal, public: Public, clip_norm: float, noise: float
) -> dict[str, Any]:
    """The proposal un-rounded, and what it reaches when rounded: T* <= 0 is not to train."""
    tau, K = max(1, round(proposal.local_steps)), max(1, round(proposal.rounds))
    K = min(K, max(1, MOST_STEPS // tau))
    if proposal.iterations <= 0:
        untrained = float(public.surrogate.excess(public.surrogate.x0))
        result = {"excess_loss": untrained, "test_error": untrained_error(public.task)}
    else:
        result = _result(
            Candidate("dp-scaffnew", proposal.eta, tau, K, clip_norm, 1.0), public, noise
        )
    return {**describe_proposal(proposal), **result}


def _result(candidate: Candidate, public: Public, noise: float) -> dict[str, Any]:
    predicted = predict(rehearse(public.surrogate, candidate, noise, range(32)), public.task)
    return {key: predicted[key] for key in ("excess_loss", "test_error")}


def _changes(
    question: Question,
    surrogate: Surrogate,
    noise: float,
    budget: Budget,
    guarantee: Guarantee,
    untrained: float,
) -> dict[str, Any]:
    """The smallest epsilon, and the smallest number of clients, with which a plan would be worth
    while, judged like a plan."""
    small = question.model_copy(update={"algorithm": "dp-fedavg"})

    def worth(factor: float) -> bool:
        candidates = shortlist(_screen(small, surrogate, "dp-fedavg", noise * factor, seeds=6))[:6]
        best, *_ = race(
            candidates,
            lambda c, seeds: rehearse(surrogate, c, noise * factor, seeds),
            ((16, 2), (64, 1)),
        )
        return best.mean + 2 * best.standard_error < WORTH_WHILE * untrained

    less = smallest(lambda times: worth(1 / times), 1.0)  # how many times less noise would do
    if less is None:
        return {"epsilon": None, "clients": None}
    wanted = (noise / less) ** 2

    def enough(changed: Budget, others: Guarantee) -> bool:
        return trainability(changed, others, 1) <= wanted

    return {
        "epsilon": smallest(
            lambda epsilon: enough(Budget(epsilon, budget.delta), guarantee), budget.epsilon
        ),
        "clients": smallest(
            lambda clients: enough(budget, replace(guarantee, clients=math.ceil(clients))),
            guarantee.clients,
            whole=True,
        ),
    }


def _settings(question: Question, candidate: Candidate, epsilon: float, clients: int) -> Settings:
    """What `train` needs to follow the plan; the records that were declared public are left out
    again."""
    assert question.task is not None
    return Settings.of(
        task=question.task,
        algorithm=candidate.algorithm,
        iterations=candidate.rounds * candidate.local_steps,
        local_steps=candidate.local_steps,
        eta=candidate.eta,
        gamma=candidate.gamma,
        h_update=question.h_update if candidate.algorithm == "dp-scaffnew" else None,
        clip_norm=candidate.clip_norm,
        epsilon=epsilon,
        **question.shared(None if question.task == "csv" else clients),
    )
