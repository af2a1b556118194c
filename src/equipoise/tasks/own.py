"""A user's own torch model and data: an nn.Module, one data set per client, a loss and a metric."""

import runpy
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from equipoise.errors import DataError, EquipoiseError, InvalidValue, require
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.records import Minibatches
from equipoise.tasks.task import Measured, Options, Task

Records = tuple[Tensor, Tensor]
"""Inputs and targets of all records of a data set, stacked."""

LEARNING_RATE = 0.01
ITERATIONS = 100


@dataclass(frozen=True)
class ModelClients:
    """Clients that hold the records `data[i]` of a network. Each is a gradient by itself: stacking networks gains nothing."""

    model: FlatModel
    loss: Callable[[Tensor, Tensor], Tensor]
    metric: Callable[[Tensor, Tensor], Any]
    data: tuple[Records, ...]
    minibatches: Minibatches | None = None
    single: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(inputs) for inputs, _ in self.data)

    def gradient(self, x: Tensor, t: int) -> Tensor:
        if x.dim() > (1 if self.single else 2):  # stacked runs
            return torch.stack([self.gradient(run, t) for run in x])
        if self.single:
            return self._gradient(0, x, t)
        return torch.stack([self._gradient(i, x_i, t) for i, x_i in enumerate(x)])

    def _gradient(self, i: int, x: Tensor, t: int) -> Tensor:
        inputs, targets = self.data[i]
        if len(inputs) == 0:
            return torch.zeros_like(x)
        if self.minibatches:
            chosen = torch.from_numpy(self.minibatches.of(i, t))
            inputs, targets = inputs[chosen], targets[chosen]
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.loss(self.model(x, inputs), targets), x)
        return gradient

    def error(self, x: Tensor) -> Tensor:
        inputs, targets = (torch.cat(parts) for parts in zip(*self.data, strict=True))
        return _measure(self.model, self.loss, self.metric, (inputs, targets), x).error

    def alone(self, client: int) -> Self:
        batches = self.minibatches and self.minibatches.alone(client)
        return type(self)(self.model, self.loss, self.metric, self.data[client : client + 1], batches, single=True)


def own_task(
    model: nn.Module,
    clients: Sequence[Any],
    loss: Callable[[Tensor, Tensor], Tensor],
    metric: Callable[[Tensor, Tensor], Any],
    *,
    test: Any = None,
    learning_rate: float = LEARNING_RATE,
    iterations: int = ITERATIONS,
    batch: int | None = None,
    seed: int = 0,
    name: str = "own",
    public: tuple[str, ...] = ("the initial weights of the model", "the test set"),
    sizes_public: bool = False,
) -> Task:
    """A task from a torch model and one data set per client.

    clients, test   torch data sets, or pairs (inputs, targets) of tensors; `test` is public
    loss            loss(outputs, targets): a mean over examples
    metric          metric(outputs, targets): larger is better, at most 1; the test error is 1 - metric, as in the paper
    """
    flat = FlatModel(model)
    require(len(clients) >= 1, "clients is empty: give one data set per client")
    data = tuple(_stacked(client, f"client {i}") for i, client in enumerate(clients))
    _check_mean(flat, loss, data)
    minibatches = Minibatches(seed, batch, tuple(len(inputs) for inputs, _ in data)) if batch else None
    records = None if test is None else _stacked(test, "the test set")
    return Task(
        name=name,
        x0=flat.initial(),
        shapes=flat.shapes,
        clients=ModelClients(flat, loss, metric, data, minibatches),
        measure=None if records is None else lambda x: _measure(flat, loss, metric, records, x),
        error_name="1 - metric",
        constant_error=None if records is None else _constant_error(flat, metric, records),
        learning_rate=learning_rate,
        iterations=iterations,
        public=public,
        batch=batch,
        sizes_public=sizes_public,
    )


def _constant_error(model: FlatModel, metric: Any, records: Records) -> float | None:
    """The error of the best constant class on the public records; None where targets are not classes."""
    inputs, targets = records
    with torch.no_grad():
        outputs = model(model.initial(), inputs[:1])
    if targets.is_floating_point() or targets.dim() != 1 or outputs.dim() != 2 or int(targets.max()) >= outputs.shape[1]:
        return None
    answer = torch.zeros(len(targets), outputs.shape[1])
    answer[:, torch.bincount(targets).argmax()] = 1
    return 1 - float(metric(answer, targets))


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """The share of examples whose largest output is their label: a metric for classification."""
    return float((outputs.argmax(-1) == labels).double().mean())


def _measure(model: FlatModel, loss: Any, metric: Any, records: Records, x: Tensor) -> Measured:
    if x.dim() > 1:
        errors, losses = zip(*(_measure(model, loss, metric, records, run) for run in x), strict=True)
        return Measured(torch.stack(errors), torch.stack(losses))
    inputs, targets = records
    with torch.no_grad():
        outputs = model(x, inputs)
        return Measured(torch.as_tensor(1 - float(metric(outputs, targets))), torch.as_tensor(float(loss(outputs, targets))))


def _stacked(data: Any, whose: str) -> Records:
    """All records of a data set as two tensors."""
    try:
        if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
            inputs, targets = data
        else:
            inputs, targets = (
                torch.stack([torch.as_tensor(part) for part in parts])
                for parts in zip(*(data[j] for j in range(len(data))), strict=True)
            )
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise DataError(f"{whose} is neither a data set of (input, target) examples nor a pair of tensors: {error}") from None
    if len(inputs) != len(targets):
        raise DataError(f"{whose} has {len(inputs)} inputs and {len(targets)} targets")
    return inputs, targets


def _check_mean(model: FlatModel, loss: Callable[[Tensor, Tensor], Tensor], data: tuple[Records, ...]) -> None:
    """Refuse a loss that is not a mean over examples, on made-up examples: no private value decides."""
    inputs, targets = next(records for records in data if len(records[0]))
    generator = torch.Generator().manual_seed(0)
    made_up = torch.randn((4, *inputs.shape[1:]), generator=generator).to(inputs.dtype)
    labels = torch.zeros((4, *targets.shape[1:]), dtype=targets.dtype)
    try:
        outputs = model(model.initial(), made_up).detach()
        whole, parts = loss(outputs, labels), [loss(outputs[j : j + 1], labels[j : j + 1]) for j in range(4)]
    except Exception as error:  # whatever a user's model raises
        raise InvalidValue(f"the model and loss fail on examples shaped like the clients': {error}") from None
    require(
        whole.dim() == 0 and bool(torch.isclose(whole, torch.stack(parts).mean(), rtol=1e-3, atol=1e-6)),
        f"the loss of 4 examples is {whole.tolist()}, the mean of their single losses {torch.stack(parts).mean().item():.6g}: "
        "the loss must be a mean over examples (reduction='mean')",
    )


def task_file(path: str, options: Options) -> Task:
    """The task that a Python file defines by the names model, clients, loss, metric, and perhaps test, learning_rate,
    iterations, batch. The file runs with torch seeded by the public seed, so that initial weights repeat."""
    require(Path(path).is_file(), f"task={path!r}: there is no such file")
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        try:
            given = runpy.run_path(path)
        except EquipoiseError:
            raise
        except BaseException as error:
            raise DataError(f"{path}, line {_line(error, path)}: {type(error).__name__}: {error}") from None
    missing = [name for name in ("model", "clients", "loss", "metric") if name not in given]
    require(not missing, f"{path} defines no {' and no '.join(missing)}: a task file gives model, clients, loss and metric")
    require(options.split == "random", f"split={options.split!r}: {path} says itself which client holds what; leave it out")
    extra = {name: given[name] for name in ("test", "learning_rate", "iterations", "batch") if name in given}
    if options.batch is not None:
        extra["batch"] = options.batch
    own = {name: given[name] for name in ("model", "clients", "loss", "metric")}
    return own_task(**own, **extra, seed=options.seed, name=path)


def _line(error: BaseException, path: str) -> str:
    if isinstance(error, SyntaxError) and error.filename == path:
        return str(error.lineno)
    lines = [str(frame.lineno) for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else "?"
