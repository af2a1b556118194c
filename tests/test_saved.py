"""A run in a folder, and its guarantee in words."""

import json
import math
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import optimize, special
from torch import nn

import equipoise
from equipoise import DataError, InvalidValue, own_task, saved, train
from equipoise.privacy.statement import statement
from equipoise.saved import claimed, load, save
from problems import TASK_FILE, blobs, run_command

STATEMENT = {  # every field of guarantee.md, and what its value looks like
    "epsilon, exact": r"inf|[0-9.e+-]+",
    "epsilon, nominal": r"inf|[0-9.e+-]+",
    "delta": r"[0-9.e-]+",
    "mu of Gaussian DP": r"inf|[0-9.e+-]+",
    "unit": r"(client|record): .+",
    "neighbours": r"(replace-one|zero-out|add-remove): .+",
    "trust": r"local|secure-aggregation",
    "the adversary sees": r".+",
    "colluding clients": r"any number|\d+",
    "clients": r"\d+",
    "where it ran": r"one process .+",
    "releases": r"\d+",
    "what": r"of each client, \d+ numbers at a time: .+",
    "clip C": r"inf|[0-9.e+-]+",
    "C bounds": r"a message|one record's gradient",
    "sensitivity": r"inf|[0-9.e+-]+",
    "sigma": r"[0-9.e+-]+",
    "sigma is": r"per coordinate, of .+",
    "sigma of one client": r"[0-9.e+-]+",
    "weights": r"clients count .+",
    "schedule": r"(periodic|coin), .+",
    "lattice": r"[0-9.e+-]+: every coordinate .+ is a whole multiple of it",
    "law of the noise": r".+",
    "noise source": r".+",
    "noise rule": r"(exact|lemma1).*",
}


def fields(text):
    return dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", text, re.MULTILINE))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"trust": "secure-aggregation", "colluding": 3, "neighbours": "zero-out"},
        {"schedule": "coin", "p": 0.3, "local_steps": None},
        {"noise_rule": "lemma1", "v": "proof"},
        {"epsilon": math.inf, "clip": None},
        {"simulate_noise_seed": 1, "diagnostics": True},
        {"unit": "record", "neighbours": "add-remove"},
        {"unit": "record", "noise_in": "message", "trust": "secure-aggregation"},
        {"unit": "record", "noise_in": "hidden-gradient", "clip": None},
    ],
    ids=str,
)
def test_a_reader_can_recompute_epsilon_from_the_statement(change):
    settings = {
        "task": "breast-cancer",
        "epsilon": 2,
        "clip": 0.7,
        "iterations": 32,
        "local_steps": 4,
        "clients": 10,
    }
    result = train(**{**settings, **change})
    text = statement(result)
    by_stability = result.run.mechanism.by_stability
    text = text.replace("epsilon, upper bound", "epsilon, exact") if by_stability else text
    values = fields(text)
    if result.run.epsilon == math.inf:
        assert not any(words in text for words in ("epsilon, exact", "not covered", "check it"))
        return
    assert set(values) == set(STATEMENT)
    for name, pattern in STATEMENT.items():
        assert re.fullmatch(pattern, values[name]), (name, values[name])
    assert all(notice in text for notice in result.notices)
    assert ("follows from the stability" in text) == by_stability
    assert (
        f"differentially private for one {result.run.unit}" in text.split("##")[0]
    ) == result.private
    for words in (
        "What is not covered",
        "each spends its own budget",
        "records declared public",
        result.version,
        result.repeat,
    ):
        assert words in text
    sigma, sensitivity, releases = (
        float(values["sigma"]),
        float(values["sensitivity"]),
        int(values["releases"]),
    )
    mu, delta = sensitivity * math.sqrt(releases) / sigma, float(values["delta"])

    def excess(epsilon):  # the formula of the statement, and nothing of the product
        log_second = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
        return special.ndtr(mu / 2 - epsilon / mu) - math.exp(log_second) - delta

    assert optimize.brentq(excess, 0, 1e4, xtol=1e-12) == pytest.approx(
        float(values["epsilon, exact"]), rel=1e-6
    )
    honest = (
        result.run.clients - int(values["colluding clients"])
        if values["trust"] == "secure-aggregation"
        else 1
    )
    gamma = float(values["lattice"].split(":")[0])
    smoothed = math.hypot(sigma, 2 * gamma) if values["trust"] == "secure-aggregation" else sigma
    assert float(values["sigma of one client"]) * math.sqrt(honest) == pytest.approx(
        smoothed, rel=1e-14
    )


@pytest.mark.slow
def test_a_reader_can_recompute_a_sampled_epsilon_from_the_statement():
    """The lines of Python in the statement, run as they stand, give each client's epsilon."""
    flags = {"iterations": 8, "clients": 4, "unit": "record", "batch": 20}
    result = train(task="breast-cancer", epsilon=2, clip=0.7, **flags)
    text = statement(result)
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    values = fields(text)
    assert "epsilon, exact" not in values
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \| ([0-9.]+) \| ([0-9.]+) \| ([0-9.]+) \| ([0-9.]+) \|$",
        text,
        re.MULTILINE,
    )
    assert len(rows) == 4
    for _, records, rate, _, sigma, epsilon in rows:
        assert float(rate) == 20 / int(records)
        names = {
            "rate": float(rate),
            "noise": float(sigma) / float(values["clip C"]),
            "delta": 1e-5,
            "releases": 8,
        }
        exec(code, names)
        assert names["epsilon"] == pytest.approx(float(epsilon), rel=1e-3)
    assert float(values["epsilon, upper bound"]) == max(float(row[-1]) for row in rows)


def test_a_saved_run_reads_back(tmp_path, capsys):
    out = tmp_path / "run"
    flags = (
        "train --task breast-cancer --epsilon 2 --clip 1 --clients 10 --iterations 8 "
        "--simulate-noise-seed 0 --json"
    )
    code, printed, err = run_command(capsys, *flags.split(), "--out", str(out))
    assert code == 0
    assert f"saved in {out}" in err.replace("\n", "")
    assert sorted(path.name for path in out.iterdir()) == [
        "curve.png",
        "guarantee.html",
        "guarantee.json",
        "guarantee.md",
        "model-card.md",
        "model.safetensors",
        "result.json",
    ]
    result = load(out)
    assert json.loads(result.to_json()) == json.loads(printed)
    again = train(
        task="breast-cancer",
        epsilon=2,
        clip=1,
        clients=10,
        iterations=8,
        simulate_noise_seed=0,
    )
    assert again == result
    assert np.array_equal(again.x, result.x)
    shown = run_command(capsys, "show", str(out), "--json")[1]
    assert json.loads(shown) == json.loads(printed)
    measured = json.loads(run_command(capsys, "evaluate", str(out), "--json")[1])
    assert measured["error"] == result.test_error
    code, _, err = run_command(capsys, *flags.split(), "--out", str(out))
    assert code == 2
    assert "already holds result.json, model.safetensors" in err.replace("\n", " ")
    assert load(out) == result, "the first run is untouched"


def test_the_model_is_a_state_dict(tmp_path):
    from safetensors.torch import load_file

    clients, test = blobs()
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    task = own_task(
        network,
        clients,
        nn.functional.cross_entropy,
        equipoise.accuracy,
        test=test,
        learning_rate=0.5,
    )
    result = train(task=task, epsilon=2, clip=1)
    save(result, tmp_path / "run")
    network.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    with torch.no_grad():
        assert equipoise.accuracy(network(test[0]), test[1]) == pytest.approx(1 - result.test_error)


def test_evaluate_on_other_files(clinic, tmp_path, capsys):
    flags = (
        "train --task csv --data a.csv b.csv --label outcome --bounds bounds.toml --epsilon "
        "inf --out run --json"
    )
    assert json.loads(run_command(capsys, *flags.split())[1])["test_error"] is None
    for gone in ("a.csv", "b.csv", "bounds.toml"):
        Path(gone).unlink()  # the folder is enough
    measured = json.loads(run_command(capsys, "evaluate", "run", "--data", "test.csv", "--json")[1])
    assert 0 <= measured["error"] <= 1
    assert measured["covered"] is False
    code, _, err = run_command(capsys, "evaluate", "run")
    assert code == 2
    assert "give --data FILE" in err


def test_the_table_of_a_run_without_test_records(clinic, capsys):
    flags = (
        "train --task csv --data a.csv b.csv --label outcome --bounds bounds.toml --epsilon "
        "inf --out run --json"
    )
    run_command(capsys, *flags.split())
    assert "no public test records" in run_command(capsys, "show", "run")[1]


def test_folders_that_cannot_be_kept_are_refused_before_training(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    flags = "train --task breast-cancer --epsilon 2 --clip 1 --out".split()
    code, out, err = run_command(capsys, *flags, str(tmp_path / "file" / "run"))
    assert (code, out) == (2, "")
    assert "cannot be written: Not a directory" in err.replace("\n", " ")
    with pytest.raises(DataError, match=r"holds no finished run: result\.json is missing"):
        load(tmp_path)
    (tmp_path / "result.json").write_text("{")
    (tmp_path / "model.safetensors").write_text("{")
    with pytest.raises(DataError, match="does not hold a run that this version can read"):
        load(tmp_path)


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    result = train(task="breast-cancer", epsilon=2, clip=1, clients=5, iterations=4)

    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        equipoise.EquipoiseError,
        match=r"on device; written: result\.json; not written: model\.safetensors, guarantee\.md, ",
    ):
        save(result, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json", "unfinished"]
    with pytest.raises(InvalidValue, match=r"already holds result\.json, unfinished"):
        save(result, tmp_path)


def test_a_result_without_its_model_is_shown(tmp_path, capsys):
    save(train(task="quadratic", epsilon=2, clip=1, iterations=4), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    code, out, err = run_command(capsys, "show", str(tmp_path))
    assert code == 0
    assert "spent       epsilon = 2 of 2" in out
    assert err == (
        f"{tmp_path} holds the result of a run without its model, which was not written\n"
    )
    with pytest.raises(DataError, match=r"no finished run: model\.safetensors is missing"):
        load(tmp_path)
    assert "model.safetensors is missing" in run_command(capsys, "evaluate", str(tmp_path))[2]


@pytest.mark.parametrize(("free", "needed"), [(999_999, "1,000,000"), (1_000_247, "1,000,248")])
def test_no_budget_is_spent_where_the_model_has_no_room(
    tmp_path, capsys, monkeypatch, free, needed
):
    """Before the task is loaded, and again when the number of parameters is known (here 31)."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    flags = "train --task breast-cancer --epsilon 2 --clip 1 --iterations 4 --out".split()
    code, out, err = run_command(capsys, *flags, str(tmp_path / "made" / "run"))
    assert (code, out) == (2, "")
    assert f"has {free:,} bytes free where the model and its account need {needed}: make" in err
    assert err.endswith("no budget is spent\n")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1_000_248))
    assert run_command(capsys, *flags, str(tmp_path / "made" / "run"))[0] == 0


def test_two_runs_cannot_claim_one_folder(tmp_path):
    with (
        claimed(tmp_path / "run"),
        pytest.raises(InvalidValue, match="is where another process trains now: wait for it, or"),
        claimed(tmp_path / "run"),
    ):
        pass
    assert list(tmp_path.iterdir()) == [], "it was given back"


@pytest.mark.parametrize("name", ["a[bold]b", "a$_^$b", "run \N{SNOWMAN}"])
def test_strange_names_lose_nothing(tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.py").write_text(TASK_FILE)
    code, out, err = run_command(
        capsys, "train", "--task", f"{name}.py", "--epsilon", "2", "--clip", "1", "--out", name
    )
    assert code == 0, err
    assert f"{name}.py" in out
    assert load(Path(name)).run.task == f"{name}.py"
    assert (Path(name) / "curve.png").exists()


@pytest.mark.slow
def test_a_broken_pipe_comes_after_saving(tmp_path):
    program = Path(sys.executable).with_name("equipoise")
    command = (
        f"{program} train --task breast-cancer --epsilon 2 --clip 1 --json --out "
        f"{tmp_path / 'run'} | true"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    assert load(tmp_path / "run").private


def test_the_command_to_repeat_a_run_repeats_it(capsys):
    flags = (
        "--task breast-cancer --algorithm dp-scaffnew --epsilon 2.5 --clip 0.5 --schedule "
        "coin --p 0.2 --diagnostics --seed 3"
    )
    first = json.loads(
        run_command(capsys, "train", *flags.split(), "--simulate-noise-seed", "4", "--json")[1]
    )
    words = first["repeat"].split()
    assert words[:2] == ["equipoise", "train"]
    assert json.loads(run_command(capsys, *words[1:], "--json")[1]) == first


# ---- a full disk ----

TABLE = (
    "train --task csv --data a.csv b.csv --test test.csv --label outcome --bounds bounds.toml "
    "--epsilon 2 --clip 1 --iterations 4 --out run"
)
SAVED = (
    *("result.json", "model.safetensors", "guarantee.md", "guarantee.json", "guarantee.html"),
    *("bounds.toml", "model-card.md", "curve.png"),
)


@pytest.fixture
def full_at(monkeypatch):
    """Let the disk be full as soon as this file is written, and for all that come later."""

    def fill(name):
        honest, full = saved.write_whole, []

        def write_whole(path, write):
            if full or path.name == name:
                full.append(path)
                path.with_name(f".{path.stem}.part{path.suffix}").write_text("half a")
                raise OSError(28, "No space left on device")
            honest(path, write)

        monkeypatch.setattr("equipoise.saved.write_whole", write_whole)

    return fill


@pytest.mark.parametrize("name", SAVED[:-1])
@pytest.mark.parametrize("json_flag", ["", " --json"])
def test_a_full_disk_costs_no_account(
    clinic, tmp_path, monkeypatch, capsys, full_at, name, json_flag
):
    """The budget is spent: what was spent on is in result.json, or on the screen, or both; and once
    there is room the same command writes what it was spent on."""
    full_at(name)
    code, out, err = run_command(capsys, *(TABLE + json_flag).split())
    assert code == 2
    written = ", ".join(SAVED[: SAVED.index(name)]) or "nothing"
    lost = ", ".join(SAVED[SAVED.index(name) :])
    assert err == (
        f"error: out=run: No space left on device; written: {written}; not written: {lost}; start "
        "the same again to write it all: nothing is spent twice\n"
    )
    assert len(err.splitlines()) == 1
    if json_flag:
        printed = equipoise.Result.model_validate_json(out)
        assert printed.epsilon_spent <= 2
    else:
        assert "spent       epsilon = 2 of 2" in out
    before = SAVED[: SAVED.index(name)]
    kept = {path.name for path in Path("run").iterdir() if not path.name.startswith(".")}
    assert kept == {*before, "journal", "unfinished"}
    if "result.json" in before:
        document = json.loads(Path("run/result.json").read_text())
        assert document["account"]["epsilon"] <= 2
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    first = equipoise.Result.model_validate_json(out) if json_flag else None
    code, out, err = run_command(capsys, *(TABLE + json_flag).split())
    assert code == 0
    assert err == "goes on after round 4 of 4, nothing is spent twice\nsaved in run\n"
    assert first is None or load(tmp_path / "run") == first, "the same, not another run"


def test_a_full_disk_at_the_picture_costs_the_picture(clinic, capsys, full_at):
    full_at("curve.png")
    code, out, err = run_command(capsys, *TABLE.split())
    assert code == 0
    assert err == "saved in run; curve.png was left out: No space left on device\n"
    assert "spent       epsilon = 2 of 2" in out
    assert {path.name for path in Path("run").iterdir() if path.name[0] != "."} == {*SAVED[:-1]}
    assert load("run").private


def test_python_is_told_too(tmp_path, full_at):
    full_at("curve.png")
    result = train(task="quadratic", epsilon=2, clip=1, iterations=2)
    assert save(result, tmp_path / "run") == "curve.png was left out: No space left on device"


@pytest.mark.parametrize("wrong", [RuntimeError("no fonts"), MemoryError(), ImportError("no png")])
def test_whatever_is_wrong_with_the_picture_costs_the_picture(clinic, capsys, monkeypatch, wrong):
    def fails(*_):
        raise wrong

    monkeypatch.setattr("equipoise.reports.curve.draw_curve", fails)
    code, _, err = run_command(capsys, *TABLE.split())
    assert code == 0
    assert err.startswith("saved in run; curve.png was left out")
    assert load("run").private


@pytest.mark.parametrize("limit", [0, 30, 1_000, 2_000, 18_000, 30_000, 1_000_000])
def test_files_that_are_really_cut_off(tmp_path, capsys, limit):
    """With a limit of the operating system on the size of a file, writing fails in its middle: the
    folder holds the result, or the command prints it, and no file is cut off."""
    out = tmp_path / "run"
    flags = "train --task breast-cancer --epsilon 2 --clip 1 --iterations 64 --json --out"
    draw_once()  # caches of fonts are not what is tested
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    try:
        code, printed, err = run_command(capsys, *flags.split(), str(out))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert len(err.splitlines()) == 1, err
    held = {path.name for path in out.glob("*")}
    assert held <= {*SAVED, "journal", "unfinished"}, "no half file is left"
    if limit < 5_000:
        assert (code, printed) == (2, ""), "refused before anything is spent"
        assert "cannot be written: File too large" in err or "no budget is spent" in err
        assert held == set(), "the folder is free again"
        return
    result = equipoise.Result.model_validate_json(printed)
    assert result.epsilon_spent <= 2
    if limit < 20_000:
        assert code == 2
        assert "File too large; written: nothing; not written: result.json, model" in err
        assert held == {"journal", "unfinished"}
        return
    assert code == 0
    assert load(out) == result
    assert ("curve.png" in held) == ("curve.png was left out: File too large" not in err)
    assert ("curve.png" in held) == (limit == 1_000_000)


def draw_once():
    from matplotlib import pyplot

    figure, _ = pyplot.subplots()
    figure.canvas.draw()
    pyplot.close(figure)
