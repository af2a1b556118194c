"""What each party of an agreement loads of the task: a silo its own records, the lead none."""

import hashlib
from dataclasses import replace
from pathlib import Path

from equipoise.errors import DataError, InvalidValue, require
from equipoise.federation.agreement import Agreement
from equipoise.settings import Settings
from equipoise.tasks import Task, TaskOptions, is_file, load_client, load_to_plan, task_spec
from equipoise.tasks.bounds import GivenBounds
from equipoise.tasks.try_data import Tried, try_data

BOUNDS = "the bounds of the agreement"


def silo_part(
    agreement: Agreement,
    index: int,
    data: str | None = None,
    task_file: str | None = None,
    person: str | None = None,
    features: str | None = None,
) -> Task:
    """The task with one silo's own records, from its file or folder `data`; `person` is its file of
    names, where those are not in a column, and `features` its copy of the encoder."""
    name, options = _name(agreement, task_file), _options(agreement)
    brings = task_spec(name).takes.files
    if brings and data is None:
        raise InvalidValue(
            f"task={agreement.run.task} needs your own records: give their file (--data FILE)"
        )
    require(
        brings or data is None,
        f"data={data} with task={agreement.run.task}, which brings its own records: leave it out "
        "(for a data set of the paper, EQUIPOISE_DATA names your folder)",
    )
    if person is not None:
        require(
            options.person is None,
            f"person={person} where the agreement names the column {options.person}: leave it out",
        )
        options = replace(options, person=person)
    options = replace(options, features=features)
    if data is not None:
        everybody = tuple(f"silo {member.name}" for member in agreement.silos)
        mine = (*everybody[:index], data, *everybody[index + 1 :])
        options = replace(options, data=mine)
    return load_client(name, options, index)


def lead_part(
    agreement: Agreement,
    test: tuple[str, ...] = (),
    proxy: tuple[str, ...] = (),
    groups: str | None = None,
    task_file: str | None = None,
    features: str | None = None,
) -> Task:
    """The task as everybody may know it, with the lead's public records."""
    options = replace(_options(agreement), test=test, proxy=proxy, groups=groups, features=features)
    return load_to_plan(_name(agreement, task_file), options)


def tried(agreement: Agreement, data: str, person: str | None = None) -> Tried | None:
    """What training makes of a silo's own table or LIBSVM text, for its owner's eyes; None of other
    tasks."""
    options = _options(agreement)
    if options.bounds is None:
        return None
    return try_data(
        data,
        task=agreement.run.task,
        bounds=options.bounds,
        label=options.label,
        person=options.person or person,
        ignore=options.ignore,
    )


def digest_of(task: str) -> str | None:
    """SHA-256 of the task file, where the task is one."""
    if not is_file(task):
        return None
    try:
        return hashlib.sha256(Path(task).read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"task={task} cannot be read: {error.strerror}") from None


def public_part(settings: Settings, bounds: str | None) -> Task:
    """The task as it is known before there is an agreement."""
    options = replace(TaskOptions.of(settings), data=())
    if bounds is not None:
        options = replace(options, bounds=GivenBounds.of(str(settings.bounds), bounds))
    return load_to_plan(settings.task, options)


def _options(agreement: Agreement) -> TaskOptions:
    options = TaskOptions.of(agreement.run)
    if agreement.bounds is None:
        return options
    return replace(options, bounds=GivenBounds.of(BOUNDS, agreement.bounds))


def _name(agreement: Agreement, task_file: str | None) -> str:
    """What the task is called here: a task file by its path, once it is the one agreed on."""
    task = agreement.run.task
    if agreement.task_file is None:
        require(
            task_file is None,
            f"task_file={task_file} with task={task}, which is no file: leave it out",
        )
        return task
    if task_file is None:
        raise InvalidValue(f"the agreement is about {task}: give your copy (--task-file {task})")
    require(
        digest_of(task_file) == agreement.task_file,
        f"task_file={task_file} is not the file that was agreed on: its SHA-256 differs; get the "
        f"{task} of the agreement from the lead, and read it",
    )
    return task_file
