"""Every algorithm by name."""

from difflib import get_close_matches

from equipoise.algorithms import dp_fedavg, dp_fedprox, dp_scaffnew
from equipoise.algorithms.algorithm import AlgorithmSpec, Option
from equipoise.errors import InvalidValue

ALGORITHMS: dict[str, AlgorithmSpec] = {
    "dp-fedavg": dp_fedavg.SPEC,
    "dp-scaffnew": dp_scaffnew.SPEC,
    "dp-fedprox": dp_fedprox.SPEC,
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
