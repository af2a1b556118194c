"""The algorithms that the paper compares with, or builds on: each equals the pseudo-code of its own
source, and does what that source says of it."""

import math

import numpy as np
import pytest
import torch

import equipoise
import paper
from equipoise.algorithms import ALGORITHMS, Hyper
from equipoise.algorithms.dp_fedavg import dp_fedavg
from equipoise.algorithms.dp_fedpd import dp_fedpd
from equipoise.algorithms.dp_fedprox import dp_fedprox
from equipoise.algorithms.dp_fedsplit import State, dp_fedsplit
from equipoise.algorithms.dp_scaffnew import dp_scaffnew
from equipoise.algorithms.scaffold import scaffold
from equipoise.algorithms.schedule import coin, periodic
from equipoise.errors import InvalidValue
from equipoise.fleets import SimulatedFleet, server_rounds
from equipoise.privacy import SimulatedNoise, epsilon_spent
from equipoise.privacy.clip import ClippedRelease
from equipoise.settings import Settings
from equipoise.tasks import TaskOptions, load_task
from problems import GivenNoise, last_model, logistic, quadratic

ETA, SIGMA = 0.3, 0.05
PROBLEMS = [quadratic, logistic]
NOT_PRIVATE = ["fedavg", "scaffnew", "fedprox", "scaffold"]
SMALL = {"task": "breast-cancer", "clients": 8, "iterations": 12, "local_steps": 3, "clip": 0.2}


def drawn_noise(rounds, clients, d, seed=0):
    return np.random.default_rng(seed).normal(0, SIGMA, (rounds, clients, d))


def made(name, eta=ETA, p=1.0, C=math.inf, **options):
    return ALGORITHMS[name].make(Hyper(eta, p, C, options))


def close(x, oracle, tolerance=1e-12):
    np.testing.assert_allclose(x.numpy(), oracle, rtol=0, atol=tolerance)


def acts(fleet, C):
    """The clip must act for a test to mean anything."""
    assert (fleet.memory.update.norm(dim=-1) > C).any()


def optimum(task):
    A, b = task.clients.A, task.clients.b
    return torch.linalg.solve(A.mean(0), (A @ b.unsqueeze(-1)).squeeze(-1).mean(0))


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("tau", [1, 4])
def test_fedavg_and_fedprox_are_their_own(problem, tau):
    task, g = problem()
    N, rounds, x0 = len(task.clients.sizes), 9, task.x0.numpy()
    schedule = periodic(rounds * tau, tau)
    oracle = paper.fedavg(x0, rounds, tau, ETA, g, N)
    close(last_model(task, schedule, made("fedavg"))[0], oracle)
    oracle = paper.fedprox(x0, rounds, tau, ETA, 0.4, g, N)
    close(last_model(task, schedule, made("fedprox", prox=0.4))[0], oracle)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("tau", [1, 4])
def test_fedprox_that_sends_models_is_nbafl(problem, tau):
    task, g = problem()
    N, rounds = len(task.clients.sizes), 9
    C = 0.05 if problem is logistic else 0.5
    noise = drawn_noise(rounds, N, task.dimension)
    oracle = paper.nbafl(task.x0.numpy(), rounds, tau, ETA, 0.4, C, noise, g, N)
    algorithm = dp_fedprox(ETA, 0.4, "model")
    given = GivenNoise(noise, SIGMA)
    x, fleet = last_model(task, periodic(rounds * tau, tau), algorithm, C, given, SIGMA)
    close(x, oracle)
    acts(fleet, C)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", ["scaffnew", "dp-scaffnew"])
def test_scaffnew_is_proxskip(problem, name):
    task, g = problem()
    N, T, p = len(task.clients.sizes), 48, 0.25
    schedule = coin(T, p, seed=3)
    coins = np.zeros(T, dtype=int)
    coins[np.cumsum(schedule) - 1] = 1
    oracle = paper.scaffnew(task.x0.numpy(), coins, p, ETA, g, N)
    close(last_model(task, schedule, made(name, p=p))[0], oracle)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("gamma", [1.0, 0.7])
def test_scaffold_is_its_algorithm_1(problem, option, gamma):
    task, g = problem()
    N, rounds, K = len(task.clients.sizes), 8, 5
    x0 = task.x0.numpy()
    oracle = paper.scaffold(x0, rounds, K, ETA, gamma, option, g, N)
    algorithm = made("scaffold", p=1 / K, variates=option)
    close(last_model(task, periodic(rounds * K, K), algorithm, gamma=gamma)[0], oracle)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_scaffold_ii_is_periodic_scaffnew(problem):
    task, _ = problem()
    models = [
        last_model(task, periodic(40, 5), algorithm)[0]
        for algorithm in (scaffold(ETA, 0.2), dp_scaffnew(ETA, 0.2))
    ]
    torch.testing.assert_close(*models, rtol=0, atol=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("gamma", [1.0, 0.7])
@pytest.mark.parametrize("warm_up", ["no", "yes"])
def test_dp_scaffold_is_its_algorithm_1(problem, gamma, warm_up):
    """With noise in the gradients: the message leaves as it is."""
    task, g = problem()
    N, rounds, K = len(task.clients.sizes), 7, 4
    noise = drawn_noise(rounds * K, N, task.dimension)

    def noised(i, y, k):
        return g(i, y, k) + noise[k][i]

    def gradient(x, t):
        return task.clients.gradient(x, t) + torch.tensor(noise[t])

    x0, warm = task.x0.numpy(), warm_up == "yes"
    oracle = paper.dp_scaffold(x0, rounds, K, ETA, gamma, noised, N, warm)
    algorithm = made("dp-scaffold", p=1 / K, warm_up=warm_up)
    fleet = SimulatedFleet(N, gradient, algorithm, ClippedRelease(math.inf, 0.0), None)
    *_, last = server_rounds(task.x0, periodic(rounds * K, K), fleet, algorithm, gamma)
    close(last.x, oracle)


@pytest.mark.parametrize("noise_in", ["gradient", "hidden-gradient"])
def test_dp_scaffold_is_dp_scaffnew_for_one_record(noise_in):
    """With all clients, and server step 1; where messages are rounded, up to that."""
    how = {**SMALL, "unit": "record", "epsilon": 2, "noise_in": noise_in, "simulate_noise_seed": 3}
    one, other = (equipoise.train(**how, algorithm=f"dp-scaff{end}") for end in ("old", "new"))
    near = 1e-12 if noise_in == "gradient" else 20 * one.lattice
    np.testing.assert_allclose(one.x, other.x, rtol=0, atol=near)
    assert one.account == other.account
    slower = equipoise.train(**how, algorithm="dp-scaffold", gamma=0.5)
    other = equipoise.train(**how, algorithm="dp-scaffnew", gamma=0.5)
    assert not np.allclose(slower.x, other.x)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("steps", [1, 6])
def test_dp_fedsplit_is_fedsplit(problem, steps):
    task, g = problem()
    N, rounds, C, prox = len(task.clients.sizes), 9, 0.1, 0.25
    noise = drawn_noise(rounds, N, task.dimension)
    oracle = paper.dp_fedsplit(task.x0.numpy(), rounds, steps, 1 / prox, ETA, C, noise, g, N)
    algorithm = made("dp-fedsplit", C=C, prox=prox)
    given = GivenNoise(noise, SIGMA)
    x, fleet = last_model(task, periodic(rounds * steps, steps), algorithm, C, given, SIGMA)
    close(x, oracle)
    acts(fleet, C)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(("steps", "solve_steps"), [(1, 0), (6, 0), (6, 2), (6, 6)])
def test_dp_fedpd_is_fedpd(problem, steps, solve_steps):
    task, g = problem()
    N, rounds, C, prox = len(task.clients.sizes), 9, 0.1, 0.5
    Q = solve_steps or steps
    noise = drawn_noise(rounds, N, task.dimension)
    oracle = paper.dp_fedpd(task.x0.numpy(), rounds, steps // Q, Q, 1 / prox, ETA, C, noise, g, N)
    algorithm = made("dp-fedpd", C=C, prox=prox, solve_steps=solve_steps)
    given = GivenNoise(noise, SIGMA)
    x, fleet = last_model(task, periodic(rounds * steps, steps), algorithm, C, given, SIGMA)
    close(x, oracle)
    acts(fleet, C)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(("beta", "catch_up"), [(1.0, 1.0), (0.3, 0.6)])
def test_clip21_is_clip21_sgd2m(problem, beta, catch_up):
    """One local step; the product speaks of progress, which is -eta times a gradient."""
    task, g = problem()
    N, rounds, tau = len(task.clients.sizes), 12, 0.02
    noise = drawn_noise(rounds, N, task.dimension)
    x0, omega = task.x0.numpy(), -noise / ETA
    oracle = paper.clip21_sgd2m(x0, rounds, ETA, beta, catch_up, tau, omega, g, N)
    C = ETA * tau
    algorithm = made("clip21-sgd2m", C=C, momentum=beta, catch_up=catch_up)
    given = GivenNoise(noise, SIGMA)
    x, fleet = last_model(task, periodic(rounds, 1), algorithm, C, given, SIGMA)
    close(x, oracle, 1e-11)
    acts(fleet, C)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("steps", [1, 3])
def test_fed_norm_ec_is_fed_alpha_norm_ec(problem, steps):
    task, g = problem()
    N, rounds, C, gamma = len(task.clients.sizes), 12, 0.2, 0.6
    noise = drawn_noise(rounds, N, task.dimension)
    x0, z = task.x0.numpy(), -noise / C
    oracle = paper.fed_norm_ec(x0, rounds, steps, ETA, gamma * C, 0.3, 0.7, z, g, N)
    algorithm = made("fed-norm-ec", C=C, alpha=0.3, beta=0.7)
    given = GivenNoise(noise, SIGMA)
    schedule = periodic(rounds * steps, steps)
    x, fleet = last_model(task, schedule, algorithm, C, given, SIGMA, gamma)
    close(x, oracle, 1e-11)
    assert (fleet.memory.update.norm(dim=-1) < C).all(), "no message is as long as C"


def test_what_converges_without_noise_where_its_theory_says_so():
    """kappa = 100, clients with different minimisers, eight local steps."""
    task, _ = quadratic()
    best, tau = optimum(task), 8
    schedule, p = periodic(40_000, tau), 1 / tau
    far = {
        "fedavg": made("fedavg"),
        "fedprox": made("fedprox", prox=0.1),
    }
    exact = {
        "scaffnew": made("scaffnew", p=p),
        "scaffold I": made("scaffold", eta=0.05, p=p, variates="I"),
        "scaffold II": made("scaffold", p=p),
        "dp-fedsplit": made("dp-fedsplit", prox=0.3),
        "dp-fedpd": made("dp-fedpd", prox=0.3),
    }
    for name, algorithm in far.items():
        x, _ = last_model(task, schedule, algorithm)
        assert (x - best).norm() > 1e-3, name
    for name, algorithm in exact.items():
        x, _ = last_model(task, schedule, algorithm)
        assert (x - best).norm() < 1e-6, name


def test_where_fedsplit_and_fedpd_stand_still():
    """FedSplit at z_i = x* - s grad f_i(x*): nothing is sent. FedPD with duals -grad f_i(x*): what
    is sent has mean zero."""
    task, _ = quadratic()
    best = optimum(task).expand(5, -1)
    gradients, prox = task.clients.gradient(best, 0), 0.5
    split = dp_fedsplit(ETA, prox, math.inf, {})
    state = State(best - gradients / prox)
    update, _ = split.local_round(best, state, range(5), task.clients.gradient)
    assert update.abs().max() < 1e-12
    pd = dp_fedpd(ETA, prox)
    state = pd.init(best)._replace(dual=-gradients)
    update, after = pd.local_round(best, state, range(5), task.clients.gradient)
    torch.testing.assert_close(update, -gradients / prox, rtol=0, atol=1e-12)
    assert update.mean(0).abs().max() < 1e-12
    torch.testing.assert_close(after.dual, -gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["clip21-sgd2m", "dp-fedsplit"])
def test_error_feedback_converges_where_clipping_is_biased(name):
    """Clients' gradients at the optimum are longer than the threshold: DP-FedAvg never arrives."""
    task, _ = quadratic()
    best, C, schedule = optimum(task), 0.02, periodic(20_000, 1)
    own = task.clients.gradient(best.expand(5, -1), 0)
    assert (ETA * own.norm(dim=-1) > C).sum() >= 2, "or clipping has no bias"
    biased, _ = last_model(task, schedule, dp_fedavg(ETA), C)
    options = {"prox": 0.3} if name == "dp-fedsplit" else {}
    x, _ = last_model(task, schedule, made(name, C=C, **options), C)
    assert (biased - best).norm() > 100 * (x - best).norm()
    assert (x - best).norm() < 1e-3


def test_fed_norm_ec_arrives_within_steps_of_the_optimum():
    """Its steps have length C: without noise it ends about as near as that."""
    task, _ = quadratic()
    best = optimum(task)
    for C in (0.1, 0.01):
        algorithm = made("fed-norm-ec", C=C, alpha=0.1, beta=0.1)
        x, _ = last_model(task, periodic(4000, 1), algorithm, C)
        assert (x - best).norm() < 4 * C, "it began at a distance of 1"


@pytest.mark.parametrize("name", ["dp-fedsplit", "clip21-sgd2m", "fed-norm-ec"])
def test_feedback_hears_the_release_and_nothing_else(name):
    """Two clients with different updates and the same release remember the same; clipped ones
    do not hear their noise."""
    C, x = 0.1, torch.zeros(2, 6, dtype=torch.float64)
    updates = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    release = torch.ones(2, 6, dtype=torch.float64)
    for feedback in ("released", "clipped"):
        algorithm = made(name, C=C, feedback=feedback)
        state = algorithm.init(algorithm.begin(x))
        after = algorithm.after_release(state, updates, release)
        kept = after.z if name == "dp-fedsplit" else after.g_i
        assert torch.equal(kept[0], kept[1]) == (feedback == "released")
        other = algorithm.after_release(state, updates, 2 * release)
        again = other.z if name == "dp-fedsplit" else other.g_i
        assert torch.equal(kept, again) == (feedback == "clipped")


@pytest.mark.parametrize("name", ["dp-fedsplit", "clip21-sgd2m", "fed-norm-ec"])
def test_released_feedback_lets_no_noise_pile_up(name):
    """The server's estimate, or its model, stays the mean of the clients' own: with clipped
    feedback the noise of all rounds is between them."""
    task, _ = quadratic()
    N, rounds, C = 5, 60, 0.1
    apart = {}
    for feedback in ("clipped", "released"):
        algorithm = made(name, C=C, feedback=feedback)
        releaser = ClippedRelease(C, 0.01)
        noise = SimulatedNoise(0)
        fleet = SimulatedFleet(N, task.clients.gradient, algorithm, releaser, noise)
        known = algorithm.begin(task.x0)
        server = algorithm.server

        def remember(x, mean, gamma, server=server):
            nonlocal known
            known = server(x, mean, gamma)
            return known

        watched = algorithm._replace(server=remember)
        list(server_rounds(task.x0, periodic(rounds, 1), fleet, watched))
        state = fleet.memory.state
        if name == "dp-fedsplit":
            apart[feedback] = float((state.z.mean(0) - known).norm())
        else:
            apart[feedback] = float((state.g_i.mean(0) - known[10:]).norm())
    assert apart["released"] < 1e-9
    assert apart["clipped"] > 1e-2


@pytest.mark.parametrize("name", NOT_PRIVATE)
def test_what_is_not_private_takes_no_budget(name):
    with pytest.raises(InvalidValue, match=f"algorithm={name}, which is not private: use dp-"):
        equipoise.train(**SMALL, algorithm=name, epsilon=2)
    with pytest.raises(InvalidValue, match="which is not private"):
        equipoise.train(**SMALL, algorithm=name, epsilon=math.inf)
    result = equipoise.train(**{**SMALL, "clip": None}, algorithm=name, epsilon=math.inf)
    assert not result.private
    assert result.test_error < 0.3
    with pytest.raises(InvalidValue, match=f"algorithm={name} is not private: there is nothing"):
        equipoise.plan(task="breast-cancer", epsilon=2, algorithm=name)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"algorithm": "dp-scaffold"}, "unit=client with algorithm=dp-scaffold: its variates are"),
        ({"algorithm": "clip21-sgd2m", "unit": "record"}, "no message is clipped: use unit=client"),
        ({"algorithm": "fed-norm-ec", "unit": "record"}, "no message is bounded: use unit=client"),
        ({"algorithm": "dp-fedpd", "prox": 0}, "prox=0.0 with algorithm=dp-fedpd"),
        ({"algorithm": "dp-fedpd", "solve_steps": 1.5}, "solve_steps=1.5 is not a whole number"),
        (
            {"algorithm": "dp-fedsplit", "feedback": "released", "trust": "secure-aggregation"},
            "feedback=released under trust=secure-aggregation",
        ),
        (
            {"algorithm": "dp-fedprox", "sends": "model", "unit": "record"},
            "sends=model with unit=record: no message is clipped",
        ),
        (
            {"algorithm": "dp-fedsplit", "unit": "record", "noise_in": "message"},
            "not plain gradient steps",
        ),
        (
            {"algorithm": "dp-fedpd", "unit": "record", "noise_in": "hidden-gradient"},
            "not plain gradient steps",
        ),
        (
            {"algorithm": "dp-scaffold", "unit": "record", "schedule": "coin", "p": 0.5,
             "local_steps": None},
            "schedule=coin with SCAFFOLD",
        ),
    ],
)  # fmt: skip
def test_what_an_algorithm_cannot_do_is_refused(how, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        equipoise.train(**{**SMALL, "epsilon": 2, **how})


PRIVATE = [(name, unit) for name, spec in ALGORITHMS.items() for unit in spec.units]


@pytest.mark.parametrize(("name", "unit"), PRIVATE)
def test_each_spends_the_budget_and_learns(name, unit):
    """At a budget that is no hindrance, through `train`, in every unit it protects."""
    of_client = {"clients": 40, "trust": "secure-aggregation", "clip": 0.3}
    of_record = {"clip": 2.0, "iterations": 60}
    how = {**SMALL, **(of_client if unit == "client" else of_record)}
    result = equipoise.train(**how, algorithm=name, unit=unit, epsilon=20, simulate_noise_seed=0)
    assert result.epsilon_spent == pytest.approx(20, rel=1e-6)
    assert result.account == equipoise.train(**how, unit=unit, epsilon=20).account
    assert result.test_error < 0.25, "the best constant answer has 0.4"


@pytest.mark.parametrize("name", [name for name, unit in PRIVATE if unit == "client"])
def test_each_shares_noise_under_secure_aggregation(name):
    how = {**SMALL, "trust": "secure-aggregation", "epsilon": 3}
    result = equipoise.train(**how, algorithm=name)
    assert result.private
    assert result.account == equipoise.train(**how).account


def test_nbafl_s_rule_is_as_printed_and_says_what_it_spends():
    """sigma = sqrt(2 ln(1.25/delta)) L (2C/m) / epsilon: far less than one client needs."""
    how = {**SMALL, "noise_rule": "nbafl", "algorithm": "dp-fedprox", "sends": "model"}
    result = equipoise.train(**how, epsilon=2, delta=1e-5)
    task = load_task("breast-cancer", TaskOptions(clients=8))
    m = min(task.clients.sizes)
    expected = math.sqrt(2 * math.log(1.25e5)) * 4 * (2 * 0.2 / m) / 2
    assert result.account.sigma == pytest.approx(expected, rel=1e-12)
    assert not result.private
    assert result.epsilon_spent > 20
    spent = epsilon_spent(expected, 4, 2 * 0.2, 1e-5)
    assert result.epsilon_spent == pytest.approx(spent, rel=1e-9)
    assert any("NOT PRIVATE AT ITS LABEL" in notice for notice in result.notices)
    with pytest.raises(InvalidValue, match=r"v=1\.0 belongs to noise_rule=lemma1"):
        equipoise.train(**how, epsilon=2, v=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "unit"), [("dp-scaffold", "record"), ("dp-fedpd", "record"), ("fed-norm-ec", "client")]
)
def test_each_is_planned_and_its_plan_is_trained(name, unit):
    question = {"task": "breast-cancer", "clients": 5, "epsilon": 8, "iterations": 16, "unit": unit}
    places = {"noise_in": "gradient"} if unit == "record" else {"trust": "secure-aggregation"}
    plan = equipoise.plan(**question, **places, algorithm=name)
    assert plan.chosen.algorithm == name
    result = equipoise.train(plan)
    assert result.run.algorithm == name
    assert result.epsilon_spent <= 8
    assert result.test_error < 0.2


@pytest.mark.slow
def test_all_that_protect_the_unit_are_planned_side_by_side():
    question = {"task": "breast-cancer", "epsilon": 8, "clip": 0.3, "iterations": 8}
    plan = equipoise.plan(**question, trust="secure-aggregation", algorithm="all")
    origins = {option.algorithm for option in plan.options if option.algorithm}
    assert origins >= {name for name, spec in ALGORITHMS.items() if "client" in spec.units}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"algorithm": "dp-scaffold", "unit": "record", "warm_up": "yes", "iterations": 4,
             "local_steps": 4},
            "warm_up=yes with iterations=4 and local_steps=4: the only round would find",
        ),
        (
            {"algorithm": "dp-scaffold", "unit": "record", "warm_up": "yes", "iterations": 8,
             "local_steps": 4, "noise_in": "hidden-gradient"},
            "warm_up=yes with noise_in=hidden-gradient: all gradients of the first round",
        ),
        (
            {"algorithm": "dp-fedprox", "sends": "model", "neighbours": "zero-out"},
            "sends=model with neighbours=zero-out",
        ),
    ],
)  # fmt: skip
def test_what_would_promise_too_much_or_do_nothing_is_refused(given, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        Settings.of(task="breast-cancer", epsilon=1.0, clip=1.0, **given)
