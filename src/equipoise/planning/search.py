"""The search for a plan: from plans far apart to the neighbours of the best, until these are no
better, with more worlds and seeds at every stage.

Plans are compared by their mean excess loss. Where several kinds of skew are possible, by the
largest regret: how much more a plan leaves than the best plan for that skew would.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from equipoise.planning.candidates import Candidate
from equipoise.planning.problems import Line, PlanningProblem
from equipoise.planning.trial import Trial, try_all
from equipoise.planning.worlds import Worlds

BEAM = 3  # plans of a line whose neighbours are tried
HOPELESS = 1.5  # times the best: lines that leave more are not followed
BETTER = 0.995  # less than this share of the best so far is worth another round of the search
MOST_TURNS = 12


class Stage(NamedTuple):
    worlds: int
    seeds: range


class Effort(NamedTuple):
    """How many worlds and seeds the stages of a search take."""

    begin: Stage
    follow: Stage
    end: Stage


Measure = Callable[[Trial, Worlds], torch.Tensor]
"""What is to be small, [worlds]: means over the seeds."""


def mean_excess(trial: Trial, worlds: Worlds) -> torch.Tensor:
    return trial.excess.mean(1)


@dataclass
class Tried:
    """Trials in the same worlds, and how plans compare there."""

    worlds: Worlds
    measure: Measure
    trials: list[Trial]
    values: list[list[float]]

    def add(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            by_world = self.measure(trial, self.worlds)
            self.trials.append(trial)
            self.values.append([float(by_world[places].mean()) for places in self.worlds.skews])

    def scores(self) -> list[float]:
        """The largest regret of every trial: 1 is the best that was tried, for every skew."""
        least = [max(min(column), 1e-12) for column in zip(*self.values, strict=True)]
        return [
            max(value / best for value, best in zip(row, least, strict=True))
            for row in self.values
        ]

    def best(self, count: int, among: Callable[[Candidate], bool] = lambda c: True) -> list[Trial]:
        scores = self.scores()
        order = sorted(range(len(scores)), key=scores.__getitem__)
        return [self.trials[i] for i in order if among(self.trials[i].candidate)][:count]

    def score(self, trial: Trial) -> float:
        return self.scores()[self.trials.index(trial)]


def search(problem: PlanningProblem, effort: Effort, measure: Measure = mean_excess) -> Tried:
    """All that was tried in the last stage: the best of every line among them."""
    lines = problem.lines()
    begun = _tried(problem, effort.begin, measure)
    leaders = [line for line in lines if line.algorithm == _leader(lines, line).algorithm]
    for line in leaders:
        begun.add(_try(problem, begun, problem.beginning(line), effort.begin))
    followed = _tried(problem, effort.follow, measure)
    first: list[Candidate] = []
    for line in lines:
        leader = _leader(lines, line)
        best = begun.best(2 * BEAM, lambda c, leader=leader: _of(c, leader))
        first += [_moved(trial.candidate, line) for trial in best]
    _follow(problem, followed, lines, first, effort.follow)
    ended = _tried(problem, effort.end, measure)
    final = {_name(t.candidate): t.candidate for t in followed.best(4)}
    for line in lines:
        for trial in followed.best(1, lambda c, line=line: _of(c, line)):
            final.setdefault(_name(trial.candidate), trial.candidate)
    ended.add(_try(problem, ended, list(final.values()), effort.end))
    return ended


def _leader(lines: Sequence[Line], line: Line) -> Line:
    """The first line with the same start and place for the noise: others begin where it is
    good."""
    return next(other for other in lines if (other.place, other.warm) == (line.place, line.warm))


def _moved(candidate: Candidate, line: Line) -> Candidate:
    return replace(candidate, algorithm=line.algorithm, options=line.options)


def _of(candidate: Candidate, line: Line) -> bool:
    return (candidate.algorithm, candidate.noise_in, candidate.warm) == (
        line.algorithm,
        line.place.noise_in,
        line.warm,
    )


def _tried(problem: PlanningProblem, stage: Stage, measure: Measure) -> Tried:
    return Tried(problem.worlds.first(stage.worlds), measure, [], [])


def _try(
    problem: PlanningProblem, tried: Tried, candidates: list[Candidate], stage: Stage
) -> list[Trial]:
    return try_all(tried.worlds, candidates, problem.level, stage.seeds)


def _name(candidate: Candidate) -> tuple[object, ...]:
    """What tells plans apart, whatever they return."""
    return (
        candidate.algorithm,
        candidate.noise_in,
        candidate.warm,
        candidate.local_steps,
        candidate.rounds,
        *(float(f"{value:.6g}") for value in (candidate.eta, candidate.clip, candidate.gamma)),
    )


def _follow(
    problem: PlanningProblem,
    tried: Tried,
    lines: list[Line],
    new: list[Candidate],
    stage: Stage,
) -> None:
    """Neighbours of the best of every line, until they are no better."""
    seen: set[tuple[object, ...]] = set()
    least = math.inf
    for _ in range(MOST_TURNS):
        fresh = {_name(c): c for c in new if _name(c) not in seen}
        if not fresh:
            break
        seen.update(fresh)
        tried.add(_try(problem, tried, list(fresh.values()), stage))
        scores = tried.scores()
        best = min(
            sum(value) for score, value in zip(scores, tried.values, strict=True) if score == min(scores)
        )
        if best > BETTER * least:
            break
        least = best
        new = []
        for line in lines:
            leaders = tried.best(BEAM, lambda c, line=line: _of(c, line))
            if leaders and tried.score(leaders[0]) <= HOPELESS:
                for leader in leaders:
                    new += problem.neighbours(replace(leader.candidate, returns="last"))
