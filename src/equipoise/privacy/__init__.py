"""What may leak: budgets, guarantees, exact accounting, noise, the mechanism. No torch behind the
names listed here."""

from typing import TYPE_CHECKING

from equipoise._lazy import lazy_names

if TYPE_CHECKING:
    from equipoise.privacy.gaussian import epsilon_spent, exact_v, gdp_mu, lemma1_sigma, noise_sigma
    from equipoise.privacy.noise import SecretNoise, SimulatedNoise
    from equipoise.privacy.promise import Budget, Guarantee

__all__ = [
    "Budget",
    "Guarantee",
    "SecretNoise",
    "SimulatedNoise",
    "epsilon_spent",
    "exact_v",
    "gdp_mu",
    "lemma1_sigma",
    "noise_sigma",
]

__getattr__ = lazy_names(
    __name__,
    {
        "gaussian": "epsilon_spent exact_v gdp_mu lemma1_sigma noise_sigma",
        "promise": "Budget Guarantee",
        "noise": "SecretNoise SimulatedNoise",
    },
)
