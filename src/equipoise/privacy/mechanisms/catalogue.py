"""Every mechanism: what is noised, for which unit, by which rule, and what that costs."""

from equipoise.errors import InvalidValue, require
from equipoise.paper import lemma1
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
    (mechanism.unit, mechanism.noise_in, mechanism.rule): mechanism
    for mechanism in (
        client_message.SPEC,
        record_gradient.SPEC,
        record_message.SPEC,
        record_hidden.SPEC,
        lemma1.SPEC,
    )
}


def mechanism(unit: Unit, noise_in: NoiseIn | None = None, rule: str = EXACT) -> Mechanism:
    """The mechanism for a unit: the first listed, unless the place of the noise and the rule are given."""
    rules = sorted({m.rule for m in MECHANISMS.values()})
    require(rule in rules, f"noise_rule={rule!r} is not one of {', '.join(rules)}")
    fitting = [m for m in MECHANISMS.values() if (m.unit, m.rule) == (unit, rule)]
    others = ", ".join(sorted({m.rule for m in MECHANISMS.values() if m.unit == unit}))
    require(
        bool(fitting), f"noise_rule={rule} with unit={unit}: it has no meaning there; use {others}"
    )
    for candidate in fitting:
        if noise_in in (None, candidate.noise_in):
            return candidate
    places = ", ".join(m.noise_in for m in fitting)
    known = noise_in in {m.noise_in for m in MECHANISMS.values()}
    why = "it belongs to another unit" if known else "there is no such place"
    raise InvalidValue(
        f"noise_in={noise_in} with unit={unit}: {why}; leave it out, or choose {places}"
    )


def mechanisms_of(unit: Unit) -> list[Mechanism]:
    """All exact mechanisms for a unit, in the order of the list."""
    return [m for m in MECHANISMS.values() if (m.unit, m.rule) == (unit, EXACT)]
