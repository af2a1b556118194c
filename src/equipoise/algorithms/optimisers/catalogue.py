"""Every optimiser by name, and the settings that each understands at each place."""

from typing import get_args

from equipoise.algorithms.algorithm import Option, Options
from equipoise.algorithms.optimisers import adam, momentum, plain
from equipoise.algorithms.optimisers.eta_schedules import ETA_SCHEDULES
from equipoise.algorithms.optimisers.optimiser import OptimiserSpec, Place
from equipoise.errors import InvalidValue

OPTIMISERS: dict[str, OptimiserSpec] = {
    "plain": plain.SPEC,
    "momentum": momentum.SPEC,
    "adam": adam.SPEC,
}
PLACES: tuple[Place, ...] = get_args(Place)

OPTIMISER_OPTIONS: dict[str, Option] = {
    f"{place}_{name}": option._replace(help=f"--{place}-optimiser: {option.help}")
    for place in PLACES
    for spec in OPTIMISERS.values()
    for name, option in spec.options.items()
}
"""The settings that only some optimisers understand: `server_beta`, `local_tau`."""


def optimiser_spec(place: Place, name: str) -> OptimiserSpec:
    """The optimiser `name`; an unknown one is refused here."""
    if name not in OPTIMISERS:
        raise InvalidValue(f"{place}_optimiser={name!r} is not one of {', '.join(OPTIMISERS)}")
    return OPTIMISERS[name]


def check_eta_schedule(name: str) -> None:
    if name not in ETA_SCHEDULES:
        raise InvalidValue(f"eta_schedule={name!r} is not one of {', '.join(ETA_SCHEDULES)}")


def known_at(place: Place, spec: OptimiserSpec) -> dict[str, Option]:
    """The options of an optimiser as its place calls them."""
    return {f"{place}_{name}": OPTIMISER_OPTIONS[f"{place}_{name}"] for name in spec.options}


def options_at(place: Place, spec: OptimiserSpec, options: Options) -> Options:
    """Those of its options that are given, as the optimiser calls them."""
    given = {name: options.get(f"{place}_{name}") for name in spec.options}
    return {name: value for name, value in given.items() if value is not None}
