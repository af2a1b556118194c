"""`adapt`: a federated model tuned at home, on the records of one client, by whoever holds them.

It minimises the client's own mean loss + (l2/2) |x|^2 + (rho/2) |x - x_federated|^2. Which rho and
l2, cross-validation on the same records says: rho = 0 is the best model of these records alone
(with an l2 of its own), rho = inf the federated model as it is. Nothing is clipped or noised, so
the result must stay where the records are: it says so, is never private, and its module is refused
where a federation could begin from it.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from equipoise.errors import require
from equipoise.planning.at_home import (
    FEWEST_RECORDS,
    PULLS,
    AtHome,
    Indices,
    best_of,
    every_pull,
    pulled,
    tuned,
)
from equipoise.result import Adapted, Result
from equipoise.saved import check_room, claimed, load
from equipoise.tasks import Task, TaskOptions, load_client, load_reader, load_task, task_spec
from equipoise.tasks.catalogue import is_named
from equipoise.tasks.encoded import own_table
from equipoise.tasks.flat_model import named_tensors
from equipoise.tasks.linear import LinearClients, Link
from equipoise.tasks.network import ModelClients, measure
from equipoise.tasks.own_data import read_public
from equipoise.tasks.task import Measured, Table

Layers = Literal["last", "all"]
NOTICE = (
    "NOT TO BE RELEASED: tuned on one client's own records, without noise; it stays where they "
    "are, and enters no federation."
)
RHOS = (*PULLS, 10.0)
EXACT = 1e-8  # length of the gradient of the final model, where that is linear
NETWORK_RHOS = (1.0, 1e-1, 1e-2, 1e-3, 0.0)
STEPS = 50  # of L-BFGS, for a network
AT_ONCE = 256  # records of a network


class Tuned(NamedTuple):
    """A model x, the rho and l2 that gave it, and what cross-validation says of it, of the
    federated model as it is, and of one's own records alone."""

    x: Tensor
    rho: float
    l2: float
    best: AtHome
    federated: AtHome
    alone: AtHome


def chosen(tried: Sequence[AtHome], federated: AtHome, records: int) -> AtHome:
    """That with the smallest loss of those that err on no more records than the federated model as
    it is, or on one more, of records that were left out. The loss alone leaves a good model too
    readily: noise makes it too sure of itself, and a cure of that may cost errors."""
    most = federated.error + (1 + 1e-9) / records
    return best_of([each for each in tried if not each.error > most])


class Own(Protocol):
    """A client's own records with a label, and their loss."""

    @property
    def number(self) -> int: ...

    def one_label(self) -> bool:
        """Whether all records have the same."""
        ...

    def search(self, federated: Tensor) -> Tuned: ...


@dataclass(frozen=True, repr=False)
class LinearOwn:
    records: Table
    link: Link

    @property
    def number(self) -> int:
        return len(self.records.features)

    def one_label(self) -> bool:
        return self.link.constant(self.records.targets) == 0

    def search(self, federated: Tensor) -> Tuned:
        x, zero = federated.double(), torch.zeros_like(federated, dtype=torch.float64)
        towards = pulled(self.records, self.link, x, (math.inf, *RHOS))
        alone = best_of(pulled(self.records, self.link, zero))
        best = chosen([*towards, alone], towards[0], self.number)
        centre, rho, l2 = (zero, 0.0, best.pull) if best is alone else (x, best.pull, 0.0)
        solved = tuned(self.records, self.link, centre, best.pull, EXACT)
        return Tuned(solved, rho, l2, best, towards[0], alone)


@dataclass(frozen=True, repr=False)
class NetworkOwn:
    """Of a network the parameters `names` are tuned, from the federated model on."""

    clients: ModelClients
    inputs: Tensor
    targets: Tensor
    names: tuple[str, ...]

    @property
    def number(self) -> int:
        return len(self.inputs)

    def one_label(self) -> bool:
        classes = self.targets.dim() == 1 and not self.targets.is_floating_point()
        return classes and bool((self.targets == self.targets[0]).all())

    def search(self, federated: Tensor) -> Tuned:
        def fit(rho: float, used: Indices) -> Tensor:
            return self._tuned(federated, rho, used)

        tried = every_pull((math.inf, *NETWORK_RHOS), self.number, fit, self._measured)
        best = chosen(tried, tried[0], self.number)
        solved = fit(best.pull, np.arange(self.number))
        return Tuned(solved, best.pull, 0.0, best, tried[0], tried[-1])

    def _measured(self, x: Tensor, index: Indices) -> Measured:
        chosen = torch.from_numpy(index)
        records = (self.inputs[chosen], self.targets[chosen])
        clients = self.clients
        return measure(clients.model, clients.loss, clients.metric, (records,), x)

    def _tuned(self, federated: Tensor, rho: float, used: Indices) -> Tensor:
        if rho == math.inf:
            return federated
        places = _places(self.clients.model.shapes, self.names)
        start = federated[places].double().numpy()

        def loss_and_gradient(numbers: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            x = federated.clone()
            x[places] = torch.from_numpy(numbers).to(x.dtype)
            loss, gradient = self._slope(x, used)
            away = numbers - start
            return loss + rho / 2 * float(away @ away), gradient + rho * away

        solved = minimize(
            loss_and_gradient, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}
        )
        x = federated.clone()
        x[places] = torch.from_numpy(solved.x).to(x.dtype)
        return x

    def _slope(self, x: Tensor, used: Indices) -> tuple[float, NDArray[np.float64]]:
        """The mean loss of these records, and its gradient by what is tuned."""
        total, summed = 0.0, np.zeros(())
        for start in range(0, len(used), AT_ONCE):
            some = torch.from_numpy(used[start : start + AT_ONCE])
            loss, gradient = self.clients.model.slope(
                x, self.names, self.clients.loss, self.inputs[some], self.targets[some]
            )
            share = len(some) / len(used)
            total, summed = total + share * loss, summed + share * gradient.double().numpy()
        return total, summed


def _places(shapes: dict[str, tuple[int, ...]], names: tuple[str, ...]) -> Tensor:
    """Where in the vector x the tensors of these names lie, as a mask."""
    sizes = sum(math.prod(shape) for shape in shapes.values())
    parts = named_tensors(torch.arange(sizes), shapes)
    mask = torch.zeros(sizes, dtype=torch.bool)
    mask[torch.cat([parts[name].reshape(-1) for name in names])] = True
    return mask


def adapt(
    result: "Result | str | os.PathLike[str]",
    data: Any = None,
    *,
    client: int | None = None,
    layers: Layers | None = None,
    task: Task | None = None,
    out: "str | os.PathLike[str] | None" = None,
) -> Result:
    """Tune a run's model on one's own records, without noise: the result must not be released.

    result   a result, or the folder of one
    data     one's own records with their label: a file, or for task csv a frame or columns by name;
             of a network, or a head on an encoder, a pair (inputs, targets)
    client   or else: the records of this client of the task, from 0
    layers   of a network: the last layer (the default), or all
    task     the task, where it was made in Python
    out      a new folder to save in

    >>> shared = equipoise.train(task="breast-cancer", clients=4, epsilon=8, clip=1, iterations=8)
    >>> mine = equipoise.adapt(shared, client=2)
    >>> mine.private, mine.adapted.records
    (False, 95)
    """
    federated = result if isinstance(result, Result) else load(result)
    require(
        federated.adapted is None,
        "the run was tuned at home already: begin from the federated run that it came from",
    )
    require(federated.x is not None, "the result was read without its model: nothing can be tuned")
    require(
        (data is None) != (client is None),
        "give one of data, a file of your own records, and client, the number of a client of the "
        "task, from 0",
    )
    require(
        bool(np.isfinite(federated.x).all()),
        "the run's model has parameters that are no numbers, since it diverged: train again, with "
        "a smaller eta",
    )
    own = _own(federated, data, client, layers, task)
    require(
        own.number >= FEWEST_RECORDS,
        f"{_whose(data, client)} has fewer than {FEWEST_RECORDS} records with a declared label: "
        "too few to leave some out",
    )
    require(
        not own.one_label(),
        f"all records of {_whose(data, client)} have the same label: there is nothing to tune on",
    )
    if out is None:
        return _adapted(federated, own)
    with claimed(out, go_on=False) as claim:
        check_room(claim.folder, federated.dimension)
        adapted = _adapted(federated, own)
        claim.save(adapted)
    return adapted


def _whose(data: Any, client: int | None) -> str:
    if client is not None:
        return f"client={client}"
    return f"data={os.fspath(data)}" if isinstance(data, str | os.PathLike) else "data"


def _own(
    result: Result, data: Any, client: int | None, layers: Layers | None, task: Task | None
) -> Own:
    """One's own records with a label, and the loss of the task."""
    name, options = result.run.task, TaskOptions.of(result.run)
    if task is None and data is not None and is_named(name) and task_spec(name).takes.l2:
        _check_linear(layers)
        require(
            task_spec(name).reader is not None,
            f"data with task={name}, which brings its own records: give client, the number of one "
            "of its clients, from 0",
        )
        reader = load_reader(name, result.reading)
        return LinearOwn(reader.records(data), reader.link)
    if task is None:
        require(
            is_named(name),
            f"task={name!r} was made in Python: give it too, adapt(result, data, task=task)",
        )
        task = load_task(name, options) if client is None else load_client(name, options, client)
        clients: Any = task.clients
    else:
        clients = task.clients if client is None else _alone(task, client)
    if isinstance(clients, LinearClients):
        _check_linear(layers)
        if data is not None:
            return LinearOwn(_taught(own_table(task, data)), clients.link)
        return _linear_own(clients)
    require(
        isinstance(clients, ModelClients),
        f"task={name} has no records: nothing can be tuned on them",
    )
    return _network_own(clients, result, data, layers or "last")


def _alone(task: Task, client: int) -> Any:
    number = len(task.clients.sizes)
    require(0 <= client < number, f"client={client} is not one of the {number} clients, from 0")
    return task.clients.alone(client)


def _check_linear(layers: Layers | None) -> None:
    require(
        layers is None, f"layers={layers} with a linear model, which has one layer: leave it out"
    )


def _linear_own(clients: LinearClients) -> LinearOwn:
    """Of one client alone."""
    table = Table(clients.features.numpy(), clients.targets.numpy())
    return LinearOwn(_taught(table), clients.link)


def _taught(table: Table) -> Table:
    """Less records that count for nothing, which are all zero."""
    return table.rows(table.features[:, -1] != 0)


def _network_own(clients: ModelClients, result: Result, data: Any, layers: Layers) -> NetworkOwn:
    names = [*result.parameters]
    if layers == "last":
        last = names[-1].rpartition(".")[0]
        names = [name for name in names if name.rpartition(".")[0] == last]
    require(
        clients.model.shapes == result.parameters,
        f"task={result.run.task} has another model now than the one that was trained",
    )
    if data is None:
        (whole,), (marks,) = clients.data, clients.unreadable
        inputs, targets = (part[~marks] for part in whole)
    else:
        require(
            not isinstance(data, str | os.PathLike),
            f"data={data} with a network, which reads no tables: give client, the number of one of "
            "the task's clients, or in Python data=(inputs, targets)",
        )
        inputs, targets = read_public(data, "data", clients.model.dtype, clients.model.parts)
    return NetworkOwn(clients, inputs, targets, tuple(names))


def _adapted(federated: Result, own: Own) -> Result:
    """The result of tuning: figures that were measured of the federated model are not its own."""
    start = torch.from_numpy(federated.x)
    tuning = own.search(start)
    tensors = own.names if isinstance(own, NetworkOwn) else tuple(federated.parameters)
    about = Adapted(
        rho=tuning.rho,
        l2=tuning.l2,
        tensors=tensors,
        records=own.number,
        error=tuning.best.error,
        standard_error=tuning.best.standard_error,
        federated_error=tuning.federated.error,
        alone_error=tuning.alone.error,
    )
    return federated.model_copy(
        update={
            "adapted": about,
            "private": False,
            "notices": [NOTICE, *federated.notices],
            "test_error": None,
            "baseline_error": None,
            "client_error": None,
            "public_only": None,
            "measures": None,
            "curve": [],
            "per_round": None,
            "failed": None,
            "repeat": None,
            "x": tuning.x.to(start.dtype).numpy(),
        }
    )
