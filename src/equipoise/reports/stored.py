"""Finished runs as a store holds them: its columns, and of the result's document what a report
needs."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from equipoise.reports.study import Place
from equipoise.settings import Run
from equipoise.sweeps.store import Store

AXES = {
    "algorithm",
    "epsilon",
    "clip_norm",
    "iterations",
    "local_steps",
    "p",
    "seed",
    "simulate_noise_seed",
    "h_update",
}
PRIVACY = ("noise_rule", "v", "unit", "neighbours", "trust", "colluding", "delta", "noise_in")
TRAINING = tuple(
    name for name in Run.model_fields if name not in {*AXES, *PRIVACY, "task", "diagnostics"}
)


class Stored(NamedTuple):
    """What a report reads of a stored result, whatever the layout of its document."""

    settings: dict[str, Any]
    """The run's, by the names of `Run`; None where the document has none."""
    sigma: float
    error_name: str
    baseline_error: float | None
    constants: tuple[float, float] | None
    """mu and L of the task, where they are known."""


def stored(document: dict[str, Any]) -> Stored:
    """The only place that knows how a result is laid out in a store."""
    mu, L = document.get("mu"), document.get("L")
    return Stored(
        settings={name: document.get(name) for name in Run.model_fields},
        sigma=float(document["sigma"]),
        error_name=document["error_name"],
        baseline_error=document["baseline_error"],
        constants=(mu, L) if mu and L else None,
    )


@dataclass(frozen=True)
class Row:
    """A finished run of the store: its columns, and its document."""

    key: str
    task: str
    algorithm: str
    epsilon: float
    epsilon_spent: float
    clip_norm: float
    iterations: int
    local_steps: int
    rounds: int
    seed: int
    test_error: float
    train_error: float | None
    failed: str | None
    stored: Stored

    @cached_property
    def group(self) -> "Group":
        settings = self.stored.settings
        privacy = None if self.epsilon == math.inf else _as_json(settings, PRIVACY)
        return Group(self.task, privacy, _as_json(settings, TRAINING))

    @cached_property
    def place(self) -> Place:
        return Place(self.variant, self.epsilon, self.clip_norm, self.iterations, self.local_steps)

    @property
    def variant(self) -> str:
        """The algorithm, with its rule for h where that is not the paper's."""
        rule = self.stored.settings["h_update"]
        return self.algorithm + ("" if rule in (None, "paper") else f" (h: {rule})")


class Group(NamedTuple):
    """What the runs of a case have in common: privacy (None if there is none), and everything about
    the training that is no axis, both as JSON."""

    task: str
    privacy: str | None
    training: str

    @property
    def reference(self) -> "Group":
        """The same training without noise."""
        return self._replace(privacy=None)


def _as_json(settings: dict[str, Any], names: Iterable[str]) -> str:
    return json.dumps([settings[name] for name in names])


COLUMNS = [name for name in Row.__annotations__ if name != "stored"]


def finished_runs(store: Store) -> list[Row | None]:
    """Every finished run; None for one that has no test error, or no fixed number of local
    steps."""
    rows = store.table(f"{', '.join(COLUMNS)}, result")
    return [_row(row) if _usable(row) else None for row in rows]


def _usable(row: dict[str, Any]) -> bool:
    measured = row["test_error"] is not None or row["failed"]
    return row["local_steps"] is not None and bool(measured)


def _row(row: dict[str, Any]) -> Row:
    document = row.pop("result")
    return Row(**row, stored=stored(json.loads(document)))
