"""The public side of a question about tables: all that is known, and worlds drawn from it."""

import math
from dataclasses import dataclass, replace
from functools import partial

from equipoise.facts import Facts
from equipoise.planning.outlook import (
    check_judged,
    held_out_excess,
    judge_models,
    predicted,
    trial_value,
)
from equipoise.planning.plan import Prediction, Question
from equipoise.planning.population import population_of
from equipoise.planning.question import JudgeBy
from equipoise.planning.search import Measure, mean_excess
from equipoise.planning.trial import Trial
from equipoise.planning.worlds import Known, Worlds, known_of, worlds_of
from equipoise.result import PublicOnly
from equipoise.tasks import Task
from equipoise.tasks.linear import LinearClients, LinearMeasure
from equipoise.tasks.public import public_only
from equipoise.tasks.task import Table

WORLDS, FEW_WORLDS = 16, 8  # few in many dimensions, where they differ less and cost more
LARGE = 150


def untrained_error(task: Task) -> float | None:
    """The error without training: of the initial model, or of the best constant answer."""
    if task.measure is None:
        return None
    start = float(task.measure(task.x0).error)
    return start if task.constant_error is None else min(start, task.constant_error)


@dataclass(frozen=True)
class Public:
    """All that the planner knows: public parts of the task, and worlds drawn from them."""

    task: Task
    facts: Facts
    known: Known
    worlds: Worlds
    alone: PublicOnly | None
    untrained: Prediction
    judge_by: JudgeBy
    measure: Measure

    @property
    def judged(self) -> bool:
        """Whether errors are known: of worlds that are made of real records."""
        return self.worlds.kind == "real records"

    @property
    def test_records(self) -> int:
        measure = self.task.measure
        return len(measure.features) if isinstance(measure, LinearMeasure) else 0

    def predict(self, trial: Trial, worlds: Worlds) -> Prediction:
        judged = judge_models(worlds, trial.x) if self.judged else None
        return predicted(trial.excess, judged, self.test_records)

    def with_l2(self, l2: float) -> "Public":
        """The same with another regulariser."""
        assert self.facts.L is not None
        assert self.facts.mu is not None
        facts = self.facts._replace(L=self.facts.L - self.facts.mu + l2, mu=l2)
        worlds = self.worlds.with_l2(l2)
        error = {"test_error": self.untrained.test_error}
        untrained = _untrained(worlds).model_copy(update=error)
        return replace(self, facts=facts, worlds=worlds, untrained=untrained)


def public_side(question: Question, task: Task) -> Public:
    task = _with_public_model(question, task)
    known = known_of(task, question.skew, question.records)
    if question.unit == "person" and task.sizes_public:
        known = known._replace(sizes=task.facts("person").sizes)
    if question.unit != "client" and known.sizes is None:
        known = known._replace(sizes=(known.guess,) * len(task.clients.sizes))
    facts = task.facts("client")
    facts = facts._replace(sizes=known.sizes or (known.guess,) * facts.clients)
    asked = task.facts(question.unit) if question.unit == "client" else facts
    known = known._replace(weights=question.counted(asked))
    count = FEW_WORLDS if task.dimension > LARGE else WORLDS
    worlds = worlds_of(task, known, count, question.seed)
    alone = public_only(task)
    check_judged(question.judge_by, worlds)
    untrained = _untrained(worlds).model_copy(update={"test_error": untrained_error(task)})
    measure: Measure = mean_excess
    if question.judge_by in ("error", "auroc"):
        measure = partial(trial_value, question.judge_by)
    elif open_l2(question, worlds):
        measure = held_out_excess
    return Public(
        task,
        facts,
        known,
        worlds,
        PublicOnly(**alone._asdict()) if alone else None,
        untrained,
        question.judge_by or "error",
        measure,
    )


def _untrained(worlds: Worlds) -> Prediction:
    return predicted(worlds.excess(worlds.start(False)[:, None]), None)


def _with_public_model(question: Question, task: Task) -> Task:
    """The public records teach what they can: with the regulariser that predicts best what was left
    out of them, and none weaker than that of the clients' loss, if its optimum is sought."""
    if question.public_l2 or not isinstance(task.pool, Table):
        return task
    assert isinstance(task.clients, LinearClients)
    population = population_of(task.pool, task.clients.link, math.inf, None)
    weakest = 0.0 if question.l2 is None else task.clients.l2
    return replace(task, public_l2=max(population.public_l2, weakest))


def open_l2(question: Question, worlds: Worlds) -> bool:
    """Whether the regulariser is planned too: then no loss of clients is what all plans are to make
    small, and plans are compared by the loss on records that no client holds."""
    return question.l2 is None and worlds.kind == "real records"


def l2_of(public: Public) -> float | None:
    return public.facts.mu if isinstance(public.task.clients, LinearClients) else None
