"""`train`: settings in, a result out."""

import math
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from equipoise.accounts import Account, account_of
from equipoise.algorithms import Algorithm, Gradient, Schedule, coin, dp_fedavg, dp_scaffnew, periodic
from equipoise.errors import require
from equipoise.fleets import Round, SimulatedFleet, server_rounds
from equipoise.privacy.gradients import NoisyGradient, RecordClients
from equipoise.privacy.mechanism import GaussianMechanism, Mechanism, StableMechanism
from equipoise.privacy.noise import NoiseSource, SecretNoise, SimulatedNoise
from equipoise.result import Diagnosis, Point, Result
from equipoise.run import Run, Settings
from equipoise.tasks import Measured, Options, Task, load_measure, load_task
from equipoise.tasks.model_clients import ModelClients
from equipoise.tasks.public import public_model, public_only

POINTS = 100  # of the curve, at most


def train(
    settings: Settings | None = None,
    *,
    watch: Callable[[Iterable[Round], int], Iterable[Round]] = lambda rounds, total: rounds,
    **values: Any,
) -> Result:
    """Train in this process: ``train(task="breast-cancer", epsilon=2, clip_norm=1, ...)``, or from Settings.

    `watch(rounds, total)` may wrap the iterator of rounds, to show progress.
    """
    require(settings is None or not values, f"settings and {', '.join(values)}: say it in one of the two")
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
    noise = SecretNoise() if run.simulate_noise_seed is None else SimulatedNoise(run.simulate_noise_seed)
    gradient, mechanism = noise_of(run, task, account, noise)
    fleet = SimulatedFleet(run.clients, gradient, algorithm_of(run), mechanism, noise)

    start = public_model(task) if run.warm_start else task.x0
    x, curve, diagnoses, failed = start, _points(task, 0, 0, start), [], None
    for number, iteration, x in watch(server_rounds(start, schedule, fleet, run.gamma), len(schedule)):
        if number % math.ceil(len(schedule) / POINTS) == 0 or number == len(schedule):
            curve += _points(task, number, iteration, x)
        if run.simulation and fleet.overflowed:
            failed = failed or f"an update was not finite in round {number}: lower eta={run.eta}"
        if run.diagnostics:
            diagnoses.append(_diagnosis(fleet, run, task, number, x))

    return Result(
        **run.model_dump(),
        **account._asdict(),
        notices=_notices(run, account.epsilon_spent, _protected(run, task), _slow_layers(run, task), failed),
        private=not run.simulation and account.epsilon_spent <= run.epsilon,
        rounds=len(schedule),
        dimension=task.dimension,
        noise_source=noise.name if account.sigma > 0 else "none",
        test_error=curve[-1].test_error if curve else None,
        baseline_error=_baseline(task, curve),
        error_name=task.error_name,
        public_only=public_only(task),
        curve=curve,
        per_round=diagnoses or None,
        failed=failed,
        public=(*task.public, *_taken_as_public(run)),
        parameters=task.shapes,
        reading=task.reading,
        repeat=None if isinstance(own, Task) else settings.command,
        version=version("equipoise"),
        x=x.numpy(),
    )


def schedule_of(run: Run) -> Schedule:
    if run.schedule == "coin":
        return coin(run.iterations, run.p, run.seed)
    return periodic(run.iterations, run.local_steps or 1)


def algorithm_of(run: Run) -> Algorithm:
    if run.algorithm == "dp-fedavg":
        return dp_fedavg(run.eta)
    return dp_scaffnew(run.eta, run.p, run.h_update or "paper", run.clip_norm)


def noise_of(run: Run, task: Task, account: Account, noise: NoiseSource) -> tuple[Gradient, Mechanism]:
    """Where the noise enters: the clients' gradients, and how their updates are released."""
    if run.unit == "client":
        return task.clients.gradient, GaussianMechanism(run.clip_norm, account.client_sigma)
    sizes, clients = task.clients.sizes, _with_records(task)
    assert account.per_client, "told for every client if the unit is a record"
    sigmas = torch.tensor([[client.sigma] for client in account.per_client], dtype=torch.float64)
    if run.noise_in == "message":
        sent = sigmas if run.trust == "local" else account.client_sigma
        return NoisyGradient(clients, run.clip_norm, 0.0, (1.0,) * len(sizes), noise), StableMechanism(sent)
    rates = tuple(client.sampling_rate for client in account.per_client)
    return NoisyGradient(clients, run.clip_norm, sigmas, rates, noise), GaussianMechanism(math.inf, 0.0)


def _protected(run: Run, task: Task) -> int:
    """How many units share the probability delta."""
    return run.clients if run.unit == "client" else max(task.clients.sizes)


def _slow_layers(run: Run, task: Task) -> tuple[str, ...]:
    return task.clients.slow_layers if run.unit == "record" and isinstance(task.clients, ModelClients) else ()


def _with_records(task: Task) -> RecordClients:
    clients: Any = task.clients
    require(hasattr(clients, "clipped_sum"), f"unit=record with task={task.name}: its clients have no records to tell apart")
    if isinstance(clients, ModelClients):
        _ = clients.layout  # a model whose records cannot be told apart is refused before anything is spent
    checked: RecordClients = clients
    return checked


def _taken_as_public(run: Run) -> list[str]:
    return [
        *(["the number of records of each client"] if run.unit == "record" else []),
        *([f"which client holds which record, dealt by label (split {run.split})"] if run.split != "random" else []),
        *(["the initial model, trained on public records"] if run.warm_start else []),
    ]


def _points(task: Task, number: int, iteration: int, x: Tensor) -> list[Point]:
    """What there is to measure after a round: one point, or none without public test records."""
    if task.measure is None:
        return []
    error, loss = task.measure(x)
    return [Point(round=number, iteration=iteration, test_error=float(error), test_loss=float(loss))]


def _baseline(task: Task, curve: list[Point]) -> float | None:
    """The error without training: of the initial model, or of the best constant answer if that is better."""
    if not curve:
        return None
    start = curve[0].test_error
    return start if task.constant_error is None else min(start, task.constant_error)


def _diagnosis(fleet: SimulatedFleet, run: Run, task: Task, number: int, x: Tensor) -> Diagnosis:
    assert fleet.memory, "a round has been trained"
    state, update = fleet.memory
    norms = torch.linalg.vector_norm(update, dim=-1)
    return Diagnosis(
        round=number,
        clipped=float((norms > run.clip_norm).double().mean()) if run.unit == "client" else None,
        update_norm=float(norms.mean()),
        h_norm=float(torch.linalg.vector_norm(state.h, dim=-1).mean()) if run.algorithm == "dp-scaffnew" else None,
        train_error=float(task.clients.error(x)),
    )


def _notices(run: Run, spent: float, protected: int, slow: tuple[str, ...], failed: str | None) -> list[str]:
    """What a reader must know before anything else."""
    notices = []
    if run.epsilon == math.inf:
        notices.append("NOT PRIVATE: epsilon=inf, no noise was added.")
    elif spent > run.epsilon:
        notices.append(
            f"NOT PRIVATE AT ITS LABEL: the exact epsilon spent is {spent:.6g}, not the nominal {run.epsilon:g} "
            f"(noise rule {run.noise_rule}, v={run.v})."
        )
    elif run.delta * protected >= 1:
        notices.append(f"WEAK: delta={run.delta:g} is a probability of failure, and not below 1 / number of {run.unit}s.")
    if run.simulate_noise_seed is not None:
        notices.append(
            f"SIMULATION, NOT PRIVATE: whoever knows the noise seed {run.simulate_noise_seed} can subtract the noise."
        )
    if slow:
        notices.append(
            f"SLOW: these layers need a gradient formed for every single record, at many times the cost: {'; '.join(slow)}."
        )
    if run.diagnostics:
        notices.append("NOT PRIVATE: diagnostics show private values without noise.")
    if failed:
        notices.append(f"FAILED: {failed}.")
    return notices


def measure_again(result: Result, data: tuple[str, ...]) -> Measured:
    """Error and loss of a saved model: on the files `data`, or on its task's public test records."""
    return load_measure(result.task, Options.of(result), data, result.reading)(torch.from_numpy(result.x))
