"""Sweeps: every run of a grid that is not in the store yet, in stacks where that is faster, by
several processes.

What a stack is made of depends on the grid, and on what an earlier grid has finished; a stack goes
into the store whole or not at all. So results do not depend on interruptions: what was killed is
done again, from the beginning, in the same company. Runs that gain nothing from company are trained
one after the other, and share only the steps before their first communication, which are the same.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from equipoise.algorithms.schedule import schedule_of
from equipoise.engine import can_be_stacked, first_steps_of, shared
from equipoise.errors import EquipoiseError
from equipoise.settings import Run, Settings
from equipoise.sweeps.keys import older_keys, run_key
from equipoise.sweeps.store import Finished, Store
from equipoise.tasks import Task, TaskOptions, load_task
from equipoise.training import train_together

POINTS = 25  # of a run's curve, at most
MOST_STACKED = 128  # runs in one computation
MOST_IN_TURN, STEPS_IN_TURN = 16, 50_000  # runs, and local steps, of one after the other
ATTEMPTS = 3  # to run a stack whose process died

Stack = tuple[tuple[Run, ...], ...]
"""Runs that are trained together: a row for each seed. Those of networks are one row, trained one
after the other."""

Failed = dict[str, str]
"""Runs that could not be trained, by key, and what is wrong with them."""


class Progress(NamedTuple):
    """Where a sweep stands, in runs. `left` is seconds, None as long as nobody knows."""

    done: int
    failed: int
    running: int
    total: int
    left: float | None


@lru_cache(maxsize=64)
def task_of(name: str, options: TaskOptions) -> Task:
    """A task, loaded once in a process: the data of a sweep does not change while it runs."""
    return load_task(name, options)


def task_for(settings: Settings) -> Task:
    return task_of(settings.task, TaskOptions.of(settings))


def resolved(settings: Settings) -> Run:
    return settings.resolve(task_for(settings).facts(settings.unit))


def key_of(run: Run) -> str:
    return run_key(run, task_for(run).fingerprint)


def stacks_of(cells: Sequence[Sequence[Settings]]) -> list[Stack]:
    """The runs of a grid as stacks: cells that differ only in algorithm, budget, clip, noise rule
    and what they return; of networks runs that begin alike, those with fewest local steps first."""
    groups: dict[tuple[Any, ...], list[tuple[Run, ...]]] = {}
    in_turn: dict[tuple[Any, ...], list[Run]] = {}
    stacks: list[Stack] = []
    for cell in cells:
        runs = tuple(resolved(settings) for settings in cell)
        schedule_of(runs[0])  # local steps that do not fit are refused before anything is run
        if can_be_stacked(task_for(runs[0]), runs[0]):
            groups.setdefault((*shared(runs[0]), *(run.seed for run in runs)), []).append(runs)
        else:
            for run in runs:
                in_turn.setdefault(first_steps_of(run) or (key_of(run),), []).append(run)
    for group in groups.values():
        width = max(1, MOST_STACKED // len(group[0]))
        stacks.extend(
            tuple(zip(*group[start : start + width], strict=True))
            for start in range(0, len(group), width)
        )
    for alike in in_turn.values():
        alike.sort(key=lambda run: run.local_steps or 1)
        stacks.extend((part,) for part in _parts(alike))
    return stacks


def _parts(runs: list[Run]) -> Iterator[tuple[Run, ...]]:
    """Few enough that progress is seen, and several processes have something to do."""
    part: list[Run] = []
    for run in runs:
        steps = sum(other.iterations for other in part)
        if part and (len(part) == MOST_IN_TURN or steps + run.iterations > STEPS_IN_TURN):
            yield tuple(part)
            part = []
        part.append(run)
    yield tuple(part)


def run_stack(stack: Stack, store: Path, sweep: str) -> Failed:
    """Train a stack and keep its results, unless somebody did; what cannot be trained, and why."""
    first = stack[0][0]
    with Store(store) as kept:
        if can_be_stacked(task_for(first), first):
            return _train(stack, kept, sweep)
        failed: Failed = {}
        ends: dict[int, torch.Tensor] = {}
        for run in stack[0]:
            failed |= _train(((run,),), kept, sweep, ends)
    return failed


def _train(
    stack: Stack, kept: Store, sweep: str, ends: dict[int, torch.Tensor] | None = None
) -> Failed:
    """All of it in one computation.

    It goes in whole, so part of it is there only if a smaller grid was run before: then the rest is
    trained.
    """
    keys = {run: key_of(run) for run in _runs_of(stack)}
    start = time.process_time()
    finished = kept.finished(keys.values())
    stack = _unfinished(stack, {run for run, key in keys.items() if key in finished})
    runs = _runs_of(stack)
    if not runs:
        return {}
    try:
        rows = train_together([task_for(row[0]) for row in stack], stack, POINTS, ends)
    # One's own model or metric may raise anything: the sweep goes on.
    except Exception as error:
        text, failed = _without_records(error), [run for run in runs if keys[run] not in finished]
        kept.fail(_documents(failed), text)
        return {keys[run]: text for run in failed}
    seconds = (time.process_time() - start) / len(runs)
    results = (result for row in rows for result in row)
    done = zip(runs, results, strict=True)
    kept.add(
        sweep,
        (Finished(keys[run], result, seconds, _older(run)) for run, result in done),
    )
    return {}


def _older(run: Run) -> list[str]:
    return older_keys(run, task_for(run).fingerprint)


def _runs_of(stack: Stack) -> list[Run]:
    return [run for row in stack for run in row]


def _documents(runs: Iterable[Run]) -> dict[str, str]:
    return {key_of(run): run.model_dump_json() for run in runs}


def _without_records(error: Exception) -> str:
    """What went wrong. The words of anybody else's error may hold records: only its kind is
    kept."""
    return str(error) if isinstance(error, EquipoiseError) else type(error).__name__


def _unfinished(stack: Stack, finished: set[Run]) -> Stack:
    """The stack without the seeds, then without the settings, of which everything is finished."""
    for _ in range(2):
        rows = [row for row in stack if any(run not in finished for run in row)]
        stack = tuple(zip(*rows, strict=True))
    return stack


class Workers:
    """Processes that run stacks: started when they are needed, and kept for the next sweep."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.stop(kill=error is not None)

    def submit(self, stack: Stack, store: Path, name: str) -> Future[Failed]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.number, get_context("spawn"), _start_worker, (os.getpid(),)
            )
        return self._pool.submit(run_stack, stack, store, name)

    def stop(self, kill: bool = False) -> None:
        pool, self._pool = self._pool, None
        if pool and kill:
            for process in [*(pool._processes or {}).values()]:
                process.kill()
        if pool:
            pool.shutdown()


def sweep(
    name: str,
    cells: Sequence[Sequence[Settings]],
    store: Path,
    workers: int | Workers = 1,
    retry: bool = False,
) -> Iterator[Progress]:
    """Run what is not in the store yet; yields where the sweep stands, first before anything is
    run."""
    if isinstance(workers, int):
        with Workers(workers) as some:
            yield from sweep(name, cells, store, some, retry)
        return
    stacks = stacks_of(cells)
    with Store(store) as kept:
        standing = _Standing(stacks, kept.keys(), {} if retry else kept.failures())
    yield standing.progress(standing.todo[: workers.number])
    for i, failed, running in _executed(stacks, standing.todo, store, name, workers):
        standing.note(i, failed)
        yield standing.progress(running)


class _Standing:
    """Which runs of which stack are finished or failed, and how much work is left."""

    def __init__(self, stacks: list[Stack], kept: set[str], failures: Collection[str]) -> None:
        self._keys = [[key_of(run) for run in _runs_of(stack)] for stack in stacks]
        self._all = {key for some in self._keys for key in some}
        self._finished = kept & self._all
        missing = [{*some} - kept for some in self._keys]
        self._unfinished = {i: rest for i, rest in enumerate(missing) if rest}
        self._failed = {i: rest for i, rest in self._unfinished.items() if rest <= {*failures}}
        # Long and short stacks mixed, so that the time left is honest.
        self.todo = sorted(
            self._unfinished.keys() - self._failed.keys(), key=lambda i: self._keys[i][0]
        )
        self._work = {i: _work(stacks[i]) for i in self.todo}
        self._start, self._worked = time.monotonic(), 0

    def note(self, i: int, failed: Failed) -> None:
        """Stack i was run."""
        if failed:
            self._failed[i] = {*failed}
        self._finished |= self._unfinished[i] - failed.keys()
        self._worked += self._work[i]

    def progress(self, running: Iterable[int]) -> Progress:
        seconds, left = time.monotonic() - self._start, sum(self._work.values()) - self._worked
        return Progress(
            done=len(self._finished),
            failed=sum(map(len, self._failed.values())),
            running=sum(len(self._keys[i]) for i in running),
            total=len(self._all),
            left=_left(seconds, self._worked, left),
        )


def _work(stack: Stack) -> int:
    """Local steps of all clients."""
    return sum(run.iterations * run.clients for run in _runs_of(stack))


def _left(seconds: float, worked: int, remaining: int) -> float | None:
    """How long the rest takes at this pace; None as long as nobody knows."""
    if not remaining:
        return 0.0
    return seconds / worked * remaining if worked else None


Executed = tuple[int, Failed, list[int]]
"""A stack that was run: its number, what failed, and which others are being run."""


def _executed(
    stacks: list[Stack], todo: list[int], store: Path, name: str, workers: Workers
) -> Iterator[Executed]:
    """Each stack once it is done.

    If a process dies, nobody knows for which stack: all that were running are run again, one at a
    time. One whose process dies ATTEMPTS times while nothing else runs is given up.
    """
    if workers.number == 1 and todo:
        _start_worker(os.getpid(), alone=True)
        for n, i in enumerate(todo):
            yield i, run_stack(stacks[i], store, name), todo[n + 1 : n + 2]
        return

    def submit(i: int) -> Future[Failed]:
        return workers.submit(stacks[i], store, name)

    waiting, suspects, deaths = list(reversed(todo)), list[int](), Counter[int]()
    while waiting or suspects:
        alone = bool(suspects)
        queue, most = ([suspects.pop()], 1) if alone else (waiting, workers.number)
        running: dict[Future[Failed], int] = {}
        try:
            yield from _run_side_by_side(queue, running, most, submit)
        except BrokenProcessPool:
            workers.stop()
            killed = {*running.values(), *(queue if alone else ())}
            deaths.update(killed if alone else ())
            suspects.extend(i for i in killed if deaths[i] < ATTEMPTS)
            for i in killed - {*suspects}:
                yield i, _give_up(stacks[i], store), []


def _run_side_by_side(
    queue: list[int],
    running: dict[Future[Failed], int],
    most: int,
    submit: Callable[[int], Future[Failed]],
) -> Iterator[Executed]:
    """Run the queue from its end, `most` stacks at a time; `running` is kept up to date."""
    while queue or running:
        while queue and len(running) < most:
            submitted = submit(queue[-1])
            running[submitted] = queue.pop()
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            failed = future.result()
            i = running.pop(future)
            yield i, failed, [*running.values(), *queue[len(running) - most :]][:most]


def _give_up(stack: Stack, store: Path) -> Failed:
    """What of the stack is not in the store."""
    reason = f"its process died {ATTEMPTS} times: there may be too little memory"
    with Store(store) as kept:
        finished = kept.finished(key_of(run) for run in _runs_of(stack))
        failed = _documents(run for run in _runs_of(stack) if key_of(run) not in finished)
        kept.fail(failed, reason)
    return dict.fromkeys(failed, reason)


def _start_worker(parent: int, alone: bool = False) -> None:
    """One thread of computation; an interrupt is the parent's business; and no work is done for a
    parent that is dead."""
    torch.set_num_threads(1)
    if alone:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
