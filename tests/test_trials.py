"""Trials are the real algorithm with the real noise: against the transcriptions in `paper`, several
plans at once."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import paper
from equipoise.algorithms.algorithm import Hyper
from equipoise.algorithms.catalogue import algorithm_spec
from equipoise.algorithms.schedule import periodic
from equipoise.facts import Facts
from equipoise.fleets import Broadcast, SimulatedFleet, server_rounds
from equipoise.planning.candidates import Candidate
from equipoise.planning.plan import Question
from equipoise.planning.problems import ClientProblem, RecordProblem, _events, _run
from equipoise.planning.trial import Level, NoisyMean, TrialNoise, _normals, try_all
from equipoise.planning.worlds import known_of, worlds_of
from equipoise.privacy.clip import ClippedRelease
from equipoise.privacy.mechanisms.catalogue import mechanism
from equipoise.privacy.noise import SimulatedNoise
from equipoise.privacy.promise import Promise
from equipoise.tasks import TaskOptions, load_task
from equipoise.training import account_of
from problems import FINE, NearestWhole

MESSAGE = mechanism("client")
ETA, TAU = 0.4, 3
ROUNDING = 2e-5  # trials are in single precision


@pytest.fixture(scope="module")
def worlds():
    task = load_task("breast-cancer", TaskOptions(clients=4, public_records=40))
    return worlds_of(task, known_of(task, None, None), 3, 0)


def gradient_of(world):
    """Client i's gradient as the oracle wants it."""
    clients = world.clients
    features, targets = clients.features.double().numpy(), clients.targets.numpy()[..., 0]
    weights = clients.weights.double().numpy()

    def gradient(i, x, k):
        residual = 1 / (1 + np.exp(-features[i] @ x)) - targets[i]
        return (weights[i] * residual) @ features[i] + clients.l2 * x

    return gradient


def by_hand(plan, world, start, noise):
    """All communicated models of the transcription, which knows no server step: x + gamma * mean is
    one round at a time for dp-fedavg; dp-scaffnew is compared with gamma = 1."""
    N, g = len(world.clients.sizes), gradient_of(world)
    tau, models, x = plan.local_steps, [], start.double().numpy()
    if plan.algorithm == "dp-scaffnew":
        assert plan.gamma == 1
        for K in range(1, plan.rounds + 1):
            coins = np.tile([0] * (tau - 1) + [1], K)
            models.append(paper.dp_scaffnew(x, coins, 1 / tau, plan.eta, plan.clip, noise, g, N)[0])
        return models
    for k in range(plan.rounds):
        new = paper.dp_fedavg(x, 1, tau, plan.eta, plan.clip, noise[k : k + 1], g, N)
        x = x + plan.gamma * (new - x)
        models.append(x)
    return models


def plans_of(algorithm, warm):
    """Of one computation: their rounds are within a factor of two."""
    gammas = (1.0, 0.5, 0.25, 1.0) if algorithm == "dp-fedavg" else (1.0,) * 4
    settings = zip((7, 4, 5, 6), (0.3, 0.05, 2.0, 0.1), gammas, strict=True)
    return [
        Candidate(algorithm, ETA, TAU, K, C, gamma, "message", warm=warm)
        for K, C, gamma in settings
    ]


def quiet(candidate):
    return Level(MESSAGE, (0.0,) * 4)


def loud(candidate):
    return Level(MESSAGE, (0.2 * candidate.clip * math.sqrt(candidate.rounds),) * 4)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-scaffnew"])
@pytest.mark.parametrize("level", [quiet, loud])
def test_trials_are_the_transcribed_algorithms(worlds, algorithm, warm, level):
    """Several plans with their own rounds, clip and server step in one computation, every world and
    seed, the last model and the average; the mean noise is that of clients who share it out."""
    plans, seeds = plans_of(algorithm, warm), range(2, 4)
    tried = try_all(worlds, plans, level, seeds)
    assert len(tried) == 2 * len(plans)
    d = len(worlds.x0)
    for trial in tried:
        plan = trial.candidate
        assert trial.x.shape == (3, 2, d)
        averaged = level(plan).averaged
        for w, world in enumerate(worlds.rows):
            start = world.public if warm else world.x0
            for s, seed in enumerate(seeds):
                drawn = [_normals(seed, k, (3, 1, 1, d))[w, 0, 0] for k in range(1, 8)]
                noise = averaged * np.repeat(np.array(drawn, dtype=np.float64)[:, None], 4, 1)
                models = by_hand(plan, world, start, noise)
                expected = models[-1] if plan.returns == "last" else paper.average(models)
                np.testing.assert_allclose(trial.x[w, s], expected, rtol=0, atol=ROUNDING)
            assert float(trial.excess[w, -1]) == pytest.approx(
                float(world.excess(trial.x[w, -1])), rel=1e-4
            )
    assert len({float(trial.excess.mean()) for trial in tried}) == len(tried), "all are told apart"


def test_a_plan_is_worth_the_same_whoever_is_tried_beside_it(worlds):
    """Common random numbers, and no mixing of plans in a computation: each alone gives the same."""
    plans = [*plans_of("dp-fedavg", False), Candidate("dp-fedavg", ETA, 1, 1, 0.5, 1.0, "message")]
    together = try_all(worlds, plans, loud, range(2))
    assert len(together) == 2 * len(plans) - 1, "of one round the average is the last"
    for plan in plans:
        for trial in try_all(worlds, [plan], loud, range(2)):
            (same,) = (t for t in together if t.candidate == trial.candidate)
            torch.testing.assert_close(same.x, trial.x, rtol=0, atol=ROUNDING)


def test_seeds_are_common_to_all_stages(worlds):
    (plan, *_), seeds = plans_of("dp-fedavg", False), (range(3), range(2, 5))
    first, rest = (try_all(worlds, [plan], loud, chosen)[0] for chosen in seeds)
    torch.testing.assert_close(first.x[:, 2], rest.x[:, 0], rtol=0, atol=ROUNDING)
    assert not torch.allclose(first.x[:, 0], first.x[:, 1])


def test_trials_are_what_the_servers_loop_gives(worlds):
    """Without noise, by the fleets that train: other algorithms too."""
    for name, options in (("dp-fedprox", {"prox": 0.5}), ("dp-scaffnew", {})):
        plan = Candidate(name, ETA, TAU, 5, 0.2, 0.5, "message", options)
        for trial in try_all(worlds, [plan], quiet, range(1)):
            for w, world in enumerate(worlds.rows):
                algorithm = algorithm_spec(name).make(Hyper(ETA, 1 / TAU, 0.2, options))
                fleet = SimulatedFleet(
                    4,
                    world.clients.gradient,
                    algorithm,
                    ClippedRelease(0.2, 0.0),
                    SimulatedNoise(0),
                )
                rounds = list(
                    server_rounds(world.x0, periodic(5 * TAU, TAU), fleet, algorithm, 0.5)
                )
                models = [round.x.numpy() for round in rounds]
                expected = (
                    models[-1] if trial.candidate.returns == "last" else paper.average(models)
                )
                np.testing.assert_allclose(trial.x[w, 0], expected, rtol=0, atol=ROUNDING)


class Given(NearestWhole):
    """Normals [rounds, clients, d] of the clients, or their mean where one is asked for."""

    name = "given"

    def __init__(self, normals):
        self._normals = normals

    def normals(self, round, shape):
        return np.broadcast_to(self._normals[round - 1], shape)


def test_the_noise_of_the_mean_is_the_mean_of_the_clients_noise():
    """Exactly, for given normals: the fleet that noises its mean sends what one sends whose clients
    noise their messages."""
    task = load_task("quadratic", TaskOptions(clients=5))
    normals = np.random.default_rng(0).standard_normal((4, 5, task.dimension))
    sigma = 0.3
    level = Level(MESSAGE, (sigma,) * 5)
    assert level.averaged == pytest.approx(sigma / math.sqrt(5), rel=1e-12)
    algorithm = algorithm_spec("dp-scaffnew").make(Hyper(0.5, 0.5, 0.2, {}))
    noisy = SimulatedFleet(
        5, task.clients.gradient, algorithm, ClippedRelease(0.2, sigma, FINE), Given(normals)
    )
    silent = SimulatedFleet(
        5, task.clients.gradient, algorithm, ClippedRelease(0.2, 0.0), Given(normals)
    )
    of_mean = Given(normals.mean(1) * math.sqrt(5))
    mean = NoisyMean(silent, torch.tensor(level.averaged, dtype=torch.float64), of_mean)
    both = [list(server_rounds(task.x0, (2, 2, 2, 2), fleet, algorithm)) for fleet in (noisy, mean)]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one.x, other.x, rtol=0, atol=1e-11)


class Still:
    """A fleet that sends zero."""

    def exchange(self, broadcast):
        return torch.zeros_like(broadcast.x)


@pytest.mark.parametrize(
    "question",
    [
        {"trust": "local"},
        {"trust": "secure-aggregation"},
        {"trust": "local", "clients": 90},  # for which 40 stand in
    ],
    ids=str,
)
def test_the_noise_of_a_trial_has_the_moments_of_the_real_mean(question):
    """|noise of the mean|^2 is that of the real run: of all its clients, whoever stands in."""
    clients = question.get("clients", 4)
    task = load_task("breast-cancer", TaskOptions(clients=clients, public_records=40))
    worlds = worlds_of(task, known_of(task, None, None), 2, 0)
    asked = Question.of(task="breast-cancer", epsilon=2, **{"clients": clients, **question})
    promise, place = asked.promise(2.0), asked.mechanisms[0]
    facts = task.facts("client")
    problem = ClientProblem(asked, worlds, promise, facts, place)
    assert worlds.number == min(40, clients)
    plan = Candidate("dp-fedavg", 0.1, 2, 9, 0.7, 1.0, "message")
    level = problem.level(plan)
    event = problem.event(plan)
    each = promise.client_sigma(event.sigma, clients)
    expected = each / math.sqrt(clients)
    assert level.averaged == pytest.approx(expected, rel=1e-9)
    fleet = NoisyMean(Still(), torch.tensor(level.averaged), TrialNoise(2, range(40)))
    x = torch.zeros(2, 1, 40, task.dimension)
    sent = torch.stack([fleet.exchange(Broadcast(k, range(1), x)) for k in range(1, 21)])
    n = sent.numel()
    assert float(sent.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * n))
    assert abs(float(sent.mean())) < 4 * expected / math.sqrt(n)
    flat = sent.permute(3, 2, 0, 1, 4).reshape(1, 40, -1)[0]  # seeds against each other
    spread = float(np.corrcoef(flat.numpy())[np.triu_indices(40, 1)].std())
    assert spread == pytest.approx(1 / math.sqrt(flat.shape[1]), rel=0.2)
    first, second = sent[0].flatten(), sent[1].flatten()
    assert abs(float((first * second).mean())) < 4 * expected**2 / math.sqrt(len(first))


SIZES = {"equal": (900, 900, 900), "unequal": (2000, 500, 60), "few": (30, 40, 50)}


def record_problem(sizes, place, **changes):
    """Silos of these sizes, whose stand-ins have 400 records at most."""
    task = load_task("breast-cancer", TaskOptions(clients=len(sizes), public_records=60))
    task = replace(task, sizes_public=False)
    worlds = worlds_of(task, known_of(task, "none", sizes), 2, 0)
    asked = Question.of(
        task="breast-cancer",
        epsilon=2,
        clients=len(sizes),
        unit="record",
        noise_in=place,
        algorithm="dp-fedavg",
        **{"weights": "equal", **changes},
    )
    facts = task.facts("client")._replace(sizes=sizes)
    return RecordProblem(asked, worlds, asked.promise(2.0), facts), facts, worlds


@pytest.mark.parametrize("place", ["gradient", "hidden-gradient", "message"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_stand_ins_with_fewer_records_have_the_noise_of_those_they_stand_for(sizes, place):
    """Per mean gradient (or message): what the real run's account says of each client, over its own
    number of records."""
    problem, facts, worlds = record_problem(sizes, place)
    (line, *_) = problem.lines()
    plan = line.candidate(0.5 / facts.L, 2, 8, 0.5)
    level, stand_ins = problem.level(plan), worlds.rows[0].clients.sizes
    assert stand_ins == tuple(min(size, 400) for size in sizes)
    account = account_of(_run(plan, problem.promise, facts, "equal"), facts, (2,) * 8)
    assert len(account.events) == len(sizes)
    for sigma, own, real, event in zip(level.sigma, stand_ins, sizes, account.events, strict=True):
        over = (own, real) if place != "message" else (1, 1)
        assert sigma / over[0] == pytest.approx(event.sigma / over[1], rel=1e-12)


@pytest.mark.parametrize("sizes", [SIZES["unequal"], (700,) * 3], ids=str)
def test_the_noise_of_a_mean_gradient_has_the_real_variance(sizes):
    """Measured, of gradients that are noise alone: clients' noised mean gradients less the same
    without noise."""
    problem, _, worlds = record_problem(sizes, "gradient")
    (line, *_) = problem.lines()
    plan = line.candidate(1.0, 1, 4, 0.5)
    event_sigmas = [event.sigma for event in _events_of(problem, plan)]
    loud_level = problem.level(plan)
    silent = Level(loud_level.place, (0.0,) * len(sizes))
    seeds = range(200)
    models = []
    for level in (loud_level, silent):
        one = replace(plan, rounds=1)
        (trial, *_) = try_all(worlds, [one], lambda c, level=level: level, seeds)
        models.append(trial.x)
    noise = (models[0] - models[1]) / plan.eta  # of the mean of the clients' mean gradients
    each = [sigma / size for sigma, size in zip(event_sigmas, sizes, strict=True)]
    expected = math.sqrt(sum(s**2 for s in each)) / len(sizes)
    assert float(noise.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * noise.numel()))


def _events_of(problem, plan):
    events = _events(plan, problem.promise, problem.facts, problem.question.weights)
    return events if len(events) == len(problem.facts.sizes) else events * len(problem.facts.sizes)


@pytest.mark.parametrize("noise_in", ["gradient", "message"])
@pytest.mark.parametrize(
    "sizes", [tuple(100 + 5 * i for i in range(60)), (3, *[100] * 59)], ids=["even", "one small"]
)
def test_fewer_stand_ins_than_silos_average_to_the_same_noise(sizes, noise_in):
    problem, _, worlds = record_problem(sizes, noise_in)
    assert worlds.number == 40
    assert set(worlds.sizes) <= set(sizes)
    assert min(worlds.sizes) == min(sizes)
    assert max(worlds.sizes) == sizes[-1]
    (line, *_) = problem.lines()
    plan = line.candidate(1.0, 1, 4, 0.5)
    stand_ins = worlds.rows[0].clients.sizes
    if noise_in == "message":
        sizes, stand_ins = [1] * 60, [1] * 40
    each = [sigma / own for sigma, own in zip(problem.level(plan).sigma, stand_ins, strict=True)]
    planned = math.sqrt(sum(s**2 for s in each)) / 40
    events = _events_of(problem, plan)
    real = [event.sigma / size for event, size in zip(events, sizes, strict=True)]
    assert planned == pytest.approx(math.sqrt(sum(s**2 for s in real)) / 60, rel=1e-9)


def test_plans_of_one_computation_do_not_know_of_each_other():
    """Plans with other rounds, steps, clips and starts: the same as each by itself, whether the
    algorithm remembers or not."""
    task = load_task("breast-cancer", TaskOptions(clients=4, public_records=40))
    worlds = worlds_of(task, known_of(task, None, None), 2, 0)
    asked = Question.of(task="breast-cancer", epsilon=2, clients=4, trust="secure-aggregation")
    problem = ClientProblem(asked, worlds, asked.promise(2.0), task.facts("client"), MESSAGE)
    for algorithm in ("dp-fedavg", "dp-scaffnew"):
        plans = [
            Candidate(algorithm, eta, 3, rounds, clip, 1.0, "message", {}, warm)
            for eta, rounds, clip, warm in (
                (1.0, 5, 0.3, False),
                (0.5, 2, 0.1, True),
                (1.0, 1, 0.3, True),
                (2.0, 5, 0.2, True),
            )
        ]
        trials = try_all(worlds, plans, problem.level, range(2))
        together = {repr(trial.candidate): trial.x for trial in trials}
        for plan in plans:
            for trial in try_all(worlds, [plan], problem.level, range(2)):
                torch.testing.assert_close(together[repr(trial.candidate)], trial.x)


def test_steps_in_all_may_be_more_than_there_may_be_rounds():
    problem, _, _ = record_problem((50,) * 5, "gradient")
    problem = replace(problem, question=problem.question.model_copy(update={"iterations": 1024}))
    (line, *_) = problem.lines()
    begun = problem.beginning(line)
    assert {plan.iterations for plan in begun} == {1024}
    assert all(near.iterations == 1024 for near in problem.neighbours(begun[0]))


def test_facts_and_promise_are_all_that_noise_depends_on():
    facts = Facts("t", 7, 3, 1.0, 4, sizes=(9,) * 7, mu=0.1, L=1.0)
    worlds = SimpleNamespace(number=3)
    asked = Question.of(task="quadratic", epsilon=2, trust="secure-aggregation")
    problem = ClientProblem(
        asked, worlds, Promise(2, 1e-5, trust="secure-aggregation"), facts, MESSAGE
    )
    plan = Candidate("dp-fedavg", 0.1, 2, 9, 0.7, 1.0, "message")
    more = replace(plan, rounds=36)
    assert problem.level(more).averaged == pytest.approx(2 * problem.level(plan).averaged)
    half = replace(problem, less_noise=0.5)
    assert half.level(plan).averaged == pytest.approx(problem.level(plan).averaged / 2)
