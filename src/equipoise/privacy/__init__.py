"""What may leak: budgets, guarantees, exact accounting, noise, the mechanism. No torch behind the names listed here."""

from typing import TYPE_CHECKING

from equipoise._lazy import lazy_names

if TYPE_CHECKING:
    from equipoise.privacy.accounting import epsilon_spent, exact_v, gdp_mu, lemma1_sigma, noise_sigma
    from equipoise.privacy.budget import Budget, Guarantee
    from equipoise.privacy.noise import SecretNoise, SimulatedNoise

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
        "accounting": "epsilon_spent exact_v gdp_mu lemma1_sigma noise_sigma",
        "budget": "Budget Guarantee",
        "noise": "SecretNoise SimulatedNoise",
    },
)
