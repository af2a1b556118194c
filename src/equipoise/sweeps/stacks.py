"""Stacks: which runs of a grid are trained together, and training them.

What a stack is made of depends on the grid, and on what an earlier grid has finished; a stack goes
into the store whole or not at all. So results do not depend on interruptions: what was killed is
done again, from the beginning, in the same company. Runs that gain nothing from company are trained
one after the other, and share only the steps before their first communication, which are the same.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from equipoise.algorithms.schedule import schedule_of
from equipoise.engine import can_be_stacked, first_steps_of, shared
from equipoise.errors import EquipoiseError
from equipoise.result import Result
from equipoise.settings import Run, Settings
from equipoise.sweeps.keys import older_keys, run_key
from equipoise.sweeps.store import Finished, Store
from equipoise.tasks import Task, TaskOptions, load_task
from equipoise.tasks.placing import chosen_device
from equipoise.training import train_together

POINTS = 25  # of a run's curve, at most
MOST_STACKED = 128  # runs in one computation
MOST_IN_TURN, STEPS_IN_TURN = 16, 50_000  # runs, and local steps, of one after the other

Stack = tuple[tuple[Run, ...], ...]
"""Runs that are trained together: a row for each seed. Those of networks are one row, trained one
after the other."""

Failed = dict[str, str]
"""Runs that could not be trained, by key, and what is wrong with them."""


class Outcome(NamedTuple):
    """What became of one computation: its runs are finished; or, by key and as JSON, they failed,
    and why."""

    finished: Sequence[Finished] = ()
    failed: Mapping[str, str] = {}
    reason: str = ""


@lru_cache(maxsize=64)
def task_of(name: str, options: TaskOptions) -> Task:
    """A task, loaded once in a process: the data of a sweep does not change while it runs."""
    return load_task(name, options)


def task_for(settings: Settings) -> Task:
    return task_of(settings.task, TaskOptions.of(settings))


def resolved(settings: Settings) -> Run:
    task = task_for(settings)
    run = settings.resolve(task.facts(settings.unit))
    return run.model_copy(update={"device": chosen_device(run.device, task, run.unit)})


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


def runs_of(stack: Stack) -> list[Run]:
    return [run for row in stack for run in row]


def work_of(stack: Stack) -> int:
    """Local steps of all clients."""
    return sum(run.iterations * run.clients for run in runs_of(stack))


def documents_of(runs: Iterable[Run], tasks: Callable[[Run], Task] = task_for) -> dict[str, str]:
    """Runs by key, as JSON."""
    return {run_key(run, tasks(run).fingerprint): run.model_dump_json() for run in runs}


def computations_of(stack: Stack, tasks: Callable[[Run], Task] = task_for) -> list[Stack]:
    """The stack itself, or, where company gains nothing, each of its runs."""
    first = stack[0][0]
    return [stack] if can_be_stacked(tasks(first), first) else [((run,),) for run in stack[0]]


def run_stack(stack: Stack, store: Path, sweep: str) -> Failed:
    """Train a stack and keep its results, unless somebody did; what cannot be trained, and why."""
    failed: Failed = {}
    with Store(store) as kept:
        for outcome in outcomes(stack, task_for, kept.finished):
            failed |= keep(outcome, kept, sweep)
    return failed


def keep(outcome: Outcome, kept: Store, sweep: str) -> Failed:
    """Write what became of runs into the store; which of them failed, and why."""
    if outcome.finished:
        kept.add(sweep, outcome.finished)
    if outcome.failed:
        kept.fail(outcome.failed, outcome.reason)
    return dict.fromkeys(outcome.failed, outcome.reason)


def outcomes(
    stack: Stack, tasks: Callable[[Run], Task], finished: Callable[[Iterable[str]], set[str]]
) -> Iterator[Outcome]:
    """Train what of a stack is not finished, and give every computation's outcome as soon as it is
    known. `finished` tells which of some keys are."""
    parts = computations_of(stack, tasks)
    # Of runs that begin alike, the first steps are made once.
    ends: dict[int, torch.Tensor] | None = None if parts == [stack] else {}
    for part in parts:
        keys = {run: run_key(run, tasks(run).fingerprint) for run in runs_of(part)}
        known = finished(keys.values())
        rest = _unfinished(part, {run for run, key in keys.items() if key in known})
        if rest:
            yield _trained(rest, tasks, known, ends)


def _trained(
    stack: Stack,
    tasks: Callable[[Run], Task],
    finished: set[str],
    ends: dict[int, torch.Tensor] | None,
) -> Outcome:
    """All of it in one computation.

    It goes into the store whole, so part of it is there only if a smaller grid was run before: then
    the rest is trained.
    """
    runs, start = runs_of(stack), time.process_time()
    try:
        rows = train_together([tasks(row[0]) for row in stack], stack, POINTS, ends)
    # One's own model or metric may raise anything: the sweep goes on.
    except Exception as error:
        failed = documents_of(runs, tasks)
        new = {key: run for key, run in failed.items() if key not in finished}
        return Outcome(failed=new, reason=_without_records(error))
    seconds = (time.process_time() - start) / len(runs)
    results = (result for row in rows for result in row)
    return Outcome(
        [
            _finished(run, tasks(run).fingerprint, result, seconds)
            for run, result in zip(runs, results, strict=True)
        ]
    )


def _finished(run: Run, data: str, result: Result, seconds: float) -> Finished:
    """A store keeps no model, so none needs to travel there."""
    without_model = result.model_copy(update={"x": None})
    return Finished(run_key(run, data), without_model, seconds, older_keys(run, data))


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
