"""Every task by name."""

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from equipoise.errors import DataError, InvalidValue, require
from equipoise.paper.tasks import cifar10, fed_ixi, femnist, messidor, reddit
from equipoise.tasks import breast_cancer, csv, digits, libsvm, own, quadratic
from equipoise.tasks.encoded import with_encoder
from equipoise.tasks.encoder import Encoder, read_encoder
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.network import ModelClients
from equipoise.tasks.reader import Reader
from equipoise.tasks.task import Measure, Task, TaskOptions, TaskSpec, alone

ANOTHER_ENCODER = (
    "a saved run holds its name alone: give the file, equipoise.load(RUN).with_features(FILE)"
)

TASKS: dict[str, TaskSpec] = {
    "breast-cancer": breast_cancer.SPEC,
    "cifar10": cifar10.SPEC,
    "cifar10-narrow": cifar10.NARROW_SPEC,
    "csv": csv.SPEC,
    "deepdrid": messidor.DEEPDRID_SPEC,
    "deepdrid-narrow": messidor.DEEPDRID_NARROW_SPEC,
    "digits": digits.SPEC,
    "digits-mlp": digits.MLP_SPEC,
    "fed-ixi": fed_ixi.SPEC,
    "femnist": femnist.SPEC,
    "femnist-narrow": femnist.NARROW_SPEC,
    "hippocampus": fed_ixi.HIPPOCAMPUS_SPEC,
    "hippocampus-narrow": fed_ixi.HIPPOCAMPUS_NARROW_SPEC,
    "libsvm": libsvm.SPEC,
    "messidor": messidor.SPEC,
    "quadratic": quadratic.SPEC,
    "reddit": reddit.SPEC,
    "reddit-narrow": reddit.NARROW_SPEC,
}


def task_spec(name: str) -> TaskSpec:
    """The task `name`: one of TASKS, or the path of a Python file that defines one."""
    if name in TASKS:
        return TASKS[name]
    if is_file(name):
        return own.file_spec(name)
    near = get_close_matches(name, TASKS, n=1)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    raise InvalidValue(
        f"task={name!r} is unknown: the tasks are {', '.join(sorted(TASKS))}, or a Python file "
        f"that defines one{suggestion}"
    )


def load_task(name: str, options: TaskOptions) -> Task:
    """The task with all its clients, in this process."""
    spec = _checked(name, options)
    return _with_features(spec.load(options), spec, options)


def load_client(name: str, options: TaskOptions, client: int) -> Task:
    """The task with one client alone: gradients and minibatches as among all.

    Where every client has files of its own, those of the others are not opened.
    """
    spec = _checked(name, options)
    if spec.load_client:
        task = spec.load_client(options, client)
    else:
        task = alone(spec.load(options), client)
    return _with_features(task, spec, options)


def load_to_plan(name: str, options: TaskOptions) -> Task:
    """The task as a planner may see it: private files are not opened; of other tasks it uses the
    pool."""
    spec = _checked(name, options)
    return _with_features((spec.load_to_plan or spec.load)(options), spec, options)


def _with_features(task: Task, spec: TaskSpec, options: TaskOptions) -> Task:
    """The task, or a linear head on the features of an encoder where one is given."""
    if options.features is None:
        return task
    encoder = read_encoder(options.features)
    if spec.own_files:
        own_batch = replace(options, batch=task.batch or "full")
        return with_encoder(task, encoder, own_batch, task.iterations)
    return with_encoder(task, encoder, options)


def load_measure(
    name: str,
    options: TaskOptions,
    data: tuple[str, ...],
    reading: dict[str, Any],
    groups: str | None = None,
) -> Measure:
    """How to measure a model of the task: on the files `data`, or else on its public test records;
    by the groups of a column too, or by those of the run where the files have them.

    `reading` is what the run's result kept to read other files alike; private files stay closed.
    """
    require(
        is_named(name),
        f"task={name!r} was made in Python: measure its model there",
    )
    spec, files = task_spec(name), data or options.test
    _check_groups(spec, groups)
    if spec.takes.columns and spec.measure:
        return spec.measure(files, groups, options.groups, **reading)
    if spec.measure and files:
        return spec.measure(files, **reading)
    require(not data, f"data with task={name}, which brings its own records: leave it out")
    task = load_task(name, options)
    measure = task.measure
    require(
        task.reading.get("encoder") == reading.get("encoder"),
        f"features={options.features} with task={name}: it is not the encoder of this run; "
        f"{ANOTHER_ENCODER}",
    )
    if measure is None:
        way_out = ": give --data FILE" if spec.measure else ""
        raise InvalidValue(f"task={name} has no public test records{way_out}")
    return measure


def load_reader(name: str, reading: dict[str, Any]) -> Reader:
    """How records are read for a model of the task, from what the run's result kept."""
    spec = task_spec(name) if is_named(name) else None
    if spec is None or spec.reader is None:
        raise InvalidValue(
            f"task={name} reads no file of records that are not its own: in Python, "
            "equipoise.load(RUN).model is the torch module, for inputs as the task makes them"
        )
    try:
        reader: Reader = spec.reader(**reading)
    except TypeError:
        raise DataError(
            f"task={name}: the run does not say how records are read as this version does: update, "
            "or train again"
        ) from None
    return reader


def load_network(name: str, options: TaskOptions) -> FlatModel | None:
    """The network of the task; None if its model is linear."""
    require(
        is_named(name),
        f"task={name!r} was made in Python, so its module is there and not with the run: load "
        "model.safetensors into it (module.load_state_dict)",
    )
    spec = task_spec(name)
    if spec.takes.l2:
        return None
    if spec.network:
        return FlatModel(spec.network(options))
    clients = load_task(name, options).clients
    require(isinstance(clients, ModelClients), f"task={name} has no inputs: its model is `x`")
    assert isinstance(clients, ModelClients)
    return clients.model


def load_encoder(name: str, options: TaskOptions) -> Encoder:
    """The encoder of a run of this task."""
    if options.features is not None and Path(options.features).is_file():
        return read_encoder(options.features)
    within = is_file(name) and own.encoder_of_file(name, options)
    if within and options.features is None:
        return within
    raise InvalidValue(
        f"features={options.features} with task={name}: the encoder of this run is not there; "
        f"{ANOTHER_ENCODER}"
    )


def is_named(name: str) -> bool:
    """Whether it stands for a task that anybody can load."""
    return name in TASKS or is_file(name)


def is_file(name: str) -> bool:
    """Whether it is the path of a Python file, which runs where the task is loaded."""
    return name not in TASKS and name.endswith(".py")


def _checked(name: str, options: TaskOptions) -> TaskSpec:
    """The task, once it is clear that it understands everything that was said to it."""
    spec = task_spec(name)
    linear = spec.takes.l2 or spec.takes.features or options.features is not None
    _check_overlap(options)
    for option in ("data", "test", "proxy"):
        require(
            spec.takes.files or not getattr(options, option),
            f"{option} with task={name}, which brings its own records: leave it out",
        )
    for option in ("label", "ignore"):
        require(
            spec.takes.columns or not getattr(options, option),
            f"{option} with task={name}: only task csv reads columns; leave it out",
        )
    require(
        spec.takes.person or options.person is None,
        f"person={options.person} with task={name}: only tasks csv and libsvm are told whose a "
        "record is; leave it out",
    )
    _check_groups(spec, options.groups)
    require(
        spec.takes.columns or spec.takes.bounds or not options.bounds,
        f"bounds with task={name}: only tasks csv and libsvm read them; leave it out",
    )
    require(
        linear or options.l2 is None,
        f"l2 with task={name}, which is no linear model with a regulariser: leave it out",
    )
    require(
        linear or options.public_l2 is None,
        f"public_l2 with task={name}, which is no linear model with a regulariser: leave it out",
    )
    require(
        spec.takes.public_records or not options.public_records,
        f"public_records with task={name}: it has no records to declare public; leave it out",
    )
    require(
        spec.takes.test_share or not options.test_share,
        f"test_share with task={name}: only task libsvm has one file of which a share can be the "
        "test set; leave it out",
    )
    return spec


def _check_groups(spec: TaskSpec, groups: str | None) -> None:
    require(
        spec.takes.columns or groups is None,
        f"groups={groups} with task={spec.name}: only task csv reads columns; leave it out",
    )


def _check_overlap(options: TaskOptions) -> None:
    """A file that stands for two clients, or for private and for public records, breaks the
    promise."""
    places: dict[Path, str] = {}
    for role in ("data", "test", "proxy"):
        for path in getattr(options, role):
            before = places.get(Path(path).resolve())
            require(
                before is None,
                f"{path} is given twice, as {before} and as {role}: a file is one client's, or "
                "public, once",
            )
            places[Path(path).resolve()] = role
