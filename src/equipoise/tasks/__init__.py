"""What is learnt: data, model, loss, measure, and public facts."""

from typing import TYPE_CHECKING

from equipoise._lazy import lazy_names

if TYPE_CHECKING:
    from equipoise.tasks.catalogue import (
        TASKS,
        is_file,
        load_client,
        load_encoder,
        load_measure,
        load_network,
        load_reader,
        load_task,
        load_to_plan,
        task_spec,
    )
    from equipoise.tasks.own import own_task
    from equipoise.tasks.task import Clients, Measured, Task, TaskOptions, stacked

__all__ = [
    "TASKS",
    "Clients",
    "Measured",
    "Task",
    "TaskOptions",
    "is_file",
    "load_client",
    "load_encoder",
    "load_measure",
    "load_network",
    "load_reader",
    "load_task",
    "load_to_plan",
    "own_task",
    "stacked",
    "task_spec",
]

__getattr__ = lazy_names(
    __name__,
    {
        "catalogue": (
            "TASKS is_file load_client load_encoder load_measure load_network load_reader "
            "load_task load_to_plan task_spec"
        ),
        "own": "own_task",
        "task": "Clients Measured Task TaskOptions stacked",
    },
)
