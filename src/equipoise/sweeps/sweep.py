"""Sweeps: every run of a grid that is not in the store yet, in stacks, by whoever works for it."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from equipoise.settings import Settings
from equipoise.sweeps.shard import WHOLE, Shard
from equipoise.sweeps.stacks import (
    Failed,
    Stack,
    computations_of,
    documents_of,
    key_of,
    runs_of,
    stacks_of,
    work_of,
)
from equipoise.sweeps.store import Store
from equipoise.sweeps.workers import Workers, at_work

ATTEMPTS = 3  # to run, while nothing else runs, what a process died of


class Progress(NamedTuple):
    """Where a sweep stands, in runs. `left` is seconds, None as long as nobody knows."""

    done: int
    failed: int
    running: int
    total: int
    left: float | None


def sweep(
    name: str,
    cells: Sequence[Sequence[Settings]],
    store: Path,
    workers: int | Workers = 1,
    retry: bool = False,
    shard: Shard = WHOLE,
) -> Iterator[Progress]:
    """Run what is not in the store yet; yields where the sweep stands, first before anything is
    run."""
    stacks = shard.stacks(stacks_of(cells))
    with Store(store) as kept:
        standing = _Standing(stacks, kept.keys(), {} if retry else kept.failures())
    with at_work(workers) as some:
        yield standing.progress(standing.todo[: some.number])
        for i, failed, running in _executed(stacks, standing.todo, store, name, some):
            standing.note(i, failed)
            yield standing.progress(running)


class _Standing:
    """Which runs of which stack are finished or failed, and how much work is left."""

    def __init__(self, stacks: list[Stack], kept: set[str], failures: Collection[str]) -> None:
        self._keys = [[key_of(run) for run in runs_of(stack)] for stack in stacks]
        self._all = {key for some in self._keys for key in some}
        self._finished = kept & self._all
        missing = [{*some} - kept for some in self._keys]
        self._unfinished = {i: rest for i, rest in enumerate(missing) if rest}
        self._failed = {i: rest for i, rest in self._unfinished.items() if rest <= {*failures}}
        # Long and short stacks mixed, so that the time left is honest.
        self.todo = sorted(
            self._unfinished.keys() - self._failed.keys(), key=lambda i: self._keys[i][0]
        )
        self._work = {i: work_of(stacks[i]) for i in self.todo}
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


def _left(seconds: float, worked: int, remaining: int) -> float | None:
    """How long the rest takes at this pace; None as long as nobody knows."""
    if not remaining:
        return 0.0
    return seconds / worked * remaining if worked else None


Executed = tuple[int, Failed, Iterable[int]]
"""A stack that was run: its number, what failed, and which others are being run."""


def _executed(
    stacks: list[Stack], todo: list[int], store: Path, name: str, workers: Workers
) -> Iterator[Executed]:
    """Each stack once it is done.

    If the process that runs one dies, it is run again after all others. If that dies, too, the
    others may have taken its memory, so it waits until nothing else runs.
    """
    queue, running = [*reversed(todo)], dict[Future[Failed], int]()
    deaths, suspects = Counter[int](), list[int]()
    while queue or running:
        while queue and len(running) < workers.number:
            future = workers.submit(stacks[queue[-1]], store, name)
            running[future] = queue.pop()
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            i = running.pop(future)
            try:
                failed = future.result()
            except BrokenExecutor:
                deaths[i] += 1
                if deaths[i] == 1:
                    queue.insert(0, i)
                else:
                    suspects.append(i)
                continue
            yield i, failed, islice(chain(running.values(), reversed(queue)), workers.number)
    for n, i in enumerate(suspects):
        failed = {}
        for part in computations_of(stacks[i]):
            failed |= _run_alone(part, store, name, workers)
        yield i, failed, suspects[n + 1 : n + 2]


def _run_alone(part: Stack, store: Path, name: str, workers: Workers) -> Failed:
    """Run one computation while nothing else runs; after so many deaths it is given up."""
    for _ in range(ATTEMPTS):
        try:
            return workers.submit(part, store, name).result()
        except BrokenExecutor:
            continue
    reason = f"its process died {ATTEMPTS} times: there may be too little memory"
    with Store(store) as kept:
        documents = documents_of(runs_of(part))
        finished = kept.finished(documents)
        failed = {key: run for key, run in documents.items() if key not in finished}
        kept.fail(failed, reason)
    return dict.fromkeys(failed, reason)
