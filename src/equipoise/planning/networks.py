"""Plans for networks: plans far apart are rehearsed on public records, then their neighbours, and
the best again on other splits of the pool."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import torch

from equipoise.algorithms.schedule import divisors_of
from equipoise.errors import require
from equipoise.planning.candidates import Candidate
from equipoise.planning.noise_table import plan_noise
from equipoise.planning.outlook import (
    NOT_TRAINING,
    PUBLIC_ALONE,
    SILO_ALONE,
    Rules,
    Tried,
    verdict_of,
)
from equipoise.planning.plan import Plan, Prediction, Question, Way
from equipoise.planning.problems import AS_GOOD, Line, settings_of
from equipoise.planning.question import JudgeBy
from equipoise.planning.rehearsal import (
    FEWEST_RECORDS,
    WORLDS,
    Problem,
    Public,
    Rehearsed,
    known_of,
    worlds_of,
)
from equipoise.planning.worlds import GUESSED_RECORDS
from equipoise.privacy.mechanisms.catalogue import mechanism
from equipoise.result import PublicOnly
from equipoise.settings import Returns
from equipoise.tasks.network import ModelClients
from equipoise.tasks.own import constant_error
from equipoise.tasks.placing import chosen_device, placed
from equipoise.tasks.public import public_only
from equipoise.tasks.task import Task

HOPELESS = 0.15  # more error than the best so far: not tried on another split
TURNS = 2
BEAM = 2, 1  # plans of either start whose neighbours are tried
FINALISTS = 4, 3
OTHER_NOISE = 1000  # is added to seeds


def can_rehearse(task: Task) -> bool:
    """Whether there are public records enough."""
    return isinstance(task.pool, ModelClients) and task.pool.sizes[0] >= FEWEST_RECORDS


def check_question(question: Question, task: Task) -> None:
    """Refuse what has no meaning for a network."""
    for name in ("skew", "records"):
        require(
            getattr(question, name) is None,
            f"{name} with task={task.name}, a network: it belongs to tables; leave it out",
        )
    require(
        question.judge_by is None or can_rehearse(task),
        f"for={question.judge_by} with task={task.name}, a network without a public pool of at "
        f"least {FEWEST_RECORDS} records, for which nothing is tried: leave it out, or give a pool "
        "(--public-records n, or pool in a task file)",
    )
    require(
        question.judge_by != "auroc",
        f"for=auroc with task={task.name}, a network: its plans are chosen by error or loss",
    )


@dataclass
class Search:
    """Plans, rehearsed on the first splits, the best of them on others."""

    problem: Problem
    what: JudgeBy
    progress: Callable[[float], None]

    def best(self) -> list[Rehearsed]:
        """All that was rehearsed on the last splits: the best of every line among them."""
        problem, lines = self.problem, self.problem.lines()
        large = problem.public.large
        leaders = [line for line in lines if line.algorithm == lines[0].algorithm]
        candidates = [each for line in leaders for each in problem.beginning(line)]
        tried = self._try(candidates)
        self.progress(0.4)
        seen = {each.name for each in candidates}
        for turn in range(TURNS):
            near: dict[Any, Candidate] = {}
            for warm in (False, True):
                for each in self._ranked(tried, warm)[: BEAM[large]]:
                    assert each.candidate
                    plan = replace(each.candidate, returns="last")
                    near |= {c.name: c for c in problem.neighbours(plan)}
            tried += self._try([c for name, c in near.items() if name not in seen])
            seen |= set(near)
            self.progress(0.4 + 0.2 * (turn + 1))
        return self._try(self._finalists(tried, lines), final=True)

    def _finalists(self, tried: list[Rehearsed], lines: list[Line]) -> list[Candidate]:
        """The best few, and the best of either start with every algorithm."""
        finalists: dict[Any, Candidate] = {}
        for each in self._ranked(tried):
            if len(finalists) < FINALISTS[self.problem.public.large] and each.candidate:
                finalists[each.candidate.name] = replace(each.candidate, returns="last")
        for line in lines:
            for each in self._ranked(tried, line.warm)[:1]:
                assert each.candidate
                plan = replace(
                    each.candidate, algorithm=line.algorithm, options=line.options, returns="last"
                )
                finalists.setdefault(plan.name, plan)
        return list(finalists.values())

    def _ranked(self, tried: Iterable[Rehearsed], warm: bool | None = None) -> list[Rehearsed]:
        """One of each plan, whatever it returns."""
        ranked: dict[Any, Rehearsed] = {}
        for each in sorted(tried, key=lambda each: each.score(self.what)):
            assert each.candidate
            if warm in (None, each.candidate.warm):
                ranked.setdefault(each.candidate.name, each)
        return list(ranked.values())

    def _try(self, candidates: list[Candidate], final: bool = False) -> list[Rehearsed]:
        """On split after split; plans that do far worse than the best are left out on the way."""
        results: list[dict[Returns, list[tuple[float, float]]]] = [{} for _ in candidates]
        left = list(range(len(candidates)))
        public, other = self.problem.public, OTHER_NOISE if final else 0
        for number in public.final if final else public.first:
            for i in left:
                plan, seed = candidates[i], number + other
                for returns, value in self.problem.rehearse(plan, number, seed).items():
                    results[i].setdefault(returns, []).append(value)
            errors = {i: min(_mean_error(values) for values in results[i].values()) for i in left}
            if self.what == "error" and not final:
                least = {
                    warm: min((errors[i] for i in left if candidates[i].warm == warm), default=0.0)
                    for warm in (False, True)
                }
                left = [i for i in left if errors[i] <= least[candidates[i].warm] + HOPELESS]
        rehearsed = []
        for i in left:
            for returns, values in results[i].items():
                plan = replace(candidates[i], returns=returns)
                rehearsed.append(Rehearsed(plan, *torch.tensor(values, dtype=torch.float64).T))
        return rehearsed


def _mean_error(values: list[tuple[float, float]]) -> float:
    return sum(error for error, _ in values) / len(values)


def plan_networks(
    question: Question,
    task: Task,
    untrained: float | None,
    watch: Callable[[Iterable[float]], Iterable[float]],
    progress: Callable[[float], None],
    named: bool = True,
) -> list[Plan]:
    """A plan for every budget, rehearsed on public records; where there are none, the noise alone.

    `untrained` is the error without training; `named`: `train` can load the task by its name.
    """
    check_question(question, task)
    if can_rehearse(task):
        task = placed(task, chosen_device(question.device, task, question.unit), question.unit)
    public = known_of(question, task) if can_rehearse(task) else None
    plans: list[Plan] = []
    for epsilon in watch(question.epsilon):
        if public:
            plans.append(_plan(public, untrained, epsilon, named, _part(question, plans, progress)))
        else:
            facts, start = task.facts(question.unit), Prediction(test_error=untrained)
            plans.append(plan_noise(question, facts, list(task.public), start, epsilon))
    return plans


def _part(
    question: Question, plans: list[Plan], progress: Callable[[float], None]
) -> Callable[[float], None]:
    """The progress of the next plan, as a share of all."""
    before, total = len(plans), len(question.epsilon)
    return lambda share: progress((before + share) / total)


def _plan(
    public: Public,
    untrained: float | None,
    epsilon: float,
    named: bool,
    progress: Callable[[float], None],
) -> Plan:
    """The plan for one budget."""
    question, task, facts = public.question, public.task, public.facts
    problem, what = Problem(public, question.promise(epsilon)), question.judge_by or "error"
    ended = Search(problem, what, progress).best()
    ended += _cheaper(problem, ended, what)
    best = _chosen(problem, ended, what)
    assert best.candidate
    progress(0.95)
    alone = public_only(task)
    gain = public.gain(alone.test_error if alone else None)
    measured = untrained, alone.test_error if alone else None
    ways = _ways(problem, ended, best, gain, measured)
    shares = bool((ways[0].values <= 1).all())
    verdict, reason = verdict_of(ways, what, Rules([list(range(WORLDS))], shares))
    shared = question.passed_on(facts.clients if named else None)
    return Plan(
        verdict=verdict,
        reason=reason,
        promise=problem.promise,
        units=facts.units(question.unit),
        nu2=problem.nu2(best.candidate),
        chosen=problem.option("plan", best, gain),
        options=[
            problem.option(line.origin, min(of_line, key=lambda each: each.score(what)), gain)
            for line in problem.lines()
            if (of_line := [each for each in ended if _of(each, line)])
        ],
        untrained=Prediction(test_error=untrained),
        public_only=PublicOnly(**alone._asdict()) if alone else None,
        ways=[tried.way for tried in ways],
        judged_by=what,
        notes=_notes(public),
        public=[*task.public, f"a pool of {public.records} records, on which plans were rehearsed"],
        settings=settings_of(best.candidate, problem.promise, **{**shared, "task": question.task}),
        version=version("equipoise"),
    )


def _of(tried: Rehearsed, line: Line) -> bool:
    plan = tried.candidate
    return plan is not None and (plan.algorithm, plan.noise_in, plan.warm) == (
        line.algorithm,
        line.place.noise_in,
        line.warm,
    )


def _price(problem: Problem, tried: Rehearsed) -> float:
    candidate = tried.candidate
    assert candidate
    return candidate.rounds * (candidate.local_steps + problem.question.round_cost)


def _cheaper(problem: Problem, ended: list[Rehearsed], what: JudgeBy) -> list[Rehearsed]:
    """The best plan with fewer rounds of more local steps, where rounds have a price and local
    steps are what is paid for in noise."""
    best = min(ended, key=lambda each: each.score(what)).candidate
    assert best
    place = mechanism(problem.promise.unit, best.noise_in)
    if not problem.question.round_cost or place.paid_per == "round":
        return []
    T = best.iterations
    plans = [
        replace(best, local_steps=tau, rounds=T // tau, returns="last")
        for tau in divisors_of(T)
        if tau in (2, 4, 8, 16, T)
    ]
    return Search(problem, what, lambda share: None)._try(plans, final=True)


def _chosen(problem: Problem, ended: list[Rehearsed], what: JudgeBy) -> Rehearsed:
    """The best; where rounds have a price, the cheapest of those about as good."""
    least = min(each.score(what) for each in ended)
    if not problem.question.round_cost:
        return min(ended, key=lambda each: each.score(what))
    good = [each for each in ended if each.score(what) <= AS_GOOD * least]
    return min(good, key=lambda each: _price(problem, each))


def _ways(
    problem: Problem,
    ended: list[Rehearsed],
    best: Rehearsed,
    gain: float,
    measured: tuple[float | None, float | None],
) -> list[Tried]:
    """Side by side, on the same splits. The public model there has a part of the pool, the
    stand-ins of a warm start another, so that what private records add is seen. `measured` are the
    errors of not training and of the public model on the task's test records."""
    public, what = problem.public, problem.question.judge_by or "error"

    def tried(
        name: str, rehearsed: Rehearsed, free: bool, gain: float, measured: float | None = None
    ) -> Tried:
        predicted = problem.prediction(rehearsed, gain)
        way = Way(name=name, free=free, predicted=predicted, measured=measured)
        return Tried(way, worlds_of(rehearsed.by(what)))

    start = public.judged(lambda split: split.starts[False])
    inputs, targets = (part[:] for part in public.pool.data[0])
    constant = constant_error(public.pool.model, public.pool.metric, (inputs, targets))
    if constant is not None:
        start = start._replace(errors=start.errors.clamp_max(constant))
    taught = public.judged(lambda split: split.starts[True])
    ways = [tried(NOT_TRAINING, start, True, 0.0, measured[0])]
    ways.append(tried(PUBLIC_ALONE, taught, True, gain, measured[1]))
    if public.facts.sizes and public.size <= len(public.split(public.final[0]).free):
        ways.append(tried(SILO_ALONE, public.judged(public.alone), True, 0.0))
    for warm, name in ((False, "federated"), (True, "federated, warm start")):
        of_start = [each for each in ended if each.candidate and each.candidate.warm == warm]
        if best.candidate and best.candidate.warm == warm:
            of_start = [best]
        rehearsed = min(of_start, key=lambda each: each.score(what))
        ways.append(tried(name, rehearsed, False, gain))
    return ways


def _notes(public: Public) -> list[str]:
    records = public.records
    notes = [
        f"ROUGH: rehearsed on {records} public records: half of them are held by stand-ins, a "
        "quarter teaches the public model, a quarter judges; with all of the pool and the clients' "
        "own records errors will mostly be lower"
    ]
    if public.facts.sizes is None and public.task.batch is None:
        notes.append(f"GUESSED: about {GUESSED_RECORDS} records a client")
    if public.question.unit != "client":
        notes.append("with noise in the gradients local steps save communication, not privacy")
    return notes
