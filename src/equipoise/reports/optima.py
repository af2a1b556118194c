"""Where the error is lowest: the best number of local steps, which others are as plausible, and how
it follows the clip threshold."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from scipy import stats

from equipoise.reports.study import Case, Cell, Study


class Curve(NamedTuple):
    """What is fixed along a curve over local steps."""

    algorithm: str
    epsilon: float
    clip: float
    iterations: int


class Line(NamedTuple):
    """What is fixed along a curve over iterations."""

    algorithm: str
    epsilon: float
    clip: float


@dataclass(frozen=True)
class Optimum:
    """The cell with the lowest mean test error on a curve; of equal ones, that with the fewest
    local steps.

    Where trials differ in number, as after a search, cells with fewer than three of them (or than
    the most that any has) are no candidates: the lowest of many single trials is a lucky one.
    `plausible` are the local steps whose mean lies within one standard error of the best, the
    standard error being that of the difference over common trials. It is no confidence interval.
    What has fewer than two trials in common with the best is plausible: nothing speaks against it.
    """

    best: Cell
    plausible: tuple[int, ...]
    tried: tuple[int, ...]

    @property
    def edge(self) -> str:
        """Whether the optimum lies at an end of what was tried: then the true one may lie
        beyond."""
        if len(self.tried) == 1:
            return "only one tried"
        return {self.tried[0]: "fewest", self.tried[-1]: "most"}.get(self.best.local_steps, "")


def curves(case: Case, iterations: int | None = None) -> dict[Curve, list[Cell]]:
    """Cells along local steps, of one number of iterations if it is given. A cell with a diverged
    trial is no candidate, hence not there."""
    cells_by_curve: dict[Curve, list[Cell]] = defaultdict(list)
    for cell in sorted(case.cells, key=lambda cell: cell.local_steps):
        if not cell.diverged and iterations in (None, cell.iterations):
            curve = Curve(cell.algorithm, cell.epsilon, cell.clip, cell.iterations)
            cells_by_curve[curve].append(cell)
    return dict(sorted(cells_by_curve.items()))


def diverged_steps(case: Case, iterations: int) -> dict[Curve, list[int]]:
    """Of every curve the local steps with which a trial diverged."""
    by_curve: dict[Curve, list[int]] = defaultdict(list)
    for place in sorted(case.diverged):
        if place.iterations == iterations:
            by_curve[Curve(*place[:4])].append(place.local_steps)
    return dict(by_curve)


def optimum(cells: Sequence[Cell]) -> Optimum:
    enough = min(3, max(len(cell.trials) for cell in cells))
    best = min((cell for cell in cells if len(cell.trials) >= enough), key=by_error)
    plausible = [cell for cell in cells if _as_good(cell, best)]
    return Optimum(best, _local_steps(plausible), _local_steps(cells))


def _local_steps(cells: Sequence[Cell]) -> tuple[int, ...]:
    return tuple(sorted(cell.local_steps for cell in cells))


def by_error(cell: Cell) -> tuple[float, int, float]:
    """The order of cells: by mean error; of equal ones the fewest local steps come first, and the
    smallest clip."""
    return round(cell.mean, 12), cell.local_steps, cell.clip


def _as_good(cell: Cell, best: Cell) -> bool:
    seeds = sorted(cell.errors.keys() & best.errors.keys())
    differences = [cell.errors[seed] - best.errors[seed] for seed in seeds]
    if len(differences) < 2:
        return True
    # a difference in one trial alone is exactly one standard error: rounding must not decide
    return statistics.fmean(differences) <= float(stats.sem(differences)) + 1e-12


def reference_iterations(case: Case) -> int:
    """The number of iterations at which most local steps were tried, with noise if there is any; of
    equals, the largest."""
    tried: dict[int, set[int]] = defaultdict(set)
    for cell in case.private or case.cells:
        tried[cell.iterations].add(cell.local_steps)
    return max(tried, key=lambda iterations: (len(tried[iterations]), iterations))


FIXED, FREE = "τ fixed at the best of each budget", "τ at its best for every T"


def along_iterations(case: Case) -> tuple[dict[Line, list[Cell]], str]:
    """Cells over the number of iterations, and what was done about local steps, for all of them
    alike.

    As in the paper local steps are fixed at the best of each budget. Where that leaves some budget
    fewer than three cells though it was run at more numbers of iterations, every number of
    iterations has its own best.
    """
    by_line: dict[Line, dict[int, list[Cell]]] = defaultdict(dict)
    for curve, cells in curves(case).items():
        by_line[Line(*curve[:3])][curve.iterations] = cells
    fixed = {line: _at_best(by_total) for line, by_total in by_line.items()}
    if all(len(fixed[line]) >= min(3, len(by_total)) for line, by_total in by_line.items()):
        return fixed, FIXED
    return {line: _best_of_each(by_total) for line, by_total in by_line.items()}, FREE


def _best_of_each(by_total: dict[int, list[Cell]]) -> list[Cell]:
    return [optimum(cells).best for _, cells in sorted(by_total.items())]


def _at_best(by_total: dict[int, list[Cell]]) -> list[Cell]:
    """Over iterations, with the local steps that are best where most were tried."""
    reference = max(by_total, key=lambda iterations: (len(by_total[iterations]), iterations))
    steps = optimum(by_total[reference]).best.local_steps
    return [
        cell for _, cells in sorted(by_total.items()) for cell in cells if cell.local_steps == steps
    ]


def diverged_totals(case: Case, line: Line, cells: Sequence[Cell]) -> list[int]:
    """The numbers of iterations at which a curve over them has no cell because it diverged."""
    drawn, steps = {cell.iterations for cell in cells}, {cell.local_steps for cell in cells}
    lost = [place for place in case.diverged if Line(*place[:3]) == line]
    return sorted({p.iterations for p in lost if p.local_steps in steps} - drawn)


MIN_POINTS = 3
"""Distinct clip thresholds that a fit needs: a line always fits two points, and shows nothing."""
NO_FIT = f"fewer than {MIN_POINTS} clip thresholds: no fit"


@dataclass(frozen=True)
class Fit:
    """Least squares of the mean optimal local steps on C, or on its square root. r2 is NaN where
    nothing varies."""

    r2: float
    slope: float
    intercept: float

    def __str__(self) -> str:
        return "undefined" if math.isnan(self.r2) else f"{self.r2:.3f}"


def fit(x: Sequence[float], y: Sequence[float]) -> Fit | None:
    """A line through points, unless x has too few distinct values for one to mean anything."""
    if len(set(x)) < MIN_POINTS:
        return None
    line = stats.linregress(x, y)
    r2 = float(line.rvalue**2) if max(y) - min(y) > 1e-6 else math.nan
    return Fit(r2, float(line.slope), float(line.intercept))


class Fits(NamedTuple):
    """The same points against C, and against its square root."""

    linear: Fit
    root: Fit


@dataclass(frozen=True)
class Law:
    """Optimal local steps against the clip threshold, mean and variance over budgets and the tasks
    of a group."""

    group: str
    tasks: tuple[str, ...]
    convention: str
    privacy: str
    """All settings that say what epsilon means, as JSON."""
    meanings: Mapping[str, str]
    """The same in words, by task."""
    algorithm: str
    clips: tuple[float, ...]
    optima: tuple[tuple[int, ...], ...]
    """For every clip the optimal local steps at every budget, in every task."""
    at_edge: int
    trials: int
    """The fewest that an optimum rests on."""

    @property
    def means(self) -> list[float]:
        return [statistics.fmean(steps) for steps in self.optima]

    @property
    def variances(self) -> list[float]:
        return [statistics.variance(steps) if len(steps) > 1 else math.nan for steps in self.optima]

    @property
    def count(self) -> int:
        """How many optima it rests on."""
        return sum(len(steps) for steps in self.optima)

    @property
    def freedom(self) -> int:
        """Residual degrees of freedom of a line through the means."""
        return len(self.clips) - 2

    @property
    def fits(self) -> Fits | None:
        """Through the means, one point for each clip; None where these are too few."""
        return _fits(self.clips, self.means)

    @property
    def fits_of_all(self) -> Fits | None:
        """Through all single optima instead of their means."""
        clips: list[float] = []
        optima: list[int] = []
        for clip, steps in zip(self.clips, self.optima, strict=True):
            clips += [clip] * len(steps)
            optima += steps
        return _fits(clips, optima)


def _fits(clips: Sequence[float], steps: Sequence[float]) -> Fits | None:
    linear, root = fit(clips, steps), fit([math.sqrt(clip) for clip in clips], steps)
    return Fits(linear, root) if linear and root else None


class _Group(NamedTuple):
    """What the optima of a law have in common."""

    name: str
    privacy: str
    convention: str
    algorithm: str


class _Place(NamedTuple):
    """What an optimum of a law belongs to, at one clip."""

    task: str
    epsilon: float


_ByClip = dict[float, dict[_Place, Optimum]]


def laws(study: Study, groups: Mapping[str, str]) -> list[Law]:
    """One law per group of tasks, meaning of epsilon, convention and algorithm, wherever there are
    at least two clips. `groups` names the group of a task; any other is a group of its own.

    Only budgets of a task that were swept at every clip of its group count, so that means are
    over the same; if there are none, all count.
    """
    optima: dict[_Group, _ByClip] = defaultdict(lambda: defaultdict(dict))
    for case in study.cases:
        for curve, best in _private_optima(case):
            name = groups.get(case.task, case.task)
            group = _Group(name, case.privacy or "", case.convention, curve.algorithm)
            optima[group][curve.clip][_Place(case.task, curve.epsilon)] = best
    meanings = {(c.privacy or "", c.convention, c.task): c.meaning for c in study.cases}
    return [
        _law(group, meanings, by_clip)
        for group, by_clip in sorted(optima.items(), key=lambda item: item[0])
        if len(by_clip) > 1
    ]


def _private_optima(case: Case) -> Iterator[tuple[Curve, Optimum]]:
    """Of every curve with noise and clip, at the reference number of iterations."""
    for curve, cells in curves(case, reference_iterations(case)).items():
        if max(curve.epsilon, curve.clip) < math.inf and len(cells) > 1:
            yield curve, optimum(cells)


def _law(group: _Group, meanings: Mapping[tuple[str, str, str], str], by_clip: _ByClip) -> Law:
    common = set.intersection(*map(set, by_clip.values()))
    clips = sorted(by_clip)
    counted = [_counted(by_clip[clip], common) for clip in clips]
    every = [*chain.from_iterable(optima.values() for optima in counted)]
    tasks = sorted({place.task for place in chain.from_iterable(counted)})
    return Law(
        group.name,
        tuple(tasks),
        group.convention,
        group.privacy,
        {task: meanings[group.privacy, group.convention, task] for task in tasks},
        group.algorithm,
        tuple(clips),
        tuple(_steps(optima.values()) for optima in counted),
        sum(bool(best.edge) for best in every),
        min(len(best.best.trials) for best in every),
    )


def _counted(optima: dict[_Place, Optimum], common: set[_Place]) -> dict[_Place, Optimum]:
    """Those that all clips have; all, if there are none."""
    return {place: optima[place] for place in sorted(common or optima)}


def _steps(optima: Iterable[Optimum]) -> tuple[int, ...]:
    return tuple(best.best.local_steps for best in optima)
