"""Events of dp-accounting as JSON: the fields of `event.to_named_tuple()`, as objects or as lists.

An object has "class_name", perhaps "module_name", and the fields of that class; a list is what
`json.dumps` makes of a named tuple: module, class, then the fields in their order. Classes are
looked up in the dict below, never imported by a name that a file gives.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.errors import require
from equipoise.privacy.composed import Gaussian, Part, Pure
from equipoise.privacy.foreign.reading import Given, Reading, is_number
from equipoise.privacy.promise import OVER_CLIP, Neighbours

MODULE = "dp_accounting.dp_event"
RELATIONS: tuple[Neighbours, Neighbours] = ("replace-one", "add-remove")


@dataclass
class Found:
    """What was met on the way through the tree."""

    parts: dict[Neighbours, list[Part]]
    void: list[str]
    asks: list[str]
    beside: list[str]


def fits(document: Any) -> bool:
    if isinstance(document, list):
        return len(document) >= 2 and str(document[0]).startswith("dp_accounting")
    return isinstance(document, dict) and "class_name" in document


def read(document: Any, path: Path, given: Given) -> Reading:
    met = Found({way: [] for way in RELATIONS}, [], [], [])
    _walk(document, 1, met, path)
    parts = {way: tuple(own) for way, own in met.parts.items()}
    whole = parts if not met.void and not met.asks and any(parts.values()) else {}
    if not whole and not met.void and not met.asks:
        met.beside.append("the events release nothing")
    lines = (tuple(dict.fromkeys(lines)) for lines in (met.void, met.beside, met.asks))
    void, beside, asks = lines
    return Reading("dp-accounting", "record", (), whole, void, beside, asks)


def _walk(said: Any, count: int, met: Found, path: Path) -> None:
    name, fields = _event(said, path)
    if name == "SelfComposedDpEvent":
        times = fields["count"]
        _whole(times, "count", path)
        if times:
            _walk(fields["event"], count * int(times), met, path)
    elif name == "ComposedDpEvent":
        inner = fields["events"]
        require(isinstance(inner, list), f"{path}: events of ComposedDpEvent is not a list")
        for event in inner:
            _walk(event, count, met, path)
    elif name == "NonPrivateDpEvent":
        met.void.append("NonPrivateDpEvent: the job itself says that this is not private")
    elif name != "NoOpDpEvent":
        READ[name](fields, count, met, path)


def _gaussian(fields: dict[str, Any], count: int, met: Found, path: Path) -> None:
    noise = _number(fields["noise_multiplier"], "noise_multiplier", path)
    if noise == 0:
        met.void.append("GaussianDpEvent with a noise multiplier of 0: no noise")
        return
    for own in met.parts.values():
        own.append(Gaussian(count, noise))


def _poisson(fields: dict[str, Any], count: int, met: Found, path: Path) -> None:
    """Several Gaussian releases of one sample are one, with the sum of their mu^2."""
    rate = _number(fields["sampling_probability"], "sampling_probability", path)
    require(rate <= 1, f"{path}: sampling_probability={rate:g} is not in [0, 1]")
    if rate == 0:
        return
    inner = Found({way: [] for way in RELATIONS}, [], [], [])
    _walk(fields["event"], 1, inner, path)
    met.void += inner.void
    met.asks += inner.asks
    met.beside += inner.beside
    own = inner.parts["add-remove"]
    if not own:
        return
    if all(isinstance(part, Gaussian) and part.rate == 1 for part in own):
        noise = sum(part.rounds / part.noise**2 for part in own if isinstance(part, Gaussian))
        for parts in met.parts.values():
            parts.append(Gaussian(count, noise**-0.5, rate))
        return
    if any(isinstance(part, Gaussian) and part.rate < 1 for part in own):
        met.asks.append("PoissonSampledDpEvent of a PoissonSampledDpEvent is not counted here")
        return
    met.beside.append(
        "PoissonSampledDpEvent of Laplace noise: the sample is not counted, which holds"
    )
    for way, parts in met.parts.items():
        for part in inner.parts[way]:
            repeated = part.rounds * count
            parts.append(
                Pure(repeated, part.epsilon)
                if isinstance(part, Pure)
                else Gaussian(repeated, part.noise)
            )


def _laplace(fields: dict[str, Any], count: int, met: Found, path: Path) -> None:
    """e^(-|x|/s): a value that moves by C changes a probability by e^(C/s) at most."""
    noise = _number(fields["noise_multiplier"], "noise_multiplier", path)
    if noise == 0:
        met.void.append("LaplaceDpEvent with a noise multiplier of 0: no noise")
        return
    for way, parts in met.parts.items():
        parts.append(Pure(count, OVER_CLIP[way] / noise))


def _discrete_laplace(fields: dict[str, Any], count: int, met: Found, path: Path) -> None:
    """e^(-a|x|), for values in whole steps of at most `sensitivity` together."""
    noise = _number(fields["noise_parameter"], "noise_parameter", path)
    steps = _whole(fields["sensitivity"], "sensitivity", path)
    for way, parts in met.parts.items():
        parts.append(Pure(count, OVER_CLIP[way] * noise * steps))


def _unsupported(fields: dict[str, Any], count: int, met: Found, path: Path) -> None:
    met.void.append("UnsupportedDpEvent: the job itself says that this is not accounted for")


FIELDS: dict[str, tuple[str, ...]] = {
    "NoOpDpEvent": (),
    "NonPrivateDpEvent": (),
    "UnsupportedDpEvent": (),
    "GaussianDpEvent": ("noise_multiplier",),
    "LaplaceDpEvent": ("noise_multiplier",),
    "DiscreteLaplaceDpEvent": ("noise_parameter", "sensitivity"),
    "PoissonSampledDpEvent": ("sampling_probability", "event"),
    "SelfComposedDpEvent": ("event", "count"),
    "ComposedDpEvent": ("events",),
}
READ: dict[str, Callable[[dict[str, Any], int, Found, Path], None]] = {
    "UnsupportedDpEvent": _unsupported,
    "GaussianDpEvent": _gaussian,
    "LaplaceDpEvent": _laplace,
    "DiscreteLaplaceDpEvent": _discrete_laplace,
    "PoissonSampledDpEvent": _poisson,
}


def _event(said: Any, path: Path) -> tuple[str, dict[str, Any]]:
    """Its class, and its fields by name."""
    if isinstance(said, list):
        require(
            len(said) >= 2 and all(isinstance(word, str) for word in said[:2]),
            f"{path}: an event as a list begins with its module and its class",
        )
        module, name, values = said[0], said[1], said[2:]
        _check_class(module, name, path)
        names = FIELDS[name]
        require(
            len(values) == len(names),
            f"{path}: {name} has {len(values)} fields, not {len(names)}: {', '.join(names)}",
        )
        return name, dict(zip(names, values, strict=True))
    require(
        isinstance(said, dict) and isinstance(said.get("class_name"), str),
        f"{path}: an event has no class_name",
    )
    name = said["class_name"]
    _check_class(said.get("module_name", MODULE), name, path)
    fields = {key: value for key, value in said.items() if key not in ("class_name", "module_name")}
    require(
        {*fields} == {*FIELDS[name]},
        f"{path}: {name} has the fields {', '.join(sorted(fields)) or 'none'}, and should have "
        f"{', '.join(FIELDS[name]) or 'none'}",
    )
    return name, fields


def _check_class(module: Any, name: str, path: Path) -> None:
    require(
        module == MODULE and name in FIELDS,
        f"{path}: {name} of {module} is not counted here: known are {', '.join(FIELDS)}, all of "
        f"{MODULE}",
    )


def _number(value: Any, name: str, path: Path) -> float:
    require(
        is_number(value) and 0 <= value < math.inf, f"{path}: {name}={value!r} is no number >= 0"
    )
    return float(value)


def _whole(value: Any, name: str, path: Path) -> int:
    number = _number(value, name, path)
    require(number.is_integer(), f"{path}: {name}={value!r} is not a whole number")
    return int(number)
