"""`train`: settings in, a result out."""

import math
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.algorithms import Algorithm, Schedule, coin, dp_fedavg, dp_scaffnew, periodic
from equipoise.errors import require
from equipoise.fleets import Round, SimulatedFleet, server_rounds
from equipoise.privacy.accounting import epsilon_spent, exact_v, lemma1_sigma, lemma1_v, noise_sigma
from equipoise.privacy.mechanism import GaussianMechanism
from equipoise.privacy.noise import SecretNoise, SimulatedNoise
from equipoise.run import Diagnosis, Point, Result, Run, Settings
from equipoise.tasks import Measured, Options, Task, load_measure, load_task

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
            Options.of(settings) == Options(seed=settings.seed),
            "a task object has its own clients, batch and data: leave them out",
        )
    task = own if isinstance(own, Task) else load_task(settings.task, Options.of(settings))
    run = settings.resolve(task.eta, task.iterations, len(task.clients.sizes), task.batch or "full")
    schedule = schedule_of(run)
    account = account_of(run, task, len(schedule))
    noise = SecretNoise() if run.simulate_noise_seed is None else SimulatedNoise(run.simulate_noise_seed)
    mechanism = GaussianMechanism(run.clip_norm, account.client_sigma)
    fleet = SimulatedFleet(run.clients, task.clients.gradient, algorithm_of(run), mechanism, noise)

    x, curve, diagnoses, failed = task.x0, _points(task, 0, 0, task.x0), [], None
    for number, iteration, x in watch(server_rounds(task.x0, schedule, fleet, run.gamma), len(schedule)):
        if number % math.ceil(len(schedule) / POINTS) == 0 or number == len(schedule):
            curve += _points(task, number, iteration, x)
        if run.simulation and fleet.overflowed:
            failed = failed or f"an update was not finite in round {number}: lower eta={run.eta}"
        if run.diagnostics:
            diagnoses.append(_diagnosis(fleet, run, task, number, x))

    return Result(
        **run.model_dump(),
        **account._asdict(),
        notices=_notices(run, account.epsilon_spent, failed),
        private=not run.simulation and account.epsilon_spent <= run.epsilon,
        rounds=len(schedule),
        dimension=task.dimension,
        noise_source=noise.name if account.sigma > 0 else "none",
        test_error=curve[-1].test_error if curve else None,
        baseline_error=_baseline(task, curve),
        error_name=task.error_name,
        curve=curve,
        per_round=diagnoses or None,
        failed=failed,
        public=task.public,
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
    return dp_scaffnew(run.eta, run.p, run.clip_norm if run.h_update == "clipped" else math.inf)


class Account(NamedTuple):
    """What is released how often, under how much noise, and what that spends, exactly, whatever rule chose the noise."""

    releases: int
    sigma: float
    client_sigma: float
    epsilon_spent: float


def account_of(run: Run, task: Task, releases: int) -> Account:
    guarantee = run.guarantee(run.clients)
    sigma = sigma_of(run, task, releases)
    spent = epsilon_spent(sigma, releases, guarantee.sensitivity(run.clip_norm), run.delta)
    return Account(releases, sigma, guarantee.client_sigma(sigma), spent)


def sigma_of(run: Run, task: Task, releases: int) -> float:
    """The noise that the adversary sees in one release, by the rule that the run names."""
    guarantee = run.guarantee(run.clients)
    if run.noise_rule == "exact" or run.epsilon == math.inf:
        return noise_sigma(run.epsilon, run.delta, releases, guarantee.sensitivity(run.clip_norm))
    assert run.v is not None, "checked by Settings"
    v = lemma1_reading(run, task) if isinstance(run.v, str) else run.v
    return lemma1_sigma(run.epsilon, run.delta, run.p * run.iterations, run.clip_norm, v)


def lemma1_reading(run: Run, task: Task) -> float:
    """The number that a named reading of the paper's constant v stands for."""
    if not task.sizes_public:
        require(
            run.v in ("exact", "proof"),
            f"v={run.v} needs the clients' numbers of records, which are private here: give a number",
        )
    records = max(min(task.clients.sizes), 1)
    batch = records if run.batch == "full" else run.batch
    exact = exact_v(run.epsilon, run.delta, run.guarantee(run.clients).sensitivity(1.0))
    return lemma1_v(str(run.v), exact, task.dimension, batch, records)


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
        clipped=float((norms > run.clip_norm).double().mean()),
        update_norm=float(norms.mean()),
        h_norm=float(torch.linalg.vector_norm(state.h, dim=-1).mean()) if run.algorithm == "dp-scaffnew" else None,
        train_error=float(task.clients.error(x)),
    )


def _notices(run: Run, spent: float, failed: str | None) -> list[str]:
    """What a reader must know before anything else."""
    notices = []
    if run.epsilon == math.inf:
        notices.append("NOT PRIVATE: epsilon=inf, no noise was added.")
    elif spent > run.epsilon:
        notices.append(
            f"NOT PRIVATE AT ITS LABEL: the exact epsilon spent is {spent:.6g}, not the nominal {run.epsilon:g} "
            f"(noise rule {run.noise_rule}, v={run.v})."
        )
    elif run.delta * run.clients >= 1:
        notices.append(f"WEAK: delta={run.delta:g} is a probability of failure, and not below 1 / number of clients.")
    if run.simulate_noise_seed is not None:
        notices.append(
            f"SIMULATION, NOT PRIVATE: whoever knows the noise seed {run.simulate_noise_seed} can subtract the noise."
        )
    if run.diagnostics:
        notices.append("NOT PRIVATE: diagnostics show private values without noise.")
    if failed:
        notices.append(f"FAILED: {failed}.")
    return notices


def measure_again(result: Result, data: tuple[str, ...]) -> Measured:
    """Error and loss of a saved model: on the files `data`, or on its task's public test records."""
    return load_measure(result.task, Options.of(result), data, result.reading)(torch.from_numpy(result.x))
