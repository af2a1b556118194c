"""Every algorithm by name."""

from difflib import get_close_matches

from equipoise.algorithms import (
    clip21_sgd2m,
    dp_fedavg,
    dp_fedpd,
    dp_fedprox,
    dp_fedsplit,
    dp_scaffnew,
    dp_scaffold,
    fed_norm_ec,
    fedavg,
    fedprox,
    scaffnew,
    scaffold,
)
from equipoise.algorithms.algorithm import AlgorithmSpec, Option
from equipoise.algorithms.optimisers.catalogue import OPTIMISER_OPTIONS
from equipoise.errors import InvalidValue

ALGORITHMS: dict[str, AlgorithmSpec] = {
    "dp-fedavg": dp_fedavg.SPEC,
    "dp-scaffnew": dp_scaffnew.SPEC,
    "dp-fedprox": dp_fedprox.SPEC,
    "dp-scaffold": dp_scaffold.SPEC,
    "dp-fedsplit": dp_fedsplit.SPEC,
    "dp-fedpd": dp_fedpd.SPEC,
    "clip21-sgd2m": clip21_sgd2m.SPEC,
    "fed-norm-ec": fed_norm_ec.SPEC,
    "fedavg": fedavg.SPEC,
    "scaffnew": scaffnew.SPEC,
    "fedprox": fedprox.SPEC,
    "scaffold": scaffold.SPEC,
}


def algorithm_spec(name: str) -> AlgorithmSpec:
    """The algorithm `name`; an unknown one is refused here."""
    if name not in ALGORITHMS:
        near = get_close_matches(name, ALGORITHMS, n=1)
        suggestion = f"; did you mean {near[0]}?" if near else ""
        raise InvalidValue(f"algorithm={name!r} is not one of {', '.join(ALGORITHMS)}{suggestion}")
    return ALGORITHMS[name]


def algorithm_options() -> dict[str, Option]:
    """The settings that only some algorithms understand, of all algorithms."""
    return {name: option for spec in ALGORITHMS.values() for name, option in spec.options.items()}


def known_options() -> dict[str, Option]:
    """The settings that only some algorithms or optimisers understand, of all of them."""
    return {**algorithm_options(), **OPTIMISER_OPTIONS}
