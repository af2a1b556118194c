"""Who runs the stacks of a sweep: this process, processes beside it, or a cluster (`ray.py`)."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol, Self

import torch

from equipoise.sweeps.stacks import Failed, Stack, run_stack


class Workers(Protocol):
    """Those who run stacks, `number` of them at a time."""

    @property
    def number(self) -> int: ...

    def submit(self, stack: Stack, store: Path, sweep: str) -> Future[Failed]:
        """Have a stack run and its results kept. The future raises BrokenExecutor if whoever ran it
        died."""
        ...


@contextmanager
def at_work(workers: int | Workers) -> Iterator[Workers]:
    """So many processes, for a while; or those who work already, and will after this."""
    if not isinstance(workers, int):
        yield workers
    elif workers == 1:
        yield Here()
    else:
        with Processes(workers) as processes:
            yield processes


class Here:
    """This process: a stack is done once it is submitted."""

    number = 1

    def __init__(self) -> None:
        torch.set_num_threads(1)

    def submit(self, stack: Stack, store: Path, sweep: str) -> Future[Failed]:
        future: Future[Failed] = Future()
        future.set_result(run_stack(stack, store, sweep))
        return future


class Processes:
    """Processes, started when they are needed, and kept for the next sweep. Each is a pool of its
    own, so that one which dies takes no other with it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._idle: list[ProcessPoolExecutor] = []
        self._busy: dict[Future[Failed], ProcessPoolExecutor] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        pools = [*self._idle, *self._busy.values()]
        if error is not None:
            for process in [p for pool in pools for p in (pool._processes or {}).values()]:
                process.kill()
        for pool in pools:
            pool.shutdown()

    def submit(self, stack: Stack, store: Path, sweep: str) -> Future[Failed]:
        self._note_idle()
        pool = self._idle.pop() if self._idle else self._started()
        try:
            future = pool.submit(run_stack, stack, store, sweep)
        except BrokenExecutor:  # it died while it had nothing to do
            pool = self._started()
            future = pool.submit(run_stack, stack, store, sweep)
        self._busy[future] = pool
        return future

    def _note_idle(self) -> None:
        for future in [future for future in self._busy if future.done()]:
            pool = self._busy.pop(future)
            if not isinstance(future.exception(), BrokenExecutor):
                self._idle.append(pool)

    def _started(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, get_context("spawn"), _start_worker, (os.getpid(),))


def _start_worker(parent: int) -> None:
    """One thread of computation; an interrupt is the parent's business; and no work is done for a
    parent that is dead."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
