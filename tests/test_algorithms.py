"""The product equals the paper's pseudo-code, and what the theory says about it holds."""

import math

import numpy as np
import pytest
import torch

import paper
from equipoise.algorithms import ALGORITHMS, Hyper
from equipoise.algorithms.dp_fedavg import dp_fedavg
from equipoise.algorithms.dp_fedprox import dp_fedprox
from equipoise.algorithms.dp_scaffnew import State, dp_scaffnew
from equipoise.algorithms.schedule import coin, periodic
from equipoise.errors import InvalidValue
from equipoise.fleets import Broadcast, client_round
from equipoise.privacy import SimulatedNoise
from equipoise.privacy.clip import ClippedRelease, clip
from problems import FINE, GivenNoise, last_model, logistic, quadratic

ETA, SIGMA = 0.3, 0.05
PROBLEMS = [quadratic, logistic]


def drawn_noise(rounds, clients, d, seed=0):
    return np.random.default_rng(seed).normal(0, SIGMA, (rounds, clients, d))


def clipped_share(norms, C):
    return float((norms > C).double().mean())


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("tau", [1, 3, 8])
def test_dp_fedavg_is_algorithm_1(problem, tau):
    task, g = problem()
    N, C, rounds = len(task.clients.sizes), 0.1, 9
    noise = drawn_noise(rounds, N, task.dimension)
    oracle = paper.dp_fedavg(task.x0.numpy(), rounds, tau, ETA, C, noise, g, N)
    x, fleet = last_model(
        task, periodic(rounds * tau, tau), dp_fedavg(ETA), C, GivenNoise(noise, SIGMA), SIGMA
    )
    np.testing.assert_allclose(x.numpy(), oracle, rtol=0, atol=1e-12)
    if tau > 1:
        assert clipped_share(fleet.memory.update.norm(dim=-1), C) > 0, (
            "the clip must act for the test to mean anything"
        )


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("schedule_name", ["periodic", "coin"])
@pytest.mark.parametrize("C", [0.2, math.inf])
def test_dp_scaffnew_is_algorithm_2(problem, schedule_name, C):
    task, g = problem()
    N, p, T = len(task.clients.sizes), 0.25, 48
    schedule = periodic(T, 4) if schedule_name == "periodic" else coin(T, p, seed=3)
    coins = np.zeros(T, dtype=int)
    coins[np.cumsum(schedule) - 1] = 1
    noise = drawn_noise(len(schedule), N, task.dimension)
    oracle, _ = paper.dp_scaffnew(task.x0.numpy(), coins, p, ETA, C, noise, g, N)
    sigma = 0.0 if C == math.inf else SIGMA
    if C == math.inf:  # no noise without clip: the noise is compared with the clip on
        oracle, _ = paper.dp_scaffnew(task.x0.numpy(), coins, p, ETA, C, 0 * noise, g, N)
    x, fleet = last_model(task, schedule, dp_scaffnew(ETA, p), C, GivenNoise(noise, SIGMA), sigma)
    np.testing.assert_allclose(x.numpy(), oracle, rtol=0, atol=1e-12)
    if C < math.inf:
        assert clipped_share(fleet.memory.update.norm(dim=-1), C) > 0


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("tau", [1, 3, 8])
@pytest.mark.parametrize("prox", [0.02, 1.0])
def test_dp_fedprox_is_fedprox(problem, tau, prox):
    task, g = problem()
    N, C, rounds = len(task.clients.sizes), 0.1, 9
    noise = drawn_noise(rounds, N, task.dimension)
    oracle = paper.dp_fedprox(task.x0.numpy(), rounds, tau, ETA, prox, C, noise, g, N)
    given, schedule = GivenNoise(noise, SIGMA), periodic(rounds * tau, tau)
    x, fleet = last_model(task, schedule, dp_fedprox(ETA, prox), C, given, SIGMA)
    np.testing.assert_allclose(x.numpy(), oracle, rtol=0, atol=1e-12)
    plain, _ = last_model(task, schedule, dp_fedavg(ETA), C, given, SIGMA)
    assert torch.equal(x, plain) == (tau == 1), "one step from the broadcast feels no pull"
    if tau > 1:
        assert clipped_share(fleet.memory.update.norm(dim=-1), C) > 0


@pytest.mark.parametrize("problem", PROBLEMS)
def test_dp_fedprox_without_pull_is_dp_fedavg(problem):
    task, _ = problem()
    noise = SimulatedNoise(3)
    models = [
        last_model(task, periodic(24, 4), algorithm, 0.1, noise, SIGMA)[0]
        for algorithm in (dp_fedprox(ETA, 0.0), dp_fedavg(ETA))
    ]
    assert torch.equal(*models)


def test_a_strong_pull_holds_clients_near_the_broadcast():
    """To the limit: the local minimiser of F_i + (prox/2)|x_i - x|^2 is (A_i + prox)^-1 away."""
    task, _ = quadratic()
    for prox in (0.1, 1.0, 10.0):
        _, fleet = last_model(task, (3000,), dp_fedprox(1 / (1 + prox), prox))
        gradients = task.clients.gradient(task.x0.expand(5, -1), 0)
        bent = task.clients.A + prox * torch.eye(10, dtype=torch.float64)
        expected = -torch.linalg.solve(bent, gradients)
        torch.testing.assert_close(fleet.memory.update, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("C", [0.2, 1e9])
def test_periodic_dp_scaffnew_is_scaffold_with_one_release(C):
    task, g = logistic()
    N, tau, rounds = len(task.clients.sizes), 6, 8
    noise = drawn_noise(rounds, N, task.dimension)
    oracle = paper.scaffold_in_one_message(task.x0.numpy(), rounds, tau, ETA, C, noise, g, N)
    x, _ = last_model(
        task,
        periodic(rounds * tau, tau),
        dp_scaffnew(ETA, 1 / tau),
        C,
        GivenNoise(noise, SIGMA),
        SIGMA,
    )
    np.testing.assert_allclose(x.numpy(), oracle, rtol=0, atol=1e-12)


def test_p_1_is_gradient_descent():
    task, g = quadratic()
    x = task.x0.numpy()
    for k in range(20):
        x = x - ETA * np.mean([g(i, x, k) for i in range(5)], axis=0)
    for algorithm in (dp_scaffnew(ETA, 1.0), dp_fedavg(ETA)):
        ours, _ = last_model(task, periodic(20, 1), algorithm)
        np.testing.assert_allclose(ours.numpy(), x, rtol=0, atol=1e-12)


def test_frozen_h_is_fedavg():
    task, _ = quadratic()
    moving = dp_scaffnew(ETA, 0.25)
    frozen = moving._replace(
        local_round=lambda x, state, steps, g: moving.local_round(x, moving.init(x), steps, g)
    )
    noise = GivenNoise(drawn_noise(6, 5, 10), SIGMA)
    schedule = periodic(24, 4)
    a, _ = last_model(task, schedule, frozen, 0.2, noise, SIGMA)
    b, _ = last_model(task, schedule, dp_fedavg(ETA), 0.2, noise, SIGMA)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def test_h_vanishes_where_clients_share_a_minimiser():
    task, _ = quadratic()
    task.clients.b[:] = task.clients.b[0]
    x, fleet = last_model(task, periodic(30_000, 10), dp_scaffnew(1.0, 0.1))
    assert fleet.memory.state.h.norm(dim=-1).max() < 1e-9
    torch.testing.assert_close(x, task.clients.b[0], rtol=0, atol=1e-9)


@pytest.mark.slow
def test_scaffnew_converges_linearly_where_fedavg_stalls():
    """No noise, no clip, kappa = 100 (theory: rho = max(1 - eta mu, 1 - p^2) per iteration)."""
    task, _ = quadratic()
    best = task.clients.minimiser
    start = (task.x0 - best).norm() ** 2
    distances = []
    for T in (500, 1000, 2000):
        x, _ = last_model(task, periodic(T, 10), dp_scaffnew(1.0, 0.1))
        distances.append(float((x - best).norm() ** 2 / start))
    assert distances[-1] < 1e-8
    assert distances[1] < 0.1 * distances[0]
    assert distances[2] < 0.1 * distances[1]
    for tau in (2, 5, 10):
        x, _ = last_model(task, periodic(4000, tau), dp_fedavg(1.0))
        twice, _ = last_model(task, periodic(8000, tau), dp_fedavg(1.0))
        assert float((x - best).norm() ** 2 / start) > 1e-3
        torch.testing.assert_close(x, twice, rtol=0, atol=1e-6)  # a fixed point, and the wrong one


def test_clipped_h_is_the_papers_until_the_clip_acts():
    task, _ = quadratic()
    schedule = periodic(40, 4)
    paper_h, _ = last_model(task, schedule, dp_scaffnew(ETA, 0.25), 1e6)
    clipped_h, _ = last_model(task, schedule, dp_scaffnew(ETA, 0.25, "clipped", 1e6), 1e6)
    assert torch.equal(paper_h, clipped_h)
    noise = GivenNoise(drawn_noise(10, 5, 10), SIGMA)
    C = 0.05
    _, fleet = last_model(task, schedule, dp_scaffnew(ETA, 0.25, "clipped", C), C, noise, SIGMA)
    assert fleet.memory.update.norm(dim=-1).min() > C
    bound = 0.25 / ETA * (2 * C + SIGMA * 10**0.5 * 5)  # (p/eta)(2C + |mean noise|)
    assert fleet.memory.state.h.norm(dim=-1).max() < bound


def test_clipped_h_formula():
    """h = (p/eta)(x_new - x - clip(update)), theory 1.4, one round at a time."""
    task, _ = quadratic()
    p, C = 0.25, 0.05
    algorithm = dp_scaffnew(ETA, p, "clipped", C)
    x = task.x0.expand(5, -1)
    update, state = algorithm.local_round(x, algorithm.init(x), range(4), task.clients.gradient)
    x_new, release = x + 0.37, update + 1.7
    _, after = algorithm.local_round(
        x_new, algorithm.after_release(state, update, release), range(4, 8), task.clients.gradient
    )
    torch.testing.assert_close(after.h, p / ETA * (x_new - x - clip(update, C)), rtol=0, atol=1e-13)
    heard = dp_scaffnew(ETA, p, "released").after_release(state, update, release)
    _, after = algorithm.local_round(x_new, heard, range(4, 8), task.clients.gradient)
    torch.testing.assert_close(after.h, p / ETA * (x_new - x - release), rtol=0, atol=1e-13)


def test_what_is_remembered_of_a_release_holds_nothing_else():
    """Not a bit: two clients that made different updates, and released the same, remember the
    same."""
    generator = torch.Generator().manual_seed(0)
    x, h, release = (torch.randn(3, 10, dtype=torch.float64, generator=generator) for _ in range(3))
    algorithm = dp_scaffnew(0.37, 0.3, "released")
    remembered = []
    for _ in range(2):
        state = State(h, torch.randn(3, 10, dtype=torch.float64, generator=generator), x)
        update = state.x_hat - 0.37 / 0.3 * h - x
        remembered.append(algorithm.after_release(state, update, release))
    assert all(torch.equal(one, other) for one, other in zip(*remembered, strict=True))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_one_client_all_clients_and_stacked_runs_agree(name, problem):
    """[d], [clients, d] and [runs, clients, d] give the same numbers up to 1e-12: only the order of
    sums differs."""
    task, _ = problem()
    N, schedule = len(task.clients.sizes), periodic(24, 4)
    etas, ps, clips = [0.3, 0.1, 0.2], [0.25, 0.25, 0.25], [0.2, 0.05, 1.0]

    def build(eta, p, C):
        return ALGORITHMS[name].make(Hyper(eta, p, C, {}))

    def column(values):
        return torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1)

    single = [
        last_model(task, schedule, build(eta, p, C), C, SimulatedNoise(1), SIGMA)[0]
        for eta, p, C in zip(etas, ps, clips, strict=True)
    ]
    stack_x0 = task.x0.expand(3, -1)
    stacked, _ = last_model(
        task,
        schedule,
        build(column(etas), column(ps), column(clips)),
        column(clips),
        SimulatedNoise(1),
        SIGMA,
        x0=stack_x0,
    )
    torch.testing.assert_close(stacked, torch.stack(single), rtol=0, atol=1e-12)

    algorithm, iteration = build(etas[0], ps[0], clips[0]), 0
    x = algorithm.begin(task.x0)
    states = [algorithm.init(x) for _ in range(N)]
    for k, steps in enumerate(schedule, start=1):
        releases = []
        for i in range(N):
            release, memory = client_round(
                Broadcast(k, range(iteration, iteration + steps), x),
                states[i],
                algorithm,
                ClippedRelease(clips[0], SIGMA, FINE),
                task.clients.alone(i).gradient,
                SimulatedNoise(1, first_client=i),
            )
            states[i] = memory.state
            releases.append(release.update)
        x = algorithm.server(x, torch.stack(releases).mean(0), 1.0)
        iteration += steps
    torch.testing.assert_close(x[: task.dimension], single[0], rtol=0, atol=1e-12)


def test_gamma_scales_the_server_step_and_h_hears_the_broadcast():
    task, g = quadratic()
    gamma, p, C, N = 0.4, 0.25, 0.2, 5
    noise = drawn_noise(10, N, 10)
    x, _ = last_model(
        task, periodic(40, 4), dp_scaffnew(ETA, p), C, GivenNoise(noise, SIGMA), SIGMA, gamma
    )
    model, h = task.x0.numpy(), np.zeros((N, 10))
    for k in range(10):
        sent, heard = [], []
        for i in range(N):
            y = model
            for _ in range(4):
                y = y - ETA * (g(i, y, 0) - h[i])
            sent.append(paper.clip(y - ETA / p * h[i] - model, C) + noise[k][i])
            heard.append(y)
        model = model + gamma * np.mean(sent, axis=0)
        h = h + p / ETA * (model - np.array(heard))
    np.testing.assert_allclose(x.numpy(), model, rtol=0, atol=1e-12)


def test_a_client_that_overflows_starts_afresh():
    """It releases zero and noise, and its control variate does not stay poisoned."""
    task, _ = quadratic()

    def gradient(x, t):
        g = task.clients.gradient(x, t)
        return torch.where((torch.arange(5) == 2)[:, None], torch.nan, g) if t == 5 else g

    x = task.x0.expand(5, -1)
    algorithm, mechanism, noise = (
        dp_scaffnew(ETA, 0.25),
        ClippedRelease(0.2, SIGMA),
        SimulatedNoise(0),
    )
    state = algorithm.init(x)
    for k in range(3):
        release, memory = client_round(
            Broadcast(k, range(4 * k, 4 * k + 4), x), state, algorithm, mechanism, gradient, noise
        )
        state = memory.state
        assert release.update.isfinite().all()
        if k == 1:
            steps = noise.whole("rounded", 1, (5, 10), SIGMA / mechanism.lattice.gamma)[2]
            assert torch.equal(release.update[2], mechanism.lattice.gamma * torch.tensor(steps))
            assert memory.update[2].isnan().any()
        x = x + release.update.mean(0)
    assert memory.update.isfinite().all()
    assert all(part.isfinite().all() for part in state)


def test_schedules():
    assert periodic(12, 4) == (4, 4, 4)
    drawn = coin(1000, 0.1, seed=7)
    assert sum(drawn) == 1000
    assert drawn == coin(1000, 0.1, seed=7) != coin(1000, 0.1, seed=8)
    assert 60 < len(drawn) < 140
    assert coin(5, 1.0, seed=0) == (1, 1, 1, 1, 1)
    for seed in range(50):  # the last iteration communicates, whatever the coin says
        assert sum(coin(3, 0.01, seed)) == 3
    with pytest.raises(InvalidValue, match="nearest divisors are 4 and 6"):
        periodic(12, 5)
    with pytest.raises(InvalidValue, match=r"nearest divisor is 12$"):
        periodic(12, 13)
    with pytest.raises(
        InvalidValue, match=r"p=4 is not in \(0, 1\].*not the number of local steps"
    ):
        coin(12, 4, seed=0)
