"""A user's own torch model and data: an nn.Module, one data set per client, a loss and a metric."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.errors import DataError, InvalidValue, UserCode, require
from equipoise.tasks.encoded import Constant, with_encoder
from equipoise.tasks.encoder import Encoder, encoder_in
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.made_up import Kind, kind_of
from equipoise.tasks.model_records import Records
from equipoise.tasks.network import PerExample, measure, model_task
from equipoise.tasks.own_data import (
    Array,
    DataSet,
    Examples,
    fitted_clients,
    kind_is_of_records,
    kinds_of_example,
    no_kind,
    parts_of,
    possible_kinds,
    read_clients,
    read_public,
)
from equipoise.tasks.persons import numbered
from equipoise.tasks.several import Parts
from equipoise.tasks.task import Takes, Task, TaskOptions, TaskSpec, fingerprint, with_owners
from equipoise.tasks.trying import kinds_that_work, with_logits
from equipoise.tasks.user_file import run_file

LEARNING_RATE = 0.01
ITERATIONS = 100
OF_RECORDS = (
    "the shape and type of the examples are those that most of a client's private records have, so "
    "that one record may decide how the others are read: give example=, one public (input, target) "
    "pair, or a public test set or pool"
)
NOT_TO_BE_RELEASED = "not_to_be_released"  # an attribute of modules that were tuned at home
GIVEN = ("model", "loss", "metric")  # besides clients, or the function client
Only = int | Literal["nobody"] | None  # whose records are read: of one, of nobody, of all
MAY_BE_GIVEN = "test pool example persons learning_rate iterations batch error_name".split()


def own_task(
    model: nn.Module,
    clients: Sequence[Any],
    loss: Callable[[Tensor, Tensor], Tensor],
    metric: Callable[[Tensor, Tensor], Any],
    *,
    test: Any = None,
    pool: Any = None,
    example: Any = None,
    learning_rate: float = LEARNING_RATE,
    iterations: int = ITERATIONS,
    batch: int | None = None,
    seed: int = 0,
    name: str = "own",
    error_name: str = "1 - metric",
    public: tuple[str, ...] | None = None,
    sizes_public: bool = False,
    only: Only = None,
    persons: Sequence[Any] | None = None,
) -> Task:
    """A task from a torch model and one data set per client. A record that cannot be read counts
    for nothing, and stops nothing.

    model           an nn.Module without learned buffers; its weights are public
    clients         torch data sets; pairs (inputs, targets) of tensors, NumPy arrays or pandas
                    frames; or functions without arguments that return one of these
    loss            loss(outputs, targets): a mean over examples
    metric          metric(outputs, targets): larger is better; the error is 1 - metric
    test, pool      public records, as one client's: to measure on, and to train a model on that
                    private training has to beat
    example         a public (input, target) pair, as a data set gives one record: its shapes and
                    types are those of all records, and what does not fit counts for nothing; else
                    those of test or pool, or what each client's arrays or most of its records have
    learning_rate, iterations   step size, and local steps in total, if the user does not say
    batch           records in a minibatch; None for all
    seed            public seed of minibatches; never of the noise
    name, error_name   what the task and its error are called
    public          what is taken as public, in sentences; None: as it is for any model
    sizes_public    whether numbers of records may decide anything, though the unit is a client
    only            load this client alone: the functions of the others are not called; or nobody
    persons         for each client, whose its records are: a name or number for each

    >>> x, model = torch.randn(400, 3), torch.nn.Linear(3, 2)
    >>> clients = [(part, (part[:, 0] > 0).long()) for part in x.split(20)]
    >>> loss = torch.nn.functional.cross_entropy
    >>> equipoise.own_task(model, clients, loss, equipoise.accuracy)
    Task('own': 20 clients, d = 8)
    """
    require(isinstance(model, nn.Module), f"model={type(model).__name__} is not a torch nn.Module")
    require(
        not any(getattr(part, NOT_TO_BE_RELEASED, False) for part in model.modules()),
        "model was tuned at home, on records that no noise protects: initial weights are public, "
        "so begin from the federated model, or from another",
    )
    require(isinstance(error_name, str), "error_name is not a text: say in words what the error is")
    flat = FlatModel(model)
    parts = _parts_of_public(flat, *([example],) * (example is not None), test, pool)
    if parts:
        flat = FlatModel(model, parts)
    require(
        isinstance(clients, Sequence) and len(clients) >= 1,
        "clients is not a list with one data set per client",
    )
    records = None if test is None else read_public(test, "the test set", flat.dtype, parts)
    public_pool = None if pool is None else read_public(pool, "the public pool", flat.dtype, parts)
    if example is not None:
        declared = kinds_of_example(example, flat.dtype, parts)
    else:
        declared = [kind_of(*given, parts) for given in (records, public_pool) if given][:1]
    if only == "nobody":
        read = {0: _no_records(declared)}
    else:
        read = read_clients(clients, only, flat.dtype, parts)
    if not parts:
        of_clients = (possible_kinds(data, flat.dtype) for data in read.values())
        flat = with_logits(flat, declared or chain(*of_clients))
    kinds = kinds_that_work(flat, loss, read, declared)
    data = fitted_clients(read, kinds, len(clients))
    if only != "nobody" and all(examples.unreadable.all() for examples in data):
        raise no_kind(read)
    if records:
        _check_metric(flat, loss, metric, records)
    if public_pool and kind_of(*public_pool, parts) not in kinds.values():
        raise DataError(
            "the public pool's examples differ in shape or type from the clients': make them alike"
        )
    of_records = not declared and kind_is_of_records(read)
    task = model_task(
        name,
        flat,
        loss,
        metric,
        tuple((inputs, targets) for inputs, targets, _ in data),
        () if records is None else (records,),
        public_pool,
        batch=batch,
        seed=seed,
        unreadable=tuple(unreadable for _, _, unreadable in data),
        error_name=error_name,
        fingerprint=_fingerprint(flat, data, records, public_pool),
        constant_error=None if records is None else constant_error(flat, metric, records),
        learning_rate=learning_rate,
        iterations=iterations,
        public=_taken_as_public(test, pool, of_records) if public is None else public,
        outside=(OF_RECORDS,) if of_records else (),
        sizes_public=sizes_public,
    )
    if persons is not None:
        task = with_owners(task, _owners(persons, data, only))
    if only is None:
        return task
    alone = 0 if only == "nobody" else only
    return replace(task, clients=task.clients.alone(alone), number=len(clients))


def _parts_of_public(flat: FlatModel, *public: Any) -> Parts:
    """The several inputs of a record, as the first public data set has them."""
    given = [data for data in public if data is not None][:1]
    return parts_of(given[0], flat.dtype) if given else ()


def _no_records(declared: Sequence[Kind]) -> DataSet:
    require(
        bool(declared),
        "the task says nothing public of what examples are like, and nobody's records are here: "
        "give example=, one public (input, target) pair, or a public test set or pool",
    )
    kind = declared[0]
    return DataSet(
        Array(torch.zeros(0, *kind.shape, dtype=kind.dtype)),
        Array(torch.zeros(0, *kind.target_shape, dtype=kind.target_dtype)),
    )


def _owners(
    persons: Sequence[Any], data: Sequence[Examples], only: Only
) -> tuple[NDArray[np.int64], ...]:
    require(
        len(persons) == len(data),
        f"persons: {len(persons)} lists for {len(data)} clients; give one for each client",
    )
    pairs = enumerate(zip(persons, data, strict=True))
    return tuple(
        numbered(names, len(held.inputs))
        if only in (None, i)
        else np.zeros(len(held.inputs), dtype=np.int64)
        for i, (names, held) in pairs
    )


@PerExample
def accuracy(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The share of examples whose largest output is their label: a metric for classification."""
    return outputs.argmax(-1) == labels, torch.ones_like(labels)


def _taken_as_public(test: Any, pool: Any, of_records: bool) -> tuple[str, ...]:
    whose = ", those that most records have" if of_records else ""
    return (
        "the initial weights of the model, and how inputs were prepared",
        f"the shapes and types of inputs and targets{whose}, and that the data sets can be opened",
        *(["the test set"] if test is not None else []),
        *(["the public pool"] if pool is not None else []),
    )


def constant_error(model: FlatModel, metric: Any, records: tuple[Tensor, Tensor]) -> float | None:
    """The error of the best constant class on the public records; None where targets are not
    classes."""
    inputs, targets = records[0], records[1].cpu()
    with torch.no_grad():
        outputs = model(model.initial(), inputs[:1].to(model.device))
    if targets.is_floating_point() or targets.dim() != 1 or outputs.dim() != 2:
        return None
    if not 0 <= int(targets.min()) <= int(targets.max()) < outputs.shape[1]:
        return None
    answer = torch.zeros(len(targets), outputs.shape[1])
    answer[:, torch.bincount(targets).argmax()] = 1
    return 1 - float(metric(answer, targets))


def _fingerprint(
    model: FlatModel, private: Sequence[Examples], *public: tuple[Tensor, Tensor] | None
) -> str:
    """Of the initial weights, what else the model holds, and all records."""
    sets = [*(examples.parts for examples in private), *filter(None, public)]
    tensors = chain(model.buffers(), *sets)
    return fingerprint([model.initial().numpy(), *(part.numpy() for part in tensors)])


def _check_metric(model: FlatModel, loss: Any, metric: Any, records: Records) -> None:
    """The public test set must work with the model, the loss and the metric."""
    if not len(records[0]):
        raise DataError("the test set is empty")
    with UserCode() as tried:
        measure(model, loss, metric, (records,), model.initial())
    require(not tried.kind, f"model, loss and metric fail on the test set: {tried.kind_and_place}")


def file_spec(path: str) -> TaskSpec:
    """The task that a Python file defines."""
    return TaskSpec(
        path,
        partial(task_file, path),
        Takes(files=True, public_records=False, features=True),
        load_client=partial(task_file, path),
        load_to_plan=partial(task_file_to_plan, path),
        deals=False,
        network=partial(network_of_file, path),
        own_files=True,
    )


def _head(path: str, given: dict[str, Any]) -> dict[str, Any]:
    """What stands for model, loss and metric where the file names an encoder instead."""
    classes = given.get("classes")
    if not isinstance(classes, int) or classes < 2:
        raise InvalidValue(
            f"{path} defines features, and no classes: say how many classes there are (labels are "
            "0, 1, ...), which is public"
        )
    model = Constant(classes, encoder_in(given, path).dtype)
    return {"model": model, "loss": nn.functional.cross_entropy, "metric": accuracy}


def encoder_of_file(path: str, options: TaskOptions) -> Encoder | None:
    """The encoder that a task file names, if it does, whatever has become of its data."""
    given = _given(path, options.seed, ())
    return encoder_in(given, path) if isinstance(given.get("model"), Constant) else None


def network_of_file(path: str, options: TaskOptions) -> nn.Module:
    """The module that a task file defines, whatever has become of its data."""
    model = _given(path, options.seed, ("model",))["model"]
    require(isinstance(model, nn.Module), f"{path}: model is not a torch nn.Module")
    assert isinstance(model, nn.Module)
    return model


def task_file(path: str, options: TaskOptions, only: Only = None) -> Task:
    """The task that a Python file defines by the names model, loss, metric, and perhaps test, pool,
    example, learning_rate, iterations, batch, error_name; or, for a linear head on the features of
    a public encoder, by features and classes in place of model, loss and metric; and either by
    clients, or by a function client(path), which makes a client's data set of the file or folder
    that it brings (`data`).

    It runs with torch seeded by the public seed: initial weights repeat.
    """
    require(
        options.split in (None, "random"),
        f"split={options.split!r}: {path} says itself which client holds what; leave it out",
    )
    for option in ("test", "proxy"):
        require(
            not getattr(options, option),
            f"{option} with task={path}, which brings its own public records: leave it out",
        )
    given = _given(path, options.seed, GIVEN)
    encoded = isinstance(given["model"], Constant)
    require(
        encoded or options.features is not None or options.l2 is options.public_l2 is None,
        f"l2 with task={path}, which is no linear model with a regulariser: leave it out",
    )
    chosen = {name: given[name] for name in (*GIVEN, *MAY_BE_GIVEN) if name in given}
    if options.batch is not None:
        chosen["batch"] = options.minibatch
    clients = _clients(path, given, options)
    if only == "nobody" and "clients" in given:
        only = None
    task = own_task(clients=clients, **chosen, seed=options.seed, name=path, only=only)
    require(
        options.clients in (None, len(clients)),
        f"clients={options.clients}: {path} has {len(clients)} clients; leave it out",
    )
    # The loss and the metric are in the code.
    code = np.frombuffer(Path(path).read_bytes(), dtype=np.uint8)
    records = np.frombuffer(bytes.fromhex(task.fingerprint), dtype=np.uint8)
    task = replace(task, fingerprint=fingerprint([code, records]))
    if not encoded:
        return task
    options = replace(options, batch=task.batch or "full")
    return with_encoder(task, encoder_in(given, path), options, task.iterations)


def task_file_to_plan(path: str, options: TaskOptions) -> Task:
    """The same task; where `client` makes a client's data of a path, without anybody's."""
    return task_file(path, options, "nobody")


def _clients(path: str, given: dict[str, Any], options: TaskOptions) -> Sequence[Any]:
    """A data set for each, or a function that makes it."""
    require(
        ("clients" in given) != ("client" in given),
        f"{path} defines {'both' if 'client' in given else 'no'} clients "
        f"{'and' if 'client' in given else 'and no'} client: a task file gives clients, a list "
        "with a data set for each, or client, a function that makes one of a path",
    )
    if "clients" in given:
        require(
            not options.data,
            f"data with task={path}, which defines clients: leave it out, or define client, a "
            "function that makes a data set of a path",
        )
        clients: Sequence[Any] = given["clients"]
        return clients
    require(
        callable(given["client"]),
        f"{path}: client is not a function that makes a data set of a path",
    )
    require(
        bool(options.data or options.clients),
        f"{path} defines client: give the path of each client's data (--data a b c)",
    )
    paths = options.data or ("",) * (options.clients or 0)
    return [partial(given["client"], path) for path in paths]


def _given(path: str, seed: int, names: tuple[str, ...]) -> dict[str, Any]:
    """What the file defines, `names` among it."""
    require(Path(path).is_file(), f"task={path!r}: there is no such file")
    given = run_file(path, seed)
    if "features" in given and "model" not in given:
        given |= _head(path, given)
    missing = [name for name in names if name not in given]
    require(
        not missing,
        f"{path} defines no {' and no '.join(missing)}: a task file gives model, clients (or "
        "client), loss and metric",
    )
    return given
