"""Equipoise: the best model that a privacy budget can buy, between organisations that do not share data."""

from typing import TYPE_CHECKING

from equipoise._lazy import lazy_names

if TYPE_CHECKING:
    from equipoise.errors import DataError, EquipoiseError, InvalidValue, UnsafeModel
    from equipoise.privacy.accounting import epsilon_spent, gdp_mu, noise_sigma
    from equipoise.privacy.budget import Budget, Guarantee
    from equipoise.run import Result, Run, Settings
    from equipoise.training import train

__all__ = [
    "Budget",
    "DataError",
    "EquipoiseError",
    "Guarantee",
    "InvalidValue",
    "Result",
    "Run",
    "Settings",
    "UnsafeModel",
    "epsilon_spent",
    "gdp_mu",
    "noise_sigma",
    "train",
]

__getattr__ = lazy_names(
    __name__,
    {
        "errors": "DataError EquipoiseError InvalidValue UnsafeModel",
        "privacy.accounting": "epsilon_spent gdp_mu noise_sigma",
        "privacy.budget": "Budget Guarantee",
        "run": "Result Run Settings",
        "training": "train",
    },
)
