"""The best number of local steps for every budget and clip, with a fraction of the runs of the
whole grid.

The error is a smooth surface over log tau, the noise C / epsilon, log C and the algorithm:
neighbouring budgets have neighbouring optima, and in one cell it is nearly unimodal. So what a run
tells about its neighbours is used: a Gaussian process is fitted to the logarithms of all errors so
far. The cells whose answer is least sure run next, where their error may be lowest; a tau that
looks best twice gets its next trial. Every run is an ordinary run of the grid, in the store.
"""

import math
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.algorithms.catalogue import ALGORITHMS, algorithm_spec
from equipoise.errors import require
from equipoise.settings import Settings
from equipoise.sweeps.grid import Grid
from equipoise.sweeps.stacks import key_of, resolved, task_for
from equipoise.sweeps.store import Store
from equipoise.sweeps.sweep import Progress, sweep
from equipoise.sweeps.workers import Workers, at_work

SHARE = 0.15  # of the grid's runs
KAPPA = 1.0  # standard deviations of hope: where to run next
CAUTION = 0.5  # standard deviations of doubt: what to answer
DRAWS = 2000  # of the surface, to say how sure an answer is
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, modulo 1, are spread evenly

Array = NDArray[np.float64]


@dataclass
class Cell:
    """All runs at one budget and clip: `trials[i]` has the i-th tau, a run for each seed;
    `errors[i]` what they gave so far, infinity for one that failed."""

    trials: list[tuple[Settings, ...]]
    errors: list[list[float]] = field(default_factory=list)

    @property
    def sample(self) -> Settings:
        return self.trials[0][0]

    @property
    def private(self) -> bool:
        return self.sample.epsilon < math.inf

    @property
    def runs(self) -> int:
        return sum(len(errors) for errors in self.errors)

    @property
    def open(self) -> list[int]:
        """The tau that may be the answer: no run of theirs failed."""
        return [i for i, errors in enumerate(self.errors) if math.inf not in errors]


class Found(NamedTuple):
    """The best local steps of a cell, and how sure that is.

    predicted     the error that the surface says there, as the mean over all trials, run or not
    probability   that no other local steps have a lower error, by the surface
    regret        by how much the best of the others would be better, on average
    runs, of      how many runs it took, of how many
    """

    settings: Settings
    local_steps: int
    predicted: float
    probability: float
    regret: float
    runs: int
    of: int


def search(
    grid: Grid,
    store: Path,
    workers: int | Workers = 1,
    retry: bool = False,
    share: float = SHARE,
) -> Iterator[tuple[Progress, list[Found]]]:
    """Search all cells of the grid; yields where it stands, and what is found so far.

    Every cell is run, even if that takes more than the share. One whose runs all failed has no
    answer.
    """
    _check_measured(grid)
    chains = _chains(grid)
    limits = [max(int(share * _size(cells)), len(_first(cells))) for cells in chains]
    clock = _Clock(sum(limits))
    with at_work(workers) as pool:
        while wanted := _next_of_all(chains, limits):
            runs = [cell.trials[i][len(cell.errors[i])] for cell, i in wanted]
            steps = sweep(grid.name, [(run,) for run in runs], store, pool, retry)
            before = sum(cell.runs for cells in chains for cell in cells)
            for progress in clock.since(before, steps):
                yield progress, []
            for (cell, i), error in zip(wanted, _errors(runs, store), strict=True):
                cell.errors[i].append(error)
    answers = [answer for cells in chains for answer in _answers(cells)]
    yield Progress(clock.total, 0, 0, clock.total, 0.0), answers


def _check_measured(grid: Grid) -> None:
    for settings in grid.settings:
        require(
            task_for(settings).measure is not None,
            f"task={settings.task} has no test records: there is no error to search by",
        )


class _Clock:
    """How long a search of `total` runs will still take. What is in the store already takes no
    time."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._start, self._known = time.monotonic(), 0

    def since(self, before: int, steps: Iterable[Progress]) -> Iterator[Progress]:
        """The progress of a sweep that follows `before` runs, as progress of the search."""
        kept = None
        for progress in steps:
            kept = progress.done if kept is None else kept
            done = before + progress.done
            yield Progress(
                done, progress.failed, progress.running, self.total, self._left(done, kept)
            )
        self._known += kept or 0

    def _left(self, done: int, kept: int) -> float | None:
        computed = done - self._known - kept
        if not computed:
            return None
        return (time.monotonic() - self._start) / computed * (self.total - done)


def _errors(runs: list[Settings], store: Path) -> list[float]:
    """What these runs gave; infinity for one that failed."""
    with Store(store) as kept:
        rows = {row["key"]: row for row in kept.table("key, test_error, failed")}
    return [_error(rows.get(key_of(resolved(run)))) for run in runs]


def _error(row: Any) -> float:
    if row is None or row["failed"] or row["test_error"] is None:
        return math.inf
    return float(row["test_error"])


def _next_of_all(chains: list[list[Cell]], limits: list[int]) -> list[tuple[Cell, int]]:
    return [
        place for cells, most in zip(chains, limits, strict=True) for place in _next(cells, most)
    ]


def _size(cells: list[Cell]) -> int:
    return sum(len(trials) for cell in cells for trials in cell.trials)


def _chains(grid: Grid) -> list[list[Cell]]:
    """The cells that lie on one surface: they differ in budget, clip and algorithm (of one group)
    only. Without noise each is alone: drift decides there, which is where the algorithms differ."""
    cells: dict[str, Cell] = {}
    for trials in grid.cells:
        require(
            trials[0].schedule == "periodic",
            f"schedule={trials[0].schedule} with a search, which is for a fixed number of local "
            "steps: sweep the whole grid",
        )
        cells.setdefault(
            trials[0].model_copy(update={"local_steps": None}).model_dump_json(), Cell([])
        ).trials.append(trials)
    chains: dict[str, list[Cell]] = {}
    for cell in cells.values():
        cell.trials.sort(key=lambda trials: trials[0].local_steps or 1)
        cell.errors = [[] for _ in cell.trials]
        free = {"epsilon": 1.0, "clip": 1.0, "algorithm": _first_of_group(cell.sample.algorithm)}
        free = free if cell.private else {}
        chain = chains.setdefault(
            cell.sample.model_copy(update={"local_steps": None, **free}).model_dump_json(), []
        )
        cell.trials = [_begun_at(trials, len(chain) + i) for i, trials in enumerate(cell.trials)]
        chain.append(cell)
    return list(chains.values())


def _first_of_group(algorithm: str) -> str:
    """The first listed of the algorithms that can be trained in one computation with this one: they
    do the same in a single round."""
    group = algorithm_spec(algorithm).group
    return next(name for name, spec in ALGORITHMS.items() if spec.group == group)


def _begun_at(trials: tuple[Settings, ...], first: int) -> tuple[Settings, ...]:
    """The trials in another order: neighbours begin with different seeds, so that no seed decides
    alone."""
    return tuple(trials[(first + k) % len(trials)] for k in range(len(trials)))


def _next(cells: list[Cell], most: int) -> list[tuple[Cell, int]]:
    """The next runs: first some spread over all tau, then in the half of the cells whose answer is
    least sure."""
    if not any(cell.runs for cell in cells):
        return _first(cells)
    left = most - sum(cell.runs for cell in cells)
    if left <= 0 or not _finite(cells):
        return []
    surface, wanted = _Surface(cells), []
    for number, cell in enumerate(cells):
        free = [i for i in cell.open if len(cell.errors[i]) < len(cell.trials[i])]
        if free:
            mean, covariance = surface.at(number)
            hope = mean - KAPPA * _deviation(covariance)
            wanted.append(
                (_answer(cell, mean, covariance).probability, cell, min(free, key=hope.__getitem__))
            )
    wanted.sort(key=itemgetter(0))
    return [(cell, i) for _, cell, i in wanted[: min(left, math.ceil(len(wanted) / 2))]]


def _first(cells: list[Cell]) -> list[tuple[Cell, int]]:
    """One tau of each cell, another for each, and of each budget and clip the largest: a single
    round is often best for small budgets, and algorithms of one surface do the same in it."""
    first, single_rounds = [], set()
    for number, cell in enumerate(cells):
        last, budget = len(cell.trials) - 1, (cell.sample.epsilon, cell.sample.clip)
        chosen = {
            max(0, min(int(number * GOLDEN % 1 * last), last - 1)),
            *({last} if budget not in single_rounds else ()),
        }
        single_rounds.add(budget)
        first += [(cell, i) for i in sorted(chosen)]
    return first


def _finite(cells: list[Cell]) -> list[float]:
    return [
        error for cell in cells for errors in cell.errors for error in errors if error < math.inf
    ]


def _logarithms(errors: list[float], finite: list[float]) -> Array:
    """What failed is no better than the worst; an error of zero has no logarithm, so half the least
    positive stands for it."""
    worst, least = max(finite), min((error for error in finite if error > 0), default=1.0) / 2
    return np.asarray(np.log([max(min(error, worst), least) for error in errors]))


class _Surface:
    """A Gaussian process through the logarithms of all errors of a chain of cells, f(point) +
    g(point, seed) + white noise.

    f, the mean over all seeds, is smooth. What a seed adds, g, has its own lengths: runs of a trial
    share their noise, so that accidents repeat at other budgets and with other algorithms, but less
    at another tau.
    """

    def __init__(self, cells: list[Cell]) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        self._points = _coordinates(cells)
        self._seeds = [
            sorted({run.seed for trials in cell.trials for run in trials}) for cell in cells
        ]
        seen = [
            (np.append(self._points[number][i], run.seed), error)
            for number, cell in enumerate(cells)
            for i, errors in enumerate(cell.errors)
            for run, error in zip(cell.trials[i], errors, strict=False)
        ]
        y = _logarithms([error for _, error in seen], _finite(cells))
        any_seed, one_seed = (1e9, 1e9), (1e-3, 1e-3)  # all alike, or each by itself
        f = Matern([0.5, 0.5, 1.0, 1.0, any_seed[0]], [*[(0.3, 20.0)] * 4, any_seed], nu=2.5)
        g = Matern(
            [0.1, 1.0, 1.0, 1.0, one_seed[0]], [(0.02, 1.0), *[(0.2, 20.0)] * 3, one_seed], nu=2.5
        )
        kernel = (
            ConstantKernel(1.0, (0.01, 100)) * f
            + ConstantKernel(0.1, (1e-4, 10)) * g
            + WhiteKernel(0.04, (0.01, 1))
        )
        self._process = GaussianProcessRegressor(kernel, normalize_y=True)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # a length at its bound: the surface is flat there, which is fine
            self._process.fit(np.array([point for point, _ in seen]), y)

    def at(self, cell: int) -> tuple[Array, Array]:
        """Mean over the seeds of the surface at every tau of a cell, and their covariance."""
        points, seeds = self._points[cell], self._seeds[cell]
        every = np.vstack([np.column_stack([points, np.full(len(points), seed)]) for seed in seeds])
        mean, covariance = self._process.predict(every, return_cov=True)
        white = self._process.kernel_.k2.noise_level * self._process._y_train_std**2
        shape = len(seeds), len(points)
        return mean.reshape(shape).mean(0), (covariance - white * np.eye(len(mean))).reshape(
            shape * 2
        ).mean((0, 2))


def _coordinates(cells: list[Cell]) -> list[Array]:
    """For each cell its points (log tau, log noise, log clip, algorithm) [taus, 4], each spread
    over about one unit."""
    clips = [math.log(cell.sample.clip or 1.0) for cell in cells]
    noises = [
        clip - math.log(cell.sample.epsilon) if cell.private else 0.0
        for clip, cell in zip(clips, cells, strict=True)
    ]

    names = [name for name in ALGORITHMS if name in {cell.sample.algorithm for cell in cells}]
    points = []
    for cell, noise, clip in zip(cells, _spread(noises), _spread(clips), strict=True):
        taus = _spread([math.log(trials[0].local_steps or 1) for trials in cell.trials])
        algorithm = 0.2 * names.index(cell.sample.algorithm)
        points.append(np.array([[tau, noise, clip, algorithm] for tau in taus]))
    return points


def _spread(values: list[float]) -> list[float]:
    """From 0 to 1; all 0 where they do not differ."""
    least, width = min(values), max(max(values) - min(values), 1e-9)
    return [(value - least) / width for value in values]


class _Answer(NamedTuple):
    best: int
    probability: float
    regret: float


def _answer(cell: Cell, mean: Array, covariance: Array) -> _Answer:
    """The tau with the lowest error after some doubt, and by draws of the surface how sure that
    is.
    """
    best = min(cell.open, key=(mean + CAUTION * _deviation(covariance)).__getitem__)
    draws: Any = np.random.default_rng(0).multivariate_normal(mean, covariance, DRAWS, method="svd")
    error = np.exp(draws)
    return _Answer(
        best, float((draws.argmin(1) == best).mean()), float((error[:, best] - error.min(1)).mean())
    )


def _deviation(covariance: Array) -> Array:
    return np.sqrt(np.maximum(np.diag(covariance), 0))


def _answers(cells: list[Cell]) -> Iterable[Found]:
    if not _finite(cells):
        return
    surface = _Surface(cells)
    for number, cell in enumerate(cells):
        if not cell.open or not _finite([cell]):
            continue
        mean, covariance = surface.at(number)
        best, probability, regret = _answer(cell, mean, covariance)
        yield Found(
            settings=cell.sample,
            local_steps=cell.trials[best][0].local_steps or 1,
            predicted=float(np.exp(mean[best])),
            probability=probability,
            regret=regret,
            runs=cell.runs,
            of=sum(len(trials) for trials in cell.trials),
        )
