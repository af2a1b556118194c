"""The state of an Opacus accountant, as JSON: {"history": [[noise multiplier, sample rate, steps],
...], "mechanism": "rdp"}.

What `accountant.state_dict()` holds (opacus 1.6, accountants/accountant.py): one entry for each
stretch of steps with the same noise and rate. All its accountants are about add-remove, and take
batches for Poisson samples.
"""

import math
from pathlib import Path
from typing import Any

from equipoise.errors import require
from equipoise.privacy.composed import Gaussian
from equipoise.privacy.foreign.reading import Claimed, Given, Reading, check_keys, is_number
from equipoise.privacy.job import check_library

ORDERS = [1 + x / 10 for x in range(1, 100)] + [float(x) for x in range(12, 64)]
"""`RDPAccountant.DEFAULT_ALPHAS`."""
KNOWN = ("rdp", "gdp", "prv")
POISSON = (
    "the state does not say how batches were drawn: with poisson_sampling=False, or a data loader "
    "of one's own, they were no secret Poisson samples, and neither epsilon holds"
)


def fits(document: Any) -> bool:
    return isinstance(document, dict) and {"history", "mechanism"} <= {*document}


def read(document: Any, path: Path, given: Given) -> Reading:
    check_keys(document, ("history", "mechanism"), str(path))
    mechanism, history = document["mechanism"], document["history"]
    require(
        mechanism in KNOWN,
        f"{path}: mechanism={mechanism!r} is none of Opacus' accountants that are known here: "
        + ", ".join(KNOWN),
    )
    require(
        isinstance(history, list) and len(history) > 0,
        f"{path}: history is empty: no step was counted",
    )
    entries = [_entry(entry, path) for entry in history]
    if any(noise == 0 for noise, _, _ in entries):
        quiet = sum(steps for noise, _, steps in entries if noise == 0)
        void = (f"{quiet} steps have a noise multiplier of 0: they release clipped gradients",)
        return Reading("Opacus", "record", void=void, beside=(POISSON,))
    parts = tuple(Gaussian(steps, noise, rate) for noise, rate, steps in entries)
    return Reading(
        "Opacus",
        "record",
        (_claimed(mechanism, entries, given.delta),),
        {"replace-one": parts, "add-remove": parts},
        beside=(POISSON,),
    )


def _entry(entry: Any, path: Path) -> tuple[float, float, int]:
    require(
        isinstance(entry, list) and len(entry) == 3 and all(map(is_number, entry)),
        f"{path}: an entry of history is not [noise multiplier, sample rate, steps]",
    )
    noise, rate, steps = entry
    require(
        noise >= 0 and 0 < rate <= 1 and steps >= 1 and float(steps).is_integer(),
        f"{path}: history has noise={noise:g}, rate={rate:g}, steps={steps:g}: noise >= 0, a rate "
        "in (0, 1] and a whole number of steps are needed",
    )
    return float(noise), float(rate), int(steps)


def _claimed(mechanism: str, entries: list[tuple[float, float, int]], delta: float) -> Claimed:
    """What `get_epsilon(delta)` of that accountant says."""
    say = f"what its accountant ({mechanism}) says of add-remove"
    if mechanism == "rdp":
        epsilon = _rdp(entries, delta)
    elif mechanism == "gdp":
        require(len(entries) == 1, "mechanism=gdp has one noise and rate, but history has several")
        epsilon = _central_limit(*entries[0], delta)
        say += ", a limit that may claim too little, as Opacus warns"
    else:
        return Claimed(f"{say} is not in the file")
    return Claimed(f"epsilon = {epsilon:.4g}: {say}", epsilon, delta, "add-remove")


def _rdp(entries: list[tuple[float, float, int]], delta: float) -> float:
    check_library("Opacus' own number", "leave the file out")
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    from equipoise.privacy.job import quiet_library

    with quiet_library():
        accountant = RdpAccountant(ORDERS)
        for noise, rate, steps in entries:
            accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
        return float(accountant.get_epsilon(delta))


def _central_limit(noise: float, rate: float, steps: int, delta: float) -> float:
    """mu = q sqrt(T (e^(1/sigma^2) - 1)) (Bu, Dong, Long and Su, "Deep learning with Gaussian
    differential privacy", 2020, Corollary 5.4), for Poisson samples."""
    from equipoise.privacy.gaussian import epsilon_spent  # scipy: not for --help

    excess = math.expm1(1 / noise**2) if noise > 0.05 else math.inf
    return epsilon_spent(1.0, 1, rate * math.sqrt(steps * excess), delta)
