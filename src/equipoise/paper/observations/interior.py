"""What counts as close, the test for an optimum in between, and how far an axis must have been
tried before it can refute one."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from equipoise.reports.evidence import (
    FAILS,
    LEVEL,
    UNKNOWN,
    Difference,
    all_of,
    best,
    chosen,
    judged,
    paired,
)
from equipoise.reports.findings import Finding
from equipoise.reports.optima import optimum
from equipoise.reports.study import Case, Cell

CLOSE = 0.05  # of the error: what counts as almost the same
STEADY = 0.02  # of the error: what counts as no degradation
SELDOM = 0.05  # of the messages: what counts as hardly any clipped

Findings = Iterator[Finding]


class Beyond(NamedTuple):
    """Why a better value may lie where nothing was tried, at the low and at the high end of an
    axis; "" where none can."""

    low: str
    high: str


class End(NamedTuple):
    """The smallest or largest value tried, minus the best in between: chosen on other trials, and
    in hindsight."""

    value: int
    apart: Difference
    in_hindsight: Difference
    beyond: str
    """Why a better value may lie beyond it, or beside it."""

    @property
    def worse(self) -> str:
        """Whether it is worse than the best in between. That it is better refutes nothing where
        something better may not have been tried."""
        return UNKNOWN if self.doubt else judged(self.apart, self.in_hindsight)

    @property
    def doubt(self) -> str:
        """Why it refutes nothing though it is better than what was tried in between."""
        return self.beyond if judged(self.apart, self.in_hindsight) == FAILS else ""


class Inside(NamedTuple):
    """Both ends of an axis against the best in between."""

    low: End
    high: End

    @property
    def trials(self) -> int:
        return self.low.apart.n

    @property
    def verdict(self) -> str:
        """Both ends are worse; or one end is better, even in hindsight, and nothing better can lie
        beyond it."""
        return all_of([self.low.worse, self.high.worse])

    def effect(self, axis: str) -> str:
        parts = [f"{axis} = {end.value}: {end.apart}" for end in (self.low, self.high)]
        return "; ".join([", ".join(parts), *filter(None, (self.low.doubt, self.high.doubt))])


def inside(
    cells: Sequence[Cell], values: Sequence[int], beyond: Beyond, level: float = LEVEL
) -> Inside:
    """The test for an optimum in between, over three cells or more, which have these values along
    their axis. Intervals miss the truth with a probability of `level`."""
    inner, hindsight = chosen(cells[1:-1]), best(cells[1:-1])

    def end(place: int, why: str) -> End:
        errors = cells[place].errors
        apart, in_hindsight = (paired(errors, other, level) for other in (inner, hindsight))
        return End(values[place], apart, in_hindsight, why)

    return Inside(end(0, beyond.low), end(-1, beyond.high))


def beyond_steps(case: Case, cells: Sequence[Cell]) -> Beyond:
    """Along local steps: the ends are τ = 1 and τ = T, and next to them come the smallest and the
    largest other divisor of T, which must have been tried too. If the end is better than its
    neighbour, and errors fall and then rise, no other τ is better."""
    divisors = [steps for steps in range(1, cells[0].iterations + 1) if _divides(steps, cells[0])]
    ends = divisors[:2], divisors[-1:-3:-1]
    words = ("smallest", "smaller"), ("largest", "larger")
    return Beyond(*(_untried(case, cells, *each) for each in zip(ends, words, strict=True)))


def _divides(steps: int, cell: Cell) -> bool:
    return cell.iterations % steps == 0


def _untried(
    case: Case, cells: Sequence[Cell], needed: Sequence[int], words: tuple[str, str]
) -> str:
    """Why these cells say nothing about an end of τ, which with its neighbour is `needed`."""
    tried = [cell.local_steps for cell in cells]
    missing = [steps for steps in needed if steps not in tried]
    if not missing:
        return ""
    if cells[0].place._replace(local_steps=missing[0]) in case.diverged:
        return f"τ = {missing[0]} diverged"
    if missing[0] != needed[0]:
        return f"τ = {missing[0]} was not tried: it might be better"
    end = min(tried) if words[0] == "smallest" else max(tried)
    return f"the {words[0]} τ tried is {end}: {words[1]} ones might be better"


def beyond_best(case: Case, cells: Sequence[Cell]) -> str:
    """Why local steps that were not tried might be better than the best of these; "" unless that
    lies at an end of what was tried."""
    low, high = beyond_steps(case, cells)
    at_end = {"": "", "fewest": low, "most": high}
    return at_end.get(optimum(cells).edge, low or high)
