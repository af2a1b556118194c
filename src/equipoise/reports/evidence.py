"""Few trials, honestly: differences over common trials with their uncertainty, choices tested on
other trials."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scipy import stats

from equipoise.reports.study import Cell

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "inconclusive"
FEWEST = 3  # trials, below which nothing is claimed
LEVEL = 0.05
# no interval is narrower on a side: trials share their test records, which are a sample themselves
RESOLUTION = 0.01

Errors = dict[int, float]
"""An error for every seed."""


@dataclass(frozen=True)
class Difference:
    """A mean over n trials with its interval by Student's t (95 %, unless said), which takes the
    differences for normally distributed."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if not self.n:
            return "no common trials"
        interval = "(one trial)" if self.n == 1 else f"[{self.low:+.3f}, {self.high:+.3f}]"
        return f"{self.mean:+.3f} {interval}"

    def above(self, margin: float) -> str:
        """Whether the true mean is above the margin."""
        if self.n < FEWEST:
            return UNKNOWN
        if self.low > margin:
            return HOLDS
        return FAILS if self.high < margin else UNKNOWN

    def below(self, margin: float) -> str:
        return opposite(self.above(margin))


def difference(values: Sequence[float], level: float = LEVEL) -> Difference:
    """The mean of differences between trials, with its interval; of one trial that is infinite.
    The interval misses the true mean with a probability of `level`."""
    n = len(values)
    if n < 2:
        return Difference(values[0] if values else math.nan, -math.inf, math.inf, n)
    mean = statistics.fmean(values)
    half_width = max(float(stats.t.ppf(1 - level / 2, n - 1) * stats.sem(values)), RESOLUTION)
    return Difference(mean, mean - half_width, mean + half_width, n)


def share(values: Sequence[float], level: float = LEVEL) -> Difference:
    """The mean of shares over trials, whose interval stays within [0, 1] as a share does."""
    mean = difference(values, level)
    return replace(mean, low=max(mean.low, 0.0), high=min(mean.high, 1.0))


def paired(errors: Errors, others: Errors, level: float = LEVEL) -> Difference:
    """The first minus the second, over their common trials."""
    return difference([errors[seed] - others[seed] for seed in common([errors, others])], level)


def errors_of(cell: Cell) -> Errors:
    return cell.errors


def chosen(cells: Sequence[Cell], errors: Callable[[Cell], Errors] = errors_of) -> Errors:
    """The error of the best cell in every trial, where the best is chosen on the *other* trials.

    So the choice does not profit from the chance by which it was made. One trial leaves nothing to
    choose by.
    """
    if len(cells) == 1:
        return errors(cells[0])
    by_cell = [errors(cell) for cell in cells]
    seeds = common(by_cell)
    if len(seeds) < 2:
        return {}
    return {seed: _best_without(seed, seeds, by_cell)[seed] for seed in seeds}


def _best_without(seed: int, seeds: Sequence[int], many: Sequence[Errors]) -> Errors:
    """Those errors that have the lowest mean over the other trials."""
    others = [other for other in seeds if other != seed]
    return min(many, key=lambda errors: statistics.fmean(errors[other] for other in others))


def best(cells: Sequence[Cell], errors: Callable[[Cell], Errors] = errors_of) -> Errors:
    """The errors of the best cell, chosen in hindsight: lower than what a choice will really
    give.
    """
    known = [values for cell in cells if (values := errors(cell))]
    return min(known, key=lambda values: statistics.fmean(values.values()), default={})


def judged(in_favour: Difference, against: Difference, margin: float = 0.0) -> str:
    """A claim that something lies above a margin, by two differences: the first makes it too small,
    the second too large.

    The first alone can prove the claim. It is refuted only if both speak against it.
    """
    if in_favour.above(margin) == FAILS and against.above(margin) != FAILS:
        return UNKNOWN
    return in_favour.above(margin)


def opposite(verdict: str) -> str:
    return {HOLDS: FAILS, FAILS: HOLDS, UNKNOWN: UNKNOWN}[verdict]


def common(many: Sequence[Errors]) -> list[int]:
    """The seeds that all have, sorted."""
    return sorted(set.intersection(*(set(errors) for errors in many))) if many else []


def all_of(verdicts: Sequence[str]) -> str:
    """A claim made of several: if one of them fails it fails, and it holds if all of them hold."""
    if FAILS in verdicts:
        return FAILS
    return HOLDS if verdicts and set(verdicts) == {HOLDS} else UNKNOWN
