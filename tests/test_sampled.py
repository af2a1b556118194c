"""Secret samples: two bounds of epsilon around the exact one, noise that spends its budget, and a
sigma for every client."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import brentq

from equipoise import accuracy, own_task, train
from equipoise.engine import noise_of
from equipoise.errors import InvalidValue
from equipoise.facts import Facts
from equipoise.privacy import sampled
from equipoise.privacy.gaussian import epsilon_spent, noise_sigma
from equipoise.privacy.noise import SimulatedNoise
from equipoise.privacy.sampled import (
    TOLERANCE,
    Sampled,
    sampled_bounds,
    sampled_epsilon,
    sampled_noise,
)
from equipoise.privacy.statement import statement
from equipoise.privacy.statement.rounding import at_least, at_most
from equipoise.result import Result
from equipoise.settings import Settings
from equipoise.tasks import TaskOptions
from equipoise.tasks.linear import LOGISTIC, linear_task
from equipoise.tasks.task import Table
from equipoise.training import account_of

OVER_CLIP = {"replace-one": 2.0, "add-remove": 1.0}


def composed(noise, steps, rate, delta, neighbours, grid):
    """An upper bound by dp-accounting alone."""
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
    )
    from dp_accounting.pld import PLDAccountant

    names = {"replace-one": "REPLACE_ONE", "add-remove": "ADD_OR_REMOVE_ONE"}
    accountant = PLDAccountant(getattr(NeighboringRelation, names[neighbours]), grid)
    step = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    return accountant.compose(SelfComposedDpEvent(step, steps)).get_epsilon(delta)


# -------------------------------------------------------------------------------------------------
# the budget is spent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "steps", "rate", "neighbours", "grid"),
    [
        (0.1, 100_000, 0.01, "replace-one", 2e-6),
        (0.1, 10_000, 0.1, "add-remove", 5e-6),
        (0.05, 20_000, 0.03, "replace-one", 2e-6),
        (0.3, 300_000, 0.002, "replace-one", 2e-6),
        (1.0, 100_000, 0.02, "add-remove", 1e-5),
    ],
)
def test_small_budgets_of_many_steps_are_spent(epsilon, steps, rate, neighbours, grid):
    """On one grid for all budgets, half of such a budget was wasted."""
    noise = sampled_noise(epsilon, 1e-5, steps, rate, neighbours)
    bounds = sampled_bounds(noise, steps, rate, 1e-5, neighbours)
    assert bounds.upper <= epsilon
    assert bounds.lower >= 0.97 * epsilon
    assert composed(noise, steps, rate, 1e-5, neighbours, grid) >= 0.995 * epsilon


# -------------------------------------------------------------------------------------------------
# the exact epsilon lies between the bounds


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize("steps", [1, 40, 1000, 50_000])
@pytest.mark.parametrize("epsilon", [0.2, 3.0])
def test_bounds_hold_where_epsilon_is_known(epsilon, steps, neighbours):
    """Without sampling it is: on every grid, however coarse, it lies between them."""
    noise = noise_sigma(epsilon, 1e-5, steps, OVER_CLIP[neighbours])
    exact = epsilon_spent(noise, steps, OVER_CLIP[neighbours], 1e-5)
    what = Sampled(noise, steps, 1.0, neighbours)
    fine = sampled.grid_of(what, exact, 1e-5)
    for grid in (fine, 4 * fine, 16 * fine):
        lower, upper = (bound(what, 1e-5, grid) for bound in (sampled._lower, sampled._upper))
        assert lower <= exact <= upper
    assert sampled._upper(what, 1e-5, fine) - sampled._lower(what, 1e-5, fine) < 0.012 * exact


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.5, 2.0), (0.9, 1.5), (0.02, 0.6)])
def test_bounds_hold_for_one_sampled_step(rate, noise, delta):
    """The worst pair, (1-q) N(0) + q N(C) against (1-q) N(0) + q N(-C), integrated."""
    y = np.linspace(-20, 20, 400_001)
    one, other = (
        (1 - rate) * stats.norm.pdf(y, 0, noise) + rate * stats.norm.pdf(y, at, noise)
        for at in (1.0, -1.0)
    )
    low, high = 0.0, 30.0
    for _ in range(60):
        epsilon = (low + high) / 2
        too_much = np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0), y) > delta
        low, high = (epsilon, high) if too_much else (low, epsilon)
    bounds = sampled_bounds(noise, 1, rate, delta, "replace-one")
    assert bounds.lower - 1e-9 <= high <= bounds.upper + 1e-9
    assert bounds.upper - bounds.lower <= 2 * TOLERANCE * bounds.upper


@pytest.mark.parametrize("delta", [1e-15, 2e-15, 3e-15, 1e-14])
@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.3, 3.0)])
def test_bounds_hold_where_delta_is_as_small_as_what_is_cut_off(rate, noise, delta):
    """One step under add-remove in closed form: (1-q) N(0) + q N(1) is above e^epsilon N(0) from
    one point on."""

    def exceeded(epsilon):
        x = noise**2 * math.log((math.expm1(epsilon) + rate) / rate) + 0.5
        with_record = rate * stats.norm.sf(x, 1, noise)
        return with_record - (math.expm1(epsilon) + rate) * stats.norm.sf(x, 0, noise)

    exact = brentq(lambda epsilon: exceeded(epsilon) / delta - 1, 0.01, 30.0, xtol=1e-9)
    bounds = sampled_bounds(noise, 1, rate, delta, "add-remove")
    assert 0.9 * exact < bounds.lower <= exact <= bounds.upper


@pytest.mark.slow
@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize(
    ("noise", "steps", "rate"), [(0.8, 30, 0.2), (2.0, 500, 0.05), (40.0, 20_000, 0.05)]
)
def test_a_coarse_grid_has_a_lower_bound_all_the_same(noise, steps, rate, neighbours):
    """It is never above what a far finer grid finds."""
    what = Sampled(noise, steps, rate, neighbours)
    fine = sampled_bounds(noise, steps, rate, 1e-5, neighbours)
    grid = sampled.grid_of(what, fine.upper, 1e-5)
    for coarser in (1, 4, 16, 64):
        assert sampled._lower(what, 1e-5, coarser * grid) <= fine.upper
        assert sampled._upper(what, 1e-5, coarser * grid) >= fine.lower
    assert 0.97 * fine.upper < fine.lower < fine.upper


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
def test_below_the_least_noise_sampling_is_not_counted(neighbours):
    """All is claimed that steps without samples spend, and nothing is known from below: of a
    record that is hardly ever drawn nothing may be spent at all. From the least noise on it is."""
    noise, over = math.nextafter(sampled.LEAST_NOISE, 0), sampled.OVER_CLIP[neighbours]
    assert sampled_bounds(noise, 1, 1e-6, 1e-5, neighbours) == (
        0.0,
        epsilon_spent(noise, 1, over, 1e-5),
    )
    counted = sampled_bounds(sampled.LEAST_NOISE, 1, 1e-6, 1e-5, neighbours)
    assert counted == (0.0, 0.0)


def test_what_fourier_transforms_round_away_is_taken_from_delta():
    """Of binomial distributions, whose exact masses are known, all errors together stay below the
    allowance; a delta that is not above it buys no amplification."""
    from dp_accounting.pld.common import self_convolve

    for steps, p in ((1000, 0.5), (10**5, 0.5), (10**5, 0.01)):
        step = np.zeros(64)
        step[0], step[7] = 1 - p, p
        first, masses = self_convolve(step, steps, 1e-15)
        exact = np.zeros(max(first + len(masses), 7 * steps + 1))
        exact[7 * np.arange(steps + 1)] = stats.binom.pmf(np.arange(steps + 1), steps, p)
        wrong = np.abs(np.array(masses) - exact[first : first + len(masses)]).sum()
        assert wrong < steps * sampled._ROUNDING
    unsampled = epsilon_spent(150.0, 10**5, 2.0, 5e-11)
    assert sampled_epsilon(150.0, 10**5, 0.01, 5e-11, "replace-one") == unsampled
    assert sampled_epsilon(150.0, 10**5, 0.01, 1e-7, "replace-one") < 0.1 * unsampled


@pytest.mark.parametrize(
    ("epsilon", "delta", "steps", "rate", "neighbours"),
    [
        (0.5, 1e-6, 200, 0.07, "replace-one"),
        (3.0, 1e-5, 16, 0.3, "add-remove"),
        (2.0, 1e-9, 50, 0.5, "replace-one"),
        (1.0, 0.2, 10, 0.3, "replace-one"),
    ],
)
def test_calibration_ends_where_the_budget_was_seen_to_hold(
    epsilon, delta, steps, rate, neighbours
):
    noise = sampled_noise(epsilon, delta, steps, rate, neighbours)
    told = sampled_bounds(noise, steps, rate, delta, neighbours)
    assert told.lower <= told.upper <= epsilon
    assert sampled_epsilon(0.997 * noise, steps, rate, delta, neighbours) > epsilon


# -------------------------------------------------------------------------------------------------
# every client's own noise


def accounted(sizes, epsilon=2.0, steps=100, neighbours="replace-one", **how):
    facts = Facts("made up", len(sizes), 5, 0.1, steps, batch=how.get("batch"), sizes=sizes)
    said = Settings.of(
        task="made up",
        unit="record",
        epsilon=epsilon,
        clip=1.0,
        iterations=steps,
        neighbours=neighbours,
        **how,
    )
    return account_of(said.resolve(facts), facts, (1,) * steps)


def noise_in_the_mean(account, sizes, sigma=None):
    """Per coordinate, of the mean of the clients' mean gradients."""
    added = [
        (sigma or event.sigma) / (event.rate * size)
        for event, size in zip(account.events, sizes, strict=True)
    ]
    return math.sqrt(sum(one**2 for one in added)) / len(sizes)


CASES = [
    ((10, 100, 1000), 10, {}),
    ((10, 100, 1000), 10, {"neighbours": "add-remove", "epsilon": 8.0, "steps": 300}),
    ((500, 5000, 50_000), 50, {"steps": 1000}),
    ((30, 40, 3000), 16, {"epsilon": 1.0}),
    ((5, 50, 500), 10, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "batch", "how"), CASES)
def test_small_clients_do_not_decide_the_noise_of_large_ones(sizes, batch, how):
    """Every client spends the budget, recomputed by dp-accounting alone; the mean is noisier
    neither than with one sigma for all nor than with one rate for all."""
    account = accounted(sizes, batch=batch, **how)
    epsilon, neighbours = how.get("epsilon", 2.0), how.get("neighbours", "replace-one")
    assert [event.rate for event in account.events] == [min(1.0, batch / size) for size in sizes]
    for event, told in zip(account.events, account.epsilons, strict=True):
        spent = composed(event.sigma, event.count, event.rate, 1e-5, neighbours, 1e-4)
        assert 0.99 * epsilon <= spent <= epsilon * (1 + 1e-3)
        assert 0.999 * epsilon <= told <= epsilon
    sigmas = [event.sigma for event in account.events]
    assert sigmas == sorted(sigmas, reverse=True)
    mine = noise_in_the_mean(account, sizes)
    assert mine < 0.9 * noise_in_the_mean(account, sizes, max(sigmas))
    taken = sum(event.rate * size for event, size in zip(account.events, sizes, strict=True))
    common = accounted(sizes, sampling_rate=taken / sum(sizes), **how)
    assert mine <= 1.001 * noise_in_the_mean(common, sizes)


def test_a_batch_beyond_a_client_s_records_means_all_of_them():
    account = accounted((5, 8), steps=4, batch=8)
    assert [event.rate for event in account.events] == [1.0, 1.0]
    assert account.exact


def test_many_clients_share_few_rates():
    """Each rate costs an account; beyond a few they are rounded, by less than samples differ."""
    from equipoise.privacy.mechanisms.record import FEW_RATES, rates_of

    sizes = tuple(range(100, 400, 2))
    facts = Facts("made up", len(sizes), 5, 0.1, 10, batch=20, sizes=sizes)
    said = Settings.of(task="made up", unit="record", epsilon=2, clip=1, batch=20)
    rates = rates_of(said.resolve(facts), sizes)
    assert len(set(rates)) <= 2 * FEW_RATES
    for rate, size in zip(rates, sizes, strict=True):
        assert 0.955 < rate * size / 20 < 1.045
    few = sizes[:FEW_RATES]
    facts = facts._replace(clients=len(few), sizes=few)
    assert rates_of(said.resolve(facts), few) == tuple(20 / size for size in few)


def flat_silos(sizes):
    """Records that teach nothing: what is seen is noise."""
    tables = [Table(np.zeros((size, 2)), np.ones((size, 1))) for size in sizes]
    options = TaskOptions(batch=10)
    return linear_task(
        "silos", (tables, None), None, LOGISTIC, 1e-4, 0.0, options, (), iterations=1
    )


def test_every_client_adds_the_noise_that_its_own_account_says():
    sizes = (10, 40, 200)
    task = flat_silos(sizes)
    facts = task.facts("record")
    said = Settings.of(task="silos", unit="record", epsilon=2, clip=0.9, iterations=8)
    run = said.resolve(facts)
    account = account_of(run, facts, (1,) * 8)
    assert len({event.sigma for event in account.events}) == 3
    gradient, _ = noise_of(run, task, account, SimulatedNoise(4))
    x = torch.zeros(3, task.dimension, dtype=torch.float64)
    drawn = torch.stack([gradient(x, t)[:, 0] for t in range(4000)], -1)
    for client, (size, event) in enumerate(zip(sizes, account.events, strict=True)):
        expected = event.sigma / (event.rate * size)
        assert float(drawn[client].std()) == pytest.approx(expected, rel=0.05)


def test_a_task_s_own_batch_is_the_size_of_every_client_s_sample():
    """Where nothing was said: a rate for each client, not one for all."""
    torch.manual_seed(0)
    clients = [(torch.randn(n, 2), torch.randint(2, (n,))) for n in (6, 12, 48)]
    loss = torch.nn.functional.cross_entropy
    task = own_task(torch.nn.Linear(2, 2), clients, loss, accuracy, batch=8)
    how = {"task": task, "unit": "record", "epsilon": 3, "clip": 1, "iterations": 4}
    result = train(**how)
    assert [event.rate for event in result.account.events] == [1.0, 8 / 12, 8 / 48]
    assert (result.run.batch, result.run.sampling_rate) == (8, None)
    said = train(**how, sampling_rate=0.25)
    assert {event.rate for event in said.account.events} == {0.25}
    assert said.run.batch == "full"


def test_rates_need_everybody_s_sizes():
    facts = Facts("made up", 3, 5, 0.1, 10, batch=8)
    run = Settings.of(task="made up", unit="record", epsilon=2, clip=1).resolve(facts)
    with pytest.raises(InvalidValue, match="needs the number of records of every client"):
        account_of(run, facts, (1,))


# -------------------------------------------------------------------------------------------------
# what is told


def test_both_bounds_are_told_and_read_back():
    """Old files have one: there the other is not known."""
    flags = {"iterations": 4, "clients": 4, "unit": "record", "batch": 20, "public_records": 9}
    result = train(task="breast-cancer", epsilon=2, clip=0.7, split="dirichlet:5", **flags)
    account, document = result.account, json.loads(result.to_json())
    assert 0.98 * account.epsilon < account.epsilon_lower < account.epsilon <= 2
    assert document["account"]["epsilon_lower"] == account.epsilon_lower
    assert Result.model_validate(document) == result
    text = statement(result)
    assert f"| epsilon, lower bound | {account.epsilon_lower!r} |" in text
    assert f"between {at_least(account.epsilon_lower)} and {at_most(account.epsilon)}" in text
    assert f"at least {account.epsilon_lower:.6g}" in str(result)
    sigmas = [event.sigma for event in account.events]
    assert f"sigma = {min(sigmas):.4g} to {max(sigmas):.4g} per coordinate" in str(result)
    assert "the largest: each client has its own" in text
    for name in ("epsilon_lower", "epsilons_lower"):
        del document["account"][name]
    old = Result.model_validate(document)
    assert old.account.epsilon_lower is None
    assert "lower bound" not in statement(old)
    assert "at least" not in str(old)


def test_an_exact_epsilon_is_its_own_lower_bound():
    exact = train(task="breast-cancer", epsilon=2, clip=1, clients=4, iterations=2)
    assert exact.account.epsilon_lower == exact.account.epsilon
    assert "lower bound" not in statement(exact)
    stable = train(
        task="breast-cancer", epsilon=2, clients=4, iterations=2, unit="record", noise_in="message"
    )
    assert stable.account.epsilon_lower is None  # the sensitivity itself is a bound
    assert "lower bound" not in statement(stable)
