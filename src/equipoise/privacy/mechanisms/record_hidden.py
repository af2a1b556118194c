"""Unit record, linear models: noise in every local gradient, of which only a round's last model is
seen.

The hidden-state bound (`privacy.stability`) counts a round, not its local steps.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from equipoise.errors import require
from equipoise.facts import Facts
from equipoise.privacy.events import Event
from equipoise.privacy.gaussian import noise_sigma
from equipoise.privacy.lattice import Lattice, power_of_two_below
from equipoise.privacy.mechanisms.mechanism import Gradient, Mechanism, NoiseIn, Releaser, Words
from equipoise.privacy.mechanisms.record import (
    check_full_gradients,
    check_gradient_trust,
    check_record,
    check_record_plan,
    public_sizes,
)
from equipoise.privacy.mechanisms.record_gradient import RecordGradient
from equipoise.privacy.mechanisms.record_message import (
    FOLLOWS_FROM,
    check_gradient_steps,
    stability,
)

if TYPE_CHECKING:
    from equipoise.privacy.noise import NoiseSource
    from equipoise.settings import Run, Settings


class RecordHidden(RecordGradient):
    noise_in: NoiseIn = "hidden-gradient"
    words = Words(
        released="one model update per round, made of gradient steps with Gaussian noise in each "
        "sum of gradients; sensitivity and sigma are for one round and include the hidden-state "
        "bound",
        noised="a client's sum of gradients",
        follows_from=FOLLOWS_FROM,
        law="Gaussian in double precision, in every local step; the message is rounded to the "
        "lattice",
        not_covered="Rounding errors within a round. The hidden-state bound is proved for real "
        "numbers and normal noise, and local steps are computed in double precision; what leaves "
        "is rounded to a lattice that is far coarser than these errors.",
    )
    by_stability = True
    paid_per: Literal["round", "local step"] = "round"

    def check(self, settings: "Settings") -> None:
        check_record(settings)
        check_full_gradients(settings)
        check_gradient_trust(settings)
        check_gradient_steps(settings)
        require(
            settings.memory != "private",
            f"algorithm={settings.algorithm} with noise_in=hidden-gradient: what it remembers of a "
            "round's local steps is not hidden any more when the next round uses it; use "
            "noise_in=gradient",
        )

    def check_plan(self, question: Any) -> None:
        check_record_plan(question)
        check_gradient_trust(question)

    def events(self, run: "Run", facts: Facts, schedule: tuple[int, ...]) -> list[Event]:
        """One release a round. The bound is for noise in the mean gradient; told is the sum's."""
        events, releases = [], len(schedule)
        for size in public_sizes(facts):
            sensitivity = size * stability(run, facts, schedule, size).hidden_state_mu(1.0)
            sigma = noise_sigma(run.epsilon, run.delta, releases, sensitivity)
            # The message has at least the noise of one step, which this rounds to 1/1024 or finer.
            gamma = power_of_two_below(run.eta * sigma / size / 2**10) if sigma else 0.0
            events.append(
                Event(self.unit, run.neighbours, sensitivity, sigma, 1.0, releases, gamma)
            )
        finest = min(event.lattice for event in events)
        return [replace(event, lattice=finest) for event in events]

    def gradient(
        self,
        clients: Any,
        clip: Any,
        sigma: Any,
        lattice: Lattice | None,
        rates: tuple[float, ...],
        noise: "NoiseSource",
    ) -> Gradient:
        """With normal noise: the hidden-state bound is about nothing else."""
        from equipoise.privacy.noisy_gradient import NoisyGradient

        return NoisyGradient(clients, clip, sigma, rates, noise, None)

    def releaser(self, clip: Any, sigma: Any, lattice: Lattice, share: Any = 1.0) -> Releaser:
        from equipoise.privacy.clip import RoundedRelease

        return RoundedRelease(lattice)

    def follows_from(
        self, run: "Run", facts: Facts, schedule: tuple[int, ...]
    ) -> dict[str, float] | None:
        return stability(run, facts, schedule, min(public_sizes(facts))).constants


SPEC: Mechanism = RecordHidden("record")
OF_PERSONS: Mechanism = RecordHidden("person")
