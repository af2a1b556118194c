"""Few trials, honestly: differences over common trials with their uncertainty, choices tested on
other trials, exact ranks."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from scipy.stats import rankdata, t

from equipoise.reports.study import Cell

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be told"
FEWEST = 3  # trials, below which nothing is claimed
LEVEL = 0.05
# no interval is narrower on a side: trials share their test records, which are a sample themselves
RESOLUTION = 0.005
MOST_PERMUTED = 7  # values whose orders are all tried: 5040

Errors = dict[int, float]
"""An error for every seed."""


@dataclass(frozen=True)
class Difference:
    """A mean over n trials with its 95 % interval by Student's t, which takes differences for
    normal."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if self.n < 2:
            return f"{self.mean:+.3f} (one trial)" if self.n else "no common trials"
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"

    def above(self, margin: float) -> str:
        """Whether the true mean is above the margin."""
        if self.n < FEWEST:
            return UNKNOWN
        return HOLDS if self.low > margin else FAILS if self.high < margin else UNKNOWN

    def below(self, margin: float) -> str:
        return opposite(self.above(margin))


def difference(values: Sequence[float]) -> Difference:
    n = len(values)
    if n < 2:
        return Difference(values[0] if values else math.nan, -math.inf, math.inf, n)
    mean = statistics.fmean(values)
    wide = max(
        float(t.ppf(1 - LEVEL / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n), RESOLUTION
    )
    return Difference(mean, mean - wide, mean + wide, n)


def paired(one: Errors, other: Errors) -> Difference:
    """One minus the other, over their common trials."""
    return difference([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])


def errors_of(cell: Cell) -> Errors:
    return cell.errors


def chosen(cells: Sequence[Cell], errors: Callable[[Cell], Errors] = errors_of) -> Errors:
    """The error of the best cell in every trial, where the best is chosen on the *other* trials.

    So the choice does not profit from the chance by which it was made. One trial leaves nothing to
    choose by.
    """
    seeds = set.intersection(*(set(errors(cell)) for cell in cells)) if cells else set()
    if len(cells) == 1:
        return errors(cells[0])
    if len(seeds) < 2:
        return {}
    found = {}
    for seed in sorted(seeds):
        best = min(
            cells,
            key=lambda cell: statistics.fmean(
                errors(cell)[other] for other in sorted(seeds - {seed})
            ),
        )
        found[seed] = errors(best)[seed]
    return found


def best(cells: Sequence[Cell], errors: Callable[[Cell], Errors] = errors_of) -> Errors:
    """The errors of the best cell, chosen in hindsight: lower than what a choice will really
    give.
    """
    known = [cell for cell in cells if errors(cell)]
    return (
        errors(min(known, key=lambda cell: statistics.fmean(errors(cell).values())))
        if known
        else {}
    )


def judged(in_favour: Difference, against: Difference, margin: float = 0.0) -> str:
    """A claim that something lies above a margin, by two differences: one that makes it too small,
    one that makes it too large.

    The first alone can prove the claim. It is refuted only if both speak against it.
    """
    if in_favour.above(margin) == FAILS and against.above(margin) != FAILS:
        return UNKNOWN
    return in_favour.above(margin)


def opposite(verdict: str) -> str:
    return {HOLDS: FAILS, FAILS: HOLDS, UNKNOWN: UNKNOWN}[verdict]


def averaged(many: Sequence[Errors]) -> Errors:
    """The mean error by trial, over what all have."""
    many = [errors for errors in many if errors]
    seeds = set.intersection(*(set(errors) for errors in many)) if many else set()
    return {seed: statistics.fmean(errors[seed] for errors in many) for seed in sorted(seeds)}


def all_of(verdicts: Sequence[str]) -> str:
    """A claim made of several: one that fails makes it fail, all must hold for it to hold."""
    if FAILS in verdicts:
        return FAILS
    return HOLDS if verdicts and set(verdicts) == {HOLDS} else UNKNOWN


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation, ties shared; 0 where nothing varies."""
    a, b = rankdata(x) - (len(x) + 1) / 2, rankdata(y) - (len(y) + 1) / 2
    size = math.sqrt(float((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size else 0.0


def rank_test(x: Sequence[float], rows: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The mean rank correlation of x with rows, and how often an order of x gives one as low, or as
    high.

    Rows stem from the same trials, so that x is permuted for all at once: every order if there are
    few, else 9,999 at random.
    """
    observed = statistics.fmean(correlation(x, row) for row in rows)
    if len(x) <= MOST_PERMUTED:
        orders = [list(order) for order in permutations(x)]
    else:
        generator = np.random.default_rng(0)
        orders = [list(x), *(list(generator.permutation(np.asarray(x))) for _ in range(9_999))]
    values = np.array(
        [statistics.fmean(correlation(order, row) for row in rows) for order in orders]
    )
    return (
        observed,
        float((values <= observed + 1e-9).mean()),
        float((values >= observed - 1e-9).mean()),
    )
