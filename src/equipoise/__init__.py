"""Equipoise: the best model that a privacy budget can buy, between organisations that do not share
data."""

import logging
from typing import TYPE_CHECKING

from equipoise._lazy import lazy_names

if TYPE_CHECKING:
    from equipoise.errors import DataError, EquipoiseError, InvalidValue, UnsafeModel
    from equipoise.planning.plan import Plan, Question
    from equipoise.planning.planner import plan
    from equipoise.privacy.gaussian import epsilon_spent, gdp_mu, noise_sigma
    from equipoise.privacy.promise import Budget, Guarantee
    from equipoise.result import Result
    from equipoise.saved import load
    from equipoise.settings import Run, Settings
    from equipoise.tasks.own import accuracy, own_task
    from equipoise.tasks.task import Task
    from equipoise.training import train

__all__ = [
    "Budget",
    "DataError",
    "EquipoiseError",
    "Guarantee",
    "InvalidValue",
    "Plan",
    "Question",
    "Result",
    "Run",
    "Settings",
    "Task",
    "UnsafeModel",
    "accuracy",
    "epsilon_spent",
    "gdp_mu",
    "load",
    "noise_sigma",
    "own_task",
    "plan",
    "train",
]

__getattr__ = lazy_names(
    __name__,
    {
        "errors": "DataError EquipoiseError InvalidValue UnsafeModel",
        "planning.planner": "plan",
        "planning.plan": "Plan Question",
        "privacy.gaussian": "epsilon_spent gdp_mu noise_sigma",
        "privacy.promise": "Budget Guarantee",
        "result": "Result",
        "settings": "Run Settings",
        "saved": "load",
        "tasks.own": "accuracy own_task",
        "tasks.task": "Task",
        "training": "train",
    },
)

logging.getLogger(
    "equipoise.client"
).propagate = False  # what clients notice about their data stays with them
logging.getLogger("equipoise.client").addHandler(logging.NullHandler())
