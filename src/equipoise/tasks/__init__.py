"""What is learnt: data, model, loss, measure, and public constants."""

from equipoise.tasks.catalogue import TASKS, load_measure, load_task, load_to_plan
from equipoise.tasks.own import own_task
from equipoise.tasks.task import Clients, Measured, Options, Task, stacked

__all__ = [
    "TASKS",
    "Clients",
    "Measured",
    "Options",
    "Task",
    "load_measure",
    "load_task",
    "load_to_plan",
    "own_task",
    "stacked",
]
