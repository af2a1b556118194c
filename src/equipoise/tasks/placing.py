"""Where a task is computed: its records and models on a device, for as long as it is used."""

from dataclasses import replace
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import torch

from equipoise.device import AUTO, HOST, KINDS, device_of, has_double
from equipoise.errors import InvalidValue, require
from equipoise.privacy.promise import Unit
from equipoise.tasks.network import ModelClients
from equipoise.tasks.task import Task

Part = TypeVar("Part")


@runtime_checkable
class Movable(Protocol):
    """Clients, or a measure, that can compute on a device: gradients of models that lie there;
    errors and losses of models that lie anywhere, told on the host."""

    def to(self, device: torch.device) -> Self: ...


def chosen_device(name: str, task: Task, unit: Unit) -> str:
    """The device itself, where `auto` was asked for: of networks the first kind that is here and
    can compute them, of others the host, which is quicker with small models."""
    if name != AUTO:
        return name
    kinds = KINDS if isinstance(task.clients, ModelClients) else ()
    usable = (kind for kind in kinds if KINDS[kind].present() and not _lack(kind, task, unit))
    return next(usable, HOST)


def placed(task: Task, name: str, unit: Unit) -> Task:
    """The task with its clients, public pool and measure on this device; kept with the task. The
    initial model stays on the host, where the server is."""
    device = device_of(name)
    if device.type == HOST:
        return task
    lack = _lack(device.type, task, unit)
    require(not lack, f"device={name} with task={task.name} {lack}; use device={HOST}")
    kept = vars(task).setdefault("placed", {})
    if device not in kept:
        kept[device] = replace(
            task,
            clients=_moved(task.clients, device, task),
            pool=_moved(task.pool, device, task) if isinstance(task.pool, Movable) else task.pool,
            measure=task.measure and _moved(task.measure, device, task),
            device=str(device),
        )
    there: Task = kept[device]
    return there


def _lack(kind: str, task: Task, unit: Unit) -> str:
    """What keeps a kind of device from computing the task; empty if nothing does."""
    if has_double(torch.device(kind)):
        return ""
    if task.x0.dtype == torch.float64:
        return f"is in double precision, which {kind} does not have"
    if unit == "record":
        return (
            "and unit=record: norms and sums of single records' gradients are in double precision, "
            f"which {kind} does not have"
        )
    return ""


def _moved(part: Part, device: torch.device, task: Task) -> Part:
    movable: Any = part
    if not isinstance(part, Movable):
        raise InvalidValue(
            f"device={device} with task={task.name}, which computes on the host: use device={HOST}"
        )
    moved: Part = movable.to(device)
    return moved
