"""The form of a claim: a hypothesis, how it was tested, what came out. And the test for an optimum
in between."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from equipoise.reports.evidence import (
    FAILS,
    HOLDS,
    UNKNOWN,
    Difference,
    all_of,
    averaged,
    best,
    chosen,
    judged,
    paired,
)
from equipoise.reports.study import Case, Cell

CLOSE = 0.05  # of the error: what counts as almost the same
STEADY = 0.01  # of the error: what counts as no degradation
SELDOM = 0.05  # of the messages: what counts as hardly any clipped


class Finding(NamedTuple):
    """A hypothesis, where it was looked at, its test, the effect with its size, the number of
    trials, and the verdict."""

    number: str
    hypothesis: str
    where: str
    test: str
    effect: str
    trials: int
    verdict: str


Findings = Iterator[Finding]


class Inside(NamedTuple):
    """Both ends of an axis minus the best in between, by trial, averaged over curves; how often the
    best lies in between.

    Of each pair of differences the first has the best chosen on other trials, the second in
    hindsight. `cut` curves lack an end, where a trial diverged: what seems to be their end is none.
    """

    low: tuple[Difference, Difference]
    high: tuple[Difference, Difference]
    between: int
    curves: int
    cut: int

    @property
    def trials(self) -> int:
        return self.low[0].n

    @property
    def verdict(self) -> str:
        """Both ends are worse, and most curves have their lowest mean in between; or one end is
        better, even in hindsight."""
        verdict = all_of([judged(*self.low), judged(*self.high)])
        if (verdict == HOLDS and 2 * self.between <= self.curves) or (
            verdict == FAILS and self.cut
        ):
            return UNKNOWN
        return verdict

    def told(self, axis: str) -> str:
        many = (
            f"; lowest mean in between on {self.between} of {self.curves} curves"
            if self.curves > 1
            else ""
        )
        cut = f"; an end of {self.cut} of them diverged and is left out" if self.cut else ""
        return f"smallest {axis}: {self.low[0]}, largest {axis}: {self.high[0]}{many}{cut}"


def inside(case: Case, curves: Sequence[Sequence[Cell]]) -> Inside:
    """The test for an optimum in between, over curves of three cells or more, those without common
    trials left out."""
    curves = [cells for cells in curves if chosen(cells[1:-1])]
    inner = [averaged([choose(cells[1:-1]) for cells in curves]) for choose in (chosen, best)]
    ends = [averaged([cells[end].errors for cells in curves]) for end in (0, -1)]
    low, high = ((paired(end, inner[0]), paired(end, inner[1])) for end in ends)
    count = sum(
        min(cells, key=lambda cell: cell.mean) not in (cells[0], cells[-1]) for cells in curves
    )
    return Inside(
        low, high, count, len(curves), sum(_lacks_an_end(case, cells) for cells in curves)
    )


def _lacks_an_end(case: Case, cells: Sequence[Cell]) -> bool:
    """Whether beyond the first or last of these cells, along local steps or iterations, there is
    one that diverged."""
    one = cells[0]
    lost = [at for at in case.diverged if at[:3] == (one.algorithm, one.epsilon, one.clip_norm)]
    places = [(cell.iterations, cell.local_steps) for cell in cells]
    return any(
        (T, tau) not in places and not (places[0] < (T, tau) < places[-1])
        for *_, T, tau in lost
        if T == one.iterations or cells[0].iterations != cells[-1].iterations
    )
