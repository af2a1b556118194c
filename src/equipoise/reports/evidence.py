"""Few trials, honestly: differences over common trials with their uncertainty, choices tested on
other trials, exact ranks."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import stats

from equipoise.reports.study import Cell

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "inconclusive"
FEWEST = 3  # trials, below which nothing is claimed
LEVEL = 0.05
# no interval is narrower on a side: trials share their test records, which are a sample themselves
RESOLUTION = 0.005
# orders that are tried: all if they are fewer (7 values have 5040), else so many at random
MOST_ORDERS = 9_999

Errors = dict[int, float]
"""An error for every seed."""


@dataclass(frozen=True)
class Difference:
    """A mean over n trials with its 95 % interval by Student's t, which takes the differences for
    normally distributed."""

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


def difference(values: Sequence[float]) -> Difference:
    """The mean of differences between trials, with its interval; of one trial that is infinite."""
    n = len(values)
    if n < 2:
        return Difference(values[0] if values else math.nan, -math.inf, math.inf, n)
    mean = statistics.fmean(values)
    half_width = max(float(stats.t.ppf(1 - LEVEL / 2, n - 1) * stats.sem(values)), RESOLUTION)
    return Difference(mean, mean - half_width, mean + half_width, n)


def share(values: Sequence[float]) -> Difference:
    """The mean of shares over trials, whose interval stays within [0, 1] as a share does."""
    mean = difference(values)
    return replace(mean, low=max(mean.low, 0.0), high=min(mean.high, 1.0))


def paired(errors: Errors, others: Errors) -> Difference:
    """The first minus the second, over their common trials."""
    return difference([errors[seed] - others[seed] for seed in _common([errors, others])])


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
    seeds = _common(by_cell)
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


def averaged(many: Sequence[Errors]) -> Errors:
    """The mean error by trial, over the trials that all have; what has no trial does not count."""
    known = [errors for errors in many if errors]
    return {seed: statistics.fmean(errors[seed] for errors in known) for seed in _common(known)}


def _common(many: Sequence[Errors]) -> list[int]:
    """The seeds that all have, sorted."""
    return sorted(set.intersection(*(set(errors) for errors in many))) if many else []


def all_of(verdicts: Sequence[str]) -> str:
    """A claim made of several: if one of them fails it fails, and it holds if all of them hold."""
    if FAILS in verdicts:
        return FAILS
    return HOLDS if verdicts and set(verdicts) == {HOLDS} else UNKNOWN


class RankTest(NamedTuple):
    """A mean rank correlation (Spearman's), and how probable one as low, or as high, is if the
    order of x does not matter."""

    correlation: float
    p_falling: float
    p_rising: float


def rank_test(x: Sequence[float], rows: Sequence[Sequence[float]]) -> RankTest:
    """The mean rank correlation of x with rows; a row that does not vary counts as 0.

    Rows stem from the same trials, so that x is permuted for all at once: in every order if these
    are few, else in 9,999 orders at random.
    """
    ranks = _unit_ranks(x)
    weights = np.mean([_unit_ranks(row) for row in rows], axis=0)

    def correlation(ranks: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(np.sum(ranks * weights, axis=axis)).round(12)  # so that ties are equal

    def p_value(alternative: str) -> float:
        test = stats.permutation_test(
            (ranks,),
            correlation,
            permutation_type="pairings",
            alternative=alternative,
            n_resamples=MOST_ORDERS,
            rng=np.random.default_rng(0),
        )
        return float(test.pvalue)

    return RankTest(float(correlation(ranks)), p_value("less"), p_value("greater"))


def _unit_ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks, ties shared, centred and of length one (zero if nothing varies): the inner product of
    two is Spearman's correlation."""
    ranks = stats.rankdata(values)
    centred = ranks - ranks.mean()
    length = np.linalg.norm(centred)
    return np.asarray(centred / length if length else centred)
