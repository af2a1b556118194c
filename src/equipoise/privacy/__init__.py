"""What may leak: promises, exact accounting, noise, mechanisms. No torch behind the names here."""

from typing import TYPE_CHECKING

from equipoise._lazy import lazy_names

if TYPE_CHECKING:
    from equipoise.privacy.events import Account, Event, account
    from equipoise.privacy.gaussian import epsilon_spent, gdp_mu, noise_sigma
    from equipoise.privacy.noise import SecretNoise, SimulatedNoise
    from equipoise.privacy.promise import Promise

__all__ = [
    "Account",
    "Event",
    "Promise",
    "SecretNoise",
    "SimulatedNoise",
    "account",
    "epsilon_spent",
    "gdp_mu",
    "noise_sigma",
]

__getattr__ = lazy_names(
    __name__,
    {
        "events": "Account Event account",
        "gaussian": "epsilon_spent gdp_mu noise_sigma",
        "noise": "SecretNoise SimulatedNoise",
        "promise": "Promise",
    },
)
