"""Sweeps: every run of a grid that is not in the store yet, in stacks where that is faster, by several processes.

What a stack is made of depends on the grid alone, and a stack goes into the store whole or not at all. So results do not depend
on interruptions: what was killed is done again, from the beginning, in the same company.
"""

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch

from equipoise.errors import EquipoiseError
from equipoise.performance import can_be_stacked
from equipoise.run import Run, Settings
from equipoise.store import Finished, Store
from equipoise.tasks import Options, Task, load_task
from equipoise.training import train_together

NUMBERS = 1  # raise it when the numbers change that a run gives
POINTS = 25  # of a run's curve, at most
MOST_STACKED = 128  # runs in one computation
ATTEMPTS = 3  # to run a stack whose process died

Stack = tuple[tuple[Run, ...], ...]
"""Runs that are trained together: a row for each seed."""


class Progress(NamedTuple):
    """Where a sweep stands; work is counted in local steps of all clients. `left` is seconds, None as long as nobody knows."""

    done: int
    failed: int
    running: int
    total: int
    left: float | None


@lru_cache(maxsize=64)
def task_of(name: str, options: Options) -> Task:
    """A task, loaded once in a process: the data of a sweep does not change while it runs."""
    return load_task(name, options)


def resolved(settings: Settings) -> Run:
    task = task_of(settings.task, Options.of(settings))
    return settings.resolve(task.eta, task.iterations, task.clients.sizes, task.batch or "full")


def key_of(run: Run) -> str:
    """A run's name in the store: the hash of everything that decides its numbers."""
    document = {"run": run.model_dump(mode="json"), "data": task_of(run.task, Options.of(run)).fingerprint, "numbers": NUMBERS}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]


def stacks_of(cells: Sequence[Sequence[Settings]]) -> list[Stack]:
    """The runs of a grid as stacks: cells that differ only in budget, clip and noise rule, all their trials."""
    groups: dict[str, list[tuple[Run, ...]]] = {}
    stacks: list[Stack] = []
    for cell in cells:
        runs = tuple(resolved(settings) for settings in cell)
        if can_be_stacked(task_of(runs[0].task, Options.of(runs[0])), runs[0]):
            alike = runs[0].model_dump(exclude={"epsilon", "delta", "clip_norm", "noise_rule", "v"})
            group = groups.setdefault(json.dumps([alike, [run.seed for run in runs]], sort_keys=True), [])
            group.append(runs)
        else:
            stacks.extend(((run,),) for run in runs)
    for group in groups.values():
        width = max(1, MOST_STACKED // len(group[0]))
        stacks.extend(tuple(zip(*group[start : start + width], strict=True)) for start in range(0, len(group), width))
    return stacks


def run_stack(stack: Stack, store: Path, sweep: str) -> str | None:
    """Train a stack and keep its results; what is wrong with it, if it cannot be trained."""
    runs = [run for row in stack for run in row]
    keys = {run: key_of(run) for run in runs}
    start = time.process_time()
    with Store(store) as kept:
        try:
            tasks = [task_of(row[0].task, Options.of(row[0])) for row in stack]
            results = train_together(tasks, stack, POINTS)
        except (EquipoiseError, ArithmeticError, RuntimeError, MemoryError) as error:
            said = f"{type(error).__name__}: {error}"
            kept.fail({key: run.model_dump_json() for run, key in keys.items()}, said)
            return said
        seconds = (time.process_time() - start) / len(runs)
        kept.add(
            sweep,
            (
                Finished(keys[run], result, seconds)
                for run, result in zip(runs, (r for row in results for r in row), strict=True)
            ),
        )
    return None


def sweep(
    name: str, cells: Sequence[Sequence[Settings]], store: Path, workers: int = 1, retry: bool = False
) -> Iterator[Progress]:
    """Run what is not in the store yet; yields where the sweep stands, first before anything is run."""
    stacks = stacks_of(cells)
    keys = [[key_of(run) for row in stack for run in row] for stack in stacks]
    with Store(store) as kept:
        finished, failures = kept.keys(), {} if retry else kept.failures()
    state = {i: "done" if {*of} <= finished else "failed" if {*of} & {*failures} else "left" for i, of in enumerate(keys)}
    work = [sum(run.iterations * run.clients for row in stack for run in row) for stack in stacks]
    start, worked = time.monotonic(), 0

    def progress(running: int) -> Progress:
        counts = {kind: sum(len(keys[i]) for i, of in state.items() if of == kind) for kind in ("done", "failed")}
        remaining = sum(work[i] for i, of in state.items() if of == "left")
        left = 0.0 if not remaining else (time.monotonic() - start) / worked * remaining if worked else None
        return Progress(counts["done"], counts["failed"], running, sum(map(len, keys)), left)

    yield progress(0)
    todo = [i for i, of in state.items() if of == "left"]
    for i, error, running in _executed(stacks, todo, store, name, workers):
        state[i] = "failed" if error else "done"
        worked += work[i]
        yield progress(running)


def _executed(
    stacks: list[Stack], todo: list[int], store: Path, name: str, workers: int
) -> Iterator[tuple[int, str | None, int]]:
    """Each stack once it is done: its number, what went wrong, and how many others are being run."""
    if workers == 1 and todo:
        _start_worker(os.getpid(), alone=True)
        for i in todo:
            yield i, run_stack(stacks[i], store, name), 0
        return
    attempts = dict.fromkeys(todo, 0)
    waiting = list(reversed(todo))
    while waiting:
        context = get_context("spawn")
        with ProcessPoolExecutor(min(workers, len(waiting)), context, _start_worker, (os.getpid(),)) as pool:
            running: dict[Future[str | None], int] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < workers:
                        i = waiting.pop()
                        attempts[i] += 1
                        running[pool.submit(run_stack, stacks[i], store, name)] = i
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        error = future.result()
                        i = running.pop(future)
                        yield i, error, len(running)
            except BrokenProcessPool:  # a worker was killed: whoever was running begins again, in a new pool
                for i in running.values():
                    if attempts[i] < ATTEMPTS:
                        waiting.append(i)
                        continue
                    said = f"its process died {ATTEMPTS} times: there may be too little memory"
                    with Store(store) as kept:
                        kept.fail({key_of(run): run.model_dump_json() for row in stacks[i] for run in row}, said)
                    yield i, said, 0
            except BaseException:
                for process in (pool._processes or {}).values():
                    process.kill()
                raise


def _start_worker(parent: int, alone: bool = False) -> None:
    """One thread of computation; an interrupt is the parent's business; and no work is done for a parent that is dead."""
    torch.set_num_threads(1)
    if alone:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
