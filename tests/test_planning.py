"""The bounds, printed and corrected; the displacement law; the two-stage planner; and what the
planner may not see."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import equipoise
from equipoise import InvalidValue, Question, plan, train
from equipoise.algorithms.dp_fedavg import dp_fedavg
from equipoise.algorithms.dp_scaffnew import dp_scaffnew
from equipoise.algorithms.schedule import coin, periodic
from equipoise.facts import Facts
from equipoise.fleets import SimulatedFleet, server_rounds
from equipoise.paper.corollary import corollary_1, printed_bound
from equipoise.paper.lemma1 import exact_v
from equipoise.planning.bounds import (
    Problem,
    best_p,
    corrected_bound,
    corrected_closed_form,
    corrected_plan,
    displacement_law,
    trainability,
)
from equipoise.planning.candidates import Candidate
from equipoise.planning.plan import Prediction
from equipoise.planning.problems import ClientProblem
from equipoise.planning.screening import Screen, Setting, _simulate, screen, shortlist
from equipoise.planning.surrogate import bootstrap, surrogate_of, synthetic_pool
from equipoise.planning.trial import TrialNoise, race
from equipoise.planning.verdict import judge
from equipoise.privacy.clip import ClippedRelease
from equipoise.privacy.mechanisms.catalogue import mechanism
from equipoise.privacy.promise import Promise
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.public import minimiser
from problems import FINE, NearestWhole, run_command

AGGREGATED = Promise(2, 1e-5, trust="secure-aggregation")
PLACE = mechanism("client")


def problem(**changes):
    return Problem(
        **{
            "mu": 0.01,
            "L": 1.0,
            "dimension": 10,
            "promise": Promise(1, 1e-5),
            "clients": 10,
            "clip": 0.1,
            **changes,
        }
    )


@pytest.mark.parametrize("psi0", [100, 1e4])
@pytest.mark.parametrize("v", [0.1, 1.0])
def test_corollary_1_is_the_argmin_of_the_printed_bound(psi0, v):
    p = problem(psi0=psi0)
    found = corollary_1(p, v)
    assert found.eta == 1.0
    assert found.p == pytest.approx(0.1)
    assert found.local_steps * found.rounds == pytest.approx(found.iterations)
    grid = np.linspace(found.iterations - 50, found.iterations + 50, 2001)
    values = [printed_bound(p, v, found.eta, found.p, T) for T in grid]
    assert grid[int(np.argmin(values))] == pytest.approx(found.iterations, abs=0.06)
    assert found.bound == pytest.approx(min(values), rel=1e-9)
    assert found.bound == pytest.approx(
        0.99**found.iterations * psi0 + 2 * v * 0.01 * found.iterations * math.log(1e5), rel=1e-12
    )
    assert corollary_1(p) == corollary_1(p, exact_v(1, 1e-5, 2.0))


def test_corrected_minima():
    """p* and T* in closed form are where the corrected bound is least."""
    many = {"promise": Promise(1, 1e-5, trust="secure-aggregation"), "clients": 100}
    p = problem(r0=1.0, zeta=0.5, **many)
    found = corrected_plan(p)
    assert 1 <= found.iterations
    assert found.bound < p.untrained
    for eta, T in ((0.5, 100.0), (1.0, 300.0), (1.9, 30.0)):
        grid = np.linspace(math.sqrt(1 - (1 - eta * p.mu) ** 2), 1, 20_001)
        values = [corrected_bound(p, eta, x, T) for x in grid]
        assert best_p(p, eta, T) == pytest.approx(grid[int(np.argmin(values))], abs=1e-4)
    for eta in (found.eta * 0.9, found.eta * 1.1):
        for T in (found.iterations * 0.9, found.iterations * 1.1):
            if eta <= 2 / (p.L + p.mu):
                assert corrected_bound(p, eta, best_p(p, eta, T), T) >= found.bound * (1 - 1e-9)
    alone = problem(psi0=1000.0, **many)
    closed = corrected_closed_form(alone)
    decay = -math.log(0.99)
    assert closed.iterations == pytest.approx(math.log(10 * decay / (2 * alone.price)) / decay)
    assert corrected_plan(alone) == closed


def test_the_printed_price_knows_neither_dimension_nor_clients():
    """With v exact, what the printed bound charges for noise is the corrected price times N / d
    (local trust)."""
    p = problem(psi0=100.0)
    v = exact_v(1, 1e-5, 2.0)
    printed = v * p.clip**2 * math.log(1e5) / 1.0
    assert p.price == pytest.approx(printed * p.dimension / p.clients, rel=1e-9)


def test_trainability():
    nu2 = trainability(Promise(3.3, 1e-5, neighbours="zero-out"), 6, 44_318)
    assert nu2 == pytest.approx(44_318 / 0.7819717670**2 / 6, rel=1e-8)
    assert trainability(AGGREGATED, 20, 31) == pytest.approx(
        4 * 31 / 0.5015516892**2 / (20 * 19), rel=1e-8
    )


CASES = [("quadratic", 1.0), ("quadratic", 0.1), ("breast-cancer", 1.0), ("breast-cancer", 0.14)]


def squared_distances(name, p, T, s):
    """Mean over 200 runs of |x_K - x*|^2 of DP-ScaffNew with coins, averaged noise s per coordinate
    and no clip."""
    task = load_task(name, TaskOptions(clients=20))
    best = minimiser(task.clients, task.x0)
    total = 0.0
    for seed in range(20):  # schedules
        schedule = coin(T, p, seed)
        fleet = SimulatedFleet(
            20,
            task.clients.gradient,
            dp_scaffnew(1 / task.L, p),
            ClippedRelease(1e9, s * math.sqrt(20)),
            TrialNoise(range(10 * seed, 10 * seed + 10)),
        )
        *_, last = server_rounds(task.x0.expand(10, -1), schedule, fleet)
        total += float((last.x - best).square().sum(-1).mean())
    slopes = task.clients.gradient(best.expand(20, -1), 0)
    return (
        total / 20,
        task,
        float((task.x0 - best).norm()),
        math.sqrt(float(slopes.square().sum(-1).mean())),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "p"), CASES)
@pytest.mark.parametrize("T", [10, 51])
def test_the_corrected_bound_holds_and_the_printed_one_does_not(name, p, T):
    clip = 1.0
    nu2 = trainability(AGGREGATED, 20, 1)
    s = math.sqrt(nu2 * p * T) * clip
    measured, task, r0, zeta = squared_distances(name, p, T, s)
    known = Problem(task.mu, task.L, task.dimension, AGGREGATED, 20, clip, r0=r0, zeta=zeta)
    assert measured <= corrected_bound(known, 1 / task.L, p, T)
    if (name, p, T) == ("breast-cancer", 1.0, 51):
        local = Promise(2, 1e-5)
        v = exact_v(local.epsilon, local.delta, 2.0)
        sigma = clip * math.sqrt(v * p * T * math.log(1e5)) / local.epsilon
        measured, *_ = squared_distances(name, p, T, sigma / math.sqrt(20))
        printed = printed_bound(
            Problem(task.mu, task.L, 31, local, 20, clip, r0=r0, zeta=zeta),
            v,
            1 / task.L,
            p,
            T,
        )
        assert 20 * measured > 1.2 * printed, "stacked over the clients, as psi is"


@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-scaffnew"])
def test_screening_is_exact_on_quadratics(algorithm):
    """The round maps of stage one and the real algorithm give the same models, clip and noise
    on.
    """
    task = load_task("quadratic", TaskOptions(clients=5))
    surrogate = surrogate_of(task.clients, task.x0, task.L, task.mu)
    plans = [
        Setting(6, 0.3, 1.0),
        Setting(6, 0.05, 0.5),
        Setting(3, 0.3, 0.25),
        Setting(1, 0.3, 1.0),
    ]
    what = Screen(algorithm, {}, [0.7], [(5, [6, 3, 1])], [0.3, 0.05], [1.0], 0.2, 2)
    normals = torch.tensor(np.random.default_rng(0).standard_normal((2, 6, 10)))
    ends = _simulate(surrogate, what, 0.7, 5, plans, normals)

    class Averaged(NearestWhole):
        name = "given"

        def __init__(self, seed):
            self.seed = seed

        def normals(self, round, shape):
            return np.broadcast_to(normals[self.seed, round - 1].numpy(), shape)

    for (K, C, gamma), found in zip(plans, ends, strict=True):
        for seed in range(2):
            chosen = dp_fedavg(0.7) if algorithm == "dp-fedavg" else dp_scaffnew(0.7, 0.2)
            mechanism = ClippedRelease(C, 0.2 * C * math.sqrt(K), FINE)
            fleet = SimulatedFleet(5, task.clients.gradient, chosen, mechanism, Averaged(seed))
            *_, last = server_rounds(task.x0, periodic(5 * K, 5), fleet, gamma)
            torch.testing.assert_close(found[seed], last.x, rtol=0, atol=1e-10)


def test_local_steps_grow_with_the_clip_as_the_displacement_law_says():
    """At fixed T the best tau is T C / D*: doubling C doubles tau*, until one round is left."""
    task = load_task("quadratic", TaskOptions(clients=20))
    surrogate = surrogate_of(task.clients, task.x0, task.L, task.mu)
    promise, T = Promise(3.3, 1e-5, trust="secure-aggregation"), 480
    noise = math.sqrt(trainability(promise, 20, 1))
    divisors = [tau for tau in range(1, T + 1) if T % tau == 0 and T // tau <= 128]
    best = []
    for C in (0.025, 0.05, 0.1, 0.2):
        paces = [(tau, [T // tau]) for tau in divisors]
        tried = screen(
            surrogate, Screen("dp-fedavg", {}, [1.0], paces, [C], [1.0], noise, 64), PLACE
        )
        best.append(min(tried, key=lambda c: c.excess).local_steps)
    products = [T / tau * C for tau, C in zip(best, (0.025, 0.05, 0.1, 0.2), strict=True)]
    assert best == sorted(best)
    assert best[-1] >= 4 * best[0]
    assert max(products) / min(products) <= 2.0  # K C stays, within the spacing of divisors
    gradients = task.clients.gradient(task.x0.expand(20, -1), 0)
    u = -(gradients / gradients.norm(dim=-1, keepdim=True)).mean(0)
    H = surrogate.hessians.mean(0)
    law = displacement_law(
        float(-gradients.mean(0) @ u), float(u @ H @ u), float(H.trace()), promise, 20
    )
    assert 0.4 < law.distance / np.median(products) < 2.5
    assert law.rounds(1e9) == 1
    assert law.gamma(1e9) == pytest.approx(law.distance / 1e9)


def test_trials_use_common_random_numbers_and_races_keep_the_best():
    task = load_task("quadratic", TaskOptions(clients=6))
    surrogate = surrogate_of(task.clients, task.x0, task.L, task.mu)
    good, bad = (
        Candidate("dp-fedavg", 1.0, 4, 8, 0.3, 1.0),
        Candidate("dp-fedavg", 1.0, 1, 60, 3.0, 1.0),
    )
    facts = Facts("quadratic", 6, task.dimension, 1.0, 32)
    tried = ClientProblem(surrogate, AGGREGATED, facts, PLACE)

    def try_out(candidate, seeds):
        return tried.try_with(candidate, seeds, 0.05)

    first, rest = try_out(good, range(3)), try_out(good, range(2, 5))
    torch.testing.assert_close(first.x[2], rest.x[0], rtol=1e-12, atol=1e-15)
    won = race([bad, good], try_out, ((4, 1), (16, 1)))
    assert won.candidate.local_steps == 4
    assert len(won.excess) == 16
    assert won.candidate.excess == pytest.approx(float(won.excess.mean()))


def test_shortlists_are_varied():
    many = [
        Candidate("dp-fedavg", 1.0, tau, K, 1.0, 1.0, excess=K / 100 + tau)
        for tau in (1, 2)
        for K in range(1, 30)
    ]
    short = shortlist(many, most=24, alike=3)
    assert [(c.local_steps, c.rounds) for c in short] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 1),
        (2, 2),
        (2, 3),
    ]


def test_surrogates_come_from_the_pool():
    task = load_task("breast-cancer", TaskOptions(public_records=40))
    assert len(task.pool.features) == 40
    assert sum(task.clients.sizes) == 379 - 40
    without = load_task("breast-cancer", TaskOptions())
    assert sum(without.clients.sizes) == 379
    stand_ins = bootstrap(task.pool, 7, 12, task.clients.link, task.clients.l2, 0)
    rows = {tuple(row) for row in task.pool.features}
    assert all(tuple(row) in rows for row in stand_ins.features.reshape(-1, 31).numpy())
    made_up = synthetic_pool(50, 31, 1, task.clients.link, 1.0, 0)
    assert np.linalg.norm(made_up.features, axis=1).max() <= math.sqrt(2) + 1e-12
    with pytest.raises(equipoise.DataError, match="3 public records are too few"):
        bootstrap(task.pool.rows(np.arange(3)), 7, 12, task.clients.link, task.clients.l2, 0)


BASIC = {"task": "breast-cancer", "clip": 1.0, "clients": 20, "trust": "secure-aggregation"}


def option(made, origin):
    """What the plan proposes by this origin: there is one such."""
    (proposed,) = (option for option in made.options if option.origin == origin)
    return proposed


@pytest.fixture(scope="module")
def answers():
    """Plans for a small and for a large budget."""
    return plan(Question.of(**BASIC, epsilon=(0.05, 20.0)))


def test_a_large_budget_is_worth_spending_and_a_small_one_is_not(answers):
    small, large = answers
    assert small.verdict == "do not train"
    assert 0.05 < small.changes.epsilon < 20
    assert small.changes.clients > 20
    assert large.predicted.excess_loss < 0.2 * large.untrained.excess_loss
    assert large.predicted.test_error < 0.1
    assert large.public_only.records == 40
    tried = [option.origin for option in large.options if option.origin == option.algorithm]
    assert set(tried) == {"dp-fedavg", "dp-scaffnew"}
    for origin in ("Corollary 1 as printed", "corrected bound"):
        closed = option(large, origin)
        for name in ("eta", "p", "local_steps", "iterations", "rounds", "bound"):
            assert getattr(closed, name) is not None, name
        assert large.predicted.excess_loss < 1.1 * closed.predicted.excess_loss


@pytest.mark.slow
def test_what_would_change_a_no_does_change_it(answers):
    """At a little more than the epsilon that it names, the planner says yes; at a half of it,
    no.
    """
    named = answers[0].changes.epsilon
    question = Question.of(**BASIC, epsilon=(named / 2, named * 1.1), algorithm="dp-fedavg")
    assert ["do not train" == made.verdict for made in plan(question)] == [True, False]


@pytest.mark.slow
def test_a_plan_predicts_what_training_reaches(answers):
    """On the private records, which the planner never saw, with the public ones left out: close to
    what was predicted."""
    settings = answers[1].settings
    assert settings.public_records == 40
    errors = [
        train(settings.model_copy(update={"simulate_noise_seed": s})).test_error for s in range(20)
    ]
    assert abs(np.mean(errors) - answers[1].predicted.test_error) < 0.03
    assert train(settings).epsilon_spent <= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit", [{}, {"unit": "record", "noise_in": "message", "trust": "local"}], ids=str
)
def test_the_planner_reads_no_private_record(monkeypatch, unit):
    """With every private record replaced by NaN the plan is the same."""
    from equipoise.planning import planner

    question = Question.of(**{**BASIC, **unit}, epsilon=(5.0,), algorithm="dp-fedavg")
    (before,) = plan(question)
    honest = planner.load_to_plan

    def poisoned(name, options):
        task = honest(name, options)
        task.clients.features[:] = torch.nan
        task.clients.targets[:] = torch.nan
        return task

    monkeypatch.setattr(planner, "load_to_plan", poisoned)
    assert plan(question) == [before]


def test_plan_files_are_what_train_reads(answers, tmp_path, capsys):
    small, large = (tmp_path / name for name in ("small.json", "large.json"))
    small.write_text(answers[0].to_json())
    large.write_text(answers[1].to_json())
    code, _, err = run_command(capsys, "train", "--plan", str(small))
    assert code == 2
    assert "the plan says: do not train" in err.replace("\n", " ")
    code, out, _ = run_command(capsys, "train", "--plan", str(small), "--anyway", "--json")
    assert code == 0
    assert json.loads(out)["run"]["epsilon"] == 0.05
    document = json.loads(run_command(capsys, "train", "--plan", str(large), "--json")[1])
    planned, result = answers[1].chosen, equipoise.Result.model_validate(document)
    for key in ("algorithm", "eta", "local_steps", "iterations", "clip", "gamma"):
        assert document["run"][key] == getattr(planned, key), key
    assert document["rounds"] == planned.rounds
    assert result.account.sigma == planned.sigma
    assert result.client_sigma == planned.client_sigma
    (tmp_path / "bad.json").write_text("{}")
    assert "is not a plan" in run_command(capsys, "train", "--plan", str(tmp_path / "bad.json"))[2]
    assert "No such file" in run_command(capsys, "train", "--plan", str(tmp_path / "none.json"))[2]


CONSTANTS = "plan --mu 0.01 --smoothness 1 --dimension 10 --clients 10 --delta 1e-5 --clip 0.1"


def test_plans_from_constants_alone(capsys):
    document = json.loads(
        run_command(capsys, *f"{CONSTANTS} --psi0 100 --epsilon 1 --v 1 --json".split())[1]
    )
    printed = option(equipoise.Plan.model_validate(document), "Corollary 1 as printed")
    assert printed.iterations == pytest.approx(146.61933973522108)
    assert printed.v == 1
    assert "from psi0 alone" in document["reason"]
    assert "psi0/N" in document["reason"]
    full = equipoise.Plan.model_validate_json(
        run_command(capsys, *f"{CONSTANTS} --r0 1 --zeta 0.5 --epsilon 50 --json".split())[1]
    )
    assert full.verdict == "train"
    corrected = option(full, "corrected bound")
    assert corrected.bound < 1
    assert full.chosen.rounds == max(1, round(corrected.rounds))
    code, out, _ = run_command(capsys, *f"{CONSTANTS} --psi0 100 --epsilon 1".split())
    assert code == 0
    assert out.startswith("verdict     DO NOT TRAIN")
    assert "needed      about epsilon" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "plan --mu 2 --smoothness 1 --psi0 1 --dimension 3 --clients 5 --epsilon 1 --clip 1",
            "mu=2.0 with smoothness=1.0",
        ),
        (
            "plan --mu 1 --smoothness 1 --psi0 0 --dimension 3 --clients 5 --epsilon 1 --clip 1",
            "psi0=0.0 is not a positive number",
        ),
        (
            "plan --mu 1 --smoothness 1 --dimension 3 --clients 5 --epsilon 1 --clip 1",
            "give psi0, or r0 and zeta",
        ),
        ("plan --mu 1 --epsilon 1", "smoothness, dimension, clients, clip missing"),
        ("plan --epsilon 1", "give a task, or the constants of a problem"),
        (
            "plan --task breast-cancer --mu 1 --epsilon 1",
            "mu with task=breast-cancer, which knows its constants",
        ),
        ("plan --task breast-cancer --epsilon inf", "there is nothing to plan"),
        ("plan --task breast-cancer --epsilon 0", "epsilon=0.0 is not > 0"),
        (
            "plan --task breast-cancer --epsilon 1 --public-records 3",
            "3 public records are too few",
        ),
        ("plan --task breast-cancer --epsilon 1 --proxy x.csv", "proxy with task=breast-cancer"),
        (
            "plan --task breast-cancer --epsilon 1 --save-plot x.pdf",
            "the name must end with .png, .svg, .html",
        ),
        ("train --plan x.json --task quadratic --epsilon 1 --clip 1", "a plan says everything"),
        ("train", "task is missing"),
    ],
)
def test_mistakes_get_one_clear_sentence(capsys, arguments, sentence):
    code, out, err = run_command(capsys, *arguments.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_csv_plans_open_no_private_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("bounds.toml").write_text(
        '[a]\nlow=0\nhigh=1\n[b]\nlow=0\nhigh=1\n[y]\ncategories=["n","p"]\n'
    )
    rng = np.random.default_rng(0)
    rows = [
        f"{a:.3f},{b:.3f},{'p' if a + b + rng.normal(0, 0.1) > 1 else 'n'}"
        for a, b in rng.random((60, 2))
    ]
    Path("pool.csv").write_text("a,b,y\n" + "\n".join(rows))
    files = [f"hospital-{i}.csv" for i in range(30)]  # none of which exists
    flags = [
        "plan",
        "--task",
        "csv",
        "--data",
        *files,
        "--label",
        "y",
        "--bounds",
        "bounds.toml",
        "--epsilon",
        "5",
    ]
    trust = [
        "--trust",
        "secure-aggregation",
        "--algorithm",
        "dp-fedavg",
        "--records",
        "20",
        "--clip",
        "0.3",
        "--json",
    ]
    code, out, err = run_command(capsys, *flags, "--proxy", "pool.csv", *trust)
    assert code == 0, err
    document = json.loads(out)
    assert document["verdict"] == "train"
    assert document["settings"]["data"] == files
    assert document["settings"]["clip"] == document["chosen"]["clip"]
    code, out, _ = run_command(capsys, *flags, "--synthetic", *trust)
    assert code == 0
    assert any("made-up records" in sentence for sentence in json.loads(out)["public"])
    Path("pool.csv").write_text("a,y\n0,n\n")
    code, _, err = run_command(capsys, *flags, "--proxy", "pool.csv", *trust)
    assert code == 2
    assert "pool.csv does not have the columns of the bounds file: it lacks b" in err


@pytest.mark.slow
def test_made_up_labels_predict_no_test_error(tmp_path, monkeypatch, capsys):
    """Without --proxy the stand-ins have invented labels, which say nothing about the test records
    at hand: an excess loss is predicted, and no test error."""
    monkeypatch.chdir(tmp_path)
    Path("bounds.toml").write_text('[a]\nlow=0\nhigh=1\n[y]\ncategories=["n","p"]\n')
    rows = [f"{a:.3f},{'p' if a > 0.5 else 'n'}" for a in np.random.default_rng(0).random(60)]
    Path("test.csv").write_text("a,y\n" + "\n".join(rows))
    flags = (
        "plan --task csv --clients 30 --label y --bounds bounds.toml --test test.csv --epsilon 5"
    )
    flags += " --trust secure-aggregation --algorithm dp-fedavg --clip 0.3"
    made = equipoise.Plan.model_validate_json(run_command(capsys, *flags.split(), "--json")[1])
    assert made.predicted.excess_loss is not None
    assert made.untrained.test_error is not None
    assert {option.predicted.test_error for option in made.options} <= {
        None,
        made.untrained.test_error,  # of a formula that says not to train
    }
    assert made.predicted.test_error is None
    out = run_command(capsys, *flags.split())[1]
    assert "test error not known" in out
    assert "made-up records, which predict no test error" in out


def test_no_verdict_to_train_beside_a_prediction_that_is_no_better_than_not_training(answers):
    best = SimpleNamespace(mean=0.3, standard_error=0.01, x=None)
    nothing = SimpleNamespace(measure=None)
    untrained = Prediction(excess_loss=1.0, test_error=0.4)
    for error, verdict in ((0.39, "train"), (0.4, "do not train"), (0.5, "do not train")):
        predicted = Prediction(excess_loss=0.3, test_error=error)
        assert judge(best, predicted, untrained, None, nothing, "real records")[0] == verdict
    for made in answers:
        if made.verdict == "train":
            assert made.predicted.test_error < made.untrained.test_error


def test_local_steps_at_a_fixed_total():
    (answer,) = plan(Question.of(**BASIC, epsilon=(3.3,), iterations=96, algorithm="dp-fedavg"))
    assert answer.chosen.iterations == 96
    assert 96 % answer.chosen.local_steps == 0


def test_networks_get_noise_and_no_pretence(capsys):
    (answer,) = plan(Question.of(task="digits-mlp", epsilon=(3.3,), iterations=12))
    assert answer.verdict == "inconclusive"
    assert "nothing was tried" in answer.reason
    assert answer.chosen is None
    assert answer.options == []
    assert answer.predicted is None
    assert [level.local_steps for level in answer.noise] == [1, 2, 3, 4, 6, 12]
    assert answer.noise[0].sigma == pytest.approx(answer.noise[-1].sigma * math.sqrt(12))
    for anyway in (False, True):
        with pytest.raises(InvalidValue, match=r"holds no settings to train with: .+ give train"):
            answer.to_train(anyway)


@pytest.mark.parametrize("name", ["trade-off.png", "trade-off.svg", "trade-off.html"])
def test_the_trade_off_is_a_table_and_a_picture(answers, tmp_path, name):
    from equipoise.reports.trade_off import draw_trade_off

    draw_trade_off(answers, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    assert len(content) > 5000
    if name.endswith("html"):
        assert b"<script src=" not in content, "opens without a network"


RECORD = {"task": "breast-cancer", "clients": 5, "unit": "record", "public_records": 60}


@pytest.fixture(scope="module")
def record_plans():
    return plan(
        Question.of(
            **RECORD, epsilon=(0.01, 2.0), round_cost=20.0, algorithm="dp-fedavg", iterations=32
        )
    )


def test_plans_for_records_compare_places_for_the_noise_and_both_units(record_plans):
    hopeless, good = record_plans
    assert hopeless.verdict == "do not train"
    assert hopeless.changes.epsilon > 0.01
    assert hopeless.changes.records > 64
    assert good.unit == good.settings.unit == "record"
    whole = option(good, "unit client, dp-fedavg")
    assert {row.noise_in for row in good.options if row is not whole} == {
        "gradient",
        "message",
        "hidden-gradient",
    }
    assert whole.predicted.excess_loss > 2 * good.predicted.excess_loss
    least = min(row.predicted.excess_loss for row in good.options)
    assert good.predicted.excess_loss <= 1.021 * least
    assert good.public_only.records == 60


def test_of_plans_that_are_as_good_the_cheapest_is_taken(record_plans):
    made = record_plans[1]
    rows = [row for row in made.options if not row.origin.startswith("unit client")]
    least = min(row.predicted.excess_loss for row in rows)
    prices = [
        row.rounds * (row.local_steps + 20.0)
        for row in rows
        if row.predicted.excess_loss <= 1.02 * least
    ]
    assert made.chosen.rounds * (made.chosen.local_steps + 20.0) == min(prices)
    assert len(prices) > 1


def test_a_plan_for_records_is_what_train_does(record_plans):
    made = record_plans[1]
    results = [
        train(made.settings.model_copy(update={"simulate_noise_seed": seed})) for seed in range(12)
    ]
    assert results[0].rounds == made.chosen.rounds
    sigma, mean_size = results[0].account.sigma, sum(results[0].sizes) / 5
    if made.chosen.noise_in == "gradient":
        assert sigma == pytest.approx(made.chosen.sigma, rel=1e-9)
    else:
        assert sigma == pytest.approx(made.chosen.sigma, rel=2 / mean_size)
    errors = [result.test_error for result in results]
    assert abs(np.mean(errors) - made.predicted.test_error) < 0.06
    assert all(result.epsilon_spent <= 2.0 for result in results)


def test_networks_with_private_records_get_noise_that_no_pace_changes(capsys):
    code, out, _ = run_command(
        capsys, *"plan --task digits-mlp --epsilon 8 --unit record --iterations 12 --json".split()
    )
    document = json.loads(out)
    assert code == 0
    assert len({row["sigma"] for row in document["noise"]}) == 1
    assert document["promise"]["unit"] == "record"
    assert "save communication, not privacy" in document["reason"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--task quadratic --unit record", "no individual records"),
        ("--task breast-cancer --unit record --gamma 0.5", "only gamma=1 is planned"),
        (
            "--task breast-cancer --unit record --trust secure-aggregation",
            "saves noise only with noise_in=message",
        ),
        ("--task breast-cancer --round-cost 3", "where every round costs noise"),
        (
            "--mu 0.01 --smoothness 1 --dimension 3 --clients 3 --clip 1 --psi0 1 --unit record",
            "needs a task",
        ),
    ],
)
def test_mistakes_about_records_get_one_clear_sentence(capsys, arguments, sentence):
    code, _, err = run_command(capsys, "plan", "--epsilon", "1", *arguments.split())
    assert code == 2
    assert sentence in err.replace("\n", " ")
