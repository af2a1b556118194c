"""The exact Gaussian calculus, against 60-digit arithmetic, against other accountants, and by
property."""

import math

import mpmath
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent, pld, rdp
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import InvalidValue
from equipoise.paper.lemma1 import exact_v, lemma1_sigma
from equipoise.privacy import Promise, epsilon_spent, gdp_mu, noise_sigma
from equipoise.privacy.gaussian import log_delta, log_delta_at_least

EPSILONS = [1e-3, 0.01, 0.1, 0.5, 1, 2, 3.3, 10, 30, 100]
DELTAS = [1e-12, 1e-9, 1e-5, 1e-3, 0.1]

epsilons = st.floats(1e-3, 100)
deltas = st.floats(1e-12, 0.1)
releases = st.integers(1, 10_000)
sensitivities = st.floats(1e-6, 1e6)


def delta_exactly(epsilon, mu):
    """Balle and Wang (2018), Theorem 8, in 60 digits."""
    with mpmath.workdps(60):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(
            -mu / 2 - epsilon / mu
        )


def promise(**parts):
    return Promise(2.0, 1e-5, **parts)


def root(function, start):
    with mpmath.workdps(60):
        return mpmath.findroot(function, mpmath.mpf(start))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_mu_is_exact_and_on_the_safe_side(epsilon, delta):
    mu = gdp_mu(epsilon, delta)
    exact = root(
        lambda m: mpmath.log(delta_exactly(epsilon, m)) - mpmath.log(mpmath.mpf(delta)), mu
    )
    assert -1e-12 < float(mu / exact - 1) <= 0
    sigma = noise_sigma(epsilon, delta, 7, 2.0)
    with mpmath.workdps(60):
        true_mu = 2 * mpmath.sqrt(7) / mpmath.mpf(sigma)
        assert delta_exactly(epsilon, true_mu) <= mpmath.mpf(delta)
        assert abs(float(true_mu / exact - 1)) < 1e-12


@pytest.mark.parametrize("mu", [1e-4, 0.01, 1, 10, 100, 1e3, 14_142.0])
def test_epsilon_spent_is_exact_up_to_1e8(mu):
    epsilon = epsilon_spent(1 / mu, 1, 1.0, 1e-5)
    exact = root(
        lambda e: (
            mpmath.log(delta_exactly(e, 1 / mpmath.mpf(1 / mu))) - mpmath.log(mpmath.mpf(1e-5))
        ),
        epsilon,
    )
    assert 0 <= float(epsilon / exact - 1) < 1e-12


@pytest.mark.parametrize("mu", [1e-3, 0.3, 0.49, 0.51, 3.0, 30.0])
@pytest.mark.parametrize("a", [-9.0, -1.0, 0.0, 1.0, 6.0, 39.0])
def test_the_bounds_of_delta_are_on_their_sides(mu, a):
    """Of every mu that rounding, here 14 units in the last place, may have made this one; and not
    farther apart than is said."""
    epsilon = mu * (a + mu / 2)
    if epsilon <= 0:
        epsilon, a = mu, 1 - mu / 2
    low, high = log_delta_at_least(epsilon, mu), log_delta(epsilon, mu)
    for units in (-14, 0, 14):
        with mpmath.workdps(60):
            exact = mpmath.log(delta_exactly(epsilon, mpmath.mpf(mu) * (1 + units * 2.0**-52)))
        assert low <= exact <= high
    assert high - low < 2.0**-46 * (1 + a * a + (1 + abs(a)) * (abs(a) + mu))


def test_bounds_of_a_delta_below_every_float():
    for epsilon, mu in ((9.0, 0.2), (500.0, 3.0)):
        with mpmath.workdps(400):
            exact = mpmath.log(delta_exactly(epsilon, mu))
        assert exact <= log_delta(epsilon, mu) < 0.99 * exact
        assert log_delta_at_least(epsilon, mu) == -math.inf


def test_edges():
    assert epsilon_spent(1.0, 0, 1.0, 1e-5) == 0 == noise_sigma(1.0, 1e-5, 0, 1.0)
    assert epsilon_spent(0.0, 1, 1.0, 1e-5) == math.inf == gdp_mu(math.inf, 1e-5)
    assert noise_sigma(math.inf, 1e-5, 3, math.inf) == 0 == noise_sigma(1.0, 1e-5, 0, math.inf)
    assert epsilon_spent(1e300, 1, 1e-300, 1e-5) == 0  # mu vanishes
    for delta in (0.0, 1.0):
        with pytest.raises(InvalidValue, match="is not in"):
            epsilon_spent(1.0, 1, 1.0, delta)
    total_variation = math.erf(0.1 / (2 * math.sqrt(2)))  # delta(0) of mu = 0.1
    assert epsilon_spent(10.0, 1, 1.0, total_variation * 1.001) == 0
    assert epsilon_spent(10.0, 1, 1.0, total_variation * 0.999) > 0


@given(epsilons, deltas, releases, sensitivities)
def test_never_over_budget(epsilon, delta, count, sensitivity):
    sigma = noise_sigma(epsilon, delta, count, sensitivity)
    assert 0 < epsilon_spent(sigma, count, sensitivity, delta) <= epsilon


@given(epsilons, deltas, releases, sensitivities)
def test_monotone_in_every_argument(epsilon, delta, count, sensitivity):
    sigma = noise_sigma(epsilon, delta, count, sensitivity)
    assert noise_sigma(epsilon * 1.001, delta, count, sensitivity) < sigma
    assert noise_sigma(epsilon, delta * 1.001, count, sensitivity) < sigma
    assert noise_sigma(epsilon, delta, count + 1, sensitivity) > sigma
    assert noise_sigma(epsilon, delta, count, sensitivity * 1.001) > sigma
    spent = epsilon_spent(sigma, count, sensitivity, delta)
    assert epsilon_spent(sigma * 1.001, count, sensitivity, delta) < spent
    assert epsilon_spent(sigma, count + 1, sensitivity, delta) > spent
    assert epsilon_spent(sigma, count, sensitivity * 1.001, delta) > spent
    assert epsilon_spent(sigma, count, sensitivity, delta * 1.001) < spent


def spent_according_to(accountant, multiplier, count):
    return accountant.compose(SelfComposedDpEvent(GaussianDpEvent(multiplier), count)).get_epsilon(
        1e-5
    )


@pytest.mark.parametrize("epsilon", [3.3, 2, 1, 0.5])
@pytest.mark.parametrize("count", [1, 16])
def test_agrees_with_pld_and_beats_rdp(epsilon, count):
    """PLD's own noise for this epsilon lies within 1e-4 of ours, and RDP asks for no less."""
    sigma = noise_sigma(epsilon, 1e-5, count, 1.0)
    assert spent_according_to(pld.PLDAccountant(), sigma * (1 + 1e-4), count) <= epsilon
    assert spent_according_to(pld.PLDAccountant(), sigma * (1 - 1e-4), count) > epsilon
    assert spent_according_to(rdp.RdpAccountant(), sigma, count) >= epsilon


def test_the_constants_of_lemma_1():
    """With v = exact_v the printed formula is exact for a fixed number of rounds; figures as in
    docs/paper.md."""
    assert exact_v(3.3, 1e-5, 1.0) == pytest.approx(1.546892, rel=1e-6)
    assert exact_v(0.5, 1e-5, 2.0) == pytest.approx(4.294876, rel=1e-6)
    printed = lemma1_sigma(2, 1e-5, 16, 3.0, exact_v(2, 1e-5, 2.0))
    assert printed == pytest.approx(noise_sigma(2, 1e-5, 16, 6.0), rel=1e-11)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: gdp_mu(0, 1e-5), "epsilon=0 is not > 0"),
        (lambda: gdp_mu(math.nan, 1e-5), "epsilon=nan is not > 0"),
        (lambda: gdp_mu(1, 0), r"delta=0 is not in \(0, 1\)"),
        (lambda: gdp_mu(1, 1), r"delta=1 is not in \(0, 1\)"),
        (lambda: noise_sigma(1, 1e-5, -1, 1), "releases=-1"),
        (lambda: noise_sigma(1, 1e-5, 1, math.inf), "sensitivity=inf"),
        (lambda: epsilon_spent(math.nan, 1, 1, 1e-5), "sigma=nan"),
        (
            lambda: promise(trust="secure-aggregation", colluding=3).check_clients(3),
            "clients=3 with colluding=3",
        ),
        (
            lambda: promise(trust="secure-aggregation", colluding=-1),
            "colluding=-1 is not a number of clients",
        ),
        (lambda: promise(colluding=1), "colluding=1 has no meaning"),
        (lambda: promise(neighbours="other"), "neighbours='other'"),
    ],
)
def test_bad_values_are_refused(call, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        call()


@given(st.floats(1e-6, 1e6), st.integers(2, 1000), st.data())
def test_what_honest_clients_add_is_enough(sigma, clients, data):
    colluding = data.draw(st.integers(0, clients - 1))
    shared = promise(trust="secure-aggregation", colluding=colluding)
    shared.check_clients(clients)
    share = shared.client_sigma(sigma, clients)
    assert share * math.sqrt(clients - colluding) >= sigma
    assert share == pytest.approx(sigma / math.sqrt(clients - colluding), rel=1e-12)
    assert promise().client_sigma(sigma, clients) == sigma


def test_extreme_budgets_come_to_an_end():
    """Neither hangs nor overspends where floats end."""
    assert gdp_mu(1e308, 1e-5) > 1e150
    assert epsilon_spent(noise_sigma(2, 1e-310, 3, 1.0), 3, 1.0, 1e-310) <= 2
    assert epsilon_spent(1e-160, 1, 1.0, 1e-5) == math.inf
    assert noise_sigma(1e308, 1e-5, 1, 1.0) > 0
