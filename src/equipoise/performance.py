"""The loop that trains: one run, or many in one computation, where what differs lies on leading axes [seeds, settings]."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from equipoise.accounts import Account
from equipoise.algorithms import Algorithm, Gradient, Schedule, coin, dp_fedavg, dp_scaffnew, periodic
from equipoise.errors import require
from equipoise.fleets import Round, SimulatedFleet, server_rounds
from equipoise.privacy.gradients import NoisyGradient, RecordClients
from equipoise.privacy.mechanism import GaussianMechanism, Mechanism, StableMechanism, is_finite
from equipoise.privacy.noise import NoiseSource
from equipoise.result import Diagnosis, Point
from equipoise.run import Run
from equipoise.tasks import Task
from equipoise.tasks.model_clients import ModelClients
from equipoise.tasks.public import public_model

POINTS = 100  # of the curve, at most
MEASURING = 0.1  # of the work of training, at most: a network is measured less often

Watch = Callable[[Iterable[Round], int], Iterable[Round]]
MEANING = {"epsilon", "delta", "noise_rule", "v", "trust", "colluding", "neighbours"}  # each run has its own account
MAY_DIFFER = {"seed", "simulate_noise_seed", "clip_norm", *MEANING}


@dataclass
class Performance:
    """What happened in a run: the last communicated model, and what was seen on the way."""

    x: Tensor
    rounds: int
    curve: list[Point] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)
    failed: str | None = None


def perform(
    tasks: Sequence[Task],
    runs: Sequence[Sequence[Run]],
    accounts: Sequence[Sequence[Account]],
    schedule: Schedule,
    noise: NoiseSource,
    watch: Watch = lambda rounds, total: rounds,
    points: int = POINTS,
) -> list[list[Performance]]:
    """Train `runs[s][q]` on `tasks[s]` for every s and q. A run by itself has no leading axes: [d], not [1, 1, d]."""
    run = runs[0][0]
    starts = [public_model(task) if run.warm_start else task.x0 for task in tasks]
    alone = len(tasks) == len(runs[0]) == 1
    gradient: Gradient
    mechanism: Mechanism
    clip_norm: float | Tensor
    if alone:
        start, (gradient, mechanism), clip_norm = starts[0], noise_of(run, tasks[0], accounts[0][0], noise), run.clip_norm
    else:
        start = torch.stack(starts).unsqueeze(1)  # the local steps of the first round are the same for all settings of a seed
        gradient, mechanism, clip_norm = _stacked(tasks, runs, accounts)
    fleet = SimulatedFleet(run.clients, gradient, algorithm_of(run, clip_norm), mechanism, noise)

    done = [[Performance(start, len(schedule)) for _ in row] for row in runs]
    apart = math.ceil(len(schedule) / min(points, _points(tasks[0], run)))
    _look(done, tasks, runs, Round(0, 0, start), None)
    x = start
    for number, iteration, x in watch(server_rounds(start, schedule, fleet, run.gamma), len(schedule)):
        if run.simulation and fleet.overflowed:
            _note_failures(done, runs, number, fleet)
        if number % apart == 0 or number == len(schedule):
            _look(done, tasks, runs, Round(number, iteration, x), fleet)
    for s, row in enumerate(done):
        for q, one in enumerate(row):
            one.x = x if alone else x[s, q].clone()
    return done


def schedule_of(run: Run) -> Schedule:
    if run.schedule == "coin":
        return coin(run.iterations, run.p, run.seed)
    return periodic(run.iterations, run.local_steps or 1)


def algorithm_of(run: Run, clip_norm: float | Tensor) -> Algorithm:
    if run.algorithm == "dp-fedavg":
        return dp_fedavg(run.eta)
    return dp_scaffnew(run.eta, run.p, run.h_update or "paper", clip_norm)


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


def _with_records(task: Task) -> RecordClients:
    clients: Any = task.clients
    require(hasattr(clients, "clipped_sum"), f"unit=record with task={task.name}: its clients have no records to tell apart")
    if isinstance(clients, ModelClients):
        _ = clients.layout  # a model whose records cannot be told apart is refused before anything is spent
    checked: RecordClients = clients
    return checked


def can_be_stacked(task: Task, run: Run) -> bool:
    """Whether runs like this one gain from being trained together."""
    return hasattr(task.clients, "stacked") and run.unit == "client" and run.schedule == "periodic"


def _stacked(
    tasks: Sequence[Task], runs: Sequence[Sequence[Run]], accounts: Sequence[Sequence[Account]]
) -> tuple[Gradient, Mechanism, Tensor]:
    """The same for many runs, with their clip thresholds: like the noise, a tensor [seeds, settings, 1, 1]."""
    same = [{name: value for name, value in run.model_dump().items() if name not in MAY_DIFFER} for row in runs for run in row]
    require(all(one == same[0] for one in same), "runs that are trained together may differ in seed, budget and clip only")
    require(
        can_be_stacked(tasks[0], runs[0][0]), f"task={tasks[0].name} with unit={runs[0][0].unit}: train such runs one by one"
    )
    clients: Any = tasks[0].clients
    clips = torch.tensor([[[[run.clip_norm]] for run in row] for row in runs], dtype=torch.float64)
    sigmas = torch.tensor([[[[account.client_sigma]] for account in row] for row in accounts], dtype=torch.float64)
    return clients.stacked([task.clients for task in tasks]).gradient, GaussianMechanism(clips, sigmas), clips


def _points(task: Task, run: Run) -> int:
    """How often to measure: at most MEASURING of the work of training, where a step is three passes through the model."""
    if _is_quick(task):
        return POINTS
    return max(1, min(POINTS, int(MEASURING * 3 * run.iterations * run.clients * (task.batch or 1) / task.test_records)))


def _is_quick(task: Task) -> bool:
    """Whether looking at all records is little work beside training."""
    return not task.test_records or task.batch is None


def _look(
    done: list[list[Performance]],
    tasks: Sequence[Task],
    runs: Sequence[Sequence[Run]],
    round: Round,
    fleet: SimulatedFleet | None,
) -> None:
    """Measure the models after a round on public records, if there are any; look inside the clients, if that was asked for."""
    x = _by_run(round.x, runs)
    for task, of_row, row in zip(tasks, x, done, strict=True):
        if task.measure:
            error, loss, mean = (_listed(value, len(row)) for value in task.measure(of_row[0] if len(row) == 1 else of_row))
            for q, one in enumerate(row):
                one.curve.append(Point(round.number, round.iteration, error[q], loss[q], mean[q]))
    if not fleet or not fleet.memory or not runs[0][0].diagnostics:
        return
    h = getattr(fleet.memory.state, "h", None)
    norms, h_norms = (
        None if v is None else _by_run(torch.linalg.vector_norm(v, dim=-1), runs) for v in (fleet.memory.update, h)
    )
    assert norms is not None
    clips = torch.tensor([[[run.clip_norm] for run in row] for row in runs], dtype=torch.float64)
    clipped = (norms > clips).double().mean(-1).tolist()
    last = round.number == done[0][0].rounds
    for s, (task, row) in enumerate(zip(tasks, done, strict=True)):
        of_clients = task.clients.error(x[s, 0] if len(row) == 1 else x[s]) if last or _is_quick(task) else None
        error = _listed(of_clients, len(row))
        norm, h_norm = norms[s].mean(-1).tolist(), _listed(None if h_norms is None else h_norms[s].mean(-1), len(row))
        for q, one in enumerate(row):
            share = clipped[s][q] if runs[s][q].unit == "client" else None
            one.diagnoses.append(Diagnosis(round.number, share, norm[q], h_norm[q], error[q]))


def _by_run(values: Tensor, runs: Sequence[Sequence[Run]]) -> Tensor:
    """[seeds, settings, n], of [n] for a run by itself, or of [seeds, 1, n] where settings do not differ yet."""
    return values.expand(len(runs), len(runs[0]), -1)


def _listed(values: Tensor | None, number: int) -> list[Any]:
    return [None] * number if values is None else values.reshape(-1).tolist()


def _note_failures(done: list[list[Performance]], runs: Sequence[Sequence[Run]], number: int, fleet: SimulatedFleet) -> None:
    assert fleet.memory
    finite = _by_run(is_finite(fleet.memory.update).squeeze(-1), runs).all(-1)
    for row, of_row, fine in zip(done, runs, finite, strict=True):
        for one, run, well in zip(row, of_row, fine, strict=True):
            if not well and one.failed is None:
                one.failed = f"an update was not finite in round {number}: lower eta={run.eta}"
