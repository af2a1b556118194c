"""Every task by name."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.errors import InvalidValue, require
from equipoise.paper.tasks.cifar10 import cifar10
from equipoise.paper.tasks.fed_ixi import fed_ixi, hippocampus
from equipoise.paper.tasks.femnist import femnist
from equipoise.paper.tasks.messidor import deepdrid, messidor
from equipoise.paper.tasks.reddit import reddit
from equipoise.tasks.breast_cancer import breast_cancer
from equipoise.tasks.csv import tables, tables_measure, tables_to_plan
from equipoise.tasks.digits import digits, digits_mlp
from equipoise.tasks.libsvm import libsvm, libsvm_measure
from equipoise.tasks.own import task_file
from equipoise.tasks.quadratic import quadratic
from equipoise.tasks.task import Measure, Options, Task

NARROW = (8, 16, 128)  # widths of a smaller CNN, for quick studies

TASKS: dict[str, Callable[[Options], Task]] = {
    "breast-cancer": breast_cancer,
    "cifar10": cifar10,
    "cifar10-narrow": partial(cifar10, widths=NARROW, name="cifar10-narrow"),
    "csv": tables,
    "deepdrid": deepdrid,
    "digits": digits,
    "digits-mlp": digits_mlp,
    "fed-ixi": fed_ixi,
    "femnist": femnist,
    "femnist-narrow": partial(femnist, widths=NARROW, name="femnist-narrow"),
    "hippocampus": hippocampus,
    "libsvm": libsvm,
    "messidor": messidor,
    "quadratic": quadratic,
    "reddit": reddit,
}
LINEAR = {"breast-cancer", "csv", "digits", "libsvm"}
READ_FILES = {"csv", "libsvm"}


def load_measure(
    name: str, options: Options, data: tuple[str, ...], reading: dict[str, Any]
) -> Measure:
    """How to measure a model of the task: on the files `data`, or else on its public test records.

    `reading` is what the run's result kept to read other files alike; private files are not opened
    again.
    """
    files = data or options.test
    if name == "csv":
        return tables_measure(files, **reading)
    if name == "libsvm" and files:
        return libsvm_measure(files, **reading)
    require(not data, f"data with task={name}, which brings its own records: leave it out")
    require(
        name in TASKS or name.endswith(".py"),
        f"task={name!r} was made in Python: measure its model there",
    )
    measure = load_task(name, options).measure
    if measure is None:
        raise InvalidValue(f"task={name} has no public test records")
    return measure


def load_to_plan(name: str, options: Options) -> Task:
    """The task as a planner may see it: of task csv no private file is opened, of the others the
    planner uses the pool only."""
    return tables_to_plan(options) if name == "csv" else load_task(name, options)


def load_task(name: str, options: Options) -> Task:
    """The task `name`: one of TASKS, or the path of a Python file that defines one."""
    if name not in TASKS and not name.endswith(".py"):
        near = get_close_matches(name, TASKS, n=1)
        suggestion = f"; did you mean {near[0]}?" if near else ""
        raise InvalidValue(
            f"task={name!r} is unknown: the tasks are {', '.join(sorted(TASKS))}, or a Python "
            f"file that defines one{suggestion}"
        )
    _check_overlap(options)
    if name not in READ_FILES:
        for option in ("data", "test", "proxy"):
            require(
                not getattr(options, option),
                f"{option} with task={name}, which brings its own records: leave it out",
            )
    if name != "csv":
        for option in ("label", "bounds"):
            require(
                not getattr(options, option),
                f"{option} with task={name}: only task csv reads columns; leave it out",
            )
    if name not in LINEAR:
        require(
            options.l2 is None,
            f"l2 with task={name}, which is no linear model with a regulariser: leave it out",
        )
    if name == "quadratic" or name.endswith(".py"):
        require(
            not options.public_records,
            f"public_records with task={name}: it has no records to declare public; leave it out",
        )
    if name.endswith(".py"):
        return task_file(name, options)
    return TASKS[name](options)


def _check_overlap(options: Options) -> None:
    """A file that stands for two clients, or for private and for public records, would break what
    is promised."""
    places: dict[Path, str] = {}
    for role in ("data", "test", "proxy"):
        for path in getattr(options, role):
            before = places.get(Path(path).resolve())
            require(
                before is None,
                f"{path} is given twice, as {before} and as {role}: a file is one client's, or "
                f"public, once",
            )
            places[Path(path).resolve()] = role
