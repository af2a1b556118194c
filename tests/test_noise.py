"""The noise: distribution, tail, secrecy, and the reproducible stream of simulations."""

import math
import multiprocessing

import numpy as np
import pytest
from scipy import stats

from equipoise.privacy import SecretNoise, SimulatedNoise, noise
from equipoise.privacy.samplers import Stream, unit_pairs

DRAWS, PART = 10**8, 10**6


def standard_normals(key, start, count):
    return unit_pairs(Stream(key, start).blocks(0, count // 2))[0].reshape(count)


@pytest.fixture(scope="module")
def census():
    """10^8 draws under one fixed key: power sums, a histogram with steps of 1/20, and how the two
    of a pair hang together."""
    powers, counts, pairs = np.zeros(4), np.zeros(400, dtype=np.int64), np.zeros(3)
    for part in range(DRAWS // PART):
        z = standard_normals(b"a fixed key of thirty-two bytes!", part.to_bytes(8) + bytes(8), PART)
        squares = z * z
        powers += [z.sum(), squares.sum(), squares @ z, squares @ squares]
        counts += np.bincount((z * 20 + 200).astype(np.int64), minlength=400)
        pairs += [z[0::2] @ z[1::2], (squares[0::2] - 1) @ (squares[1::2] - 1), z[1:-1:2] @ z[2::2]]
    return powers / DRAWS, counts, pairs


def test_moments_of_1e8_draws(census):
    powers, _, _ = census
    errors = np.array([1, 2, 15, 96]) ** 0.5 / math.sqrt(
        DRAWS
    )  # standard deviations of z, z^2, z^3, z^4
    assert np.all(np.abs(powers - [0, 1, 0, 3]) < 5 * errors)


def test_histogram_of_1e8_draws(census):
    _, counts, _ = census
    edges = (np.arange(401) - 200) / 20
    expected = DRAWS * np.diff(stats.norm.cdf(edges))
    body = expected > 25
    statistic = ((counts - expected)[body] ** 2 / expected[body]).sum()
    assert 1e-6 < stats.chi2.sf(statistic, body.sum() - 1) < 1 - 1e-6


@pytest.mark.parametrize("sigmas", [4, 5, 5.5])
def test_tail_of_1e8_draws(census, sigmas):
    _, counts, _ = census
    beyond = counts[: round((10 - sigmas) * 20)].sum() + counts[round((10 + sigmas) * 20) :].sum()
    expected = 2 * stats.norm.sf(sigmas) * DRAWS  # 6334, 57.3, 3.8
    assert 1e-6 < stats.poisson.cdf(beyond, expected) < 1 - 1e-6
    assert beyond > 0


def test_draws_are_independent(census):
    """Within a Box-Muller pair (also of the squares) and between neighbouring pairs."""
    _, _, pairs = census
    scale = np.sqrt(DRAWS / 2) * np.array([1, 2, 1])
    assert np.all(np.abs(pairs) < 5 * scale)


def test_extreme_bits_reach_nine_sigma():
    zero, half, full = 0, 1 << 63, (1 << 64) - 1
    bits = np.array(
        [[zero, zero], [zero, half], [zero, half >> 1], [full, zero], [1 << 4, zero]],
        dtype=np.uint64,
    )
    normals, _ = unit_pairs(bits)
    farthest = math.sqrt(2 * 65 * math.log(2))
    assert normals[0] == pytest.approx([farthest, 0])
    assert normals[1] == pytest.approx([-farthest, 0])
    assert normals[2] == pytest.approx([0, farthest])
    assert np.all(normals[3] == 0)  # u rounds to 1: never a NaN
    assert farthest > normals[4, 0] > 9  # 60 zero bits are enough for nine
    assert np.isfinite(normals).all()


def test_the_whole_tail_is_there():
    """P(|z| > 9) of the transformation itself: radii beyond r come from the first e^(-r^2/2) of all
    integers."""
    for r in (7, 8, 9):
        last = int(math.exp(-r * r / 2) * 2.0**64)
        bits = np.array(
            [[last - last // 1000 - 1, 0], [last + last // 1000 + 1, 0]], dtype=np.uint64
        )
        normals, _ = unit_pairs(bits)
        assert normals[0, 0] > r > normals[1, 0]


def draw(_):
    return SecretNoise().whole("rounded", 1, (2, 3), 2.0**30).tolist()


@pytest.mark.parametrize("law", ["normals", "rounded", "discrete"])
def test_secret_noise_never_repeats(law):
    def drawn(source):
        if law == "normals":
            return source.normals(1, (4, 1000))
        return source.whole(law, 1, (4, 1000), 2.0**31)

    source = SecretNoise()
    draws = [drawn(source) for _ in range(3)] + [drawn(SecretNoise())]
    rows = np.concatenate(draws)
    assert len(np.unique(rows, axis=0)) == 16
    assert len(np.unique(rows)) > rows.size - 10  # whole numbers may meet by chance


def test_secret_noise_is_the_cipher_under_a_key_of_the_operating_system(monkeypatch):
    """No other generator stands in between: given the system's bytes, the noise is exactly the
    tested transformation."""
    asked = []

    def urandom(size):
        asked.append(size)
        return bytes([len(asked)]) * size

    monkeypatch.setattr(noise.os, "urandom", urandom)
    drawn = SecretNoise().normals(1, (2, 3))
    assert asked == [32, 16]
    assert np.array_equal(
        drawn, standard_normals(bytes([1]) * 32, bytes([2]) * 16, 6).reshape(2, 3)
    )
    drawn = SecretNoise().whole("rounded", 1, (2, 4), 1000.0)
    assert asked == [32, 16] * 2
    normals = standard_normals(bytes([3]) * 32, bytes([4]) * 16, 8).reshape(2, 4)
    assert np.array_equal(drawn, np.rint(1000 * normals))


@pytest.mark.parametrize("law", ["rounded", "discrete"])
def test_secret_noise_of_unlike_clients_has_each_client_s_own_scale(law):
    scales = np.array([[10.0], [1e3], [2.0**25]])
    drawn = SecretNoise().whole(law, 1, (3, 4000), scales)
    assert np.all(np.abs(drawn.std(axis=1) / scales[:, 0] - 1) < 8 / math.sqrt(2 * 4000))
    stacked = SecretNoise().whole(law, 1, (2, 1, 4000), np.array([10.0, 1e3]).reshape(2, 1, 1))
    assert np.all(np.abs(stacked[:, 0].std(axis=1) / [10.0, 1e3] - 1) < 8 / math.sqrt(2 * 4000))


def test_forked_processes_do_not_share_secret_noise():
    """A child copies its parent's memory: a generator kept there would send the same noise
    twice.
    """
    SecretNoise().normals(1, (2, 3))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        draws = pool.map(draw, range(4), chunksize=1)
    draws.append(draw(0))
    assert len({str(d) for d in draws}) == len(draws)


DRAWN = {
    "normals": lambda source, round, shape: source.normals(round, shape),
    "rounded": lambda source, round, shape: source.whole("rounded", round, shape, 2.0**40),
    "discrete": lambda source, round, shape: source.whole("discrete", round, shape, 2.0**40),
}


@pytest.mark.parametrize("d", [1, 2, 7, 10])
@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_simulated_noise_is_keyed_by_seed_client_and_round(d, draw):
    together = draw(SimulatedNoise(5), 3, (4, d))
    for i in range(4):
        assert np.array_equal(draw(SimulatedNoise(5, first_client=i), 3, (d,)), together[i])
    stacked = draw(SimulatedNoise(5), 3, (2, 4, d))
    assert np.array_equal(stacked[0], together)
    assert np.array_equal(stacked[1], together)
    others = [draw(SimulatedNoise(5), 4, (4, d)), draw(SimulatedNoise(6), 3, (4, d))]
    values = np.concatenate([together.ravel()] + [o.ravel() for o in others])
    assert len(np.unique(values)) == values.size


@pytest.mark.parametrize("law", ["rounded", "discrete"])
def test_noise_of_many_scales_is_that_of_each(law):
    """Stacks of seeds and settings, clients that differ, rows longer than what is drawn at once."""
    scales = np.array([[9.0, 2.0**20, 2.0**31], [10.0, 333.3, 50.0]]).reshape(2, 3, 1, 1)
    stacked = SimulatedNoise(1, 2).whole(law, 3, (2, 1, 4, 7), scales)
    assert stacked.shape == (2, 3, 4, 7)
    for s, seed in enumerate((1, 2)):
        for q in range(3):
            alone = SimulatedNoise(seed).whole(law, 3, (4, 7), scales[s, q, 0, 0])
            assert np.array_equal(stacked[s, q], alone)
    unlike = SimulatedNoise(1).whole(law, 3, (3, 7), np.array([[9.0], [100.0], [1e6]]))
    for i, scale in enumerate((9.0, 100.0, 1e6)):
        alone = SimulatedNoise(1, first_client=i).whole(law, 3, (7,), scale)
        assert np.array_equal(unlike[i], alone)
    long = SimulatedNoise(1).whole(law, 3, (2, 150_001), 1000.0)
    assert np.array_equal(
        SimulatedNoise(1, first_client=1).whole(law, 3, (150_001,), 1000.0), long[1]
    )
    for row in long:
        assert row.std() == pytest.approx(1000, rel=0.01)
