"""The best number of local steps for every budget and clip, with a fraction of the runs of the whole grid.

The error is a smooth surface over log tau, the noise C / epsilon and log C: neighbouring budgets have neighbouring optima, and
in one cell it is nearly unimodal. So what a run tells about its neighbours is used: a Gaussian process (Matérn 5/2, one for
each algorithm) is fitted to the logarithms of all errors so far, and in every cell the next run is where they may be lowest.
A tau that looks best twice gets its next trial. Every run is an ordinary run of the grid, in the store.
"""

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.grids import Grid
from equipoise.run import Settings
from equipoise.store import Store
from equipoise.sweep import Progress, key_of, resolved, sweep

SHARE = 0.15  # of the grid's runs
LEAST = 1e-4  # errors below this are alike
KAPPA = 1.0
DRAWS = 2000  # of the surface, to say how sure an answer is

Array = NDArray[np.float64]


@dataclass
class Cell:
    """All runs at one budget and clip: `trials[i]` has the i-th tau, a run for each seed; `errors[i]` what they gave so far."""

    trials: list[tuple[Settings, ...]]
    errors: list[list[float]] = field(default_factory=list)

    @property
    def sample(self) -> Settings:
        return self.trials[0][0]

    @property
    def runs(self) -> int:
        return sum(len(errors) for errors in self.errors)


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


def search(grid: Grid, store: Path, workers: int = 1, share: float = SHARE) -> Iterator[tuple[Progress, list[Found]]]:
    """Search all cells of the grid; yields where it stands, and what is found so far."""
    chains = _chains(grid)
    total = sum(math.ceil(share * _size(cells)) for cells in chains)
    first = True
    while wanted := [(cell, i) for cells in chains for cell, i in _next(cells, math.ceil(share * _size(cells)), first)]:
        first = False
        runs = [cell.trials[i][len(cell.errors[i])] for cell, i in wanted]
        before = sum(cell.runs for cells in chains for cell in cells)
        for progress in sweep(grid.name, [(run,) for run in runs], store, workers):
            yield progress._replace(done=before + progress.done, total=total), []
        with Store(store) as kept:
            errors = {row["key"]: row["test_error"] for row in kept.table("key, test_error")}
        for (cell, i), run in zip(wanted, runs, strict=True):
            found = errors.get(key_of(resolved(run)))
            cell.errors[i].append(1.0 if found is None or not math.isfinite(found) else found)
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
        chain.append(cell)
    return list(chains.values())


def _begun_at(trials: tuple[Settings, ...], first: int) -> tuple[Settings, ...]:
    """The trials in another order: neighbours begin with different seeds, so that no seed decides alone."""
    return tuple(trials[(first + k) % len(trials)] for k in range(len(trials)))


def _next(cells: list[Cell], most: int, first: bool) -> list[tuple[Cell, int]]:
    """The next run of every cell: two spread over its tau, other ones in each cell, then where the error may be lowest."""
    if first:
        shares = [number * (math.sqrt(5) - 1) / 2 % 1 for number in range(len(cells))]
        places = [(cell, i) for cell, s in zip(cells, shares, strict=True) for i in _spread(len(cell.trials) - 1, s)]
        return places[:most]
    left = most - sum(cell.runs for cell in cells)
    if left <= 0:
        return []
    surface, wanted = _Surface(cells), []
    for number, cell in enumerate(cells):
        mean, deviation = surface.at(number)
        hope = mean - KAPPA * deviation
        free = [i for i in range(len(cell.trials)) if len(cell.errors[i]) < len(cell.trials[i])]
        if free:
            wanted.append((cell, min(free, key=hope.__getitem__)))
    return wanted[:left]


def _spread(last: int, share: float) -> list[int]:
    """The largest tau, a single round, which is often best for small budgets, and one of the others."""
    return [last, min(int(share * last), last - 1)] if last else [0]


class _Surface:
    """A Gaussian process through the logarithms of all errors of a chain of cells."""

    def __init__(self, cells: list[Cell]) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        self._points = _coordinates(cells)
        seen = [(number, i, error) for number, cell in enumerate(cells) for i, of in enumerate(cell.errors) for error in of]
        x = np.array([self._points[number][i] for number, i, _ in seen])
        y = np.log([max(error, LEAST) for *_, error in seen])
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
    surface = _Surface(cells)
    for number, cell in enumerate(cells):
        mean, covariance = surface.joint(number)
        best = int(mean.argmin())
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
