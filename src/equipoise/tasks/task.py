"""What a task is: private records held by clients, a loss, a public measure of the result, and
public facts. No repr here shows a record."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.device import HOST
from equipoise.errors import InvalidValue, require
from equipoise.facts import Facts
from equipoise.privacy.promise import Unit
from equipoise.tasks.persons import held


class Clients(Protocol):
    """The private records of the clients, with their loss. All works on the last axis of x."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of records of each client."""
        ...

    def gradient(self, x: Tensor, t: int) -> Tensor:
        """The gradient of each client's mean loss at its own x [..., clients, d], on its minibatch
        t (or on all records)."""
        ...

    def error(self, x: Tensor) -> Tensor:
        """The error of the model x [..., d] on all private records: for simulations only."""
        ...

    def alone(self, client: int) -> Self:
        """One client by itself, for x of shape [..., d]."""
        ...


@runtime_checkable
class Records(Protocol):
    """Clients whose records can be told apart: what protecting one record needs."""

    @property
    def sizes(self) -> tuple[int, ...]: ...

    def clipped_sum(
        self, x: Tensor, chosen: Tensor | None, C: float | Tensor, draw: int
    ) -> Tensor: ...

    def regulariser(self, x: Tensor) -> Tensor: ...

    def check_records(self) -> None:
        """Refuse a model whose records cannot be told apart, before anything is spent."""
        ...

    def isolated(self) -> Self:
        """The same, every record in a pass of its own; refused where there are no passes."""
        ...

    def slow_layers(self) -> tuple[str, ...]:
        """What makes gradients of single records slow."""
        ...


@runtime_checkable
class Persons(Protocol):
    """Clients who may know whose each of their records is: what protecting one person needs."""

    @property
    def owners(self) -> tuple[NDArray[np.int64], ...] | None:
        """The person of each record of every client, a number from 0; None where nobody knows."""
        ...

    def of_persons(self, most: int) -> Any:
        """`Records` with a person in place of each, with at most so many of its records."""
        ...


@runtime_checkable
class Convex(Protocol):
    """Clients whose losses, gradients and Hessians are known in closed form."""

    @property
    def sizes(self) -> tuple[int, ...]: ...
    def gradient(self, x: Tensor, t: int) -> Tensor: ...
    def loss(self, x: Tensor) -> Tensor: ...
    def hessians(self, x: Tensor) -> Tensor: ...
    def single(self) -> Self: ...


@runtime_checkable
class Stackable(Protocol):
    """Clients, or a measure, of which several can work in one computation."""

    @staticmethod
    def stacked(rows: list[Any]) -> Any: ...


@runtime_checkable
class NotesFailures(Protocol):
    """Clients that mark which of their records fail, and leave these out from then on."""

    @property
    def useless(self) -> tuple[Tensor, ...]: ...


class Table(NamedTuple):
    """Records as a model sees them: features [n, features] (the last is 1) and targets [n,
    outputs]."""

    features: NDArray[np.float64]
    targets: NDArray[np.float64]

    def rows(self, index: NDArray[Any]) -> "Table":
        """The records at these indices, or where a mask is true."""
        return Table(self.features[index], self.targets[index])

    def __repr__(self) -> str:
        return f"Table({len(self.features)} records)"


class Measured(NamedTuple):
    """The error (the paper's 1 - metric) and the mean loss of a model, or of models [...].

    `client_error` is the mean over clients of the error on their own test records, where each has
    some.
    """

    error: Tensor
    loss: Tensor
    client_error: Tensor | None = None


Measure = Callable[[Tensor], Measured]


class Predictions(NamedTuple):
    """What a model answers on test records, and what is true.

    output      the probability of the second of two classes [n], of each of more [n, classes]; or a
                value [n], in units of the label
    truth       the class of every record, from 0; or its value
    classes     how many; 0 where values are predicted
    names       of the classes, where they have names
    groups      the group of every record, where that was asked for, by the column `grouped_by`
    clients     whose test record each is, where the task knows that
    """

    output: NDArray[np.float64]
    truth: NDArray[Any]
    classes: int
    names: tuple[str, ...] = ()
    groups: Sequence[str] = ()
    grouped_by: str = ""
    clients: Sequence[int] = ()

    def rows(self, chosen: NDArray[np.bool_]) -> "Predictions":
        """Some of the records, no more divided."""
        return Predictions(self.output[chosen], self.truth[chosen], self.classes, self.names)

    def __repr__(self) -> str:
        return f"Predictions({len(self.truth)} records)"


@runtime_checkable
class Predicts(Protocol):
    """A measure that can also tell the model's answers themselves."""

    def predictions(self, x: Tensor) -> Predictions | None:
        """Of the model x [d]; None where what the model answers is neither probabilities nor
        values."""
        ...


@dataclass(frozen=True)
class TaskOptions:
    """What a user may say to a task; None is the task's own default (for batch: all records).

    data, test   files with private records and with public test records, for tasks that read files
    public_l2    regulariser of what public records alone teach; None: as l2
    label        the column to predict
    bounds       the file with public knowledge about columns
    ignore       columns of the files that are left aside
    test_share   the share of the records of the task's one file that are declared a public test
                 set; they are not trained on
    proxy        files with public records like the private ones, to plan on
    public_records   how many of the task's own records are declared public, to plan on; they are
                 not trained on
    groups       the column by which measures on public test records are told for each group
    unit         whose privacy is protected: if one record's, then no record may change the number
                 of the others
    person       what says whose a record is: a column, or a file with a name on each line
    features     a file with a public encoder: a linear head on its features is learnt
    """

    clients: int | None = None
    split: str | None = None
    batch: int | Literal["full"] | None = None
    l2: float | None = None
    public_l2: float | None = None
    seed: int = 0
    data: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    label: str | None = None
    bounds: str | None = None
    ignore: tuple[str, ...] = ()
    proxy: tuple[str, ...] = ()
    public_records: int = 0
    test_share: float = 0.0
    groups: str | None = None
    unit: Unit = "client"
    person: str | None = None
    features: str | None = None

    @classmethod
    def of(cls, settings: object) -> Self:
        """From anything that has some of these as attributes."""
        names = [option.name for option in fields(cls) if hasattr(settings, option.name)]
        return cls(**{name: getattr(settings, name) for name in names})

    @property
    def minibatch(self) -> int | None:
        """Records in a minibatch; None for all."""
        return None if self.batch == "full" else self.batch


def fingerprint(arrays: Iterable[NDArray[Any]]) -> str:
    """A name for what is in these arrays."""
    digest = blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@dataclass(frozen=True, repr=False)
class Task:
    """A problem that knows its public constants; `own_task` makes one.

    name            the task's, in messages and on the disk
    x0              the public initial model, [d]
    shapes          how x falls into named tensors, in this order
    clients         the private part
    measure         error and loss on records declared public, outside every guarantee; None if
                    there are none
    error_name      what the error is, in words
    pool            public records like the private ones, to plan on; of a network, as one client's
    public_l2       regulariser of what the pool of a linear model teaches; None: as the clients'
    constant_error  the error of the best constant answer on the public records, where it is known
    learning_rate   the step size where L is unknown
    iterations      local steps in total, if the user does not say
    public          what was taken as public, in sentences
    outside         what of this was read off private records, and how to avoid that, in sentences
    part            how much of its data set this is, where that is not the whole
    batch           records in a minibatch; None for all
    split           how records were dealt to the clients, where the task deals them
    test_records    how many records are measured on, where that is work
    fingerprint     of the records, private ones included: in a simulation, to know them again
    mu, L           strong convexity and smoothness of every client's loss where they are known
                    without looking at data
    gradient_bound  the longest gradient of one record, where there is a bound without looking
    clipped_convex  whether the loss stays convex, and as smooth, if gradients are clipped
    sizes_public    whether the numbers of records may decide anything
    number          of clients in all, where only one of them was loaded
    device          where its clients compute
    reading         what is needed to read other files like those of the task
    encoder         what public records and private ones went through (an `Encoder`), if anything
    """

    name: str
    x0: Tensor
    shapes: dict[str, tuple[int, ...]]
    clients: Clients
    measure: Measure | None
    error_name: str
    learning_rate: float
    iterations: int
    public: tuple[str, ...]
    outside: tuple[str, ...] = ()
    part: str = ""
    constant_error: float | None = None
    pool: Table | Clients | None = None
    public_l2: float | None = None
    batch: int | None = None
    split: str | None = None
    test_records: int = 0
    fingerprint: str = ""
    mu: float | None = None
    L: float | None = None
    gradient_bound: float | None = None
    clipped_convex: bool = False
    sizes_public: bool = True
    number: int | None = None
    device: str = HOST
    reading: dict[str, Any] = field(default_factory=dict)
    encoder: Any = None

    def __repr__(self) -> str:
        return f"Task({self.name!r}: {len(self.clients.sizes)} clients, d = {self.dimension})"

    @property
    def notices(self) -> list[str]:
        """What a reader of a plan or a result must know of the task before anything else."""
        partial = [f"PART OF THE DATA: {self.part}."] if self.part else []
        return [*(f"OUTSIDE THE GUARANTEE: {sentence}." for sentence in self.outside), *partial]

    @property
    def dimension(self) -> int:
        return self.x0.shape[-1]

    @property
    def eta(self) -> float:
        """The default step size: 1/L where L is public."""
        return 1 / self.L if self.L else self.learning_rate

    def persons(self) -> Persons:
        """The clients, who know whose their records are; others are refused."""
        clients = self.clients
        if not isinstance(clients, Persons) or clients.owners is None:
            raise InvalidValue(
                f"unit=person with task={self.name}: nothing says whose a record is; use "
                "unit=record, or a task that knows"
            )
        return clients

    def facts(self, unit: Unit, sizes: tuple[int, ...] | None = None) -> Facts:
        """What everybody may know; sizes where they are public, as they are if the unit is a
        record. One client alone knows only its own: it must be told `sizes`."""
        public = self.number is None and (self.sizes_public or unit != "client")
        own = held(self.persons().owners or ()) if unit == "person" else self.clients.sizes
        return Facts(
            self.name,
            self.number or len(self.clients.sizes),
            self.dimension,
            self.eta,
            self.iterations,
            self.batch,
            own if public else sizes,
            self.mu,
            self.L,
            self.gradient_bound,
            self.clipped_convex,
        )


def with_owners(task: Task, owners: Sequence[NDArray[np.int64]]) -> Task:
    """The same task, whose clients know the person of each of their records."""
    records = np.frombuffer(bytes.fromhex(task.fingerprint), dtype=np.uint8)
    clients: Any = task.clients
    return replace(
        task,
        clients=replace(clients, owners=tuple(owners)),
        fingerprint=fingerprint([records, *owners]),
    )


def alone(task: Task, client: int) -> Task:
    """The task with one of its clients."""
    number = len(task.clients.sizes)
    require(0 <= client < number, f"client={client} is not one of the {number} clients, from 0")
    return replace(task, clients=task.clients.alone(client), number=number)


class Takes(NamedTuple):
    """Which options a task understands besides clients, split, batch and seed."""

    files: bool = False
    columns: bool = False
    bounds: bool = False
    person: bool = False
    l2: bool = False
    public_records: bool = True
    test_share: bool = False
    features: bool = False  # whether its file may itself ask for a linear head


@dataclass(frozen=True)
class TaskSpec:
    """A task as the rest of the product knows it.

    load          all clients in one process
    load_client   one client alone, without opening what belongs to the others; None where the task
                  deals records that lie together
    load_to_plan  the task as a planner may see it: without any private record
    measure       (files, reading) -> Measure, for tasks that read files of one's own; where these
                  have columns (files, groups, groups of the run, reading)
    own_records   the records of one file of a client, and their link, for that client's own use
    reader        (reading) -> Reader, for tasks that read files of one's own
    network       its module with initial weights, for tasks whose records that does not need; None:
                  as the loaded task has it
    own_files     whether private records come from files of the user
    deals         whether it deals records that lie together to so many clients as are asked for
    pools_itself  whether a planner may take some of its records for public without being told:
                  only of a public benchmark
    """

    name: str
    load: Callable[[TaskOptions], Task]
    takes: Takes = field(default_factory=Takes)
    load_client: Callable[[TaskOptions, int], Task] | None = None
    load_to_plan: Callable[[TaskOptions], Task] | None = None
    measure: Callable[..., Measure] | None = None
    own_records: Callable[[TaskOptions, str], tuple[Table, Any]] | None = None
    reader: Callable[..., Any] | None = None
    network: Callable[[TaskOptions], nn.Module] | None = None
    own_files: bool = False
    deals: bool = True
    pools_itself: bool = False


def stacked(tasks: Sequence[Task]) -> Task:
    """Tasks that differ in nothing but their records as one, for models [tasks, settings, d]."""
    clients: Any = tasks[0].clients
    measure: Any = tasks[0].measure
    return replace(
        tasks[0],
        x0=torch.stack([task.x0 for task in tasks]).unsqueeze(1),
        clients=clients.stacked([task.clients for task in tasks]),
        measure=measure and measure.stacked([task.measure for task in tasks]),
    )
