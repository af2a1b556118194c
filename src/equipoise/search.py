"""The best number of local steps for every budget and clip, with a fraction of the runs of the whole grid.

The error is a smooth surface over log tau, the noise C / epsilon and log C: neighbouring budgets have neighbouring optima, and
in one cell it is nearly unimodal. So what a run tells about its neighbours is used: a Gaussian process (Matérn 5/2, one for
each algorithm) is fitted to the logarithms of all errors so far, and in every cell the next run is where they may be lowest.
A tau that looks best twice gets its next trial. Every run is an ordinary run of the grid, in the store.
"""

import math
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import require
from equipoise.grids import Grid
from equipoise.run import Settings
from equipoise.store import Store
from equipoise.sweep import Progress, key_of, resolved, sweep, task_for

SHARE = 0.15  # of the grid's runs
LEAST = 1e-4  # errors below this are alike
KAPPA = 1.0  # standard deviations of hope: where to run next
CAUTION = 0.5  # standard deviations of doubt: what to answer
DRAWS = 2000  # of the surface, to say how sure an answer is

Array = NDArray[np.float64]


@dataclass
class Cell:
    """All runs at one budget and clip: `trials[i]` has the i-th tau, a run for each seed; `errors[i]` what they gave so far,
    infinity for one that failed."""

    trials: list[tuple[Settings, ...]]
    offset: float = 0.0
    errors: list[list[float]] = field(default_factory=list)

    @property
    def sample(self) -> Settings:
        return self.trials[0][0]

    @property
    def runs(self) -> int:
        return sum(len(errors) for errors in self.errors)

    @property
    def open(self) -> list[int]:
        """The tau that may be the answer: no run of theirs failed."""
        return [i for i, errors in enumerate(self.errors) if math.inf not in errors]


class Found(NamedTuple):
    """The best local steps of a cell, and how sure that is.

    error         what the surface says there, in words of the task's error
    probability   that no other local steps have a lower error, by the surface
    regret        by how much the best of the others would be better, on average
    runs, of      how many runs it took, of how many
    """

    settings: Settings
    local_steps: int
    error: float
    probability: float
    regret: float
    runs: int
    of: int


def search(
    grid: Grid, store: Path, workers: int = 1, retry: bool = False, share: float = SHARE
) -> Iterator[tuple[Progress, list[Found]]]:
    """Search all cells of the grid; yields where it stands, and what is found so far.

    Every cell has two runs at least, even if that is more than the share. One whose runs all failed has no answer.
    """
    for one in grid.settings:
        require(task_for(one).measure is not None, f"task={one.task} has no test records: there is no error to search by")
    chains = _chains(grid)
    limits = [max(int(share * _size(cells)), sum(len(_first(cell)) for cell in cells)) for cells in chains]
    total, start, known = sum(limits), time.monotonic(), 0
    while wanted := [one for cells, most in zip(chains, limits, strict=True) for one in _next(cells, most)]:
        runs = [cell.trials[i][len(cell.errors[i])] for cell, i in wanted]
        before, there = sum(cell.runs for cells in chains for cell in cells), None
        for progress in sweep(grid.name, [(run,) for run in runs], store, workers, retry):
            there = progress.done if there is None else there  # what is in the store already takes no time
            done, computed = before + progress.done, before + progress.done - known - there
            left = (time.monotonic() - start) / computed * (total - done) if computed else None
            yield Progress(done, progress.failed, progress.running, total, left), []
        known += there or 0
        with Store(store) as kept:
            rows = {row["key"]: row for row in kept.table("key, test_error, failed")}
        for (cell, i), run in zip(wanted, runs, strict=True):
            row = rows.get(key_of(resolved(run)), {"test_error": None, "failed": "could not be run"})
            cell.errors[i].append(math.inf if row["failed"] or row["test_error"] is None else row["test_error"])
    yield Progress(total, 0, 0, total, 0.0), [answer for cells in chains for answer in _answers(cells)]


def _size(cells: list[Cell]) -> int:
    return sum(len(trials) for cell in cells for trials in cell.trials)


def _chains(grid: Grid) -> list[list[Cell]]:
    """The cells of each combination of everything but budget, clip and local steps."""
    cells: dict[str, Cell] = {}
    for trials in grid.cells:
        cells.setdefault(trials[0].model_copy(update={"local_steps": None}).model_dump_json(), Cell([])).trials.append(trials)
    chains: dict[str, list[Cell]] = {}
    for cell in cells.values():
        cell.trials.sort(key=lambda trials: trials[0].local_steps or 1)
        cell.errors = [[] for _ in cell.trials]
        free = {"local_steps": None, "epsilon": math.inf, "clip_norm": None}
        chain = chains.setdefault(cell.sample.model_copy(update=free).model_dump_json(), [])
        cell.trials = [_begun_at(trials, len(chain) + i) for i, trials in enumerate(cell.trials)]
        cell.offset = len(chain) * (math.sqrt(5) - 1) / 2 % 1
        chain.append(cell)
    return list(chains.values())


def _begun_at(trials: tuple[Settings, ...], first: int) -> tuple[Settings, ...]:
    """The trials in another order: neighbours begin with different seeds, so that no seed decides alone."""
    return tuple(trials[(first + k) % len(trials)] for k in range(len(trials)))


def _next(cells: list[Cell], most: int) -> list[tuple[Cell, int]]:
    """The next run of every cell: first some spread over its tau, then where the error may be lowest."""
    if not any(cell.runs for cell in cells):
        return [(cell, i) for cell in cells for i in _first(cell)]
    left = most - sum(cell.runs for cell in cells)
    if left <= 0 or not _finite(cells):
        return []
    surface, wanted = _Surface(cells), []
    for number, cell in enumerate(cells):
        mean, deviation = surface.at(number)
        hope = mean - KAPPA * deviation
        free = [i for i in cell.open if len(cell.errors[i]) < len(cell.trials[i])]
        if free:
            i = min(free, key=hope.__getitem__)
            wanted.append((deviation[i], cell, i))
    wanted.sort(key=lambda one: -one[0])  # if not all can have one, those of whom least is known
    return [(cell, i) for _, cell, i in wanted[:left]]


def _first(cell: Cell) -> list[int]:
    """The largest tau, a single round, which is often best for small budgets, and one of the others, another in each cell."""
    last = len(cell.trials) - 1
    return [last, min(int(cell.offset * last), last - 1)] if last else [0]


def _finite(cells: list[Cell]) -> list[float]:
    return [error for cell in cells for errors in cell.errors for error in errors if error < math.inf]


class _Surface:
    """A Gaussian process through the logarithms of all errors of a chain of cells."""

    def __init__(self, cells: list[Cell]) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        self._points = _coordinates(cells)
        seen = [(number, i, error) for number, cell in enumerate(cells) for i, of in enumerate(cell.errors) for error in of]
        x = np.array([self._points[number][i] for number, i, _ in seen])
        worst = max(_finite(cells))  # what failed is no better than that
        y = np.log([max(min(error, worst), LEAST) for *_, error in seen])
        kernel = ConstantKernel(1.0, (0.01, 100)) * Matern([0.5, 0.5, 1.0], (0.1, 20), nu=2.5) + WhiteKernel(0.05, (1e-4, 1))
        self._process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a length at its bound: the surface is flat there, which is fine
            self._process.fit(x, y)

    def at(self, cell: int) -> tuple[Array, Array]:
        """Mean and standard deviation of the surface at every tau of a cell."""
        mean, covariance = self.joint(cell)
        return mean, np.sqrt(np.maximum(np.diag(covariance), 0))

    def joint(self, cell: int) -> tuple[Array, Array]:
        mean, covariance = self._process.predict(self._points[cell], return_cov=True)
        noise = self._process.kernel_.k2.noise_level * self._process._y_train_std**2
        return mean, covariance - noise * np.eye(len(mean))


def _coordinates(cells: list[Cell]) -> list[Array]:
    """For each cell its points (log tau, log noise, log clip) [taus, 3], each spread over about one unit."""
    finite = [cell.sample for cell in cells if cell.sample.epsilon < math.inf]
    noises = [math.log((one.clip_norm or 1.0) / one.epsilon) for one in finite] or [0.0]
    clips = [math.log(one.clip_norm or 1.0) for one in finite] or [0.0]

    def spread(value: float, values: list[float]) -> float:
        return (value - min(values)) / max(max(values) - min(values), 1e-9)

    points = []
    for cell in cells:
        taus = [math.log(trials[0].local_steps or 1) for trials in cell.trials]
        private = cell.sample.epsilon < math.inf
        noise = spread(math.log((cell.sample.clip_norm or 1.0) / cell.sample.epsilon), noises) if private else -0.5
        clip = spread(math.log(cell.sample.clip_norm or 1.0), clips) if private else 1.0
        points.append(np.array([[spread(tau, taus), noise, clip] for tau in taus]))
    return points


def _answers(cells: list[Cell]) -> Iterable[Found]:
    if not _finite(cells):
        return
    surface = _Surface(cells)
    for number, cell in enumerate(cells):
        if not cell.open or not _finite([cell]):
            continue
        mean, covariance = surface.joint(number)
        doubtful = mean + CAUTION * np.sqrt(np.maximum(np.diag(covariance), 0))
        best = min(cell.open, key=doubtful.__getitem__)
        draws: Any = np.random.default_rng(0).multivariate_normal(mean, covariance, DRAWS, method="svd")
        error = np.exp(draws)
        yield Found(
            cell.sample,
            cell.trials[best][0].local_steps or 1,
            float(np.exp(mean[best])),
            float((draws.argmin(1) == best).mean()),
            float((error[:, best] - error.min(1)).mean()),
            cell.runs,
            sum(len(trials) for trials in cell.trials),
        )
