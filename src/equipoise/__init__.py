"""Equipoise: the best model that a privacy budget can buy, between organisations that do not share
data.

`plan`, `train`, `sweep` and `report` take the keywords of the commands of the same names.
"""

import logging
from typing import TYPE_CHECKING, Any

from equipoise._lazy import lazy_names

if TYPE_CHECKING:
    from equipoise.adapting import adapt
    from equipoise.auditing.audit import Audit, BrokenClaim, audit
    from equipoise.errors import DataError, EquipoiseError, InvalidValue, UnsafeModel
    from equipoise.estimate import DryRun, dry_run
    from equipoise.origin import About
    from equipoise.paper.report import report
    from equipoise.planning.plan import Plan, Question
    from equipoise.planning.planner import plan
    from equipoise.privacy.accountants import compare_accountants
    from equipoise.privacy.events import Account, Event
    from equipoise.privacy.foreign.report import JobAccount, account
    from equipoise.privacy.gaussian import epsilon_spent, gdp_mu, noise_sigma
    from equipoise.privacy.promise import Promise
    from equipoise.result import Result
    from equipoise.saved import load, save
    from equipoise.settings import Run, Settings
    from equipoise.stating import guarantee
    from equipoise.sweeps.run import sweep
    from equipoise.tasks.encoded import encoded_task
    from equipoise.tasks.fixing import Fixed, fix
    from equipoise.tasks.own import accuracy, own_task
    from equipoise.tasks.task import Task
    from equipoise.tasks.try_data import Tried, try_data
    from equipoise.training import evaluate, rounds, train

__all__ = [
    "About",
    "Account",
    "Audit",
    "BrokenClaim",
    "DataError",
    "DryRun",
    "EquipoiseError",
    "Event",
    "Fixed",
    "InvalidValue",
    "JobAccount",
    "Plan",
    "Promise",
    "Question",
    "Result",
    "Run",
    "Settings",
    "Task",
    "Tried",
    "UnsafeModel",
    "account",
    "accuracy",
    "adapt",
    "audit",
    "compare_accountants",
    "dry_run",
    "encoded_task",
    "epsilon_spent",
    "evaluate",
    "fix",
    "gdp_mu",
    "guarantee",
    "load",
    "noise_sigma",
    "own_task",
    "plan",
    "report",
    "rounds",
    "save",
    "sweep",
    "train",
    "try_data",
]

_names = lazy_names(
    __name__,
    {
        "adapting": "adapt",
        "auditing.audit": "Audit BrokenClaim audit",
        "errors": "DataError EquipoiseError InvalidValue UnsafeModel",
        "estimate": "DryRun dry_run",
        "origin": "About",
        "paper.report": "report",
        "planning.plan": "Plan Question",
        "planning.planner": "plan",
        "privacy.accountants": "compare_accountants",
        "privacy.events": "Account Event",
        "privacy.foreign.report": "JobAccount account",
        "privacy.gaussian": "epsilon_spent gdp_mu noise_sigma",
        "privacy.promise": "Promise",
        "result": "Result",
        "saved": "load save",
        "settings": "Run Settings",
        "stating": "guarantee",
        "sweeps.run": "sweep",
        "tasks.encoded": "encoded_task",
        "tasks.fixing": "Fixed fix",
        "tasks.own": "accuracy own_task",
        "tasks.task": "Task",
        "tasks.try_data": "Tried try_data",
        "training": "evaluate rounds train",
    },
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("equipoise")
    return _names(name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


# What clients notice about their data stays with them.
logging.getLogger("equipoise.client").propagate = False
logging.getLogger("equipoise.client").addHandler(logging.NullHandler())
