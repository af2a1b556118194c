"""Every task by name."""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches

from equipoise.errors import InvalidValue, require
from equipoise.tasks.breast_cancer import breast_cancer
from equipoise.tasks.digits import digits, digits_mlp
from equipoise.tasks.libsvm import libsvm
from equipoise.tasks.own import task_file
from equipoise.tasks.quadratic import quadratic
from equipoise.tasks.tables import tables, tables_measure
from equipoise.tasks.task import Measure, Options, Task

TASKS: dict[str, Callable[[Options], Task]] = {
    "breast-cancer": breast_cancer,
    "csv": tables,
    "digits": digits,
    "digits-mlp": digits_mlp,
    "libsvm": libsvm,
    "quadratic": quadratic,
}
READ_FILES = {"csv", "libsvm"}


def load_measure(name: str, options: Options, data: tuple[str, ...]) -> Measure:
    """How to measure a model of the task: on the files `data`, or else on its public test records."""
    if name == "csv":
        return tables_measure(replace(options, data=data or options.test))
    measure = load_task(name, replace(options, test=data or options.test)).measure
    if measure is None:
        raise InvalidValue(f"task={name} has no public test records")
    return measure


def load_task(name: str, options: Options) -> Task:
    """The task `name`: one of TASKS, or the path of a Python file that defines one."""
    if name not in READ_FILES:
        for option, value in (("data", options.data), ("test", options.test), ("bounds", options.bounds)):
            require(
                not value,
                f"{option} with task={name}, which brings its own records: leave it out, or choose task csv or libsvm",
            )
    if name != "csv":
        for option, value in (("label", options.label), ("bounds", options.bounds)):
            require(not value, f"{option} with task={name}: only task csv reads columns; leave it out")
    if name.endswith(".py"):
        return task_file(name, options)
    if name not in TASKS:
        near = get_close_matches(name, TASKS, n=1)
        suggestion = f"; did you mean {near[0]}?" if near else ""
        raise InvalidValue(
            f"task={name!r} is unknown: the tasks are {', '.join(sorted(TASKS))}, or a Python file that defines one{suggestion}"
        )
    return TASKS[name](options)
