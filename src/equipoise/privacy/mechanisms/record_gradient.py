"""Unit record: noise in every local gradient. What is done with it afterwards is post-processing.

Any model, any algorithm; every local step is paid for.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from equipoise.facts import Facts
from equipoise.privacy.events import Event
from equipoise.privacy.lattice import Lattice, check_spacing, inner_clip, spacing
from equipoise.privacy.mechanisms.mechanism import Gradient, Mechanism, NoiseIn, Releaser, Words
from equipoise.privacy.mechanisms.record import (
    check_gradient_trust,
    check_record,
    check_record_plan,
    public_sizes,
    rates_of,
)
from equipoise.privacy.promise import Unit
from equipoise.privacy.sampled import sampled_noise

if TYPE_CHECKING:
    from equipoise.privacy.noise import NoiseSource
    from equipoise.settings import Run, Settings


TOO_MANY = (
    "the noise is so large, or a client has so many records that adding them in double precision "
    "errs so much: give a larger epsilon or fewer local steps, or divide the client"
)


class RecordGradient:
    noise_in: NoiseIn = "gradient"
    rule = "exact"
    words = Words(
        released="the sum of the clipped gradients of its {unit}s, plus noise, at every local step",
        noised="a client's sum of gradients",
        on_lattice="every coordinate of a noised sum of gradients, from which messages are "
        "computed,",
    )
    clips_message = False
    noises_message = False
    by_stability = False
    paid_per: Literal["round", "local step"] = "local step"
    stackable = False
    at_label = True

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.words = type(self).words.of(unit)

    def check(self, settings: "Settings") -> None:
        check_record(settings)
        check_gradient_trust(settings)

    def check_plan(self, question: Any) -> None:
        check_record_plan(question)
        check_gradient_trust(question)

    def events(self, run: "Run", facts: Facts, schedule: tuple[int, ...]) -> list[Event]:
        """A release at every local step, with the noise of each client's own sampling rate: all
        spend the budget."""
        rates, steps = rates_of(run, public_sizes(facts)), sum(schedule)
        event = {rate: self._event(run, rate, steps) for rate in set(rates)}
        gamma = spacing(run.clip, max(each.sigma for each in event.values()))
        if gamma:
            lost = run.clip - inner_clip(run.clip, gamma, facts.dimension, max(public_sizes(facts)))
            check_spacing(gamma, lost, run.clip, TOO_MANY)
        return [replace(event[rate], lattice=gamma) for rate in rates]

    def _event(self, run: "Run", rate: float, steps: int) -> Event:
        sensitivity = run.promise.sensitivity(run.clip)
        event = Event(self.unit, run.neighbours, sensitivity, 0.0, rate, steps)
        if run.epsilon == math.inf:
            return event
        noise = sampled_noise(run.epsilon, run.delta, steps, rate, run.neighbours)
        return _enough(event, noise * run.clip, run.epsilon, run.delta)

    def follows_from(
        self, run: "Run", facts: Facts, schedule: tuple[int, ...]
    ) -> dict[str, float] | None:
        return None

    def gradient(
        self,
        clients: Any,
        clip: Any,
        sigma: Any,
        lattice: Lattice | None,
        rates: tuple[float, ...],
        noise: "NoiseSource",
    ) -> Gradient:
        from equipoise.privacy.noisy_gradient import NoisyGradient

        return NoisyGradient(clients, clip, sigma, rates, noise, lattice)

    def releaser(self, clip: Any, sigma: Any, lattice: Lattice, share: Any = 1.0) -> Releaser:
        """The message is made of noised gradients: it leaves as it is."""
        from equipoise.privacy.clip import AsItIs

        return AsItIs()


def _enough(event: Event, sigma: float, epsilon: float, delta: float) -> Event:
    """The event with sigma rounded up, until it was seen to spend no more than epsilon."""
    event, step = replace(event, sigma=math.nextafter(sigma, math.inf)), 2.0**-52
    while event.epsilon(delta) > epsilon:
        event, step = replace(event, sigma=event.sigma * (1 + step)), 2 * step
    return event


SPEC: Mechanism = RecordGradient("record")
OF_PERSONS: Mechanism = RecordGradient("person")
