"""Candidate: a plan to be tried. No torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from equipoise.algorithms.algorithm import Options
from equipoise.planning.bounds import Proposal
from equipoise.planning.plan import Option, Prediction
from equipoise.privacy.events import Event
from equipoise.privacy.mechanisms.mechanism import NoiseIn
from equipoise.privacy.promise import Promise
from equipoise.settings import Returns


@dataclass(frozen=True)
class Candidate:
    """K rounds of tau local steps, step size, clip, server step; where it begins (`warm`: at the
    public model), and what it returns."""

    algorithm: str
    eta: float
    local_steps: int
    rounds: int
    clip: float
    gamma: float
    noise_in: NoiseIn | None = None
    options: Options = field(default_factory=dict)
    warm: bool = False
    returns: Returns = "last"
    sampling_rate: float | None = None

    @property
    def iterations(self) -> int:
        return self.local_steps * self.rounds

    @property
    def name(self) -> tuple[Any, ...]:
        """What tells plans apart, whatever they return."""
        numbers = self.eta, self.clip, self.gamma, self.sampling_rate or 1.0
        return (
            self.algorithm,
            self.noise_in,
            self.warm,
            self.local_steps,
            self.rounds,
            *(float(f"{number:.6g}") for number in numbers),
        )

    def option(
        self,
        origin: str,
        event: Event,
        promise: Promise,
        clients: int,
        predicted: Prediction | None = None,
        l2: float | None = None,
    ) -> Option:
        """The candidate as a plan shows it."""
        return Option(
            origin=origin,
            algorithm=self.algorithm,
            options=dict(self.options),
            eta=self.eta,
            p=1 / self.local_steps,
            local_steps=self.local_steps,
            iterations=self.iterations,
            rounds=self.rounds,
            clip=self.clip,
            gamma=self.gamma,
            noise_in=self.noise_in,
            sigma=event.sigma,
            lattice=event.lattice,
            client_sigma=promise.client_sigma(event.sigma, clients, event.lattice),
            warm_start=self.warm,
            returns=self.returns,
            sampling_rate=self.sampling_rate,
            l2=l2,
            predicted=predicted or Prediction(),
        )


def option_of(origin: str, proposal: Proposal, predicted: Prediction | None = None) -> Option:
    return Option(
        origin=origin,
        eta=proposal.eta,
        p=proposal.p,
        local_steps=proposal.local_steps,
        iterations=proposal.iterations,
        rounds=proposal.rounds,
        bound=proposal.bound,
        predicted=predicted or Prediction(),
    )


class Pace(NamedTuple):
    """How the smallest value is sought: first by steps of a factor `growth`, up to `most` times
    the start, then to a factor `within`."""

    growth: float = 2.0
    within: float = 1.02
    most: float = 1e6


CLOSE = Pace()


def smallest(
    enough: Callable[[float], bool], start: float, whole: bool = False, pace: Pace = CLOSE
) -> float | None:
    """About the smallest value from `start` on that is enough; None if the largest is not."""
    low = high = float(start)
    while not enough(high):
        low, high = high, pace.growth * high
        if high > pace.most * start:
            return None
    while high / low > pace.within and not (whole and math.ceil(high) - math.ceil(low) <= 1):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return math.ceil(high) if whole else float(f"{high:.3g}")
