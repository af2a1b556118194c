"""What older versions wrote is still read, and means the same: plans, runs, stores of sweeps."""

import csv
import json
import math
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import equipoise
from equipoise.fields import HashableOptions
from equipoise.planning.plan import read_plan
from equipoise.settings import Run, Settings
from equipoise.sweeps import keys
from equipoise.sweeps.grid import grid
from equipoise.sweeps.keys import NUMBERS, key_of_version_0_1, run_key
from equipoise.sweeps.stacks import key_of, resolved
from equipoise.sweeps.store import Store
from equipoise.sweeps.sweep import sweep
from equipoise.tasks import TaskOptions, load_task
from equipoise.training import train_together
from problems import SMALL, contents, run_command

GOLDEN = Path(__file__).parent / "golden" / "v0.1"
PLANS = ("plan.json", "record-plan.json")
RUNS = ("run", "record-run")


def written(*parts):
    """A file of version 0.1, as JSON."""
    return json.loads(GOLDEN.joinpath(*parts).read_text())


# ---- plans ----


@pytest.mark.parametrize("name", PLANS)
def test_old_plans_say_what_they_said(name):
    old, made = written(name), read_plan(GOLDEN / name)
    assert (made.verdict, made.reason, made.nu2) == (old["verdict"], old["reason"], old["nu2"])
    promised = (made.epsilon, made.delta, made.unit)
    assert promised == (old["epsilon"], old["delta"], old["unit"])
    assert made.promise.trust == old["settings"]["trust"]
    assert made.promise.neighbours == old["settings"]["neighbours"]
    assert made.chosen.clip == old["plan"]["clip_norm"]
    for field in ("algorithm", "eta", "local_steps", "iterations", "rounds", "gamma", "sigma"):
        assert getattr(made.chosen, field) == old["plan"][field], field
    for field, value in old["predicted"].items():
        assert getattr(made.predicted, field) == value, field
    for field, value in old["untrained"].items():
        assert getattr(made.untrained, field) == value, field
    for field, value in old["public_only"].items():
        assert getattr(made.public_only, field) == value, field
    assert made.public == old["public"]
    options = {option.origin: option for option in made.options}
    for origin, row in old["compared"].items():
        assert options[origin].rounds == row["rounds"]
        assert options[origin].predicted.excess_loss == row["excess_loss"]
    for origin, field in (
        ("Corollary 1 as printed", "corollary1"),
        ("corrected bound", "corrected"),
        ("displacement law", "displacement"),
    ):
        if row := old[field]:
            assert options[origin].local_steps == row["local_steps"]
            assert options[origin].bound == row.get("bound")
            assert options[origin].predicted.excess_loss == row["excess_loss"]
        else:
            assert origin not in options


@pytest.mark.parametrize("name", PLANS)
def test_old_plans_read_back_once_they_are_written_anew(name, tmp_path):
    made = read_plan(GOLDEN / name)
    (tmp_path / "new.json").write_text(made.to_json())
    assert json.loads(made.to_json())["format"] == 1
    assert read_plan(tmp_path / "new.json") == made
    assert made.verdict.upper() in str(made)


@pytest.mark.parametrize("name", PLANS)
def test_old_plans_are_trained(name, capsys):
    old = written(name)
    code, out, err = run_command(capsys, "train", "--plan", str(GOLDEN / name), "--json")
    assert code == 0, err
    result = equipoise.Result.model_validate_json(out)
    assert result.private
    assert result.epsilon_spent <= old["epsilon"]
    assert result.rounds == old["plan"]["rounds"]
    assert result.account.sigma == pytest.approx(old["plan"]["sigma"], rel=1e-12)
    for field in ("task", "algorithm", "iterations", "local_steps", "eta", "gamma", "unit"):
        assert getattr(result.run, field) == old["settings"][field], field
    assert result.run.clip == old["settings"]["clip_norm"]


BEFORE_WORLDS = GOLDEN.parent / "v0.2"
"""Plans that version 0.2 made before it planned in worlds: with standard errors, without ways."""


@pytest.mark.parametrize("name", PLANS)
def test_plans_from_before_there_were_worlds_say_what_they_said(name, tmp_path):
    old = json.loads((BEFORE_WORLDS / name).read_text())
    made = read_plan(BEFORE_WORLDS / name)
    again = json.loads(made.to_json())

    def same(before, after):
        """Everything that was written is still there, beside what is new."""
        if isinstance(before, dict):
            assert before.keys() <= after.keys()
            for key, value in before.items():
                same(value, after[key])
        elif isinstance(before, list):
            assert len(before) == len(after)
            for pair in zip(before, after, strict=True):
                same(*pair)
        else:
            assert before == after

    same(old, again)
    assert (made.ways, made.notes, made.judged_by) == ([], [], "error")
    assert (made.chosen.warm_start, made.chosen.returns, made.chosen.l2) == (False, "last", None)
    (tmp_path / "new.json").write_text(made.to_json())
    assert read_plan(tmp_path / "new.json") == made


@pytest.mark.parametrize("folder", [GOLDEN, BEFORE_WORLDS], ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", PLANS)
def test_old_plans_are_printed_with_two_standard_errors_either_side(folder, name):
    made = read_plan(folder / name)
    predicted = made.predicted
    mean, error = predicted.test_error, predicted.test_error_se
    assert error > 0
    assert predicted.interval("test_error") == (mean - 2 * error, mean + 2 * error)
    shown = f"test error {mean:.3f} [{mean - 2 * error:.3f}, {mean + 2 * error:.3f}]"
    assert shown in str(made)
    assert made.verdict.upper() in str(made)
    assert "ways" not in str(made)


@pytest.mark.parametrize("name", PLANS)
def test_plans_from_before_there_were_worlds_are_trained(name, capsys):
    made = read_plan(BEFORE_WORLDS / name)
    code, out, err = run_command(capsys, "train", "--plan", str(BEFORE_WORLDS / name), "--json")
    assert code == 0, err
    result = equipoise.Result.model_validate_json(out)
    rel = 1e-12 if made.unit == "client" else 2 / min(result.sizes)  # planned with equal clients
    assert result.account.sigma == pytest.approx(made.chosen.sigma, rel=rel)
    assert result.rounds == made.chosen.rounds
    assert (result.run.returns, result.run.warm_start) == ("last", False)


# ---- runs ----


@pytest.mark.parametrize("name", RUNS)
def test_old_runs_are_loaded(name):
    old, result = written(name, "result.json"), equipoise.load(GOLDEN / name)
    assert equipoise.load(str(GOLDEN / name)) == result
    assert result.run.clip == old["clip_norm"]
    renamed = {"clip_norm", "h_update"}
    for field in {*Settings.model_fields} & {*old} - renamed:
        expected = tuple(old[field]) if isinstance(old[field], list) else old[field]
        assert getattr(result.run, field) == expected, field
    assert result.run.options == {}, "the paper's h_update is the default"
    for field in ("notices", "private", "rounds", "dimension", "mu", "L", "test_error", "repeat"):
        assert getattr(result, field) == old[field], field
    assert result.version == "0.1.0"
    assert [point.test_error for point in result.curve] == [
        point["test_error"] for point in old["curve"]
    ]
    assert {point.average_error for point in result.curve} == {None}
    assert result.run.returns == "last"
    assert len(result.per_round or []) == len(old["per_round"] or [])
    assert result.x.shape == (old["dimension"],)


@pytest.mark.parametrize("name", RUNS)
def test_old_accounts_say_what_was_spent(name):
    old, result = written(name, "result.json"), equipoise.load(GOLDEN / name)
    account = result.account
    assert account.epsilon == result.epsilon_spent == old["epsilon_spent"]
    assert (account.sigma, account.sensitivity) == (old["sigma"], old["sensitivity"])
    assert (account.releases, result.client_sigma) == (old["releases"], old["client_sigma"])
    clients = old["per_client"] or []
    assert (result.sizes or ()) == tuple(client["records"] for client in clients)
    for client, event, epsilon in zip(clients, account.events, account.epsilons, strict=False):
        assert event.sigma == client["sigma"]
        assert event.rate == client["sampling_rate"]
        assert event.unit == "record"
        assert epsilon == client["epsilon_spent"]
    assert len(account.events) == max(1, len(clients))
    assert account.exact == (name == "run")
    # The events alone say the same again; of samples within what the grid of that time allowed.
    spent = [event.epsilon(result.run.delta) for event in account.events]
    assert spent == pytest.approx(list(account.epsilons), rel=1e-4 if account.sampled else 1e-9)


@pytest.mark.parametrize("name", RUNS)
def test_old_runs_are_what_the_same_settings_give_today(name):
    """But for what rounding to the lattice moves, and for the sigma that the accountant of samples
    finds, by less than 1e-4 here."""
    assert NUMBERS == 2
    result = equipoise.load(GOLDEN / name)
    assert result.lattice is None
    again = equipoise.train(Settings.of(**result.run.model_dump()))
    assert 0 < again.lattice < 1e-6
    precision = 1e-4 if result.account.sampled else 1e-9
    np.testing.assert_allclose(again.x, result.x, rtol=precision, atol=1000 * again.lattice)
    assert again.run == result.run
    sigmas = [event.sigma for event in result.account.events]
    assert [event.sigma for event in again.account.events] == pytest.approx(sigmas, rel=precision)
    as_before = {"sigma": 0, "lattice": 0.0, "slack": 0.0}
    assert [replace(event, **as_before) for event in again.account.events] == [
        replace(event, **as_before) for event in result.account.events
    ]
    assert again.account.epsilons == pytest.approx(result.account.epsilons, rel=precision)
    assert again.test_error == result.test_error


@pytest.mark.parametrize("name", RUNS)
def test_old_runs_are_shown_and_evaluated(name, capsys):
    old, folder = written(name, "result.json"), str(GOLDEN / name)
    code, out, _ = run_command(capsys, "show", folder)
    assert code == 0
    assert out.startswith("SIMULATION, NOT PRIVATE")
    assert f"epsilon = {old['epsilon_spent']:.6g} of 2 at delta = 1e-05" in out
    shown = json.loads(run_command(capsys, "show", folder, "--json")[1])
    assert shown["format"] == 1
    assert shown["account"]["epsilon"] == old["epsilon_spent"]
    measured = json.loads(run_command(capsys, "evaluate", folder, "--json")[1])
    assert measured["error"] == old["test_error"]
    assert float(equipoise.evaluate(folder).error) == old["test_error"]


def test_an_old_run_is_saved_anew(tmp_path):
    result = equipoise.load(GOLDEN / "record-run")
    equipoise.save(result, tmp_path / "run")
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    assert document["format"] == 1
    assert equipoise.load(tmp_path / "run") == result


# ---- stores ----


@pytest.fixture
def old_store(tmp_path):
    return Path(shutil.copy(GOLDEN / "store.sqlite", tmp_path / "store.sqlite"))


@pytest.fixture
def trained(monkeypatch):
    """The runs that sweeps train while the test runs."""
    runs = []

    def counted(tasks, stack, points, ends):
        runs.extend(run for row in stack for run in row)
        return train_together(tasks, stack, points, ends)

    monkeypatch.setattr("equipoise.sweeps.stacks.train_together", counted)
    return runs


def swept(store, document=SMALL):
    *_, last = sweep("small", grid(document).cells, store)
    return last


def without_keys(store):
    runs, curves = contents(store)
    key = {row[0]: row[-1] for row in runs}  # the result says which run it is
    return sorted(row[1:] for row in runs), sorted((key[row[0]], *row[1:]) for row in curves)


def test_runs_of_older_numbers_are_replaced_one_by_one(old_store, trained):
    """Never two of the same run, never numbers of two kinds under one key."""
    names = {row[0] for row in contents(old_store)[0]}
    assert len(names) == 48
    half = {**SMALL, "seeds": [0]}
    last = swept(old_store, half)
    assert (last.done, last.failed, last.total, len(trained)) == (24, 0, 24, 24)
    rows = contents(old_store)[0]
    assert len(rows) == 48
    assert len({row[0] for row in rows} & names) == 24
    assert (swept(old_store).done, len(trained)) == (48, 48)
    now = {row[0] for row in contents(old_store)[0]}
    assert now == {key_of(resolved(settings)) for settings in grid(SMALL).settings}
    assert not now & names
    again = contents(old_store)
    assert (swept(old_store).done, len(trained)) == (48, 48)
    assert contents(old_store) == again


def test_runs_of_the_numbers_before_are_replaced_too(tmp_path, trained, monkeypatch):
    """Under the keys that the version before gave them."""
    run_key.cache_clear()
    monkeypatch.setattr(keys, "NUMBERS", 1)
    swept(tmp_path / "s.sqlite")
    names = {row[0] for row in contents(tmp_path / "s.sqlite")[0]}
    run_key.cache_clear()
    monkeypatch.setattr(keys, "NUMBERS", 2)
    swept(tmp_path / "s.sqlite")
    now = {row[0] for row in contents(tmp_path / "s.sqlite")[0]}
    assert (len(names), len(now), len(names & now)) == (48, 48, 0)


def test_what_failed_in_an_old_store_is_tried_again(old_store, trained):
    with sqlite3.connect(old_store) as db:
        failed = [key for (key,) in db.execute("SELECT key FROM runs WHERE local_steps = 2")]
        for key in failed:
            db.execute("DELETE FROM curves WHERE key = ?", (key,))
            db.execute("DELETE FROM runs WHERE key = ?", (key,))
            db.execute("INSERT INTO failures VALUES (?, '{}', 'out of luck')", (key,))
    last = swept(old_store)
    assert (last.done, last.failed) == (48, 0)
    with Store(old_store) as kept:
        assert not kept.failures()


def test_python_sweeps_an_old_store(old_store):
    ended = equipoise.sweep(SMALL, store=old_store)
    assert (ended.done, ended.failed, ended.total) == (48, 0, 48)
    assert len(contents(old_store)[0]) == 48


@pytest.mark.slow
def test_a_report_of_an_old_store(old_store, tmp_path, capsys):
    code, out, err = run_command(
        capsys, "report", str(old_store), "--out", str(tmp_path / "report")
    )
    assert code == 0, err
    assert (tmp_path / "report" / "index.html").exists()
    assert "dp-scaffnew" in out


@pytest.mark.slow
def test_a_report_of_old_and_new_runs_together(old_store, tmp_path):
    swept(old_store, {**SMALL, "seeds": [1, 2]})
    formats = {"format" in json.loads(row[-1]) for row in contents(old_store)[0]}
    assert formats == {False, True}
    equipoise.report(old_store, tmp_path / "report")
    with open(tmp_path / "report" / "tables" / "cells.csv", newline="") as file:
        assert {float(row["clip"]) for row in csv.DictReader(file)} == {0.1, 1.0, math.inf}
    assert "72" in (tmp_path / "report" / "index.html").read_text()


def numbers(row):
    return {name: value for name, value in row.items() if isinstance(value, int | float)}


def test_the_numbers_are_those_of_version_0_1(old_store, tmp_path):
    """But for what rounding to the lattice moves. Raise NUMBERS if they must change: then every
    store is run again, and says nothing wrong."""
    assert NUMBERS == 2
    swept(tmp_path / "new.sqlite")
    columns = "epsilon_spent, rounds, test_error, train_error"
    same_run = "algorithm, epsilon, clip_norm, local_steps, seed"
    with Store(old_store) as old, Store(tmp_path / "new.sqlite") as new:
        known = {
            tuple(run.values()): row
            for run, row in zip(old.table(same_run), old.table(columns), strict=True)
        }
        assert len(known) == 48
        for run, row in zip(new.table(same_run), new.table(columns), strict=True):
            assert row == pytest.approx(known[tuple(run.values())], rel=1e-6)


# ---- keys, and what is written today ----


def of_settings(**changes):
    values = {"task": "quadratic", "clients": 4, "iterations": 6, "epsilon": 2.0, "clip": 1.0}
    return resolved(Settings.of(**{**values, **changes}))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, "6dce760b5d86b62a4caca7c289c8851c"),
        ({"epsilon": math.inf, "clip": None, "seed": 3}, "0ebb593d1766e650d50877cd37a6e88d"),
        (
            {"algorithm": "dp-scaffnew", "h_update": "clipped", "trust": "secure-aggregation"},
            "c7f0332006efbebdfd141a4ef4b7dd75",
        ),
    ],
)
def test_keys_are_for_ever(changes, key):
    """Within one version of the arithmetic: a key that changes runs every store again; one that
    stays while its meaning changes is worse."""
    assert run_key(of_settings(**changes), "data") == key


def test_a_new_setting_renames_no_run(monkeypatch):
    """One with a default that means what was before: the key knows only what differs from
    defaults."""

    class NewRun(Run):
        inertia: float = 0.0

    run = of_settings()
    before = run_key(run, "data")
    monkeypatch.setattr(keys, "Run", NewRun)
    assert run_key(NewRun(**run.model_dump()), "data") == before
    assert run_key(NewRun(**run.model_dump(), inertia=0.0), "data") == before
    changed = run_key(NewRun(**run.model_dump(), inertia=0.9), "data")
    assert changed != before
    assert changed != run_key(NewRun(**run.model_dump(), inertia=0.8), "data")


def test_a_key_knows_data_numbers_and_every_setting_that_differs(monkeypatch):
    run = of_settings()
    before = run_key(run, "data")
    assert run_key(of_settings(h_update=None), "data") == before
    scaffnew = run_key(of_settings(algorithm="dp-scaffnew"), "data")
    assert run_key(of_settings(algorithm="dp-scaffnew", h_update="paper"), "data") == scaffnew
    others = {
        before,
        scaffnew,
        run_key(run, "other data"),
        run_key(of_settings(algorithm="dp-scaffnew", h_update="clipped"), "data"),
        run_key(of_settings(algorithm="dp-fedprox"), "data"),
        run_key(of_settings(algorithm="dp-fedprox", prox=0.7), "data"),
        *(
            run_key(of_settings(**change), "data")
            for change in (
                {"epsilon": 2.5},
                {"clip": 2.0},
                {"seed": 1},
                {"delta": 1e-6},
                {"gamma": 0.5},
                {"trust": "secure-aggregation"},
                {"neighbours": "zero-out"},
                {"simulate_noise_seed": 0},
                {"diagnostics": True},
                {"local_steps": 2},
                {"noise_rule": "lemma1", "v": "proof"},
                {"returns": "average"},
            )
        ),
    }
    assert len(others) == 6 + 12
    run_key.cache_clear()
    monkeypatch.setattr(keys, "NUMBERS", 3)
    assert run_key(run, "data") != before
    run_key.cache_clear()


def test_what_is_written_carries_its_format(tmp_path):
    settings = {"task": "quadratic", "clients": 4, "iterations": 4, "epsilon": 2.0, "clip": 1.0}
    result = equipoise.train(**settings)
    equipoise.save(result, tmp_path / "run")
    made = equipoise.plan(task="quadratic", epsilon=2.0, iterations=4, algorithm="dp-fedavg")
    equipoise.sweep(**settings, seeds=[0], store=tmp_path / "s.sqlite")
    with Store(tmp_path / "s.sqlite") as kept:
        (row,) = kept.table("result")
    for text in ((tmp_path / "run" / "result.json").read_text(), made.to_json(), row["result"]):
        assert json.loads(text)["format"] == 1


def test_what_a_newer_version_wrote_is_not_misread(tmp_path, capsys):
    """A format that is not known yet may say the same words and mean something else."""
    shutil.copytree(GOLDEN / "run", tmp_path / "run")
    newer = {**json.loads(equipoise.load(GOLDEN / "run").to_json()), "format": 2}
    (tmp_path / "run" / "result.json").write_text(json.dumps(newer))
    made = json.loads(read_plan(GOLDEN / "plan.json").to_json())
    (tmp_path / "plan.json").write_text(json.dumps({**made, "format": 2}))
    for command in (("show", tmp_path / "run"), ("train", "--plan", tmp_path / "plan.json")):
        code, out, err = run_command(capsys, *map(str, command))
        assert (code, out) == (2, "")
        assert "format=2 is of a newer Equipoise, where this one reads up to 1: update" in err


@pytest.mark.parametrize("document", [{"format": 1}, {}, {"plan": None}, {"run": 3}, [], None])
def test_what_is_no_run_and_no_plan_is_one_sentence(tmp_path, capsys, document):
    shutil.copytree(GOLDEN / "run", tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text(json.dumps(document))
    code, _, err = run_command(capsys, "show", str(tmp_path / "run"))
    assert code == 2
    assert "does not hold a run that this version can read" in err
    assert "validation error" not in err
    assert len(err.splitlines()) == 1
    (tmp_path / "plan.json").write_text(json.dumps(document))
    code, _, err = run_command(capsys, "train", "--plan", str(tmp_path / "plan.json"))
    assert code == 2
    assert "is not a plan for one budget" in err
    assert len(err.splitlines()) == 1


def test_a_run_that_version_0_1_could_not_say_has_no_key_of_version_0_1():
    """Or a stored run without a new option would be taken for the run with it."""
    settings = Settings.of(task="quadratic", epsilon=2, clip=1, algorithm="dp-scaffnew")
    run = settings.resolve(load_task("quadratic", TaskOptions()).facts("client"))
    assert key_of_version_0_1(run, "data")
    said = run.model_copy(update={"options": HashableOptions(h_update="clipped")})
    assert key_of_version_0_1(said, "data") != key_of_version_0_1(run, "data")
    averaged = run.model_copy(update={"returns": "average"})
    assert key_of_version_0_1(averaged, "data") is None
    newer = run.model_copy(update={"options": HashableOptions(momentum=0.9)})
    assert key_of_version_0_1(newer, "data") is None
