"""Momentum, Adam and falling step sizes: each equals the pseudo-code of its source, costs no
privacy, and is refused where an algorithm or a bound is about plain steps."""

import importlib
import math

import numpy as np
import pytest
import torch

import equipoise
import paper
from equipoise.algorithms import ALGORITHMS, Algorithm, Hyper
from equipoise.algorithms.algorithm import AlgorithmSpec, no_memory
from equipoise.algorithms.optimisers.catalogue import (
    OPTIMISER_OPTIONS,
    OPTIMISERS,
    optimiser_spec,
    options_at,
)
from equipoise.algorithms.optimisers.eta_schedules import ETA_SCHEDULES
from equipoise.algorithms.optimisers.optimised import optimised
from equipoise.algorithms.schedule import periodic
from equipoise.engine import algorithm_of, first_steps_of, noise_of, run_rounds
from equipoise.errors import InvalidValue
from equipoise.fleets import SimulatedFleet, server_rounds
from equipoise.privacy.clip import ClippedRelease
from equipoise.privacy.lattice import Lattice
from equipoise.privacy.noise import SimulatedNoise
from equipoise.privacy.statement.document import guarantee_of
from equipoise.settings import Run, Settings
from equipoise.steps import Steps
from equipoise.sweeps.keys import run_key
from equipoise.sweeps.stacks import resolved, task_of
from equipoise.tasks import TaskOptions
from equipoise.training import prepare, train_together
from problems import GivenNoise, last_model, logistic, quadratic, run_command, swept

ETA, SIGMA, ROUNDS, C = 0.3, 0.05, 9, 0.1
FINER = Lattice(2.0**-50)  # Adam divides by little
PROBLEMS = [quadratic, logistic]
RUN = {"task": "breast-cancer", "clients": 4, "iterations": 12, "local_steps": 3, "clip": 0.2}
RUN |= {"epsilon": 4.0, "simulate_noise_seed": 3}
RECORD = {"unit": "record", "noise_in": "gradient"}
CHOICES = [
    {"server_optimiser": "momentum", "server_beta": 0.5, "gamma": 0.4},
    {"server_optimiser": "adam", "gamma": 0.05},
    {"local_optimiser": "momentum", "local_beta": 0.7},
    {"local_optimiser": "adam", "local_tau": 0.01, "eta": 0.02},
    {"eta_schedule": "cosine"},
    {"eta_schedule": "step", "local_optimiser": "momentum", "server_optimiser": "momentum"},
]


def settings_of(**changes):
    return Settings.of(**RUN | changes)


def differing(one, other, path=""):
    """Where two documents say different things."""
    if isinstance(one, dict):
        return {d for k in one for d in differing(one[k], other[k], f"{path}.{k}".strip("."))}
    return set() if one == other else {path}


def with_steps(name="dp-fedavg", tau=1, **chosen):
    """An algorithm of the product, with steps as chosen, and ETA."""
    T = ROUNDS * tau
    changes = {"algorithm": name, "iterations": T, "local_steps": tau, "eta": ETA}
    run = resolved(settings_of(**changes, **{"gamma": 0.5, **chosen}))
    return optimised(ALGORITHMS[name].make, Hyper(ETA, 1 / tau, C, run.options), run)


def compared(problem, tau, oracle, gamma=1.0, **chosen):
    """The product's model beside the oracle's, with clip and noise."""
    task, g = problem()
    N = len(task.clients.sizes)
    noise = np.random.default_rng(0).normal(0, SIGMA, (ROUNDS, N, task.dimension))
    algorithm, release = with_steps(tau=tau, **chosen), ClippedRelease(C, SIGMA, FINER)
    given = GivenNoise(noise, SIGMA)
    fleet, clipped = SimulatedFleet(N, task.clients.gradient, algorithm, release, given), False
    for round in server_rounds(task.x0, periodic(ROUNDS * tau, tau), fleet, algorithm, gamma):
        x, update = round.x, fleet.memory.update
        clipped |= bool((update.norm(dim=-1) > C).any())
    expected = oracle(x0=task.x0.numpy(), T=ROUNDS, C=C, noise=noise, g=g, N=N)
    np.testing.assert_allclose(x.numpy(), expected, rtol=0, atol=1e-12)
    assert clipped, "the clip must act"
    assert not fleet.memory.state, "clients keep nothing"


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("tau", [2, 5])
@pytest.mark.parametrize(("beta", "gamma"), [(0.9, 0.3), (0.4, 1.0)])
def test_server_momentum_is_fedavgm(problem, tau, beta, gamma):
    def oracle(**case):
        return paper.fedavgm(tau=tau, eta=ETA, eta_s=gamma, beta=beta, **case)

    chosen = {"server_optimiser": "momentum", "server_beta": beta}
    compared(problem, tau, oracle, gamma, **chosen)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("tau", [2, 5])
@pytest.mark.parametrize(("betas", "adaptivity"), [((0.9, 0.99), 1e-3), ((0.3, 0.6), 0.05)])
def test_server_adam_is_fedadam(problem, tau, betas, adaptivity):
    def oracle(**case):
        return paper.fedadam(
            K=tau, eta_l=ETA, eta=0.07, beta_1=betas[0], beta_2=betas[1], tau=adaptivity, **case
        )

    chosen = {"server_optimiser": "adam", "server_beta": betas[0], "server_beta2": betas[1]}
    compared(problem, tau, oracle, 0.07, **chosen, server_tau=adaptivity)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("tau", [2, 5])
@pytest.mark.parametrize(
    ("rule", "chosen"),
    [
        (paper.adam_step(0.9, 0.99, 1e-3), {"local_optimiser": "adam"}),
        (
            paper.adam_step(0.3, 0.6, 0.02),
            {"local_optimiser": "adam", "local_beta": 0.3, "local_beta2": 0.6, "local_tau": 0.02},
        ),
        (paper.momentum_step(0.9), {"local_optimiser": "momentum"}),
        (paper.momentum_step(0.4), {"local_optimiser": "momentum", "local_beta": 0.4}),
        (paper.momentum_step(0.9), {"local_optimiser": "momentum", "eta_schedule": "cosine"}),
        (paper.plain_step, {"eta_schedule": "cosine"}),
        (paper.plain_step, {"eta_schedule": "linear"}),
        (paper.plain_step, {"eta_schedule": "step"}),
        (paper.adam_step(0.9, 0.99, 1e-3), {"eta_schedule": "linear", "local_optimiser": "adam"}),
    ],
)
def test_local_steps_are_those_of_their_sources(problem, tau, rule, chosen):
    falling = {
        "constant": [1.0] * ROUNDS,
        "cosine": [0.5 * (1 + math.cos(math.pi * t / ROUNDS)) for t in range(ROUNDS)],
        "linear": [1 - t / ROUNDS for t in range(ROUNDS)],
        "step": [1] * 5 + [0.1] * 2 + [0.01] * 2,
    }[chosen.get("eta_schedule", "constant")]
    etas = [ETA * share for share in falling]

    def oracle(**case):
        return paper.dp_fedavg_by_steps(tau=tau, etas=etas, rule=rule, **case)

    compared(problem, tau, oracle, **chosen)


def test_fedprox_falls_and_its_server_remembers():
    """The whole step gets smaller, the pull with the gradient."""
    task, g = quadratic()
    tau, prox, x = 3, 0.4, task.x0.numpy()
    chosen = {"name": "dp-fedprox", "prox": prox, "eta_schedule": "linear"}
    algorithm = with_steps(tau=tau, **chosen, server_optimiser="momentum", server_beta=0.5)
    model, _ = last_model(task, periodic(ROUNDS * tau, tau), algorithm, gamma=0.5)
    velocity = np.zeros_like(x)
    for t in range(ROUNDS):
        ends = []
        for i in range(5):
            y = x
            for _ in range(tau):
                y = y - ETA * (1 - t / ROUNDS) * (g(i, y, 0) + prox * (y - x))
            ends.append(y)
        velocity = 0.5 * velocity + (np.mean(ends, axis=0) - x)
        x = x + 0.5 * velocity
    np.testing.assert_allclose(model.numpy(), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chosen", CHOICES)
def test_of_one_record_steps_are_made_of_noised_gradients_alone(chosen):
    """The oracle takes the gradients that the account is about: sums of clipped ones with the noise
    of its sigma, each by itself."""
    ready = prepare(settings_of(**RECORD, weights="equal", **chosen))
    run, N, tau = ready.run, ready.run.clients, ready.run.local_steps
    gradient, _ = noise_of(run, ready.task, ready.account, SimulatedNoise(3))

    def noised(i, y, k):
        return gradient(torch.tensor(y).expand(N, -1), k)[i].numpy()

    falling = ETA_SCHEDULES[run.eta_schedule]
    etas = [run.eta * falling(t / run.iterations) for t in range(0, run.iterations, tau)]
    rule = {
        "plain": paper.plain_step,
        "momentum": paper.momentum_step(run.options.get("local_beta", 0.9)),
        "adam": paper.adam_step(0.9, 0.99, run.options.get("local_tau", 1e-3)),
    }[run.local_optimiser]
    server = optimiser_spec("server", run.server_optimiser)
    step = server.make(options_at("server", server, run.options))
    x, memory = ready.task.x0, step.begin(ready.task.x0)
    for t, eta in enumerate(etas):

        def of_round(i, y, k, first=t * tau):
            return noised(i, y, first + k)

        none = np.zeros((1, N, len(x)))
        moved = paper.dp_fedavg_by_steps(
            x.numpy(), 1, tau, [eta], rule, math.inf, none, of_round, N
        )
        ahead, memory = step.step(memory, torch.tensor(moved) - x)
        x = x + run.gamma * ahead
    result = equipoise.train(settings_of(**RECORD, weights="equal", **chosen))
    np.testing.assert_allclose(result.x, x.numpy(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("chosen", CHOICES)
@pytest.mark.parametrize(
    "where",
    [
        {},
        {"trust": "secure-aggregation"},
        {"neighbours": "zero-out", "schedule": "coin", "p": 0.4, "local_steps": None},
        RECORD,
        {**RECORD, "sampling_rate": 0.5, "neighbours": "add-remove"},
    ],
)
def test_no_choice_costs_privacy(where, chosen):
    """The same releases with the same noise, and the same statement but for the settings."""
    eta = {"eta": chosen.get("eta", 0.5), "gamma": chosen.get("gamma", 1.0)}
    plain, other = (equipoise.train(settings_of(**{**where, **eta, **c})) for c in ({}, chosen))
    assert other.account == plain.account
    assert other.run.memory == plain.run.memory == "none"
    assert not np.array_equal(other.x, plain.x), "the choice does something"
    said = [guarantee_of(result).model_dump() for result in (plain, other)]
    other_words = {place for place in differing(*said) if not place.startswith("utility.")}
    assert other_words == {"repeat"}, "but the command that repeats the run"


@pytest.mark.parametrize("where", [{}, RECORD])
def test_an_audit_makes_the_steps_that_are_audited(where):
    """What is found is what a perfect attack finds: no more than is claimed, and half of it."""
    given = {k: v for k, v in RUN.items() if k != "simulate_noise_seed"}
    chosen = {"local_optimiser": "adam", "local_beta": 0.5, "eta": 0.05, "eta_schedule": "linear"}
    chosen |= {"server_optimiser": "momentum", "gamma": 0.5}
    audit = equipoise.audit(**given, **where, **chosen, runs=2000)
    assert chosen.items() <= {**audit.settings, **audit.settings["options"]}.items()
    assert 0.5 * audit.claim < audit.epsilon <= audit.claim


@pytest.mark.parametrize("chosen", CHOICES)
def test_stacked_runs_are_those_by_themselves(chosen):
    columns = [
        {**RUN, **chosen, "epsilon": epsilon, "clip": clip, "returns": returns}
        for epsilon, clip, returns in ((2.0, 0.1, "last"), (8.0, 1.0, "average"))
    ]
    rows = [
        [Settings.of(**{**column, "seed": s, "simulate_noise_seed": s}) for column in columns]
        for s in (0, 1)
    ]
    tasks = [task_of("breast-cancer", TaskOptions.of(row[0])) for row in rows]
    together = train_together(tasks, [[resolved(one) for one in row] for row in rows], 100)
    for row, results in zip(rows, together, strict=True):
        for settings, stacked in zip(row, results, strict=True):
            alone = equipoise.train(settings)
            np.testing.assert_allclose(stacked.x, alone.x, rtol=1e-11, atol=1e-12)


def test_runs_of_a_sweep_differ_in_their_steps(tmp_path):
    """Axes like any other: each its own stack, and each what `train` gives."""
    variants = [{}, *CHOICES[:3]]
    given = {k: v for k, v in RUN.items() if k != "simulate_noise_seed"}
    document = {"name": "steps", **given, "seeds": [0], "variant": variants}
    results = [result for result, _ in swept(document, tmp_path / "store.db")]
    assert len(results) == len(variants)
    for result in results:
        alone = equipoise.train(result.run)
        assert alone.test_error == pytest.approx(result.test_error, abs=1e-12)


def test_clients_are_told_the_model_alone():
    heard, task = set(), quadratic()[0]
    algorithm = with_steps(server_optimiser="adam")
    fleet = SimulatedFleet(5, task.clients.gradient, algorithm, ClippedRelease(C, 0.0), None)
    honest = fleet.exchange
    fleet.exchange = lambda broadcast: heard.add(tuple(broadcast.x.shape)) or honest(broadcast)
    *_, last = server_rounds(task.x0, periodic(6, 2), fleet, algorithm, 0.05)
    assert heard == {(10,)}
    assert last.known.shape == (30,), "model, m and v"
    assert torch.equal(last.known[:10], last.x)


@pytest.mark.parametrize("name", ["server_optimiser", "local_optimiser"])
def test_momentum_that_keeps_nothing_is_a_plain_step(name):
    place = name.partition("_")[0]
    forgetful = settings_of(**{name: "momentum", f"{place}_beta": 0})
    assert np.array_equal(equipoise.train(forgetful).x, equipoise.train(settings_of()).x)


def test_nothing_chosen_is_the_algorithm_itself():
    """So it has the numbers, and the key, that it had before there was a choice."""
    run = resolved(settings_of())
    assert algorithm_of(run).server is Algorithm._field_defaults["server"]
    assert algorithm_of(run).local_round.__module__ == "equipoise.algorithms.dp_fedavg"
    said = run.model_dump()
    older = {k: v for k, v in said.items() if k not in Steps.model_fields}
    assert run_key(Run.of(**older), "data") == run_key(run, "data")
    keys = {run_key(resolved(settings_of(**chosen)), "data") for chosen in [{}, *CHOICES]}
    assert len(keys) == 1 + len(CHOICES)


def test_eta_falls_from_its_full_size_and_never_to_nothing():
    """Runs that begin alike share their first steps whatever the schedule."""
    for share in ETA_SCHEDULES.values():
        falling = [share(done) for done in np.linspace(0, 1, 1000, endpoint=False)]
        assert falling[0] == 1
        assert falling == sorted(falling, reverse=True)
        assert falling[-1] > 0


def test_first_steps_are_shared_only_where_they_are_the_same():
    ends = {}
    for chosen in ({}, {"eta_schedule": "cosine"}, {"local_optimiser": "momentum"}):
        ready = prepare(settings_of(**chosen))
        assert first_steps_of(ready.run) == first_steps_of(prepare(settings_of()).run)
        models = [
            run_rounds(
                [ready.task], [[ready.run]], [[ready.account]], ready.schedule, SimulatedNoise(1),
                ends=known,
            )[0][0].x
            for known in (ends, None)
        ]  # fmt: skip
        assert torch.equal(*models)


REFUSED = [
    ({"server_optimiser": "nesterov"}, "server_optimiser='nesterov' is not one of plain, mom"),
    ({"local_optimiser": "constant"}, "local_optimiser='constant' is not one of plain, mom"),
    ({"eta_schedule": "plain"}, "eta_schedule='plain' is not one of constant, cosine, lin"),
    ({"server_beta": 0.5}, "server_beta=0.5 with server_optimiser=plain, which has no such option"),
    (
        {"server_optimiser": "momentum", "server_tau": 0.5},
        "server_tau=0.5 with server_optimiser=momentum, which has no such option: leave it out",
    ),
    (
        {"local_optimiser": "momentum", "server_beta": 0.5},
        "server_beta=0.5 with server_optimiser=plain",
    ),
    (
        {"server_optimiser": "momentum", "server_beta": 1},
        r"server_beta=1.0 is not a number in \[0,",
    ),
    ({"server_optimiser": "adam", "server_tau": 0}, "server_tau=0.0 is not a number > 0"),
    ({"server_optimiser": "adam"}, "gamma=1 with server_optimiser=adam: every coordinate"),
    ({"local_optimiser": "adam"}, "local_optimiser=adam without eta: every coordinate"),
    (
        {"algorithm": "dp-fedprox", "sends": "model", "server_optimiser": "momentum"},
        "server_optimiser=momentum with sends=model: the mean of whole models",
    ),
    (
        {"algorithm": "dp-fedprox", "local_optimiser": "momentum"},
        "local_optimiser=momentum with algorithm=dp-fedprox: its proximal term",
    ),
]


@pytest.mark.parametrize(("chosen", "sentence"), REFUSED)
def test_what_has_no_meaning_is_refused(chosen, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        settings_of(**chosen)


@pytest.mark.parametrize("chosen", CHOICES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_takes_the_steps_that_it_names_and_no_others(name, chosen):
    spec = ALGORITHMS[name]
    where = {"epsilon": math.inf, "clip": None} if not spec.private else {}
    if not spec.protects("client") and spec.private:
        where = RECORD
    asked = [key for key in Steps.model_fields if key in chosen]
    if all(key in spec.step_settings for key in asked):
        trained = equipoise.train(settings_of(**{**where, **chosen, "algorithm": name}))
        assert np.isfinite(trained.x).all()
    else:
        with pytest.raises(InvalidValue, match=f"with algorithm={name}: .*leave it out"):
            settings_of(**{**where, **chosen, "algorithm": name})


def test_an_algorithm_that_nobody_has_seen_takes_none(monkeypatch):
    spec = AlgorithmSpec("dp-unseen", "", ALGORITHMS["dp-fedavg"].make, no_memory)
    monkeypatch.setitem(ALGORITHMS, "dp-unseen", spec)
    settings_of(algorithm="dp-unseen")
    for chosen in CHOICES:
        with pytest.raises(InvalidValue, match="with algorithm=dp-unseen: its steps are its own"):
            settings_of(algorithm="dp-unseen", **chosen)


@pytest.mark.parametrize("noise_in", ["message", "hidden-gradient"])
@pytest.mark.parametrize("chosen", CHOICES)
def test_stability_bounds_are_for_plain_steps_of_one_size(noise_in, chosen):
    """What the server does with a release is its own affair."""
    where = {"unit": "record", "noise_in": noise_in, "clip": None}
    local = [key for key in ("eta_schedule", "local_optimiser") if key in chosen]
    if not local:
        plain, other = (equipoise.train(settings_of(**where, **c)) for c in ({}, chosen))
        assert other.account == plain.account
        return
    with pytest.raises(InvalidValue, match=f"{local[0]}=.* plain gradient steps of one size"):
        settings_of(**where, **chosen)
    assert not Settings.model_construct(**RUN, **chosen).gradient_steps


def test_a_command_says_what_was_chosen(capsys, tmp_path):
    """Flags follow from the fields, and the command that a result tells gives it again."""
    for chosen in CHOICES:
        settings = settings_of(**chosen)
        out = str(tmp_path / str(CHOICES.index(chosen)))
        words = settings.command.split()[1:]
        code, shown, _ = run_command(capsys, *words, "--out", out)
        assert code == 0
        assert np.array_equal(equipoise.load(out).x, equipoise.train(settings).x)
        for value in settings.chosen_steps.values():
            assert value in shown


def test_an_optimiser_is_one_file_with_its_transcription():
    assert {spec.name for spec in OPTIMISERS.values()} == {*OPTIMISERS}
    for name in OPTIMISERS:
        module = importlib.import_module(f"equipoise.algorithms.optimisers.{name}")
        assert module.SPEC is OPTIMISERS[name]
        assert hasattr(paper, f"{name}_step")
    assert not OPTIMISER_OPTIONS.keys() & {n for a in ALGORITHMS.values() for n in a.options}
