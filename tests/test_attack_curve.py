"""What an attacker gains: the curve against the real mechanism, and against integrals that know
nothing of it."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from attack_integrals import best_found, density
from equipoise import InvalidValue
from equipoise.privacy.clip import average
from equipoise.privacy.events import Event
from equipoise.privacy.gaussian import epsilon_spent, gdp_mu, noise_sigma
from equipoise.privacy.lattice import Lattice
from equipoise.privacy.noise import SimulatedNoise
from equipoise.privacy.trade_off import budget, implied, power, trade_off
from equipoise.training import prepare

RATES = np.array([0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8])  # of false alarms


def event(sigma=1.0, neighbours="replace-one", rate=1.0, count=1, slack=0.0):
    sensitivity = {"replace-one": 2.0, "add-remove": 1.0}[neighbours]
    return Event("record", neighbours, sensitivity, sigma, rate, count, slack=slack)


# -------------------------------------------------------------------------------------------------
# the real mechanism


@pytest.mark.parametrize(("trust", "draws"), [("local", 100_000), ("secure-aggregation", 40_000)])
def test_attacks_on_the_real_mechanism_find_what_the_curve_says(trust, draws):
    """The worst neighbours, a clipped message and its opposite in every round; the likelihood ratio
    of what is released grows with the sum of the first coordinates."""
    ready = prepare(
        task="breast-cancer", clients=3, iterations=3, epsilon=3.3, clip=0.7, trust=trust
    )
    run, (spent,) = ready.run, ready.account.events
    lattice = Lattice(spent.lattice, sums=trust != "local")
    clients = 1 if trust == "local" else 3
    honest = clients - (run.colluding or 0)
    added = run.promise.client_sigma(spent.sigma, run.clients, spent.lattice)
    releaser = run.mechanism.releaser(run.clip, added, lattice)
    statistic = {}
    for sign in (-1, 1):
        update = torch.zeros(draws * clients, 1)
        update[::clients] = 5 * sign  # is clipped; the others send nothing
        total = np.zeros(draws)
        for round in range(1, spent.count + 1):
            noise = SimulatedNoise(7 + sign)
            released = releaser.release(update, noise, round).reshape(draws, clients, 1)
            if trust == "local":
                total += released[:, 0, 0].numpy()
            else:  # one client colludes and subtracts its own
                total += average(released[:, :honest], lattice).numpy()[:, 0] * honest
        statistic[sign] = total
    deviation = spent.sigma * math.sqrt(spent.count)
    expected = power([spent], RATES)
    for rate, found in zip(RATES, expected, strict=True):
        threshold = -spent.count * run.clip + deviation * stats.norm.isf(rate)
        for sign, share in ((-1, rate), (1, found)):
            hits = int((statistic[sign] > threshold).sum())
            interval = stats.binomtest(hits, draws).proportion_ci(0.999)
            assert interval.low <= share <= interval.high, (trust, rate, sign)


# -------------------------------------------------------------------------------------------------
# closed forms


def test_the_curve_of_gaussian_releases():
    """Dong, Roth and Su, equation 6, and no more than rounding below it."""
    for mu in (1e-6, 0.27, 0.78, 3.0, 12.0):
        exact = stats.norm.cdf(stats.norm.isf(RATES) - mu)
        curve = trade_off([event(2 / mu)], RATES)
        assert (curve <= exact).all()
        assert curve == pytest.approx(exact, rel=1e-10)
    assert power([event(2 / gdp_mu(3.3, 1e-5))], 0.01) == pytest.approx(0.0612, abs=5e-5)
    assert 1 - implied(3.3, 1e-5, 0.01) == pytest.approx(0.271, abs=5e-4)


def test_the_curve_at_its_ends():
    for one in (event(), event(rate=0.1, sigma=1.0, count=3)):
        ends = trade_off([one], np.array([0.0, 1.0]))
        assert ends[1] == 0
        assert 1 - 1e-8 <= ends[0] <= 1  # a profile ends at a delta of 1e-9
    assert trade_off([event(0.0)], 0.0) == 1.0
    assert trade_off([event(0.0), event()], 0.3) == 0.0, "without noise everything is found"
    assert trade_off([event(count=0)], 0.3) == pytest.approx(0.7)
    assert trade_off([event(1e-3, rate=0.5)], 0.01) < 1e-12, "no grid holds its losses"
    for bad in (-0.1, 1.5, math.nan):
        with pytest.raises(InvalidValue, match="is not a share"):
            trade_off([event()], bad)


def test_of_several_clients_the_weakest_counts():
    weak, strong = event(1.0), event(9.0)
    assert trade_off([strong, weak], 0.1) == trade_off([weak], 0.1) < trade_off([strong], 0.1)


def test_what_an_epsilon_implies_is_less_than_the_curve():
    """At every epsilon with its delta the bound touches the curve from below."""
    alphas = np.linspace(0, 1, 501)
    mu = 0.78
    curve = trade_off([event(2 / mu)], alphas)
    touched = np.zeros_like(alphas)
    for epsilon in np.linspace(0, 6, 601):
        a = epsilon / mu - mu / 2
        delta = stats.norm.sf(a) - math.exp(epsilon) * stats.norm.sf(a + mu)
        bound = implied(epsilon, delta, alphas)
        assert (bound <= curve + 1e-12).all()
        touched = np.maximum(touched, bound)
    assert touched == pytest.approx(curve, abs=1e-4)
    assert (implied(math.inf, 1e-5, np.array([0.1, 0.5])) == 0).all()
    assert implied(800.0, 1e-5, 0.0) == 1 - 1e-5


def test_slack_moves_both_errors():
    """Probabilities within e^(+-a): the most unlike laws that are, for Gaussian ones."""
    a, mu = 0.2, 0.5
    plain = stats.norm.cdf(stats.norm.isf(np.minimum(1, math.exp(a) * RATES)) - mu)
    assert trade_off([event(2 / mu, slack=a)], RATES) == pytest.approx(math.exp(-a) * plain)


# -------------------------------------------------------------------------------------------------
# secret samples


SAMPLED = [
    ("replace-one", 0.3, 1.5, 1),
    ("replace-one", 0.1, 1.0, 2),
    ("replace-one", 0.05, 1.2, 40),
    ("add-remove", 0.3, 1.0, 1),
    ("add-remove", 0.1, 0.7, 2),
    ("add-remove", 0.05, 0.8, 40),
]


@pytest.mark.parametrize(("neighbours", "rate", "noise", "steps"), SAMPLED)
def test_no_attack_on_secret_samples_finds_more_than_is_said(neighbours, rate, noise, steps):
    """In neither order of the neighbours; and what is said is the hull of both, hardly more."""
    said = power([event(noise, neighbours, rate, steps)], RATES)
    best = best_found(neighbours, rate, noise, steps, RATES)
    assert (best <= said + 3e-4).all()  # what the grid of the integration errs
    assert (said <= best + 0.03).all()
    if neighbours == "replace-one":  # both orders are alike: there is no hull
        assert said == pytest.approx(best, abs=1e-3)
    whole = power([event(noise, neighbours, 1.0, steps)], RATES)
    assert (said < whole - 1e-3).all(), "sampling hides something"


@pytest.mark.parametrize("order", ["with the record first", "without it first"])
def test_one_sampled_step_in_closed_form(order):
    """(1-q) N(0) + q N(1) against N(0): what is released decides by itself, it is a number."""
    rate, noise = 0.2, 0.6
    said = power([event(noise, "add-remove", rate)], RATES)
    if order == "without it first":
        at = noise * stats.norm.isf(RATES)
        exact = (1 - rate) * stats.norm.sf(at, 0, noise) + rate * stats.norm.sf(at, 1, noise)
    else:
        below = np.linspace(-8 * noise, 1 + 8 * noise, 400_001)
        mass = (1 - rate) * stats.norm.cdf(below, 0, noise) + rate * stats.norm.cdf(below, 1, noise)
        exact = stats.norm.cdf(np.interp(RATES, mass, below), 0, noise)
    assert (exact <= said + 1e-9).all()


def test_two_sampled_steps_by_quadrature():
    """Of the second step everything is known in closed form, so one integral is left."""
    rate, noise = 0.2, 0.9
    q, s = rate, noise**2
    said = power([event(noise, "add-remove", rate, 2)], RATES)

    def at_least(loss):
        """From which number on a step's log-likelihood ratio is at least this."""
        odds = math.expm1(loss) + q
        return s * math.log(odds / q) + 0.5 if odds > 0 else -math.inf

    def share(law, threshold):
        def part(x):
            loss = math.log1p(q * math.expm1((2 * x - 1) / (2 * s)))
            at = at_least(threshold - loss)
            tail = (1 - law[0]) * stats.norm.sf(at, 0, noise) + law[0] * stats.norm.sf(at, 1, noise)
            return density(law, x, noise) * tail

        return integrate.quad(part, -9, 10, points=[0.0, 1.0], limit=200)[0]

    for threshold in (0.3, 0.8, 1.5):
        false, found = share((0.0, 0.0), threshold), share((q, 1.0), threshold)
        mine = power([event(noise, "add-remove", rate, 2)], false)
        assert found - 1e-7 <= mine <= found + 0.03
    assert (np.diff(said) > 0).all()


# -------------------------------------------------------------------------------------------------
# from an attack to a budget


@pytest.mark.parametrize(("max_tpr", "fpr"), [(0.05, 0.01), (0.2, 0.01), (0.011, 0.01), (0.9, 0.1)])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_the_budget_of_an_attack(max_tpr, fpr, delta):
    """Its noise obeys, and a thousandth more does not."""
    epsilon = budget(max_tpr, fpr, delta)
    for larger, obeys in ((1.0, True), (1.001, False)):
        sigma = noise_sigma(larger * epsilon, delta, 16, 2.0)
        assert (power([event(sigma, count=16)], fpr) <= max_tpr) == obeys
    mu = stats.norm.ppf(max_tpr) - stats.norm.ppf(fpr)
    assert epsilon == pytest.approx(epsilon_spent(1.0, 1, mu, delta), rel=1e-9)


@pytest.mark.parametrize(
    ("max_tpr", "fpr", "reason"),
    [
        (0.01, 0.01, "0 < fpr < max_tpr < 1"),
        (0.01, 0.05, "0 < fpr < max_tpr < 1"),
        (1.0, 0.01, "0 < fpr < max_tpr < 1"),
        (0.05, 0.0, "0 < fpr < max_tpr < 1"),
        (0.0100001, 0.01, "so near to guessing"),
    ],
)
def test_attacks_that_are_no_budget_are_refused(max_tpr, fpr, reason):
    with pytest.raises(InvalidValue, match=reason):
        budget(max_tpr, fpr, 1e-3)
