"""Python, as good as the command: the same words, any kind of path and array, and answers that
print."""

import inspect
import json
import math
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import equipoise
from equipoise import InvalidValue, Plan, Question, Result, Settings
from problems import HEADER, TASK_FILE, blobs

QUICK = {"task": "quadratic", "clients": 6, "iterations": 12, "algorithm": "dp-fedavg"}
RUN = {"task": "quadratic", "clients": 6, "iterations": 6, "epsilon": 2.0, "clip": 1.0}


# ---- plan ----


@pytest.mark.slow
def test_one_budget_gives_a_plan_and_several_give_a_list():
    made = equipoise.plan(**QUICK, epsilon=2)
    assert isinstance(made, Plan)
    assert made.epsilon == 2.0
    several = equipoise.plan(**QUICK, epsilon=(2, 5.0))
    assert [type(each) for each in several] == [Plan, Plan]
    assert [each.epsilon for each in several] == [2.0, 5.0]
    assert several[0] == made
    assert equipoise.plan(**QUICK, epsilon=[2]) == [made]
    assert equipoise.plan(Question.of(**QUICK, epsilon=2)) == [made]
    for number in (np.float64(2), np.float32(2), np.int64(2), "2"):
        assert equipoise.plan(**QUICK, epsilon=number) == made


def test_budgets_can_be_watched():
    seen = []

    def watch(epsilons):
        for epsilon in epsilons:
            seen.append(epsilon)
            yield epsilon

    equipoise.plan(**QUICK, epsilon=(2, 5), watch=watch)
    assert seen == [2.0, 5.0]


@pytest.mark.parametrize(
    ("arguments", "keywords", "sentence"),
    [
        ((), {}, "epsilon is missing"),
        ((), {"task": "quadratic"}, "epsilon is missing"),
        ((), {"task": "quadratic", "epsilon": 2, "lr": 1}, "unknown setting lr"),
        ((), {"task": "quadratic", "epsilon": 2, "clipp": 1}, "did you mean clip?"),
        (("quadratic",), {"epsilon": 2}, "question is a str: give a Question, or keywords"),
        (
            (Question.of(**QUICK, epsilon=2),),
            {"epsilon": 2},
            "give epsilon either in the question or as keywords",
        ),
    ],
)
def test_questions_that_are_none(arguments, keywords, sentence):
    with pytest.raises(InvalidValue, match=sentence.replace("?", r"\?")):
        equipoise.plan(*arguments, **keywords)


# ---- train ----


def test_train_takes_keywords_settings_a_plan_or_a_file(tmp_path):
    by_name = equipoise.train(**RUN, simulate_noise_seed=0)
    assert isinstance(by_name, Result)
    settings = Settings.of(**RUN, simulate_noise_seed=0)
    assert equipoise.train(settings) == by_name
    (tmp_path / "run.toml").write_text(
        'task = "quadratic"\nclients = 6\niterations = 6\nepsilon = 2.0\nclip = 1.0\n'
        "simulate_noise_seed = 0\n"
    )
    for path in (tmp_path / "run.toml", str(tmp_path / "run.toml")):
        assert equipoise.train(config=path) == by_name
    assert equipoise.train(config=path, epsilon=3.0).run.epsilon == 3.0
    again = equipoise.train(by_name.run)  # settings with nothing left open
    assert again.run == by_name.run
    assert np.array_equal(again.x, by_name.x)


@pytest.mark.slow
def test_train_takes_a_plan():
    many = {**QUICK, "clients": 100, "trust": "secure-aggregation"}
    made = equipoise.plan(**many, epsilon=50)
    assert made.verdict == "train"
    result = equipoise.train(made)
    assert result.rounds == made.chosen.rounds
    assert result.account.sigma == made.chosen.sigma
    assert result.epsilon_spent <= 50
    hopeless = equipoise.plan(**QUICK, epsilon=0.001)
    assert hopeless.verdict == "do not train"
    with pytest.raises(InvalidValue, match=r"do not train, .* anyway=True"):
        equipoise.train(hopeless)
    assert equipoise.train(hopeless, anyway=True).epsilon_spent <= 0.001


@pytest.mark.parametrize(
    ("arguments", "keywords", "sentence"),
    [
        (("quadratic",), {}, "settings is a str: give Settings, a Plan, or keywords"),
        (({"task": "quadratic"},), {}, "settings is a dict: give Settings, a Plan, or keywords"),
        ((), {}, "task is missing"),
        ((), {**RUN, "epsilom": 2}, "did you mean epsilon"),
        ((), {**RUN, "clip_norm": 2}, "clip and clip_norm are the same"),
        ((Settings.of(**RUN),), {"epsilon": 3}, "give epsilon either in settings or as keywords"),
    ],
)
def test_settings_that_are_none(arguments, keywords, sentence):
    for function in (equipoise.train, equipoise.rounds):
        with pytest.raises(InvalidValue, match=sentence):
            function(*arguments, **keywords)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"algorithm": "dp-scaffnew", "local_steps": 3},
        {"schedule": "coin", "p": 0.5},
        {"task": "breast-cancer", "unit": "record", "local_steps": 2},
        {"gamma": 0.5, "trust": "secure-aggregation"},
    ],
    ids=str,
)
def test_rounds_are_the_models_that_train_communicates(change):
    keywords = {**RUN, **change, "simulate_noise_seed": 3}
    result, rounds = equipoise.train(**keywords), equipoise.rounds(**keywords)
    assert inspect.isgenerator(rounds)
    made = list(rounds)
    assert [type(each).__name__ for each in made] == ["Round"] * result.rounds
    assert [each.number for each in made] == list(range(1, result.rounds + 1))
    assert np.array_equal(made[-1].x.numpy(), result.x)
    assert made[-1].x.shape == (result.dimension,)
    places = {point.round: point.iteration for point in result.curve}
    assert {each.number: each.iteration for each in made}.items() <= places.items()


def test_rounds_takes_what_train_takes_and_draws_secret_noise():
    settings = Settings.of(**RUN)
    first, again = (list(equipoise.rounds(settings)) for _ in range(2))
    assert not torch.equal(first[-1].x, again[-1].x)
    assert len(list(equipoise.rounds(equipoise.plan(**QUICK, epsilon=50), anyway=True))) >= 1


# ---- sweep and report ----

GRID = {**RUN, "epsilon": [2.0, math.inf], "local_steps": "divisors", "seeds": [0, 1]}
GRID_FILE = (
    'task = "quadratic"\nclients = 6\niterations = 6\nepsilon = [2.0, inf]\nclip = 1.0\n'
    'local_steps = "divisors"\nseeds = [0, 1]\n'
)


@pytest.mark.slow
def test_sweep_and_report(tmp_path):
    seen = []

    def watch(steps):
        for step in steps:
            seen.append(step.done)
            yield step

    ended = equipoise.sweep(**GRID, store=tmp_path / "s.sqlite", watch=watch)
    assert (ended.done, ended.failed, ended.total) == (16, 0, 16)
    assert ended.store == tmp_path / "s.sqlite"
    assert ended.notice.startswith("SIMULATION, NOT PRIVATE")
    assert (seen[0], seen[-1]) == (0, 16)
    tuples = {**GRID, "epsilon": (2.0, math.inf), "seeds": range(2)}
    (tmp_path / "grid.toml").write_text(GRID_FILE)
    for again in (
        equipoise.sweep(GRID, store=str(tmp_path / "s.sqlite")),
        equipoise.sweep(tuples, store=tmp_path / "s.sqlite"),
        equipoise.sweep(tmp_path / "grid.toml", store=tmp_path / "s.sqlite"),
        equipoise.sweep(str(tmp_path / "grid.toml"), store=tmp_path / "s.sqlite", retry=True),
    ):
        assert (again.done, again.total) == (16, 16)
    written = equipoise.report(tmp_path / "s.sqlite", tmp_path / "report")
    assert (tmp_path / "report" / "index.html") in written.files
    assert "index.html" in str(written)
    equipoise.report(str(tmp_path / "s.sqlite"), str(tmp_path / "report"))


@pytest.mark.parametrize(
    ("arguments", "keywords", "sentence"),
    [
        (("grid.toml",), {"epsilon": 2}, "epsilon with a grid of your own: give it in grid.toml"),
        (("none.toml",), {}, "none.toml: No such file or directory"),
        ((), {"epsilon": 1}, "task is missing"),
        ((), {**RUN, "workers": 0}, "workers=0 is not >= 1"),
        ((), {**RUN, "seed": 0}, "seed cannot be given to a sweep"),
        ((), {"task": "mine.py", "epsilon": math.inf}, "add --simulate"),
    ],
)
def test_sweeps_that_are_none(tmp_path, monkeypatch, arguments, keywords, sentence):
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text(GRID_FILE)
    Path("mine.py").write_text(TASK_FILE)
    with pytest.raises(InvalidValue, match=sentence):
        equipoise.sweep(*arguments, **keywords)
    assert not Path("sweep.sqlite").exists()


def test_one_s_own_files_are_swept_on_request(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(TASK_FILE)
    mine = {"task": Path("mine.py"), "iterations": 2, "epsilon": math.inf, "seeds": [0]}
    assert equipoise.sweep(**mine, simulate=True, store="s.sqlite").done == 1


# ---- paths and arrays ----


@pytest.mark.parametrize("kind", [str, Path], ids=["str", "Path"])
def test_paths_of_any_kind(clinic, kind):
    rows = [f"{age},f,0.{age},{'yes' if age > 50 else 'no'}" for age in range(10, 90)]
    Path("proxy.csv").write_text(HEADER + "\n".join(rows))
    files = {
        "data": [kind("a.csv"), kind("b.csv")],
        "test": kind("test.csv"),
        "proxy": (kind("proxy.csv"),),
        "bounds": kind("bounds.toml"),
    }
    table = {"task": "csv", "label": "outcome", **files}
    result = equipoise.train(**table, epsilon=2, clip=1, iterations=4)
    assert result.run.data == ("a.csv", "b.csv")
    assert (result.run.test, result.run.bounds) == (("test.csv",), "bounds.toml")
    assert json.loads(result.to_json())["run"]["proxy"] == ["proxy.csv"]
    assert equipoise.save(result, kind("run")) is None
    assert equipoise.load(kind("run")) == result
    own = equipoise.evaluate(kind("run"))
    assert float(own.error) == result.test_error
    for data in (kind("test.csv"), [kind("test.csv")], (kind("test.csv"),)):
        assert equipoise.evaluate(result, data) == own
        assert equipoise.evaluate(kind("run"), data=data) == own
    made = equipoise.plan(**table, epsilon=2, algorithm="dp-fedavg", iterations=4, records=20)
    assert made.settings.proxy == ("proxy.csv",)
    swept = {**table, "epsilon": math.inf, "seeds": [0], "iterations": 2}
    assert equipoise.sweep(swept, store=kind("s.sqlite"), simulate=True).done == 1
    Path("mine.py").write_text(TASK_FILE)
    assert equipoise.train(task=kind("mine.py"), epsilon=math.inf, iterations=2).x.shape == (10,)
    Path("run.toml").write_text('task = "quadratic"\nepsilon = inf\niterations = 2\n')
    assert equipoise.train(config=kind("run.toml")).rounds == 2


def framed(part):
    return pd.DataFrame(part.numpy()) if part.dim() > 1 else pd.Series(part.numpy())


@pytest.mark.parametrize(
    "kind",
    [
        lambda part: part.numpy(),
        lambda part: part.numpy().astype(part.numpy().dtype, order="F"),
        lambda part: part.double().numpy() if part.is_floating_point() else part.numpy(),
        lambda part: part.numpy() if part.is_floating_point() else part.numpy().astype("int32"),
        lambda part: part.numpy() if part.is_floating_point() else part.numpy() > 0,
        framed,
        lambda part: framed(part.double() if part.is_floating_point() else part),
    ],
    ids=["numpy", "by columns", "double", "short labels", "truths", "frame", "frame of doubles"],
)
@pytest.mark.parametrize("unit", ["client", "record"])
def test_arrays_and_frames_are_clients_data(kind, unit):
    """They give what tensors give, in the precision of the model."""
    clients, test = blobs()

    def trained(convert):
        torch.manual_seed(0)
        task = equipoise.own_task(
            nn.Linear(4, 2),
            [tuple(convert(part) for part in pair) for pair in clients],
            nn.functional.cross_entropy,
            equipoise.accuracy,
            test=tuple(convert(part) for part in test),
            pool=tuple(convert(part) for part in test),
            learning_rate=0.5,
        )
        return equipoise.train(
            task=task, unit=unit, epsilon=5, clip=1, iterations=4, simulate_noise_seed=0
        )

    by_tensors, by_arrays = trained(lambda part: part), trained(kind)
    assert np.array_equal(by_tensors.x, by_arrays.x)
    assert by_arrays.test_error == by_tensors.test_error


def test_a_task_made_in_python_can_be_planned():
    clients, test = blobs()
    task = equipoise.own_task(
        nn.Linear(4, 2), clients, nn.functional.cross_entropy, equipoise.accuracy, test=test
    )
    made = equipoise.plan(task=task, epsilon=2, iterations=4)
    assert made.verdict == "inconclusive"
    trained = equipoise.train(task=task, epsilon=2, clip=1, iterations=4, local_steps=2)
    assert trained.account.sigma == made.noise[1].sigma
    from equipoise.tasks import TaskOptions, load_task

    with pytest.raises(InvalidValue, match="plan takes its name, and leaves them closed"):
        equipoise.plan(task=load_task("breast-cancer", TaskOptions()), epsilon=2)


# ---- names, and what is printed ----


def test_the_public_names_are_listed():
    names = dir(equipoise)
    assert names == sorted(names)
    assert {*equipoise.__all__, "__version__"} == {*names}
    for name in (
        "plan train rounds sweep report load save evaluate Settings Plan Result own_task accuracy "
        "Question Promise Account InvalidValue DataError EquipoiseError"
    ).split():
        assert name in names
    for name in names:
        assert getattr(equipoise, name) is not None
    assert equipoise.__version__ == version("equipoise")
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        equipoise.trian  # noqa: B018


def test_importing_is_quick():
    """Nothing heavy is loaded before it is needed."""
    script = (
        "import sys, equipoise; dir(equipoise); equipoise.__version__; equipoise.Settings; "
        "print([m for m in ('torch', 'scipy', 'sklearn', 'matplotlib') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"epsilon": math.inf, "clip": None},
        {"simulate_noise_seed": 0, "diagnostics": True},
        {"task": "breast-cancer", "unit": "record", "sampling_rate": 0.5, "public_records": 40},
    ],
    ids=str,
)
def test_results_print_in_a_few_lines(change):
    result = equipoise.train(**{**RUN, **change})
    lines = str(result).splitlines()
    assert len(lines) <= 20
    assert repr(result) == str(result)
    assert any(line.startswith(("spent", "would spend", "privacy")) for line in lines)
    assert lines[: len(result.notices)] == result.notices
    assert max(map(len, lines)) < 250
    html = result._repr_html_()
    assert html.endswith("</table>")
    assert html.count("<tr>") == len(lines) - len(result.notices) - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 2},
        {"epsilon": 0.001},
        {"task": "breast-cancer", "epsilon": 2, "unit": "record", "clients": 5},
        {"task": "digits-mlp", "epsilon": 2, "clients": None},
    ],
    ids=str,
)
def test_plans_print_in_a_few_lines(change):
    made = equipoise.plan(**{**QUICK, **change})
    lines = str(made).splitlines()
    assert len(lines) <= 20
    assert repr(made) == str(made)
    assert lines[0] == f"verdict     {made.verdict.upper()}"
    assert made._repr_html_().count("<tr>") == len(lines)


def test_what_a_notebook_shows_is_escaped():
    clients, test = blobs()
    task = equipoise.own_task(
        nn.Linear(4, 2),
        clients,
        nn.functional.cross_entropy,
        equipoise.accuracy,
        test=test,
        name="<script>alert(1)</script> & more",
        error_name="<b>bold</b>",
    )
    html = equipoise.train(task=task, epsilon=2, clip=1, iterations=2)._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in html
    assert "<script" not in html
    assert "<b>" not in html
    made = equipoise.plan(**QUICK, epsilon=2).model_copy(update={"reason": "<i>a</i> & b"})
    assert "&lt;i&gt;a&lt;/i&gt; &amp; b" in made._repr_html_()


def test_nothing_private_is_printed():
    marker = 9.87654321
    inputs = torch.full((20, 4), marker)
    task = equipoise.own_task(
        nn.Linear(4, 2),
        [(inputs, torch.zeros(20).long()), (inputs, torch.ones(20).long())],
        nn.functional.cross_entropy,
        equipoise.accuracy,
    )
    printed = [repr(task), str(task), repr(task.clients)]
    for call in (
        lambda: Settings.of(task=task, epsilon=2),
        lambda: Question.of(task=task, epsilon=2),
        lambda: equipoise.sweep(task=task, epsilon=2),
        lambda: equipoise.train(task=task, epsilon=2, clip=1, clients=3),
        lambda: equipoise.train(task),
        lambda: equipoise.plan(task, epsilon=2),
        lambda: equipoise.evaluate(task),
    ):
        with pytest.raises((equipoise.EquipoiseError, TypeError)) as raised:
            call()
        printed += [str(raised.value), repr(raised.value)]
    assert not any("9.876" in text for text in printed)


def test_what_the_command_does_with_files_python_does_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = equipoise.plan(**{**QUICK, "clients": 100}, trust="secure-aggregation", epsilon=50)
    Path("plan.json").write_text(made.to_json())
    result = equipoise.train(plan=Path("plan.json"))
    assert result.account.sigma == made.chosen.sigma
    with pytest.raises(InvalidValue, match=r"plan=none.json: No such file"):
        equipoise.train(plan="none.json")
    grid = {**RUN, "iterations": 8, "local_steps": "divisors", "seeds": range(2)}
    searched = equipoise.sweep({**grid, "epsilon": np.array([1.0, 4.0])}, search=True)
    assert [found.settings.epsilon for found in searched.found] == [1.0, 4.0]
    with pytest.raises(InvalidValue, match=r"seeds=2 is one number: give a list, \[2\] for this"):
        equipoise.sweep({**grid, "seeds": 2})
