"""What is learnt: data, model, loss, measure, and public constants."""

from equipoise.tasks.catalogue import TASKS, load_task
from equipoise.tasks.task import Clients, Task

__all__ = ["TASKS", "Clients", "Task", "load_task"]
