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
from equipoise.privacy.lattice import NOT_ROUNDED, Lattice, Sums, discrete_sigma, rounding, spacing
from equipoise.settings import Settings
from equipoise.tasks import TaskOptions, load_task
from equipoise.training import account_of

DTYPES = [torch.float32, torch.float64]
PRECISIONS = [  # of the model, and of the normals
    (torch.float32, torch.float32),
    (torch.float32, torch.float64),
    (torch.float64, torch.float64),
]
EPSILON, DELTA = 0.01, 1e-5


def explained(releases, candidate, sigma, dtype, normals=None):
    """Whether some floating-point n, of the type `normals` (`dtype` unless it is said), gives every
    coordinate of a release as candidate + fl(sigma n): one answer for each release [..., d]."""
    releases, candidate = releases.to(dtype), candidate.to(dtype)
    guess = ((releases.double() - candidate.double()) / sigma).to(normals or dtype)
    hit = torch.zeros(releases.shape, dtype=torch.bool)
    for steps in range(-3, 4):
        n, end = guess, torch.tensor(math.copysign(math.inf, steps), dtype=guess.dtype)
        for _ in range(abs(steps)):
            n = torch.nextafter(n, end)
        hit |= (candidate + (sigma * n).to(dtype)) == releases
    return hit.all(-1)


def in_floating_point(update, sigma, noise, normals=None):
    """A release as it used to be: clipped, plus noise, in the model's own precision. Its normals
    were always in double precision; the usual generators make them in the model's own."""
    n = torch.tensor(noise.normals(1, tuple(update.shape))).to(normals or update.dtype)
    return update + (sigma * n).to(update.dtype)


def accounted(epsilon=EPSILON):
    """The largest advantage that mu-GDP allows: the total variation 2 Phi(mu / 2) - 1."""
    return math.erf(gdp_mu(epsilon, DELTA) / math.sqrt(8))


# ---- one release ----


def largest_gain(releases, candidates, sigma, dtype, normals=None):
    """Of the attacks "it was this update", for either of two: P(said | it was) - P(said | not)."""
    gains = []
    for candidate in candidates:
        said = [explained(r, candidate, sigma, dtype, normals) for r in releases]
        gains.append(gain_of(said))
    return max(gains)


def gain_of(said):
    """What is said of releases of one update and of another: how much more often of one."""
    rates = [float(each.double().mean()) for each in said]
    return abs(rates[0] - rates[1])


def chance(count):
    """Five standard errors of a gain that was measured with so many releases of each."""
    return 5 * math.sqrt(0.5 / count)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "normals"), PRECISIONS)
def test_of_one_release_the_lowest_bits_tell_nothing(dtype, normals):
    """Was the update zero, or this one? d = 1000, 10^4 releases of each."""
    d, C, count, noise = 1000, 1.0, 10_000, SecretNoise()
    zero = torch.zeros(d, dtype=dtype)
    other = clip(torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=dtype), 0.99 * C)
    updates, sigma = (zero, other), noise_sigma(1.0, DELTA, 1, C)
    used_to_be = [in_floating_point(u.expand(200, -1), sigma, noise, normals) for u in updates]
    broken = largest_gain(used_to_be, updates, sigma, dtype, normals)
    assert broken > 0.95, "the attack works on floating-point numbers"

    sigma = noise_sigma(EPSILON, DELTA, 1, C)
    releaser = ClippedRelease(C, sigma)
    releases = [releaser.release(u.expand(count, -1), noise, 1) for u in updates]
    gain = largest_gain(releases, updates, sigma, dtype, normals)
    assert gain <= accounted() + chance(count)


@pytest.mark.parametrize(("dtype", "normals"), PRECISIONS)
@pytest.mark.parametrize("d", [1, 3, 20])
def test_nor_of_few_numbers(dtype, normals, d):
    """Where candidates are explained by chance, and the attack decides by frequencies."""
    C, count, noise = 1.0, 10_000, SecretNoise()
    sigma = noise_sigma(EPSILON, DELTA, 1, C)
    updates = torch.zeros(d, dtype=dtype), torch.full((d,), 0.9 * C / d**0.5, dtype=dtype)
    releaser = ClippedRelease(C, sigma)
    releases = [releaser.release(u.expand(count, -1), noise, 1) for u in updates]
    gain = largest_gain(releases, updates, sigma, dtype, normals)
    assert gain <= accounted() + chance(count)


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
    assert gain_of(says_zero) <= accounted() + chance(count)


# ---- releases of a task ----

RUNS = 200
SUMS = {"trust": "secure-aggregation"}
RECORD = {"clip": 0.4, "unit": "record"}  # sigma not close to a power of two: n leaves gaps
MESSAGE = {**RECORD, "noise_in": "message"}
HIDDEN = {**RECORD, "noise_in": "hidden-gradient"}
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
    "record, hidden": ("dp-fedavg", HIDDEN),
}


class InFloatingPoint:
    """A release as it used to be."""

    lattice = NOT_ROUNDED

    def __init__(self, C, sigma):
        self.C, self.sigma = C, sigma

    def release(self, update, noise, round):
        return in_floating_point(clip(update, self.C), self.sigma, noise)


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def worlds(request):
    """Breast-cancer in five clients, and the same with one label of client 0 changed: with models
    of either precision."""
    here, there = (load_task("breast-cancer", TaskOptions(clients=5)) for _ in range(2))
    there.clients.targets[0, 0] = 1 - there.clients.targets[0, 0]
    if request.param == torch.float64:
        return here, there
    single = [
        replace(task, x0=task.x0.float(), clients=task.clients.single()) for task in (here, there)
    ]
    assert all(task.clients.gradient(task.x0, 0).dtype == torch.float32 for task in single)
    return single


def resolved(task, iterations, **changes):
    """The run, and its account."""
    settings = Settings.of(
        task="breast-cancer", clients=5, epsilon=EPSILON, iterations=iterations, **changes
    )
    run = settings.resolve(task.facts(settings.unit))
    steps = run.local_steps
    return run, account_of(run, task.facts(run.unit), (steps,) * (iterations // steps))


def changed(account, **changes):
    """The same account with other events."""
    return account._replace(events=tuple(replace(e, **changes) for e in account.events))


# ---- one round, of records ----

ROUNDS = {  # local steps of a round
    "sums of gradients": (RECORD, 1),
    "messages": (MESSAGE, 3),
    "hidden step": (HIDDEN, 1),
    "hidden steps": (HIDDEN, 3),
}
HELD = {"records": 64, "eta": 0.25}
"""Powers of two: a step is the noised sum of gradients times one, and has its lowest bits."""


def with_records(task, count):
    """The first so many of every client."""
    clients = task.clients
    first = {name: getattr(clients, name)[:, :count] for name in ("features", "targets", "weights")}
    return replace(task, clients=replace(clients, **first, sizes=(count,) * len(clients.sizes)))


def first_round(task, run, account, count):
    """The update and the release of client 0 in the first round of so many runs: [count, d]."""
    algorithm, noise = algorithm_spec(run.algorithm).make(hyper_of(run)), SecretNoise()
    gradient, releaser = noise_of(run, task, account, noise)
    broadcast = Broadcast(1, range(run.local_steps), task.x0.expand(count, 5, -1))
    state = algorithm.init(broadcast.x)
    release, memory = client_round(broadcast, state, algorithm, releaser, gradient, noise)
    return memory.update[:, 0], release.update[:, 0]


@pytest.mark.parametrize(("changes", "steps"), ROUNDS.values(), ids=ROUNDS)
def test_of_one_round_of_records_the_lowest_bits_tell_nothing(worlds, noised_sums, changes, steps):
    """10^4 rounds in each of two worlds that differ in one label, at epsilon = 0.01. The attacker
    asks whether a floating-point number explains a release, whether a whole number of steps of the
    lattice does, and what is nearer. Of noise in gradients it sees the sums themselves. (Of hidden
    steps only a single one in float64 would be open to it if it were not rounded: noise of several
    steps, or cast to float32, leaves no gaps.)"""
    count, noise = 10_000, SecretNoise()
    tasks = [with_records(task, HELD["records"]) for task in worlds]
    run, account = resolved(tasks[0], steps, local_steps=steps, eta=HELD["eta"], **changes)
    gamma, scale = account.events[0].lattice, account.events[0].sigma
    if run.noise_in == "hidden-gradient":
        scale *= HELD["eta"] / HELD["records"]
    candidates, releases = [], []
    for task in tasks:
        update, _ = first_round(task, run, changed(account, sigma=0.0), 1)
        candidates.append((noised_sums.pop()[:, 0] if noised_sums else update)[0])
        _, release = first_round(task, run, account, count)
        releases.append(noised_sums.pop()[:, 0] if noised_sums else release)

    used_to_be = [in_floating_point(c.expand(200, -1), scale, noise) for c in candidates]
    broken = largest_gain(used_to_be, candidates, scale, candidates[0].dtype)
    assert broken > 0.9, "the attack works on floating-point numbers"

    gains = [largest_gain(releases, candidates, scale, *precision) for precision in PRECISIONS]
    for candidate in candidates:
        apart = [(release - candidate.double()) / gamma for release in releases]
        gains.append(gain_of([(each == each.round()).all(-1) for each in apart]))
    left = [[(r - c).square().sum(-1) for c in candidates] for r in releases]
    gains.append(gain_of([here < there for here, there in left]))
    assert max(gains) <= accounted() + chance(count)


# ---- whole runs ----


class Attacker:
    """Sees every message, or their sums, and knows everything but which of two worlds it is: does
    all the arithmetic of the clients again, for both, and looks at what is left."""

    def __init__(self, worlds, run, account):
        self.run, self.account = run, account
        self.algorithm = algorithm_spec(run.algorithm).make(hyper_of(run))
        silent = changed(account, sigma=0.0)
        silent = [noise_of(run, task, silent, SecretNoise()) for task in worlds]
        self.gradients = [gradient for gradient, _ in silent]
        self.states, self.possible, self.ratio = [None, None], [True, True], 0.0
        self.sums = run.trust == "secure-aggregation"
        self.scale = account.events[0].sigma
        self.clip = run.clip - rounding(account.lattice, worlds[0].dimension)
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
            self.states[w] = self.algorithm.after_release(state, update, release.to(update.dtype))
            clipped = clip(update, self.clip) if self.run.mechanism.clips_message else update
            candidate = clipped[:4].sum(0) if self.sums else clipped[0]
            self.possible[w] &= bool(explained(seen, candidate, self.scale, seen.dtype))
            left.append(float((seen - candidate).square().sum()))
        self.ratio += (left[1] - left[0]) / (2 * self.scale**2)

    @property
    def guess(self):
        """By the lowest bits, if they exclude one world; else by likelihood."""
        if self.possible[0] != self.possible[1]:
            return self.possible.index(True)
        return int(self.ratio < 0)


def guessed(worlds, truth, algorithm, changes, releaser_of=None, rounds=16):
    """One run in one of the worlds: whether the attacker guesses which, and by bits alone. The
    server's model has the precision of the clients'."""
    task = worlds[truth]
    run, account = resolved(task, rounds, algorithm=algorithm, **changes)
    account = changed(account, lattice=0.0) if releaser_of else account
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
        mean = average(release.update, releaser.lattice).to(x.dtype)
        x, state = (x[0] + mean).expand(5, -1), memory.state
    by_bits = attacker.possible[0] != attacker.possible[1]
    return attacker.guess == truth, by_bits


@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-scaffnew"])
def test_in_floating_point_the_attacker_was_always_right(worlds, algorithm):
    """In float32 with normals of float32. Those of float64 leave no gaps there: then the attacker
    waits for a number near zero, as in the test of one release."""
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
