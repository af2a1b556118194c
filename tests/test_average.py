"""`--returns average`: the weighted average of the communicated models, and what is said of it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import equipoise
import paper
from equipoise import train
from equipoise.algorithms.dp_fedavg import dp_fedavg
from equipoise.algorithms.dp_scaffnew import dp_scaffnew
from equipoise.algorithms.schedule import coin, periodic
from equipoise.fleets import Round, SimulatedFleet, averaged, server_rounds
from equipoise.privacy.clip import ClippedRelease
from equipoise.privacy.statement import statement
from equipoise.reports.curve import learning_curve
from equipoise.reports.reading import read_study
from equipoise.result import Point
from equipoise.settings import Settings
from equipoise.sweeps.grid import grid
from equipoise.sweeps.stacks import stacks_of
from equipoise.sweeps.store import Store
from equipoise.tasks import Measured, TaskOptions, load_task
from problems import FINE, GivenNoise, logistic, quadratic, run_command, swept

ETA, SIGMA, C, P, T = 0.3, 0.05, 0.1, 0.25, 24
SCHEDULES = {"periodic": periodic(T, 4), "coin": coin(T, P, seed=3)}
RUN = {
    "task": "breast-cancer",
    "clients": 10,
    "iterations": 40,
    "local_steps": 4,
    "clip": 1.0,
    "epsilon": 2.0,
    "simulate_noise_seed": 3,
}
COIN = {"local_steps": None, "schedule": "coin", "p": 0.25}
SENTENCE = "the average of all rounds' models (weights k^3)"


def by_hand(name, x0, schedule, noise, g, N):
    """All communicated models, from the transcriptions of the algorithms."""
    ends = np.cumsum(schedule)
    if name == "dp-scaffnew":
        coins = np.zeros(T, dtype=int)
        coins[ends - 1] = 1
        return [paper.dp_scaffnew(x0, coins[:end], P, ETA, C, noise, g, N)[0] for end in ends]
    models, x = [], x0
    for k, (tau, end) in enumerate(zip(schedule, ends, strict=True)):

        def from_here(i, y, j, start=end - tau):
            return g(i, y, start + j)

        x = paper.dp_fedavg(x, 1, tau, ETA, C, noise[k : k + 1], from_here, N)
        models.append(x)
    return models


@pytest.mark.parametrize("problem", [quadratic, logistic])
@pytest.mark.parametrize("name", ["dp-fedavg", "dp-scaffnew"])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_the_average_is_that_of_the_transcribed_models(problem, name, schedule):
    """With clip and noise, after every round."""
    task, g = problem()
    N = len(task.clients.sizes)
    noise = np.random.default_rng(0).normal(0, SIGMA, (len(schedule), N, task.dimension))
    algorithm = dp_fedavg(ETA) if name == "dp-fedavg" else dp_scaffnew(ETA, P)
    fleet = SimulatedFleet(
        N,
        task.clients.gradient,
        algorithm,
        ClippedRelease(C, SIGMA, FINE),
        GivenNoise(noise, SIGMA),
    )
    models = by_hand(name, task.x0.numpy(), schedule, noise, g, N)
    clipped = False
    for round in averaged(server_rounds(task.x0, schedule, fleet, algorithm)):
        known = models[: round.number]
        np.testing.assert_allclose(round.x.numpy(), known[-1], rtol=0, atol=1e-12)
        np.testing.assert_allclose(round.average.numpy(), paper.average(known), rtol=0, atol=1e-12)
        clipped |= bool((fleet.memory.update.norm(dim=-1) > C).any())
    assert round.number == len(models) > 3
    assert clipped, "the clip must act for the test to mean anything"


def test_weights_are_cubes_and_the_start_has_none():
    rounds = [Round(k, k, torch.tensor([float(k)], dtype=torch.float64)) for k in (1, 2, 3)]
    averages = [float(round.average) for round in averaged(rounds)]
    assert averages == pytest.approx([1, 17 / 9, (1 + 16 + 81) / 36], rel=1e-15)
    assert [round[:3] for round in averaged(rounds)] == [round[:3] for round in rounds]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_averages_lose_nothing(dtype):
    """The sums are in float64, whatever the precision of the models."""
    generator = torch.Generator().manual_seed(0)
    models = [5 + torch.randn(7, generator=generator, dtype=dtype) for _ in range(3000)]
    *_, last = averaged(Round(k, k, x) for k, x in enumerate(models, start=1))
    expected = paper.average([x.double().numpy() for x in models])
    assert last.average.dtype == dtype
    precision = 1e-13 if dtype == torch.float64 else torch.finfo(dtype).eps
    np.testing.assert_allclose(last.average.numpy(), expected, rtol=precision, atol=0)


@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-scaffnew", "dp-fedprox"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        COIN,
        {"trust": "secure-aggregation", "gamma": 0.5},
        {"unit": "record", "clip": 0.4},
        {"public_records": 60, "warm_start": True},
        {"task": "quadratic", "epsilon": math.inf},
    ],
    ids=str,
)
def test_a_run_returns_the_average_of_its_rounds(algorithm, how):
    """And differs from one that returns the last model in nothing else: the same rounds, the same
    account, the same curve."""
    keywords = {**RUN, **how, "algorithm": algorithm}
    last, average = (train(**keywords, returns=returns) for returns in ("last", "average"))
    rounds = list(equipoise.rounds(**keywords))
    models = [round.x.numpy() for round in rounds]
    np.testing.assert_allclose(average.x, paper.average(models), rtol=0, atol=1e-12)
    assert np.array_equal(average.x, rounds[-1].average.numpy())
    assert np.array_equal(last.x, models[-1])
    assert not np.array_equal(last.x, average.x)
    assert last == train(**keywords)
    assert last.account == average.account
    assert last.curve == average.curve
    differ = {"run", "test_error", "repeat", "public", "client_error", "measures"}
    assert last.model_dump(exclude=differ) == average.model_dump(exclude=differ)
    assert average.test_error == average.curve[-1].average_error
    assert last.test_error == last.curve[-1].test_error
    assert "--returns average" in average.repeat
    assert "--returns" not in last.repeat


def test_both_are_measured_after_every_round():
    result = train(**RUN)
    measure = load_task("breast-cancer", TaskOptions(clients=10)).measure
    start, *points = result.curve
    assert (start.round, start.average_error, start.average_loss) == (0, None, None)
    for point, round in zip(points, equipoise.rounds(**RUN), strict=True):
        for x, error, loss in (
            (round.x, point.test_error, point.test_loss),
            (round.average, point.average_error, point.average_loss),
        ):
            assert (error, loss) == tuple(map(float, measure(x)[:2]))
    assert points[0].average_error == points[0].test_error
    assert points[-1].average_loss != points[-1].test_loss


@pytest.mark.parametrize("task", ["breast-cancer", "digits-mlp"])
def test_the_average_of_one_round_is_its_model(task):
    keywords = {**RUN, "task": task, "iterations": 4}
    last, average = (train(**keywords, returns=returns) for returns in ("last", "average"))
    assert average.rounds == 1
    assert np.array_equal(last.x, average.x)
    assert last.x.dtype == average.x.dtype
    assert last.test_error == average.test_error


def test_the_average_of_a_network_is_measured_where_it_is_returned():
    keywords = {**RUN, "task": "digits-mlp", "clients": 4, "batch": 10}
    last, average = (train(**keywords, returns=returns) for returns in ("last", "average"))
    assert {point.average_error for point in last.curve} == {None}
    assert [point.average_error is None for point in average.curve][:2] == [True, False]
    assert len(average.curve) <= len(last.curve)
    assert average.x.dtype == np.float32
    models = [round.x.double().numpy() for round in equipoise.rounds(**keywords)]
    np.testing.assert_allclose(average.x, paper.average(models), rtol=1e-6, atol=1e-7)
    assert average.test_error == float(equipoise.evaluate(average).error)
    assert average.curve[-1].test_error == last.test_error


def test_errors_of_single_clients_are_those_of_what_is_returned():
    task = load_task("breast-cancer", TaskOptions(clients=10))
    task = replace(task, measure=lambda x: Measured(x.norm(), x.norm(), 2 * x.norm()))
    keywords = {name: value for name, value in RUN.items() if name not in ("task", "clients")}
    for returns in ("last", "average"):
        result = train(task=task, **keywords, returns=returns)
        norm = float(torch.from_numpy(result.x).norm())
        assert (result.test_error, result.client_error) == (norm, 2 * norm)


def test_train_errors_are_those_of_what_is_returned():
    clients = load_task("breast-cancer", TaskOptions(clients=10)).clients
    seen = []
    for returns in ("last", "average"):
        result = train(**RUN, returns=returns, diagnostics=True)
        seen.append(result.per_round[-1].train_error)
        assert seen[-1] == pytest.approx(float(clients.error(torch.from_numpy(result.x))))
    assert seen[0] != seen[1], "the test must see a difference"


# ---- sweeps and reports ----

BOTH = {
    "name": "both",
    "task": "breast-cancer",
    "clients": 4,
    "algorithm": ["dp-fedavg", "dp-scaffnew"],
    "iterations": 6,
    "local_steps": [1, 3],
    "epsilon": [2.0, math.inf],
    "clip": 0.1,
    "returns": ["last", "average"],
    "seeds": [0, 1],
}


def test_a_sweep_may_compare_both(tmp_path):
    """In one stack, with the numbers of runs by themselves; its report keeps them apart."""
    stacks = stacks_of(grid(BOTH).cells)
    assert [{run.returns for row in stack for run in row} for stack in stacks] == [
        {"last", "average"}
    ] * 2
    path = tmp_path / "both.sqlite"
    results = swept(BOTH, path)
    assert len(results) == 2 * 2 * 2 * 2 * 2
    for result, loss in results:
        alone = train(Settings.of(**result.run.model_dump()))
        point = alone.curve[-1]
        average = result.run.returns == "average"
        assert loss == pytest.approx(point.average_loss if average else point.test_loss, rel=1e-9)
        assert result.test_error == pytest.approx(alone.test_error, abs=1e-9)
        assert result.account == alone.account
    with Store(path, read_only=True) as store:
        for row in store.table("key, test_error, train_error"):
            last = store.curve(row["key"])[-1]
            assert last["test_error"] == row["test_error"]
            assert last["train_error"] == row["train_error"]
    cases = read_study(path).cases
    assert sorted(case.convention for case in cases) == [
        "exact, returns=average",
        "exact, returns=last",
    ]
    for case in cases:
        assert {cell.epsilon for cell in case.cells} == {2.0, math.inf}


def test_a_store_without_averages_is_not_run_again(tmp_path):
    last = {**BOTH, "returns": "last"}
    before = {name: value for name, value in BOTH.items() if name != "returns"}
    swept(before, tmp_path / "s.sqlite")
    with Store(tmp_path / "s.sqlite") as store:
        known = store.keys()
    swept(last, tmp_path / "s.sqlite")
    with Store(tmp_path / "s.sqlite") as store:
        assert store.keys() == known
    swept(BOTH, tmp_path / "s.sqlite")
    with Store(tmp_path / "s.sqlite") as store:
        assert len(store.keys()) == 2 * len(known)
        assert store.keys() > known


# ---- what is said ----


def test_the_command_says_what_it_returns(tmp_path, capsys):
    folder = tmp_path / "run"
    words = (
        "train --task breast-cancer --epsilon 2 --clip 1 --iterations 8 --simulate-noise-seed 1 "
        f"--returns average --out {folder}"
    ).split()
    code, out, err = run_command(capsys, *words)
    assert code == 0, err
    assert f"returns     {SENTENCE}\n" in out
    result = equipoise.load(folder)
    assert result.run.returns == "average"
    keywords = {"task": "breast-cancer", "epsilon": 2, "clip": 1, "iterations": 8}
    again = train(**keywords, simulate_noise_seed=1, returns="average")
    assert np.array_equal(result.x, again.x)
    assert SENTENCE in run_command(capsys, "show", str(folder))[1]
    measured = json.loads(run_command(capsys, "evaluate", str(folder), "--json")[1])
    assert measured["error"] == result.test_error
    text = (folder / "guarantee.md").read_text()
    assert "Returned was the average of the models after rounds k = 1, 2, ..., with weights" in text
    assert "Returned was the model after the last round" not in text
    code, out, _ = run_command(capsys, *words[:-4], "--out", str(tmp_path / "last"))
    assert "returns " not in out
    last = (tmp_path / "last" / "guarantee.md").read_text()
    assert "Returned was the model after the last round." in last
    assert "average of the models" not in last


def test_what_can_be_returned(tmp_path, capsys):
    with pytest.raises(equipoise.InvalidValue, match="returns='first'"):
        train(**RUN, returns="first")
    code, _, err = run_command(
        capsys, "train", "--task", "quadratic", "--epsilon", "2", "--clip", "1", "--returns", "best"
    )
    assert code == 2
    assert "returns" in err
    (tmp_path / "run.toml").write_text('returns = "average"\nepsilon = 2\nclip = 1\niterations = 2')
    result = train(config=tmp_path / "run.toml", task="quadratic")
    assert result.run.returns == "average"


def test_statements_differ_in_one_sentence_the_error_and_the_command():
    texts = [statement(train(**RUN, returns=returns)) for returns in ("last", "average")]
    lines = [text.splitlines() for text in texts]
    differ = [one for one, other in zip(*lines, strict=True) if one != other]
    assert len(differ) == 3
    assert differ[0].startswith("Test error ")
    assert "Returned was" in differ[1]
    assert differ[2].startswith("Command that says the same")


def test_the_curve_shows_both_lines():
    for returns, labels in (
        ("last", ["after each round (the last point is returned)", "weights k³"]),
        ("average", ["after each round", "weights k³ (the last point is returned)"]),
    ):
        result = train(**RUN, returns=returns)
        for axes, own, other in zip(
            learning_curve(result).axes,
            ("test_error", "test_loss"),
            ("average_error", "average_loss"),
            strict=True,
        ):
            shown = [text.get_text() for text in axes.get_legend().get_texts()]
            assert [text.endswith(end) for text, end in zip(shown, labels, strict=False)] == [
                True
            ] * 2
            one, two = (line.get_ydata() for line in axes.get_lines()[:2])
            assert list(one) == [getattr(point, own) for point in result.curve]
            assert list(two) == [getattr(point, other) for point in result.curve[1:]]


def test_the_curve_of_an_older_result_has_one_line():
    result = train(**RUN)
    curve = [Point(p.round, p.iteration, p.test_error, p.test_loss) for p in result.curve]
    document = json.loads(result.model_copy(update={"curve": curve}).to_json())
    for point in document["curve"]:
        for name in [name for name in point if name.startswith("average")]:
            assert point.pop(name) is None
    del document["run"]["returns"]
    older = equipoise.Result.model_validate(document)
    assert older.curve == curve
    assert older.run.returns == "last"
    top, bottom = learning_curve(older).axes
    assert top.get_legend().get_texts()[0].get_text() == "after each round"
    assert len(top.get_lines()) == 2, "with the baseline"
    assert len(bottom.get_lines()) == 1
    assert bottom.get_legend() is None
