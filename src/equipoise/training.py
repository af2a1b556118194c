"""`train`: settings in, a result out."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import torch

from equipoise.accounts import Account, account_of
from equipoise.engine import Performance, perform, schedule_of
from equipoise.errors import require
from equipoise.fleets import Round
from equipoise.privacy.noise import SecretNoise, SimulatedNoise
from equipoise.result import Point, Result
from equipoise.settings import Run, Settings
from equipoise.tasks import Measured, Options, Task, load_measure, load_task
from equipoise.tasks.network import ModelClients
from equipoise.tasks.public import public_only


def train(
    settings: Settings | None = None,
    *,
    watch: Callable[[Iterable[Round], int], Iterable[Round]] = lambda rounds, total: rounds,
    **values: Any,
) -> Result:
    """Train in this process: ``train(task="breast-cancer", epsilon=2, clip_norm=1, ...)``, or from
    Settings.

    `watch(rounds, total)` may wrap the iterator of rounds, to show progress.
    """
    require(
        settings is None or not values,
        f"settings and {', '.join(values)}: say it in one of the two",
    )
    own = values.get("task")
    if isinstance(own, Task):
        values["task"] = own.name
    settings = settings or Settings.of(**values)
    if isinstance(own, Task):
        require(
            Options.of(settings) == Options(seed=settings.seed, unit=settings.unit),
            "a task object has its own clients, batch and data: leave them out",
        )
    task = own if isinstance(own, Task) else load_task(settings.task, Options.of(settings))
    run = settings.resolve(task.eta, task.iterations, task.clients.sizes, task.batch or "full")
    schedule = schedule_of(run)
    account = account_of(run, task, schedule)
    noise = (
        SecretNoise()
        if run.simulate_noise_seed is None
        else SimulatedNoise(run.simulate_noise_seed)
    )
    ((performed,),) = perform([task], [[run]], [[account]], schedule, noise, watch)
    return _result(
        run,
        task,
        account,
        performed,
        noise.name,
        None if isinstance(own, Task) else settings.command,
    )


def train_together(
    tasks: Sequence[Task], runs: Sequence[Sequence[Run]], points: int
) -> list[list[Result]]:
    """Simulated runs in one computation: a row for each task (each public seed), with the same
    settings in the same order.

    Runs may differ in seeds, algorithm, budget, clip threshold and rule of noise. They are measured
    `points` times at most.
    """
    schedule = schedule_of(runs[0][0])
    accounts = [
        [account_of(run, task, schedule) for run in row]
        for task, row in zip(tasks, runs, strict=True)
    ]
    seeds = [seed for row in runs if (seed := row[0].simulate_noise_seed) is not None]
    require(
        len(seeds) == len(runs),
        "runs that are trained together are simulations: give simulate_noise_seed",
    )
    require(
        all(
            run.simulate_noise_seed == seed
            for seed, row in zip(seeds, runs, strict=True)
            for run in row
        ),
        "runs of a row have one simulate_noise_seed: they share their noise",
    )
    performed = perform(tasks, runs, accounts, schedule, SimulatedNoise(*seeds), points=points)
    names = [SimulatedNoise(seed).name for seed in seeds]
    return [
        [
            _result(run, task, account, done, name, None)
            for run, account, done in zip(*columns, strict=True)
        ]
        for name, task, *columns in zip(names, tasks, runs, accounts, performed, strict=True)
    ]


def _result(
    run: Run, task: Task, account: Account, done: Performance, noise_name: str, command: str | None
) -> Result:
    curve, failed = done.curve, done.failed
    return Result(
        **run.model_dump(),
        **account._asdict(),
        notices=_notices(
            run, account.epsilon_spent, _protected(run, task), _slow_layers(run, task), failed
        ),
        private=not run.simulation and account.epsilon_spent <= run.epsilon,
        rounds=done.rounds,
        dimension=task.dimension,
        mu=task.mu,
        L=task.L,
        noise_source=noise_name if account.sigma > 0 else "none",
        test_error=curve[-1].test_error if curve else None,
        client_error=curve[-1].client_error if curve else None,
        baseline_error=_baseline(task, curve),
        error_name=task.error_name,
        public_only=public_only(task),
        curve=curve,
        per_round=done.diagnoses or None,
        failed=failed,
        public=(*task.public, *_taken_as_public(run)),
        parameters=task.shapes,
        reading=task.reading,
        repeat=command,
        version=_version(),
        x=done.x.numpy(),
    )


@lru_cache
def _version() -> str:
    return version("equipoise")


def _protected(run: Run, task: Task) -> int:
    """How many units share the probability delta."""
    return run.clients if run.unit == "client" else max(task.clients.sizes)


def _slow_layers(run: Run, task: Task) -> tuple[str, ...]:
    return (
        task.clients.slow_layers
        if run.unit == "record" and isinstance(task.clients, ModelClients)
        else ()
    )


def _taken_as_public(run: Run) -> list[str]:
    return [
        *(["the number of records of each client"] if run.unit == "record" else []),
        *(
            [f"which client holds which record, dealt by label (split {run.split})"]
            if "dirichlet" in (run.split or "")
            else []
        ),
        *(["the initial model, trained on public records"] if run.warm_start else []),
    ]


def _baseline(task: Task, curve: list[Point]) -> float | None:
    """The error without training: of the initial model, or of the best constant answer if that is
    better."""
    if not curve:
        return None
    start = curve[0].test_error
    return start if task.constant_error is None else min(start, task.constant_error)


def _notices(
    run: Run, spent: float, protected: int, slow: tuple[str, ...], failed: str | None
) -> list[str]:
    """What a reader must know before anything else."""
    notices = []
    if run.epsilon == math.inf:
        notices.append("NOT PRIVATE: epsilon=inf, no noise was added.")
    elif spent > run.epsilon:
        notices.append(
            f"NOT PRIVATE AT ITS LABEL: the exact epsilon spent is {spent:.6g}, not the nominal "
            f"{run.epsilon:g} "
            f"(noise rule {run.noise_rule}, v={run.v})."
        )
    elif run.delta * protected >= 1:
        notices.append(
            f"WEAK: delta={run.delta:g} is a probability of failure, and not below 1 / number of "
            f"{run.unit}s."
        )
    if run.simulate_noise_seed is not None:
        notices.append(
            f"SIMULATION, NOT PRIVATE: whoever knows the noise seed {run.simulate_noise_seed} can "
            f"subtract the noise."
        )
    if slow:
        notices.append(
            f"SLOW: these layers need a gradient formed for every single record, at many times "
            f"the cost: {'; '.join(slow)}."
        )
    if run.diagnostics:
        notices.append("NOT PRIVATE: diagnostics show private values without noise.")
    if failed:
        notices.append(f"FAILED: {failed}.")
    return notices


def measure_again(result: Result, data: tuple[str, ...]) -> Measured:
    """Error and loss of a saved model: on the files `data`, or on its task's public test
    records.
    """
    return load_measure(result.task, Options.of(result), data, result.reading)(
        torch.from_numpy(result.x)
    )
