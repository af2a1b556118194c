"""The search for a plan: from plans far apart to the neighbours of the best, until these are no
better, with more worlds and seeds at every stage.

Plans are compared by their regret: how many times as much a plan leaves in a world as the plan
that is best there, in the mean over worlds; a floor is added to both, so that no world counts
beyond measure where nearly nothing is left. Where several kinds of skew are possible, the largest
mean counts: the plan is good whatever the skew is.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from equipoise.planning.candidates import Candidate
from equipoise.planning.problems import Line, PlanningProblem, has_noise
from equipoise.planning.trial import Trial, try_all
from equipoise.planning.worlds import Worlds

BEAM = 3  # plans of a line whose neighbours are tried
HOPELESS = 1.5  # times the best: lines that leave more are not followed
BETTER = 0.995  # less than this share of the best so far is worth another round of the search
MOST_TURNS = 12
FLOOR = 1.0  # of the mean over worlds of what the best plans leave
RESOLUTION = 1e-7
THRIFT = 0.012  # twice the local steps must leave 0.8 per cent less to be worth while


class Stage(NamedTuple):
    worlds: int
    seeds: range


class Effort(NamedTuple):
    """How many worlds and seeds the stages of a search take, and how many numbers may be gone
    through before the last."""

    begin: Stage
    follow: Stage
    end: Stage
    most: float = 5e9


def effort_of(worlds: Worlds) -> Effort:
    """More work for larger tables, up to a few seconds' worth."""
    most = min(2e10, max(5e9, 2e4 * worlds.width))
    several = len(worlds.skews) > 1
    count = len(worlds.rows)
    return Effort(
        Stage(min(4, count), range(1)),
        Stage(min(12 if several else 8, count), range(1 if several else 2)),
        Stage(count, range(4)),
        most,
    )


class Purse:
    """What is left of the effort."""

    def __init__(self, left: float) -> None:
        self.left = left

    def affordable(
        self, worlds: Worlds, candidates: Iterable[Candidate], stage: Stage
    ) -> list[Candidate]:
        """The candidates that can still be paid for, those with few local steps first."""
        each, bought = len(worlds.rows) * len(stage.seeds) * worlds.width, []
        for candidate in sorted(candidates, key=lambda c: c.iterations):
            cost = each * candidate.iterations
            if cost > self.left:
                break
            self.left -= cost
            bought.append(candidate)
        return bought


Measure = Callable[[Trial, Worlds], torch.Tensor]
"""What is to be small, [worlds]: means over the seeds."""


def mean_excess(trial: Trial, worlds: Worlds) -> torch.Tensor:
    """Single precision may put what is next to nothing below zero."""
    return trial.excess.mean(1).clamp_min(RESOLUTION)


@dataclass
class Searched:
    """Trials in the same worlds, and how plans compare there."""

    worlds: Worlds
    measure: Measure
    trials: list[Trial]
    values: list[torch.Tensor]

    def add(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            self.trials.append(trial)
            self.values.append(self.measure(trial, self.worlds))

    def regrets(self, thrift: float = 0.0) -> list[float]:
        """Of every trial, whose local steps may have a price."""
        steps = torch.tensor([float(trial.candidate.iterations) for trial in self.trials])
        values = torch.stack(self.values)
        least = values.amin(0)
        floor = (FLOOR * least.mean()).clamp_min(RESOLUTION)
        regrets = (values * steps.pow(thrift)[:, None] + floor) / (least + floor)
        by_skew = torch.stack([regrets[:, places].mean(1) for places in self.worlds.skews])
        largest: list[float] = by_skew.amax(0).tolist()
        return largest

    def scores(self) -> list[float]:
        """The regret of every trial, and a little for every local step."""
        return self.regrets(THRIFT)

    def best_of(self, line: Line) -> list[Trial]:
        """The best trial of a line, if it has any."""
        return self.best(1, _in(line))

    def best(self, count: int, among: Callable[[Candidate], bool] = lambda c: True) -> list[Trial]:
        scores = self.scores()
        order = sorted(range(len(scores)), key=scores.__getitem__)
        return [self.trials[i] for i in order if among(self.trials[i].candidate)][:count]

    def score(self, trial: Trial) -> float:
        return self.scores()[self.trials.index(trial)]


def search(
    problem: PlanningProblem,
    effort: Effort,
    measure: Measure = mean_excess,
    progress: Callable[[float], None] = lambda share: None,
) -> Searched:
    """All that was tried in the last stage: the best of every line among them."""
    lines = problem.lines()
    begun = _tried(problem, effort.begin, measure)
    purse = Purse(effort.most / 4)
    leaders = [line for line in lines if line.algorithm == _leader(lines, line).algorithm]
    every = [candidate for line in leaders for candidate in problem.beginning(line)]
    begun.add(_try(problem, begun, every, effort.begin, purse))
    if not begun.trials:
        problem.level(every[0])  # says why not
    purse.left += 3 * effort.most / 4
    progress(0.25)
    followed = _tried(problem, effort.follow, measure)
    first: list[Candidate] = []
    for line in lines:
        leader = _leader(lines, line)
        best = begun.best(2 * BEAM, _in(leader))
        first += [_moved(trial.candidate, line) for trial in best]
    _follow(problem, followed, lines, first, effort.follow, purse)
    progress(0.8)
    ended = _tried(problem, effort.end, measure)
    final = {t.candidate.name: t.candidate for t in followed.best(4)}
    for line in lines:
        for trial in followed.best_of(line):
            final.setdefault(trial.candidate.name, trial.candidate)
    ended.add(_try(problem, ended, final.values(), effort.end, Purse(math.inf)))
    progress(1.0)
    return ended


def _leader(lines: Sequence[Line], line: Line) -> Line:
    """The first line with the same start and place for the noise: others begin where it is
    good."""
    return next(other for other in lines if (other.place, other.warm) == (line.place, line.warm))


def _moved(candidate: Candidate, line: Line) -> Candidate:
    return replace(candidate, algorithm=line.algorithm, options=line.options)


def _in(line: Line) -> Callable[[Candidate], bool]:
    of_line = line.algorithm, line.place.noise_in, line.warm
    return lambda c: (c.algorithm, c.noise_in, c.warm) == of_line


def _tried(problem: PlanningProblem, stage: Stage, measure: Measure) -> Searched:
    return Searched(problem.worlds.first(stage.worlds), measure, [], [])


def _try(
    problem: PlanningProblem,
    tried: Searched,
    candidates: Iterable[Candidate],
    stage: Stage,
    purse: Purse,
) -> list[Trial]:
    possible = [c for c in candidates if has_noise(problem, c)]
    bought = purse.affordable(tried.worlds, possible, stage)
    return try_all(tried.worlds, bought, problem.level, stage.seeds)


def _follow(
    problem: PlanningProblem,
    tried: Searched,
    lines: list[Line],
    new: list[Candidate],
    stage: Stage,
    purse: Purse,
) -> None:
    """Neighbours of the best of every line, until they are no better."""
    seen: set[tuple[object, ...]] = set()
    starts = {line.warm for line in lines}
    least, hopeless = dict.fromkeys(starts, math.inf), HOPELESS
    for _ in range(MOST_TURNS):
        fresh = {c.name: c for c in new if c.name not in seen}
        if not fresh:
            break
        seen.update(fresh)
        trials = _try(problem, tried, fresh.values(), stage, purse)
        if not trials:
            break
        tried.add(trials)
        new = []
        for warm in starts:
            new += _steps(problem, tried, [ln for ln in lines if ln.warm == warm], least, hopeless)
        hopeless = 1 + (hopeless - 1) / 2


def _steps(
    problem: PlanningProblem,
    tried: Searched,
    lines: list[Line],
    least: dict[bool, float],
    hopeless: float,
) -> list[Candidate]:
    """Neighbours of the best plans of lines with one start, if their best is better than before."""
    warm = lines[0].warm
    leaders = tried.best(1, lambda c: c.warm == warm)
    if not leaders:
        return []
    (best,) = leaders
    thrift = best.candidate.iterations**THRIFT
    value = float(tried.measure(best, tried.worlds).mean()) * thrift
    if value > BETTER * least[warm]:
        return []
    least[warm] = value
    (first,) = tried.best(1)
    near, beam = [], BEAM
    if tried.score(best) > HOPELESS * tried.score(first):  # the other start is far better
        lines, beam = [line for line in lines if _in(line)(best.candidate)], 1
    for line in lines:
        leaders = tried.best(beam, _in(line))
        if leaders and tried.score(leaders[0]) <= hopeless * tried.score(best):
            for leader in leaders:
                near += problem.neighbours(replace(leader.candidate, returns="last"))
    return near
