"""The paper's Lemma 1 as printed, as a mechanism: it reproduces figures and guarantees nothing.

sigma^2 = v C^2 pT ln(1/delta) / epsilon^2, with a constant v that the paper does not state.
Whatever v is taken, the account beside it is exact: a run says what it really spends.
"""

import math
from typing import TYPE_CHECKING

from equipoise.errors import require
from equipoise.facts import Facts
from equipoise.privacy.gaussian import gdp_mu
from equipoise.privacy.mechanisms.client_message import ClientMessage
from equipoise.privacy.mechanisms.mechanism import Mechanism
from equipoise.privacy.promise import check_budget

if TYPE_CHECKING:
    from equipoise.settings import Run, Settings

READINGS = ("exact", "proof", "sampling", "record-style")


def lemma1_sigma(
    epsilon: float, delta: float, expected_releases: float, clip: float, v: float
) -> float:
    """Lemma 1 as printed, calibrated to the *expected* number of rounds pT and to whatever v is
    given."""
    check_budget(epsilon, delta)
    require(0 < v < math.inf, f"v={v} is not a positive number")
    if epsilon == math.inf:
        return 0.0
    return math.sqrt(v * expected_releases * -math.log(delta)) * clip / epsilon


def exact_v(epsilon: float, delta: float, over_clip: float) -> float:
    """The v that makes Lemma 1 exact for a fixed number of releases.

    (Delta/C)^2 epsilon^2 / (mu^2 ln(1/delta)), rounded up by 2^-40: more than what the formula of
    the lemma can lose to rounding.
    """
    mu = gdp_mu(epsilon, delta)
    return (over_clip * epsilon / mu) ** 2 / -math.log(delta) * (1 + 2.0**-40)


def lemma1_v(reading: str, exact: float, dimension: int, batch: int, records: int) -> float:
    """The constant v in one of the readings under which the paper's figures can be reproduced.

    `exact` is the v of `exact_v`, `records` what the smallest client holds. Only the reading
    `exact` is private at its label.
    """
    readings = {
        "exact": exact,
        # The proof's E|e|^2 <= sigma^2: sigma^2 as the variance of the whole vector.
        "proof": exact / dimension,
        # q^2 of Abadi et al. (2016), whose Theorem 1 the lemma cites.
        "sampling": (batch / records) ** 2,
        # Sensitivity 2C/n of one record, as in Wei et al. (2020).
        "record-style": 4 * exact / records**2,
    }
    require(
        reading in readings, f"v={reading!r} is neither a number nor one of {', '.join(readings)}"
    )
    return readings[reading]


class Lemma1Message(ClientMessage):
    """A client's message under the noise of Lemma 1."""

    rule = "lemma1"
    at_label = False

    def check_constant(self, settings: "Settings") -> None:
        v, readings = settings.v, ", ".join(READINGS)
        require(
            v is not None,
            "noise_rule=lemma1 needs v, which the paper does not state: a number, or " + readings,
        )
        known = v in READINGS if isinstance(v, str) else 0 < float(v or 0) < math.inf
        require(known, f"v={v} is neither a positive number nor one of {readings}")

    def sigma(self, run: "Run", facts: Facts, releases: int) -> float:
        if run.epsilon == math.inf:
            return 0.0
        v = _reading(run, facts) if isinstance(run.v, str) else float(run.v or 0)
        return lemma1_sigma(run.epsilon, run.delta, run.p * run.iterations, run.clip, v)


def _reading(run: "Run", facts: Facts) -> float:
    """The number that a named reading of v stands for."""
    require(
        facts.sizes is not None or run.v in ("exact", "proof"),
        f"v={run.v} needs the clients' numbers of records, which are private here: give a number",
    )
    records = max(min(facts.sizes or (1,)), 1)
    batch = records if run.batch == "full" else run.batch
    exact = exact_v(run.epsilon, run.delta, run.promise.over_clip)
    return lemma1_v(str(run.v), exact, facts.dimension, batch, records)


SPEC: Mechanism = Lemma1Message()
