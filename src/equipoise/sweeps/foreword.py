"""What a sweep will do and what it will take, said before it starts."""

import math
import time
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

import torch

from equipoise.algorithms.schedule import schedule_of
from equipoise.engine import can_be_stacked
from equipoise.settings import Run
from equipoise.sweeps.grid import Grid
from equipoise.sweeps.stacks import resolved, task_for
from equipoise.training import account_of

TIMED = 3  # local steps of all clients, after one that warms up


class Work(NamedTuple):
    """Local steps of all runs, and seconds that one of all clients takes; None where runs are
    trained together, in far less."""

    steps: int
    seconds: float | None

    @property
    def hours(self) -> float | None:
        return None if self.seconds is None else self.steps * self.seconds / 3600


def foreword(grid: Grid) -> list[tuple[str, str]]:
    """Labels and sentences: what is trained, under which noise, how loud that is, and how long all
    of it takes on one core."""
    runs = [resolved(settings) for settings in grid.settings]
    lines = []
    for task, some in _groups(runs, lambda run: run.task):
        lines.append(("task", _task_words(some[0])))
        for _, alike in _groups(some, _convention):
            lines.append(("noise", _noise_words(alike)))
        lines.append(("work", _work_words(task, some)))
    return lines


def _groups(runs: list[Run], by: Any) -> Iterable[tuple[Any, list[Run]]]:
    ordered = sorted(runs, key=lambda run: str(by(run)))
    return [(key, list(group)) for key, group in groupby(ordered, key=by)]


def _convention(run: Run) -> tuple[Any, ...]:
    if run.epsilon == math.inf:
        return ("none",)
    return (run.unit, run.noise_in, run.noise_rule, run.v, run.trust)


def _task_words(run: Run) -> str:
    facts = task_for(run).facts(run.unit)
    return (
        f"{run.task}: {run.clients} clients, batch {run.batch}, eta = {run.eta:g}, "
        f"{facts.dimension:,} parameters"
    )


def _noise_words(runs: list[Run]) -> str:
    run = runs[0]
    if run.epsilon == math.inf:
        return f"none (epsilon = inf): {len(runs):,} runs"
    rule = run.noise_rule + (f", v = {run.v}" if run.v is not None else "")
    where = f"unit {run.unit}, noise in {run.noise_in}, rule {rule}, trust {run.trust}"
    times = [math.sqrt(_loudness(r)) for r in {_place(r): r for r in runs}.values()]
    words = (
        f"{where}: {len(runs):,} runs; the mean noise of a {run.mechanism.paid_per} is "
        f"{min(times):.2g} to {max(times):.2g} times as long as what it hides may be"
    )
    if not run.mechanism.at_label:
        least = min(runs, key=lambda r: (r.epsilon, r.iterations))
        words += f"; its epsilon is a label: {least.epsilon:g} spends {_spent(least):.4g}"
    return words


def _place(run: Run) -> tuple[Any, ...]:
    """What decides how loud the noise is."""
    return (run.epsilon, run.clip, run.iterations, run.local_steps, run.sampling_rate)


def _loudness(run: Run) -> float:
    """The mean of |mean noise|^2 / C^2 in one round; of noised gradients, in one local step."""
    task = task_for(run)
    facts = task.facts(run.unit)
    events = account_of(run, facts, schedule_of(run)).events
    sizes = task.clients.sizes
    total = 0.0
    for i, size in enumerate(sizes):
        event = events[i] if len(events) == len(sizes) else events[0]
        own = run.promise.client_sigma(event.sigma, run.clients, event.lattice)
        total += (own / (1 if run.mechanism.noises_message else event.rate * size)) ** 2
    return facts.dimension * total / len(sizes) ** 2 / run.clip**2


def _spent(run: Run) -> float:
    return account_of(run, task_for(run).facts(run.unit), schedule_of(run)).epsilon


def _work_words(task: str, runs: list[Run]) -> str:
    work = _work(runs)
    if work.hours is None:
        return f"{len(runs):,} runs of {task}, trained together where they may be: minutes"
    return (
        f"{work.steps:,} local steps of all clients at {1000 * (work.seconds or 0):.3g} ms: about "
        f"{work.hours:.2g} core-hours, less what runs that begin alike share"
    )


def _work(runs: list[Run]) -> Work:
    run, steps = runs[0], sum(run.iterations for run in runs)
    task = task_for(run)
    if can_be_stacked(task, run):
        return Work(steps, None)
    x = task.x0.expand(run.clients, -1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        task.clients.gradient(x, 0)
        start = time.process_time()
        for t in range(TIMED):
            task.clients.gradient(x, t)
        seconds = (time.process_time() - start) / TIMED
    finally:
        torch.set_num_threads(threads)
    return Work(steps, seconds)
