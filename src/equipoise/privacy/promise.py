"""What is promised: how much may leak, about whom, and seen by whom."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from equipoise.errors import require
from equipoise.facts import Weights
from equipoise.privacy.lattice import Sums, discrete_sigma

Unit = Literal["client", "record", "person"]
Neighbours = Literal["replace-one", "zero-out", "add-remove"]
Trust = Literal["local", "secure-aggregation"]
KNOWN = {"neighbours": get_args(Neighbours), "trust": get_args(Trust), "unit": get_args(Unit)}
OVER_CLIP: dict[Neighbours, float] = {"replace-one": 2.0, "zero-out": 1.0, "add-remove": 1.0}
"""The largest change of one clipped vector, in clips, when one unit changes (L2 norm)."""
NEIGHBOURS_OF: dict[Unit, tuple[Neighbours, Neighbours]] = {
    "client": ("replace-one", "zero-out"),
    "record": ("replace-one", "add-remove"),
    "person": ("replace-one", "add-remove"),
}

STRONG, REASONABLE = 1.0, 10.0
"""Up to which epsilon a guarantee is called strong, and reasonable (Ponomareva et al., "How to
DP-fy ML", 2023); beyond, it is weak."""
MOST_EPSILON = 20.0
"""Beyond it nothing is called private. (epsilon, delta)-DP lets an attack with a share a of false
alarms hit with probability e^epsilon a + delta, and miss with as little as (1 - a - delta) /
e^epsilon; with e^20 = 485 million that excludes no attack that raises more than one false alarm and
misses more than once in 485 million."""


def too_large(delta: float, units: int) -> bool:
    """Whether publishing one of so many protected units, chosen at random, would satisfy delta."""
    return delta >= 1 / units


def check_given(epsilon: object) -> None:
    """Refuse settings without a budget, which the command's flags may leave out."""
    require(epsilon is not None, "epsilon is missing: give epsilon, or max_tpr and fpr")


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse an (epsilon, delta) that is not a budget."""
    require(
        epsilon > 0,
        f"epsilon={epsilon} is not > 0: smaller is more private, and epsilon=inf switches privacy "
        f"off",
    )
    require(
        0 < delta < 1,
        f"delta={delta} is not in (0, 1): choose it far below 1 / number of protected units",
    )


@dataclass(frozen=True)
class Promise:
    """(epsilon, delta) of a whole run, whose difference it hides, and from whom.

    epsilon, delta   for every set S of outcomes and all neighbouring data, P(S) <= e^epsilon P'(S)
                     + delta. epsilon = inf means not private.
    unit         `client`: everything one client holds; `record`: one record of one client;
                 `person`: all records that one client holds of one person.
    neighbours   `replace-one`: a unit's data against any other data in its place (sensitivity 2C);
                 `zero-out`: a client's data against a client whose message is zero, noised like any
                 other (sensitivity C); `add-remove`: a client with a record (a person) and without
                 (sensitivity C; sampling rates and the numbers that sums are divided by are public
                 then).
    trust        `local`: the adversary sees every message, so each client adds the whole noise (the
                 paper's model); `secure-aggregation`: it sees only the sum of a round, so the
                 clients share the noise.
    colluding    c clients who tell the adversary their own noise (secure aggregation only; 1 by
                 default, since a fellow client can always subtract its own).

    >>> equipoise.Promise(epsilon=2, delta=1e-5, trust="secure-aggregation").colluding
    1
    """

    epsilon: float
    delta: float
    unit: Unit = "client"
    neighbours: Neighbours = "replace-one"
    trust: Trust = "local"
    colluding: int | None = None

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        for name, known in KNOWN.items():
            value = getattr(self, name)
            require(value in known, f"{name}={value!r} is not one of {', '.join(known)}")
        fitting = NEIGHBOURS_OF[self.unit]
        require(
            self.neighbours in fitting,
            f"neighbours={self.neighbours} has no meaning for unit={self.unit}: choose "
            + ", or ".join(fitting),
        )
        if self.trust == "local":
            require(
                self.colluding is None,
                f"colluding={self.colluding} has no meaning under trust=local, where each client "
                "adds the whole noise: leave it out, or choose trust=secure-aggregation",
            )
            return
        colluding = 1 if self.colluding is None else self.colluding
        require(colluding >= 0, f"colluding={colluding} is not a number of clients")
        object.__setattr__(self, "colluding", colluding)

    def vacuous(self, units: int, spent: float | None = None) -> str:
        """Why this says too little to be called private, where it does, of `units` that are
        protected; epsilon is what was spent, if that is known."""
        epsilon = self.epsilon if spent is None else spent
        reasons = []
        if epsilon > MOST_EPSILON:
            reasons.append(
                f"epsilon={epsilon:g} is above {MOST_EPSILON:g}, where differential privacy "
                "excludes no attack that raises more than one false alarm, and misses more than "
                "once, in 485 million"
            )
        if too_large(self.delta, units):
            reasons.append(
                f"delta={self.delta:g} is not below 1 / number of {self.unit}s ({units}): a "
                f"mechanism that publishes one {self.unit} chosen at random would satisfy such a "
                "delta"
            )
        return "; ".join(reasons)

    def cautions(self, units: int, spent: float | None = None) -> list[str]:
        """What must be said first of how little this promises; nothing where it is enough."""
        epsilon = self.epsilon if spent is None else spent
        if reason := self.vacuous(units, spent):
            return [f"NOT PRIVATE: {reason}."]
        if epsilon <= REASONABLE:
            return []
        return [
            f"WEAK: epsilon={epsilon:g} lets one {self.unit} make an outcome "
            f"{math.exp(epsilon):.2g} times as likely; up to {REASONABLE:g} is called reasonable, "
            f"up to {STRONG:g} strong."
        ]

    def check_clients(self, clients: int) -> None:
        """Refuse a number of clients with which nobody's noise protects."""
        require(clients >= 1, f"clients={clients} is not a number of clients")
        require(
            clients - (self.colluding or 0) >= 1,
            f"clients={clients} with colluding={self.colluding}: no honest client's noise is left; "
            "add clients, lower colluding, or choose trust=local",
        )

    @property
    def over_clip(self) -> float:
        """Sensitivity of one clipped vector over the clip: 2 or 1."""
        return OVER_CLIP[self.neighbours]

    def sensitivity(self, clip: float) -> float:
        """The largest change of what the adversary sees when one unit changes: 2C or C (L2
        norm).
        """
        return self.over_clip * clip

    def averaging(self, clients: int, weights: Weights = None) -> float:
        """N_eff, by which averaging divides the variance of sigma where that is the same for all:
        1/sum w_i^2, or (N - c) / (N (max w_i)^2) if sums are seen. N and N (N - c) if all weigh
        1/N. Weights of fewer clients stand for as many of each as it takes."""
        honest = clients - (self.colluding or 0)
        if weights is None:
            return clients if self.trust == "local" else clients * honest
        of_each = clients / len(weights)
        if self.trust == "local":
            return of_each / math.fsum(w**2 for w in weights)
        return honest / clients * (of_each / max(weights)) ** 2

    def averaged(self, sigmas: Sequence[float], weights: Weights = None) -> float:
        """Standard deviation of the average of all clients' noise, each of which adds its
        `client_sigma`."""
        own = weights or (1 / len(sigmas),) * len(sigmas)
        if self.trust == "local":
            return math.hypot(*(w * sigma for w, sigma in zip(own, sigmas, strict=True)))
        return max(own) * math.hypot(*sigmas)

    def sums(self, clients: int) -> Sums | None:
        """What the adversary sees only as sums; None where it sees every message."""
        return None if self.trust == "local" else Sums(clients, clients - (self.colluding or 0))

    def shares(self, weights: Weights) -> Weights:
        """What each client multiplies its message by before it is noised, w_i / max w: where only
        sums are seen, nobody can weigh messages later. None where it is 1."""
        if weights is None or self.trust == "local":
            return None
        return tuple(weight / max(weights) for weight in weights)

    def client_sigma(self, sigma: float, clients: int, gamma: float = 0.0) -> float:
        """What one client adds so that the adversary sees `sigma`: all of it, or its share of a sum
        in steps of gamma."""
        sums = self.sums(clients)
        return discrete_sigma(sigma, gamma, sums) if sums else sigma
