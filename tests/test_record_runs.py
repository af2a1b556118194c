"""One record as the unit: what the product itself releases on neighbouring data, and the ways in
which models could cheat."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from equipoise import InvalidValue, UnsafeModel, accuracy, own_task, train
from equipoise.algorithms import algorithm_spec
from equipoise.algorithms.schedule import schedule_of
from equipoise.engine import hyper_of, noise_of
from equipoise.fleets import Broadcast, SimulatedFleet, server_rounds
from equipoise.planning import trial
from equipoise.privacy.gaussian import gdp_mu
from equipoise.privacy.lattice import NOT_ROUNDED
from equipoise.privacy.noise import SecretNoise, SimulatedNoise
from equipoise.privacy.noisy_gradient import NoisyGradient
from equipoise.privacy.sampled import sampled_epsilon, sampled_noise
from equipoise.privacy.stability import Stability
from equipoise.settings import Settings
from equipoise.tasks import TaskOptions
from equipoise.tasks.bounds import Column
from equipoise.tasks.linear import LOGISTIC, linear_task
from equipoise.tasks.task import Table
from equipoise.training import account_of
from problems import run_command

L2, SIZES, SMALLEST = 1e-4, (40, 10, 25), 1


def silos(side):
    """Clients of unequal size whose records are flat but one of the smallest; the model is far out,
    where that one is wrong."""
    tables = [Table(np.zeros((size, 2)), np.ones((size, 1))) for size in SIZES]
    tables[SMALLEST].features[3] = -0.05, side * math.sqrt(1 - 0.05**2)
    task = linear_task(  # |a| <= 1, the bias feature included
        "silos", (tables, None), None, LOGISTIC, L2, 0.0, TaskOptions(), (), iterations=1
    )
    return replace(task, x0=torch.tensor([1e3, 0.0], dtype=torch.float64))


class NoNoise:
    name = "none"

    def whole(self, law, round, shape, scale):
        return np.zeros(shape)

    def normals(self, round, shape):
        return np.zeros(shape)

    def uniforms(self, step, shape):
        return np.full(shape, 0.5)


def prepared(task, **how):
    settings = {
        "task": "silos",
        "unit": "record",
        "epsilon": 2.0,
        "iterations": 12,
        "local_steps": 4,
        "clip": 0.9,
        **how,
    }
    facts = task.facts("record")
    run = Settings.of(**settings).resolve(facts)
    schedule = schedule_of(run)
    return run, schedule, account_of(run, facts, schedule)


def fleet_of(task, run, account):
    """The product's own clients, noise switched off."""
    weights = task.facts("record").weights(run.weights)
    gradient, releaser = noise_of(run, task, account, NoNoise(), weights)
    algorithm = algorithm_spec(run.algorithm).make(hyper_of(run))
    return SimulatedFleet(3, gradient, algorithm, releaser, NoNoise(), weights)


MODES = [
    {"noise_in": "message"},
    {"noise_in": "message", "clip": None},
    {"noise_in": "message", "trust": "secure-aggregation", "clip": None, "weights": "equal"},
    {"noise_in": "message", "trust": "secure-aggregation", "clip": None, "weights": "records"},
    {"noise_in": "message", "schedule": "coin", "p": 0.3, "local_steps": None, "clip": None},
    {"noise_in": "message", "algorithm": "dp-scaffnew", "h_update": "released", "clip": None},
    {"noise_in": "message", "algorithm": "dp-fedprox", "prox": 0.08, "clip": None},
    {"noise_in": "message", "algorithm": "dp-fedprox", "prox": 0.08, "local_steps": 12},
]


@pytest.mark.parametrize("how", MODES, ids=str)
def test_messages_of_neighbours_differ_by_the_sensitivity_and_no_more(leaves, how):
    """The product's own clients, noise switched off, both worlds answered with the same models;
    nearly tight in one round."""
    messages, worlds = leaves[0], []
    for side in (1.0, -1.0):
        task = silos(side)
        run, schedule, account = prepared(task, **how)
        fleet, iteration = fleet_of(task, run, account), 0
        for number, steps in enumerate(schedule, start=1):
            fleet.exchange(Broadcast(number, range(iteration, iteration + steps), task.x0))
            iteration += steps
            if how.get("algorithm") == "dp-scaffnew":
                break  # later rounds depend on the message that the worlds share: see test_records
        worlds.append(torch.stack(messages))
        messages.clear()
    moved = (worlds[0] - worlds[1]).norm(dim=-1)  # [rounds, clients]
    sensitivities = [event.sensitivity for event in account.events]
    assert float(moved[:, [0, 2]].max()) == 0
    assert float(moved[:, SMALLEST].max()) <= sensitivities[SMALLEST]
    assert float(moved[:, SMALLEST].max()) >= 0.9 * sensitivities[SMALLEST]
    assert account.sensitivity == max(sensitivities)
    if how.get("weights") == "records":  # all move what is seen as far
        assert max(sensitivities) == pytest.approx(min(sensitivities), rel=1e-6)
    else:
        assert account.sensitivity == sensitivities[SMALLEST]


def test_gradient_sums_of_neighbours_differ_by_two_clips_and_no_more():
    sums = []
    for side in (1.0, -1.0):
        task = silos(side)
        run, _, account = prepared(task)
        gradient, _ = noise_of(run, task, account, NoNoise())
        sums.append(gradient(task.x0.expand(3, -1), 0) * torch.tensor(SIZES).unsqueeze(-1))
    moved = (sums[0] - sums[1]).norm(dim=-1)
    assert float(moved[SMALLEST]) <= account.sensitivity == 1.8
    assert float(moved[SMALLEST]) >= 0.99 * account.sensitivity


def closed_form_sigma(how, size, releases):
    """What one client must add, written down again from the theory and from nothing of the
    accounts."""
    mu, G, prox = gdp_mu(2.0, 1e-5), 1.0, how.get("prox", 0.0)
    eta = 1 / (0.25 + L2 + prox)
    c = 1 - eta * (L2 + prox)
    geometric = (1 - c**4) / (1 - c)
    if how["noise_in"] == "hidden-gradient":
        return 2 * G / size * math.sqrt(geometric * (1 + c) / (1 + c**4)) * math.sqrt(releases) / mu
    if how.get("trust") == "secure-aggregation":  # one of three colludes
        m = max(SIZES) if how["weights"] == "records" else min(SIZES)
        return 2 * eta * G / m * geometric * math.sqrt(releases) / mu / math.sqrt(2)
    return 2 * eta * G / size * geometric * math.sqrt(releases) / mu


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        MODES[1],
        MODES[2],
        MODES[3],
        {"noise_in": "hidden-gradient", "clip": None},
        {"noise_in": "message", "clip": None, "algorithm": "dp-fedprox", "prox": 0.08},
        {"noise_in": "hidden-gradient", "clip": None, "algorithm": "dp-fedprox", "prox": 0.08},
    ],
    ids=str,
)
def test_the_noise_of_every_client_is_what_the_theory_asks_for(how):
    task = silos(1.0)
    run, schedule, account = prepared(task, **how)
    noise = SimulatedNoise(3)
    gradient, mechanism = noise_of(run, task, account, noise)
    if how["noise_in"] == "message":
        drawn = mechanism.release(torch.zeros(3, 20_000, dtype=torch.float64), noise, 1)
    else:
        x = task.x0.expand(3, -1)
        still, _ = noise_of(run, task, account, NoNoise())
        drawn = torch.cat([gradient(x, t) - still(x, t) for t in range(4_000)], -1)
    for client, size in enumerate(SIZES):
        expected = closed_form_sigma(how, size, len(schedule))
        assert float(drawn[client].std()) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.5, 2.0), (0.9, 1.5)])
def test_sampled_replace_one_against_integration(rate, noise):
    """One step, the worst pair: (1-q) N(0) + q N(+C) against (1-q) N(0) + q N(-C), delta by
    numerical integration."""
    y = np.linspace(-20, 20, 400_001)
    one, other = (
        (1 - rate) * stats.norm.pdf(y, 0, noise) + rate * stats.norm.pdf(y, at, noise)
        for at in (1.0, -1.0)
    )
    low, high = 0.0, 30.0
    for _ in range(60):
        epsilon = (low + high) / 2
        too_much = np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0), y) > 1e-5
        low, high = (epsilon, high) if too_much else (low, epsilon)
    ours = sampled_epsilon(noise, 1, rate, 1e-5, "replace-one")
    assert high - 1e-9 <= ours <= high + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "delta", "steps", "rate", "neighbours"),
    [
        (1.0, 0.5, 8, 0.1, "replace-one"),
        (1.0, 1e-5, 4, 1e-9, "replace-one"),
        (1.0, 1e-20, 8, 0.1, "replace-one"),
        (1e9, 1e-5, 2, 0.5, "replace-one"),
        (1000.0, 1e-5, 2, 0.5, "replace-one"),
        (0.01, 1e-5, 4000, 0.5, "add-remove"),
    ],
)
def test_odd_budgets_get_enough_noise_too(epsilon, delta, steps, rate, neighbours):
    noise = sampled_noise(epsilon, delta, steps, rate, neighbours)
    assert noise > 0
    assert sampled_epsilon(noise, steps, rate, delta, neighbours) <= epsilon


def test_coded_numbers_stay_in_their_range_when_it_is_tiny():
    for low, high in ((1e15, 1e15 + 0.125), (1.7e18, 1.7e18 + 768)):
        coded, _ = Column("a", low, high).code([repr(low), repr((low + high) / 2), repr(high)])
        assert np.abs(coded).max() <= 1


# -------------------------------------------------------------------------------------------------
# models that cheat


def network(model, loss=nn.functional.cross_entropy, records=30, targets=None):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3 * records, 4, generator=generator)
    y = (x[:, 0] > 0).long() if targets is None else targets
    clients = list(zip(x.split(records), y.split(records), strict=True))
    return own_task(model, clients, loss, accuracy, learning_rate=0.5)


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def test_no_record_is_in_anothers_loss():
    """A loss whose divisor depends on targets (ignored tokens, class weights) must not let one
    record rescale the others."""
    weights = torch.tensor([1.0, 1.0, 1000.0])

    def weighted(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, weight=weights)

    task = network(seeded(lambda: nn.Linear(4, 3)), weighted)
    x = torch.zeros(3, task.dimension)
    before = task.clients.clipped_sum(x, None, 1.0, 0)
    task.clients.data[1][1][5] = 2
    after = task.clients.clipped_sum(x, None, 1.0, 0)
    assert float((before - after).norm(dim=-1).max()) <= 2.0

    class PerToken(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 5)

        def forward(self, x):
            return self.linear(x.unsqueeze(1).expand(-1, 100, -1)).transpose(
                1, 2
            )  # [n, classes, tokens]

    targets = torch.full((90, 100), -100)
    targets[:, 0] = 1
    task = network(seeded(PerToken), targets=targets)
    x = torch.randn(3, task.dimension, generator=torch.Generator().manual_seed(0))
    before = task.clients.clipped_sum(x, None, 1.0, 0)
    task.clients.data[1][1][5] = 2
    after = task.clients.clipped_sum(x, None, 1.0, 0)
    assert 0 < float((before - after).norm(dim=-1).max()) <= 2.0


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x):
        return self.linear(x - x.mean(0))


class Remembers(Centred):
    def forward(self, x):
        self.mean = 0.9 * getattr(self, "mean", torch.zeros(4)) + 0.1 * x.detach().mean(0)
        return self.linear(x - self.mean)


class Hidden(nn.Module):
    """Where both factors are zero, neither outputs nor gradients show what they multiply."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.factors = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return self.linear(x) + self.factors.prod() * (x - x.mean(0))[:, :2]


def test_zero_weights_hide_nothing():
    """At zero weights such models look harmless: they are tried elsewhere too."""
    for model in (Centred(), Hidden()):
        with pytest.raises(UnsafeModel, match="depends on the other examples"):
            train(task=network(model), unit="record", epsilon=8, clip=1)
    for unit in ("client", "record"):
        with pytest.raises(UnsafeModel, match="remembers"):
            train(task=network(Remembers()), unit=unit, epsilon=8, clip=1)


@pytest.mark.slow
def test_a_failing_record_does_not_change_the_others_dropout():
    """The spread over secret draws is the same with and without a record that fails."""
    spreads = []
    for label in (1, 7):  # a class that there is, and one that there is not
        task = network(seeded(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))), records=40)
        task.clients.data[0][0].fill_(1.0)  # alike, so that masks in common would add up
        task.clients.data[0][1].fill_(1)
        task.clients.data[0][1][0] = label
        x = task.x0.expand(3, -1)
        sums = []
        for draw in range(200):
            task.clients.useless[0].zero_()  # the failing record is looked for every time
            sums.append(task.clients.clipped_sum(x, None, 1.0, draw)[0])
        spreads.append(float(torch.stack(sums).std(0).norm()))
    assert spreads[1] == pytest.approx(spreads[0], rel=0.2)


def test_dropout_is_as_secret_as_the_noise():
    task = network(seeded(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))))
    gradient = NoisyGradient(task.clients, 1.0, 0.0, (1.0,) * 3, SecretNoise(), NOT_ROUNDED)
    x = task.x0.expand(3, -1)
    assert not torch.equal(gradient(x, 0), gradient(x, 0))


def test_what_draws_for_a_whole_batch_runs_record_by_record():
    class StochasticDepth(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x):
            return self.linear(x * 2 * (torch.rand(()) < 0.5) if self.training else x)

    task = network(seeded(StochasticDepth))
    assert task.clients.one_by_one
    assert any("random" in layer for layer in task.clients.slow_layers())
    assert not network(
        seeded(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)))
    ).clients.one_by_one
    result = train(task=task, unit="record", epsilon=8, clip=1, iterations=2)
    assert any(notice.startswith("SLOW") for notice in result.notices)


def test_models_that_cannot_learn_are_refused_and_odd_ones_take_the_slow_way():
    class Detached(nn.Linear):
        def forward(self, x):
            return super().forward(x).detach()

    with pytest.raises(InvalidValue, match="fail on examples"):
        network(seeded(lambda: Detached(4, 2)))

    class Half(nn.Linear):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x).float()

    task = network(seeded(lambda: nn.Sequential(Half(4, 2))))
    result = train(task=task, unit="record", epsilon=math.inf, iterations=20)
    assert np.abs(result.x - task.x0.numpy()).max() > 0.01


def test_sums_are_kept_in_double_precision():
    """In single precision the rounding of a long sum depends on its other records."""
    assert (
        network(seeded(lambda: nn.Linear(4, 2)))
        .clients.clipped_sum(torch.zeros(3, 10), None, 1.0, 0)
        .dtype
        == torch.float64
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "plan --task digits-mlp --unit record --noise-in message --epsilon 8",
            "it needs a regularised linear model",
        ),
        (
            "plan --task breast-cancer --unit record --h-update clipped --epsilon 8",
            "no message is clipped",
        ),
        (
            "train --task breast-cancer --unit record --algorithm dp-scaffnew --h-update clipped "
            "--epsilon 8 --clip 1",
            "no message is clipped",
        ),
    ],
)
def test_settings_that_would_be_ignored_are_refused(capsys, monkeypatch, arguments, sentence):
    """At once: no plan is tried before."""

    def tries(*_):
        raise AssertionError("a plan is tried")

    monkeypatch.setattr(trial, "_run", tries)
    code, _, err = run_command(capsys, *arguments.split())
    assert code == 2
    assert sentence in err.replace("\n", " ")


def test_a_split_by_label_is_told_as_public():
    flags = {"unit": "record", "epsilon": 3, "clip": 1, "iterations": 2, "clients": 5}
    result = train(task="breast-cancer", split="dirichlet:0.5", **flags)
    assert any("dealt by label" in sentence for sentence in result.public)


def test_the_server_loop_is_the_one_that_messages_were_tested_with():
    """`server_rounds` asks the fleet for the same exchanges as the test above makes by hand."""
    task = silos(1.0)
    run, schedule, account = prepared(task, noise_in="message")
    fleet = fleet_of(task, run, account)
    first = next(iter(server_rounds(task.x0, schedule, fleet, fleet.algorithm)))
    step = Stability(run.eta, 4, task.L, task.mu, 0.9, 10, "replace-one")
    assert float((first.x - task.x0).norm()) > 0
    event = account.events[SMALLEST]
    assert event.sensitivity == step.sensitivity + event.lattice * math.sqrt(2), "rounding included"
