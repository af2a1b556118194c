"""The rounded and the discrete Gaussian: their laws, their tails, and that nothing depends on a
rounding error."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from equipoise.privacy import samplers
from equipoise.privacy.samplers import Number, Stream, nearest, unit_pairs, whole_numbers

KEY = b"another key, of thirty-two bytes"


def drawn(law, count, scale, start=0):
    stream = Stream(KEY, start.to_bytes(8) + bytes(8))
    scales = np.full((1, 1, 1, 1), float(scale))
    return whole_numbers(law, [stream], 1, count, scales)[0, 0, 0]


def probabilities(law, scale):
    """Of all k up to twelve standard deviations."""
    k = np.arange(-math.ceil(12 * scale), math.ceil(12 * scale) + 1)
    if law == "rounded":
        below = -np.abs(k) / scale
        return k, stats.norm.cdf(below + 0.5 / scale) - stats.norm.cdf(below - 0.5 / scale)
    weights = np.exp(-((k / scale) ** 2) / 2)
    return k, weights / weights.sum()


@pytest.mark.slow
@pytest.mark.parametrize("law", ["rounded", "discrete"])
@pytest.mark.parametrize("scale", [2, 3.7, 8, 50])
def test_1e7_draws_have_the_law(law, scale):
    draws, part = 10**7, 10**6
    k, p = probabilities(law, scale)
    counts = np.zeros(len(k))
    for first in range(draws // part):
        numbers = drawn(law, part, scale, start=first).astype(np.int64)
        counts += np.bincount(numbers - k[0], minlength=len(k))
    body = draws * p > 25
    expected = draws * p[body]
    statistic = ((counts[body] - expected) ** 2 / expected).sum()
    assert 1e-6 < stats.chi2.sf(statistic, body.sum() - 1) < 1 - 1e-6
    far = np.abs(k) > 5 * scale
    assert 1e-6 < stats.poisson.cdf(counts[far].sum(), draws * p[far].sum()) < 1 - 1e-6
    assert counts[far].sum() > 0
    sides = counts[k > 0].sum(), counts[k < 0].sum()
    assert abs(sides[0] - sides[1]) < 5 * math.sqrt(sum(sides))


def test_the_laws_differ_where_they_must():
    """At two steps, ten thousand draws cannot tell them apart, and 10^7 do (above): here by how
    much."""
    k, rounded = probabilities("rounded", 2)
    _, discrete = probabilities("discrete", 2)
    assert rounded @ k**2 == pytest.approx(4 + 1 / 12, rel=1e-3)
    assert discrete @ k**2 == pytest.approx(4, rel=1e-9)


def exact_normals(first, second, unknown):
    """Box and Muller with sixty digits, for U = (first + unknown) / 2^64 and W likewise."""
    with mpmath.workdps(60):
        U, W = ((mpmath.mpf(int(bits)) + unknown) / 2**64 for bits in (first, second))
        if U == 0:
            return mpmath.inf, mpmath.inf
        radius, angle = mpmath.sqrt(-2 * mpmath.log(U)), 2 * mpmath.pi * W
        return radius * mpmath.cos(angle), radius * mpmath.sin(angle)


def extreme_bits():
    ends = [0, 1, 2**46 - 1, 2**46, 2**46 + 1, 2**51, 2**63, 2**64 - 2**14, 2**64 - 2**14 + 1]
    ends += [2**64 - 2**20, 2**64 - 2**40, 2**64 - 1, 2**53 + 1, 2**62 + 12345]
    turns = [0, 1, 2**61, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 3 * 2**62, 2**64 - 1]
    pairs = [(first, second) for first in ends for second in turns]
    random = np.random.default_rng(0).integers(0, 2**64, (2000, 2), dtype=np.uint64)
    near_one = (2**64 - 2 ** np.random.default_rng(1).uniform(14, 62, 200)).astype(np.uint64)
    near_zero = (2 ** np.random.default_rng(2).uniform(46, 60, 200)).astype(np.uint64)
    others = [np.column_stack([part, random[:200, 1]]) for part in (near_one, near_zero)]
    return np.concatenate([np.array(pairs, dtype=np.uint64), random, *others])


def test_the_error_of_double_precision_is_within_its_bound():
    """Whatever the bits that are not drawn yet turn out to be; at the ends and everywhere else."""
    bits = extreme_bits()
    normals, errors = unit_pairs(bits)
    worst = 0.0
    for pair, numbers, (error,) in zip(bits, normals, errors, strict=True):
        for unknown in (0, 1):
            exact = exact_normals(*pair, unknown)
            for number, truth in zip(numbers, exact, strict=True):
                if error < math.inf:
                    worst = max(worst, abs(float((mpmath.mpf(float(number)) - truth) / error)))
    assert 0.01 < worst < 0.5
    settled = (bits[:, 0] >= 2**46) & (bits[:, 0] <= 2**64 - 2**14)
    assert np.array_equal(errors[:, 0] < math.inf, settled)


@pytest.mark.parametrize("scale", [2.0, 777.7, 2.0**28, 2.0**46])
def test_the_slow_way_and_the_quick_way_agree(scale, monkeypatch):
    """The last scale is so large that the quick way is hardly ever sure of itself."""
    stream = Stream(KEY, bytes(16))
    quick = drawn("rounded", 400, scale)
    for n in range(400):
        pair = stream.blocks(n // 2, 1)[0]
        assert nearest(pair, Number(stream, n // 2, n % 2), scale) == quick[n]
    asked = []

    def counted(*arguments):
        asked.append(arguments)
        return nearest(*arguments)

    monkeypatch.setattr(samplers, "nearest", counted)
    monkeypatch.setattr(samplers, "unit_pairs", _unsure)
    assert np.array_equal(drawn("rounded", 400, scale), quick)
    assert len(asked) == 400


def _unsure(bits):
    normals, error = unit_pairs(bits)
    return normals, np.full_like(error, np.inf)


@pytest.mark.parametrize("member", [0, 1])
def test_what_64_bits_leave_open_the_next_bits_settle(member):
    """A tie by 64 bits: the bits that follow decide, and decide either way."""
    stream = Stream(KEY, bytes(16))
    pair = np.array([2**40, 2**61 + 12345], dtype=np.uint64)
    middle = exact_normals(*pair, mpmath.mpf(1) / 2)[member]
    scale = float(mpmath.mpf(7.5) / middle)  # scale N = 7.5, up to what 64 bits leave open
    answers = set()
    for block in range(40):
        number = Number(stream, block, member)
        answer = nearest(pair, number, scale)
        known = [number.more(name, 64) for name in "UW"]
        with mpmath.workdps(200):
            U, W = (
                (mpmath.mpf(int(bits)) + mpmath.mpf(int.from_bytes(more)) / 2**512) / 2**64
                for bits, more in zip(pair, known, strict=True)
            )
            turn = (mpmath.cos, mpmath.sin)[member](2 * mpmath.pi * W)
            truth = mpmath.mpf(scale) * mpmath.sqrt(-2 * mpmath.log(U)) * turn
            assert answer == int(mpmath.floor(truth + mpmath.mpf(1) / 2))
        answers.add(answer)
    assert answers == {7, 8}


@pytest.mark.parametrize("member", [0, 1])
@pytest.mark.parametrize("above", [False, True])
def test_what_192_bits_leave_open_the_next_bits_settle(monkeypatch, member, above):
    """W agrees in 192 bits with the one for which scale N is 7.5: only what follows tells on which
    side it is, and that side is the answer, not the upper and not the even one."""
    scale, U = 5.0, Fraction(2**60, 2**64)
    with mpmath.workdps(200):
        radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(U.numerator) / U.denominator))
        turn = (mpmath.acos, mpmath.asin)[member](7.5 / (scale * radius))
        tie = int(mpmath.floor(turn / (2 * mpmath.pi) * 2**192))
    bits, open_bits = divmod(tie, 2**128)
    follows = b"\xff" if above else bytes(1)
    sizes = []

    def more(self, what, size):
        sizes.append(size)
        known = {"U": bytes(16), "W": open_bits.to_bytes(16)}[what]
        return (known + (bytes(1) if what == "U" else follows) * size)[:size]

    monkeypatch.setattr(Number, "more", more)
    pair = np.array([2**60, bits], dtype=np.uint64)
    answer = nearest(pair, Number(Stream(KEY, bytes(16)), 0, member), scale)
    rising = member == 1  # in the first quarter the sine rises and the cosine falls
    assert answer == (8 if above == rising else 7)
    assert sizes == [16, 16, 32, 32]


def test_what_192_bits_leave_open_waits_for_more(monkeypatch):
    """U = 0 as far as 192 bits tell: its logarithm is not known at all."""
    sizes = []

    def zeros_then_ones(self, what, size):
        sizes.append(size)
        return (bytes(16) + b"\xff" * size)[:size]

    monkeypatch.setattr(Number, "more", zeros_then_ones)
    zero = np.array([0, 0], dtype=np.uint64)
    answer = nearest(zero, Number(Stream(KEY, bytes(16)), 0, 0), 1e6)
    assert sizes == [16, 16, 32, 32]
    assert answer / 1e6 == pytest.approx(math.sqrt(2 * 192 * math.log(2)), rel=1e-6)


def test_the_tail_has_no_end():
    """64 zero bits of U are refined: what was 9.49 standard deviations at most goes on."""
    stream = Stream(KEY, bytes(16))
    zero = np.array([0, 0], dtype=np.uint64)
    far = [nearest(zero, Number(stream, block, 0), 1000.0) / 1000 for block in range(300)]
    with mpmath.workdps(30):
        edge = float(mpmath.sqrt(2 * 64 * mpmath.log(2)))
    assert min(far) >= edge - 0.001
    # P(R > r given U < 2^-64) = e^(-(r^2 - edge^2) / 2)
    uniform = np.exp(-(np.array(far) ** 2 - edge**2) / 2)
    assert stats.kstest(np.minimum(uniform, 1.0), "uniform").pvalue > 1e-4
    assert max(far) > 9.8


def test_coins_that_64_bits_leave_open_are_settled_exactly():
    """g(0) / g(k) with a coin that equals it in its first 64 bits: more bits decide."""
    stream, k, scale = Stream(KEY, bytes(16)), 9, 3.0
    with mpmath.workdps(60):
        half = mpmath.mpf(1) / 2
        at_zero, at_k = (
            mpmath.quad(
                lambda t, m=m: mpmath.cosh(m * t / scale**2) * mpmath.exp(-(t**2) / 2 / scale**2),
                [-half, half],
            )
            for m in (0, k)
        )
        kept = at_zero / at_k
        coin = int(mpmath.floor(kept * 2**64))
        for block in range(20):
            number = Number(stream, block, 0)
            rest = Fraction(int.from_bytes(number.more("coin", 32)), 2**256)
            truth = (coin + mpmath.mpf(rest.numerator) / rest.denominator) / 2**64 < kept
            assert samplers._keep(k, coin, number, scale) == truth
    assert samplers._keep(k, coin - 2**30, number, scale)
    assert not samplers._keep(k, coin + 2**30, number, scale)


def test_the_quick_bound_on_coins_is_a_bound():
    """g(0) / g(k) >= 1 - k^2 / (24 scale^4), far out too."""
    nodes, weights = np.polynomial.legendre.leggauss(80)
    t, weights = nodes / 2, weights / 2
    for scale in (1.0, 2.0, 8.0, 30.0):
        bell = weights * np.exp(-((t / scale) ** 2) / 2)
        for k in range(int(12 * scale)):
            kept = bell.sum() / (bell @ np.cosh(k * t / scale**2))
            assert kept >= 1 - k**2 / (24 * scale**4) - 1e-15


def test_coins_count_at_every_scale(monkeypatch):
    """All coins at their highest: whatever is not zero is drawn again, at 2^20 steps too."""
    blocks = Stream.blocks

    def highest(self, first, count, purpose=b""):
        drawn = blocks(self, first, count, purpose)
        return np.full_like(drawn, 2**64 - 1) if purpose else drawn

    monkeypatch.setattr(Stream, "blocks", highest)
    scale = 2.0**20
    rounded, discrete = drawn("rounded", 40, scale), drawn("discrete", 40, scale)
    assert (rounded != discrete).sum() > 35


@pytest.mark.parametrize("member", [0, 1])
def test_what_is_drawn_again_is_refined_too(member):
    """With so few bits of U that double precision cannot tell."""
    number = Number(Stream(KEY, bytes(16)), 5, member, attempt=1)
    for first in (0, 3, 2**20):
        pair = np.array([first, 2**61 + 5], dtype=np.uint64)
        assert samplers._once_more(pair, number, 1e6) == nearest(pair, number, 1e6)


def test_zero_has_its_own_share():
    """Not twice, as if +0 and -0 were two numbers."""
    for law in ("rounded", "discrete"):
        numbers = drawn(law, 400_000, 2.0)
        k, p = probabilities(law, 2.0)
        zeros, share = (numbers == 0).sum(), float(p[k == 0][0])
        assert abs(zeros - 400_000 * share) < 5 * math.sqrt(400_000 * share)


def test_both_of_a_pair_use_the_same_bits_but_coins_of_their_own():
    stream = Stream(KEY, bytes(16))
    first, second = Number(stream, 3, 0), Number(stream, 3, 1)
    assert first.more("U", 16) == second.more("U", 16) == first.more("U", 99)[:16]
    assert first.more("U", 16) != first.more("W", 16)
    assert first.more("coin", 16) != second.more("coin", 16)
    again = first._replace(attempt=1), second._replace(attempt=1)
    assert again[0].more("U", 16) != again[1].more("U", 16)
    assert again[0].more("again", 24) != again[0]._replace(attempt=2).more("again", 24)
    assert Number(stream, 4, 0).more("U", 16) != first.more("U", 16)
    elsewhere = Stream(KEY, (1 << 64).to_bytes(16))
    assert Number(elsewhere, 3, 0).more("U", 16) != first.more("U", 16)
