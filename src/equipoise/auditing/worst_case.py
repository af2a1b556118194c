"""A small case that no other is worse than: a client, a record or a person whose data pull as hard
as the clip allows, to one side or to the other.

The data are records of a linear least-squares model, which the product's own code differentiates,
clips and samples. The target's label is so far away that its gradient points along one direction,
wherever the model goes, and is clipped. Where the account rests on stability, such a gradient has
no curvature but the regulariser's: the case in which its bounds are met with equality.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from equipoise.errors import require
from equipoise.facts import BY_RECORDS, EQUAL, Facts, Weights
from equipoise.privacy.events import Account
from equipoise.privacy.mechanisms.record import public_sizes, rates_of
from equipoise.settings import Run, Settings
from equipoise.steps import Steps
from equipoise.tasks.linear import least_squares, linear_task
from equipoise.tasks.task import Table, Task, TaskOptions, with_owners
from equipoise.training import account_of

DIMENSION = 4
TARGET = 0  # the client whose data differ
ROWS = 3  # of a person
OTHERS = 2  # records, or persons, beside the target: what depends on their number shows
_FAR = 1e9  # of a label, in clips: more than noise moves the model
_CURVATURE, _L2 = 1.0, 0.01  # where the task's are unknown
_NO_L2 = 1e-9
_PARTS = np.arange(1.0, DIMENSION + 1)
"""Of the squared length, along each coordinate: they differ, so that no coordinates can share their
noise and be found alike."""


class SmallCase(NamedTuple):
    """A run with three versions of its data: the target pulls forwards (1), backwards (-1), or is
    not there (0)."""

    run: Run
    schedule: tuple[int, ...]
    account: Account
    tasks: dict[int, Task]

    @property
    def starting(self) -> Tensor:
        return self.tasks[1].x0

    @property
    def weights(self) -> Weights:
        """How much clients count."""
        return self.tasks[1].facts(self.run.unit).weights(self.run.weights)

    def side(self, world: int, sign: int) -> int:
        """Which version is the data of this world, 1 or 0, while world 1 pulls to `sign`: the
        farthest that a neighbour can be."""
        away = -sign if self.run.promise.over_clip == 2 else 0
        return sign if world else away


def small_case(run: Run, facts: Facts, schedule: tuple[int, ...]) -> SmallCase:
    """The same mechanism, algorithm, schedule and budget with few clients who hold next to nothing.

    Where records are sampled, they are at the rate of the client for whom it is largest."""
    clients = (run.colluding or 0) + 2
    protects_client = run.unit == "client"
    L = facts.L or _CURVATURE + _L2
    mu = _NO_L2 if protects_client else facts.mu or _L2
    clip = run.clip
    if run.mechanism.by_stability:
        clip = min(clip, facts.gradient_bound or math.inf)
    elif not run.mechanism.clips_message:
        L = max(L, 2 * mu)
    alike = {
        "task": "made up",
        "clients": clients,
        "clip": clip,
        "sampling_rate": None if protects_client else _rate(run, facts),
        "batch": "full",
        "weights": BY_RECORDS if _weighed(run) else EQUAL,
    }
    kept = {name: getattr(run, name) for name in _KEPT}
    tasks = {side: _task(side, run, clients, clip, L, mu) for side in (1, -1, 0)}
    small = Settings.of(**kept, **alike)
    if protects_client:  # a rule of noise may look at what the clients of the task are like
        about = facts._replace(clients=clients, dimension=DIMENSION)
        small = small.model_copy(update={"batch": run.batch})
    else:
        about = tasks[1].facts(run.unit)
    resolved = small.resolve(about)
    return SmallCase(resolved, schedule, account_of(resolved, about, schedule), tasks)


_KEPT = (
    *("algorithm", "iterations", "local_steps", "schedule", "p", "eta", "gamma", "options", "seed"),
    *("epsilon", "delta", "unit", "neighbours", "trust", "colluding"),
    *("noise_in", "noise_rule", "v", "max_records", "simulate_noise_seed"),
    *Steps.model_fields,
)


def _rate(run: Run, facts: Facts) -> float:
    """The largest of the clients', whose numbers of records it may follow from."""
    if run.sampling_rate is not None or run.batch == "full":
        return run.sampling_rate or 1.0
    require(
        facts.sizes is not None and min(facts.sizes) > 0,
        f"batch={run.batch}: the sampling rate follows from numbers of records, which are not read "
        "here; give sampling_rate",
    )
    return max(rates_of(run, public_sizes(facts)))


def _weighed(run: Run) -> bool:
    """Whether clients send less the less they count, which evens out what records move."""
    return run.unit != "client" and run.trust != "local" and run.weights != EQUAL


def _task(side: int, run: Run, clients: int, clip: float, L: float, mu: float) -> Task:
    """Client 0 holds the target; all other records say nothing."""
    forwards = np.sqrt((L - mu) * _PARTS / _PARTS.sum())
    rows = min(ROWS, run.max_records) if run.unit == "person" else 1
    features = np.tile(forwards, (rows, 1))
    if side == 0:
        # No message at all is what an update becomes that is not finite; no record adds nothing.
        features = features * (math.nan if run.unit == "client" else 0.0)
    far = side * _FAR * max(1.0, clip) / min(1.0, run.eta)
    features = np.vstack([features, np.zeros((OTHERS, DIMENSION))])
    targets = np.vstack([np.full((rows, 1), far), np.zeros((OTHERS, 1))])
    more = 2 if _weighed(run) else 1  # times as many records as the target's client has
    silent = Table(*(np.zeros((more * len(each), each.shape[1])) for each in (features, targets)))
    tables = [Table(features, targets), *[silent] * (clients - 1)]
    made_up, link = TaskOptions(unit=run.unit), least_squares(1.0)
    task = linear_task("made up", (tables, None), None, link, mu, 1.0, made_up, (), iterations=1)
    task = replace(task, L=L, mu=mu, learning_rate=1 / L)
    if run.unit == "person":
        owners = np.array([0] * rows + list(range(1, OTHERS + 1)))
        others = np.concatenate([owners + len(owners) * i for i in range(more)])
        task = with_owners(task, [owners, *[others] * (clients - 1)])
    return task
