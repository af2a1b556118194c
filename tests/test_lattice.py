"""The lattice: rounding adds nothing to the sensitivity, and what the accountant says of Gaussian
noise holds for what is really added."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from data_files import (
    SMALL,
    Tiny,
    binary,
    cifar_archive,
    femnist_files,
    hippocampus_files,
    hospitals,
    leaf,
    make_deepdrid,
    make_messidor,
    put,
    reddit_files,
    writer,
)
from equipoise import train
from equipoise.engine import noise_of
from equipoise.errors import InvalidValue
from equipoise.paper.data import brain_mri
from equipoise.paper.tasks import messidor
from equipoise.privacy import SecretNoise, lattice
from equipoise.privacy.clip import ClippedRelease, RoundedRelease, average, clip, own_lattice
from equipoise.privacy.gaussian import epsilon_spent, log_delta, noise_sigma
from equipoise.privacy.lattice import (
    BITS,
    NOT_ROUNDED,
    Lattice,
    Sums,
    check_spacing,
    discrete_sigma,
    inner_clip,
    power_of_two_below,
    rounding,
    spacing,
    sum_slack,
)
from equipoise.privacy.mechanisms.catalogue import MECHANISMS
from equipoise.privacy.noisy_gradient import NoisyGradient
from equipoise.privacy.statement import statement
from equipoise.settings import Settings
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.catalogue import TASKS
from equipoise.training import account_of
from problems import TASK_FILE, NearestWhole, run_command

# ---- steps ----


@pytest.mark.parametrize("sums", [None, Sums(20, 19), Sums(100, 50)])
@pytest.mark.parametrize(("reach", "sigma"), [(1.0, 3.0), (0.013, 500.0), (1e6, 1e-3), (7, 7)])
def test_the_step_is_the_least_power_of_two_with_which_32_bits_are_enough(reach, sigma, sums):
    gamma = spacing(reach, sigma, sums)
    assert math.frexp(gamma)[0] == 0.5
    clients, honest = sums or (1, 1)
    width = 2 * (clients * reach + 8 * sigma * math.sqrt(clients / honest))
    assert width / gamma <= 2.0**BITS < 2 * width / gamma
    assert spacing(reach, 0.0, sums) == 0


def test_a_step_that_fits_exactly_is_not_doubled():
    assert spacing(0.25, 0.25 / 8) == 2.0**-BITS
    assert spacing(0.25 + 1e-9, 0.25 / 8) == 2.0 ** (1 - BITS)
    # One honest client of a hundred: ten times its noise in the sum, and not a hundred times.
    assert spacing(1e-3, 1.0, Sums(100, 1)) == 2.0**8 / 2.0**BITS


def test_32_bits_cost_next_to_nothing():
    """About 0.01 % of the clip for a million parameters and a hundred clients, and less noise."""
    for clients in (1, 100):
        sums = Sums(clients, clients - 1) if clients > 1 else None
        sigma = noise_sigma(1.0, 1e-5, 10, 2.0)
        gamma = spacing(1.0, sigma, sums)
        assert rounding(gamma, 10**6) < 1.2e-4
        if sums:
            assert discrete_sigma(sigma, gamma, sums) * math.sqrt(99) < sigma * (1 + 1e-12)


# ---- rounding and sensitivity ----


def squared_lengths(whole):
    """Exactly: of whole numbers [n, d] below 2^40."""
    high, low = whole >> 20, whole & (2**20 - 1)
    parts = ((high * high).sum(-1), (high * low).sum(-1), (low * low).sum(-1))
    return [
        (int(a) << 40) + (int(b) << 21) + int(c)
        for a, b, c in zip(*(part.tolist() for part in parts), strict=True)
    ]


def adversarial_updates(rng, count, d, C, gamma, dtype):
    """Long and short ones, on the ball, half a step off the lattice in every coordinate."""
    kind = rng.integers(0, 5, (count, 1))
    direction = rng.standard_normal((count, d))
    direction = np.where(kind == 1, np.sign(direction), direction)
    direction = np.where(kind == 2, direction * (rng.random((count, d)) < 2 / d), direction)
    length = np.linalg.norm(direction, axis=1, keepdims=True)
    length = np.where(length == 0, 1, length)
    far = np.exp(rng.uniform(-1e-9, 3, (count, 1)))
    u = direction / length * C * np.where(kind == 3, 1 + 1e-15, far)
    off = (np.floor(u / gamma) + 0.5) * gamma
    return torch.tensor(np.where(kind == 4, off, u)).to(dtype)


class Nothing(NearestWhole):
    name = "nothing"

    def normals(self, round, shape):
        return np.zeros(shape)

    def uniforms(self, step, shape):
        return np.full(shape, 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("d", "coarse"), [(1, 20), (3, 12), (16, 12), (300, 10)])
def test_no_rounded_update_is_longer_than_the_clip(dtype, d, coarse):
    """A million adversarial updates in all, on lattices as coarse as they may be, in exact
    arithmetic."""
    rng, C = np.random.default_rng(d), 0.7
    gamma = 2.0**-coarse / 2
    check_spacing(gamma, rounding(gamma, d), C, "")
    count = min(125_000 * 4, 4_000_000 // d)
    u = adversarial_updates(rng, count, d, C, gamma, dtype)
    release = ClippedRelease(C, 1.0, Lattice(gamma)).release(u, Nothing(), 1)
    steps = (release / gamma).numpy()
    whole = steps.astype(np.int64)
    assert np.array_equal(whole, steps), "a whole number of steps, each"
    longest = Fraction(C) ** 2 / Fraction(gamma) ** 2
    assert max(squared_lengths(whole)) <= longest
    assert max(squared_lengths(whole)) > 0.98 * longest, "and hardly anything is lost"


def test_clipping_to_the_whole_of_c_before_rounding_would_be_too_long():
    """What the half steps are for."""
    d, C, gamma = 16, 0.7, 2.0**-13
    u = adversarial_updates(np.random.default_rng(0), 1000, d, C, gamma, torch.float64)
    whole = (clip(u, C) / gamma).round().numpy().astype(np.int64)
    assert max(squared_lengths(whole)) > Fraction(C) ** 2 / Fraction(gamma) ** 2


class GivenRecords:
    """One client with records whose gradients are given, [records, d]."""

    def __init__(self, gradients):
        self.gradients = gradients
        self.sizes = (len(gradients),)

    def clipped_sum(self, x, chosen, C, draw):
        return clip(self.gradients, C).sum(0).expand(x.shape)

    def regulariser(self, x):
        return torch.zeros_like(x)


def noiseless_sum(gradients, C, gamma):
    """In steps of the lattice."""
    d = gradients.shape[-1]
    of = NoisyGradient(GivenRecords(gradients), C, 1.0, (1.0,), Nothing(), Lattice(gamma))
    total = of(torch.zeros(1, d, dtype=torch.float64), 0)[0] * len(gradients) / gamma
    whole = total.round().long()
    torch.testing.assert_close(total, whole.double(), rtol=0, atol=1e-3)
    return whole


@pytest.mark.parametrize("d", [1, 7, 100])
def test_rounded_sums_of_neighbours_differ_by_two_clips_at_most(d):
    """One record against its opposite, among others that put the sum just off the lattice."""
    rng, C = np.random.default_rng(d), 0.3
    gamma = 2.0 ** math.floor(math.log2(0.008 * C / math.sqrt(d)))
    largest = 0
    for _ in range(400):
        records = torch.tensor(rng.standard_normal((9, d)))
        other = records.clone()
        other[0] = -records[0]
        difference = noiseless_sum(records, C, gamma) - noiseless_sum(other, C, gamma)
        largest = max(largest, *squared_lengths(difference.numpy()[None]))
        without = noiseless_sum(torch.cat([records[:1] * 0, records[1:]]), C, gamma)
        alone = noiseless_sum(records, C, gamma) - without
        assert squared_lengths(alone.numpy()[None])[0] <= (Fraction(C) / Fraction(gamma)) ** 2
    most = (Fraction(2 * C) / Fraction(gamma)) ** 2
    assert 0.9 * most < largest <= most


def test_what_adding_in_double_precision_can_do_is_taken_off():
    C, records = 1.0, 10**5
    assert inner_clip(C, 0.0, 10, records) == pytest.approx(1 - records**2 * 2.0**-52, rel=1e-15)
    assert inner_clip(C, 2.0**-20, 9, 1) == pytest.approx(1 - 3 * 2.0**-20, rel=1e-15)


def test_whole_steps_of_any_model_and_any_noise():
    for dtype in (torch.float32, torch.float64):
        for sigma in (1e-3, 1.0, 777.0):
            released = ClippedRelease(0.37, sigma)
            u = torch.randn(20, 50, dtype=dtype)
            release = released.release(u, SecretNoise(), 1)
            steps = release / released.lattice.gamma
            assert torch.equal(steps, steps.round())
            assert steps.abs().max() < 2.0 ** (BITS - 1)


def test_a_zero_has_no_sign():
    """-0.0 would say that both the update and the noise were below zero."""
    gamma = 2.0**-10
    u = torch.full((200_000,), -gamma / 4, dtype=torch.float64)
    for sums in (False, True):
        release = ClippedRelease(1e3, 8 * gamma, Lattice(gamma, sums)).release(u, SecretNoise(), 1)
        assert (release == 0).sum() > 5000
        assert not torch.signbit(release[release == 0]).any()
    rounded = RoundedRelease(Lattice(gamma)).release(u, SecretNoise(), 1)
    assert not torch.signbit(rounded).any()


def test_noise_without_a_lattice_is_refused():
    with pytest.raises(InvalidValue, match="noise without a lattice"):
        ClippedRelease(1.0, 1.0, NOT_ROUNDED).release(torch.ones(3), SecretNoise(), 1)
    both = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    with pytest.raises(InvalidValue, match="noise without a lattice"):
        ClippedRelease(1.0, both, Lattice(both.flip(0))).release(torch.ones(2, 3), SecretNoise(), 1)


@pytest.mark.parametrize("value", [0.0, 1e-316, 1e-300, 1e300, math.inf])
def test_a_step_that_is_no_ordinary_number_is_refused(value):
    with pytest.raises(InvalidValue, match="choose clip and eta nearer to 1"):
        power_of_two_below(value)


@pytest.mark.parametrize(
    "extreme",
    [
        {"clip": 1e307},
        {"clip": 1e307, "trust": "secure-aggregation"},
        {"clip": 1e-31},
        {"unit": "record", "noise_in": "message", "eta": 1e-316},
        {"unit": "record", "noise_in": "hidden-gradient", "eta": 1e-316},
    ],
    ids=str,
)
def test_extreme_settings_are_refused_rather_than_unprotected(extreme):
    with pytest.raises(InvalidValue, match=r"nearer to 1|between 1e-30 and 1e30"):
        train(**{"task": "breast-cancer", "epsilon": 1, "clip": 1, "iterations": 4, **extreme})


def test_lattices_of_a_stack_are_those_of_each_run():
    C = torch.tensor([0.1, 1.0, math.inf], dtype=torch.float64).reshape(3, 1, 1)
    sigma = torch.tensor([2.0, 0.1, 0.0], dtype=torch.float64).reshape(3, 1, 1)
    gammas = own_lattice(C, sigma).gamma.flatten().tolist()
    assert gammas == [spacing(0.1, 2.0), spacing(1.0, 0.1), 0.0]
    u = torch.randn(3, 4, 5, dtype=torch.float64)
    release = ClippedRelease(C, sigma).release(u, SecretNoise(), 1)
    assert torch.equal(release[2], u[2]), "without noise nothing is rounded"
    for run in range(2):
        steps = release[run] / gammas[run]
        assert torch.equal(steps, steps.round())


# ---- sums ----


def test_sums_are_modulo_two_to_the_32():
    """What a silo masks and sends: one that wraps still adds up, and only the sum must fit."""
    gamma, N = 2.0**-20, 5
    rng = np.random.default_rng(0)
    steps = rng.integers(-(2**29), 2**29, (N, 40))
    steps[:, :3] = 2**31 - 1
    releases = torch.tensor(steps * gamma)
    as_words = steps.astype(np.int64).astype(np.uint32)  # modulo 2^32
    total = as_words.sum(0, dtype=np.uint32).view(np.int32).astype(np.float64)
    expected = torch.tensor(total * gamma / N)
    assert torch.equal(average(releases, Lattice(gamma, sums=True)), expected)
    torch.testing.assert_close(
        average(releases, Lattice(gamma))[3:], expected[3:], rtol=1e-15, atol=0
    )


def test_sums_of_a_stack():
    gammas = torch.tensor([2.0**-20, 0.0, 2.0**-10], dtype=torch.float64).reshape(3, 1, 1)
    releases = torch.randn(3, 4, 5, dtype=torch.float64)
    together = average(releases, Lattice(gammas, sums=True))
    torch.testing.assert_close(together, releases.mean(1), rtol=1e-12, atol=1e-12)


# ---- exact delta, by summation over the lattice ----


def discrete(variance, reach):
    k = np.arange(-reach, reach + 1)
    weights = np.exp(-(k**2) / (2 * variance))
    return weights / weights.sum()


def of_sum(each, honest):
    total = each
    for _ in range(honest - 1):
        total = np.convolve(total, each)
    return total


def exact_delta(p, shift, epsilon):
    """max over S of P(S) - e^epsilon P'(S), P' the same law moved by `shift` steps."""
    here = np.concatenate([p, np.zeros(shift)])
    moved = np.concatenate([np.zeros(shift), p])
    return np.maximum(here - math.exp(epsilon) * moved, 0).sum()


GRID = [
    (sigma, shift, epsilon)
    for sigma in (3, 4.3, 8, 20, 100)
    for shift in (1, 2, 5)
    for epsilon in (0.05, 0.3, 1.0)
]


@pytest.mark.parametrize("honest", [1, 2, 5])
def test_the_sum_of_discrete_gaussians_spends_no_more_than_is_said(honest, monkeypatch):
    monkeypatch.setattr(lattice, "_LEAST_NOISE", 0.0)
    closest = 0.0
    for sigma, shift, epsilon in GRID:
        sums = Sums(honest, honest)
        each = discrete_sigma(sigma, 1.0, sums)
        assert each**2 * honest == pytest.approx(sigma**2 + 4, rel=1e-9)
        total = of_sum(discrete(each**2, math.ceil(20 * each)), honest)
        a = sum_slack(sigma, 1.0, sums, 1)
        claimed = math.exp(log_delta(epsilon - 2 * a, shift / sigma) + a)
        exact = exact_delta(total, shift, epsilon)
        assert exact <= claimed * (1 + 1e-9) + 1e-15, (sigma, shift, epsilon)
        closest = max(closest, exact / claimed if claimed > 1e-12 else 0.0)
    assert closest > 0.98, "and hardly less"


def test_without_the_smoothing_the_claim_would_be_false():
    exact = exact_delta(discrete(9.0, 100), 1, 1.0)
    assert exact == pytest.approx(2.178e-4, rel=1e-3)
    assert math.exp(log_delta(1.0, 1 / 3)) == pytest.approx(2.075e-4, rel=1e-3)


def test_in_two_dimensions(monkeypatch):
    """Moved along both axes at once."""
    monkeypatch.setattr(lattice, "_LEAST_NOISE", 0.0)
    for sigma in (3, 7):
        each = discrete_sigma(sigma, 1.0, Sums(1, 1))
        p = discrete(each**2, math.ceil(12 * each))
        plane = np.outer(p, p)
        for shift in ((1, 1), (2, 1), (3, 4)):
            moved = np.zeros_like(plane)
            moved[shift[0] :, shift[1] :] = plane[: -shift[0], : -shift[1]]
            for epsilon in (0.1, 1.0):
                exact = np.maximum(plane - math.exp(epsilon) * moved, 0).sum()
                claimed = math.exp(log_delta(epsilon, math.hypot(*shift) / sigma))
                assert exact <= claimed * (1 + 1e-9)


def test_a_rounded_gaussian_spends_no_more_than_the_gaussian():
    for sigma, shift, epsilon in GRID:
        k = np.arange(-math.ceil(30 * sigma), math.ceil(30 * sigma) + 1)
        below = -np.abs(k) / sigma
        p = stats.norm.cdf(below + 0.5 / sigma) - stats.norm.cdf(below - 0.5 / sigma)
        exact = exact_delta(p, shift, epsilon)
        claimed = math.exp(log_delta(epsilon, shift / sigma))
        assert exact <= claimed * (1 + 1e-9) + 1e-15


def test_rounded_gaussians_do_not_add_up_to_what_discrete_ones_do():
    """So sums need the discrete law: how much closer it is to a discrete Gaussian of the whole."""
    sigma, honest = 2.0, 4
    k = np.arange(-60, 61)
    below = -np.abs(k) / sigma
    rounded = stats.norm.cdf(below + 0.5 / sigma) - stats.norm.cdf(below - 0.5 / sigma)
    whole = discrete(honest * sigma**2, 60 * honest)
    near = np.abs(np.arange(-60 * honest, 60 * honest + 1)) <= 5 * sigma * 2
    apart = [
        np.abs(np.log(of_sum(each, honest)[near] / whole[near])).max()
        for each in (rounded, discrete(sigma**2, 60))
    ]
    assert apart[0] > 0.05
    assert apart[1] < 1e-9


def test_sums_are_as_close_to_one_discrete_gaussian_as_is_said():
    """Kairouz, Liu and Steinke (2021), whose constant is 5 where this proof has 4."""
    for steps in (0.6, 0.8, 1.0):
        each = discrete(steps**2, 40)
        for honest in (2, 3, 5):
            whole = discrete(honest * steps**2, 40 * honest)
            k = np.abs(np.arange(-40 * honest, 40 * honest + 1)) <= 6 * steps * honest**0.5
            apart = np.abs(np.log(of_sum(each, honest)[k] / whole[k])).max()
            bound = (honest - 1) * lattice._closeness(steps / math.sqrt(2))
            published = 5 * sum(
                math.exp(-2 * (math.pi * steps) ** 2 * j / (j + 1)) for j in range(1, honest)
            )
            assert apart <= bound
            assert apart <= published * (1 + 1e-6)


class Watched(NearestWhole):
    """Notes which laws and scales are asked for."""

    name = "watched"

    def __init__(self):
        self.asked = []

    def normals(self, round, shape):
        return np.zeros(shape)

    def whole(self, law, round, shape, scale):
        self.asked.append((law, float(np.max(scale))))
        return super().whole(law, round, shape, scale)

    def uniforms(self, step, shape):
        return np.full(shape, 0.5)


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({}, "rounded"),
        ({"trust": "secure-aggregation"}, "discrete"),
        ({"unit": "record"}, "rounded"),
        ({"unit": "record", "noise_in": "message"}, "rounded"),
        ({"unit": "record", "noise_in": "message", "trust": "secure-aggregation"}, "discrete"),
    ],
    ids=str,
)
def test_clients_add_what_the_account_says_on_a_coarse_lattice_too(changes, law):
    """With steps of a sixteenth of sigma, where the smoothing of sums shows; and by the right
    law."""
    task = load_task("breast-cancer", TaskOptions(clients=5))
    values = {"task": "breast-cancer", "clients": 5, "epsilon": 2, "clip": 1, "iterations": 4}
    settings = Settings.of(**{**values, **changes})
    facts = task.facts(settings.unit)
    run = settings.resolve(facts)
    account = account_of(run, facts, (1,) * 4)
    gamma = account.sigma / 16
    events = tuple(replace(e, sigma=account.sigma, lattice=gamma) for e in account.events)
    watched = Watched()
    gradient, releaser = noise_of(run, task, account._replace(events=events), watched)
    x = task.x0.expand(5, -1)
    gradient(x, 0)
    releaser.release(x, watched, 1)
    added = 16.0 if law == "rounded" else math.sqrt((16**2 + 4) / 4)
    assert watched.asked == [(law, pytest.approx(added, rel=1e-12))]


@pytest.mark.parametrize("unit", ["client", "record"])
def test_the_slack_of_sums_is_in_the_account(unit):
    place = {"noise_in": "message"} if unit == "record" else {}
    result = train(
        task="breast-cancer",
        clients=5,
        epsilon=2,
        clip=1,
        iterations=8,
        unit=unit,
        trust="secure-aggregation",
        **place,
    )
    each = 4 * math.exp(-8 * math.pi**2)  # of s = 2
    for event in result.account.events:
        assert event.slack == pytest.approx(8 * 31 * each, rel=1e-3, abs=0)
    alone = train(task="breast-cancer", clients=5, epsilon=2, clip=1, iterations=8)
    assert alone.account.events[0].slack == 0


def test_the_messages_of_hidden_steps_are_rounded_coarsely():
    """To about a thousandth of the noise of one step, where errors of local steps are far finer."""
    result = train(
        task="breast-cancer",
        clients=5,
        epsilon=2,
        clip=1,
        iterations=8,
        unit="record",
        noise_in="hidden-gradient",
    )
    steps = [
        result.run.eta * event.sigma / size / result.lattice
        for event, size in zip(result.account.events, result.sizes, strict=True)
    ]
    assert 2**10 <= min(steps) < 2**11


def test_sums_of_messages_fit_into_32_bits():
    result = train(
        task="breast-cancer",
        clients=5,
        epsilon=2,
        clip=1,
        iterations=8,
        unit="record",
        noise_in="message",
        trust="secure-aggregation",
    )
    run, longest = result.run, 2 * result.run.eta * min(1.0, 8**0.5)  # 2 eta tau G at tau = 1
    width = 5 * longest + 8 * result.account.sigma
    assert width < result.lattice * 2.0**31
    assert run.local_steps == 1


def test_more_records_than_double_precision_can_add_are_refused():
    task = load_task("breast-cancer", TaskOptions(clients=5))
    settings = Settings.of(
        task="breast-cancer", clients=5, epsilon=2, clip=1, iterations=4, unit="record"
    )
    facts = task.facts("record")
    run = settings.resolve(facts)
    account_of(run, facts._replace(sizes=(10**6,) * 5), (1,) * 4)
    with pytest.raises(InvalidValue, match="or divide the client"):
        account_of(run, facts._replace(sizes=(10, 10, 10, 10, 10**8)), (1,) * 4)


def test_unlike_clients_have_lattices_of_their_own():
    """Where messages are seen by themselves, a client of 100,000 records does not make that of ten
    coarse, nor the other way round."""
    task = load_task("breast-cancer", TaskOptions(clients=5))
    settings = Settings.of(
        task="breast-cancer",
        clients=5,
        epsilon=1,
        clip=1,
        iterations=4,
        unit="record",
        noise_in="message",
    )
    facts = task.facts("record")._replace(sizes=(10, 10, 100, 100, 10**5))
    account = account_of(settings.resolve(facts), facts, (1,) * 4)
    assert len({event.lattice for event in account.events}) == 3
    for event in account.events:
        assert 2.0**26 < event.sigma / event.lattice < 2.0**30


def test_the_slack_is_accounted_for():
    sums = Sums(20, 19)
    assert sum_slack(5.0, 1e-6, sums, 10**10) == pytest.approx(2.05e-24, rel=1e-2, abs=0)
    assert sum_slack(5.0, 1e-6, None, 10**10) == 0.0
    a, sigma, K, delta = 1e-3, 9.0, 4, 1e-5
    epsilon = epsilon_spent(sigma, K, 2.0, delta, a)
    plain = epsilon_spent(sigma, K, 2.0, delta * math.exp(-a))
    assert epsilon == pytest.approx(plain + 2 * a, rel=1e-9)
    assert epsilon_spent(sigma, K, 2.0, delta, 1e-25) == epsilon_spent(sigma, K, 2.0, delta)


# ---- refusals ----


def test_a_lattice_that_is_too_coarse_is_refused():
    with pytest.raises(InvalidValue, match=r"clip=1 and steps of 0.0001, .*take 0.05 of it.*less"):
        check_spacing(1e-4, rounding(1e-4, 10**6), 1.0, "want less")
    with pytest.raises(InvalidValue, match=r"sigma=1e-09 of a sum of 3 clients.*or trust=local"):
        discrete_sigma(1e-9, spacing(1.0, 1e-9, Sums(3, 2)), Sums(3, 2))


def test_the_command_says_so_in_one_sentence(capsys):
    code, out, err = run_command(
        capsys,
        *("train", "--task", "breast-cancer", "--epsilon", "1e-9", "--clip", "1"),
        *("--iterations", "64", "--delta", "1e-12"),
    )
    assert (code, out) == (2, "")
    assert "clip=1 and steps of" in err
    assert "larger epsilon" in err
    assert len(err.splitlines()) == 1


# ---- one gamma: of what leaves, of the account, of the statement ----

SUMS = {"trust": "secure-aggregation"}
MESSAGE = {"unit": "record", "noise_in": "message"}
RUNS = {
    "dp-scaffnew": {"algorithm": "dp-scaffnew"},
    "dp-scaffnew, sums": {"algorithm": "dp-scaffnew", **SUMS},
    "released h": {"algorithm": "dp-scaffnew", "h_update": "released"},
    "zero-out": {"neighbours": "zero-out"},
    "record, gradient, sampled": {"unit": "record", "sampling_rate": 0.3},
    "record, gradient, dp-scaffnew": {"unit": "record", "algorithm": "dp-scaffnew"},
}


@pytest.fixture
def checked(leaves, noised_sums):
    """Trains, and looks whether everything that was noised is on the lattice that is told: the
    messages, or the sums of gradients that they are made of."""

    def checked(**values):
        result = train(**values)
        gamma = result.lattice
        assert gamma
        steps = [event.lattice for event in result.account.events]
        assert min(steps) == gamma
        steps = torch.tensor(steps, dtype=torch.float64).unsqueeze(-1)
        messages = result.run.noise_in != "gradient"
        noised = leaves[0] if messages else noised_sums
        assert len(noised) == (result.rounds if messages else result.run.iterations)
        multiples = torch.stack(noised) / steps
        assert torch.equal(multiples, multiples.round())
        odd = (multiples % 2 != 0).any(-1)
        many = multiples.shape[-1] > 30  # or else all of them may be even, in some round
        assert (odd if many else odd.any(0)).all(), "and on no coarser one"
        for release in noised:
            assert release.dtype == torch.float64
            assert not torch.signbit(release[release == 0]).any()
        what = "that leaves" if messages else "of a noised sum of gradients"
        assert f"| lattice | {gamma!r}: every coordinate {what}" in statement(result)

    return checked


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_what_is_noised_is_on_the_lattice_that_is_told(checked, changes):
    base = {"task": "breast-cancer", "clients": 5, "epsilon": 2, "clip": 1, "iterations": 8}
    checked(**{**base, **changes})


# ---- every task, with every mechanism ----


def cifar10(place, monkeypatch):
    cifar_archive(place, test_batch=binary([0, 1, 9, 2, 3]))


def femnist(place, monkeypatch):
    users = {f"f{i}": writer([i, 1, 2, 3], i) for i in range(6)}
    femnist_files(place, leaf(users), leaf({name: writer([5]) for name in users}))


def reddit(place, monkeypatch):
    words = ["a"] + ["<PAD>"] * 9
    reddit_files(place, {"x": [[words]] * 3, "y": [{"target_tokens": [words]}] * 3})


def fed_ixi(place, monkeypatch):
    monkeypatch.setattr(brain_mri, "SHAPE", SMALL)
    for name, content in (hospitals() | hippocampus_files()).items():
        put(place / "brain-mri" / "IXI_sample" / name, content)


def fundus(place, monkeypatch):
    monkeypatch.setattr(messidor, "vgg11", Tiny)
    (place / "fundus").mkdir(parents=True)
    make_messidor(place / "fundus")
    make_deepdrid(place / "fundus")


def libsvm(place, monkeypatch):
    Path("lines.txt").write_text("".join(f"{k % 2} 1:{k % 3} 4:1\n" for k in range(40)))
    Path("names.txt").write_text("".join(f"p{k // 2}\n" for k in range(40)))


def with_persons(place, monkeypatch):
    """Two rows of each, in the tables of the clinic."""
    for path in (Path("a.csv"), Path("b.csv")):
        header, *rows = path.read_text().splitlines()
        named = [f"{row},p{k // 2}" for k, row in enumerate(rows)]
        path.write_text("\n".join([f"{header},patient", *named, ""]))


def own(place, monkeypatch):
    Path("own.py").write_text(TASK_FILE)


MECHANISMS_OF = {
    "client": {},
    "client, sums": SUMS,
    "client, lemma 1": {"noise_rule": "lemma1", "v": 1.0},
    "client, nbafl": {"noise_rule": "nbafl"},
    "record, gradient": {"unit": "record"},
    "record, message": MESSAGE,
    "record, message, sums": {**MESSAGE, **SUMS},
    "record, hidden": {"unit": "record", "noise_in": "hidden-gradient"},
    "person, gradient": {"unit": "person"},
    "person, message": {"unit": "person", "noise_in": "message"},
    "person, hidden": {"unit": "person", "noise_in": "hidden-gradient"},
}
WITHOUT_RECORDS = [name for name in MECHANISMS_OF if "client" in name]
NETWORK = [*WITHOUT_RECORDS, "record, gradient"]
OF_PERSONS = [*NETWORK, "person, gradient"]
LINEAR = [name for name in MECHANISMS_OF if "person" not in name]


def without_sizes(mechanisms):
    """Those that need no public numbers of records."""
    return [name for name in mechanisms if "nbafl" not in name]


CSV = {"data": ("a.csv", "b.csv"), "label": "outcome", "bounds": "bounds.toml"}
EVERY_TASK = {  # the mechanisms that it has; its files; what it must be told
    "breast-cancer": (LINEAR, None, {"clients": 5}),
    "cifar10": (NETWORK, cifar10, {}),
    "cifar10-narrow": (NETWORK, cifar10, {}),
    "csv": (without_sizes(MECHANISMS_OF), with_persons, {**CSV, "iterations": 16}),
    "deepdrid": (OF_PERSONS, fundus, {"iterations": 4}),
    "deepdrid-narrow": (OF_PERSONS, fundus, {"iterations": 4}),
    "digits": (LINEAR, None, {"clients": 5, "clip": 4}),
    "digits-mlp": (NETWORK, None, {"clients": 5}),
    "fed-ixi": (NETWORK, fed_ixi, {}),
    "femnist": (OF_PERSONS, femnist, {}),
    "femnist-narrow": (OF_PERSONS, femnist, {}),
    "hippocampus": (NETWORK, fed_ixi, {}),
    "hippocampus-narrow": (NETWORK, fed_ixi, {}),
    "libsvm": ([*MECHANISMS_OF], libsvm, {"data": ("lines.txt",), "clients": 4, "iterations": 16}),
    "messidor": (NETWORK, fundus, {"iterations": 4}),
    "own.py": (without_sizes(NETWORK), own, {"iterations": 4}),
    "quadratic": (WITHOUT_RECORDS, None, {"iterations": 4}),
    "reddit": (OF_PERSONS, reddit, {}),
    "reddit-narrow": (OF_PERSONS, reddit, {}),
}


def test_no_task_and_no_mechanism_is_left_out():
    assert {*EVERY_TASK} == {*TASKS, "own.py"}
    asked = [Settings.of(task="csv", epsilon=2, clip=1, **each) for each in MECHANISMS_OF.values()]
    assert {settings.mechanism for settings in asked} == {*MECHANISMS.values()}


@pytest.mark.parametrize("mechanism", MECHANISMS_OF)
@pytest.mark.parametrize("task", EVERY_TASK)
def test_of_no_task_anything_is_off_the_lattice(
    checked, clinic, place, monkeypatch, task, mechanism
):

    has, files, told = EVERY_TASK[task]
    if files:
        files(place, monkeypatch)
    base = {"task": task, "epsilon": 2, "clip": 2, "iterations": 2, "delta": 1e-5, **told}
    if task == "csv":
        base |= {"person": "patient"} if "person" in mechanism else {"ignore": ("patient",)}
    if task == "libsvm" and "person" in mechanism:
        base["person"] = "names.txt"
    if task.startswith("reddit") and "person" in mechanism:  # the data have one user
        base["clients"] = 1
    if mechanism in has:
        checked(**base, **MECHANISMS_OF[mechanism])
    else:
        with pytest.raises(
            InvalidValue,
            match=r"individual records|linear model|full local|are private|whose a record is",
        ):
            train(**base, **MECHANISMS_OF[mechanism])


def test_without_noise_there_is_no_lattice(leaves):
    result = train(task="breast-cancer", epsilon=math.inf, clip=1, iterations=4)
    assert result.lattice is None
    assert result.account.lattice == 0
