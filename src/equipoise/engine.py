"""The loop that trains: one run, or many in one computation, where what differs lies on leading
axes [seeds, settings]."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from equipoise.accounts import Account
from equipoise.algorithms import (
    Algorithm,
    Gradient,
    Schedule,
    coin,
    dp_fedavg,
    dp_scaffnew,
    periodic,
)
from equipoise.errors import require
from equipoise.fleets import Round, SimulatedFleet, server_rounds
from equipoise.privacy.clip import GaussianMechanism, Mechanism, StableMechanism
from equipoise.privacy.noise import NoiseSource
from equipoise.privacy.noisy_gradient import NoisyGradient, RecordClients
from equipoise.result import Diagnosis, Point
from equipoise.settings import Run
from equipoise.tasks import Task, stacked
from equipoise.tasks.network import ModelClients
from equipoise.tasks.public import public_model

POINTS = 100  # of the curve, at most
MEASURING = 0.1  # of the work of training, at most: a network is measured less often

Watch = Callable[[Iterable[Round], int], Iterable[Round]]
MEANING = {
    "epsilon",
    "delta",
    "noise_rule",
    "v",
    "trust",
    "colluding",
    "neighbours",
}  # each run has its own account
MAY_DIFFER = {"seed", "simulate_noise_seed", "algorithm", "h_update", "clip_norm", *MEANING}
_alike = attrgetter(*(name for name in Run.model_fields if name not in MAY_DIFFER))


@dataclass
class Performance:
    """What happened in a run: the last communicated model, and what was seen on the way."""

    run: Run
    rounds: int
    x: Tensor
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
    """Train `runs[s][q]` on `tasks[s]` for every s and q. A run by itself has no leading axes: [d],
    not [1, 1, d]."""
    run = runs[0][0]
    if run.warm_start:
        tasks = [replace(task, x0=public_model(task)) for task in tasks]
    alone = len(tasks) == len(runs[0]) == 1
    if alone:
        task, algorithm = tasks[0], algorithm_of(run)
        gradient, mechanism = noise_of(run, task, accounts[0][0], noise)
    else:
        _check_alike(tasks[0], runs)
        task, algorithm = stacked(tasks), _stacked_algorithm(runs)
        gradient, mechanism = task.clients.gradient, _stacked_mechanism(runs, accounts)
    fleet = SimulatedFleet(run.clients, gradient, algorithm, mechanism, noise)

    x = start = (
        task.x0
    )  # [seeds, 1, d] in a stack: the local steps of the first round are the same for all settings of a seed
    done = [[Performance(run, len(schedule), start) for run in row] for row in runs]
    apart = math.ceil(len(schedule) / min(points, _points(task, run)))
    _look(done, task, Round(0, 0, start), None)
    for number, iteration, x in watch(
        server_rounds(start, schedule, fleet, run.gamma), len(schedule)
    ):
        if run.simulation and fleet.overflowed:
            _note_failures(done, number, fleet)
        if number % apart == 0 or number == len(schedule):
            _look(done, task, Round(number, iteration, x), fleet)
    for s, row in enumerate(done):
        for q, one in enumerate(row):
            one.x = x if alone else x[s, q].clone()
    return done


def schedule_of(run: Run) -> Schedule:
    if run.schedule == "coin":
        return coin(run.iterations, run.p, run.seed)
    return periodic(run.iterations, run.local_steps or 1)


def algorithm_of(run: Run) -> Algorithm:
    if run.algorithm == "dp-fedavg":
        return dp_fedavg(run.eta)
    return dp_scaffnew(run.eta, run.p, run.h_update or "paper", run.clip_norm)


def noise_of(
    run: Run, task: Task, account: Account, noise: NoiseSource
) -> tuple[Gradient, Mechanism]:
    """Where the noise enters: the clients' gradients, and how their updates are released."""
    if run.unit == "client":
        return task.clients.gradient, GaussianMechanism(run.clip_norm, account.client_sigma)
    sizes, clients = task.clients.sizes, _with_records(task)
    assert account.per_client, "told for every client if the unit is a record"
    sigmas = torch.tensor([[client.sigma] for client in account.per_client], dtype=torch.float64)
    if run.noise_in == "message":
        sent = sigmas if run.trust == "local" else account.client_sigma
        return NoisyGradient(
            clients, run.clip_norm, 0.0, (1.0,) * len(sizes), noise
        ), StableMechanism(sent)
    rates = tuple(client.sampling_rate for client in account.per_client)
    return NoisyGradient(clients, run.clip_norm, sigmas, rates, noise), GaussianMechanism(
        math.inf, 0.0
    )


def _with_records(task: Task) -> RecordClients:
    clients: Any = task.clients
    require(
        hasattr(clients, "clipped_sum"),
        f"unit=record with task={task.name}: its clients have no records to tell apart",
    )
    if isinstance(clients, ModelClients):
        _ = (
            clients.layout
        )  # a model whose records cannot be told apart is refused before anything is spent
    checked: RecordClients = clients
    return checked


def can_be_stacked(task: Task, run: Run) -> bool:
    """Whether runs like this one gain from being trained together."""
    return hasattr(task.clients, "stacked") and run.unit == "client" and run.schedule == "periodic"


def shared(run: Run) -> tuple[Any, ...]:
    """What runs must have in common to be trained together. Those without a control variate go with
    the paper's."""
    return (*_alike(run), run.h_update or "paper")


def _check_alike(task: Task, runs: Sequence[Sequence[Run]]) -> None:
    run = runs[0][0]
    same = shared(run)
    require(
        all(shared(one) == same for row in runs for one in row),
        "runs that are trained together may differ in seed, algorithm, budget and clip only",
    )
    require(
        can_be_stacked(task, run),
        f"task={task.name} with unit={run.unit}: train such runs one by one",
    )


def _stacked_algorithm(runs: Sequence[Sequence[Run]]) -> Algorithm:
    run = next((run for run in runs[0] if run.algorithm == "dp-scaffnew"), None)
    if run is None:
        return algorithm_of(runs[0][0])
    learning = _tensor([[run.algorithm == "dp-scaffnew" for run in row] for row in runs])
    return dp_scaffnew(run.eta, run.p, run.h_update or "paper", _clips(runs), learning)


def _stacked_mechanism(
    runs: Sequence[Sequence[Run]], accounts: Sequence[Sequence[Account]]
) -> Mechanism:
    return GaussianMechanism(
        _clips(runs), _tensor([[account.client_sigma for account in row] for row in accounts])
    )


def _clips(runs: Sequence[Sequence[Run]]) -> Tensor:
    return _tensor([[run.clip_norm for run in row] for row in runs])


def _tensor(numbers: list[list[float]]) -> Tensor:
    """One number for each run, against models [seeds, settings, clients, d]."""
    return torch.tensor(numbers, dtype=torch.float64)[..., None, None]


def _points(task: Task, run: Run) -> int:
    """How often to measure: at most MEASURING of the work of training, where a step is three passes
    through the model."""
    if _is_quick(task):
        return POINTS
    return max(
        1,
        min(
            POINTS,
            int(
                MEASURING * 3 * run.iterations * run.clients * (task.batch or 1) / task.test_records
            ),
        ),
    )


def _is_quick(task: Task) -> bool:
    """Whether looking at all records is little work beside training."""
    return not task.test_records or task.batch is None


def _look(
    done: list[list[Performance]], task: Task, round: Round, fleet: SimulatedFleet | None
) -> None:
    """Measure the models after a round on public records, if there are any; look inside the
    clients, if that was asked for."""
    number, iteration, x = round
    every = [one for row in done for one in row]
    if task.measure:
        for one, error, loss, mean in zip(
            every, *(_listed(value, done) for value in task.measure(x)), strict=True
        ):
            one.curve.append(Point(number, iteration, error, loss, mean))
    if not fleet or not fleet.memory or not every[0].run.diagnostics:
        return
    h = getattr(fleet.memory.state, "h", None)
    norms, h_norms = (
        None if v is None else torch.linalg.vector_norm(v, dim=-1) for v in (fleet.memory.update, h)
    )
    assert norms is not None
    clips = torch.tensor(
        [[[one.run.clip_norm] for one in row] for row in done], dtype=torch.float64
    )
    clipped = (norms > clips).double().mean(-1) if every[0].run.unit == "client" else None
    train_error = task.clients.error(x) if number == every[0].rounds or _is_quick(task) else None
    values = clipped, norms.mean(-1), None if h_norms is None else h_norms.mean(-1), train_error
    for one, share, norm, h_norm, error in zip(
        every, *(_listed(value, done) for value in values), strict=True
    ):
        of_h = h_norm if one.run.algorithm == "dp-scaffnew" else None
        one.diagnoses.append(Diagnosis(number, share, norm, of_h, error))


def _listed(values: Tensor | None, done: list[list[Performance]]) -> list[Any]:
    """A value for each run, of one for a run by itself, or of [seeds, 1] where settings do not
    differ yet."""
    shape = len(done), len(done[0])
    return [None] * math.prod(shape) if values is None else values.expand(shape).flatten().tolist()


def _note_failures(done: list[list[Performance]], number: int, fleet: SimulatedFleet) -> None:
    assert fleet.memory
    finite = fleet.memory.finite.squeeze(-1).all(-1)
    for one, well in zip((one for row in done for one in row), _listed(finite, done), strict=True):
        if not well and one.failed is None:
            one.failed = f"an update was not finite in round {number}: lower eta={one.run.eta}"
