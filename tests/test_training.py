"""Whole runs: what leaves the clients is what the result says, and the result is worth having."""

import json
import math
import statistics

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import equipoise
import paper
from equipoise import InvalidValue, UnsafeModel, epsilon_spent, train
from equipoise.planning import search
from equipoise.privacy.noise import SimulatedNoise
from equipoise.result import Result
from equipoise.settings import Settings
from equipoise.sweeps.grid import grid
from equipoise.sweeps.stacks import stacks_of
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.linear import LOGISTIC, MULTINOMIAL, Table, least_squares, linear_clients
from problems import swept

SMALL = {
    "task": "breast-cancer",
    "clients": 10,
    "iterations": 40,
    "local_steps": 4,
    "clip": 1.0,
    "epsilon": 2.0,
}


def test_models_in_float32_are_noised_too(leaves):
    """An own network, whose vectors are float32: what leaves is the clipped update plus noise of
    the told size."""
    releases, updates = leaves
    result = train(task="digits-mlp", clients=4, epsilon=2, clip=1, iterations=40)
    assert updates[0].dtype == torch.float32
    assert result.x.dtype == np.float32
    norms = [u.norm(dim=-1, keepdim=True) for u in updates]
    clipped = [u * (1.0 / n).clamp(max=1.0) for u, n in zip(updates, norms, strict=True)]
    noise = torch.stack([r - c for r, c in zip(releases, clipped, strict=True)])
    assert float(noise.std()) == pytest.approx(
        result.account.sigma, rel=8 / math.sqrt(2 * noise.numel())
    )
    each = noise.pow(2).mean((0, 1)) / result.client_sigma**2
    assert (each - 1).abs().max() < 8 * math.sqrt(2 / (noise.numel() / result.dimension))


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
@pytest.mark.parametrize(
    "schedule", [{"local_steps": 1}, {"local_steps": None, "schedule": "coin", "p": 0.5}]
)
def test_the_noise_that_leaves_is_the_noise_that_the_budget_needs(
    leaves, trust, neighbours, schedule
):
    """Measured at the border, from what was really sent how often: the exact epsilon of that is
    within the budget."""
    releases, updates = leaves
    result = train(
        **{
            **SMALL,
            "iterations": 400,
            **schedule,
            "trust": trust,
            "neighbours": neighbours,
            "seed": 4,
        }
    )
    norms = [u.norm(dim=-1, keepdim=True) for u in updates]
    clipped = [u * (1.0 / n).clamp(max=1.0) for u, n in zip(updates, norms, strict=True)]
    noise = torch.stack([r - c for r, c in zip(releases, clipped, strict=True)])
    seen = noise if trust == "local" else noise[:, 1:].sum(1, keepdim=True)  # client 0 colludes
    sigma = float(seen.std())
    slack = 1 + 6 / math.sqrt(2 * seen.numel())
    sensitivity = 2.0 if neighbours == "replace-one" else 1.0
    assert epsilon_spent(sigma * slack, len(releases), sensitivity, 1e-5) <= 2.0
    assert epsilon_spent(sigma / slack, len(releases), sensitivity, 1e-5) >= 2.0
    assert result.account.sigma == pytest.approx(sigma, rel=slack - 1)
    assert result.account.releases == len(releases)
    assert result.epsilon_spent <= 2.0
    assert result.private
    each = noise.pow(2).mean((0, 1)) / result.client_sigma**2  # every coordinate
    assert (each - 1).abs().max() < 7 * math.sqrt(2 / (noise.numel() / 31))
    rows = noise.flatten(0, 1)
    assert len(rows.unique(dim=0)) == len(rows), "no round or client shares its noise"
    columns = rows.T
    assert len(columns.unique(dim=0)) == len(columns), "no coordinate does"


@pytest.mark.parametrize("returns", ["last", "average"])
def test_only_communicated_models_come_back(leaves, returns):
    releases, _ = leaves
    result = train(**SMALL, gamma=0.5, returns=returns)
    models = (0.5 * torch.stack(releases).mean(1)).cumsum(0).numpy()
    expected = models[-1] if returns == "last" else paper.average(models)
    np.testing.assert_allclose(result.x, expected, rtol=0, atol=1e-12)


def test_dp_fedprox_through_train_is_its_transcription():
    """Client by client and step by step, with the noise and the step size of the run itself."""
    settings = {**SMALL, "algorithm": "dp-fedprox", "prox": 0.3, "simulate_noise_seed": 7}
    result = train(**settings)
    task = load_task("breast-cancer", TaskOptions(clients=10))
    assert result.run.options == {"prox": 0.3}
    assert result.run.eta == 1 / (task.L + 0.3)
    noise = [result.client_sigma * SimulatedNoise(7).normals(k, (10, 31)) for k in range(1, 11)]

    def g(i, x, k):
        everybody = torch.tensor(x).expand(10, -1)
        return task.clients.gradient(everybody, k)[i].numpy()

    oracle = paper.dp_fedprox(np.zeros(31), 10, 4, result.run.eta, 0.3, 1.0, noise, g, 10)
    np.testing.assert_allclose(result.x, oracle, rtol=0, atol=100 * result.lattice)


def test_dp_fedprox_without_pull_is_dp_fedavg_in_every_number():
    """Also for one record, where the pull would enter the account."""
    record = {"unit": "record", "clip": 0.5}
    for how in ({}, record, {**record, "noise_in": "message"}):
        settings = {**SMALL, **how, "simulate_noise_seed": 3}
        plain = train(**settings)
        without = train(**settings, algorithm="dp-fedprox", prox=0)
        assert np.array_equal(plain.x, without.x)
        assert plain.account == without.account
        assert plain.curve == without.curve
        assert not np.array_equal(plain.x, train(**settings, algorithm="dp-fedprox").x)


def test_dp_fedprox_is_private_for_a_client_and_spends_what_dp_fedavg_does(leaves):
    releases, _ = leaves
    result = train(**SMALL, algorithm="dp-fedprox", trust="secure-aggregation")
    assert result.private
    assert len(releases) == result.account.releases == 10
    assert result.account == train(**SMALL, trust="secure-aggregation").account
    assert result.run.options == {}, "its default is not written down"
    assert result.epsilon_spent == pytest.approx(2.0, rel=1e-9)


def test_a_strong_pull_does_not_make_the_default_step_diverge():
    """prox = 50 is a hundred times the curvature of the loss: steps of 1/L would explode."""
    for task in ("breast-cancer", "quadratic"):
        settings = {"task": task, "epsilon": math.inf, "iterations": 64, "local_steps": 8}
        result = train(**settings, algorithm="dp-fedprox", prox=50)
        assert result.failed is None
        losses = [point.test_loss for point in result.curve]
        assert losses == sorted(losses, reverse=True), "every round goes down"


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"prox": -1}, "prox=-1.0 is not a number >= 0"),
        ({"prox": math.inf}, "prox=inf is not a number >= 0"),
        ({"prox": "much"}, "prox='much' is not a number >= 0"),
        ({"prox": 1, "algorithm": "dp-fedavg"}, "prox=1.0 with algorithm=dp-fedavg"),
        ({"h_update": "clipped"}, "h_update=clipped with algorithm=dp-fedprox"),
    ],
)
def test_options_that_mean_nothing_are_refused(how, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        train(**{**SMALL, "algorithm": "dp-fedprox", **how})


def test_dp_fedprox_is_swept_in_stacks_of_its_own(tmp_path):
    """One computation for each prox, none shared with the paper's algorithms; the numbers of runs
    by themselves."""
    document = {
        **{name: value for name, value in SMALL.items() if name not in ("epsilon", "clip")},
        "name": "prox",
        "epsilon": [2.0, math.inf],
        "clip": [0.1, 1.0],
        "seeds": [0, 1],
        "variant": [
            {"algorithm": ["dp-fedavg", "dp-scaffnew"]},
            {"algorithm": "dp-fedprox", "prox": [0.1, 2.0]},
        ],
    }
    stacks = stacks_of(grid(document).cells)
    company = [{(r.algorithm, r.proximal) for row in stack for r in row} for stack in stacks]
    assert sorted(company, key=len) == [
        {("dp-fedprox", 0.1)},
        {("dp-fedprox", 2.0)},
        {("dp-fedavg", 0.0), ("dp-scaffnew", 0.0)},
    ]
    results = swept(document, tmp_path / "prox.sqlite")
    assert len(results) == 4 * 3 * 2
    pulled = [(r, loss) for r, loss in results if r.run.algorithm == "dp-fedprox"]
    assert len(pulled) == 2 * 3 * 2
    for result, loss in pulled:
        by_itself = train(Settings.of(**result.run.model_dump()))
        assert loss == pytest.approx(by_itself.curve[-1].test_loss, rel=1e-9)
        assert result.account == by_itself.account


class Stop(Exception):
    """Enough was seen."""


def test_a_planner_tries_the_steps_that_a_pull_allows(monkeypatch):
    """From 1/(L + prox), which is stable whatever the records are, up to what is stable for the
    stand-ins with that pull."""
    seen = []

    def try_all(worlds, candidates, level, seeds):
        seen.append((worlds, sorted({candidate.eta for candidate in candidates})))
        raise Stop

    monkeypatch.setattr(search, "try_all", try_all)
    for how in ({"algorithm": "dp-fedprox", "prox": 3}, {"algorithm": "dp-fedavg"}):
        with pytest.raises(Stop):
            equipoise.plan(task="breast-cancer", epsilon=2, trust="secure-aggregation", **how)
    L = load_task("breast-cancer", TaskOptions(public_records=40)).L
    for (worlds, etas), pull in zip(seen, (3, 0), strict=True):
        assert etas[0] == pytest.approx(1 / (L + pull))
        longest = 1 / (1 / worlds.longest + pull)
        assert etas[-1] <= longest * (1 + 1e-9)
        assert etas[-1] > longest / 4
    assert seen[0][1][-1] < seen[1][1][0], "a pull shortens all of them"


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"trust": "secure-aggregation"}, {"unit": "record", "clients": 5}])
def test_dp_fedprox_is_planned_and_its_plan_is_trained(how):
    question = {"task": "breast-cancer", "epsilon": 4, "prox": 0.3, "iterations": 16, **how}
    plan = equipoise.plan(algorithm="dp-fedprox", **question)
    assert plan.chosen.algorithm == "dp-fedprox"
    assert plan.chosen.options == {"prox": 0.3}
    result = train(plan)
    assert result.run.algorithm == "dp-fedprox"
    assert result.run.options == {"prox": 0.3}
    assert result.epsilon_spent <= 4
    assert result.account.sigma == pytest.approx(plan.chosen.sigma, rel=0.1)
    assert result.test_error < 0.2, "the best constant answer has 0.4"


def test_the_coin_is_calibrated_to_the_releases_it_really_makes():
    """Seed 0 draws more rounds than pT = 5: noise for the expected number would overspend (by a
    third)."""
    runs = [
        train(
            **{**SMALL, "local_steps": None, "iterations": 100}, schedule="coin", p=0.05, seed=seed
        )
        for seed in range(8)
    ]
    assert any(run.account.releases > 6 for run in runs), "the test must see an unlucky draw"
    for run in runs:
        assert run.epsilon_spent == pytest.approx(2.0, rel=1e-9)
        assert run.epsilon_spent <= 2.0


def test_lemma_1_says_what_it_really_spends():
    paper = {**SMALL, "noise_rule": "lemma1"}
    exact = train(**paper, v="exact")
    assert exact.epsilon_spent == pytest.approx(2.0, rel=1e-9)
    assert exact.private
    for v, expected in {"proof": 1 / 31, "record-style": 4 / 37**2}.items():
        result = train(**paper, v=v)
        assert result.account.sigma == pytest.approx(
            exact.account.sigma * math.sqrt(expected), rel=1e-9
        )
        assert result.epsilon_spent == epsilon_spent(result.account.sigma, 10, 2.0, 1e-5) > 10
        assert not result.private
        assert result.notices[0].startswith("NOT PRIVATE AT ITS LABEL: the exact epsilon spent is")
    sampled = train(**paper, v="sampling", batch=4)
    assert sampled.account.sigma == pytest.approx(
        math.sqrt((4 / 37) ** 2 * 10 * math.log(1e5)) / 2, rel=1e-9
    )
    number = train(**paper, v=100.0)
    assert number.epsilon_spent < 2.0
    assert number.private
    coin = train(
        **{**paper, "local_steps": None, "iterations": 100},
        schedule="coin",
        p=0.05,
        v="exact",
        seed=0,
    )
    assert coin.account.sigma == pytest.approx(
        exact.account.sigma * math.sqrt(5 / 10), rel=1e-9
    )  # pT, not the releases


def test_private_training_beats_not_training():
    """20 clients, secure aggregation, epsilon = 3.3: the 95 % interval of the difference over 20
    seeds is below 0."""
    results = [
        train(
            task="breast-cancer",
            epsilon=3.3,
            clip=1,
            local_steps=4,
            trust="secure-aggregation",
            seed=s,
            simulate_noise_seed=s,
        )
        for s in range(20)
    ]
    differences = [r.test_error - r.baseline_error for r in results]
    interval = stats.t.interval(
        0.95, 19, statistics.mean(differences), statistics.stdev(differences) / math.sqrt(20)
    )
    assert interval[1] < 0
    assert results[0].baseline_error == pytest.approx(0.4)  # the frequent class, not a coin


def test_simulations_repeat_and_say_so():
    one, two = (train(**SMALL, simulate_noise_seed=3) for _ in range(2))
    assert one == two
    assert np.array_equal(one.x, two.x)
    assert not one.private
    assert one.notices[0].startswith("SIMULATION, NOT PRIVATE")
    secret = train(**SMALL)
    assert secret.private
    assert secret.notices == []
    assert not np.array_equal(secret.x, train(**SMALL).x)


def test_diagnostics_are_never_private():
    result = train(**SMALL, algorithm="dp-scaffnew", trust="secure-aggregation", diagnostics=True)
    assert not result.private
    assert [row.round for row in result.per_round] == list(range(1, 11))
    assert result.per_round[0].h_norm == 0
    assert 0 <= result.per_round[-1].clipped <= 1
    private = load_task("breast-cancer", TaskOptions(clients=10)).clients
    wrong = ((private.features @ torch.tensor(result.x) > 0) != (private.targets[..., 0] > 0)) & (
        private.weights > 0
    )
    assert result.per_round[-1].train_error == pytest.approx(float(wrong.sum() / 379))
    assert train(**SMALL).per_round is None


def test_an_overflow_marks_a_simulation_and_stays_with_the_client_otherwise(client_log):
    diverging = {"task": "quadratic", "iterations": 4000, "local_steps": 2000, "eta": 1e3}
    simulated = train(**diverging, epsilon=math.inf)
    assert "round 1" in simulated.failed
    assert any(notice.startswith("FAILED") for notice in simulated.notices)
    client_log.clear()
    secret = train(**diverging, epsilon=2, clip=1)
    assert secret.failed is None
    assert secret.notices == []
    assert np.isfinite(secret.x).all()
    assert "not finite" in client_log[0]


def test_settings_and_values_do_not_mix():
    with pytest.raises(InvalidValue, match="give epsilon either in settings or as keywords"):
        train(equipoise.Settings.of(**SMALL), epsilon=0.1)
    older = {name: value for name, value in SMALL.items() if name != "clip"}
    assert train(**older, clip_norm=0.5, simulate_noise_seed=1) == train(
        **older, clip=0.5, simulate_noise_seed=1
    )
    with pytest.raises(InvalidValue, match="clip and clip_norm are the same: give one of the two"):
        train(**SMALL, clip_norm=0.5)


def test_a_delta_that_lets_clients_fail_is_not_private():
    result = train(**SMALL, delta=0.1)
    assert result.notices[0].startswith("NOT PRIVATE: delta=0.1")
    assert not result.private
    assert not train(**{**SMALL, "epsilon": 21}).private


def test_results_survive_json():
    result = train(**{**SMALL, "epsilon": math.inf, "clip": math.inf})
    document = json.loads(result.to_json())
    assert document["run"]["epsilon"] == document["run"]["clip"] == "inf"
    assert document["account"]["epsilon"] == "inf"
    again = Result.model_validate(document)
    assert again == result
    assert equipoise.Settings.of(**document["run"]).epsilon == math.inf


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False)),
        nn.InstanceNorm1d(3, track_running_stats=True),
    ],
)
def test_models_with_learned_buffers_are_refused(module):
    with pytest.raises(UnsafeModel, match="without clip and noise"):
        FlatModel(module)


def test_a_module_is_a_function_of_one_vector():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2))
    model, inputs = FlatModel(module), torch.randn(5, 3)
    assert model.dimension == 12 + 4 + 8 + 8 + 2
    torch.testing.assert_close(model(model.initial(), inputs), module(inputs))
    assert not torch.equal(model(torch.zeros(model.dimension) + 1, inputs), module(inputs))


def test_breast_cancer_constants_come_from_its_public_records_only():
    from sklearn.datasets import load_breast_cancer

    from equipoise.tasks import breast_cancer as bc

    measurements, _ = load_breast_cancer(return_X_y=True)
    public = measurements[::3]
    np.testing.assert_allclose(public.mean(0), bc.CENTRE, rtol=0.06)
    np.testing.assert_allclose(public.std(0), bc.SCALE, rtol=0.06)
    task = load_task("breast-cancer", TaskOptions())
    assert task.clients.features.norm(dim=-1).max() ** 2 / 4 + bc.L2 <= task.L * (1 + 1e-12)


@pytest.mark.parametrize("name", ["breast-cancer", "digits", "quadratic"])
def test_the_public_constants_hold_for_every_client(name):
    """mu |x - y|^2 <= <grad(x) - grad(y), x - y> <= L |x - y|^2."""
    task = load_task(name, TaskOptions(clients=20))
    generator = torch.Generator().manual_seed(0)
    for scale in (0.01, 1.0, 10.0):
        x, y = (
            scale * torch.randn(20, task.dimension, dtype=torch.float64, generator=generator)
            for _ in range(2)
        )
        product = ((task.clients.gradient(x, 0) - task.clients.gradient(y, 0)) * (x - y)).sum(-1)
        square = (x - y).pow(2).sum(-1)
        assert (product >= task.mu * square * (1 - 1e-9)).all()
        assert (product <= task.L * square * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", ["breast-cancer", "digits"])
def test_no_record_s_gradient_is_longer_than_the_public_bound(name):
    task = load_task(name, TaskOptions(clients=20))
    generator, longest = torch.Generator().manual_seed(0), 0.0
    for scale in (0.01, 1.0, 100.0):
        x = scale * torch.randn(20, task.dimension, dtype=torch.float64, generator=generator)
        for record in range(0, min(task.clients.sizes), 5):
            chosen = torch.arange(max(task.clients.sizes)) == record
            gradients = task.clients.clipped_sum(x, chosen.expand(20, -1), math.inf, 0)
            longest = max(longest, float(gradients.norm(dim=-1).max()))
    assert longest <= task.gradient_bound * (1 + 1e-12)
    assert longest >= 0.7 * task.gradient_bound


def test_gradients_are_those_of_the_loss():
    for link in (LOGISTIC, MULTINOMIAL, least_squares(3.0)):
        outputs = 3 if link is MULTINOMIAL else 1
        generator = np.random.default_rng(0)
        tables = [
            Table(
                generator.normal(size=(n, 4)), np.eye(3)[generator.integers(3, size=n)][:, :outputs]
            )
            for n in (5, 7, 1)
        ]
        clients = linear_clients(tables, link, 0.1, None, 0)
        x = torch.randn(
            3,
            4 * outputs,
            dtype=torch.float64,
            generator=torch.Generator().manual_seed(0),
            requires_grad=True,
        )
        total = 0.05 * x.pow(2).sum()
        for x_i, table in zip(x, tables, strict=True):
            a, y = torch.tensor(table.features), torch.tensor(table.targets)
            total = total + link.loss(a @ x_i.reshape(outputs, 4).T, y).mean()
        total.backward()
        torch.testing.assert_close(clients.gradient(x.detach(), 0), x.grad)


def test_splits_deal_every_record_once():
    from equipoise.tasks.splits import split_records

    labels = (np.arange(379) % 3 == 0).astype(np.int64)
    skews = {}
    for split in ("random", "dirichlet:0.3", "dirichlet:100"):
        parts = split_records(labels, 20, split, seed=1)
        assert sorted(np.concatenate(parts)) == list(range(379))
        assert {len(part) for part in parts} == {18, 19}
        again = split_records(labels, 20, split, seed=1)
        assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
        skews[split] = statistics.stdev(labels[part].mean() for part in parts)
    assert skews["dirichlet:0.3"] > 2 * skews["dirichlet:100"]


def test_minibatches_depend_on_seed_client_and_step_only():
    task = load_task("breast-cancer", TaskOptions(clients=5, batch=8, seed=3))
    batches = task.clients.minibatches
    for client in range(5):  # 75 or 76 records each: no record twice in an epoch
        epoch = np.concatenate([batches.of(client, t) for t in range(75 // 8)])
        assert len(np.unique(epoch)) == epoch.size == 72
        alone = task.clients.alone(client).minibatches
        assert np.array_equal(alone.of(0, 40), batches.of(client, 40))
        assert torch.equal(alone.at(40)[0][0], batches.at(40)[0][client])


def test_a_client_with_fewer_records_than_the_batch_uses_all_of_them():
    """Its size is its own business: no error tells it, and full batches are full gradients."""
    x = torch.randn(5, 31, dtype=torch.float64)
    full, large = (
        load_task("breast-cancer", TaskOptions(clients=5, batch=batch)).clients
        for batch in (None, 1000)
    )
    torch.testing.assert_close(large.gradient(x, 3), full.gradient(x, 3))


def test_the_quadratic_knows_its_minimiser():
    clients = load_task("quadratic", TaskOptions()).clients
    best = clients.minimiser
    assert clients.gradient(best.expand(20, -1), 0).mean(0).norm() < 1e-14
    x = torch.randn(3, 10, dtype=torch.float64)
    losses = (
        torch.einsum(
            "rci,cij,rcj->rc", x[:, None] - clients.b, clients.A, x[:, None] - clients.b
        ).mean(1)
        / 2
    )
    least = torch.einsum("ci,cij,cj->c", best - clients.b, clients.A, best - clients.b).mean() / 2
    torch.testing.assert_close(clients.excess(x), losses - least)
    eigenvalues = torch.linalg.eigvalsh(clients.A)
    assert eigenvalues.min() == pytest.approx(0.01)
    assert eigenvalues.max() == pytest.approx(1.0)
