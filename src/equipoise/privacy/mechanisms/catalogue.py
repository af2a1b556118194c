"""Every mechanism: what is noised, for which unit, by which rule, and what that costs."""

from equipoise.errors import InvalidValue
from equipoise.paper import lemma1, nbafl
from equipoise.privacy.mechanisms import (
    client_message,
    record_gradient,
    record_hidden,
    record_message,
)
from equipoise.privacy.mechanisms.mechanism import Mechanism, NoiseIn
from equipoise.privacy.promise import Unit

EXACT = client_message.SPEC.rule
MECHANISMS: dict[tuple[Unit, NoiseIn, str], Mechanism] = {
    ("client", "message", "exact"): client_message.SPEC,
    ("record", "gradient", "exact"): record_gradient.SPEC,
    ("record", "message", "exact"): record_message.SPEC,
    ("record", "hidden-gradient", "exact"): record_hidden.SPEC,
    ("person", "gradient", "exact"): record_gradient.OF_PERSONS,
    ("person", "message", "exact"): record_message.OF_PERSONS,
    ("person", "hidden-gradient", "exact"): record_hidden.OF_PERSONS,
    ("client", "message", "lemma1"): lemma1.SPEC,
    ("client", "message", "nbafl"): nbafl.SPEC,
}


def mechanism(unit: Unit, noise_in: NoiseIn | None = None, rule: str = EXACT) -> Mechanism:
    """The mechanism for a unit: the first listed, unless the place of the noise and the rule are
    said."""
    rules = dict.fromkeys(m.rule for m in MECHANISMS.values())
    if rule not in rules:
        raise InvalidValue(f"noise_rule={rule!r} is not one of {', '.join(rules)}")
    fitting = [m for m in MECHANISMS.values() if m.unit == unit and m.rule == rule]
    if not fitting:
        home = next(m.unit for m in MECHANISMS.values() if m.rule == rule)
        raise InvalidValue(
            f"noise_rule={rule} with unit={unit}: it belongs to unit={home}; leave it out"
        )
    for candidate in fitting:
        if noise_in in (None, candidate.noise_in):
            return candidate
    raise InvalidValue(_no_such_place(unit, noise_in, rule))


def _no_such_place(unit: Unit, noise_in: NoiseIn | None, rule: str) -> str:
    homes = [m.unit for m in MECHANISMS.values() if m.noise_in == noise_in]
    places = ", ".join(m.noise_in for m in MECHANISMS.values() if (m.unit, m.rule) == (unit, rule))
    if not homes:
        return f"noise_in={noise_in}: there is no such place; leave it out, or choose {places}"
    if unit not in homes:
        return (
            f"noise_in={noise_in} with unit={unit}: it belongs to unit={homes[0]}; leave it "
            f"out, or choose {places}"
        )
    return (
        f"noise_in={noise_in} with noise_rule={rule}: this rule has no noise there; leave it out, "
        f"or choose {places}"
    )


def mechanisms_of(unit: Unit) -> list[Mechanism]:
    """All exact mechanisms for a unit, in the order of the list."""
    return [m for m in MECHANISMS.values() if (m.unit, m.rule) == (unit, EXACT)]
