"""The bounds, printed and corrected; the displacement law; whole plans; and what the planner may
not see."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise
from equipoise import InvalidValue, Question, plan, train
from equipoise.algorithms.dp_scaffnew import dp_scaffnew
from equipoise.algorithms.schedule import coin
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
from equipoise.planning.planner import plan_all
from equipoise.planning.trial import Level, try_all
from equipoise.planning.worlds import known_of, worlds_of
from equipoise.privacy.clip import ClippedRelease
from equipoise.privacy.mechanisms.catalogue import mechanism
from equipoise.privacy.promise import Promise
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.public import minimiser
from problems import NearestWhole, run_command

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


class Stacked(NearestWhole):
    """Normals of stacked runs, the same for the same number and round."""

    name = "stacked"

    def __init__(self, number):
        self._number = number

    def normals(self, round, shape):
        return np.random.default_rng((self._number, round)).standard_normal(shape)


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
            Stacked(seed),
        )
        *_, last = server_rounds(task.x0.expand(10, -1), schedule, fleet, fleet.algorithm)
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


def test_local_steps_grow_with_the_clip_as_the_displacement_law_says():
    """At fixed T the best tau is T C / D*: doubling C doubles tau*, until one round is left."""
    task = load_task("quadratic", TaskOptions(clients=20))
    worlds = worlds_of(task, known_of(task, None, None), 4, 0)
    promise, T, clips = Promise(3.3, 1e-5, trust="secure-aggregation"), 480, (0.025, 0.05, 0.1, 0.2)
    noise = math.sqrt(trainability(promise, 20, 1))

    def level(candidate):
        averaged = noise * candidate.clip * math.sqrt(candidate.rounds)
        return Level(PLACE, (averaged * math.sqrt(20),) * 20)

    divisors = [tau for tau in range(1, T + 1) if T % tau == 0 and T // tau <= 128]
    best = []
    for C in clips:
        plans = [Candidate("dp-fedavg", 1.0, tau, T // tau, C, 1.0, "message") for tau in divisors]
        tried = [
            t for t in try_all(worlds, plans, level, range(8)) if t.candidate.returns == "last"
        ]
        best.append(min(tried, key=lambda trial: trial.mean).candidate.local_steps)
    products = [T / tau * C for tau, C in zip(best, clips, strict=True)]
    assert best == sorted(best)
    assert best[-1] >= 4 * best[0]
    assert max(products) / min(products) <= 2.0  # K C stays, within the spacing of divisors
    distances = []
    for world in worlds.rows:
        gradients = world.clients.gradient(world.x0.expand(20, -1), 0)
        u = -(gradients / gradients.norm(dim=-1, keepdim=True)).mean(0)
        H = world.clients.hessians(world.x0).mean(0)
        law = displacement_law(
            float(-gradients.mean(0) @ u), float(u @ H @ u), float(H.trace()), promise, 20
        )
        distances.append(law.distance)
    assert 0.4 < np.mean(distances) / np.median(products) < 2.5
    assert law.rounds(1e9) == 1
    assert law.gamma(1e9) == pytest.approx(law.distance / 1e9)


def test_public_records_are_taken_from_no_client():
    task = load_task("breast-cancer", TaskOptions(public_records=40))
    assert len(task.pool.features) == 40
    assert sum(task.clients.sizes) == 379 - 40
    without = load_task("breast-cancer", TaskOptions())
    assert sum(without.clients.sizes) == 379


BASIC = {"task": "breast-cancer", "clip": 1.0, "clients": 20, "trust": "secure-aggregation"}


def option(made, origin):
    """What the plan proposes by this origin: there is one such."""
    (proposed,) = (option for option in made.options if option.origin == origin)
    return proposed


@pytest.fixture(scope="module")
def answers():
    """Plans for a small and for a large budget."""
    return plan(Question.of(**BASIC, epsilon=(0.05, 20.0)))


@pytest.fixture(scope="module")
def blind():
    """A plan for a small budget without public records: nothing to begin from."""
    return plan(**BASIC, epsilon=0.05, synthetic=True, algorithm="dp-fedavg")


def way(made, name):
    (named,) = (way for way in made.ways if way.name == name)
    return named


WAYS = [
    "not training",
    "public records alone",
    "each silo alone",
    "public model, tuned at home",
    "federated",
    "federated, warm start",
    "federated, then tuned at home",
]


def test_a_large_budget_is_worth_spending_and_a_small_one_is_not(answers):
    small, large = answers
    assert small.verdict != "train"
    assert large.verdict != "do not train"  # it is easy: silos alone are as good, perhaps
    for made in answers:
        assert [way.name for way in made.ways] == WAYS
        assert [way.free for way in made.ways] == [True] * 4 + [False] * 3
    assert way(small, "federated").predicted.test_error > 0.3, "noise alone"
    assert way(large, "federated").predicted.test_error < 0.1
    assert large.predicted.excess_loss < 0.2 * large.untrained.excess_loss
    assert large.predicted.test_error < way(large, "public records alone").predicted.test_error
    assert large.public_only.records == 40
    assert way(large, "public records alone").measured is not None
    assert way(large, "not training").measured == large.untrained.test_error
    assert way(large, "each silo alone").smallest is not None
    names = {"dp-fedavg", "dp-fedavg, warm", "dp-scaffnew", "dp-scaffnew, warm"}
    tried = {option.origin: option for option in large.options if option.algorithm}
    assert names <= tried.keys()
    assert all(tried[name].warm_start == name.endswith(", warm") for name in names)
    for origin in ("Corollary 1 as printed", "corrected bound"):
        closed = option(large, origin)
        for name in ("eta", "p", "local_steps", "iterations", "rounds", "bound"):
            assert getattr(closed, name) is not None, name
        assert large.predicted.test_loss < 1.1 * closed.predicted.test_loss  # chosen by it


def test_no_verdict_to_train_beside_a_prediction_that_is_no_better_than_what_is_free(answers):
    for made in answers:
        free = min(way.predicted.test_error for way in made.ways if way.free)
        spent = min(way.predicted.test_error for way in made.ways if not way.free)
        if made.verdict == "train":
            assert spent < free
        elif made.verdict != "inconclusive":
            assert spent >= free - 0.01, "what is gained does not matter"


def test_predictions_are_intervals_over_worlds(answers):
    for made in answers:
        known = [made.predicted, *(way.predicted for way in made.ways)]
        for predicted in known:
            for name in ("excess_loss", "test_error", "test_loss", "auroc"):
                if getattr(predicted, name) is not None:
                    low, high = predicted.interval(name)
                    assert low <= getattr(predicted, name) <= high, name
                    assert low < high or (name, low) == ("auroc", 0.5), name
            assert predicted.test_error_se is None
            assert predicted.test_error is not None
    low, high = answers[1].predicted.interval("test_error")
    assert high - low > 0.01, "what forty records leave open"


def test_a_plan_says_what_was_chosen(answers):
    """Warm start, what is returned and the regulariser are settings of the run."""
    for made in answers:
        chosen, settings = made.chosen, made.settings
        assert settings.warm_start == chosen.warm_start
        assert settings.returns == chosen.returns
        assert settings.l2 == chosen.l2
        assert chosen.l2 in (1e-2, 1e-3, 1e-4)


def test_without_training_being_worth_while_it_is_said_what_would_be(blind):
    assert blind.verdict == "do not train"
    assert blind.ways == []
    assert 0.05 < blind.changes.epsilon < 20
    assert blind.changes.clients > 20
    assert f"needed      about epsilon = {blind.changes.epsilon}, or" in str(blind)


@pytest.mark.slow
def test_what_would_change_a_no_does_change_it(blind):
    """At a little more than the epsilon that it names, the planner says no longer no; at a third of
    it, no."""
    named = blind.changes.epsilon
    asked = {**BASIC, "synthetic": True, "algorithm": "dp-fedavg"}
    question = Question.of(**asked, epsilon=(named / 3, named * 1.1))
    assert ["do not train" == made.verdict for made in plan(question)] == [True, False]
    quadratic = plan(task="quadratic", epsilon=2, algorithm="dp-fedavg")
    assert quadratic.verdict == "do not train"
    named = quadratic.changes.epsilon
    assert named > 2
    for epsilon, verdict in ((named / 2, "do not train"), (named * 1.1, "train")):
        assert plan(task="quadratic", epsilon=epsilon, algorithm="dp-fedavg").verdict == verdict


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
    "unit",
    [
        {},
        {"split": "dirichlet:0.1", "iterations": 16},
        {"unit": "record", "noise_in": "message", "trust": "local"},
        {"unit": "record", "noise_in": "gradient", "trust": "local", "clip": None},
    ],
    ids=str,
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


def test_plan_files_are_what_train_reads(answers, blind, tmp_path, capsys):
    small, large = (tmp_path / name for name in ("small.json", "large.json"))
    small.write_text(blind.to_json())
    large.write_text(answers[1].to_json())
    code, _, err = run_command(capsys, "train", "--plan", str(small))
    assert code == 2
    assert "the plan says: do not train" in err.replace("\n", " ")
    code, out, _ = run_command(capsys, "train", "--plan", str(small), "--anyway", "--json")
    assert code == 0
    assert json.loads(out)["run"]["epsilon"] == 0.05
    document = json.loads(run_command(capsys, "train", "--plan", str(large), "--json")[1])
    planned, result = answers[1].chosen, equipoise.Result.model_validate(document)
    for key in ("algorithm", "eta", "local_steps", "iterations", "clip", "gamma", "returns", "l2"):
        assert document["run"][key] == getattr(planned, key), key
    assert document["run"]["warm_start"] == planned.warm_start
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
        "--skew",
        "none",
        "--json",
    ]
    code, out, err = run_command(capsys, *flags, "--proxy", "pool.csv", *trust)
    assert code == 0, err
    document = json.loads(out)
    made = equipoise.Plan.model_validate(document)
    assert made.verdict != "do not train"  # 60 public records of two columns are as good, perhaps
    untrained = way(made, "not training").predicted.test_error
    assert way(made, "federated, warm start").predicted.test_error < 0.5 * untrained
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


def test_local_steps_at_a_fixed_total():
    (answer,) = plan(Question.of(**BASIC, epsilon=(3.3,), iterations=96, algorithm="dp-fedavg"))
    assert answer.chosen.iterations == 96
    assert 96 % answer.chosen.local_steps == 0


def test_networks_get_noise_and_no_pretence(capsys):
    (answer,) = plan(Question.of(task="digits-mlp", epsilon=(3.3,), iterations=12, synthetic=True))
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
def record_plan():
    asked = {**RECORD, "round_cost": 20.0, "algorithm": "dp-fedavg", "iterations": 32, "l2": 0.01}
    return plan(**asked, epsilon=2.0)  # one regulariser, so that excess losses can be compared


@pytest.mark.slow
def test_a_budget_for_records_that_is_too_small_is_not_spent():
    hopeless = plan(
        task="breast-cancer",
        clients=5,
        unit="record",
        algorithm="dp-fedavg",
        iterations=32,
        noise_in="gradient",
        synthetic=True,
        epsilon=0.01,
    )
    assert hopeless.verdict == "do not train"
    assert hopeless.changes.epsilon > 0.01
    assert hopeless.changes.records > 75


def test_plans_for_records_compare_places_for_the_noise_and_both_units(record_plan):
    good = record_plan
    assert good.unit == good.settings.unit == "record"
    whole = option(good, "unit client, dp-fedavg")
    assert {row.noise_in for row in good.options if row is not whole} == {
        "gradient",
        "message",
        "hidden-gradient",
    }
    assert (
        whole.predicted.excess_loss > good.predicted.excess_loss
    )  # both begin from what is public
    cold = [row for row in good.options if row.noise_in == "gradient" and not row.warm_start]
    assert all(row.predicted.excess_loss > 2 * good.predicted.excess_loss for row in cold)
    least = min(row.predicted.excess_loss for row in good.options)
    assert good.predicted.excess_loss <= 1.021 * least
    assert good.public_only.records == 60


def test_of_plans_that_are_as_good_the_cheapest_is_taken(record_plan):
    made = record_plan
    rows = [row for row in made.options if not row.origin.startswith("unit client")]
    least = min(row.predicted.excess_loss for row in rows)
    prices = [
        row.rounds * (row.local_steps + 20.0)
        for row in rows
        if row.predicted.excess_loss <= 1.02 * least
    ]
    assert made.chosen.rounds * (made.chosen.local_steps + 20.0) <= min(prices)
    assert made.predicted.excess_loss <= 1.02 * 1.02 * least
    assert made.chosen.local_steps > 1, "rounds have a price"


@pytest.mark.slow
def test_rounds_have_a_price_whatever_regulariser_is_planned():
    asked = {**RECORD, "algorithm": "dp-fedavg", "noise_in": "gradient", "epsilon": 3.0}
    assert plan(**asked, round_cost=1000.0).chosen.local_steps > 1


def test_a_plan_for_records_is_what_train_does(record_plan):
    made = record_plan
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
        capsys,
        *"plan --task digits-mlp --synthetic --epsilon 8 --unit record".split(),
        *"--iterations 12 --json".split(),
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


# ---- tables of one's own ----


TRUSTED = "--trust secure-aggregation --algorithm dp-fedavg"


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Public pools with a label of two classes, of three, of numbers, and of one class alone."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    features = "[a]\nlow=0\nhigh=1\n[b]\nlow=0\nhigh=1\n"
    kinds = {
        "two": ('categories=["n","p"]', lambda s: "np"[int(s > 1)]),
        "three": ('categories=["n","p","q"]', lambda s: "npq"[int(np.clip(3 * s / 2, 0, 2.9))]),
        "number": ("low=0\nhigh=2", lambda s: f"{s:.4f}"),
        "one": ('categories=["n","p"]', lambda s: "n"),
    }
    for name, (bounds, label) in kinds.items():
        Path(f"{name}.toml").write_text(f"{features}[y]\n{bounds}\n")
        for file, n in ((name, 80), (f"{name}-test", 300)):
            rows = [
                f"{a:.4f},{b:.4f},{label(a + b + rng.normal(0, 0.1))}"
                for a, b in rng.random((n, 2))
            ]
            Path(f"{file}.csv").write_text("a,b,y\n" + "\n".join(rows) + "\n")
    return tmp_path


def of_table(kind, *more, clients=8):
    """The command for this kind of label."""
    words = f"plan --task csv --label y --bounds {kind}.toml --epsilon 8 {TRUSTED}"
    return [
        *words.split(),
        "--proxy",
        f"{kind}.csv",
        "--clients",
        str(clients),
        *" ".join(more).split(),
    ]


@pytest.mark.parametrize(
    ("kind", "flags", "sentence"),
    [
        ("two", "--records 10 20", "2 sizes for 8 clients; give one for each"),
        ("two", "--records 1 2 3 4 5 6 7 8 9", "9 sizes for 8 clients"),
        ("two", "--records 0", "records=0 is not between 1 and"),
        ("two", "--records 5 0 5 5 5 5 5 5", "records=0 is not between 1 and"),
        ("two", "--skew foo", "skew='foo' is neither none, mild, strong nor"),
        ("two", "--skew=-1", "skew='-1' is neither none, mild, strong nor"),
        ("two", "--skew 0", "skew='0' is neither none, mild, strong nor"),
        ("one", "", "the 80 public records all have one label"),
        ("three", "--for auroc", "for=auroc needs a label of two classes"),
        ("number", "--for auroc", "for=auroc needs a label of two classes"),
        ("two", "--for banana", "'error', 'loss' or 'auroc'"),
        ("two", "--split dirichlet:0.1", "the files say which client holds what"),
    ],
)
@pytest.mark.usefixtures("tables")
def test_mistakes_about_clients_get_one_clear_sentence(capsys, kind, flags, sentence):
    code, out, err = run_command(capsys, *of_table(kind, flags))
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "--task breast-cancer --skew mild",
            "skew=mild with task=breast-cancer, whose records are dealt by --split",
        ),
        ("--task breast-cancer --records 30", "records with task=breast-cancer, whose clients"),
        ("--task breast-cancer --synthetic --for error", "for=error needs public records"),
        ("--task quadratic --for auroc", "for=auroc needs public records with labels"),
    ],
)
def test_mistakes_about_what_a_task_knows_get_one_clear_sentence(capsys, arguments, sentence):
    code, out, err = run_command(capsys, "plan", "--epsilon", "2", *arguments.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("tables")
def test_without_a_pool_nothing_can_be_judged_by_its_error(capsys):
    flags = [word for word in of_table("two") if word not in ("--proxy", "two.csv")]
    code, out, err = run_command(capsys, *flags, "--for", "error")
    assert (code, out) == (2, "")
    assert "for=error needs public records with labels: give --proxy FILE" in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "record"])
def test_private_files_change_no_plan_whether_they_exist_or_not(tables, capsys, unit):
    """Nothing of them is read: not that they are there, nor what is in them."""
    files = [f"silo-{i}.csv" for i in range(5)]
    words = "plan --task csv --label y --bounds two.toml --epsilon 5 --proxy two.csv --json"
    more = f"--algorithm dp-fedavg --iterations 16 --unit {unit} --records 90 20 30 40 60"
    flags = [*words.split(), "--data", *files, *more.split()]
    made = []
    for content in (None, "a,b,y\n0.5,0.5,n\n", "nothing at all"):
        for name in files:
            if content is not None:
                (tables / name).write_text(content)
        code, out, err = run_command(capsys, *flags)
        assert code == 0, err
        made.append(out)
    assert made[0] == made[1] == made[2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["two", "three", "number"])
@pytest.mark.usefixtures("tables")
def test_every_kind_of_label_is_planned_end_to_end(capsys, kind):
    """With test records: ways, intervals, a verdict; printed, written and read back."""
    flags = of_table(kind, "--test", f"{kind}-test.csv", "--skew none --records 60", clients=30)
    code, out, err = run_command(capsys, *flags, "--json")
    assert code == 0, err
    made = equipoise.Plan.model_validate_json(out)
    assert [way.name for way in made.ways] == WAYS
    for each in made.ways:
        low, high = each.predicted.interval("test_error")
        assert 0 <= low <= each.predicted.test_error <= high
        assert (each.predicted.auroc is not None) == (kind == "two")
    untrained, alone = (way(made, name) for name in ("not training", "public records alone"))
    assert alone.predicted.test_error < 0.7 * untrained.predicted.test_error
    low, high = alone.predicted.interval("test_error")
    assert low * 0.8 <= alone.measured <= high * 1.2, "about what worlds say"
    code, shown, _ = run_command(capsys, *flags)
    assert code == 0
    for name in WAYS:
        assert name in shown
    assert "guessed" not in shown
    assert equipoise.Plan.model_validate_json(made.to_json()) == made


@pytest.mark.slow
@pytest.mark.usefixtures("tables")
def test_a_guess_is_said_first_and_the_plan_is_for_all_skews(capsys):
    code, out, err = run_command(capsys, *of_table("two"))
    assert code == 0, err
    guesses = [line for line in out.splitlines()[:3] if line.startswith("guessed ")]
    assert len(guesses) == 2
    assert "--records" in guesses[0]
    assert "--skew" in guesses[1]
    assert "GUESSED" not in out


@pytest.mark.slow
@pytest.mark.parametrize("what", ["error", "loss", "auroc"])
@pytest.mark.usefixtures("tables")
def test_a_plan_is_judged_by_what_is_asked_for(capsys, what):
    flags = of_table("two", "--skew none --records 60 --iterations 16 --for", what)
    made = equipoise.Plan.model_validate_json(run_command(capsys, *flags, "--json")[1])
    assert made.judged_by == what
    assert {"error": "error ", "loss": "loss ", "auroc": "AUROC "}[what] in made.reason
    heading = {"error": "error", "loss": "loss", "auroc": "AUROC"}[what]
    assert heading in run_command(capsys, *flags)[1]


# ---- what is followed, and what is heard ----


FOLLOWED = {
    "warm": {"task": "breast-cancer", "epsilon": 4, "trust": "secure-aggregation"},
    "cold": {"task": "quadratic", "clients": 60, "epsilon": 30, "trust": "secure-aggregation"},
    "record": {**RECORD, "epsilon": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("question", FOLLOWED.values(), ids=FOLLOWED)
def test_training_follows_a_plan_in_everything(question):
    made = plan(**question, algorithm="dp-fedavg")
    result, chosen = train(made, anyway=True), made.chosen
    run = result.run
    for name in ("algorithm", "eta", "local_steps", "iterations", "clip", "gamma", "returns"):
        assert getattr(run, name) == getattr(chosen, name), name
    assert run.warm_start == chosen.warm_start
    assert run.l2 == chosen.l2
    assert result.rounds == chosen.rounds
    assert run.noise_in == chosen.noise_in
    tolerance = 1e-9 if made.unit == "client" or chosen.noise_in == "gradient" else 0.05
    assert result.account.sigma == pytest.approx(chosen.sigma, rel=tolerance)
    assert result.epsilon_spent <= question["epsilon"]


def test_a_given_regulariser_is_kept():
    made = plan(**BASIC, epsilon=5, algorithm="dp-fedavg", l2=0.003, iterations=8)
    assert made.chosen.l2 == made.settings.l2 == 0.003


@pytest.mark.parametrize(
    "question",
    [
        {**BASIC, "epsilon": (2.0, 5.0), "iterations": 8},
        {**RECORD, "epsilon": 2.0, "iterations": 8, "noise_in": "gradient"},
    ],
    ids=["client", "record"],
)
def test_progress_never_goes_back_and_ends_at_one(question):
    heard = []
    plan_all(Question.of(**question, algorithm="dp-fedavg"), progress=heard.append)
    assert len(heard) > 4
    assert heard == sorted(heard)
    assert heard[0] > 0
    assert heard[-1] == pytest.approx(1.0)


@pytest.mark.slow
def test_the_same_question_gets_the_same_plan_and_another_seed_other_worlds():
    asked = {**BASIC, "epsilon": 5, "algorithm": "dp-fedavg", "iterations": 8}
    first, again, other = plan(**asked), plan(**asked), plan(**asked, seed=1)
    assert first == again
    assert first.predicted != other.predicted
