"""How the steps of a run are made of gradients and of releases: the settings that say it.

None of them costs privacy. The server's steps, and local ones where noise is in the gradients, are
post-processing; where noise is in a client's message, that is clipped whatever its steps were.
"""

from pydantic import BaseModel

from equipoise.algorithms.algorithm import AlgorithmSpec, Options, given
from equipoise.algorithms.optimisers.catalogue import (
    OPTIMISER_OPTIONS,
    OPTIMISERS,
    PLACES,
    check_eta_schedule,
    known_at,
    optimiser_spec,
)
from equipoise.algorithms.optimisers.eta_schedules import ETA_SCHEDULES
from equipoise.algorithms.optimisers.optimiser import OptimiserSpec, Place
from equipoise.fields import LEARNING, flag

PLAIN, CONSTANT = next(iter(OPTIMISERS)), next(iter(ETA_SCHEDULES))
NAMES = ", ".join(OPTIMISERS)


class Steps(BaseModel):
    """Part of `Settings`."""

    eta_schedule: str = flag(
        CONSTANT,
        LEARNING,
        f"how eta falls from round to round: {', '.join(ETA_SCHEDULES)} (a tenth from the middle "
        "of the run on, a hundredth in its last quarter)",
    )
    local_optimiser: str = flag(
        PLAIN,
        LEARNING,
        f"how local steps are made of gradients: {NAMES}; begun anew in every round",
    )
    server_optimiser: str = flag(
        PLAIN,
        LEARNING,
        f"how the server's step is made of mean releases: {NAMES}; momentum is FedAvgM, adam is "
        "FedAdam, whose every coordinate moves by about gamma in a round",
    )

    @property
    def chosen_steps(self) -> dict[str, str]:
        """What was chosen where plain steps of one size are the default."""
        chosen = {
            "eta_schedule": self.eta_schedule,
            "local_optimiser": self.local_optimiser,
            "server_optimiser": self.server_optimiser,
        }
        return {name: value for name, value in chosen.items() if value not in (PLAIN, CONSTANT)}

    @property
    def chosen_local_steps(self) -> dict[str, str]:
        """Those that decide what clients do before they release anything."""
        return {name: v for name, v in self.chosen_steps.items() if name != "server_optimiser"}

    def check_steps(self) -> None:
        """Refuse what is not known, or has no meaning with the other settings."""
        check_eta_schedule(self.eta_schedule)
        for place in PLACES:
            self._optimiser(place).check(place, self)

    def given_options(self, algorithm: AlgorithmSpec, options: Options) -> dict[str, float | str]:
        """The options that differ from their defaults, checked; one that neither the algorithm nor
        an optimiser of the run understands is refused."""
        parts: dict[str, dict[str, float | str]] = {place: {} for place in (*PLACES, "rest")}
        for name, value in options.items():
            place = name.partition("_")[0] if name in OPTIMISER_OPTIONS else "rest"
            parts[place][name] = value
        differing = algorithm.given(parts["rest"])
        for place in PLACES:
            spec = self._optimiser(place)
            whose = f"{place}_optimiser={spec.name}"
            differing |= given(parts[place], known_at(place, spec), whose)
        return differing

    def _optimiser(self, place: Place) -> OptimiserSpec:
        names = {"server": self.server_optimiser, "local": self.local_optimiser}
        return optimiser_spec(place, names[place])
