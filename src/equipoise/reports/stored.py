"""Finished runs as a store holds them: its columns, and of the result's document what a report
needs."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from equipoise.errors import require
from equipoise.measures import MEASURES
from equipoise.reports.study import Place
from equipoise.result import Result
from equipoise.settings import Run
from equipoise.sweeps.store import Store, unreadable

AXES = {
    "algorithm",
    "epsilon",
    "clip",
    "iterations",
    "local_steps",
    "p",
    "seed",
    "simulate_noise_seed",
    "options",
}
PRIVACY = ("noise_rule", "v", "unit", "neighbours", "trust", "colluding", "delta", "noise_in")
TRAINING = tuple(
    name for name in Run.model_fields if name not in {*AXES, *PRIVACY, "task", "diagnostics"}
)


SHORT = {"h_update": "h"}  # names of options that would be long in a legend


class Stored(NamedTuple):
    """What a report reads of a stored result, whatever the layout of its document."""

    settings: dict[str, Any]
    """The run's, by the names of `Run`."""
    sigma: float
    error_name: str
    part: str
    baseline_error: float | None
    constants: tuple[float, float] | None
    """mu and L of the task, where they are known."""
    measures: dict[str, float]
    """On the test records, by name: AUROC and the like, where they are known."""


def stored(document: dict[str, Any]) -> Stored:
    """From a document of any format."""
    result = Result.model_validate(document)
    return Stored(
        settings=result.run.model_dump(mode="json"),
        sigma=result.account.sigma,
        error_name=result.error_name,
        part=result.part,
        baseline_error=result.baseline_error,
        constants=(result.mu, result.L) if result.mu and result.L else None,
        measures={
            name: estimate.value
            for name, estimate in (result.measures.estimates if result.measures else {}).items()
            if estimate.value is not None
        },
    )


@dataclass(frozen=True)
class Row:
    """A finished run of the store: its columns, and its document."""

    key: str
    task: str
    algorithm: str
    epsilon: float
    epsilon_spent: float
    clip: float
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
        return Place(self.variant, self.epsilon, self.clip, self.iterations, self.local_steps)

    @property
    def variant(self) -> str:
        """The algorithm, with its options where they are not the defaults."""
        options = self.stored.settings["options"]
        words = [f"{SHORT.get(name, name)}: {value}" for name, value in options.items()]
        return self.algorithm + (f" ({', '.join(words)})" if words else "")


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


COLUMN = {"clip": "clip_norm"}
"""Columns of a store that a report calls by another name."""
COLUMNS = [
    f"{COLUMN[name]} AS {name}" if name in COLUMN else name
    for name in Row.__annotations__
    if name != "stored"
]


def finished_runs(store: Store, measure: str | None = None) -> list[Row | None]:
    """Every finished run; None for one that has no test error (or not this measure in its place),
    or no fixed number of local steps."""
    rows = [
        _row(row, store) if _usable(row) else None
        for row in store.table(f"{', '.join(COLUMNS)}, result")
    ]
    return rows if measure is None else [row and _judged_by(row, measure) for row in rows]


def _usable(row: dict[str, Any]) -> bool:
    measured = row["test_error"] is not None or row["failed"]
    return row["local_steps"] is not None and bool(measured)


def _row(row: dict[str, Any], store: Store) -> Row:
    document = row.pop("result")
    try:
        return Row(**row, stored=stored(json.loads(document)))
    except (ValueError, LookupError, TypeError, AttributeError):  # no JSON, or JSON of other things
        raise unreadable(store.path, row["key"]) from None


def _judged_by(row: Row, measure: str) -> Row | None:
    """With this measure as the error, 1 - measure where larger is better. What was measured on the
    way, on training records and without training is another error, and left out."""
    value, spec = row.stored.measures.get(measure), MEASURES[measure]
    if value is None and not row.failed:
        return None
    error = row.test_error if value is None else spec.as_error(value)
    renamed = row.stored._replace(error_name=spec.error_name, baseline_error=None)
    return replace(row, test_error=error, train_error=None, stored=renamed)


def check_measure(measure: str | None) -> None:
    """Refuse what cannot stand for an error."""
    errors = [name for name, spec in MEASURES.items() if spec.best in ("large", "small")]
    require(
        measure is None or measure in errors,
        f"measure={measure} is not one of {', '.join(errors)}",
    )
