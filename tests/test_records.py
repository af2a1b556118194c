"""One record as the unit of privacy: accounting, the noisy gradient, stability, bad input, and an
attack."""

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from equipoise import DataError, InvalidValue, UnsafeModel, accuracy, own_task, train
from equipoise.algorithms.dp_fedavg import dp_fedavg
from equipoise.algorithms.dp_scaffnew import dp_scaffnew
from equipoise.algorithms.schedule import periodic
from equipoise.fleets import SimulatedFleet, server_rounds
from equipoise.privacy.clip import ClippedRelease, own_lattice
from equipoise.privacy.gaussian import epsilon_spent, noise_sigma
from equipoise.privacy.lattice import NOT_ROUNDED
from equipoise.privacy.noise import SecretNoise, SimulatedNoise
from equipoise.privacy.noisy_gradient import NoisyGradient
from equipoise.privacy.sampled import sampled_epsilon, sampled_noise
from equipoise.privacy.stability import Stability
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.linear import LOGISTIC, MULTINOMIAL, least_squares, linear_clients
from equipoise.tasks.task import Table
from equipoise.training import prepare
from problems import FINE

SETTINGS = list(itertools.product((0.01, 0.05, 0.2, 0.5), (0.8, 1.5, 4.0), (20, 300)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
@pytest.mark.parametrize(("rate", "noise", "steps"), SETTINGS)
def test_sampled_epsilon_against_prv_and_rdp(rate, noise, steps):
    """Add-remove: never above Opacus' PRV upper estimate by more than 1e-3, and never above RDP."""
    from opacus.accountants import PRVAccountant, RDPAccountant

    ours = sampled_epsilon(noise, steps, rate, 1e-5, "add-remove")
    accountants = PRVAccountant(), RDPAccountant()
    for accountant in accountants:
        accountant.history = [(noise, rate, steps)]
    prv, rdp = (float(accountant.get_epsilon(1e-5)) for accountant in accountants)
    assert ours <= prv + 1e-3
    assert ours <= rdp
    if prv < 20:
        assert ours >= prv - 0.02 - 0.01 * prv  # PRV's own error bars


@pytest.mark.parametrize("steps", [1, 40, 1000])
@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
def test_without_sampling_the_calculus_is_exact(steps, neighbours):
    """At rate 1 it is the exact Gaussian calculus, and PLD agrees with it: sensitivity 2C for
    replace-one, C for add-remove."""
    from equipoise.privacy.sampled import Sampled, _composed

    over_clip = {"replace-one": 2.0, "add-remove": 1.0}[neighbours]
    noise = sampled_noise(2.0, 1e-5, steps, 1.0, neighbours)
    assert noise == noise_sigma(2.0, 1e-5, steps, over_clip)
    assert (
        sampled_epsilon(noise, steps, 1.0, 1e-5, neighbours)
        == epsilon_spent(noise, steps, over_clip, 1e-5)
        <= 2.0
    )
    composed = _composed(Sampled(noise, steps, 1.0, neighbours), 1e-4)
    assert composed.get_epsilon(1e-5) == pytest.approx(2.0, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("rate", "steps"), [(0.1, 64), (0.02, 300)])
def test_sampled_noise_is_enough_and_no_more(rate, steps, neighbours):
    noise = sampled_noise(2.0, 1e-5, steps, rate, neighbours)
    assert sampled_epsilon(noise, steps, rate, 1e-5, neighbours) <= 2.0
    assert sampled_epsilon(noise * 0.998, steps, rate, 1e-5, neighbours) > 2.0
    assert noise < noise_sigma(
        2.0, 1e-5, steps, {"replace-one": 2.0, "add-remove": 1.0}[neighbours]
    )


def logistic(clients=3, records=7, features=4, seed=0, link=LOGISTIC, norm=1.0):
    rng = np.random.default_rng(seed)
    tables = []
    for _ in range(clients):
        rows = rng.standard_normal((records, features))
        rows *= norm / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), norm)
        outputs = 3 if link is MULTINOMIAL else 1
        targets = (
            np.eye(3)[rng.integers(3, size=records)]
            if outputs == 3
            else rng.integers(2, size=(records, 1)) * 1.0
        )
        tables.append(Table(rows, targets))
    return linear_clients(tables, link, 0.01, None, 0)


def slow_clipped_sum(clients, x, chosen, C):
    """One record at a time, by autograd."""
    total = torch.zeros_like(x)
    for i, j in itertools.product(range(len(clients.sizes)), range(max(clients.sizes))):
        if j >= clients.sizes[i] or not (chosen is None or chosen[i, j]):
            continue
        w = x[i].clone().requires_grad_()
        outputs = (w.reshape(clients.targets.shape[-1], -1) @ clients.features[i, j])[None]
        (g,) = torch.autograd.grad(clients.link.loss(outputs, clients.targets[i, j][None]).sum(), w)
        total[i] += g * min(1.0, C / float(g.norm()))
    return total


@pytest.mark.parametrize(
    "link",
    [LOGISTIC, MULTINOMIAL, least_squares(1.0)],
    ids=["logistic", "multinomial", "least squares"],
)
@pytest.mark.parametrize("C", [0.1, 0.6, math.inf])
def test_clipped_sum_of_linear_models(link, C):
    clients = logistic(link=link)
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(3, 4 * (3 if link is MULTINOMIAL else 1), generator=rng, dtype=torch.float64)
    chosen = torch.rand(3, 7, generator=rng) < 0.5
    for mask in (None, chosen):
        torch.testing.assert_close(
            clients.clipped_sum(x, mask, C, 0), slow_clipped_sum(clients, x, mask, C)
        )
    stacked = clients.clipped_sum(torch.stack([x, 2 * x]), chosen, C, 0)
    torch.testing.assert_close(stacked[1], slow_clipped_sum(clients, 2 * x, chosen, C))


@given(seed=st.integers(0, 10**6), C=st.floats(1e-3, 2.0), scale=st.floats(0.0, 1e3))
@settings(max_examples=60, deadline=None)
def test_one_record_moves_the_sum_by_two_clips_at_most(seed, C, scale):
    one, other = logistic(1, 3, seed=seed), logistic(1, 3, seed=seed + 1)
    other.features[0, 1:], other.targets[0, 1:] = one.features[0, 1:], one.targets[0, 1:]
    x = scale * torch.randn(
        1, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    moved = one.clipped_sum(x, None, C, 0) - other.clipped_sum(x, None, C, 0)
    assert float(moved.norm()) <= 2 * C * (1 + 1e-12)
    without = torch.tensor([[False, True, True]])
    assert float((one.clipped_sum(x, None, C, 0) - one.clipped_sum(x, without, C, 0)).norm()) <= C


def test_noisy_gradient_is_what_the_formula_says():
    """(sum of clipped + sigma normals) / (q n) + l2 x."""
    clients, noise = logistic(), SimulatedNoise(5)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradient = NoisyGradient(clients, 0.3, 0.7, (0.5, 0.25, 1.0), noise, FINE)(x, 11)
    chosen = torch.tensor(noise.uniforms(12, (3, 7))) < torch.tensor([[0.5], [0.25], [1.0]])
    total = slow_clipped_sum(clients, x, chosen, 0.3) + 0.7 * torch.tensor(
        noise.normals(12, (3, 4))
    )
    torch.testing.assert_close(gradient, total / torch.tensor([[3.5], [1.75], [7.0]]) + 0.01 * x)


@pytest.mark.slow
def test_samples_are_poisson_secret_and_fresh():
    clients = logistic(2, 400)
    gradient = NoisyGradient(clients, 1.0, 0.0, (0.3, 0.3), SecretNoise(), NOT_ROUNDED)
    x = torch.zeros(2, 4, dtype=torch.float64)
    masks = torch.stack(
        [gradient._sample(x, 0) for _ in range(200)]
    )  # the same step, again and again
    sizes = masks.sum(-1).double()
    assert abs(float(sizes.mean()) - 120) < 4 * math.sqrt(84 / 400)
    assert 0.7 < float(sizes.var()) / 84 < 1.4  # binomial: a sample of fixed size would have none
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 200
    once, again = (train(**RUN, sampling_rate=0.3).x for _ in range(2))
    assert not np.array_equal(once, again)  # the public seed decides nothing of it


def test_uniforms_are_uniform():
    values = SimulatedNoise(0).uniforms(1, (10**6,))
    assert 0 < values.min() < 1e-5 < 1 - 1e-5 < values.max() < 1
    counts = np.histogram(values, bins=100, range=(0, 1))[0]
    assert ((counts - 1e4) ** 2 / 1e4).sum() < 160  # chi^2 with 99 degrees of freedom: p about 1e-4
    noise = SimulatedNoise(1)
    alone = SimulatedNoise(1, first_client=2)
    assert np.array_equal(noise.uniforms(3, (4, 9))[2], alone.uniforms(3, (9,)))


# -------------------------------------------------------------------------------------------------
# stability


def descend(features, labels, x, eta, l2, tau, h=0.0):
    """tau full gradient steps of one client from x, [..., d]."""
    x0 = x
    for _ in range(tau):
        scores = np.einsum("...nd,...d->...n", features, x)
        slopes = special.expit(scores) - labels
        x = x - eta * (
            np.einsum("...n,...nd->...d", slopes, features) / labels.shape[-1] + l2 * x - h
        )
    return x - x0


def worst_distance(tau, far, m=40, l2=0.1, restarts=6, prox=0.0):
    """The largest movement of a message by one record, over data, neighbours and broadcast models,
    by gradient ascent."""
    B, L = 1.0, 0.25 + l2
    eta = 2 / (L + l2 + 2 * prox)
    best = 0.0
    for seed in range(restarts):
        generator = torch.Generator().manual_seed(seed)
        free = torch.randn(
            m + 1, 2, generator=generator, dtype=torch.float64
        )  # m records, and the other one
        if seed % 2 == 0:
            free[1:m] *= 0.01  # the others flat: nothing pulls the two runs together
        free[m] = -free[0]
        direction = torch.randn(2, generator=generator, dtype=torch.float64)
        for value in (free, direction):
            value.requires_grad_()
        labels = torch.ones(m, dtype=torch.float64)
        optimiser = torch.optim.Adam([free, direction], lr=0.05)
        for _ in range(150):
            rows = free * (B / free.norm(dim=-1, keepdim=True).clamp_min(B))
            start = far * direction / direction.norm()
            ends = []
            for first in (rows[0], rows[m]):
                data, x = torch.cat([first[None], rows[1:m]]), start
                for _ in range(tau):
                    slope = torch.sigmoid(data @ x) - labels
                    x = x - eta * (slope @ data / m + l2 * x + prox * (x - start))
                ends.append(x)
            distance = (ends[0] - ends[1]).norm()
            best = max(best, distance.item())
            optimiser.zero_grad()
            (-distance).backward()
            optimiser.step()
    return best, Stability(eta, tau, L + prox, l2 + prox, B, m, "replace-one").sensitivity


@pytest.mark.slow
@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("eta", "mu", "m"), [(0.5, 0.1, 1), (0.003, 0.0, 7), (1.9, 0.02, 900)])
def test_stability_leaves_room_for_rounding(eta, mu, m, neighbours):
    """A millionth above the recursion in exact fractions, for messages and for hidden states."""
    bound = Stability(eta, 5, 1.0, mu, 1.5, m, neighbours)
    step = Fraction(2 if neighbours == "replace-one" else 1) * Fraction(eta) * Fraction(1.5) / m
    c, apart = 1 - Fraction(eta) * Fraction(mu), Fraction(0)
    for _ in range(5):
        apart = c * apart + step
    assert 1 + 0.9e-6 < bound.sensitivity / apart < 1 + 1.1e-6
    # The least sum of squared shifts a_t with sum_t c^(tau-t) (step - a_t) = 0, by Cauchy.
    sums = sum(c**t for t in range(5)), sum(c ** (2 * t) for t in range(5))
    least = (step / Fraction(eta) * sums[0]) ** 2 / sums[1]
    assert 1 + 0.9e-6 < bound.hidden_state_mu(1.0) / math.sqrt(least) < 1 + 1.1e-6


@pytest.mark.parametrize("tau", [1, 4, 16])
@pytest.mark.parametrize("far", [0.0, 3.0, 200.0])
def test_no_neighbour_moves_a_message_further_than_stability_says(tau, far):
    worst, bound = worst_distance(tau, far)
    assert worst <= bound
    if far == 0.0:
        assert worst >= 0.49 * bound
    if far == 200.0 and tau == 1:
        assert worst >= 0.95 * bound


@pytest.mark.slow
@pytest.mark.parametrize("tau", [1, 4, 16])
@pytest.mark.parametrize("far", [0.0, 200.0])
def test_a_proximal_term_bends_the_bound_and_no_neighbour_breaks_it(tau, far):
    """dp-fedprox, by brute force over neighbouring pairs, at its longest step."""
    worst, bound = worst_distance(tau, far, prox=0.3, restarts=4)
    assert worst <= bound
    if far == 0.0:
        assert worst >= 0.45 * bound
    if far == 200.0 and tau == 1:
        assert worst >= 0.95 * bound
    loose = Stability(2 / 1.05, tau, 0.35, 0.1, 1.0, 40, "replace-one").sensitivity
    assert bound < loose or tau == 1, "the pull makes a record count for less"


PROX = {"algorithm": "dp-fedprox", "prox": 0.3, "noise_in": "message"}


@pytest.mark.parametrize("noise_in", ["message", "hidden-gradient"])
def test_the_longest_step_of_dp_fedprox_knows_its_pull(noise_in):
    """2/(L + mu + 2 prox): a step that dp-fedavg may take is refused."""
    task = load_task("breast-cancer", TaskOptions(clients=5))
    longest = 2 / (task.L + task.mu + 2 * 0.3)
    how = {**RUN, **PROX, "noise_in": noise_in}
    train(**{**how, "eta": longest})
    with pytest.raises(InvalidValue, match=r"eta=.* is more than 2/\(L \+ mu\) = .*; lower eta"):
        train(**{**how, "eta": longest * 1.001})
    train(**{**RUN, "noise_in": noise_in, "eta": longest * 1.001})
    follows = train(**how).account.follows_from
    assert follows["L"] == pytest.approx(task.L + 0.3)
    assert follows["mu"] == pytest.approx(task.mu + 0.3)
    assert follows["eta"] == pytest.approx(1 / (task.L + 0.3)), "the default step knows it too"


def test_the_pull_of_dp_fedprox_lessens_the_noise_of_messages():
    """The same step: the sensitivity is that of a loss with L + prox and mu + prox."""
    task = load_task("breast-cancer", TaskOptions(clients=5))
    sigmas = []
    for prox in (0.0, 0.1, 0.3):
        result = train(**{**RUN, **PROX, "prox": prox, "eta": 1.0, "local_steps": 8})
        (smallest,) = {event.sensitivity for event in result.account.events[-1:]}
        expected = Stability(
            1.0,
            8,
            task.L + prox,
            task.mu + prox,
            min(1.0, task.gradient_bound),
            result.sizes[-1],
            "replace-one",
        )
        rounding = result.lattice * math.sqrt(result.dimension)
        assert smallest == pytest.approx(expected.sensitivity + rounding, rel=1e-15)
        sigmas.append(result.account.sigma)
    assert sigmas[0] > sigmas[1] > sigmas[2]
    plain = train(**{**RUN, "noise_in": "message", "eta": 1.0, "local_steps": 8})
    assert plain.account.sigma == sigmas[0]


def test_too_long_steps_are_refused():
    """Beyond 2/(L + mu) a step no longer contracts by 1 - eta mu: on the quadratic with Hessian L
    it expands."""
    L, l2 = 0.35, 0.1
    eta = 2.2 / (L + l2)
    assert abs(1 - eta * L) > 1 - eta * l2
    with pytest.raises(InvalidValue, match=r"more than 2/\(L \+ mu\)"):
        Stability(eta, 4, L, l2, 1.0, 10, "replace-one")


def scaffnew_messages(released, rounds=3, tau=64, m=400, l2=0.01):
    """How far apart the messages of two neighbouring clients are, round by round, if all else is
    the same; in units of S_tau.

    The broadcast model is far out, where both records are wrong by much: their gradients stay
    constant, nearly opposite. The server answers both clients with the same models, as if their
    messages had been the same: what an adversary conditions on.
    """
    eta, p, x = 2 / (0.25 + 2 * l2), 1 / tau, np.array([1e6, 0.0])
    ends = []
    for side in (1.0, -1.0):
        rows = np.zeros((m, 2))
        rows[0] = -0.05, side * math.sqrt(1 - 0.05**2)
        h, messages = np.zeros(2), []
        for _ in range(rounds):
            x_hat = x + descend(rows, np.ones(m), x, eta, l2, tau, h)
            update = x_hat - eta / p * h - x
            messages.append(update)
            seen = (
                np.zeros(2) if released else update
            )  # the released message is the same in both worlds
            h = p / eta * (-seen)  # l. 13 with x_new = x
        ends.append(messages)
    S = Stability(eta, tau, 0.25 + l2, l2, 1.0, m, "replace-one").sensitivity
    return [float(np.linalg.norm(a - b)) / S for a, b in zip(*ends, strict=True)]


def test_the_papers_control_variate_breaks_the_bound_in_round_two():
    first, second, third = scaffnew_messages(released=False)
    assert first <= 1 < second < third
    assert second > 1.5
    assert max(scaffnew_messages(released=True)) <= 1


def test_hidden_state_is_never_worse_than_composition():
    for tau, l2 in itertools.product((1, 3, 20, 200), (1e-3, 0.05)):
        s = Stability(1 / (0.25 + l2), tau, 0.25 + l2, l2, 1.0, 50, "replace-one")
        composed = s.step_difference * math.sqrt(tau) / s.eta
        assert s.hidden_state_mu(1.0) <= composed * (1 + 2e-6)
        if tau == 1:
            assert s.hidden_state_mu(1.0) == pytest.approx(composed, rel=2e-6)


def test_hidden_state_bound_in_the_one_case_that_is_known_exactly():
    """A quadratic with Hessian l2: x_tau is Gaussian, so mu is |difference of means| / deviation,
    and the bound is tight."""
    l2, eta, tau, m, G, noise = 0.1, 2.0, 12, 10, 1.0, 0.3
    c = 1 - eta * l2
    mean = 2 * eta * G / m * (1 - c**tau) / (1 - c)
    deviation = eta * noise * math.sqrt((1 - c ** (2 * tau)) / (1 - c**2))
    bound = Stability(eta, tau, 0.25 + l2, l2, G, m, "replace-one").hidden_state_mu(noise)
    assert mean / deviation == pytest.approx(bound, rel=3e-6)
    assert mean / deviation <= bound


# -------------------------------------------------------------------------------------------------
# whole runs

RUN = {
    "task": "breast-cancer",
    "clients": 5,
    "unit": "record",
    "epsilon": 3.3,
    "clip": 1.0,
    "iterations": 8,
    "local_steps": 2,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"neighbours": "add-remove"},
        {"sampling_rate": 0.2},
        {"batch": 16, "algorithm": "dp-scaffnew"},
        {"noise_in": "message"},
        {"noise_in": "message", "trust": "secure-aggregation"},
        {"noise_in": "message", "algorithm": "dp-scaffnew", "h_update": "released"},
        {"noise_in": "hidden-gradient", "clip": None},
        {"schedule": "coin", "p": 0.4, "local_steps": None, "noise_in": "message"},
        {"algorithm": "dp-fedprox"},
        {"algorithm": "dp-fedprox", "prox": 0.5, "sampling_rate": 0.2},
        {"algorithm": "dp-fedprox", "noise_in": "message"},
        {"algorithm": "dp-fedprox", "noise_in": "message", "trust": "secure-aggregation"},
        {"algorithm": "dp-fedprox", "noise_in": "hidden-gradient", "clip": None},
    ],
    ids=str,
)
def test_whole_runs_spend_their_budget_and_say_whose(how):
    result = train(**{**RUN, **how})
    assert result.private
    account = result.account
    assert result.run.unit == "record"
    assert all(event.unit == "record" for event in account.events)
    assert result.run.epsilon * 0.998 <= result.epsilon_spent <= result.run.epsilon
    assert result.epsilon_spent == max(account.epsilons)
    assert result.sizes == load_task("breast-cancer", TaskOptions(clients=5)).clients.sizes
    assert len(account.events) == len(account.epsilons) == len(result.sizes)
    assert result.test_error < 0.4
    assert json.loads(result.to_json())["account"]["events"][0]["sigma"] > 0
    assert account.sampled == ("sampling_rate" in how or "batch" in how)
    if not account.sampled:
        for event, epsilon in zip(account.events, account.epsilons, strict=True):
            assert epsilon_spent(
                event.sigma, account.releases, event.sensitivity, 1e-5
            ) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.slow
def test_rates_differ_only_where_batch_asks_for_them():
    sizes = train(**RUN).sizes
    common = train(**RUN, sampling_rate=0.25).account
    assert {event.rate for event in common.events} == {0.25}
    assert set(common.epsilons) == {common.epsilons[0]}
    batch = train(**RUN, batch=20)
    assert [event.rate for event in batch.account.events] == [20 / size for size in sizes]
    assert len({event.sigma for event in batch.account.events}) == len(set(sizes)) > 1
    most = max(range(len(sizes)), key=lambda client: batch.account.events[client].sigma)
    assert batch.sizes[most] == min(sizes)


@pytest.mark.slow
def test_the_noise_that_is_added_is_the_noise_that_is_accounted_for():
    """With data that teach nothing, what moves the model is noise alone: its size is sigma / (q n)
    of the account."""
    still = train(**{**RUN, "iterations": 1, "local_steps": 1, "eta": 0.5, "epsilon": math.inf})
    for how in ({}, {"noise_in": "message"}, {"sampling_rate": 0.5}):
        moves = []
        for seed in range(60):
            result = train(
                **{**RUN, "iterations": 1, "local_steps": 1, "eta": 0.5, **how},
                simulate_noise_seed=seed,
            )
            moves.append(result.x - still.x)
        event = result.account.events[0]
        scale = 1.0 if how.get("noise_in") else 0.5 / (result.sizes[0] * event.rate)
        expected = scale * event.sigma / math.sqrt(5)
        spread = np.concatenate(moves).std()
        sampling = (
            0.0 if how.get("sampling_rate") is None else 0.15
        )  # the sample adds some of its own
        assert expected * 0.95 < spread < expected * (1.05 + sampling)


def test_gradient_noise_reaches_every_algorithm_and_is_post_processed():
    """The update is made of noisy gradients alone: no clip, no further noise."""
    clients, noise = logistic(), SimulatedNoise(2)
    gradient = NoisyGradient(clients, 0.3, 0.7, (1.0,) * 3, noise, FINE)
    for algorithm in (dp_fedavg(0.5), dp_scaffnew(0.5, 0.5)):
        fleet = SimulatedFleet(3, gradient, algorithm, ClippedRelease(math.inf, 0.0), noise)
        x = torch.zeros(4, dtype=torch.float64)
        *_, last = server_rounds(x, periodic(4, 2), fleet, algorithm)
        state, by_hand = algorithm.init(x.expand(3, -1)), x.expand(3, -1)
        for k in range(2):
            update, state = algorithm.local_round(by_hand, state, range(2 * k, 2 * k + 2), gradient)
            by_hand = (by_hand + update.mean(0)).clone()
        torch.testing.assert_close(last.x, by_hand[0])


def test_warm_start_and_public_only():
    cold = train(**RUN, public_records=60)
    warm = train(**RUN, public_records=60, warm_start=True)
    assert cold.public_only == warm.public_only
    assert warm.curve[0].test_error == warm.public_only.test_error < cold.curve[0].test_error
    assert any("trained on public records" in sentence for sentence in warm.public)
    network = train(
        task="digits-mlp", epsilon=math.inf, public_records=100, warm_start=True, iterations=1
    )
    assert network.public_only.test_error < 0.8
    with pytest.raises(InvalidValue, match="no public records to begin from"):
        train(**RUN, warm_start=True)


class Mixing(nn.Module):
    """Centres its outputs over the batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        outputs = self.linear(x)
        return outputs - outputs.mean(0)


def network(model, records=30, features=4):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3 * records, features, generator=generator)
    y = (x[:, 0] > 0).long()
    clients = list(zip(x.split(records), y.split(records), strict=True))
    return own_task(
        model, clients, nn.functional.cross_entropy, accuracy, test=(x, y), learning_rate=0.5
    )


def mlp():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-scaffnew"])
def test_networks_learn_with_private_records(algorithm):
    settings = {
        "unit": "record",
        "clip": 1.0,
        "iterations": 40,
        "local_steps": 4,
        "algorithm": algorithm,
    }
    result = train(task=network(mlp(), 200), epsilon=8, sampling_rate=0.5, **settings)
    assert result.private
    assert result.test_error < 0.25
    plain = train(
        task=network(mlp(), 200),
        epsilon=math.inf,
        simulate_noise_seed=0,
        **{**settings, "clip": None},
    )
    by_client = train(
        task=network(mlp(), 200), epsilon=math.inf, **{**settings, "clip": None, "unit": "client"}
    )
    assert (
        np.abs(plain.x - by_client.x).max() < 1e-5
    )  # without clip, noise and sample: the plain gradient


def test_a_record_that_breaks_the_model_counts_as_zero_and_spares_the_others():
    class Picky(nn.Linear):
        def forward(self, x):
            if (x[:, 0] > 1e5).any():
                raise RuntimeError("too large")
            return super().forward(x)

    task = network(Picky(4, 2))
    whole, broken = task.clients, network(Picky(4, 2)).clients
    broken.data[1][0][7] = 1e6
    x = torch.randn(3, task.dimension, generator=torch.Generator().manual_seed(0))
    without = torch.ones(3, 30, dtype=torch.bool)
    without[1, 7] = False
    ours, expected = broken.clipped_sum(x, None, 0.5, 0), whole.clipped_sum(x, without, 0.5, 0)
    torch.testing.assert_close(
        ours, expected, rtol=1e-5, atol=1e-5
    )  # the model is in single precision


def test_a_model_that_mixes_examples_is_refused_and_a_slow_one_says_so():
    with pytest.raises(UnsafeModel, match="depends on the other examples"):
        train(task=network(Mixing()), unit="record", epsilon=8, clip=1)
    assert (
        train(task=network(Mixing()), epsilon=math.inf, iterations=1).test_error < 1
    )  # the unit client takes it

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 4))

        def forward(self, x):
            return x @ torch.stack([self.weight])[0].T  # lists are not followed

    result = train(task=network(Odd()), unit="record", epsilon=8, clip=1, iterations=2)
    assert any(notice.startswith("SLOW") for notice in result.notices)
    with pytest.raises(InvalidValue, match="no sample of it is a secret Poisson sample"):
        own_task(
            mlp(),
            [DataLoader(TensorDataset(torch.zeros(3, 4)))],
            nn.functional.cross_entropy,
            accuracy,
        )


BAD = [
    ({"sampling_rate": 1.5}, r"sampling_rate=1.5 is not in \(0, 1\]"),
    ({"sampling_rate": 0.5, "batch": 8}, "give one of the two"),
    ({"neighbours": "zero-out"}, "no meaning for unit=record"),
    (
        {"noise_rule": "lemma1", "v": 1.0},
        "noise_rule=lemma1 with unit=record: it belongs to unit=client",
    ),
    ({"trust": "secure-aggregation"}, "nothing to share"),
    ({"clip": None}, "no clip"),
    ({"noise_in": "message", "batch": 8}, "full local gradients"),
    ({"noise_in": "message", "eta": 50.0}, r"more than 2/\(L \+ mu\)"),
    ({"noise_in": "message", "algorithm": "dp-scaffnew"}, "fails from the second round"),
    (
        {
            "noise_in": "message",
            "algorithm": "dp-scaffnew",
            "h_update": "released",
            "trust": "secure-aggregation",
        },
        "fails from the second round",
    ),
    (
        {"noise_in": "message", "task": "digits-mlp"},
        "needs a regularised linear model on bounded features",
    ),
    ({"noise_in": "message", "task": "digits"}, "a clipped multinomial loss is not convex"),
    ({"task": "quadratic"}, "no individual records"),
    ({"unit": "client", "sampling_rate": 0.5}, "belongs to unit=record"),
    ({"unit": "client", "noise_in": "gradient"}, "belongs to unit=record"),
    ({"unit": "client", "neighbours": "add-remove"}, "no meaning for unit=client"),
    (
        {
            "unit": "client",
            "algorithm": "dp-scaffnew",
            "h_update": "released",
            "trust": "secure-aggregation",
        },
        "no message",
    ),
]


@pytest.mark.parametrize(("how", "sentence"), BAD, ids=str)
def test_what_would_break_the_promise_is_refused(how, sentence):
    with pytest.raises((InvalidValue, DataError), match=sentence):
        train(**{**RUN, **how})


def test_a_clipped_multinomial_loss_is_refused_in_messages():
    """A clip that never acts changes nothing; the largest float below it is refused."""
    digits = {"task": "digits", "clients": 3, "unit": "record", "noise_in": "message"}
    digits |= {"epsilon": 2, "iterations": 4, "local_steps": 2}
    free = prepare(**digits)
    longest = free.facts.gradient_bound
    for clip in (longest, 2 * longest):
        made = prepare(**digits, clip=clip)
        assert made.account == free.account
    below = math.nextafter(longest, 0)
    with pytest.raises(InvalidValue, match="a clipped multinomial loss is not convex") as refused:
        prepare(**digits, clip=below)
    assert f"clip={below} is below {longest}, " in str(refused.value), "two numbers that differ"
    for size, event in zip(free.facts.sizes, free.account.events, strict=True):
        run = free.run
        bound = Stability(
            run.eta, 2, free.facts.L, free.facts.mu, longest, size, "replace-one"
        ).sensitivity
        assert bound < event.sensitivity <= 1.01 * bound


@pytest.mark.parametrize("noise_in", ["gradient", "message", "hidden-gradient"])
def test_a_client_with_one_record_is_protected_by_its_own_bound(noise_in):
    """The same as any other number; a client with none cannot take part."""
    ready = prepare(**{**RUN, "noise_in": noise_in, "iterations": 4, "local_steps": 2})
    facts, mechanism = ready.facts, ready.run.mechanism
    facts = facts._replace(sizes=(1, 5), clients=2, batch=None)
    lonely, other = mechanism.events(ready.run, facts, ready.schedule)
    if noise_in == "message":
        assert lonely.sensitivity == pytest.approx(5 * other.sensitivity, rel=0.01)
    else:  # told of the sum
        assert lonely.sensitivity == pytest.approx(other.sensitivity)
    for event in (lonely, other):
        assert event.epsilon(ready.run.delta) <= ready.run.epsilon
    with pytest.raises(DataError, match="a client has no records"):
        mechanism.events(ready.run, facts._replace(sizes=(0, 5)), ready.schedule)


def test_a_noisy_gradient_of_one_record_and_of_none():
    """Of one record it is that record's; rates end at 1, which is one of them."""
    one, none = (Table(np.ones((n, 2)), np.ones((n, 1))) for n in (1, 0))
    clients = linear_clients([one], LOGISTIC, 0.1, None, 0)
    x = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    gradient = NoisyGradient(clients, 9.0, 0.0, (1.0,), SecretNoise(), NOT_ROUNDED)(x, 0)
    torch.testing.assert_close(gradient, clients.gradient(x, 0), rtol=1e-12, atol=0)
    for rate in (0.0, 1.0 + 2**-52, -0.5):
        with pytest.raises(InvalidValue, match="sampling_rate"):
            NoisyGradient(clients, 9.0, 0.0, (rate,), SecretNoise(), NOT_ROUNDED)
    both = linear_clients([one, none], LOGISTIC, 0.1, None, 0)
    with pytest.raises(DataError, match="client 1 has no records"):
        NoisyGradient(both, 9.0, 0.0, (1.0, 1.0), SecretNoise(), NOT_ROUNDED)


def test_least_squares_needs_a_clip_for_stability():
    with pytest.raises(InvalidValue, match="no bound: give a clip"):
        Stability(0.1, 2, 1.0, 0.01, math.inf, 10, "replace-one")


# -------------------------------------------------------------------------------------------------
# an attack


def attacked_epsilon(sigma_factor, runs=20_000, delta=1e-5, epsilon=4.0):
    """A 95 % lower bound on epsilon from telling the worst two data sets apart by one full-batch
    release.

    Two clients' gradients point against each other; the adversary projects the released sum on that
    line and thresholds. Half of the runs choose the threshold, the other 10^4 of each world give
    the rates, with Clopper-Pearson intervals.
    """
    from scipy.stats import beta

    C, rows = 1.0, np.zeros((2, 5, 3))
    rows[:, 0, 0] = 1.0, -1.0  # the record that differs; the others teach nothing
    released = []
    for world in rows:
        clients = linear_clients([Table(world, np.ones((5, 1)))] * runs, LOGISTIC, 0.0, None, 0)
        far = torch.zeros(runs, 3, dtype=torch.float64)
        far[:, 1] = 1.0
        sigma = sigma_factor * sampled_noise(epsilon, delta, 1, 1.0, "replace-one") * C
        scaled = NoisyGradient(
            clients,
            C,
            sigma,
            (1.0,) * runs,
            SimulatedNoise(int(world[0, 0]) + 7),
            own_lattice(C, sigma),
        )
        clients.features[:, 0] *= 4.0  # long enough for the clip to act: |g| = 4 * 0.5 > C
        released.append((scaled(far, 0) * 5)[:, 0].numpy())
    half = runs // 2
    best = -math.inf
    for threshold in np.quantile(
        np.concatenate([r[:half] for r in released]), np.linspace(0.01, 0.99, 99)
    ):
        for sign in (1, -1):
            hits = [int((sign * r[:half] > sign * threshold).sum()) for r in released]
            low, high = min(hits), max(hits)
            if low and (estimate := math.log((high / half - delta) / (low / half))) > best:
                best, chosen = estimate, (threshold, sign)
    threshold, sign = chosen
    low, high = sorted(int((sign * r[half:] > sign * threshold).sum()) for r in released)
    tpr, fpr = beta.ppf(0.025, high, half - high + 1), beta.ppf(0.975, low + 1, half - low)
    return math.log(max(tpr - delta, 1e-300) / fpr)


def test_an_attack_finds_less_than_is_claimed_and_more_than_half():
    found = attacked_epsilon(1.0)
    assert found <= 4.0
    assert found >= 2.0


def test_the_attack_would_catch_half_the_noise():
    assert attacked_epsilon(0.5) > 4.0
