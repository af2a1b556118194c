"""`plan`: a budget in, whether to train, how, and what it will be worth out.

Nothing of the budget is spent: plans are tried in worlds that are drawn from public information
alone (docs/planning.md).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from numbers import Real
from typing import Any, overload

import torch
from torch import Tensor

from equipoise.algorithms.catalogue import ALGORITHMS
from equipoise.device import device_of
from equipoise.errors import require
from equipoise.facts import EQUAL
from equipoise.planning.candidates import Candidate
from equipoise.planning.constants import plan_constants
from equipoise.planning.enough import WORTH_WHILE, changes_of
from equipoise.planning.formulas import Context, formulas
from equipoise.planning.networks import plan_networks
from equipoise.planning.outlook import (
    MOST_PARAMETERS_AT_HOME,
    PUBLIC_ALONE,
    PUBLIC_AT_HOME,
    SILO_ALONE,
    SURE,
    Judge,
    Tried,
    disagreement,
    judge_models,
    rules_of,
    verdict_of,
)
from equipoise.planning.plan import Option, Plan, Question, Verdict
from equipoise.planning.problems import (
    AS_GOOD,
    LONGEST,
    MOST_ROUNDS,
    ClientProblem,
    RecordProblem,
    settings_of,
)
from equipoise.planning.public_side import Public, l2_of, open_l2, public_side, untrained_error
from equipoise.planning.question import JudgeBy
from equipoise.planning.search import Searched, effort_of, search
from equipoise.planning.trial import Trial, try_all
from equipoise.planning.worlds import Worlds
from equipoise.privacy.mechanisms.catalogue import mechanism
from equipoise.privacy.promise import Unit
from equipoise.tasks import Task, TaskOptions, load_to_plan, task_spec
from equipoise.tasks.placing import chosen_device
from equipoise.tasks.task import Convex, Records

PUBLIC_RECORDS = 40  # of a task that can spare some, if the user names no pool
REGULARISERS = (1e-2, 1e-3, 1e-4)
JUDGED_WORLDS = 16
LONGEST_GIVEN = 10_000  # iterations that may be asked for

PROTECTS_CLIENTS = {name for name, spec in ALGORITHMS.items() if "client" in spec.units}
Problem = ClientProblem | RecordProblem
Watch = Callable[[Iterable[float]], Iterable[float]]
Progress = Callable[[float], None]
"""Hears which share of the work is done."""


def _silent(share: float) -> None:
    pass


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

    Nothing of the budget is spent, and no private record decides anything.

    question   what is asked; or else its fields as keywords
    watch      may wrap the iterator of budgets, to show progress
    values     the fields of `Question`; `task` may be a `Task` that was made in Python

    >>> planned = equipoise.plan(epsilon=2, clip=1, clients=10, dimension=50, mu=0.01,
    ...     smoothness=1, psi0=100)  # from constants alone; task="breast-cancer" asks on data
    >>> planned.verdict, [option.origin for option in planned.options]
    ('do not train', ['corrected bound', 'Corollary 1 as printed'])
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


def plan_all(
    question: Question,
    watch: Watch = lambda epsilons: epsilons,
    progress: Progress = _silent,
) -> list[Plan]:
    """A plan for every budget of the question."""
    if question.task is None:
        return [plan_constants(question, epsilon) for epsilon in watch(question.epsilon)]
    options = _options(question)
    task = load_to_plan(question.task, options)
    device_of(chosen_device(question.device, task, question.unit))  # refused if it is not here
    question = question.model_copy(update={"public_records": options.public_records})
    if not isinstance(task.clients, Convex):
        plans = plan_networks(question, task, untrained_error(task), watch, progress)
        return _with_notices(plans, task)
    require(
        (question.iterations or 0) <= LONGEST_GIVEN,
        f"iterations={question.iterations}: plans are tried step by step; give at most "
        f"{LONGEST_GIVEN}",
    )
    require(
        question.unit == "client" or isinstance(task.clients, Records),
        f"unit={question.unit} with task={task.name}: its clients have no individual records",
    )
    if question.unit == "person" and not task_spec(question.task or "").takes.columns:
        task.persons()  # refused where nobody knows whose a record is
    public = public_side(question, task)
    plans, total = [], len(question.epsilon)
    for number, epsilon in enumerate(watch(question.epsilon)):
        part = partial(_part, progress, number, total)
        make = _plan_clients if question.unit == "client" else _both_units
        plans.append(make(question, public, epsilon, part))
    return _with_notices(plans, task)


def _part(progress: Progress, number: int, total: int, share: float) -> None:
    progress((number + share) / total)


def _plan_own(question: Question, task: Task, watch: Watch) -> list[Plan]:
    """Of a task that was made in Python: a network."""
    require(
        not isinstance(task.clients, Convex),
        f"task={task.name} was loaded with its private records: plan takes its name, and leaves "
        "them closed",
    )
    untrained = untrained_error(task)
    plans = plan_networks(question, task, untrained, watch, _silent, named=False)
    return _with_notices(plans, task)


def _with_notices(plans: list[Plan], task: Task) -> list[Plan]:
    return [plan.model_copy(update={"task_notices": task.notices}) for plan in plans]


def _options(question: Question) -> TaskOptions:
    """What the question says to the task; where there is no other pool, some of its records are
    declared public."""
    own_pool = task_spec(question.task or "").pools_itself
    spare = PUBLIC_RECORDS if own_pool and not (question.proxy or question.synthetic) else 0
    return replace(TaskOptions.of(question), public_records=question.public_records or spare)


def _plan_clients(question: Question, public: Public, epsilon: float, progress: Progress) -> Plan:
    """The unit is a client: the plan, and the closed forms beside it."""
    promise, place = question.promise(epsilon), question.mechanisms[0]

    def problem(known: Public) -> ClientProblem:
        return ClientProblem(question, known.worlds, promise, known.facts, place)

    plan = _plan(question, problem, public, progress)
    assert plan.chosen
    assert plan.chosen.clip is not None
    known = public if plan.chosen.l2 in (None, public.facts.mu) else public.with_l2(plan.chosen.l2)
    context = Context(problem(known), plan.chosen.clip, question.v, known.predict, public.untrained)
    # The closed forms are about clients that all count alike.
    beside = [] if known.worlds.weights else formulas(context)
    options = [*plan.options, *beside]
    progress(1.0)
    return plan.model_copy(update={"options": options})


def _both_units(question: Question, public: Public, epsilon: float, progress: Progress) -> Plan:
    """The plan that protects a record, and beside it what protecting whole clients would leave."""
    promise = question.promise(epsilon)

    def problem(known: Public) -> RecordProblem:
        return RecordProblem(question, known.worlds, promise, known.facts)

    plan = _plan(question, problem, public, lambda share: progress(0.8 * share))
    whole = question.model_copy(
        update={
            "unit": "client",
            "neighbours": "replace-one",
            "clip": None,
            "noise_in": None,
            "weights": EQUAL,
        }
    )
    asked = (name for name in (*question.algorithms, *ALGORITHMS) if name in PROTECTS_CLIENTS)
    whole = whole.model_copy(update={"algorithm": next(asked)})
    of_clients = ClientProblem(
        whole, public.worlds, whole.promise(epsilon), public.facts, whole.mechanisms[0]
    )
    searched = search(of_clients, effort_of(public.worlds)._replace(most=1e9))
    (trial,) = searched.best(1)
    origin = f"unit client, {trial.candidate.algorithm}"
    beside = _option(origin, trial, Found(public, of_clients, searched, trial))
    notes = list(plan.notes)
    if plan.settings and plan.settings.mechanism.paid_per == "local step":
        notes.append("with noise in the gradients local steps save communication, not privacy")
    progress(1.0)
    return plan.model_copy(update={"notes": notes, "options": [*plan.options, beside]})


@dataclass(frozen=True)
class Found:
    """The best plan for one regulariser, and all that was tried with it."""

    public: Public
    problem: Problem
    searched: Searched
    best: Trial


def _plan(
    question: Question,
    problem_of: Callable[[Public], Problem],
    public: Public,
    progress: Progress,
) -> Plan:
    """A search, a choice, the ways beside it, a verdict: the same for both units."""
    first = _found(question, problem_of(public), public, lambda share: progress(0.6 * share))
    final = _regularised(question, problem_of, first)
    others = [*_other_start(final, first)]
    if final.public.judged and final.problem.worlds.fewer_records:
        final, others = _of_clients_sizes(final, others)
    progress(0.8)
    verdict, reason, ways = _verdict(final, others)
    progress(0.95)
    problem, best, l2 = final.problem, final.best, l2_of(final.public)
    spec = task_spec(question.task or "")
    clients = public.facts.clients if spec.deals else None
    shared = {**question.passed_on(clients), "task": question.task}
    if l2 is not None:
        shared |= {"l2": l2, "public_l2": public.task.public_l2}
    return Plan(
        verdict=verdict,
        reason=reason,
        promise=problem.promise,
        units=public.facts.units(question.unit),
        nu2=problem.nu2(best.candidate),
        chosen=_option("plan", best, final),
        options=[
            _option(line.origin, trial, first)
            for line in first.problem.lines()
            for trial in first.searched.best_of(line)
        ],
        untrained=final.public.untrained,
        public_only=public.alone,
        changes=changes_of(problem, best, public.judge_by, ways)
        if verdict not in ("train", "inconclusive")
        else None,
        ways=[tried.way for tried in ways],
        judged_by=public.judge_by,
        notes=[*public.known.sentences, *_limits(question, best.candidate, final.searched.worlds)],
        public=list(public.worlds.sentences),
        settings=settings_of(best.candidate, problem.promise, **shared),
        version=version("equipoise"),
    )


def _found(question: Question, problem: Problem, public: Public, progress: Progress) -> Found:
    for line in problem.lines():  # what training would refuse is not tried first
        candidate = line.candidate(1 / (public.facts.L or 1), 1, 1, question.clip or 1.0)
        settings_of(candidate, problem.promise, task=problem.facts.task)
    searched = search(problem, effort_of(public.worlds), public.measure, progress)
    return Found(public, problem, searched, *searched.best(1))


def _other_start(found: Found, first: Found) -> Iterable[Trial]:
    """The best plan that begins where the chosen one does not. It may have another regulariser:
    the records on which both are judged are the same."""
    warm = not found.best.candidate.warm
    return first.searched.best(1, lambda candidate: candidate.warm == warm)


def _of_clients_sizes(found: Found, others: Sequence[Trial]) -> tuple[Found, list[Trial]]:
    """The chosen plan, and others, in worlds whose stand-ins have as many records as the clients:
    more records are worth more to a silo alone than to all together."""
    worlds = found.problem.worlds.first(JUDGED_WORLDS).of_clients_sizes()
    problem = replace(found.problem, worlds=worlds)
    trials = [
        trial
        for each in (found.best, *others)
        for trial in try_all(worlds, [each.candidate], problem.level, range(1))
        if trial.candidate.returns == each.candidate.returns
    ]
    searched = Searched(worlds, found.public.measure, [], [])
    searched.add(trials)
    return replace(found, problem=problem, searched=searched, best=trials[0]), trials[1:]


def _cheapest(found: Found) -> Found:
    """Of plans for records that are about as good, the one with the lowest price."""
    problem, searched = found.problem, found.searched
    if not isinstance(problem, RecordProblem):
        return found
    cheaper = problem.cheaper(replace(found.best.candidate, returns="last"))
    searched.add(try_all(searched.worlds, cheaper, problem.level, range(4)))
    least = min(searched.regrets())
    good = [
        trial
        for trial, regret in zip(searched.trials, searched.regrets(), strict=True)
        if regret <= AS_GOOD * least
    ]
    best = min(good, key=lambda trial: (problem.price(trial.candidate), trial.mean))
    return replace(found, best=best)


def _regularised(
    question: Question, problem_of: Callable[[Public], Problem], found: Found
) -> Found:
    """The regulariser is planned too, unless it is given: the best plans are tried with others, and
    compared by what they are worth on records that no client holds."""
    public = found.public
    if not open_l2(question, public.worlds):
        return _cheapest(found)
    what: JudgeBy = question.judge_by or "loss"
    near = [replace(trial.candidate, returns="last") for trial in found.searched.best(3)]
    tried = [found]
    for l2 in REGULARISERS:
        if l2 != public.facts.mu:
            other = public.with_l2(l2)
            fitting = [_contracting(question.unit, each, public, other) for each in near]
            tried.append(_again(problem_of(other), other, fitting))
    return _cheapest(min(tried, key=lambda each: _worth(each, what)))


def _contracting(unit: Unit, candidate: Candidate, before: Public, after: Public) -> Candidate:
    """The plan with another regulariser: where the guarantee needs local steps that contract, they
    are shorter by as much as the bound 2 / (L + mu) is."""
    if not mechanism(unit, candidate.noise_in).by_stability:
        return candidate
    bounds = [2 / ((p.facts.L or 0) + (p.facts.mu or 0)) for p in (before, after)]
    return replace(candidate, eta=candidate.eta * min(1.0, bounds[1] / bounds[0]))


def _again(problem: Problem, public: Public, near: list[Candidate]) -> Found:
    """The best of these plans and their neighbours."""
    around = {c.name: c for each in near for c in (each, *problem.neighbours(each))}
    quick = Searched(public.worlds.first(8), public.measure, [], [])
    quick.add(try_all(quick.worlds, list(around.values()), problem.level, range(2)))
    finalists = {t.candidate.name: replace(t.candidate, returns="last") for t in quick.best(3)}
    searched = Searched(public.worlds, public.measure, [], [])
    searched.add(try_all(public.worlds, list(finalists.values()), problem.level, range(4)))
    return Found(public, problem, searched, *searched.best(1))


def _worth(found: Found, what: JudgeBy) -> float:
    return float(judge_models(found.searched.worlds, found.best.x).by(what).mean())


def _verdict(found: Found, others: Sequence[Trial]) -> tuple[Verdict, str, list[Tried]]:
    """The ways side by side."""
    public, best, worlds = found.public, found.best, found.searched.worlds
    if not public.judged:
        verdict, reason = _by_excess(public, best, worlds)
        return verdict, reason, []
    judge = Judge(worlds, public.judge_by, public.test_records)
    ways = [judge.not_training(untrained_error(public.task))]
    if worlds.warm:
        taught = worlds.start(True)[:, None]
        measured = public.alone.test_error if public.alone else None
        ways.append(judge.of_models(PUBLIC_ALONE, taught, worlds.excess(taught), True, measured))
    small = len(worlds.x0) <= MOST_PARAMETERS_AT_HOME
    if small:
        ways.append(judge.at_home(SILO_ALONE, None, free=True))
        if worlds.warm:
            ways.append(judge.at_home(PUBLIC_AT_HOME, worlds.start(True), free=True))
    for trial in sorted([best, *others], key=lambda trial: trial.candidate.warm):
        name = "federated, warm start" if trial.candidate.warm else "federated"
        ways.append(judge.of_models(name, trial.x, trial.excess, False))
    if small:
        ways.append(judge.at_home("federated, then tuned at home", best.x[:, 0], free=False))
    verdict, reason = verdict_of(ways, public.judge_by, rules_of(worlds))
    if sentence := disagreement(ways, worlds.shares):
        verdict, reason = "inconclusive", sentence
    return verdict, reason, ways


def _by_excess(public: Public, best: Trial, worlds: Worlds) -> tuple[Verdict, str]:
    """Where no error is known: what is left of the excess loss of not training."""
    start: Tensor = worlds.excess(worlds.start(False)[:, None])
    left = best.excess.mean(1, keepdim=True) / start
    spread = torch.quantile(left.double(), torch.tensor([0.05, 0.95]).double())
    leaves = (
        f"the best plan leaves {float(left.mean()):.0%} [{spread[0]:.0%}, {spread[1]:.0%}] of the "
        "excess loss of not training"
    )
    if float((left < WORTH_WHILE).double().mean()) < SURE:
        return "do not train", f"{leaves}: not clearly below {WORTH_WHILE:.0%}"
    if worlds.kind == "made up":
        return (
            "inconclusive",
            f"{leaves}, but on made-up labels: whether the real ones can be learnt, only real "
            "public records can show (--proxy FILE)",
        )
    return "train", leaves


def _limits(question: Question, candidate: Candidate, worlds: Worlds) -> list[str]:
    """Where the search ended at a limit of its own, and what was not tried."""
    sentences, held = [], worlds.rows[0].clients.sizes
    if worlds.fewer_records:
        sentences.append(
            f"ROUGH: stand-ins have at most {max(held)} records each, fewer than clients: errors "
            "will mostly be lower than predicted, of all ways but public records alone"
        )
    if worlds.kind == "real records" and len(worlds.x0) > MOST_PARAMETERS_AT_HOME:
        sentences.append(
            f"silos at home were not tried: more than {MOST_PARAMETERS_AT_HOME} parameters"
        )
    if candidate.rounds >= MOST_ROUNDS:
        sentences.append(f"LIMIT: plans have at most {MOST_ROUNDS} rounds; more may be better")
    if not question.iterations and candidate.iterations > LONGEST // 2:
        sentences.append(f"LIMIT: plans have at most {LONGEST} local steps; more may be better")
    return sentences


def _option(origin: str, trial: Trial, found: Found) -> Option:
    return trial.candidate.option(
        origin,
        found.problem.event(trial.candidate),
        found.problem.promise,
        found.public.facts.clients,
        found.public.predict(trial, found.searched.worlds),
        l2_of(found.public),
    )
