"""Unit record, linear models: noise in the message, whose sensitivity follows from stability.

A round is paid for, however many local steps it has (docs/privacy.md has the proof).
"""

from typing import TYPE_CHECKING, Any, Literal

from equipoise.errors import InvalidValue, require
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
from equipoise.privacy.mechanisms.mechanism import Gradient, Mechanism, NoiseIn, Releaser, Words
from equipoise.privacy.mechanisms.record import (
    check_full_gradients,
    check_record,
    check_record_plan,
    public_sizes,
)
from equipoise.privacy.promise import Unit
from equipoise.privacy.stability import Stability

if TYPE_CHECKING:
    from equipoise.privacy.noise import NoiseSource
    from equipoise.settings import Run, Settings


FOLLOWS_FROM = (
    "The sensitivity follows from the stability of gradient steps, with {constants}. It holds for "
    "full local gradients of a loss that is mu-strongly convex and L-smooth, single gradients of "
    "norm at most gradient_bound, and eta <= 2/(L + mu)."
)


class RecordMessage:
    noise_in: NoiseIn = "message"
    rule = "exact"
    words = Words(
        released="one model update per round, plus noise; the stability of its gradient "
        "steps bounds the sensitivity",
        noised="one message",
        follows_from=FOLLOWS_FROM,
        not_covered="Rounding errors of local steps in double precision beyond a millionth of the "
        "sensitivity. They grow with a client's records and with the length of the model.",
    )
    clips_message = False
    noises_message = True
    by_stability = True
    paid_per: Literal["round", "local step"] = "round"
    stackable = False
    at_label = True

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.words = type(self).words.of(unit)

    def check(self, settings: "Settings") -> None:
        check_record(settings)
        check_full_gradients(settings)
        check_gradient_steps(settings)
        memory = settings.memory
        require(
            memory == "none" or (memory == "released" and settings.trust == "local"),
            f"algorithm={settings.algorithm} with noise_in=message: what it remembers carries a "
            "record from round to round without noise, and the bound on its influence fails from "
            "the second round; use h_update=released with trust=local (where the algorithm has "
            "it), noise_in=gradient, or an algorithm that remembers nothing",
        )

    def check_plan(self, question: Any) -> None:
        check_record_plan(question)

    def events(self, run: "Run", facts: Facts, schedule: tuple[int, ...]) -> list[Event]:
        """One release a round, of a client that one record moves at most so far."""
        sizes = public_sizes(facts)
        bounds = [stability(run, facts, schedule, size) for size in sizes]
        shares = run.promise.shares(facts.weights(run.weights)) or (1.0,) * len(sizes)
        moves = [share * bound.sensitivity for share, bound in zip(shares, bounds, strict=True)]
        sums, releases = run.promise.sums(run.clients), len(schedule)

        def enough(sensitivity: float) -> float:
            return noise_sigma(run.epsilon, run.delta, releases, sensitivity)

        events = []
        for bound, moves_by in zip(bounds, moves, strict=True):
            # One sum for all, or everybody's own message on a lattice of its own. Rounding adds to
            # the sensitivity, at most 1 %: so much noise would be enough for it.
            hidden = max(moves) if sums else moves_by
            reach = bound.reach if sums else moves_by
            gamma = spacing(reach, enough(1.01 * hidden), sums)
            moved = 2 * rounding(gamma, facts.dimension)
            way_out = SHORTER_SUMS if sums else LESS_NOISE
            check_spacing(gamma, moved, hidden, way_out, "sensitivity")
            sigma = enough(hidden + moved)
            slack = sum_slack(sigma, gamma, sums, releases * facts.dimension)
            seen = sigma, 1.0, releases, gamma, slack
            events.append(Event(self.unit, run.neighbours, moves_by + moved, *seen))
        return events

    def follows_from(
        self, run: "Run", facts: Facts, schedule: tuple[int, ...]
    ) -> dict[str, float] | None:
        return stability(run, facts, schedule, min(public_sizes(facts))).constants

    def gradient(
        self,
        clients: Any,
        clip: Any,
        sigma: Any,
        lattice: Lattice | None,
        rates: tuple[float, ...],
        noise: "NoiseSource",
    ) -> Gradient:
        """Clipped record by record, without noise."""
        from equipoise.privacy.noisy_gradient import NoisyGradient

        return NoisyGradient(clients, clip, 0.0, rates, noise, None)

    def releaser(self, clip: Any, sigma: Any, lattice: Lattice, share: Any = 1.0) -> Releaser:
        from equipoise.privacy.clip import NoisedRelease

        return NoisedRelease(sigma, lattice, share)


def check_gradient_steps(settings: "Settings") -> None:
    for name, value in settings.chosen_local_steps.items():
        raise InvalidValue(
            f"{name}={value} with noise_in={settings.noise_in}: stability bounds are about plain "
            f"gradient steps of one size; use noise_in=gradient, or leave {name} out"
        )
    require(
        settings.gradient_steps,
        f"algorithm={settings.algorithm} with noise_in={settings.noise_in}: its rounds are not "
        "plain gradient steps, so their stability bounds nothing; use noise_in=gradient",
    )


def stability(run: "Run", facts: Facts, schedule: tuple[int, ...], records: int) -> Stability:
    """What bounds the influence of one record of a client; refused where nothing does.

    The longest round decides. A proximal term of the algorithm bends every local loss.
    """
    if facts.gradient_bound is None or facts.L is None or facts.mu is None:
        raise InvalidValue(
            f"noise_in={run.noise_in} with task={facts.task}: it needs a regularised linear model "
            "on bounded features, whose smoothness is known; use noise_in=gradient"
        )
    require(
        facts.batch is None,
        f"noise_in={run.noise_in} holds for full local gradients: use batch=full",
    )
    bound = facts.gradient_bound
    require(
        facts.clipped_convex or run.clip >= bound,
        f"clip={run.clip} is below {bound}, the longest gradient of one record: a clipped "
        "multinomial loss is not convex, and nothing bounds one record's influence; leave clip out",
    )
    pull = run.proximal
    return Stability(
        run.eta,
        max(schedule),
        facts.L + pull,
        facts.mu + pull,
        min(run.clip, bound),
        records,
        run.neighbours,
    )


SPEC: Mechanism = RecordMessage("record")
OF_PERSONS: Mechanism = RecordMessage("person")
