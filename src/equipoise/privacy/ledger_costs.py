"""What a run costs in a ledger, and what a cap has room for (proofs in docs/ledger.md).

A run is one row, (mu^2, delta0): of neighbouring data under replace-one, the law of all that it
releases is a mixture, with weight 1 - delta0 of post-processing of a Gaussian release with this mu,
and with weight delta0 of anything. Rows add up, whatever is chosen in the light of earlier
releases: that is true of mu^2, and of few other measures of privacy.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any, NamedTuple, Self

from equipoise.errors import require
from equipoise.privacy.events import Event
from equipoise.privacy.promise import OVER_CLIP, Unit, check_budget

PROTECTED_BY: dict[Unit, tuple[Unit, ...]] = {
    "client": ("client",),
    "person": ("client", "person"),
    "record": ("client", "person", "record"),
}
"""The units of the runs that protect this one too: whoever hides all that a client holds hides each
of its persons, and whoever hides a person hides each of its records."""
KEPT = Fraction(1, 100)
"""The share of a cap's delta for what rows leave to chance, delta0."""
NOTHING_KEPT = Fraction(1, 2**60)  # as good as none: far within the margin of `gdp_mu`
_SHARE_OF_A_ROW = 1e-4  # of a cap's delta: delta0 of a run that samples
_MARGIN = 1 + Fraction(1, 2**49)
"""In its margin `gdp_mu` includes that mu was rounded: so may sums of mu^2 that are not."""


@dataclass(frozen=True)
class Cap:
    """The most that all runs together may tell of a unit under replace-one: (epsilon, delta)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        require(self.epsilon < math.inf, "epsilon=inf is no cap: give a finite one")

    def room(self, kept: Fraction) -> Fraction:
        """The largest sum of mu^2, if this share of delta is kept for the sum of delta0."""
        from equipoise.privacy.gaussian import gdp_mu  # scipy: not for --help

        return Fraction(gdp_mu(self.epsilon, self._delta(kept))) ** 2 * _MARGIN

    def epsilon_of(self, mu2: Fraction, kept: Fraction) -> float:
        """What a sum of mu^2 is as an epsilon, at this cap's delta; rounded up."""
        from equipoise.privacy.gaussian import epsilon_spent  # scipy: not for --help

        mu = math.sqrt(_up(mu2)) * (1 + 2.0**-51)
        return epsilon_spent(1.0, 1, mu, self._delta(kept)) if mu2 else 0.0

    def _delta(self, kept: Fraction) -> float:
        return self.delta * float(1 - kept)

    def __str__(self) -> str:
        return f"epsilon = {self.epsilon:g} at delta = {self.delta:g}"


class Row(NamedTuple):
    """What all releases of a run tell, under replace-one."""

    mu2: float
    delta0: float


@dataclass(frozen=True)
class Cost:
    """What a run releases of whoever keeps the ledger, and when: what its row is made of.

    events   one of each client whose records the ledger is about: a silo's own, or those of all
             clients of a simulation; the dearest decides
    steps    how many releases of an event every round makes: 1, or its local steps
    """

    events: tuple[Event, ...]
    steps: tuple[int, ...]

    @classmethod
    def of(cls, events: Sequence[Event], steps: Sequence[int]) -> Self:
        """Events that are alike are taken once, in an order of their own."""
        return cls(tuple(sorted({*events}, key=repr)), tuple(steps))

    def __post_init__(self) -> None:
        require(len(self.events) > 0, "a run without events releases nothing: no ledger is needed")
        kinds = {(event.unit, event.neighbours, event.count) for event in self.events}
        require(len(kinds) == 1, "events of one run have one unit, neighbours and count")
        require(
            len(self.steps) > 0
            and min(self.steps) >= 1
            and sum(self.steps) == self.events[0].count,
            f"steps={sum(self.steps)} of all rounds are not the {self.events[0].count} releases of "
            "the events",
        )
        for event in self.events:
            finite = 0 < event.sigma < math.inf and 0 < event.sensitivity < math.inf
            require(
                finite and 0 < event.rate <= 1 and 0 <= event.slack < 1,
                f"sigma={event.sigma:g}, sensitivity={event.sensitivity:g}: without noise, or a "
                "bound on what is noised, no budget is enough for a run; no ledger can admit it",
            )

    @property
    def unit(self) -> Unit:
        return self.events[0].unit

    @property
    def rounds(self) -> int:
        return len(self.steps)

    def row(self, delta: float) -> Row:
        """Of all rounds, for a cap with this delta."""
        rows = [self._row(event, _SHARE_OF_A_ROW * delta) for event in self.events]
        return Row(max(row.mu2 for row in rows), max(row.delta0 for row in rows))

    def released(self, row: Row, rounds: int) -> Row:
        """What is left of its row if the run ends after the first few rounds. All of it if it
        samples: where it ends may depend on what it released, and only rows of Gaussian releases
        may be cut there."""
        if not rounds:
            return Row(0.0, 0.0)
        if any(event.rate < 1 for event in self.events):
            return row
        releases = [*accumulate(self.steps)][rounds - 1]
        return row._replace(mu2=max(_up(_exact(event, releases)) for event in self.events))

    @staticmethod
    def _row(event: Event, delta0: float) -> Row:
        """The law of sums of messages is at least e^-slack times that of a Gaussian's
        post-processing, so it is a mixture of that and, with weight slack at most, of anything."""
        exact = _exact(event, event.count)
        if event.rate < 1:
            from equipoise.privacy.sampled import least_gaussian

            noise = event.sigma / (event.sensitivity / OVER_CLIP[event.neighbours])
            mu = least_gaussian(noise * (1 - 2.0**-50), event.count, event.rate, delta0)
            if mu < math.inf and Fraction(mu) ** 2 < exact:
                return Row(_up(Fraction(mu) ** 2), delta0 + event.slack)
        return Row(_up(exact), event.slack)

    def as_json(self) -> dict[str, Any]:
        """For a ledger's chain. Rounds that are alike are said once."""
        alike = len({*self.steps}) == 1
        return {
            "events": [asdict(event) for event in self.events],
            "rounds": self.rounds,
            "steps": self.steps[0] if alike else list(self.steps),
        }

    @classmethod
    def read(cls, said: dict[str, Any]) -> Self:
        steps = said["steps"]
        each = (steps,) * said["rounds"] if isinstance(steps, int) else tuple(steps)
        return cls(tuple(Event(**event) for event in said["events"]), each)


def _exact(event: Event, releases: int) -> Fraction:
    """mu^2 of so many releases under replace-one, sampling not counted. Neighbours by zero-out or
    add-remove are half as far apart: two such steps replace a unit."""
    replaced = Fraction(event.sensitivity) * Fraction(2 / OVER_CLIP[event.neighbours])
    return releases * (replaced / Fraction(event.sigma)) ** 2


def _up(value: Fraction) -> float:
    """The least float that is not below it."""
    rounded = float(value)
    return rounded if Fraction(rounded) >= value else math.nextafter(rounded, math.inf)


def kept_for(first: Row, cap: Cap) -> Fraction:
    """The share of delta that a cap keeps for rows' delta0: a hundredth, or as good as nothing if
    the run that brings the cap needs all of it."""
    fits = Fraction(first.mu2) <= cap.room(KEPT) and first.delta0 <= KEPT * Fraction(cap.delta)
    return KEPT if fits else NOTHING_KEPT
