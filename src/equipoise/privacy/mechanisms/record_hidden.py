"""Unit record, linear models: noise in every local gradient, of which only a round's last model is
seen.

The hidden-state bound (`privacy.stability`) counts a round, not its local steps.
"""

from typing import TYPE_CHECKING, Any, Literal

from equipoise.errors import require
from equipoise.facts import Facts
from equipoise.privacy.events import Event
from equipoise.privacy.gaussian import noise_sigma
from equipoise.privacy.mechanisms.mechanism import Mechanism, NoiseIn, Words
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
    from equipoise.settings import Run, Settings


class RecordHidden(RecordGradient):
    noise_in: NoiseIn = "hidden-gradient"
    words = Words(
        released="one model update per round, made of gradient steps with Gaussian noise in each "
        "sum of gradients; sensitivity and sigma are for one round and include the hidden-state "
        "bound",
        noised="a client's sum of gradients",
        follows_from=FOLLOWS_FROM,
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
        events = []
        for size in public_sizes(facts):
            sensitivity = size * stability(run, facts, schedule, size).hidden_state_mu(1.0)
            sigma = noise_sigma(run.epsilon, run.delta, len(schedule), sensitivity)
            events.append(Event("record", run.neighbours, sensitivity, sigma, 1.0, len(schedule)))
        return events

    def follows_from(
        self, run: "Run", facts: Facts, schedule: tuple[int, ...]
    ) -> dict[str, float] | None:
        return stability(run, facts, schedule, min(public_sizes(facts))).constants


SPEC: Mechanism = RecordHidden()
