"""Job: a private training as numbers alone, whoever ran it and with whatever program."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral

from equipoise.errors import InvalidValue, require
from equipoise.privacy.events import Account, Event, account
from equipoise.privacy.promise import Neighbours, Promise, Unit


@dataclass(frozen=True)
class Job:
    """`rounds` times the adversary sees a clipped sum plus Gaussian noise; about this, either the
    budget or the noise is given, and the other follows.

    epsilon   of all rounds together, at `delta`
    sigma     standard deviation of the noise per coordinate of one release, in units of the clip's
    clip      C, the largest L2 norm of what one unit adds to the sum
    rate      for unit record: with this probability a record is in the secret sample of a round
    """

    rounds: int
    epsilon: float | None = None
    sigma: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    rate: float = 1.0
    unit: Unit = "client"
    neighbours: Neighbours = "replace-one"

    def __post_init__(self) -> None:
        require(
            self.epsilon is None or self.sigma is None,
            f"epsilon={self.epsilon} and sigma={self.sigma} are both given: give one of them, the "
            "other follows",
        )
        require(
            self.epsilon is not None or self.sigma is not None,
            "epsilon and sigma are missing: give the budget or the noise, the other follows",
        )
        require(
            isinstance(self.rounds, Integral) and self.rounds >= 1,
            f"rounds={self.rounds} is not a number of rounds: give a whole number >= 1",
        )
        _ = self.promise
        require(
            self.epsilon is None or self.epsilon < math.inf,
            "epsilon=inf asks for no noise: give a finite budget, or sigma",
        )
        require(
            self.sigma is None or 0 < self.sigma < math.inf,
            f"sigma={self.sigma} is not a finite number > 0: without noise there is no finite "
            "epsilon",
        )
        require(
            0 < self.clip < math.inf,
            f"clip={self.clip} is not a finite number > 0: noise hides only what is bounded",
        )
        require(
            0 < self.rate <= 1,
            f"rate={self.rate} is not in (0, 1]: it is the probability with which a record is in "
            "the sample of a round, and 1 where there is no sampling",
        )
        require(
            self.rate == 1 or self.unit != "client",
            f"rate={self.rate} with unit={self.unit}: samples of records hide no client; choose "
            "unit=record, or leave rate out",
        )

    @property
    def promise(self) -> Promise:
        """What is promised, with any budget where the noise is given instead."""
        budget = 1.0 if self.epsilon is None else self.epsilon
        return Promise(budget, self.delta, self.unit, self.neighbours)

    @property
    def sensitivity(self) -> float:
        """How far one unit can move a release: 2C or C (L2 norm)."""
        return self.promise.sensitivity(self.clip)

    def account(self) -> Account:
        """What all rounds spend: exact at rate 1, else an upper bound and a lower one."""
        return account([self.event()], self.delta)

    def event(self) -> Event:
        """What is released, with the noise given or the least that spends no more than epsilon."""
        if self.rate < 1:
            check_library(f"rate={self.rate:g}", "leave rate out")
        sigma = self.sigma or self._calibrated()
        return Event(self.unit, self.neighbours, self.sensitivity, sigma, self.rate, self.rounds)

    def _calibrated(self) -> float:
        from equipoise.privacy.gaussian import noise_sigma  # scipy: not for --help
        from equipoise.privacy.sampled import sampled_noise

        assert self.epsilon
        if self.rate == 1:
            return noise_sigma(self.epsilon, self.delta, self.rounds, self.sensitivity)
        noise = sampled_noise(self.epsilon, self.delta, self.rounds, self.rate, self.neighbours)
        return noise * self.clip * (1 + 2.0**-50)  # divided by the clip again, it is no less


def check_library(what: str, way_out: str) -> None:
    """Refuse what dp-accounting must compute, where that is not installed."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise InvalidValue(
            f"{what} needs dp-accounting: pip install 'equipoise[record]', or {way_out}"
        ) from None


@contextmanager
def quiet_library() -> Iterator[None]:
    """While dp-accounting computes, its warnings (about orders that it leaves out, for instance) do
    not reach the user, who can do nothing about them. It must be imported before: its logger is of
    a class of its own."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
