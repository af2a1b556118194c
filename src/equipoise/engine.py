"""The loop that trains: one run, or many in one computation, where what differs lies on leading
axes [seeds, settings]."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.algorithms import Algorithm, Gradient, Hyper, algorithm_spec
from equipoise.algorithms.algorithm import FirstSteps
from equipoise.algorithms.optimisers.optimised import optimised
from equipoise.algorithms.schedule import Schedule
from equipoise.device import HOST
from equipoise.errors import InvalidValue, require
from equipoise.facts import EQUAL, Weights
from equipoise.fleets import Fleet, Round, SimulatedFleet, averaged, server_rounds
from equipoise.privacy.events import Account
from equipoise.privacy.lattice import Lattice
from equipoise.privacy.mechanisms.mechanism import Releaser
from equipoise.privacy.noise import NoiseSource
from equipoise.privacy.noisy_gradient import NoisyGradient
from equipoise.result import Diagnosis, Point
from equipoise.resume import Parts, RunJournal
from equipoise.settings import Run
from equipoise.tasks.public import public_model
from equipoise.tasks.task import Records, Stackable, Task, TaskOptions, stacked

POINTS = 100  # of the curve, at most
MEASURING = 0.1  # of the work of training, at most: a network is measured less often

Watch = Callable[[Iterable[Round], int], Iterable[Round]]
# Each run has its own account, whatever its epsilon means. Trust decides the law of the noise.
MEANING = {"epsilon", "delta", "noise_rule", "v", "colluding", "neighbours"}
MAY_DIFFER = {"seed", "simulate_noise_seed", "algorithm", "clip", "returns", *MEANING}
_alike = attrgetter(*(name for name in Run.model_fields if name not in MAY_DIFFER))


@dataclass
class Trained:
    """What happened in a run: the model that it returns, and what was seen on the way."""

    run: Run
    rounds: int
    x: Tensor
    curve: list[Point] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)
    failed: str | None = None


Rows = Sequence[Sequence[Run]]
Accounts = Sequence[Sequence[Account]]


def run_rounds(
    tasks: Sequence[Task],
    runs: Rows,
    accounts: Accounts,
    schedule: Schedule,
    noise: NoiseSource,
    watch: Watch = lambda rounds, total: rounds,
    points: int = POINTS,
    ends: dict[int, Tensor] | None = None,
    journal: RunJournal | None = None,
    elsewhere: Fleet | None = None,
) -> list[list[Trained]]:
    """Train `runs[s][q]` on `tasks[s]` for every s and q.

    A run by itself has no leading axes: [d], not [1, 1, d]. `ends` is what runs before it that
    begin alike know of their first steps, and learns what this one does. With a `journal` a run by
    itself goes on after the last round that is there, which is then the first that is watched. The
    clients of a run by itself may be `elsewhere`, and make their own noise there.
    """
    run = runs[0][0]
    if run.warm_start:
        tasks = [replace(task, x0=public_model(task)) for task in tasks]
    fleet: Fleet
    here: SimulatedFleet | None = None
    if elsewhere:
        (task,) = tasks
        fleet, algorithm = elsewhere, algorithm_of(run)
    else:
        task, here = _fleet(tasks, runs, accounts, noise, ends)
        fleet, algorithm = here, server_of(runs)
    # [seeds, 1, d] in a stack: the first local steps are the same for all settings of a seed.
    round = Round(0, 0, task.x0)
    trained = [[Trained(run, len(schedule), round.x) for run in row] for row in runs]
    apart = math.ceil(len(schedule) / min(points, points_of(task, run)))
    closer = math.ceil(len(schedule) / points)
    inside = Inside(trained, task)

    def made(after: Round | None) -> Iterator[Round]:
        """The rounds that are left, and what is seen of them on the way."""
        if after:
            yield after
        server = server_rounds(task.x0, schedule, fleet, algorithm, run.gamma, after)
        for round in averaged(server, after):
            if here:
                _look_inside(here, round, trained, inside)
            if round.number % apart == 0 or round.number == len(schedule):
                _measure(trained, task, round)
            if round.number % closer == 0 or round.number == len(schedule):
                inside.tell(round)
            yield round

    _measure(trained, task, round)
    if journal is None or here is None:
        rounds: Iterable[Round] = made(None)
    else:
        parts = Parts(trained[0][0], inside, here, task.clients, noise)
        rounds = journal.shown(made(journal.begin(parts, len(task.x0))), parts, len(schedule))
    for seen in watch(rounds, len(schedule)):
        round = seen
    x, alone = _returned(trained, round), _alone(runs)
    for s, row in enumerate(trained):
        for q, outcome in enumerate(row):
            outcome.x = x if alone else x[s, q].clone()
    return trained


def _alone(runs: Rows) -> bool:
    return len(runs) == len(runs[0]) == 1


def _fleet(
    tasks: Sequence[Task],
    runs: Rows,
    accounts: Accounts,
    noise: NoiseSource,
    ends: dict[int, Tensor] | None = None,
) -> tuple[Task, SimulatedFleet]:
    """The clients of one run, or those of many as one fleet."""
    run = runs[0][0]
    weights = tasks[0].facts(run.unit).weights(run.weights)
    if _alone(runs):
        task, algorithm = tasks[0], algorithm_of(run)
        gradient, releaser = noise_of(run, task, accounts[0][0], noise, weights)
        if ends is not None and first_steps_of(run):
            gradient = FirstSteps(gradient, ends)
    else:
        _check_alike(tasks[0], runs)
        task, algorithm = stacked(tasks), _stacked_algorithm(runs, tasks[0].device)
        gradient, releaser = _stacked_noise(task, runs, accounts, noise)
    fleet = SimulatedFleet(run.clients, gradient, algorithm, releaser, noise, weights, task.device)
    return task, fleet


def single_fleet(
    task: Task, run: Run, account: Account, noise: NoiseSource
) -> tuple[SimulatedFleet, Tensor]:
    """The clients of one run, and the model that they begin from."""
    start = public_model(task) if run.warm_start else task.x0
    _, fleet = _fleet([task], [[run]], [[account]], noise)
    return fleet, start


def algorithm_of(run: Run) -> Algorithm:
    return optimised(algorithm_spec(run.algorithm).make, hyper_of(run), run)


def hyper_of(run: Run) -> Hyper:
    clip = run.clip if run.mechanism.clips_message else math.inf
    return Hyper(run.eta, run.p, clip, run.options)


class Seat(NamedTuple):
    """Which of all clients is here, alone, and how many records the largest has, where that is
    public."""

    client: int
    largest: int | None


def noise_of(
    run: Run,
    task: Task,
    account: Account,
    noise: NoiseSource,
    weights: Weights = None,
    seat: Seat | None = None,
) -> tuple[Gradient, Releaser]:
    """Where the noise enters: the clients' gradients, and how their updates are released. A client
    that is alone, in its seat and with its own account, does what it does among all."""
    holders: Any = task.clients if run.unit == "client" else record_clients(task, run)
    clients, lattice = len(holders.sizes), lattice_of(run, account)
    added = [
        run.promise.client_sigma(event.sigma, run.clients, event.lattice)
        for event in account.events
    ]
    sigma: Any = added[0]
    if len(added) > 1:
        sigma = torch.tensor(added, dtype=torch.float64).unsqueeze(-1)
    rates = tuple(event.rate for event in account.events)
    rates = rates if len(rates) == clients else rates * clients
    mechanism = run.mechanism
    gradient = mechanism.gradient(holders, run.clip, sigma, lattice, rates, noise)
    shares = run.promise.shares(weights)
    share: Any = torch.tensor(shares, dtype=torch.float64).unsqueeze(-1) if shares else 1.0
    if seat:
        share = shares[seat.client] if shares else 1.0
        if isinstance(gradient, NoisyGradient):
            gradient = replace(gradient, largest=seat.largest)
    return gradient, mechanism.releaser(run.clip, sigma, lattice, share)


def lattice_of(run: Run, account: Account) -> Lattice:
    """One for all clients, or one for each [clients, 1]."""
    steps = [event.lattice for event in account.events]
    sums = run.promise.sums(run.clients) is not None
    if len({*steps}) == 1:
        return Lattice(steps[0], sums)
    return Lattice(torch.tensor(steps, dtype=torch.float64).unsqueeze(-1), sums)


def record_clients(task: Task, run: Run) -> Records:
    """The clients of a task whose records can be told apart, or who know whose they are; others are
    refused, before anything is spent."""
    clients: Any = task.clients
    if not isinstance(clients, Records):
        raise InvalidValue(
            f"unit={run.unit} with task={task.name}: its clients have no individual records"
        )
    if run.unit == "person":
        clients = task.persons().of_persons(run.max_records)
    holders: Records = clients.isolated() if run.isolate else clients
    holders.check_records()
    return holders


def can_be_stacked(task: Task, run: Run) -> bool:
    """Whether runs like this one gain from being trained together."""
    return (
        isinstance(task.clients, Stackable)
        and run.mechanism.stackable
        and run.schedule == "periodic"
        and run.weights == EQUAL
    )


def first_steps_of(run: Run) -> tuple[Any, ...] | None:
    """What runs have in common whose plain local steps are the same until they communicate; None
    where noise is in the gradients. A schedule of eta begins with all of it, and what a local
    optimiser makes of gradients are no plain steps, which alone are kept."""
    if not run.mechanism.noises_message:
        return None
    return (run.task, TaskOptions.of(run), run.eta, run.warm_start)


def shared(run: Run) -> tuple[Any, ...]:
    """What runs must have in common to be trained together: rules of noise may differ, the way in
    which noise enters may not."""
    mechanism, group = run.mechanism, algorithm_spec(run.algorithm).group
    functions = type(mechanism).gradient, type(mechanism).releaser
    return (*_alike(run), group, *functions, repr(sorted(vars(mechanism).items())))


def _check_alike(task: Task, runs: Rows) -> None:
    run = runs[0][0]
    same = shared(run)
    require(
        all(shared(other) == same for row in runs for other in row),
        "runs that are trained together may differ in seed, algorithm, budget, clip and returns "
        "only",
    )
    require(
        can_be_stacked(task, run),
        f"task={task.name} with unit={run.unit}: train such runs one by one",
    )


def server_of(runs: Rows) -> Algorithm:
    """The algorithm with its numbers on the host, where the server is."""
    if _alone(runs):
        return algorithm_of(runs[0][0])
    return _stacked_algorithm(runs, HOST)


def _stacked_algorithm(runs: Rows, device: str) -> Algorithm:
    """One algorithm for all: their own, or one that is each of them where a mask says so. Its
    numbers are on the device."""
    run = runs[0][0]
    spec = algorithm_spec(run.algorithm)
    hyper = hyper_of(run)
    if run.mechanism.clips_message:
        hyper = hyper._replace(clip=_clips(runs).to(device))
    if len({run.algorithm for row in runs for run in row}) == 1:
        return optimised(spec.make, hyper, run)
    stacks = [[algorithm_spec(run.algorithm).stack for run in row] for row in runs]
    values = [[stack.own for stack in row if stack] for row in stacks]
    assert spec.stack, "algorithms of one group have a stack"
    return spec.stack.make(hyper, _tensor(values).to(device))


def _stacked_noise(
    task: Task, runs: Rows, accounts: Accounts, noise: NoiseSource
) -> tuple[Gradient, Releaser]:
    """As `noise_of`, with a clip and a sigma for each run."""
    events = [account.events for row in accounts for account in row]
    require(
        all(len(one_for_all) == 1 and one_for_all[0].rate == 1 for one_for_all in events),
        "runs whose clients differ, or sample their records, are trained one by one",
    )
    sigmas = [
        [
            run.promise.client_sigma(account.sigma, run.clients, account.lattice)
            for run, account in zip(*row, strict=True)
        ]
        for row in zip(runs, accounts, strict=True)
    ]
    mechanism, clips, sigma = runs[0][0].mechanism, _clips(runs), _tensor(sigmas)
    rates = (1.0,) * runs[0][0].clients
    gammas = _tensor([[account.lattice for account in row] for row in accounts])
    lattice = lattice_of(runs[0][0], accounts[0][0])._replace(gamma=gammas)
    gradient = mechanism.gradient(task.clients, clips, sigma, lattice, rates, noise)
    return gradient, mechanism.releaser(clips, sigma, lattice)


def _clips(runs: Rows) -> Tensor:
    return _tensor([[run.clip for run in row] for row in runs])


def _tensor(numbers: list[list[float]]) -> Tensor:
    """One number for each run, against models [seeds, settings, clients, d]."""
    return torch.tensor(numbers, dtype=torch.float64)[..., None, None]


def points_of(task: Task, run: Run) -> int:
    """How often to measure: at most MEASURING of the work of training.

    A step is three passes through the model.
    """
    if _is_quick(task):
        return POINTS
    passes = 3 * run.iterations * run.clients * (task.batch or 1)
    models = 1 + (run.returns == "average")
    return max(1, min(POINTS, int(MEASURING * passes / (models * task.test_records))))


def _is_quick(task: Task) -> bool:
    """Whether looking at all records is little work beside training."""
    return not task.test_records or task.batch is None


def _measure(trained: list[list[Trained]], task: Task, round: Round) -> None:
    """Measure the models after a round on public records, if there are any.

    Averages are measured where that is little work, or where they are returned.
    """
    outcomes = [outcome for row in trained for outcome in row]
    if task.measure:
        measured = [*task.measure(round.x)]
        asked = any(outcome.run.returns == "average" for outcome in outcomes)
        if round.average is not None and (asked or _is_quick(task)):
            measured += task.measure(round.average)
        columns = [_listed(value, trained) for value in measured]
        for outcome, *values in zip(outcomes, *columns, strict=True):
            outcome.curve.append(Point(round.number, round.iteration, *values))


class Inside:
    """What goes on inside the clients, if that was asked for: norms, clipped shares and train
    errors are private values, for simulations."""

    def __init__(self, trained: list[list[Trained]], task: Task) -> None:
        self._trained, self._task = trained, task
        clips = [[[outcome.run.clip] for outcome in row] for row in trained]
        self._clips = torch.tensor(clips, dtype=torch.float64)
        self._asked = trained[0][0].run.diagnostics
        self._clipped: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._h_norms: Tensor | None = None

    def collected(self) -> dict[str, Tensor]:
        """What was noted since the last point."""
        noted = {"clipped": self._clipped, "norms": self._norms}
        return {name: torch.stack(values) for name, values in noted.items() if values}

    def collect(self, noted: dict[str, Tensor]) -> None:
        """Go on with what was noted before."""
        self._clipped, self._norms = ([*noted.get(name, ())] for name in ("clipped", "norms"))

    def note(self, fleet: SimulatedFleet) -> None:
        """A round."""
        if not self._asked:
            return
        assert fleet.memory
        norms = torch.linalg.vector_norm(fleet.memory.update, dim=-1).cpu()
        shape = self._clips.shape[:-1]  # also while settings do not differ yet
        self._norms.append(norms.mean(-1).expand(shape))
        self._clipped.append((norms > self._clips).double().mean(-1))
        h = getattr(fleet.memory.state, "h", None)
        self._h_norms = None if h is None else torch.linalg.vector_norm(h, dim=-1).mean(-1)

    def tell(self, round: Round) -> None:
        """Shares and norms in the mean of the rounds since this was asked last."""
        if not self._asked:
            return
        trained, task = self._trained, self._task
        run, rounds = trained[0][0].run, trained[0][0].rounds
        whole = round.number == rounds or _is_quick(task)
        train_error = task.clients.error(_returned(trained, round)) if whole else None
        clips = run.mechanism.clips_message
        clipped = torch.stack(self._clipped).mean(0) if clips else None
        norms = torch.stack(self._norms).mean(0)
        columns = [_listed(v, trained) for v in (clipped, norms, self._h_norms, train_error)]
        outcomes = [outcome for row in trained for outcome in row]
        for outcome, share, norm, h_norm, error in zip(outcomes, *columns, strict=True):
            has_h = algorithm_spec(outcome.run.algorithm).variate
            seen = Diagnosis(round.number, share, norm, h_norm if has_h else None, error)
            outcome.diagnoses.append(seen)
        self._clipped, self._norms = [], []


def _returned(trained: list[list[Trained]], round: Round) -> Tensor:
    """What each run returns, if this is its last round."""
    averages = torch.tensor([[outcome.run.returns == "average" for outcome in r] for r in trained])
    if round.average is None or not averages.any():
        return round.x
    if averages.all():
        return round.average
    return torch.where(averages.unsqueeze(-1), round.average, round.x)


def _listed(values: Tensor | None, trained: list[list[Trained]]) -> list[Any]:
    """A value for each run, of one for a run by itself, or of [seeds, 1] where settings do not
    differ yet."""
    shape = len(trained), len(trained[0])
    return [None] * math.prod(shape) if values is None else values.expand(shape).flatten().tolist()


def _look_inside(
    fleet: SimulatedFleet, round: Round, trained: list[list[Trained]], inside: Inside
) -> None:
    """What only a simulation may see of its clients."""
    if trained[0][0].run.simulation and fleet.overflowed:
        _note_failures(trained, round.number, fleet)
    inside.note(fleet)


def _note_failures(trained: list[list[Trained]], number: int, fleet: SimulatedFleet) -> None:
    assert fleet.memory
    finite = fleet.memory.finite.squeeze(-1).all(-1)
    outcomes = [outcome for row in trained for outcome in row]
    for outcome, well in zip(outcomes, _listed(finite, trained), strict=True):
        if not well and outcome.failed is None:
            outcome.failed = (
                f"an update was not finite in round {number}: lower eta={outcome.run.eta}"
            )
