"""Clients that count unequally: f = sum_i w_i f_i, in every algorithm, mechanism and trust."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import equipoise
import paper
from equipoise import Settings
from equipoise.algorithms.dp_fedavg import dp_fedavg
from equipoise.algorithms.dp_fedpd import dp_fedpd
from equipoise.algorithms.dp_fedsplit import dp_fedsplit
from equipoise.algorithms.dp_scaffnew import dp_scaffnew
from equipoise.algorithms.schedule import coin, periodic, schedule_of
from equipoise.engine import noise_of
from equipoise.errors import InvalidValue
from equipoise.facts import Facts
from equipoise.fleets import SimulatedFleet, server_rounds
from equipoise.privacy import SimulatedNoise
from equipoise.privacy.clip import ClippedRelease, NoisedRelease, average
from equipoise.privacy.lattice import Lattice
from equipoise.privacy.promise import Promise
from equipoise.privacy.statement import statement
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.linear import LOGISTIC, linear_clients
from equipoise.tasks.task import Table
from equipoise.training import account_of, prepare
from problems import FINE, GivenNoise, logistic, quadratic, run_command

ETA, SIGMA, COUNTS = 0.3, 0.05, (4, 1, 2, 1)
COARSE = 2.0**-30  # as fine as sums modulo 2^32 steps can be, of messages shorter than 1
WEIGHTS = tuple(count / sum(COUNTS) for count in COUNTS)


def weighted(task, schedule, algorithm, clip, noise, trust):
    """The product's last model, and its fleet."""
    sums = trust == "secure-aggregation"
    shares = Promise(1.0, 1e-5, trust=trust).shares(WEIGHTS)
    share = torch.tensor(shares, dtype=torch.float64).unsqueeze(-1) if sums else 1.0
    sigma = SIGMA if clip < math.inf else 0.0
    gamma = COARSE if sums else FINE.gamma
    lattice = Lattice(gamma if sigma else 0.0, sums)
    releaser = ClippedRelease(clip, sigma, lattice, share)
    gradient = task.clients.gradient
    fleet = SimulatedFleet(4, gradient, algorithm, releaser, GivenNoise(noise, SIGMA), WEIGHTS)
    rounds = list(server_rounds(task.x0, schedule, fleet, algorithm))
    return rounds[-1].x, fleet


def seen(noise, trust):
    """What noise in a message comes to in the average, as noise of a client of weight w_i: where
    clients send w_i / max w of their messages, it is max w / w_i as large."""
    if trust == "local":
        return noise
    return noise * (max(WEIGHTS) / np.array(WEIGHTS))[:, None]


def error(trust):
    """Nine messages of four clients, each rounded to its lattice, at most."""
    return 1e-11 if trust == "local" else 12 * COARSE


@pytest.mark.parametrize("make", [quadratic, logistic])
@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
def test_weighted_dp_fedavg_is_algorithm_1_with_copies(make, trust):
    task, g = make(4)
    noise = np.random.default_rng(0).normal(0, SIGMA, (9, 4, task.dimension))
    many = paper.of_copies(COUNTS, g, seen(noise, trust))
    oracle = paper.dp_fedavg(task.x0.numpy(), 9, 3, ETA, 0.1, many[1], many[0], many[2])
    x, fleet = weighted(task, periodic(27, 3), dp_fedavg(ETA), 0.1, noise, trust)
    np.testing.assert_allclose(x.numpy(), oracle, rtol=0, atol=error(trust))
    assert (fleet.memory.update.norm(dim=-1) > 0.1).any(), "the clip must act"


@pytest.mark.parametrize("make", [quadratic, logistic])
@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
@pytest.mark.parametrize("C", [0.2, math.inf])
def test_weighted_dp_scaffnew_is_algorithm_2_with_copies(make, trust, C):
    task, g = make(4)
    p, T = 0.25, 48
    schedule = coin(T, p, seed=3)
    coins = np.zeros(T, dtype=int)
    coins[np.cumsum(schedule) - 1] = 1
    noise = np.random.default_rng(0).normal(0, SIGMA, (len(schedule), 4, task.dimension))
    noise = noise if C < math.inf else 0 * noise
    g, noises, N = paper.of_copies(COUNTS, g, seen(noise, trust))
    oracle, h = paper.dp_scaffnew(task.x0.numpy(), coins, p, ETA, C, noises, g, N)
    x, _ = weighted(task, schedule, dp_scaffnew(ETA, p), C, noise, trust)
    np.testing.assert_allclose(x.numpy(), oracle, rtol=0, atol=error(trust))
    if C == math.inf:
        np.testing.assert_allclose(sum(h), 0, atol=1e-12)


def test_weighted_control_variates_sum_to_zero():
    task, _ = quadratic(4)
    _, fleet = weighted(task, periodic(48, 4), dp_scaffnew(ETA, 0.25), math.inf, [], "local")
    state, w = fleet.memory.state, torch.tensor(WEIGHTS, dtype=torch.float64)
    assert state.h.norm(dim=-1).min() > 1e-3
    torch.testing.assert_close(
        w @ state.h, torch.zeros(10, dtype=torch.float64), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize(
    ("algorithm", "T"),
    [
        (dp_scaffnew(1.0, 1 / 4), 6000),
        (dp_fedsplit(0.5, 1.0, math.inf, {}), 6000),
        (dp_fedpd(0.5, 1.0), 6000),
    ],
)
def test_without_noise_the_weighted_problem_is_solved(algorithm, T):
    """The minimiser of sum_i w_i f_i, and not of the mean."""
    task, _ = quadratic(4)
    A, b, w = task.clients.A, task.clients.b, torch.tensor(WEIGHTS, dtype=torch.float64)
    slopes = torch.einsum("cij,cj->ci", A, b)
    best = torch.linalg.solve(torch.einsum("c,cij->ij", w, A), w @ slopes)
    x, _ = weighted(task, periodic(T, 4), algorithm, math.inf, [], "local")
    assert float((x - best).norm()) < 1e-6
    equal = torch.linalg.solve(A.mean(0), slopes.mean(0))
    assert float((best - equal).norm()) > 0.1


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
@pytest.mark.parametrize("colluding", [0, 2])
def test_the_noise_of_the_average_is_as_told(trust, colluding):
    """N_eff, and what planning is made with, against noise that was drawn."""
    sums = trust == "secure-aggregation"
    if not sums and colluding:
        return
    promise = Promise(1.0, 1e-5, trust=trust, colluding=colluding if sums else None)
    gamma, d = 2.0**-20, 40_000
    each = promise.client_sigma(1.0, 4, gamma if sums else 0.0)
    releaser = NoisedRelease(each, Lattice(gamma, sums))
    releases = releaser.release(torch.zeros(4, d, dtype=torch.float64), SimulatedNoise(0), 1)
    measured = float(average(releases, Lattice(gamma, sums), WEIGHTS).std())
    assert measured == pytest.approx(promise.averaged((each,) * 4, WEIGHTS), rel=0.02)
    assert measured == pytest.approx(1 / math.sqrt(promise.averaging(4, WEIGHTS)), rel=0.02)
    assert promise.averaging(4, (0.25,) * 4) == pytest.approx(promise.averaging(4))
    assert promise.averaging(8, WEIGHTS) == pytest.approx(
        promise.averaging(8, tuple(w / 2 for w in WEIGHTS for _ in range(2)))
    )


def test_nobody_s_message_is_longer_than_the_clip():
    releaser = ClippedRelease(
        1.0,
        0.0,
        Lattice(0.0, True),
        torch.tensor(Promise(1.0, 1e-5, trust="secure-aggregation").shares(WEIGHTS)).unsqueeze(-1),
    )
    updates = 100 * torch.eye(4, 7, dtype=torch.float64)
    sent = releaser.release(updates, None, 1).norm(dim=-1)
    np.testing.assert_allclose(sent, np.array(WEIGHTS) / max(WEIGHTS), rtol=1e-9)
    assert sent.max() <= 1


UNEQUAL = (40, 9, 23, 5)
MESSAGES = {
    "task": "breast-cancer",
    "unit": "record",
    "noise_in": "message",
    "epsilon": 2,
    "clip": 0.4,
    "clients": 4,
    "local_steps": 8,
    "iterations": 16,
}


def unequal_task(changed=None, unit="record"):
    """Silos of breast cancer records with these sizes; `changed` has its first record replaced by
    another that pulls as hard as it can the other way."""
    task = load_task("breast-cancer", TaskOptions(clients=4, unit=unit))
    tables = []
    for i, size in enumerate(UNEQUAL):
        features = task.clients.features[i, :size].clone()
        targets = task.clients.targets[i, :size].clone()
        if i == changed:
            targets[0] = 1 - targets[0]
        tables.append((features.numpy(), targets.numpy()))
    clients = linear_clients([Table(*t) for t in tables], LOGISTIC, task.clients.l2, None, 0)
    return replace(task, clients=clients)


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
@pytest.mark.parametrize("weights", ["equal", "records", "1,2,30,1"])
def test_one_record_moves_what_is_seen_by_no_more_than_was_accounted_for(trust, weights):
    """Noise in the message: all messages of the first round, before noise, of neighbouring data."""
    settings = Settings.of(**MESSAGES, trust=trust, weights=weights)

    def sent(changed):
        task = unequal_task(changed)
        facts = task.facts("record")
        run = settings.resolve(facts)
        account = account_of(run, facts, schedule_of(run))
        counted = facts.weights(run.weights)
        gradient, releaser = noise_of(run, task, account, SimulatedNoise(0), counted)
        algorithm = dp_fedavg(run.eta)
        x = task.x0.expand(4, -1)
        update, _ = algorithm.local_round(x, algorithm.init(x), range(8), gradient)
        quiet = type(releaser)(0.0, Lattice(0.0, releaser.lattice.sums), releaser.share)
        return quiet.release(update, None, 1), account

    reference, account = sent(None)
    shares = []
    for client, event in enumerate(account.events):
        moved = float((sent(client)[0] - reference).norm())
        assert moved <= event.sensitivity
        shares.append(moved / event.sensitivity)
        assert account.epsilons[client] <= 2 + 1e-9
    assert max(shares) > 0.2, "the bound must be of the right size"
    if trust == "secure-aggregation":
        assert max(account.epsilons) == pytest.approx(2, rel=1e-6)


def test_by_records_sums_need_far_less_noise():
    """The smallest client does not rule the noise: its message is the shortest."""

    def noise(weights):
        settings = Settings.of(**MESSAGES, trust="secure-aggregation", weights=weights)
        facts = unequal_task().facts("record")
        run = settings.resolve(facts)
        account = account_of(run, facts, schedule_of(run))
        counted = facts.weights(run.weights)
        each = run.promise.client_sigma(account.sigma, 4, account.lattice)
        return run.promise.averaged((each,) * 4, counted)

    total = sum(UNEQUAL)
    assert noise("records") / noise("equal") == pytest.approx(4 * min(UNEQUAL) / total, rel=1e-3)


def test_by_records_noised_gradients_have_the_noise_of_the_pooled_sum():
    """sigma sqrt(N) / m, where the mean of all has sigma sqrt(sum 1/m_i^2) / N."""
    task = unequal_task()
    result = prepare(task=task, unit="record", epsilon=2, clip=0.4, iterations=1, eta=1.0)
    assert result.run.weights == "records"
    facts = task.facts("record")
    noise = SimulatedNoise(0)
    gradient, releaser = noise_of(result.run, task, result.account, noise)
    drawn = []
    for t in range(4000):
        x = task.x0.expand(4, -1)
        drawn.append(average(gradient(x, t), releaser.lattice, facts.weights("records")))
    sigma = result.account.sigma
    spread = float(torch.stack(drawn).std(0).mean())
    assert spread == pytest.approx(sigma * 2 / sum(UNEQUAL), rel=0.02)


def test_what_weights_are_where_nobody_says():
    facts = Facts("csv", 3, 5, 0.1, 10, sizes=(10, 20, 10), L=1.0, mu=0.1)
    base = {"task": "csv", "epsilon": 2, "clip": 1}
    assert Settings.of(**base).resolve(facts).weights == "equal"
    assert Settings.of(**base, unit="record").resolve(facts).weights == "records"
    assert Settings.of(**base, weights=[1, 2, 1]).resolve(facts).weights == "1,2,1"
    alike = facts._replace(sizes=(10, 10, 10))
    assert alike.weights("records") is None
    assert facts.weights("records") == (0.25, 0.5, 0.25)


@pytest.mark.parametrize(
    "weights", ["1,2", "1,-2,1", "1,inf,1", "1,x,1", "", "1,nan,2", "many", "1e308,1e308,1"]
)
def test_bad_weights_are_refused(weights):
    facts = Facts("csv", 3, 5, 0.1, 10, sizes=(10, 20, 10), L=1.0, mu=0.1)
    with pytest.raises(InvalidValue, match="weights="):
        checked(facts, weights=weights)


def checked(facts, **changes):
    run = Settings.of(task="csv", epsilon=2, clip=1, **changes).resolve(facts)
    return account_of(run, facts, schedule_of(run))


def test_private_numbers_of_records_are_no_weights():
    facts = Facts("csv", 3, 5, 0.1, 10, sizes=None, L=1.0, mu=0.1)
    with pytest.raises(InvalidValue, match="private: give numbers that are public"):
        checked(facts, weights="records")


def test_the_statement_says_how_clients_count():
    result = equipoise.train(
        task="breast-cancer",
        epsilon=4,
        clip=0.5,
        iterations=4,
        clients=4,
        weights="4,1,2,1",
        trust="secure-aggregation",
    )
    text = statement(result)
    assert "in proportion to 4,1,2,1" in text
    assert "multiplies its message by its weight over the largest client's" in text
    assert "Taken as public: how much each client counts: 4,1,2,1." in text
    assert "in proportion to 4,1,2,1" in str(result)


def test_a_result_of_before_weights_is_read_as_equal():
    result = equipoise.train(task="quadratic", epsilon=4, clip=0.5, iterations=4)
    document = result.model_dump(mode="json")
    del document["run"]["weights"]
    assert equipoise.Result.model_validate(document).run.weights == "equal"


def test_the_command_takes_weights(capsys):
    arguments = ["train", "--task", "quadratic", "--clients", "3", "--epsilon", "4", "--clip", "1"]
    code, out, _ = run_command(capsys, *arguments, "--iterations", "4", "--weights", "5,1,1")
    assert code == 0
    assert "clients count in proportion to 5,1,1" in out
    code, _, err = run_command(capsys, *arguments, "--weights", "5,1")
    assert code != 0
    assert "2 for 3 clients" in err


def test_a_plan_knows_weights():
    """A small silo costs a plan nothing where it counts little, and much where it counts fully."""
    task = {"task": "breast-cancer", "clients": 5, "epsilon": 1, "public_records": 60, "seed": 0}
    plans = {
        weights: equipoise.plan(**task, weights=weights, trust="secure-aggregation")
        for weights in (None, "8,8,8,8,1", "1,1,1,1,1")
    }
    assert plans["1,1,1,1,1"].chosen == plans[None].chosen
    assert plans["8,8,8,8,1"].settings.weights == "8,8,8,8,1"
    assert plans["8,8,8,8,1"].nu2 == pytest.approx(plans[None].nu2 * (8 / 33 * 5) ** 2)
