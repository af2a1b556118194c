"""What is promised: how much may leak (Budget), about whom, and seen by whom (Guarantee)."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from equipoise.errors import require

Unit = Literal["client", "record"]
Neighbours = Literal["replace-one", "zero-out", "add-remove"]
Trust = Literal["local", "secure-aggregation"]
KNOWN = {"neighbours": get_args(Neighbours), "trust": get_args(Trust), "unit": get_args(Unit)}


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse an (epsilon, delta) that is not a budget."""
    require(
        epsilon > 0,
        f"epsilon={epsilon} is not > 0: smaller is more private, and epsilon=inf switches privacy "
        f"off",
    )
    require(
        0 < delta < 1,
        f"delta={delta} is not in (0, 1): it is a probability of failure, far below 1 / number of "
        f"clients",
    )


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta) of a whole run. epsilon = inf means not private."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)


@dataclass(frozen=True)
class Guarantee:
    """Whose difference is hidden, and from whom.

    unit         `client`: everything one client holds; `record`: one record (a patient) of one
    client.
    neighbours   `replace-one`: a unit's data against any other data in its place (sensitivity 2C);
                 `zero-out`: a client's data against a client whose update is zero, noised like any
                 other (sensitivity C); `add-remove`: a client with a record and without it
                 (sensitivity C; sampling rates and the numbers that sums are divided by are public
                 then).
    trust        `local`: the adversary sees every message, so each client adds the whole noise (the
                 paper's model); `secure-aggregation`: it sees only the sum of a round, so the
                 clients share the noise.
    clients      N.
    colluding    c, of the N, who tell the adversary their own noise (secure aggregation only; 1 by
                 default, since a fellow client can always subtract its own).
    """

    neighbours: Neighbours
    trust: Trust
    clients: int
    colluding: int | None = None
    unit: Unit = "client"

    def __post_init__(self) -> None:
        for name, known in KNOWN.items():
            value = getattr(self, name)
            require(value in known, f"{name}={value!r} is not one of {', '.join(known)}")
        other = {"client": "add-remove", "record": "zero-out"}[self.unit]
        require(
            self.neighbours != other,
            f"neighbours={other} has no meaning for unit={self.unit}: choose replace-one, or "
            + {"client": "zero-out", "record": "add-remove"}[self.unit],
        )
        require(self.clients >= 1, f"clients={self.clients} is not a number of clients")
        if self.trust == "local":
            require(
                self.colluding is None,
                f"colluding={self.colluding} has no meaning under trust=local, where each client "
                f"adds the whole noise: "
                "leave it out, or choose trust=secure-aggregation",
            )
        else:
            colluding = 1 if self.colluding is None else self.colluding
            require(colluding >= 0, f"colluding={colluding} is not a number of clients")
            require(
                self.clients - colluding >= 1,
                f"clients={self.clients} less colluding={colluding} leaves nobody whose noise "
                f"protects: "
                "add clients, lower colluding, or choose trust=local",
            )
            object.__setattr__(self, "colluding", colluding)

    def sensitivity(self, clip_norm: float) -> float:
        """The largest change of what the adversary sees when one unit changes: 2C or C (L2
        norm).
        """
        return {"replace-one": 2.0, "zero-out": 1.0, "add-remove": 1.0}[self.neighbours] * clip_norm

    def client_sigma(self, sigma: float) -> float:
        """What one client adds so that the adversary sees `sigma`: all of it, or sigma / sqrt(N -
        c), rounded up."""
        if self.trust == "local":
            return sigma
        honest = self.clients - (self.colluding or 0)
        share = sigma / math.sqrt(honest)
        while share * math.sqrt(honest) < sigma:
            share = math.nextafter(share, math.inf)
        return share
