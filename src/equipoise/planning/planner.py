"""`plan`: a budget in, the best step size, local steps, rounds, clip, noise and an honest go or
no-go out.

Nothing of the budget is spent: plans are tried on stand-ins made of public records
(docs/planning.md).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from numbers import Real
from typing import Any, overload

from equipoise.errors import require
from equipoise.facts import Facts
from equipoise.planning.constants import plan_constants
from equipoise.planning.formulas import Context, formulas
from equipoise.planning.noise_table import plan_noise
from equipoise.planning.plan import Option, Plan, Prediction, Question
from equipoise.planning.problems import (
    ClientProblem,
    PlanningProblem,
    RecordProblem,
    settings_of,
)
from equipoise.planning.surrogate import StandIns, stand_ins
from equipoise.planning.trial import Trial, race
from equipoise.planning.verdict import judge, predict, untrained_error
from equipoise.result import PublicOnly
from equipoise.tasks import Task, TaskOptions, load_to_plan, task_spec
from equipoise.tasks.public import public_only
from equipoise.tasks.task import Convex, Records

PUBLIC_RECORDS = 40  # of a task that can spare some, if the user names no pool

Watch = Callable[[Iterable[float]], Iterable[float]]


@overload
def plan(question: Question, *, watch: Watch = ...) -> list[Plan]: ...
@overload
def plan(*, epsilon: float | str, watch: Watch = ..., **values: Any) -> Plan: ...
@overload
def plan(*, epsilon: Sequence[float], watch: Watch = ..., **values: Any) -> list[Plan]: ...
def plan(
    question: Question | None = None, *, watch: Watch = lambda epsilons: epsilons, **values: Any
) -> Plan | list[Plan]:
    """A Plan for one budget, ``plan(task="breast-cancer", epsilon=2)``, with the keywords of the
    command; a list of Plans for several, ``epsilon=(1, 2, 4)``, or for a Question.

    `watch` may wrap the iterator of budgets, to show progress.
    """
    if question is not None:
        require(
            isinstance(question, Question),
            f"question is a {type(question).__name__}: give a Question, or keywords, "
            'plan(task="breast-cancer", epsilon=2)',
        )
        require(
            not values,
            f"give {', '.join(values)} either in the question or as keywords, not both",
        )
        return plan_all(question, watch)
    own = values.get("task")
    if isinstance(own, Task):
        plans = _plan_own(Question.of(**{**values, "task": own.name}), own, watch)
    else:
        plans = plan_all(Question.of(**values), watch)
    return plans[0] if isinstance(values["epsilon"], Real | str) else plans


def plan_all(question: Question, watch: Watch = lambda epsilons: epsilons) -> list[Plan]:
    """A plan for every budget of the question."""
    if question.task is None:
        return [plan_constants(question, epsilon) for epsilon in watch(question.epsilon)]
    options = _options(question)
    task = load_to_plan(question.task, options)
    question = question.model_copy(update={"public_records": options.public_records})
    if not isinstance(task.clients, Convex):
        return _noise_alone(question, task, watch)
    require(
        question.unit == "client" or isinstance(task.clients, Records),
        f"unit=record with task={task.name}: its clients have no individual records",
    )
    public = _public(question, task)
    make = _both_units if question.unit == "record" else _plan_clients
    plans = [make(question, public, epsilon) for epsilon in watch(question.epsilon)]
    return _with_notices(plans, task)


def _plan_own(question: Question, task: Task, watch: Watch) -> list[Plan]:
    """Of a task that was made in Python: no stand-ins, so the noise alone."""
    require(
        not isinstance(task.clients, Convex),
        f"task={task.name} was loaded with its private records: plan takes its name, and leaves "
        "them closed",
    )
    return _noise_alone(question, task, watch)


def _noise_alone(question: Question, task: Task, watch: Watch) -> list[Plan]:
    facts, start = task.facts(question.unit), Prediction(test_error=untrained_error(task))
    public = list(task.public)
    plans = [
        plan_noise(question, facts, public, start, epsilon) for epsilon in watch(question.epsilon)
    ]
    return _with_notices(plans, task)


def _with_notices(plans: list[Plan], task: Task) -> list[Plan]:
    return [plan.model_copy(update={"task_notices": task.notices}) for plan in plans]


def _options(question: Question) -> TaskOptions:
    """What the question says to the task; where there is no other pool, some of its records are
    declared public."""
    own_pool = task_spec(question.task or "").pools_itself
    spare = PUBLIC_RECORDS if own_pool and not (question.proxy or question.synthetic) else 0
    return replace(TaskOptions.of(question), public_records=question.public_records or spare)


@dataclass(frozen=True)
class Public:
    """All that the planner knows: public parts of the task, and stand-ins for its clients."""

    task: Task
    facts: Facts
    stand_ins: StandIns
    alone: PublicOnly | None
    untrained: Prediction

    def predict(self, trial: Trial) -> Prediction:
        return predict(trial, self.task, self.stand_ins.kind)


def _public(question: Question, task: Task) -> Public:
    stood_in = stand_ins(task, question.records, question.seed)
    alone = public_only(task)
    start = Prediction(
        excess_loss=float(stood_in.surrogate.excess(stood_in.surrogate.x0)),
        test_error=untrained_error(task),
    )
    return Public(
        task,
        task.facts("client")._replace(sizes=(stood_in.records,)),
        stood_in,
        PublicOnly(**alone._asdict()) if alone else None,
        start,
    )


def _plan_clients(question: Question, public: Public, epsilon: float) -> Plan:
    """The unit is a client: the plan, and the closed forms beside it."""
    promise = question.promise(epsilon)
    problem = ClientProblem(
        public.stand_ins.surrogate, promise, public.facts, question.mechanisms[0]
    )
    plan = _plan(question, problem, public)
    assert plan.chosen
    assert plan.chosen.clip is not None
    context = Context(problem, plan.chosen.clip, question.v, public.predict, public.untrained)
    return plan.model_copy(update={"options": [*plan.options, *formulas(context)]})


def _both_units(question: Question, public: Public, epsilon: float) -> Plan:
    """The plan that protects a record, and beside it what protecting whole clients would leave."""
    promise = question.promise(epsilon)
    problem = RecordProblem(public.stand_ins.surrogate, promise, public.facts)
    plan = _plan(question, problem, public)
    whole = question.model_copy(
        update={"unit": "client", "neighbours": "replace-one", "clip": None, "noise_in": None}
    )
    of_clients = ClientProblem(
        public.stand_ins.surrogate, whole.promise(epsilon), public.facts, whole.mechanisms[0]
    )
    trial = of_clients.choose(_winners(of_clients, whole).values(), whole)
    origin = f"unit client, {trial.candidate.algorithm}"
    beside = _option(origin, trial, of_clients, public)
    reason = plan.reason
    if plan.settings and plan.settings.mechanism.paid_per == "local step":
        reason += "; with noise in the gradients local steps save communication, not privacy"
    known = "" if public.task.sizes_public else "assumed: "
    sentence = f"{known}about {problem.records} records of each client"
    return plan.model_copy(
        update={
            "reason": reason,
            "options": [*plan.options, beside],
            "public": [*plan.public, sentence],
        }
    )


def _winners(problem: PlanningProblem, question: Question) -> dict[str, Trial]:
    groups = problem.groups(question)
    for candidates in groups.values():  # what training would refuse is not tried first
        settings_of(candidates[0], problem.promise, task=problem.facts.task)
    return {
        origin: race(candidates, problem.try_out, problem.stages)
        for origin, candidates in groups.items()
    }


def _plan(question: Question, problem: PlanningProblem, public: Public) -> Plan:
    """Candidates, a race in every group, a choice, a verdict: the same for both units."""
    winners = _winners(problem, question)
    best = problem.choose(winners.values(), question)
    option = partial(_option, problem=problem, public=public)
    chosen = option("plan", best)
    verdict, reason = judge(
        best,
        chosen.predicted,
        public.untrained,
        public_only(public.task),
        public.task,
        public.stand_ins.kind,
    )
    untrained = public.untrained.excess_loss or 0.0
    spec = task_spec(question.task or "")
    clients = None if spec.load_to_plan else public.facts.clients
    shared = {**question.passed_on(clients), "task": question.task}
    return Plan(
        verdict=verdict,
        reason=reason,
        promise=problem.promise,
        units=public.facts.units(question.unit),
        nu2=problem.nu2(best.candidate),
        chosen=chosen,
        options=[option(origin, trial) for origin, trial in winners.items()],
        untrained=public.untrained,
        public_only=public.alone,
        changes=problem.changes(question, untrained) if verdict == "do not train" else None,
        public=public.stand_ins.sentences,
        settings=settings_of(best.candidate, problem.promise, **shared),
        version=version("equipoise"),
    )


def _option(origin: str, trial: Trial, problem: PlanningProblem, public: Public) -> Option:
    return trial.candidate.option(
        origin,
        problem.event(trial.candidate),
        problem.promise,
        public.facts.clients,
        public.predict(trial),
    )
