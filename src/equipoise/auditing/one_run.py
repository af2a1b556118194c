"""An audit by one run of the task itself, with canaries (Steinke, Nasr and Jagielski, "Privacy
auditing with one (1) training run", 2023).

The adversary hears what it hears in `adversary`, knows all other records, and subtracts what they
do. Each canary's score is what is left along its coordinate, summed over the run; those with the
highest scores are said to be there (or on side 1), as many with the lowest not to be, and of the
others nothing is said. How many that is follows from the claim, before anything is seen.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.algorithms.schedule import schedule_of
from equipoise.auditing.adversary import Floats, NoNoise, Overheard, Thought, sum_of_others
from equipoise.auditing.bounds import (
    epsilon_of_guesses,
    epsilon_of_guesses_sharply,
    epsilon_of_mu,
    mu_of_guesses,
)
from equipoise.auditing.canaries import Canaries, canaries_of, with_canaries
from equipoise.auditing.many_runs import coins_of, noise_of_audit
from equipoise.engine import algorithm_of, noise_of, record_clients
from equipoise.errors import require
from equipoise.fleets import Broadcast, server_rounds
from equipoise.privacy.events import Account
from equipoise.privacy.noise import NoiseSource
from equipoise.seeds import stream
from equipoise.settings import Run, Settings
from equipoise.tasks.public import public_model
from equipoise.tasks.task import Task
from equipoise.training import account_of

_SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02)  # of canaries to speak of
_TRIED = 20  # times that guesses are made up to choose among these


class Guessed(NamedTuple):
    """What the adversary said of canaries, and how often it was right.

    account     of the run with canaries
    """

    run: Run
    account: Account
    canaries: int
    guesses: int
    correct: int

    def mu(self, alpha: float) -> float | None:
        """The lower bound of mu; None where records are sampled."""
        if self.account.sampled:
            return None
        return mu_of_guesses(self.canaries, self.guesses, self.correct, alpha / 2)

    def bounds(self, alpha: float) -> dict[str, float]:
        """Lower bounds of epsilon, which hold together."""
        delta, seen = self.run.delta, (self.canaries, self.guesses, self.correct)
        plain = epsilon_of_guesses(*seen, delta, alpha / 2)
        mu = self.mu(alpha)
        if mu is None:
            sharp = epsilon_of_guesses_sharply(*seen, delta, alpha / 2)
            return {"any (epsilon, delta)-DP, as f-DP": sharp, "any (epsilon, delta)-DP": plain}
        return {"Gaussian DP": epsilon_of_mu(mu, delta), "any (epsilon, delta)-DP": plain}


class _Arena(NamedTuple):
    """A run, its task with canaries, and with all of them absent."""

    run: Run
    account: Account
    task: Task
    without: Task
    canaries: Canaries
    real: int  # clients of the task itself


def one_run(settings: Settings, task: Task, number: int) -> Guessed:
    """Train on the task with so many canaries, and guess which are there."""
    require(
        settings.unit in ("client", "record"),
        f"canaries={number} with unit={settings.unit}: give unit=client or record, or audit by "
        "many runs",
    )
    seed = settings.simulate_noise_seed
    coins, over_clip = coins_of(seed), settings.promise.over_clip
    canaries = canaries_of(number, task.dimension, over_clip, coins)
    arena = _arena(settings, task, canaries)
    schedule = schedule_of(arena.run)
    scores = _scores(arena, schedule, noise_of_audit(seed))
    guesses = _how_many(arena, number)
    order = np.argsort(scores, kind="stable")
    inside = canaries.sides.numpy() == 1
    correct = int(
        inside[order[number - guesses // 2 :]].sum() + (~inside[order[: guesses // 2]]).sum()
    )
    return Guessed(arena.run, arena.account, number, guesses, correct)


def _arena(settings: Settings, task: Task, canaries: Canaries) -> _Arena:
    clip, eta = settings.clip, settings.eta or task.eta
    present, absent = (
        with_canaries(task, some, settings.unit, clip or 1.0, eta)
        for some in (canaries, canaries.absent())
    )
    facts = present.facts(settings.unit)
    run = settings.resolve(facts)
    run.promise.check_clients(run.clients)
    real, colluding = len(task.clients.sizes), run.colluding or 0
    require(
        colluding <= real,
        f"colluding={colluding} of {real} clients that are no canaries: lower colluding",
    )
    if run.unit != "client":
        record_clients(present, run)
    account = account_of(run, facts, schedule_of(run))
    return _Arena(run, account, present, absent, canaries, real)


def _scores(arena: _Arena, schedule: tuple[int, ...], noise: NoiseSource) -> Floats:
    run, account, algorithm = arena.run, arena.account, algorithm_of(arena.run)
    weights = arena.task.facts(run.unit).weights(run.weights)
    gradient, releaser = noise_of(run, arena.task, account, noise, weights)
    expected, silent = noise_of(run, arena.without, account, NoNoise(), weights)
    nobodys, _ = noise_of(run, arena.without, account, NoNoise(everybody=False), weights)
    event, where = account.events[0], arena.canaries.coordinates
    score = torch.zeros(len(where), dtype=torch.float64)

    def overheard(x: Tensor, t: int) -> Tensor:
        noised, others = gradient(x, t), expected(x, t)
        if event.rate < 1:
            nobody = nobodys(x, t)
            others = nobody + event.rate * (others - nobody)
        score.sub_((noised - others)[0, where].double())
        return noised

    thought = Thought(algorithm, silent, expected)

    def listener(broadcast: Broadcast, releases: Tensor) -> None:
        if run.unit == "client" and run.trust == "local":  # messages of canaries alone
            score.add_(releases[torch.arange(arena.real, len(releases)), where].double())
            return
        others = thought.release(broadcast, releases)
        if run.trust == "local":
            left = releases[0] - others[0]
        else:
            colluders = _colluders(run, len(releases))
            left = sum_of_others(releases, releaser, colluders)
            left = left - sum_of_others(others, silent, colluders)
        score.add_(left[where].double())

    by_step = run.mechanism.paid_per == "local step"
    heard = overheard if by_step else gradient
    fleet = Overheard(run.clients, heard, algorithm, releaser, noise, weights)
    fleet.listener = None if by_step else listener
    start = public_model(arena.task) if run.warm_start else arena.task.x0
    for _ in server_rounds(start, schedule, fleet, algorithm, run.gamma):
        pass
    return score.numpy()


def _colluders(run: Run, clients: int) -> slice:
    """Clients who hold no canary."""
    colluding = run.colluding or 0
    return slice(colluding) if run.unit == "client" else slice(clients - colluding, clients)


def _how_many(arena: _Arena, number: int) -> int:
    """Of how many canaries to say something: what proves most if the claim is true and met, in made
    up scores of one Gaussian."""
    mu, run = _expected_mu(arena.account), arena.run
    coins = stream(0, "made up scores", number)
    inside = coins.integers(0, 2, (_TRIED, number)) == 1
    scores = coins.standard_normal((_TRIED, number)) + mu * inside
    ranked = np.take_along_axis(inside, np.argsort(scores, axis=1), axis=1)
    proved = {}
    for share in _SHARES:
        half = max(1, int(share * number / 2))
        right = ranked[:, number - half :].sum() + (~ranked[:, :half]).sum()
        guessed = Guessed(run, arena.account, number, 2 * half, int(right / _TRIED))
        proved[2 * half] = max(guessed.bounds(0.05).values())
    return max(proved, key=lambda guesses: proved[guesses])


def _expected_mu(account: Account) -> float:
    """By how many standard deviations a canary's score is larger on its other side."""
    event = account.events[0]
    if event.mu is not None:
        return event.mu
    reach = event.sensitivity * event.rate  # of what is sampled, in the mean
    return float(reach * np.sqrt(event.count) / event.sigma)
