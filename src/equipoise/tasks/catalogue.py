"""Every task by name."""

from collections.abc import Callable
from difflib import get_close_matches

from equipoise.errors import InvalidValue
from equipoise.tasks.breast_cancer import breast_cancer
from equipoise.tasks.quadratic import quadratic
from equipoise.tasks.task import Task

TASKS: dict[str, Callable[[int | None, str, int | None, int], Task]] = {
    "breast-cancer": breast_cancer,
    "quadratic": quadratic,
}
"""name -> loader(clients, split, batch, seed), where None is the task's own default (for batch: all records)."""


def load_task(name: str, clients: int | None, split: str, batch: int | None, seed: int) -> Task:
    if name not in TASKS:
        near = get_close_matches(name, TASKS, n=1)
        suggestion = f"; did you mean {near[0]}?" if near else ""
        raise InvalidValue(f"task={name!r} is unknown: the tasks are {', '.join(sorted(TASKS))}{suggestion}")
    return TASKS[name](clients, split, batch, seed)
