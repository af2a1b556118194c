"""Audits: what they prove is proved, they come close to what is claimed, and they find bugs."""

import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

import equipoise
from equipoise.algorithms.schedule import schedule_of
from equipoise.auditing import audit as audits
from equipoise.auditing.bounds import (
    allows_guesses,
    at_most,
    epsilon_of_errors_sampled,
    epsilon_of_guesses,
    epsilon_of_guesses_sharply,
    epsilon_of_mu,
    epsilon_of_rates,
    guesses_by_chance,
    mu_of_errors,
    mu_of_guesses,
)
from equipoise.auditing.canaries import canaries_of
from equipoise.auditing.many_runs import balanced, noise_of_audit
from equipoise.auditing.one_run import _arena, _scores
from equipoise.errors import EquipoiseError, InvalidValue
from equipoise.privacy import clip as clips
from equipoise.privacy import noisy_gradient
from equipoise.privacy.gaussian import gdp_mu
from equipoise.privacy.noise import RepeatableNoise
from equipoise.privacy.noisy_gradient import NoisyGradient
from equipoise.privacy.sampled import sampled_epsilon
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.linear import LinearClients
from problems import run_command

DELTA = 1e-5
SURE = 1 - 1e-4  # a bound at this confidence exceeds the truth once in ten thousand audits
CLIENT = {"task": "breast-cancer", "clip": 1.0, "iterations": 8, "local_steps": 2}
RECORD = {**CLIENT, "clip": 0.4, "unit": "record"}
SUMS = {"trust": "secure-aggregation"}
SCAFFNEW = {"algorithm": "dp-scaffnew"}
SAMPLED = {**RECORD, "sampling_rate": 0.25}


def audited(**settings):
    """With fixed seeds, so that a test that passes passes always."""
    values = {"epsilon": 4, "runs": 40_000, "confidence": SURE, "simulate_noise_seed": 0}
    return equipoise.audit(**{**values, **settings})


# ---- bounds ----


def test_clopper_and_pearson():
    for successes, trials in ((0, 10), (3, 10), (500, 1000)):
        assert binom.cdf(successes, trials, at_most(successes, trials, 0.05)) == pytest.approx(0.05)
    assert at_most(10, 10, 0.05) == 1


def test_errors_of_a_gaussian_prove_its_mu():
    """The best attack errs with probability Phi(-mu / 2)."""
    trials = 10**7
    wrong = round(trials * norm.cdf(-0.5))
    assert 0.995 < mu_of_errors(wrong, trials, 0.05) < 1.0
    assert mu_of_errors(trials // 2, trials, 0.05) == 0
    assert epsilon_of_mu(gdp_mu(2, DELTA), DELTA) == pytest.approx(2, rel=1e-9)


@pytest.mark.parametrize("mu", [0.25, 1.0])
def test_a_bound_at_95_percent_is_wrong_in_one_of_twenty_cases(mu):
    rng = np.random.default_rng(0)
    wrong = rng.binomial(2000, norm.cdf(-mu / 2), 2000)
    too_large = np.mean([mu_of_errors(int(w), 2000, 0.05) > mu for w in wrong])
    assert 0.03 < too_large < 0.06


def test_rates_of_randomised_response_prove_its_epsilon():
    """ln 3, with right answers in three of four cases."""
    bound = epsilon_of_rates(2500, 10_000, 2500, 10_000, 0.0, 0.05)
    assert 0.9 * math.log(3) < bound < math.log(3)
    assert epsilon_of_rates(5000, 10_000, 5000, 10_000, 0.0, 0.05) == 0
    assert epsilon_of_rates(0, 10_000, 10_000, 10_000, 0.0, 0.05) == 0
    assert epsilon_of_rates(0, 10_000, 0, 10_000, 0.0, 0.05) == pytest.approx(7.9, abs=0.2)


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
def test_of_sampled_steps_the_noise_is_found(neighbours):
    """From their exact total variation, integrated for one step."""
    q, noise, trials = 0.3, 1.5, 10**8
    x = np.linspace(-12, 12, 200_001)
    one, other, none = (norm.pdf(x, centre, noise) for centre in (1, -1, 0))
    away = other if neighbours == "replace-one" else none
    tv = float(np.sum(q * np.abs(one - away)) / 2 * (x[1] - x[0]))
    wrong = round(trials * (1 - tv) / 2)
    bound = epsilon_of_errors_sampled(wrong, trials, 0.05, 1, q, neighbours, DELTA)
    truth = sampled_epsilon(noise, 1, q, DELTA, neighbours)
    assert 0.97 * truth < bound <= truth


# ---- one run: Theorem 5.2 of Steinke et al., and its refinement ----


def chance_by_hand(m, guesses, correct, epsilon, delta):
    """The theorem, term by term."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    p = [math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(guesses + 1)]
    alpha = max(2 / i * sum(p[max(0, correct - i) : correct]) for i in range(1, m + 1))
    return min(1, sum(p[correct:]) + alpha * m * delta)


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_the_theorem_about_guesses(epsilon, delta):
    for m, guesses in ((1, 1), (5, 3), (12, 12)):
        for correct in range(1, guesses + 1):
            expected = chance_by_hand(m, guesses, correct, epsilon, delta)
            found = guesses_by_chance(m, guesses, correct, epsilon, delta)
            assert found == pytest.approx(expected, rel=1e-12)


def tail_of_guesses(m, right, correct):
    """How often at least so many guesses are right, of m canaries each answered by a coin."""
    total = 0.0
    for answers in product((False, True), repeat=m):
        if sum(answers) >= correct:
            total += math.prod(right if answer else 1 - right for answer in answers)
    return total


@pytest.mark.parametrize("epsilon", [0.5, 1.5])
@pytest.mark.parametrize("m", [1, 4, 8])
def test_what_can_happen_is_not_excluded(epsilon, m):
    """Randomised response for each canary: no bound may call its own tail impossible; and of one
    canary both are exact."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))

    def inverse(y):
        return max(0.0, y * math.exp(-epsilon), 1 - math.exp(epsilon) * (1 - y))

    for correct in range(1, m + 1):
        truth = tail_of_guesses(m, q, correct)
        assert guesses_by_chance(m, m, correct, epsilon, 0.0) == pytest.approx(truth)
        assert allows_guesses(inverse, m, m, correct, truth * (1 - 1e-9))
    assert not allows_guesses(inverse, m, m, m, min(1.0, 1.01 * q))


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_nor_is_what_a_gaussian_does(mu):
    """Independent Gaussian canaries, of which one half is guessed: the tails that were drawn."""
    m, guesses, rng = 40, 20, np.random.default_rng(1)
    there = rng.integers(0, 2, (4000, m)) == 1
    order = np.argsort(rng.standard_normal((4000, m)) + mu * there, axis=1)
    ranked = np.take_along_axis(there, order, axis=1)
    right = ranked[:, -guesses // 2 :].sum(1) + (~ranked[:, : guesses // 2]).sum(1)
    for correct in range(12, 20):
        seen = np.mean(right >= correct)
        slack = 4 * math.sqrt(seen / 4000)
        if seen > slack:
            assert allows_guesses(
                lambda y: norm.cdf(norm.ppf(y) - mu), m, guesses, correct, seen - slack
            )


@pytest.mark.parametrize("bound", [epsilon_of_guesses, epsilon_of_guesses_sharply])
def test_randomised_response_is_bounded_by_its_epsilon_and_closely(bound):
    """1000 canaries, each answered with the truth by randomised response at epsilon = 1: the bound
    exceeds 1 in 5 % of cases at most, and is close."""
    m, epsilon, rng = 1000, 1.0, np.random.default_rng(2)
    right = rng.binomial(m, math.exp(epsilon) / (1 + math.exp(epsilon)), 400)
    found = {int(c): bound(m, m, int(c), 0.0, 0.05) for c in set(right)}
    bounds = [found[int(c)] for c in right]
    assert np.mean([each > epsilon for each in bounds]) <= 0.08
    assert np.median(bounds) > 0.85


def test_delta_weakens_what_guesses_prove():
    for bound in (epsilon_of_guesses, epsilon_of_guesses_sharply):
        bounds = [bound(100, 100, 90, delta, 0.05) for delta in (0.0, 1e-4, 1e-2)]
        assert bounds == sorted(bounds, reverse=True)
        assert bounds[0] > bounds[2]


def test_guesses_on_gaussian_canaries_prove_most_of_mu():
    """mu = 1, the surest 500 of 10^4 canaries: the mean of what independent Gaussians give."""
    rng = np.random.default_rng(3)
    there = rng.integers(0, 2, 10_000) == 1
    ranked = there[np.argsort(rng.standard_normal(10_000) + there)]
    right = int(ranked[-250:].sum() + (~ranked[:250]).sum())
    assert 0.6 < mu_of_guesses(10_000, 500, right, 0.05) < 1
    assert mu_of_guesses(10_000, 500, 250, 0.05) == 0


def test_the_threshold_that_errs_least():
    score, world = np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True])
    threshold, wrong = balanced(score, world)
    assert wrong == 0.25
    assert 0.1 < threshold < 0.35 or 0.4 < threshold < 0.8


# ---- many runs: close to the claim, and not above it ----

CASES = {
    "client": CLIENT,
    "client, epsilon 1": {**CLIENT, "epsilon": 1, "runs": 400_000},
    "client, variates": {**CLIENT, **SCAFFNEW},
    "client, variates, coin": {
        **CLIENT,
        **SCAFFNEW,
        "local_steps": None,
        "schedule": "coin",
        "p": 0.5,
    },
    "client, zero-out": {**CLIENT, **SCAFFNEW, "neighbours": "zero-out"},
    "client, sums": {**CLIENT, **SUMS},
    "client, sums, variates": {**CLIENT, **SUMS, **SCAFFNEW},
    "client, error feedback": {**CLIENT, "algorithm": "clip21-sgd2m", "feedback": "released"},
    "record": RECORD,
    "record, variates": {**RECORD, **SCAFFNEW},
    "record, add-remove": {**RECORD, "neighbours": "add-remove"},
    "record, message": {**RECORD, "noise_in": "message"},
    "record, message, sums": {**RECORD, "noise_in": "message", **SUMS},
    "record, hidden": {**RECORD, "noise_in": "hidden-gradient"},
}


SLOW = {"client, epsilon 1": [pytest.mark.slow]}  # a small mu takes many runs


@pytest.mark.parametrize(
    "settings",
    [pytest.param(each, marks=SLOW.get(name, []), id=name) for name, each in CASES.items()],
)
def test_an_audit_comes_close_to_the_claim(settings):
    found = audited(**settings)
    assert found.verdict == "holds"
    assert found.claim == pytest.approx(settings.get("epsilon", 4), rel=1e-3)
    assert 0.85 < found.ratio <= 1
    assert found.mu < found.claimed_mu


@pytest.mark.slow
@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
def test_an_audit_of_secret_samples_comes_close(neighbours):
    found = audited(**SAMPLED, neighbours=neighbours, runs=100_000)
    assert found.verdict == "holds"
    assert 0.8 < found.ratio <= 1
    assert found.mu is None


PERSONS = {"unit": "person", "clip": 0.4, "iterations": 8, "local_steps": 2}


def persons():
    return equipoise.own_task(
        torch.nn.Linear(4, 2),
        [(torch.randn(9, 4), torch.zeros(9, dtype=torch.long))] * 2,
        torch.nn.functional.cross_entropy,
        equipoise.accuracy,
        persons=[[0, 0, 0, 1, 2, 3, 4, 4, 4]] * 2,
    )


def test_a_person_counts_once_whatever_rows_it_has():
    assert 0.85 < audited(**PERSONS, task=persons()).ratio <= 1


# ---- planted bugs ----


def patched_noise(monkeypatch, change):
    """All noise on the lattice passes through `change(noised, without noise)`."""
    real = clips.on_lattice

    def on_lattice(sent, drawn, lattice):
        silent = real(sent, None if drawn is None else torch.zeros_like(drawn), lattice)
        return change(real(sent, drawn, lattice), silent)

    for module in (clips, noisy_gradient):
        monkeypatch.setattr(module, "on_lattice", on_lattice)


def halved(noised, silent):
    return silent + (noised - silent) / 2


def without_the_last(noised, silent):
    noised = noised.clone()
    noised[..., -1] = silent[..., -1]
    return noised


def twice_the_clip(noised, silent):
    return noised + silent


def the_same_in_all_coordinates(noised, silent):
    return silent + (noised - silent)[..., :1]


BOTH = {
    "client": CLIENT,
    "variates": {**CLIENT, **SCAFFNEW},
    "sums": {**CLIENT, **SUMS},
    "record": RECORD,
}


@pytest.mark.parametrize("settings", BOTH.values(), ids=BOTH)
@pytest.mark.parametrize(
    "bug",
    [halved, without_the_last, twice_the_clip, the_same_in_all_coordinates],
    ids=lambda f: f.__name__,
)
def test_planted_bugs_break_the_claim(monkeypatch, bug, settings):
    patched_noise(monkeypatch, bug)
    with pytest.raises(audits.BrokenClaim, match="VIOLATION: epsilon is at least") as broken:
        audited(**settings, runs=20_000)
    assert isinstance(broken.value, EquipoiseError)
    assert broken.value.audit.verdict == "broken"
    assert broken.value.audit.epsilon > 1.5 * broken.value.audit.claim


@pytest.mark.parametrize("settings", [CLIENT, RECORD], ids=["client", "record"])
def test_noise_that_is_used_twice_breaks_the_claim(monkeypatch, settings):
    """In every second round that of the one before."""
    real, kept = RepeatableNoise.whole, {}

    def whole(self, law, round, shape, scale):
        if round % 2:
            kept["noise"] = real(self, law, round, shape, scale)
        return kept["noise"]

    monkeypatch.setattr(RepeatableNoise, "whole", whole)
    with pytest.raises(audits.BrokenClaim):
        audited(**settings, runs=20_000)


def test_rows_of_a_person_that_are_clipped_one_by_one_break_the_claim(monkeypatch):
    monkeypatch.setattr(LinearClients, "of_persons", lambda clients, most: clients)
    with pytest.raises(audits.BrokenClaim) as broken:
        audited(**PERSONS, task=persons())
    proved = broken.value.audit
    assert proved.mu == pytest.approx(3 * proved.claimed_mu, rel=0.1)


@pytest.mark.parametrize("settings", BOTH.values(), ids=BOTH)
def test_noise_that_clients_share_breaks_the_claim(monkeypatch, settings):
    """A message of another client, or what a colluder knows, then tells what to subtract."""
    patched_noise(monkeypatch, lambda noised, silent: silent + (noised - silent)[..., :1, :])
    with pytest.raises(audits.BrokenClaim):
        audited(**settings, runs=20_000)


def half_of_the_last(noised, silent):
    """Everybody's noise is half that of the last client, and as loud as it should be."""
    added = noised - silent
    shared = (added + added[..., -1:, :]) / math.sqrt(2)
    return silent + torch.cat([shared[..., :-1, :], added[..., -1:, :]], -2)


@pytest.mark.parametrize("settings", BOTH.values(), ids=BOTH)
def test_noise_that_clients_share_by_half_breaks_the_claim(monkeypatch, settings):
    patched_noise(monkeypatch, half_of_the_last)
    with pytest.raises(audits.BrokenClaim):
        audited(**settings, runs=20_000)


@pytest.mark.parametrize("settings", [CLIENT, RECORD], ids=["client", "record"])
def test_noise_in_every_second_round_alone_breaks_the_claim(monkeypatch, settings):
    real = RepeatableNoise.whole

    def whole(self, law, round, shape, scale):
        return real(self, law, round, shape, scale) * (round % 2)

    monkeypatch.setattr(RepeatableNoise, "whole", whole)
    with pytest.raises(audits.BrokenClaim):
        audited(**settings, runs=20_000)


@pytest.mark.parametrize(
    "length",
    [
        lambda update: update.abs().amax(-1, keepdim=True),
        lambda update: update[..., :-1].norm(dim=-1, keepdim=True),
    ],
    ids=["largest entry", "all but the last"],
)
def test_a_clip_of_another_norm_breaks_the_claim(monkeypatch, length):
    def clip(update, C):
        return update * (C / length(update.double())).clamp(max=1)

    monkeypatch.setattr(clips, "clip", clip)
    with pytest.raises(audits.BrokenClaim):
        audited(**CLIENT, runs=20_000)


def test_a_share_of_a_message_that_is_forgotten_breaks_the_claim(monkeypatch):
    """A client with few records moves sums as little as one with many only by its small share."""
    settings = {**RECORD, **SUMS, "noise_in": "message", "runs": 20_000}
    assert audited(**settings).ratio > 0.85
    monkeypatch.setattr(clips, "part_of", lambda update, share: update)
    with pytest.raises(audits.BrokenClaim) as broken:
        audited(**settings)
    assert broken.value.audit.epsilon > 1.5 * broken.value.audit.claim


@pytest.mark.slow
def test_samples_at_twice_the_rate_break_the_claim(monkeypatch):
    real = NoisyGradient._sample

    def sample(self, x, t):
        return real(replace(self, rates=tuple(2 * rate for rate in self.rates)), x, t)

    monkeypatch.setattr(NoisyGradient, "_sample", sample)
    with pytest.raises(audits.BrokenClaim):
        audited(**SAMPLED, runs=20_000)


def test_samples_that_are_not_secret_break_the_claim(monkeypatch):
    """Coins from a public generator: who is in which sample is the same in every run."""

    def sample(self, x, t):
        coins = torch.rand(max(self.clients.sizes), generator=torch.Generator().manual_seed(t))
        return (coins < self.rates[0]).expand(*x.shape[:-1], -1)

    monkeypatch.setattr(NoisyGradient, "_sample", sample)
    with pytest.raises(audits.BrokenClaim):
        audited(**SAMPLED)


# ---- one run ----

DIGITS = {"task": "digits", "canaries": 400, "iterations": 8, "local_steps": 2, "clip": 1}
ONE_RUN = {
    "client": DIGITS,
    "client, variates, zero-out": {**DIGITS, **SCAFFNEW, "neighbours": "zero-out"},
    "client, sums": {**DIGITS, **SUMS},
    "record": {**DIGITS, "unit": "record", "clip": 0.4, "clients": 5},
    "record, variates, add-remove": {
        **DIGITS,
        **SCAFFNEW,
        "unit": "record",
        "clip": 0.4,
        "clients": 5,
        "neighbours": "add-remove",
    },
    "record, sampled": {
        **DIGITS,
        "unit": "record",
        "clip": 0.4,
        "clients": 5,
        "sampling_rate": 0.2,
    },
    "network, record": {
        **DIGITS,
        "task": "digits-mlp",
        "unit": "record",
        "clip": 0.4,
        "clients": 5,
    },
    "network, client": {**DIGITS, "task": "digits-mlp", "clients": 5},
}


@pytest.mark.parametrize("settings", ONE_RUN.values(), ids=ONE_RUN)
def test_one_run_with_canaries(settings):
    found = audited(**settings, epsilon=8, runs=None)
    assert found.verdict == "holds"
    assert 0.1 < found.ratio <= 1
    assert found.trials == 400


@pytest.mark.parametrize("name", [name for name in ONE_RUN if "sampled" not in name])
def test_a_canary_s_score_has_the_mu_of_the_account(name):
    """What the adversary makes of a run is as far apart as the account says, in noise of one."""
    values = {name: value for name, value in ONE_RUN[name].items() if name != "canaries"}
    settings = equipoise.Settings.of(**values, epsilon=8, simulate_noise_seed=0)
    task = load_task(settings.task, TaskOptions.of(settings))
    coins = np.random.default_rng(0)
    canaries = canaries_of(600, task.dimension, settings.promise.over_clip, coins)
    arena = _arena(settings, task, canaries)
    scores = _scores(arena, schedule_of(arena.run), noise_of_audit(0))
    ones, zeros = (scores[canaries.sides.numpy() == side] for side in (1, canaries.sides.min()))
    spread = math.sqrt((ones.var() + zeros.var()) / 2)
    mu = (ones.mean() - zeros.mean()) / spread
    assert mu == pytest.approx(arena.account.mu, abs=4 * math.sqrt(4 / 600 + mu**2 / 1200))


@pytest.mark.parametrize("name", ["client", "client, sums", "record"])
def test_one_run_finds_noise_that_is_far_too_small(monkeypatch, name):
    patched_noise(monkeypatch, lambda noised, silent: silent + (noised - silent) / 10)
    with pytest.raises(audits.BrokenClaim):
        audited(**ONE_RUN[name], epsilon=2, runs=None)


# ---- what users meet ----


def test_the_command(capsys):
    words = "--task breast-cancer --epsilon 4 --clip 1 --iterations 8 --runs 4000"
    code, out, _ = run_command(capsys, "audit", *words.split(), "--simulate-noise-seed", "1")
    assert code == 0
    assert "bound       epsilon >= " in out
    assert "claim       epsilon <= 4 at delta = 1e-05" in out
    code, out, _ = run_command(capsys, "audit", *words.split(), "--json")
    document = json.loads(out)
    assert code == 0
    assert document["claim"] == pytest.approx(4)
    assert document["how"] == "many runs"
    assert document["ratio"] == document["epsilon"] / document["claim"]


def test_a_broken_claim_is_loud(capsys, monkeypatch):
    patched_noise(monkeypatch, halved)
    words = "--task breast-cancer --epsilon 4 --clip 1 --iterations 8 --runs 4000"
    code, out, err = run_command(capsys, "audit", *words.split())
    assert code == 1
    assert "VIOLATION" in err
    assert "verdict     broken" in out
    code, out, err = run_command(capsys, "audit", *words.split(), "--json")
    assert code == 1
    assert json.loads(out)["verdict"] == "broken"
    assert "VIOLATION" in err


def test_an_audit_can_be_repeated_and_told():
    found, again = (audited(**CLIENT, runs=2000) for _ in range(2))
    assert found == again
    assert f"found epsilon >= {found.epsilon:.4g} at delta = 1e-05" in found.sentence


def test_in_doubt_is_neither():
    """A bound above the claim that would not be with more confidence is no proof."""
    held = audits._held_against(1.0, lambda alpha: {"made up": 1.1 if alpha > 1e-3 else 0.9}, 0.95)
    assert (held["epsilon"], held["surely"]) == (1.1, 0.9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": math.inf}, "epsilon=inf promises nothing"),
        ({"runs": 10}, "runs=10 is not >= 400"),
        ({"confidence": 1.0}, r"confidence=1.0 is not in \(0, 1\)"),
        ({"runs": 500, "canaries": 5}, "give one of the two"),
        ({"runs": None, "canaries": 0}, "canaries=0 with a model of 31 numbers"),
        ({"runs": None, "canaries": 9, "colluding": 25, **SUMS}, "lower colluding"),
        ({"runs": None, "canaries": 32}, "give from 2 to 31"),
    ],
)
def test_what_cannot_be_audited_is_refused(changes, words):
    with pytest.raises(InvalidValue, match=words):
        audited(**{**CLIENT, **changes})


def test_canaries_among_private_records_are_refused(clinic):
    with pytest.raises(InvalidValue, match="its records are private"):
        equipoise.audit(**{**clinic, "epsilon": 2}, clip=1, canaries=3)


def test_no_private_record_is_read(clinic, tmp_path):
    """Of tables only their number counts."""
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("")
    found = equipoise.audit(**{**clinic, "epsilon": 4}, clip=1, iterations=4, runs=4000)
    assert found.verdict == "holds"
