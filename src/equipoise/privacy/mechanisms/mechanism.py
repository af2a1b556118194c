"""What a mechanism is: what is noised, and what that costs, in one object."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from equipoise.errors import require
from equipoise.facts import Facts
from equipoise.privacy.events import Event
from equipoise.privacy.lattice import Lattice
from equipoise.privacy.promise import Unit

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.privacy.noise import NoiseSource
    from equipoise.settings import Run, Settings

NoiseIn = str
"""Where noise enters, as a user says it: one of those in MECHANISMS."""
Gradient = Callable[["Tensor", int], "Tensor"]
Number = "float | Tensor"


class Words(NamedTuple):
    """What statement and command say of a mechanism.

    released      what leaves a client, and how often
    noised        what sigma is the noise of: "one message"
    follows_from  where the sensitivity is not the clip's: what it follows from, with {constants}
    on_lattice    what is a whole multiple of the lattice's step
    law           the law of the noise, where trust alone does not decide it
    not_covered   what the proof of the guarantee leaves out, if anything
    """

    released: str
    noised: str
    follows_from: str = ""
    on_lattice: str = "every coordinate that leaves"
    law: str = ""
    not_covered: str = ""

    def of(self, unit: Unit) -> "Words":
        """For this unit, which stands in what is released as {unit}."""
        return self._replace(released=self.released.replace("{unit}", unit))


class Releaser(Protocol):
    """How a private update becomes a release."""

    @property
    def lattice(self) -> Lattice:
        """Where releases lie."""
        ...

    def release(self, update: "Tensor", noise: "NoiseSource", round: int) -> "Tensor": ...


class Mechanism(Protocol):
    """Where noise enters, for which unit, and what that costs.

    Sigmas are what one client adds, per coordinate: a number, or [clients, 1].

    clips_message    whether messages are clipped
    noises_message   whether noise enters the message, so that clients may share it, or the
                     gradients
    by_stability     whether the stability of gradient steps bounds the sensitivity, rather than a
                     clip
    paid_per         what one more release is paid for by
    stackable        whether runs can be trained together: all clients are alike, and nothing is
                     sampled
    at_label         whether a run spends at most the epsilon that it was asked for
    """

    unit: Unit
    noise_in: NoiseIn
    rule: str
    words: Words
    clips_message: bool
    noises_message: bool
    by_stability: bool
    paid_per: Literal["round", "local step"]
    stackable: bool
    at_label: bool

    def check(self, settings: "Settings") -> None:
        """Refuse settings for which this mechanism has no meaning, or no guarantee."""
        ...

    def check_plan(self, question: Any) -> None:
        """Refuse a question to the planner that this mechanism cannot answer."""
        ...

    def events(self, run: "Run", facts: Facts, schedule: tuple[int, ...]) -> list[Event]:
        """What each client releases, from public facts alone; a single event if all are alike."""
        ...

    def follows_from(
        self, run: "Run", facts: Facts, schedule: tuple[int, ...]
    ) -> dict[str, float] | None:
        """The constants from which the sensitivity follows, where it is not the clip's."""
        ...

    def gradient(
        self,
        clients: Any,
        clip: Any,
        sigma: Any,
        lattice: Lattice | None,
        rates: tuple[float, ...],
        noise: "NoiseSource",
    ) -> Gradient:
        """The gradients that local steps use."""
        ...

    def releaser(self, clip: Any, sigma: Any, lattice: Lattice, share: Any = 1.0) -> Releaser:
        """How updates are released; `share` of each, where clients that count less than others are
        seen as a sum only."""
        ...


def no_constant(settings: "Settings") -> None:
    """The exact rule has nothing to choose."""
    require(
        settings.v is None,
        f"v={settings.v} belongs to noise_rule=lemma1; other rules have no free constant",
    )
