"""Attacks on the lowest bits of a release: they broke sums of floating-point numbers, and gain no
more than the account allows now.

Noise in floating point is fl(sigma n), n a floating-point number, so a release minus the right
candidate for what was noised can be explained by some n, coordinate by coordinate, and minus a
wrong one often cannot. `explained` tries it. Every test shows first that the attack works where it
used to.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.algorithms import algorithm_spec
from equipoise.engine import hyper_of, noise_of
from equipoise.fleets import Broadcast, client_round
from equipoise.privacy import SecretNoise
from equipoise.privacy.clip import ClippedRelease, average, clip
from equipoise.privacy.gaussian import gdp_mu, noise_sigma
from equipoise.privacy.lattice import NOT_ROUNDED, Lattice, Sums, discrete_sigma, spacing
from equipoise.settings import Settings
from equipoise.tasks import TaskOptions, load_task
from equipoise.training import account_of

DTYPES = [torch.float32, torch.float64]
EPSILON, DELTA = 0.01, 1e-5


def explained(releases, candidate, sigma, dtype):
    """Whether some floating-point n gives every coordinate of a release as candidate + fl(sigma n):
    one answer for each release [..., d]."""
    releases, candidate = releases.to(dtype), candidate.to(dtype)
    guess = (releases.double() - candidate.double()) / sigma
    hit = torch.zeros(releases.shape, dtype=torch.bool)
    for steps in range(-3, 4):
        n = guess.clone()
        for _ in range(abs(steps)):
            n = torch.nextafter(n, torch.tensor(math.copysign(math.inf, steps)).double())
        hit |= (candidate + (sigma * n).to(dtype)) == releases
    return hit.all(-1)


def in_floating_point(update, sigma, noise):
    """A release as it used to be: clipped, plus noise, in the model's own precision."""
    normals = torch.tensor(noise.normals(1, tuple(update.shape)))
    return update + (sigma * normals).to(update.dtype)


def accounted(epsilon=EPSILON):
    """The largest advantage that mu-GDP allows: the total variation 2 Phi(mu / 2) - 1."""
    return math.erf(gdp_mu(epsilon, DELTA) / math.sqrt(8))


# ---- one release ----


def largest_gain(released, updates, sigma, dtype, count):
    """Of the attacks "it was this update", for either of two: P(said | it was) - P(said | not)."""
    releases = [released(update.expand(count, -1)) for update in updates]
    gains = []
    for candidate in updates:
        rates = [float(explained(r, candidate, sigma, dtype).double().mean()) for r in releases]
        gains.append(abs(rates[0] - rates[1]))
    return max(gains)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_of_one_release_the_lowest_bits_tell_nothing(dtype):
    """Was the update zero, or this one? d = 1000, 10^4 releases of each."""
    d, C, count, noise = 1000, 1.0, 10_000, SecretNoise()
    zero = torch.zeros(d, dtype=dtype)
    other = clip(torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=dtype), 0.99 * C)

    def used_to_be(update):
        return in_floating_point(update, noise_sigma(1.0, DELTA, 1, C), noise)

    broken = largest_gain(used_to_be, (zero, other), noise_sigma(1.0, DELTA, 1, C), dtype, 200)
    assert broken > 0.95, "the attack works on floating-point numbers"

    sigma = noise_sigma(EPSILON, DELTA, 1, C)
    releaser = ClippedRelease(C, sigma)
    gain = largest_gain(
        lambda update: releaser.release(update, noise, 1), (zero, other), sigma, dtype, count
    )
    assert gain <= accounted() + 5 * math.sqrt(0.5 / count)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 3, 20])
def test_nor_of_few_numbers(dtype, d):
    """Where candidates are explained by chance, and the attack decides by frequencies."""
    C, count, noise = 1.0, 10_000, SecretNoise()
    sigma = noise_sigma(EPSILON, DELTA, 1, C)
    zero, other = torch.zeros(d, dtype=dtype), torch.full((d,), 0.9 * C / d**0.5, dtype=dtype)
    releaser = ClippedRelease(C, sigma)
    gain = largest_gain(
        lambda update: releaser.release(update, noise, 1), (zero, other), sigma, dtype, count
    )
    assert gain <= accounted() + 5 * math.sqrt(0.5 / count)


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("modulus", [2, 3, 8])
def test_steps_modulo_small_numbers_tell_nothing(sums, modulus):
    """Release by release the same shares of even and odd numbers of steps, whatever the update."""
    d, count, sigma = 20, 4000, noise_sigma(EPSILON, DELTA, 1, 1.0)
    gamma = spacing(1.0, sigma)
    releaser = ClippedRelease(1.0, sigma, Lattice(gamma, sums))
    for update in (torch.zeros(d), torch.full((d,), 0.1), torch.full((d,), -0.1)):
        release = releaser.release(update.double().expand(count, -1), SecretNoise(), 1)
        rest = (release / gamma).long() % modulus
        for coordinate in rest.T:
            shares = torch.bincount(coordinate, minlength=modulus) / count
            assert (shares - 1 / modulus).abs().max() < 6 * math.sqrt(0.25 / count)


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_a_sum_the_lowest_bits_tell_nothing(dtype):
    """Five clients, one of whom colludes: what is left is the sum of four."""
    d, C, N, count, noise = 50, 1.0, 5, 10_000, SecretNoise()
    sums, sigma = Sums(N, N - 1), noise_sigma(EPSILON, DELTA, 1, C)
    gamma = spacing(C, sigma, sums)
    share = discrete_sigma(sigma, gamma, sums)
    releaser = ClippedRelease(C, share, Lattice(gamma, sums=True))
    others = clip(torch.randn(N, d, generator=torch.Generator().manual_seed(1)).to(dtype), 0.9)
    says_zero = []
    for first in (torch.zeros(d, dtype=dtype), others[0]):
        updates = torch.cat([first[None], others[1:]])
        releases = releaser.release(updates.expand(count, N, d), noise, 1)
        total = average(releases, releaser.lattice) * N - releases[:, -1]
        steps = total / gamma
        assert torch.equal(steps, steps.round())
        known = (clip(others[1:-1], C - gamma * d**0.5 / 2).double() / gamma).round().sum(0)
        says_zero.append(explained(total, known * gamma, sigma, torch.float64))
    gain = abs(float(says_zero[0].double().mean() - says_zero[1].double().mean()))
    assert gain <= accounted() + 5 * math.sqrt(0.5 / count)


# ---- whole runs ----

RUNS = 200
SUMS = {"trust": "secure-aggregation"}
RECORD = {"clip": 0.5, "unit": "record"}
MESSAGE = {**RECORD, "noise_in": "message"}
CASES = {
    "client": ("dp-fedavg", {"clip": 1.0}),
    "client, variates": ("dp-scaffnew", {"clip": 1.0}),
    "client, sums": ("dp-fedavg", {"clip": 1.0, **SUMS}),
    "client, sums, variates": ("dp-scaffnew", {"clip": 1.0, **SUMS}),
    "record, gradient": ("dp-fedavg", RECORD),
    "record, gradient, variates": ("dp-scaffnew", RECORD),
    "record, message": ("dp-fedavg", MESSAGE),
    "record, message, variates": ("dp-scaffnew", {**MESSAGE, "h_update": "released"}),
    "record, message, sums": ("dp-fedavg", {**MESSAGE, **SUMS}),
    "record, hidden": ("dp-fedavg", {**RECORD, "noise_in": "hidden-gradient"}),
}


class InFloatingPoint:
    """A release as it used to be."""

    lattice = NOT_ROUNDED

    def __init__(self, C, sigma):
        self.C, self.sigma = C, sigma

    def release(self, update, noise, round):
        return in_floating_point(clip(update, self.C), self.sigma, noise)


@pytest.fixture(scope="module")
def worlds():
    """Breast-cancer in five clients, and the same with one label of client 0 changed."""
    here, there = (load_task("breast-cancer", TaskOptions(clients=5)) for _ in range(2))
    there.clients.targets[0, 0] = 1 - there.clients.targets[0, 0]
    return here, there


class Attacker:
    """Sees every message, or their sums, and knows everything but which of two worlds it is: does
    all the arithmetic of the clients again, for both, and looks at what is left."""

    def __init__(self, worlds, run, account):
        self.run, self.account = run, account
        self.algorithm = algorithm_spec(run.algorithm).make(hyper_of(run))
        silent = [noise_of(run, task, _silent(account), SecretNoise()) for task in worlds]
        self.gradients = [gradient for gradient, _ in silent]
        self.states, self.possible, self.ratio = [None, None], [True, True], 0.0
        self.sums = run.trust == "secure-aggregation"
        self.scale = account.events[0].sigma
        if not run.mechanism.noises_message:  # noise in the gradients is scaled like them
            self.scale *= run.eta / worlds[0].clients.sizes[0]

    def hears(self, broadcast, release):
        """Client 4 colludes where only sums are seen: what is seen then is the sum of the rest."""
        seen = release[:4].sum(0) if self.sums else release[0]
        left = []
        for w, gradient in enumerate(self.gradients):
            state = self.states[w] or self.algorithm.init(broadcast.x)
            update, state = self.algorithm.local_round(
                broadcast.x, state, broadcast.iterations, gradient
            )
            self.states[w] = self.algorithm.after_release(state, update, release)
            clipped = clip(update, self.run.clip) if self.run.mechanism.clips_message else update
            candidate = clipped[:4].sum(0) if self.sums else clipped[0]
            self.possible[w] &= bool(explained(seen, candidate, self.scale, torch.float64))
            left.append(float((seen - candidate).square().sum()))
        self.ratio += (left[1] - left[0]) / (2 * self.scale**2)

    @property
    def guess(self):
        """By the lowest bits, if they exclude one world; else by likelihood."""
        if self.possible[0] != self.possible[1]:
            return self.possible.index(True)
        return int(self.ratio < 0)


def _silent(account):
    """The same account without noise, for the arithmetic that the attacker does again."""
    events = tuple(replace(event, sigma=0.0, lattice=0.0) for event in account.events)
    return account._replace(events=events)


def guessed(worlds, truth, algorithm, changes, releaser_of=None, rounds=16):
    """One run in one of the worlds: whether the attacker guesses which, and by bits alone."""
    task = worlds[truth]
    settings = Settings.of(
        task="breast-cancer",
        clients=5,
        epsilon=EPSILON,
        iterations=rounds,
        algorithm=algorithm,
        **changes,
    )
    run = settings.resolve(task.facts(settings.unit))
    account = account_of(run, task.facts(run.unit), (1,) * rounds)
    noise, attacker = SecretNoise(), Attacker(worlds, run, account)
    gradient, releaser = noise_of(run, task, account, noise)
    releaser = releaser_of(run.clip, account.sigma) if releaser_of else releaser
    x, state = task.x0.expand(5, -1), attacker.algorithm.init(task.x0.expand(5, -1))
    for k in range(rounds):
        broadcast = Broadcast(k + 1, range(k, k + 1), x)
        release, memory = client_round(
            broadcast, state, attacker.algorithm, releaser, gradient, noise
        )
        attacker.hears(broadcast, release.update)
        x, state = (x[0] + average(release.update, releaser.lattice)).expand(5, -1), memory.state
    by_bits = attacker.possible[0] != attacker.possible[1]
    return attacker.guess == truth, by_bits


@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-scaffnew"])
def test_in_floating_point_the_attacker_was_always_right(worlds, algorithm):
    for n in range(10):
        assert guessed(worlds, n % 2, algorithm, {"clip": 1.0}, InFloatingPoint) == (True, True)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "changes"), CASES.values(), ids=CASES)
def test_of_whole_runs_the_attacker_guesses_no_better_than_accounted(worlds, algorithm, changes):
    """200 runs of 16 rounds at epsilon = 0.01, in two worlds that differ in one label."""
    answers = [guessed(worlds, n % 2, algorithm, changes) for n in range(RUNS)]
    right = np.mean([well for well, _ in answers])
    by_bits = [well for well, bits in answers if bits]
    assert right <= 0.5 + accounted() / 2 + 4 * math.sqrt(0.25 / RUNS)
    assert sum(by_bits) <= len(by_bits) / 2 + 4 * math.sqrt(len(by_bits) / 4) + 1
