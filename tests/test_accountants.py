"""Accountants side by side: no claim below the exact epsilon, every formula against a transcription
or another library, and the command that prints them."""

import json
import logging
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from absl import logging as absl_logging
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.errors import InvalidValue
from equipoise.privacy.accountants import (
    ACCOUNTANTS,
    APART,
    MOST_EPSILON,
    NOT_COUNTED,
    _own_words,
    advanced_composition,
    compare,
    compare_accountants,
    epsilons_by_rounds,
    least_sigma,
    pld,
    rdp,
    rdp_classic,
    zcdp,
    zcdp_improved,
)
from equipoise.privacy.events import Event
from equipoise.privacy.gaussian import epsilon_spent, noise_sigma
from equipoise.privacy.job import Job, quiet_library
from equipoise.privacy.sampled import sampled_bounds
from equipoise.reports.drawing import styled
from equipoise.reports.figures.accountants import LOOK, accountants, round_numbers
from problems import run_command

DELTA = 1e-5
ORDERS = [1 + x / 10 for x in range(1, 100)] + [*range(11, 64), 128, 256, 512, 1024]
SAMPLED = [  # sigma / C, rounds, rate
    (1.0, 1000, 0.01),
    (6.0, 1, 0.1),
    (6.0, 20, 0.5),
    (20.0, 1000, 0.2),
]


def client(sigma, count, sensitivity=1.0):
    return Event("client", "zero-out", sensitivity, sigma, 1.0, count)


def record(sigma, count, rate, neighbours="add-remove"):
    sensitivity = {"add-remove": 1.0, "replace-one": 2.0}[neighbours]
    return Event("record", neighbours, sensitivity, sigma, rate, count)


def row_of(comparison, name):
    (row,) = [row for row in comparison.rows if row.accountant == name]
    return row


# -------------------------------------------------------------------------------------------------
# nobody claims too little


@settings(max_examples=100, deadline=None)
@given(
    st.floats(0.3, 1e4),
    st.integers(1, 10_000),
    st.floats(1e-10, 0.3),
    st.floats(1e-3, 1e3),
)
def test_no_claim_is_below_the_exact_epsilon(noise, count, delta, sensitivity):
    event = client(noise * sensitivity, count, sensitivity)
    exact = epsilon_spent(event.sigma, count, sensitivity, delta)
    for name, claim in ACCOUNTANTS.items():
        if claim is not pld:
            assert claim(event, delta).epsilon >= exact * (1 - 1e-9), name


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 3.3, 20.0])
@pytest.mark.parametrize("count", [1, 300])
def test_pld_is_the_exact_epsilon_from_above(epsilon, count):
    """Up to what is lost to rounding, 1e-11 of it."""
    exact = noise_sigma(epsilon, DELTA, count, 2.0)
    claimed = pld(client(exact, count, 2.0), DELTA).epsilon
    assert epsilon * (1 - 1e-11) <= claimed < epsilon * (1 + 1e-5)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("noise", "count", "rate"), SAMPLED)
def test_no_claim_about_samples_is_below_the_lower_bound(noise, count, rate, neighbours):
    event = record(noise, count, rate, neighbours)
    lower = sampled_bounds(noise, count, rate, DELTA, neighbours).lower
    assert lower > 0
    for name, claim in ACCOUNTANTS.items():
        assert claim(event, DELTA).epsilon >= lower, name


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_more_rounds_less_noise_and_a_smaller_delta_are_claimed_to_cost_more(rate):
    event = record(20.0, 50, rate)
    for name, claim in ACCOUNTANTS.items():
        spent = claim(event, DELTA).epsilon
        assert claim(replace(event, count=60), DELTA).epsilon > spent, name
        assert claim(replace(event, sigma=19.0), DELTA).epsilon > spent, name
        assert claim(event, DELTA / 2).epsilon > spent, name


# -------------------------------------------------------------------------------------------------
# every formula again


def advanced_by_hand(z, K, q, delta):
    """Dwork, Rothblum and Vadhan over amplified classic Gaussian releases, at the best of many
    shares; or basic composition."""
    share = np.linspace(1e-4, 1 - 1e-4, 20_000)
    step = np.sqrt(2 * np.log(1.25 * K * q / ((1 - share) * delta))) / z
    a = np.log(1 + q * (np.exp(step) - 1))
    advanced = np.sqrt(2 * K * np.log(1 / (share * delta))) * a + K * a * (np.exp(a) - 1)
    basic = np.sqrt(2 * np.log(1.25 * K * q / delta)) / z
    basic = K * np.log(1 + q * (np.exp(basic) - 1)) if basic < 1 else math.inf
    return min(np.min(np.where(step < 1, advanced, math.inf)), basic)


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("count", [1, 2, 100, 10_000])
@pytest.mark.parametrize("noise", [8.0, 30.0, 1000.0])
def test_advanced_composition_is_that_of_the_books(noise, count, rate):
    by_hand = advanced_by_hand(noise, count, rate, DELTA)
    claimed = advanced_composition(record(noise, count, rate), DELTA).epsilon
    assert claimed == pytest.approx(by_hand, rel=2e-3)


def test_advanced_composition_for_replace_one_has_twice_the_sensitivity():
    one = advanced_composition(record(16.0, 30, 0.1, "replace-one"), DELTA)
    assert one == advanced_composition(record(8.0, 30, 0.1), DELTA)


def test_the_classic_gaussian_mechanism_says_nothing_from_1_on():
    """One release for epsilon = 3.3: its theorem ends at epsilon' = 1, and so does its noise."""
    comparison = compare_accountants(epsilon=3.3, rounds=1, clip=3, neighbours="zero-out")
    row = row_of(comparison, "advanced composition")
    assert row.epsilon is None
    assert row.no_claim == "epsilon' = 3.79 is not below 1"
    assert row.sigma == pytest.approx(3 * math.sqrt(2 * math.log(1.25 / DELTA)), rel=2 * APART)
    assert "epsilon' < 1" in row.how


@pytest.mark.parametrize("epsilon", [0.5, 1, 3.3])
@pytest.mark.parametrize("rounds", [1, 100])
def test_zcdp_asks_for_the_noise_of_the_closed_form(epsilon, rounds):
    """sqrt(rho) = sqrt(ln(1/delta) + epsilon) - sqrt(ln(1/delta)), solved by hand."""
    comparison = compare_accountants(epsilon=epsilon, rounds=rounds)
    log = math.log(1 / DELTA)
    root = math.sqrt(log + epsilon) - math.sqrt(log)
    sigma = row_of(comparison, "zCDP, classic conversion").sigma
    assert sigma == pytest.approx(2 * math.sqrt(rounds / 2) / root, rel=2 * APART)


def test_rdp_is_alpha_over_2_sigma_squared():
    event, noise, count = client(12.0, 30, 3.0), 4.0, 30
    rdps = [(a, count * a / (2 * noise**2)) for a in ORDERS]
    classic = min(r + math.log(1 / DELTA) / (a - 1) for a, r in rdps)
    improved = min(r + math.log((a - 1) / a) - math.log(DELTA * a) / (a - 1) for a, r in rdps)
    assert rdp_classic(event, DELTA).epsilon == pytest.approx(classic, rel=1e-12)
    assert rdp(event, DELTA).epsilon == pytest.approx(improved, rel=1e-12)
    assert zcdp(event, DELTA).epsilon <= rdp_classic(event, DELTA).epsilon
    assert zcdp_improved(event, DELTA).epsilon == pytest.approx(improved, rel=1e-3)
    assert zcdp_improved(event, DELTA).epsilon <= improved


def test_improved_conversion_is_the_best_over_all_orders():
    rho = 30 / (2 * 4.0**2)
    alpha = np.linspace(1.001, 40, 1_000_000)
    epsilons = rho * alpha + np.log1p(-1 / alpha) - np.log(DELTA * alpha) / (alpha - 1)
    claimed = zcdp_improved(client(4.0, 30), DELTA).epsilon
    assert claimed == pytest.approx(epsilons.min(), rel=1e-6)


def test_rdp_of_a_sample_is_the_binomial_sum():
    """Mironov, Talwar and Zhang 2019, section 3.3, at whole orders: none of dp-accounting's orders
    in between gives less than 2 % below these."""
    z, q, count = 2.0, 0.05, 400
    rdps = []
    for a in range(2, 64):
        terms = [
            math.comb(a, k) * (1 - q) ** (a - k) * q**k * math.exp((k * k - k) / (2 * z * z))
            for k in range(a + 1)
        ]
        rdps.append((a, count * math.log(sum(terms)) / (a - 1)))
    classic = min(r + math.log(1 / DELTA) / (a - 1) for a, r in rdps)
    improved = min(r + math.log((a - 1) / a) - math.log(DELTA * a) / (a - 1) for a, r in rdps)
    assert 0.98 * classic <= rdp_classic(record(z, count, q), DELTA).epsilon <= classic * (1 + 1e-9)
    assert 0.98 * improved <= rdp(record(z, count, q), DELTA).epsilon <= improved * (1 + 1e-9)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:Optimal order")
@pytest.mark.parametrize(("noise", "count", "rate"), [(10.0, 100, 1.0), (1.2, 500, 0.02)])
def test_opacus_agrees(noise, count, rate):
    """Its RDP accountant, which ends its series earlier, and its PRV accountant from above, with
    the 0.01 that it allows itself on either side."""
    from opacus.accountants import PRVAccountant, RDPAccountant

    spent = {}
    for kind in (RDPAccountant, PRVAccountant):
        accountant = kind()
        accountant.history = [(noise, rate, count)]
        spent[kind] = accountant.get_epsilon(DELTA)
    event = record(noise, count, rate)
    assert rdp(event, DELTA).epsilon == pytest.approx(spent[RDPAccountant], rel=1e-6)
    bounds = event.bounds(DELTA)
    assert bounds.lower <= spent[PRVAccountant] <= bounds.upper + 0.03
    assert pld(event, DELTA).epsilon <= spent[PRVAccountant]


def test_samples_under_replace_one_count_for_those_who_can():
    event = record(1.0, 1000, 0.01, "replace-one")
    whole = replace(event, rate=1.0)
    for claim in (zcdp, zcdp_improved, rdp, rdp_classic):
        assert claim(event, DELTA).epsilon == claim(whole, DELTA).epsilon
        assert NOT_COUNTED in claim(event, DELTA).how
        assert NOT_COUNTED not in claim(whole, DELTA).how
    assert NOT_COUNTED not in rdp(record(1.0, 1000, 0.01), DELTA).how
    assert pld(event, DELTA).epsilon < rdp(event, DELTA).epsilon / 100


@pytest.mark.parametrize("rate", [1.0, 0.05])
@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_pld_is_what_dp_accounting_says_of_sigma_over_the_clip(neighbours, rate):
    """For replace-one it doubles the sensitivity by itself, with and without sampling."""
    relations = {
        "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace-one": NeighboringRelation.REPLACE_ONE,
    }
    one = PoissonSampledDpEvent(rate, GaussianDpEvent(5.0))
    direct = PLDAccountant(relations[neighbours]).compose(SelfComposedDpEvent(one, 40))
    event = record(5.0, 40, rate, neighbours)
    event = replace(event, sigma=5.0 * 7, sensitivity=event.sensitivity * 7)  # C = 7
    assert pld(event, DELTA).epsilon == pytest.approx(direct.get_epsilon(DELTA), rel=1e-4)


# -------------------------------------------------------------------------------------------------
# side by side


@pytest.mark.parametrize(
    ("epsilon", "mu", "classic", "improved"),
    [
        (3.3, 0.7819717670, 1.213, 1.073),
        (1, 0.2680511232, 1.314, 1.084),
        (0.5, 0.1422105587, 1.379, 1.090),
    ],
)
@pytest.mark.parametrize("rounds", [1, 100])
def test_known_ratios(epsilon, mu, classic, improved, rounds):
    """Balle and Wang's mu to ten digits; over it, ratios that do not depend on the rounds."""
    comparison = compare_accountants(epsilon=epsilon, rounds=rounds, clip=0.5)
    assert comparison.sigma == pytest.approx(math.sqrt(rounds) / mu, rel=1e-9)
    ratios = {row.accountant: row.ratio for row in comparison.rows}
    assert ratios["zCDP, classic conversion"] == pytest.approx(classic, abs=6e-4)
    assert ratios["RDP, classic conversion"] == pytest.approx(classic, abs=6e-4)
    assert ratios["zCDP, improved conversion"] == pytest.approx(improved, abs=6e-4)
    assert ratios["RDP, dp-accounting"] == pytest.approx(improved, abs=6e-4)
    assert 1 <= ratios["PLD, dp-accounting"] < 1 + 3 * APART
    assert ratios["exact (Gaussian DP)"] == 1
    if rounds == 100:
        assert 7.5 < ratios["advanced composition"] < 8.9


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        Job(100, 3.3),
        Job(40, 1.0, clip=7, rate=0.1, unit="record", neighbours="add-remove"),
        Job(40, 1.0, clip=7, rate=0.1, unit="record"),
    ],
    ids=["client", "add-remove", "replace-one"],
)
def test_the_noise_asked_for_is_the_least_that_is_enough(job):
    comparison = compare(job)
    assert comparison.rows[-1].epsilon <= job.epsilon
    assert comparison.rows[-1].sigma == comparison.sigma
    for row in comparison.rows[:-1]:
        claim = ACCOUNTANTS[row.accountant]
        event = replace(comparison.event, sigma=row.sigma)
        assert claim(event, job.delta).epsilon <= job.epsilon, row
        less = replace(event, sigma=row.sigma * (1 - 2 * APART))
        assert claim(less, job.delta).epsilon > job.epsilon, row
        assert row.ratio == row.sigma / comparison.sigma > 0.999
        assert row.epsilon is None or row.epsilon >= comparison.epsilon_lower


@pytest.mark.slow
def test_noise_instead_of_a_budget():
    asked = compare_accountants(epsilon=3.3, rounds=100)
    given = compare_accountants(sigma=asked.sigma, rounds=100)
    assert given.epsilon == pytest.approx(3.3, rel=1e-12)
    for row, other in zip(asked.rows, given.rows, strict=True):
        assert row.epsilon == pytest.approx(other.epsilon)
        assert row.sigma == pytest.approx(other.sigma, rel=3 * APART)


def test_what_an_accountant_cannot_say():
    tiny = row_of(compare_accountants(epsilon=0.003, rounds=10), "RDP, classic conversion")
    assert (tiny.sigma, tiny.how) == (None, "no noise is enough")
    huge = compare_accountants(sigma=0.05, rounds=3)
    assert huge.epsilon > MOST_EPSILON
    assert row_of(huge, "PLD, dp-accounting").epsilon is None
    assert all(row.sigma for row in huge.rows if "PLD" not in row.accountant)


def test_where_sampling_alone_is_enough_no_noise_is_asked_for():
    """10 samples at 1e-6 hold the record with probability 1e-5 at most: that is delta."""
    comparison = compare_accountants(epsilon=1, rounds=10, rate=1e-6, unit="record")
    row = row_of(comparison, "PLD, dp-accounting")
    assert (row.sigma, row.ratio, row.epsilon) == (0.0, 0.0, 0.0)
    assert row.how == "no noise is needed: the sample alone is enough"


def test_a_search_for_noise_ends_whatever_is_claimed():
    assert least_sigma(lambda sigma: 0.0, 1.0, 5.0) == 0.0
    assert least_sigma(lambda sigma: 2.0, 1.0, 5.0) is None
    assert 1.0 <= least_sigma(lambda sigma: 0.0, 1.0, 5.0, least=1.0) < 2.1
    found = least_sigma(lambda sigma: 3 / sigma, 1.0, 1e-30, scale=1.0)
    assert found == pytest.approx(3.0, rel=2 * APART)


@pytest.mark.parametrize("epsilon", [1e20, 1e100, 1e300])
def test_a_budget_that_promises_nothing_is_compared_all_the_same(epsilon):
    """The best order is so near to 1 that it is rounded to 1."""
    comparison = compare_accountants(epsilon=epsilon, rounds=1)
    improved = row_of(comparison, "zCDP, improved conversion")
    assert improved.epsilon == pytest.approx(epsilon, rel=1e-3)
    assert improved.sigma == pytest.approx(comparison.sigma, rel=1e-3)
    advanced = row_of(comparison, "advanced composition")
    assert advanced.sigma == pytest.approx(2 * math.sqrt(2 * math.log(1.25 / DELTA)), rel=1e-4)


def test_pld_is_computed_where_its_grid_is_small_enough():
    """At epsilon = 190 it took a minute and a half."""
    row = row_of(compare_accountants(epsilon=51, rounds=10), "PLD, dp-accounting")
    assert (row.sigma, row.epsilon, row.how) == (None, None, "not computed")
    assert row.no_claim == "epsilon is above 50, too far for its grid"


def test_a_delta_below_what_the_grid_leaves_out_is_the_reason_for_no_claim():
    claimed = pld(client(30.0, 2, 2.0), 1e-100)
    assert claimed.epsilon == math.inf
    assert claimed.how == "its grid leaves out rare losses, by more than delta = 1e-100"


@pytest.mark.parametrize(("rounds", "delta", "counted"), [(10**5, 1e-12, False), (10, 1e-5, True)])
def test_the_last_row_says_where_sampling_is_not_counted(rounds, delta, counted):
    """Where delta is at most what rounding may add to it: 2^-50 for each step."""
    event = record(1.0, rounds, 0.001)
    words = _own_words(event, event.bounds(delta), delta)
    assert (NOT_COUNTED not in words) == counted
    assert "the exact one is at least" in words


def test_dp_accounting_s_warnings_do_not_reach_the_user(caplog):
    """Orders that it leaves out are its own business."""
    event = record(2.0, 1, 0.5)
    logger = logging.getLogger("absl")
    level = logger.level
    assert rdp(event, DELTA).epsilon < 2
    assert rdp_classic(event, DELTA).epsilon < 2
    assert caplog.records == []
    assert logger.level == level
    with quiet_library():
        absl_logging.warning("nobody reads this")
    assert caplog.records == []


def test_a_job_is_accounted_for_as_a_run_is():
    exact = Job(16, sigma=15.95, neighbours="zero-out").account()
    assert exact.epsilon == epsilon_spent(15.95, 16, 1.0, DELTA)
    assert exact.mu == pytest.approx(4 / 15.95)
    for neighbours in ("replace-one", "add-remove"):
        job = Job(200, 2.0, clip=0.3, rate=0.05, unit="record", neighbours=neighbours)
        account = job.account()
        assert 1.98 < account.epsilon <= 2.0
        assert 1.95 < account.epsilon_lower <= account.epsilon
        assert account.mu is None
        same = sampled_bounds(account.sigma / 0.3, 200, 0.05, DELTA, neighbours).upper
        assert same == pytest.approx(account.epsilon, rel=1e-9)


def test_the_public_name():
    comparison = equipoise.compare_accountants(epsilon=2, rounds=4)
    assert comparison.rows[-1].accountant == "exact (Gaussian DP)"
    assert type(comparison).model_validate_json(comparison.model_dump_json()) == comparison


# -------------------------------------------------------------------------------------------------
# the figure


@pytest.mark.slow
def test_a_figure_has_a_line_for_each_accountant_and_marks_the_job(tmp_path):
    comparison = compare_accountants(epsilon=3.3, rounds=20)
    lines = epsilons_by_rounds(comparison, [1, 20, 200])
    assert dict(lines["exact (Gaussian DP)"])[20] == pytest.approx(3.3)
    assert all(
        dict(lines[row.accountant])[20] == row.epsilon for row in comparison.rows if row.epsilon
    )
    with styled():
        figure = accountants(comparison)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [*(row.accountant for row in comparison.rows), "the job"]
    (ring,) = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (20, pytest.approx(3.3))
    assert {*LOOK} == {*ACCOUNTANTS}


def test_rounds_of_a_figure():
    assert round_numbers(10) == [1, 2, 3, 5, 7, 10]
    assert round_numbers(40) == [1, 2, 3, 5, 7, 10, 20, 30, 40]


# -------------------------------------------------------------------------------------------------
# the command


def told(capsys, line):
    return run_command(capsys, "account", *line.split())


def test_the_command_prints_both_relations_of_a_unit(capsys):
    code, out, _ = told(capsys, "--sigma 25.6 --rounds 100")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["replace-one", "2", "25.6", "0.7812", "3.297"] in lines
    assert ["zero-out", "1", "25.6", "0.3906", "1.515"] in lines
    _, out, _ = told(capsys, "--sigma 1 --rounds 1000 --unit record --rate 0.01 --json")
    document = json.loads(out)
    replaced, removed = document["accounts"]
    assert (replaced["neighbours"], removed["neighbours"]) == ("replace-one", "add-remove")
    assert replaced["mu"] is None
    assert replaced["exact"] is False
    assert removed["epsilon_lower"] < removed["epsilon"] < replaced["epsilon_lower"]


def test_weak_promises_are_called_so(capsys):
    _, out, _ = told(capsys, "--sigma 0.2 --rounds 3 --neighbours zero-out")
    assert out.startswith("zero-out: NOT PRIVATE")
    assert "replace-one" not in out
    _, out, _ = told(capsys, "--sigma 1 --rounds 2")
    assert out.startswith("replace-one: WEAK")


@pytest.mark.slow
def test_the_command_compares(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    picture = tmp_path / "accountants.png"
    code, out, _ = told(capsys, f"--epsilon 3.3 --rounds 1 --compare --figure {picture}")
    assert code == 0
    assert picture.stat().st_size > 10_000
    assert "sigma for epsilon = 3.3" in out
    assert "no claim by advanced composition at sigma = 2.558: epsilon' = 3.79" in out
    _, out, _ = told(capsys, "--epsilon 3.3 --rounds 1 --compare --json")
    document = json.loads(out)
    assert document["neighbours"] == "replace-one"
    assert [row["accountant"] for row in document["rows"][:-1]] == [*ACCOUNTANTS]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--rounds 2", "epsilon and sigma are missing: give the budget or the noise"),
        ("--rounds 2 --epsilon 1 --sigma 3", "epsilon=1.0 and sigma=3.0 are both given"),
        ("--rounds 0 --sigma 1", "rounds=0 is not a number of rounds"),
        ("--rounds 2.5 --sigma 1", "rounds=2.5 is not a number of rounds"),
        ("--rounds nan --sigma 1", "rounds=nan is not a number of rounds"),
        ("--sigma 1", "--rounds needs a value"),
        ("--rounds 2 --sigma 1 --unit record --rate 0", "rate=0.0 is not in (0, 1]"),
        ("--rounds 2 --sigma 1 --unit record --rate 1.5", "rate=1.5 is not in (0, 1]"),
        ("--rounds 2 --sigma 1 --rate 0.5", "rate=0.5 with unit=client"),
        ("--rounds 2 --sigma 0", "sigma=0.0 is not a finite number > 0"),
        ("--rounds 2 --sigma nan", "sigma=nan is not a finite number > 0"),
        ("--rounds 2 --epsilon 0", "epsilon=0.0 is not > 0"),
        ("--rounds 2 --epsilon inf", "epsilon=inf asks for no noise"),
        ("--rounds 2 --epsilon 1 --delta 1", "delta=1.0 is not in (0, 1)"),
        ("--rounds 2 --epsilon 1 --clip inf", "clip=inf is not a finite number > 0"),
        ("--rounds 2 --epsilon 1 --neighbours add-remove", "neighbours=add-remove has no meaning"),
        ("--rounds 2 --sigma 1e9 --delta 0.5 --compare", "nothing to compare; give less noise"),
        ("--rounds 2 --sigma 1e-200 --compare", "nothing to compare; give more noise"),
        ("--rounds 2 --sigma 1 --figure a.png", "figure=a.png shows a comparison"),
        ("--rounds 2 --sigma 1 --compare --figure a.pdf", "must end with .png, or .svg"),
        ("--rounds 2 --sigma 1 --compare --figure no/a.png", "there is no folder no; make it"),
    ],
)
def test_mistakes_are_one_sentence(capsys, line, sentence):
    code, out, err = told(capsys, line)
    assert (code, out) == (2, "")
    assert sentence in err.replace("\n", " ")
    assert "Traceback" not in err


def test_without_dp_accounting(capsys, monkeypatch):
    """What is exact needs nothing; the rest names the extra."""
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert told(capsys, "--sigma 25.6 --rounds 100")[0] == 0
    code, _, err = told(capsys, "--sigma 25.6 --rounds 100 --compare")
    assert code == 2
    assert "a comparison of accountants needs dp-accounting" in err
    code, _, err = told(capsys, "--sigma 2 --rounds 100 --unit record --rate 0.1")
    assert code == 2
    assert "rate=0.1 needs dp-accounting: pip install 'equipoise[record]', or leave rate out" in err
    with pytest.raises(InvalidValue, match=r"equipoise\[record\]"):
        compare_accountants(epsilon=1, rounds=2)
