"""A sweep on a Ray cluster: its processors train, this process alone writes the store.

Nodes may share no file system. So a task travels as it was loaded here, once for every node: what
is large in it lies in Ray's object store, where all processes of a node read the same memory.
Results come back one computation at a time, and are in the store before the next is waited for.
"""

import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from pickle import PickleBuffer
from pickle import loads as unpickled
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import EquipoiseError, InvalidValue, require
from equipoise.settings import Run
from equipoise.sweeps.stacks import (
    Failed,
    Outcome,
    Stack,
    keep,
    key_of,
    outcomes,
    runs_of,
    task_for,
)
from equipoise.sweeps.store import Store
from equipoise.tasks import Task, TaskOptions

# Ray reads these when it is imported. Whatever its processes say of themselves, and of each other,
# would stand among the results on standard output; and a thread that still waits when a sweep is
# interrupted must not start a cluster of its own.
os.environ |= {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ENABLE_AUTO_CONNECT": "0",
}

import ray
from ray import cloudpickle
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayTaskError,
    WorkerCrashedError,
)

PATIENCE = 15.0  # seconds for a cluster to answer
LARGE = 2**20  # bytes of an array from which it is shared
MOST_AT_ONCE = 4096  # stacks that run
DECIDES_NUMBERS = ("equipoise", "torch", "numpy")
"""Packages of which all nodes must have the version that is here, or numbers would differ."""

DEATHS = NodeDiedError, ObjectLostError, OutOfMemoryError, WorkerCrashedError
TaskName = tuple[str, TaskOptions]

TRY = """
import logging, sys, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
"""


class Parcel(NamedTuple):
    """A task on its way: pickled, its large arrays apart, as references into the object store."""

    content: bytes
    arrays: list[Any]


class Cluster:
    """The processors of a Ray cluster: ``with Cluster("10.0.0.1:6379") as workers: ...``.

    If the process that runs a stack dies, or its node, the stack's future raises BrokenExecutor;
    what the stack had finished is in the store.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._parcels: dict[TaskName, Any] = {}
        self._arrays: dict[bytes, Any] = {}
        self._running: set[Any] = set()
        self._writing = threading.Lock()
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, "stack")

    def __enter__(self) -> Self:
        self._ours = not ray.is_initialized()
        if self._ours:
            _check_answers(self.address)
            ray.init(self.address, log_to_driver=False, logging_level=logging.CRITICAL)
        self._train = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(_there())
        return self

    def __exit__(self, *_: object) -> None:
        for results in [*self._running]:  # of an interrupted sweep
            ray.cancel(results, force=True)
        self._threads.shutdown()
        if self._ours:
            ray.shutdown()

    @property
    def number(self) -> int:
        """Processors in the cluster now."""
        return max(1, int(ray.cluster_resources().get("CPU", 0)))

    def submit(self, stack: Stack, store: Path, sweep: str) -> Future[Failed]:
        with self._writing, Store(store) as kept:
            finished = kept.finished(key_of(run) for run in runs_of(stack))
        parcels = {_name(run): self._parcel(run) for run in runs_of(stack)}
        work = cloudpickle.dumps((stack, finished, [*parcels]))
        results = self._train.remote(_versions(), work, [*parcels.values()])
        self._running.add(results)
        return self._threads.submit(self._keep, results, store, sweep)

    def _keep(self, results: Any, store: Path, sweep: str) -> Failed:
        """Write what comes back, until all of the stack has."""
        failed: Failed = {}
        try:
            for outcome in self._received(results):
                with self._writing, Store(store) as kept:
                    failed |= keep(outcome, kept, sweep)
        finally:
            self._running.discard(results)
        return failed

    def _received(self, results: Any) -> Iterator[Outcome]:
        """The outcomes of a stack. Who trains it tells first which versions it has."""
        try:
            _check_versions(ray.get(next(results)), self.address)
            for result in results:
                yield unpickled(ray.get(result))
        except DEATHS as death:
            raise BrokenExecutor(type(death).__name__) from None
        except RayTaskError as error:
            raise EquipoiseError(
                f"ray={self.address}: a node cannot run the task: {_kind(error.cause)}"
            ) from None

    def _parcel(self, run: Run) -> Any:
        """The task of a run, in the object store: a reference."""
        name = _name(run)
        if name not in self._parcels:
            self._parcels[name] = ray.put(packed(task_for(run), self._shared))
        return self._parcels[name]

    def _shared(self, array: memoryview) -> Any:
        """A reference to what is in this array, put into the object store once: tasks that differ
        in their seed hold the same records."""
        digest = blake2b(array, digest_size=16).digest()
        if digest not in self._arrays:
            self._arrays[digest] = ray.put(np.frombuffer(array, dtype=np.uint8))
        return self._arrays[digest]


def _check_answers(address: str) -> None:
    """Try in another process: where nothing answers, Ray tries for minutes, then ends its
    process."""
    require(
        address == "auto" or (":" in address and "//" not in address),
        f"ray={address} is not HOST:PORT: give the address that `ray start --head` printed, or "
        "auto on a machine of the cluster",
    )
    command = [sys.executable, "-c", TRY, address]
    try:
        tried = subprocess.run(command, timeout=PATIENCE, capture_output=True, text=True)
        if tried.returncode == 0:
            return
        words = tried.stderr
    except subprocess.TimeoutExpired:
        words = ""
    if "Version mismatch" in words:
        ours = f"Ray {version('ray')} and Python {sys.version.split()[0]}"
        raise InvalidValue(
            f"ray={address}: the cluster has another version of Ray or Python than {ours}, which "
            "are here: use the same everywhere"
        )
    raise InvalidValue(
        f"ray={address}: no Ray cluster answers there, or this machine is not a part of it: start "
        "one with `ray start`, and run the sweep on one of its machines"
    )


def _name(run: Run) -> TaskName:
    return run.task, TaskOptions.of(run)


def _versions() -> dict[str, str]:
    return {name: version(name) for name in DECIDES_NUMBERS}


def _check_versions(theirs: dict[str, str], address: str) -> None:
    for name, ours in _versions().items():
        require(
            theirs[name] == ours,
            f"ray={address}: a node has {name} {theirs[name]}, where {ours} is here: install the "
            "same everywhere, or numbers will differ",
        )


def _kind(error: BaseException) -> str:
    """What went wrong. The words of an error may hold records, but not those of a missing
    module."""
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, ImportError) else kind


def _there() -> Callable[..., Iterator[Any]]:
    """What a node runs. It travels by value: a node that has another Equipoise, or none, can say
    so."""

    def train(versions: dict[str, str], work: bytes, parcels: list[Any]) -> Iterator[Any]:
        from importlib.metadata import PackageNotFoundError, version

        here = {}
        for name in versions:
            try:
                here[name] = version(name)
            except PackageNotFoundError:
                here[name] = "not installed"
        yield here
        if here == versions:
            from equipoise.sweeps.ray import trained

            yield from trained(work, parcels)

    return train


def trained(work: bytes, parcels: list[Any]) -> Iterator[bytes]:
    """On a node: the outcomes of a stack, pickled one by one."""
    torch.set_num_threads(1)
    stack, finished, names = unpickled(work)
    tasks = dict(zip(names, map(_task, parcels), strict=True))
    for outcome in outcomes(stack, lambda run: tasks[_name(run)], finished.intersection):
        yield cloudpickle.dumps(outcome)


@lru_cache(maxsize=64)
def _task(parcel: Any) -> Task:
    """The task in a parcel, opened once in a process."""
    content, arrays = ray.get(parcel)
    task: Task = unpickled(content, buffers=ray.get(arrays))
    return task


def packed(task: Task, shared: Callable[[memoryview], Any]) -> Parcel:
    """A task to send; `shared` takes a large array and gives a reference to it. The classes and
    functions of a user's own files travel along."""
    content, arrays = BytesIO(), []

    def stays_inside(buffer: PickleBuffer) -> bool:
        array = buffer.raw()
        if array.nbytes >= LARGE:
            arrays.append(shared(array))
        return array.nbytes < LARGE

    own = _modules_beside(task.name) if task.name.endswith(".py") else []
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        _Pickler(content, buffer_callback=stays_inside).dump(task)
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)
    return Parcel(content.getvalue(), arrays)


def _modules_beside(path: str) -> list[ModuleType]:
    """What a task file imported from its own folder."""
    folder = Path(path).resolve().parent
    tops = {name: sys.modules[name] for name in [*sys.modules] if "." not in name}
    files = {name: Path(getattr(module, "__file__", None) or "/") for name, module in tops.items()}
    places = {name: f.parent if f.name == "__init__.py" else f for name, f in files.items()}
    return [tops[name] for name, place in places.items() if place.resolve().parent == folder]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Tensors as they lie in memory. Views of the same memory stay that, and strides stay as they
    are, so that sums are rounded alike."""

    def __init__(self, file: BytesIO, buffer_callback: Callable[[PickleBuffer], bool]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._memory: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.requires_grad or value.is_complex():
            return super().reducer_override(value)
        storage = value.untyped_storage()
        place = storage.data_ptr(), storage.nbytes()
        if place not in self._memory:
            self._memory[place] = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        view = value.storage_offset(), tuple(value.shape), value.stride()
        return _tensor, (self._memory[place], value.dtype, *view)


def _tensor(
    memory: NDArray[np.uint8],
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shared memory cannot be written: nobody does
        storage = torch.from_numpy(memory).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)
