"""What a report is about: runs that differ in nothing but the trial are a cell; cells that may
share an axis are a case."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.privacy.promise import MOST_EPSILON

NOT_PRIVATE = "non-private"


@dataclass(frozen=True)
class Moment:
    """A run after some iterations, or a cell: then means over its trials. `clipped` and
    `update_norm` stand for all rounds since the moment before."""

    round: int
    iteration: int
    test_error: float | None
    train_error: float | None
    clipped: float | None
    update_norm: float | None


@dataclass(frozen=True)
class Trial:
    """One run of a cell."""

    seed: int
    test_error: float
    train_error: float | None
    curve: tuple[Moment, ...]
    measures: Mapping[str, float] = field(default_factory=dict)
    """On the test records: AUROC and the like."""


class Place(NamedTuple):
    """Where a cell lies in the grid of its case."""

    algorithm: str
    epsilon: float
    clip: float
    iterations: int
    local_steps: int


@dataclass(frozen=True)
class Cell:
    """Runs that differ in nothing but the trial. `diverged` counts those without finite numbers,
    which are not in `trials`."""

    algorithm: str
    epsilon: float
    epsilon_spent: float
    clip: float
    iterations: int
    local_steps: int
    rounds: int
    trials: tuple[Trial, ...]
    diverged: int
    v: float | None = None
    """The number that Lemma 1's constant stands for, where that chose the noise."""

    @property
    def private(self) -> bool:
        return self.epsilon < math.inf

    @property
    def place(self) -> Place:
        return Place(self.algorithm, self.epsilon, self.clip, self.iterations, self.local_steps)

    @property
    def errors(self) -> dict[int, float]:
        """Test error by seed."""
        return {trial.seed: trial.test_error for trial in self.trials}

    @cached_property
    def curve(self) -> tuple[Moment, ...]:
        """Means over the trials that have the moment."""
        moments: dict[tuple[int, int], list[Moment]] = defaultdict(list)
        for moment in chain.from_iterable(trial.curve for trial in self.trials):
            moments[moment.round, moment.iteration].append(moment)
        return tuple(_mean_moment(*at, alike) for at, alike in sorted(moments.items()))

    def along(self, name: str) -> list[tuple[int, float]]:
        """Iterations and a quantity of the curve, where it was measured."""
        points = [(moment.iteration, getattr(moment, name)) for moment in self.curve]
        return [point for point in points if point[1] is not None]

    @property
    def train_errors(self) -> dict[int, float]:
        return {
            trial.seed: trial.train_error for trial in self.trials if trial.train_error is not None
        }

    @property
    def mean(self) -> float:
        return statistics.fmean(self.errors.values())

    @property
    def std(self) -> float:
        """The standard deviation over trials; of one trial it is not known (NaN)."""
        return statistics.stdev(self.errors.values()) if len(self.trials) > 1 else math.nan

    @property
    def train_mean(self) -> float | None:
        return statistics.fmean(self.train_errors.values()) if self.train_errors else None

    @property
    def train_std(self) -> float:
        return (
            statistics.stdev(self.train_errors.values()) if len(self.train_errors) > 1 else math.nan
        )


def _mean_moment(round: int, iteration: int, moments: Sequence[Moment]) -> Moment:
    def mean(name: str) -> float | None:
        known = [value for moment in moments if (value := getattr(moment, name)) is not None]
        return statistics.fmean(known) if known else None

    return Moment(
        round,
        iteration,
        test_error=mean("test_error"),
        train_error=mean("train_error"),
        clipped=mean("clipped"),
        update_norm=mean("update_norm"),
    )


@dataclass(frozen=True)
class Case:
    """A task under one convention of privacy: its cells may share an axis. Those at epsilon = inf
    are the reference."""

    task: str
    convention: str
    unit: str
    schedule: str
    nominal: bool
    """Whether epsilon is only a label (Lemma 1), so that the exact one must stand beside it."""
    meaning: str
    error_name: str
    baseline: float | None
    cells: tuple[Cell, ...]
    privacy: str | None
    """All settings that say what epsilon means, as JSON: equal for cases whose budgets may be
    compared."""
    constants: tuple[float, float] | None
    """mu and L of the task, where they are known."""
    diverged: Mapping[Place, int]
    """The cells with trials that diverged, and how many."""

    @property
    def title(self) -> str:
        return f"{task_name(self.task)} ({self.convention})"

    def values(self, name: str) -> list[Any]:
        """What an axis takes in this case, sorted; of clips and iterations those of private
        cells, if there are any."""
        cells = self.cells
        if name in ("clip", "iterations"):
            cells = self.private or self.cells
        return sorted({getattr(cell, name) for cell in cells})

    @property
    def private(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if cell.private)

    @property
    def reference(self) -> tuple[Cell, ...]:
        """The cells without noise."""
        return tuple(cell for cell in self.cells if not cell.private)

    def budget(self, epsilon: float) -> str:
        """A budget for a legend; the exact epsilon beside it wherever the two may differ."""
        if epsilon == math.inf:
            return "ε = ∞ (not private)"
        spent = [cell.epsilon_spent for cell in self.cells if cell.epsilon == epsilon]
        if self.nominal:
            return f"ε = {epsilon:g} (exact ε = {_span(spent)})"
        if min(spent) > MOST_EPSILON:
            return f"ε = {epsilon:g} (not private)"
        if 0.995 * epsilon < min(spent) and max(spent) < 1.005 * epsilon:
            return f"ε = {epsilon:g}"
        return f"ε = {epsilon:g} (spent = {_span(spent)})"


class Listed(NamedTuple):
    """A cell, one of the cases that show it, and the name of its convention."""

    case: Case
    convention: str
    cell: Cell


class Lost(NamedTuple):
    """A cell of which no trial ended with finite numbers: a case that shows it, the name of its
    convention, and how many trials diverged."""

    case: Case
    convention: str
    place: Place
    diverged: int


@dataclass(frozen=True)
class Study:
    """What a store holds. `notes` say what was left out of it and why."""

    cases: tuple[Case, ...]
    runs: int
    notes: tuple[str, ...]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(case.task for case in self.cases))

    def cells(self) -> Iterator[Listed]:
        """Every cell once, with its convention: those that are not private are shared by cases."""
        seen = set()
        for case in self.cases:
            for cell in case.cells:
                if id(cell) not in seen:
                    seen.add(id(cell))
                    yield Listed(case, case.convention if cell.private else NOT_PRIVATE, cell)

    def lost(self) -> Iterator[Lost]:
        """Every cell that has nothing but trials that diverged, once."""
        seen = set()
        for case in self.cases:
            reference = tuple(id(cell) for cell in case.reference)
            for place in sorted(case.diverged.keys() - {cell.place for cell in case.cells}):
                private = place.epsilon < math.inf
                about = (place, id(case) if private else (case.task, reference))
                if about not in seen:
                    seen.add(about)
                    convention = case.convention if private else NOT_PRIVATE
                    yield Lost(case, convention, place, case.diverged[place])


def joined(many: Iterable[Sequence[Cell]]) -> list[Cell]:
    """The cells of several curves."""
    return [*chain.from_iterable(many)]


def task_name(task: str) -> str:
    """A task for a title: of a file its name."""
    return Path(task).name


def shared_meaning(meanings: Mapping[str, str]) -> str:
    """What epsilon means in several tasks: once where they agree, by task where they do not."""
    parts = {task_name(task): meaning.split("; ") for task, meaning in meanings.items()}
    first, *others = parts.values()
    words = common = [part for part in first if all(part in other for other in others)]
    for task, its_own in parts.items():
        if rest := [part for part in its_own if part not in common]:
            words = [*words, f"{task}: {'; '.join(rest)}"]
    return "; ".join(words)


def _span(values: list[float]) -> str:
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def number(value: float) -> str:
    """A number as short as a legend needs it."""
    if value == math.inf:
        return "∞"
    if value >= 1e5:
        return f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def error_text(value: float) -> str:
    """An error in a table."""
    return f"{value:.4f}" if not value >= 100 else number(value)


def mean_and_std(cell: Cell) -> str:
    """The error of a cell in a table."""
    spread = "" if math.isnan(cell.std) else f" ± {error_text(cell.std)}"
    return error_text(cell.mean) + spread
