"""The lattice: rounding adds nothing to the sensitivity, and what the accountant says of Gaussian
noise holds for what is really added."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from equipoise import train
from equipoise.errors import InvalidValue
from equipoise.privacy import SecretNoise, lattice
from equipoise.privacy.clip import ClippedRelease, average, clip, own_lattice
from equipoise.privacy.gaussian import epsilon_spent, log_delta, noise_sigma
from equipoise.privacy.lattice import (
    BITS,
    NOT_ROUNDED,
    Lattice,
    Sums,
    check_spacing,
    discrete_sigma,
    rounding,
    spacing,
    sum_slack,
)
from equipoise.privacy.noisy_gradient import NoisyGradient, inner_clip
from problems import NearestWhole, run_command

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
    check_spacing(gamma, d, C)
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
    assert inner_clip(C, NOT_ROUNDED, 10, records) == pytest.approx(1 - records**2 * 2.0**-52)
    assert inner_clip(C, Lattice(2.0**-20), 9, 1) == pytest.approx(1 - 3 * 2.0**-20)


def test_whole_steps_of_any_model_and_any_noise():
    for dtype in (torch.float32, torch.float64):
        for sigma in (1e-3, 1.0, 777.0):
            released = ClippedRelease(0.37, sigma)
            u = torch.randn(20, 50, dtype=dtype)
            release = released.release(u, SecretNoise(), 1)
            steps = release / released.lattice.gamma
            assert torch.equal(steps, steps.round())
            assert steps.abs().max() < 2.0 ** (BITS - 1)


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


def test_the_slack_is_accounted_for():
    sums = Sums(20, 19)
    assert sum_slack(5.0, 1e-6, sums, 10**10) < 1e-22
    assert sum_slack(5.0, 1e-6, None, 10**10) == 0.0
    a, sigma, K, delta = 1e-3, 9.0, 4, 1e-5
    epsilon = epsilon_spent(sigma, K, 2.0, delta, a)
    plain = epsilon_spent(sigma, K, 2.0, delta * math.exp(-a))
    assert epsilon == pytest.approx(plain + 2 * a, rel=1e-9)
    assert epsilon_spent(sigma, K, 2.0, delta, 1e-25) == epsilon_spent(sigma, K, 2.0, delta)


# ---- refusals ----


def test_a_lattice_that_is_too_coarse_is_refused():
    with pytest.raises(InvalidValue, match=r"clip=1 with releases in steps of .*rounding would"):
        check_spacing(1e-4, 10**6, 1.0)
    with pytest.raises(InvalidValue, match=r"sigma=1e-09 of a sum of 3 clients.*or trust=local"):
        discrete_sigma(1e-9, spacing(1.0, 1e-9, Sums(3, 2)), Sums(3, 2))


def test_the_command_says_so_in_one_sentence(capsys):
    code, out, err = run_command(
        capsys,
        *("train", "--task", "breast-cancer", "--epsilon", "1e-9", "--clip", "1"),
        *("--iterations", "64", "--delta", "1e-12"),
    )
    assert (code, out) == (2, "")
    assert "clip=1 with releases in steps of" in err
    assert "larger epsilon" in err
    assert len(err.splitlines()) == 1


# ---- one gamma: of what leaves, of the account, of the statement ----

RUNS = {
    "local": {},
    "sums": {"trust": "secure-aggregation"},
    "dp-scaffnew, sums": {"algorithm": "dp-scaffnew", "trust": "secure-aggregation"},
    "released h": {"algorithm": "dp-scaffnew", "h_update": "released"},
    "zero-out": {"neighbours": "zero-out"},
    "lemma 1": {"noise_rule": "lemma1", "v": 1.0},
    "record, message": {"unit": "record", "noise_in": "message"},
    "record, message, sums": {
        "unit": "record",
        "noise_in": "message",
        "trust": "secure-aggregation",
    },
    "record, hidden": {"unit": "record", "noise_in": "hidden-gradient"},
    "network": {"task": "digits-mlp", "iterations": 4},
}


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_what_leaves_is_on_the_lattice_that_is_told(leaves, changes):
    from equipoise.privacy.statement import statement

    base = {"task": "breast-cancer", "clients": 5, "epsilon": 2, "clip": 1, "iterations": 8}
    releases, _ = leaves
    result = train(**{**base, **changes})
    gamma = result.lattice
    assert gamma
    assert {event.lattice for event in result.account.events} == {gamma}
    for release in releases:
        assert release.dtype == torch.float64
        steps = release / gamma
        assert torch.equal(steps, steps.round())
        assert (steps % 2 != 0).any(), "and on no coarser one"
    assert f"| lattice | {gamma!r}" in statement(result)


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_noised_sums_of_gradients_are_on_the_lattice_that_is_told(monkeypatch, rate):
    from equipoise.privacy import noisy_gradient

    sums, on_lattice = [], noisy_gradient.on_lattice

    def seen(*arguments):
        sums.append(on_lattice(*arguments))
        return sums[-1]

    monkeypatch.setattr(noisy_gradient, "on_lattice", seen)
    result = train(
        task="breast-cancer",
        clients=5,
        epsilon=2,
        clip=1,
        iterations=8,
        unit="record",
        sampling_rate=rate,
    )
    assert len(sums) == 8
    for total in sums:
        steps = total / result.lattice
        assert torch.equal(steps, steps.round())
        assert (steps % 2 != 0).any()


def test_without_noise_there_is_no_lattice(leaves):
    result = train(task="breast-cancer", epsilon=math.inf, clip=1, iterations=4)
    assert result.lattice is None
    assert result.account.lattice == 0
