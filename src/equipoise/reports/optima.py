"""Where the error is lowest: the best number of local steps, what is as plausible, and how it
follows the clip threshold."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.reports.study import Case, Cell, Study

GROUPS = {
    **dict.fromkeys(
        ("cifar10", "cifar10-narrow", "femnist", "femnist-narrow", "reddit"), "group 1"
    ),
    **dict.fromkeys(("fed-ixi", "hippocampus", "messidor", "deepdrid"), "group 2"),
}
"""The paper's groups of data sets, their smaller models and stand-ins included. Any other task is a
group of its own."""

Curve = tuple[str, float, float, int]
"""Algorithm, epsilon, clip norm, iterations: what is fixed along a curve over local steps."""


@dataclass(frozen=True)
class Optimum:
    """The cell with the lowest mean test error on a curve; of equal ones, that with the fewest
    local steps.

    Where trials differ in number, as after a search, what has fewer than three of them (or than the
    most) is no candidate: the lowest of many single trials is a lucky one. `plausible` are the
    local steps whose mean lies within one standard error of the best, the standard error being that
    of the difference over common trials. It is no confidence interval. What has fewer than two
    trials in common with the best is plausible: nothing speaks against it.
    """

    best: Cell
    plausible: tuple[int, ...]
    tried: tuple[int, ...]

    @property
    def edge(self) -> str:
        """Whether the optimum lies at an end of what was tried: then it may lie beyond, or nowhere
        in between."""
        if len(self.tried) == 1:
            return "only one tried"
        return {self.tried[0]: "fewest", self.tried[-1]: "most"}.get(self.best.local_steps, "")


def curves(case: Case) -> dict[Curve, list[Cell]]:
    """Cells along local steps. One with a diverged trial is no candidate, hence not there."""
    found: dict[Curve, list[Cell]] = defaultdict(list)
    for cell in sorted(case.cells, key=lambda cell: cell.local_steps):
        if not cell.diverged:
            found[cell.algorithm, cell.epsilon, cell.clip_norm, cell.iterations].append(cell)
    return dict(sorted(found.items()))


def optimum(cells: Sequence[Cell]) -> Optimum:
    enough = min(3, max(len(cell.trials) for cell in cells))
    best = min((cell for cell in cells if len(cell.trials) >= enough), key=by_error)
    plausible = [cell.local_steps for cell in cells if _as_good(cell, best)]
    return Optimum(
        best, tuple(sorted(plausible)), tuple(sorted(cell.local_steps for cell in cells))
    )


def by_error(cell: Cell) -> tuple[float, int, float]:
    """The order of cells: by mean error; of equal ones the fewest local steps come first, and the
    smallest clip norm."""
    return round(cell.mean, 12), cell.local_steps, cell.clip_norm


def _as_good(cell: Cell, best: Cell) -> bool:
    seeds = cell.errors.keys() & best.errors.keys()
    differences = [cell.errors[seed] - best.errors[seed] for seed in sorted(seeds)]
    if len(differences) < 2:
        return True
    return statistics.fmean(differences) <= statistics.stdev(differences) / math.sqrt(
        len(differences)
    )


def reference_iterations(case: Case) -> int:
    """The number of iterations at which most local steps were tried, with noise if there is any; of
    equals, the largest."""
    tried: dict[int, set[int]] = defaultdict(set)
    for cell in [cell for cell in case.cells if cell.private] or case.cells:
        tried[cell.iterations].add(cell.local_steps)
    return max(tried, key=lambda iterations: (len(tried[iterations]), iterations))


Along = dict[tuple[str, float, float], list[Cell]]
"""By algorithm, epsilon and clip norm: cells over the number of iterations."""


def along_iterations(case: Case) -> tuple[Along, str]:
    """Cells over the number of iterations, and what was done about local steps, for all of them
    alike.

    As in the paper local steps are fixed at the best of each budget. Where that leaves some budget
    fewer than three cells though it was run at more numbers of iterations, every number of
    iterations has its own best.
    """
    found: dict[tuple[str, float, float], dict[int, list[Cell]]] = defaultdict(dict)
    for (*key, iterations), cells in curves(case).items():
        found[tuple(key)][iterations] = cells  # type: ignore[index]
    fixed = {key: _at_best(by_total) for key, by_total in found.items()}
    if all(len(fixed[key]) >= min(3, len(by_total)) for key, by_total in found.items()):
        return fixed, "τ fixed at the best of each budget"
    best = {
        key: [optimum(cells).best for _, cells in sorted(by_total.items())]
        for key, by_total in found.items()
    }
    return best, "τ at its best for every T"


def _at_best(by_total: dict[int, list[Cell]]) -> list[Cell]:
    """Over iterations, with the local steps that are best where most were tried."""
    reference = max(by_total, key=lambda iterations: (len(by_total[iterations]), iterations))
    steps = optimum(by_total[reference]).best.local_steps
    return [
        cell for _, cells in sorted(by_total.items()) for cell in cells if cell.local_steps == steps
    ]


@dataclass(frozen=True)
class Fit:
    """Least squares of the mean optimal local steps on C, or on its square root. r2 is NaN where
    nothing varies."""

    r2: float
    slope: float
    intercept: float


@dataclass(frozen=True)
class Law:
    """Optimal local steps against the clip threshold, mean and variance over budgets and the tasks
    of a group.

    `r2_of_all` are those of the same two fits to all single optima instead of their means.
    """

    group: str
    tasks: tuple[str, ...]
    convention: str
    meaning: str
    """What epsilon means there, of one of the tasks."""
    algorithm: str
    clips: tuple[float, ...]
    optima: tuple[tuple[int, ...], ...]
    """For every clip norm the optimal local steps at every budget, in every task."""
    at_edge: int
    trials: int
    """The fewest that an optimum rests on."""

    @property
    def means(self) -> list[float]:
        return [statistics.fmean(found) for found in self.optima]

    @property
    def variances(self) -> list[float]:
        return [statistics.variance(found) if len(found) > 1 else math.nan for found in self.optima]

    @property
    def freedom(self) -> int:
        """Residual degrees of freedom of a line through the means."""
        return len(self.clips) - 2

    @property
    def linear(self) -> Fit:
        return fit(self.clips, self.means)

    @property
    def root(self) -> Fit:
        return fit([math.sqrt(clip) for clip in self.clips], self.means)

    @property
    def r2_of_all(self) -> tuple[float, float]:
        pairs = [
            (clip, steps)
            for clip, found in zip(self.clips, self.optima, strict=True)
            for steps in found
        ]
        clips, steps = [clip for clip, _ in pairs], [steps for _, steps in pairs]
        return fit(clips, steps).r2, fit([math.sqrt(clip) for clip in clips], steps).r2


def fit(x: Sequence[float], y: Sequence[float]) -> Fit:
    x_, y_ = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(set(x)) < 2:
        return Fit(math.nan, math.nan, math.nan)
    slope, intercept = np.polyfit(x_, y_, 1)
    spread = float(((y_ - y_.mean()) ** 2).sum())
    left = float(((y_ - slope * x_ - intercept) ** 2).sum())
    return Fit(1 - left / spread if spread > 1e-12 else math.nan, float(slope), float(intercept))


def r2(found: Fit) -> str:
    return "undefined" if math.isnan(found.r2) else f"{found.r2:.3f}"


def laws(study: Study) -> list[Law]:
    """One law per group of tasks, meaning of epsilon, convention and algorithm, wherever there are
    at least two clip norms.

    Only budgets of a task that were swept at every clip norm of its group count, so that means are
    over the same; if there are none, all count.
    """
    found: dict[tuple[str, ...], dict[float, dict[tuple[str, float], Optimum]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    samples = {(case.privacy or "", case.convention): case for case in reversed(study.cases)}
    for case in study.cases:
        iterations = reference_iterations(case)
        for (algorithm, epsilon, clip, T), cells in curves(case).items():
            if T == iterations and epsilon < math.inf and clip < math.inf and len(cells) > 1:
                group = GROUPS.get(case.task, case.task)
                found[group, case.privacy or "", case.convention, algorithm][clip][
                    case.task, epsilon
                ] = optimum(cells)
    return [
        _law(group, samples[privacy, convention], algorithm, by_clip)
        for (group, privacy, convention, algorithm), by_clip in sorted(found.items())
        if len(by_clip) > 1
    ]


def _law(
    group: str, sample: Case, algorithm: str, by_clip: dict[float, dict[tuple[str, float], Optimum]]
) -> Law:
    common = set.intersection(*(set(optima) for optima in by_clip.values()))
    counted = {
        clip: [found for key, found in sorted(optima.items()) if key in common or not common]
        for clip, optima in by_clip.items()
    }
    tasks = sorted(
        {
            task
            for optima in by_clip.values()
            for task, epsilon in optima
            if (task, epsilon) in common or not common
        }
    )
    clips = sorted(by_clip)
    steps = tuple(tuple(found.best.local_steps for found in counted[clip]) for clip in clips)
    every = [found for optima in counted.values() for found in optima]
    edge, trials = (
        sum(bool(found.edge) for found in every),
        min(len(found.best.trials) for found in every),
    )
    return Law(
        group,
        tuple(tasks),
        sample.convention,
        sample.meaning,
        algorithm,
        tuple(clips),
        steps,
        edge,
        trials,
    )
