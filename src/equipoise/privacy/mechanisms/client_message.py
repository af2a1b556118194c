"""Unit client: the clipped update of a round, plus Gaussian noise (Alg. 1, l. 9-10; Alg. 2, l.
8).
"""

from typing import TYPE_CHECKING, Any, Literal

from equipoise.errors import require
from equipoise.facts import Facts
from equipoise.privacy.events import Event
from equipoise.privacy.gaussian import noise_sigma
from equipoise.privacy.lattice import (
    LESS_NOISE,
    SHORTER_SUMS,
    Lattice,
    check_spacing,
    rounding,
    spacing,
    sum_slack,
)
from equipoise.privacy.mechanisms.mechanism import (
    Gradient,
    Mechanism,
    NoiseIn,
    Releaser,
    Words,
    no_constant,
)
from equipoise.privacy.promise import Unit

if TYPE_CHECKING:
    from equipoise.privacy.noise import NoiseSource
    from equipoise.settings import Run, Settings


class ClientMessage:
    unit: Unit = "client"
    noise_in: NoiseIn = "message"
    rule = "exact"
    words = Words(
        released="one message per round (what the algorithm sends), clipped, plus noise",
        noised="one message",
    )
    clips_message = True
    noises_message = True
    by_stability = False
    paid_per: Literal["round", "local step"] = "round"
    stackable = True
    at_label = True

    def check(self, settings: "Settings") -> None:
        rate = settings.sampling_rate
        require(
            rate is None,
            f"sampling_rate={rate} with unit=client: it belongs to unit=record; leave it out",
        )
        require(
            not settings.isolate,
            "isolate with unit=client, where records may mix: it belongs to unit=record; leave it "
            "out",
        )
        self.check_constant(settings)

    def check_constant(self, settings: "Settings") -> None:
        no_constant(settings)

    def check_plan(self, question: Any) -> None:
        require(
            not question.round_cost,
            "round_cost with unit=client, where every round costs noise: leave it out",
        )

    def sigma(self, run: "Run", facts: Facts, releases: int) -> float:
        """The noise that the adversary sees in one release."""
        sensitivity = run.promise.sensitivity(run.clip)
        return noise_sigma(run.epsilon, run.delta, releases, sensitivity)

    def events(self, run: "Run", facts: Facts, schedule: tuple[int, ...]) -> list[Event]:
        """One release a round; all clients are alike."""
        sensitivity, releases = run.promise.sensitivity(run.clip), len(schedule)
        sigma, sums = self.sigma(run, facts, releases), run.promise.sums(run.clients)
        gamma = spacing(run.clip, sigma, sums)
        long = sums is not None and run.clients * run.clip > sigma
        way_out = SHORTER_SUMS if long else LESS_NOISE
        check_spacing(gamma, rounding(gamma, facts.dimension), run.clip, way_out)
        slack = sum_slack(sigma, gamma, sums, releases * facts.dimension)
        return [Event("client", run.neighbours, sensitivity, sigma, 1.0, releases, gamma, slack)]

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
        """Their own: nothing is noised before the message."""
        gradient: Gradient = getattr(clients, "steps", clients.gradient)
        return gradient

    def releaser(self, clip: Any, sigma: Any, lattice: Lattice, share: Any = 1.0) -> Releaser:
        from equipoise.privacy.clip import ClippedRelease

        return ClippedRelease(clip, sigma, lattice, share)


SPEC: Mechanism = ClientMessage()
