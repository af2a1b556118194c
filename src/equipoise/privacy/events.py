"""What was released (Event), apart from what that costs (Account)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from equipoise.privacy.promise import OVER_CLIP, Neighbours, Unit

if TYPE_CHECKING:
    from equipoise.privacy.sampled import Bounds


@dataclass(frozen=True)
class Event:
    """One kind of release, as an accountant, a ledger row and guarantee.md see it.

    `count` times, adaptively, the adversary sees what post-processing makes of v + N(0, sigma^2 I),
    where v moves by at most `sensitivity` (L2 norm) if one unit changes into a neighbour. With rate
    < 1, v is a sum over a secret Poisson sample of that rate.

    unit, neighbours   what is hidden, and among what: as those of `Promise`
    sensitivity        how far v moves at most (L2 norm)
    sigma              standard deviation of the noise, per coordinate
    rate               q: the probability with which a unit is in the secret sample; 1: none is made
    count              how many releases of this kind there are
    lattice            gamma: what is noised is a whole multiple of it; 0 where there is no noise
    slack              a: the probability of every outcome of all of it is within e^(+-a) of that
                       post-processing (`lattice.sum_slack`)

    >>> event = equipoise.Event("client", "replace-one", sensitivity=2, sigma=20, rate=1, count=16)
    >>> round(event.epsilon(delta=1e-5), 3), event.mu
    (1.555, 0.4)
    """

    unit: Unit
    neighbours: Neighbours
    sensitivity: float
    sigma: float
    rate: float
    count: int
    lattice: float = 0.0
    slack: float = 0.0

    @property
    def mu(self) -> float | None:
        """All of it as one Gaussian, sensitivity sqrt(count) / sigma; None where records are
        sampled."""
        if self.rate < 1:
            return None
        if not self.count:
            return 0.0
        return self.sensitivity * math.sqrt(self.count) / self.sigma if self.sigma else math.inf

    def epsilon(self, delta: float) -> float:
        """The epsilon that all of it spends at `delta`: exact at rate 1, else an upper bound."""
        return self.bounds(delta).upper

    def bounds(self, delta: float) -> "Bounds":
        """Between which that epsilon lies, for the sensitivity given: equal at rate 1."""
        from equipoise.privacy.gaussian import epsilon_spent  # scipy: not for --help
        from equipoise.privacy.sampled import Bounds, sampled_bounds

        if self.rate == 1 or self.sigma == 0:
            exact = epsilon_spent(self.sigma, self.count, self.sensitivity, delta, self.slack)
            return Bounds(exact, exact)
        noise = self.sigma / (self.sensitivity / OVER_CLIP[self.neighbours])
        return sampled_bounds(noise, self.count, self.rate, delta, self.neighbours)


class Account(NamedTuple):
    """What a run releases and spends, whatever rule chose the noise.

    events      one for each client, or a single one where all clients are alike
    epsilons    what each event spends at the run's delta
    exact       whether epsilon is exact; else an upper bound (secret samples, stability)
    follows_from   the constants that the sensitivity follows from, where it is not the clip's
    epsilons_lower   what each event spends at least; None where that is not known (stability)
    """

    events: tuple[Event, ...]
    epsilons: tuple[float, ...]
    exact: bool = True
    follows_from: dict[str, float] | None = None
    epsilons_lower: tuple[float, ...] | None = None

    @property
    def epsilon(self) -> float:
        """The run's: the largest of its clients'."""
        return max(self.epsilons)

    @property
    def epsilon_lower(self) -> float | None:
        """What the run spends at least; None where that is not known."""
        if self.exact:
            return self.epsilon
        return max(self.epsilons_lower) if self.epsilons_lower else None

    def of_client(self, client: int) -> "Account":
        """What this one of the clients releases and spends."""
        if len(self.events) == 1:
            return self
        lowers = self.epsilons_lower and (self.epsilons_lower[client],)
        own = (self.events[client],), (self.epsilons[client],)
        return Account(*own, self.exact, self.follows_from, lowers)

    @property
    def mu(self) -> float | None:
        """The Gaussian-DP parameter of the run; None where records are sampled."""
        parameters = [event.mu for event in self.events]
        return None if None in parameters else max(mu for mu in parameters if mu is not None)

    @property
    def releases(self) -> int:
        """Noisy vectors of one client: one a round, or one a local step if gradients are noised."""
        return self.events[0].count

    @property
    def sensitivity(self) -> float:
        """How far one unit can move a release (the largest, if clients differ)."""
        return max(event.sensitivity for event in self.events)

    @property
    def sigma(self) -> float:
        """Of what protects one release, per coordinate (the largest, if clients differ)."""
        return max(event.sigma for event in self.events)

    @property
    def lattice(self) -> float:
        """gamma, of which all that is noised is a whole multiple: the finest of the clients'."""
        return min(event.lattice for event in self.events)

    @property
    def sampled(self) -> bool:
        """Whether clients sample their records: then the accountant is numerical composition."""
        return any(event.rate < 1 for event in self.events)


def account(
    events: Sequence[Event],
    delta: float,
    exact: bool = True,
    follows_from: dict[str, float] | None = None,
) -> Account:
    """The account of these events: equal ones are accounted for once."""
    spent = {event: event.bounds(delta) for event in set(events)}
    return Account(
        tuple(events),
        tuple(spent[event].upper for event in events),
        exact and all(event.rate == 1 for event in events),
        follows_from,
        tuple(spent[event].lower for event in events) if exact else None,
    )
