"""What counts as close, and the test for an optimum in between."""

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
from equipoise.reports.findings import Finding
from equipoise.reports.study import Case, Cell, Place

CLOSE = 0.05  # of the error: what counts as almost the same
STEADY = 0.01  # of the error: what counts as no degradation
SELDOM = 0.05  # of the messages: what counts as hardly any clipped

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
        few = verdict == HOLDS and 2 * self.between <= self.curves
        return UNKNOWN if few or (verdict == FAILS and self.cut) else verdict

    def effect(self, axis: str) -> str:
        parts = [f"smallest {axis}: {self.low[0]}, largest {axis}: {self.high[0]}"]
        if self.curves > 1:
            parts.append(f"lowest mean in between on {self.between} of {self.curves} curves")
        if self.cut:
            parts.append(f"an end of {self.cut} of them diverged and is left out")
        return "; ".join(parts)


def inside(case: Case, curves: Sequence[Sequence[Cell]]) -> Inside:
    """The test for an optimum in between, over curves of three cells or more; those without common
    trials are left out."""
    curves = [cells for cells in curves if chosen(cells[1:-1])]
    inner = averaged([chosen(cells[1:-1]) for cells in curves])
    hindsight = averaged([best(cells[1:-1]) for cells in curves])
    first = averaged([cells[0].errors for cells in curves])
    last = averaged([cells[-1].errors for cells in curves])
    return Inside(
        low=(paired(first, inner), paired(first, hindsight)),
        high=(paired(last, inner), paired(last, hindsight)),
        between=sum(map(_lowest_in_between, curves)),
        curves=len(curves),
        cut=sum(_lacks_an_end(case, cells) for cells in curves),
    )


def _lowest_in_between(cells: Sequence[Cell]) -> bool:
    return min(cells, key=lambda cell: cell.mean) not in (cells[0], cells[-1])


def _lacks_an_end(case: Case, cells: Sequence[Cell]) -> bool:
    """Whether beyond the first or last of these cells, along local steps or iterations, there is
    one that diverged."""
    first, last = _at(cells[0]), _at(cells[-1])
    same = [place for place in case.diverged if place[:3] == _place(cells[0])[:3]]
    if first[0] == last[0]:  # all have these iterations: the axis is local steps
        same = [place for place in same if place.iterations == first[0]]
    return any(not first <= (place.iterations, place.local_steps) <= last for place in same)


def _place(cell: Cell) -> Place:
    return Place(cell.algorithm, cell.epsilon, cell.clip, cell.iterations, cell.local_steps)


def _at(cell: Cell) -> tuple[int, int]:
    return cell.iterations, cell.local_steps
