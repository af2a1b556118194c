"""Sweeps: grids, stacks, the store, resuming, failures."""

import json
import math
import multiprocessing
import sqlite3
from collections import defaultdict
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

import equipoise
from equipoise import DataError, InvalidValue, train
from equipoise.algorithms.schedule import coin, divisors_of
from equipoise.paper.grid import paper_grid
from equipoise.paper.tasks.rows import ROWS
from equipoise.privacy import noise_sigma
from equipoise.settings import Settings
from equipoise.sweeps.foreword import foreword
from equipoise.sweeps.grid import grid, read_grid
from equipoise.sweeps.search import search
from equipoise.sweeps.stacks import (
    computations_of,
    key_of,
    resolved,
    run_stack,
    runs_of,
    stacks_of,
    task_of,
)
from equipoise.sweeps.store import Finished, Store
from equipoise.sweeps.sweep import sweep
from equipoise.sweeps.workers import Processes
from equipoise.tasks import TaskOptions
from equipoise.training import train_together
from problems import ROOT, SMALL, TASK_FILE, contents, run_command


def finished(document, store, **how):
    """Run a sweep to its end; its last progress."""
    *_, last = sweep("small", grid(document).cells, store, **how)
    return last


# ---- grids ----


def test_a_grid_is_all_combinations_with_infinity_once():
    runs = grid(SMALL)
    cells = [(c[0].algorithm, c[0].local_steps, c[0].epsilon, c[0].clip) for c in runs.cells]
    assert len(cells) == len({*cells}) == 2 * 4 * (2 + 1)
    assert [(e, c) for a, t, e, c in cells if (a, t) == ("dp-fedavg", 1)] == [
        (2.0, 0.1),
        (2.0, 1.0),
        (math.inf, None),
    ]
    assert all(
        [trial.seed for trial in cell] == [trial.simulate_noise_seed for trial in cell] == [0, 1]
        for cell in runs.cells
    )
    assert {cell[0].local_steps for cell in runs.cells} == {1, 2, 3, 6}


def test_the_paper_s_grids():
    """tau over all divisors, four budgets with three clips and infinity once, three seeds, both
    algorithms."""
    document = paper_grid("fed-ixi")
    assert document["iterations"] == 400
    assert document["clip"] == [10, 20, 50]
    runs = grid(document)
    assert sum(1 for _ in runs.settings) == 2 * len(divisors_of(400)) * (4 * 3 + 1) * 3
    assert len(divisors_of(10_000)) == 25
    with pytest.raises(InvalidValue, match="task='digits' is not one of the paper's"):
        paper_grid("digits")


def test_variants_change_some_settings():
    document = {
        **SMALL,
        "variant": [
            {"noise_rule": "exact"},
            {"noise_rule": "lemma1", "v": "proof", "epsilon": 1.0},
        ],
    }
    runs = [cell[0] for cell in grid(document).cells]
    assert {run.noise_rule for run in runs} == {"exact", "lemma1"}
    assert {run.epsilon for run in runs if run.noise_rule == "lemma1"} == {1.0}


def test_a_variant_s_clip_is_its_own_by_either_name():
    document = {key: value for key, value in SMALL.items() if key != "clip"}
    runs = grid({**document, "clip_norm": 1.0, "variant": [{"clip": 10.0}, {}]})
    assert {cell[0].clip for cell in runs.cells} == {10.0, 1.0, None}


def test_what_has_no_noise_is_run_once_whatever_the_convention():
    variants = [{}, {"noise_rule": "lemma1", "v": "proof"}, {"trust": "secure-aggregation"}]
    runs = grid({**SMALL, "epsilon": [1.0, "inf"], "variant": variants})
    free = [cell[0] for cell in runs.cells if cell[0].epsilon == math.inf]
    assert len(free) == 2 * 4
    assert {one.clip for one in free} == {None}


def test_a_coin_beside_fixed_local_steps(tmp_path):
    """Every run of a coin is that of `train`, its rounds are those of the public coins, and a
    report shows both schedules."""
    document = {
        **SMALL,
        "algorithm": "dp-scaffnew",
        "epsilon": 1.0,
        "schedule": ["periodic", "coin"],
    }
    store = tmp_path / "coins.sqlite"
    assert finished(document, store).failed == 0
    with Store(store, read_only=True) as kept:
        rows = kept.table("key, local_steps, rounds, seed, test_error, result")
        runs = {row["key"]: json.loads(row["result"])["run"] for row in rows}
        tossed = [row for row in rows if runs[row["key"]]["schedule"] == "coin"]
        assert len(tossed) == len(rows) / 2
        for row in tossed:
            p, T = 1 / row["local_steps"], runs[row["key"]]["iterations"]
            gaps = coin(T, p, row["seed"])
            assert row["rounds"] == len(gaps)
            ends = [point["iteration"] for point in kept.curve(row["key"])]
            assert ends == [0, *accumulate(gaps)]
    given = Settings.model_validate(runs[tossed[0]["key"]])
    assert train(given).test_error == pytest.approx(tossed[0]["test_error"], rel=1e-12)
    equipoise.report(store, tmp_path / "report")
    drawn = {path.name for path in (tmp_path / "report" / "figures").glob("*.png")}
    assert any("schedules-c" in name for name in drawn)
    with pytest.raises(InvalidValue, match="schedule=coin with a search"):
        list(search(grid(document), store, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": "dice"}, "schedule='dice'"),
        ({"p": 0.5}, "p cannot be given to a sweep, which sets it itself"),
        ({"epsilom": 1}, "unknown key epsilom of a sweep: did you mean epsilon?"),
        ({"seed": 1}, "seed cannot be given to a sweep, which sets it itself"),
        ({"epsilon": []}, r"epsilon=\[\] leaves nothing to run"),
        ({"seeds": []}, r"seeds=\[\] leaves nothing to run"),
        ({"seeds": ["a"]}, "seeds are not whole numbers"),
        ({"local_steps": [4]}, "local_steps=4 does not divide iterations=6"),
        ({"local_steps": "divisors", "iterations": None}, "needs iterations"),
        ({"epsilon": -1.0}, "epsilon=-1"),
        ({"task": "cifra10"}, "did you mean cifar10?"),
        ({"variant": 3}, "variant is not a list"),
        ({"variant": []}, "variant is not a list"),
        ({"seeds": [1, 1]}, "a trial is there twice"),
        ({"iterations": 0}, "iterations=0 is not a whole number"),
        ({"iterations": -4}, "iterations=-4 is not a whole number"),
        ({"iterations": "6"}, "iterations='6' is not a whole number"),
        ({"iterations": 6.0}, "iterations=6.0 is not a whole number"),
        ({"iterations": True}, "iterations=True is not a whole number"),
        ({"iterations": [[6]]}, "is not a whole number"),
        ({"iterations": None, "local_steps": [7]}, "local_steps=7"),
        ({"clip_norm": 1.0}, "clip and clip_norm are the same"),
    ],
)
def test_bad_grids_are_refused_before_anything_runs(change, message, tmp_path):
    document = {key: value for key, value in {**SMALL, **change}.items() if value is not None}
    with pytest.raises(InvalidValue, match=message):
        finished(document, tmp_path / "s.sqlite")
    assert not (tmp_path / "s.sqlite").exists()


def test_files_that_are_no_grid(tmp_path, capsys):
    (tmp_path / "bad.toml").write_text("task = [")
    with pytest.raises(DataError, match=r"bad.toml is not TOML"):
        read_grid(tmp_path / "bad.toml")
    code, _, error = run_command(capsys, "sweep", str(tmp_path / "none.toml"))
    assert code == 2
    assert "none.toml: No such file" in error
    code, _, error = run_command(capsys, "sweep", "paper")
    assert code == 2
    assert "needs a task" in error


def test_a_task_without_data_is_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "nothing"))
    code, _, error = run_command(
        capsys, "sweep", "paper", "--task", "messidor", "--store", str(tmp_path / "s.sqlite")
    )
    assert code == 2
    assert "the data of task=messidor is not in" in error


# ---- stacks ----


@pytest.mark.parametrize(
    ("task", "batch"), [("quadratic", None), ("breast-cancer", None), ("breast-cancer", 2)]
)
@pytest.mark.parametrize(
    "algorithms", [["dp-fedavg"], ["dp-scaffnew"], ["dp-fedavg", "dp-scaffnew"]]
)
@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
def test_stacked_runs_equal_runs_by_themselves(task, algorithms, batch, trust):
    """Models to rounding, curves at the same rounds, the same noise, the same account: only the
    company differs."""
    common = {"task": task, "local_steps": 2, "iterations": 8, "diagnostics": True, "batch": batch}
    common["trust"] = trust
    budgets = [
        {"epsilon": math.inf},
        {"epsilon": 2.0, "clip": 0.1},
        {"epsilon": 0.5, "clip": 3.0},
        {"epsilon": 2.0, "clip": 1.0, "neighbours": "zero-out"},
        {"epsilon": 2.0, "clip": 0.1, "returns": "average"},
    ]
    columns = [
        {**common, **budget, "algorithm": algorithm}
        for algorithm in algorithms
        for budget in budgets
    ]
    rows = [
        [Settings.of(**column, seed=s, simulate_noise_seed=s) for column in columns]
        for s in (0, 1, 2)
    ]
    tasks = [task_of(task, TaskOptions.of(row[0])) for row in rows]
    together = train_together(tasks, [[resolved(one) for one in row] for row in rows], 100)
    for row, results in zip(rows, together, strict=True):
        for settings, stacked in zip(row, results, strict=True):
            alone = train(settings)
            np.testing.assert_allclose(stacked.x, alone.x, rtol=1e-11, atol=1e-13)
            same = {"curve", "per_round", "repeat", "x", "measures"}  # these to rounding, below
            assert stacked.model_dump(exclude=same | {"test_error"}) == alone.model_dump(
                exclude=same | {"test_error"}
            )
            for one, other in zip(stacked.curve, alone.curve, strict=True):
                assert _numbers(one) == pytest.approx(_numbers(other), rel=1e-9)
            for one, other in zip(stacked.per_round, alone.per_round, strict=True):
                assert _numbers(one) == pytest.approx(_numbers(other), rel=1e-9)
            assert _values(stacked) == pytest.approx(_values(alone), rel=1e-9)


def _values(result):
    """Of the measures, where there are any."""
    known = result.measures.estimates if result.measures else {}
    return {name: estimate.value for name, estimate in known.items() if estimate.value is not None}


def _numbers(point):
    return {name: value for name, value in asdict(point).items() if value is not None}


def test_only_like_runs_are_stacked():
    stacks = stacks_of(grid(SMALL).cells)
    assert len(stacks) == 4  # local steps
    assert {(len(stack), len(stack[0])) for stack in stacks} == {
        (2, 2 * 3)
    }  # seeds; algorithms, budgets
    variants = [
        {"algorithm": "dp-fedavg"},
        *({"algorithm": "dp-scaffnew", "h_update": how} for how in ("paper", "clipped")),
    ]
    without = {name: value for name, value in SMALL.items() if name != "algorithm"}
    stacks = stacks_of(grid({**without, "variant": variants}).cells)
    assert sorted((len(stack), len(stack[0])) for stack in stacks) == [(2, 3)] * 4 + [(2, 6)] * 4
    several = {
        **SMALL,
        "unit": "record",
        "task": "breast-cancer",
        "sampling_rate": 0.5,
        "epsilon": 2.0,
        "clip": 1.0,
    }
    assert {(len(stack), len(stack[0])) for stack in stacks_of(grid(several).cells)} == {(1, 1)}
    one, other = (resolved(cell[0]) for cell in grid(SMALL).cells[:2])
    with pytest.raises(InvalidValue, match="algorithm, budget, clip and returns only"):
        train_together(
            [task_of("quadratic", TaskOptions.of(one))],
            [[one, other.model_copy(update={"eta": 0.5})]],
            5,
        )


def test_runs_of_a_row_share_their_noise():
    run = resolved(
        Settings.of(
            task="quadratic",
            clients=4,
            iterations=4,
            epsilon=2.0,
            clip=1.0,
            simulate_noise_seed=5,
        )
    )
    other = run.model_copy(update={"simulate_noise_seed": 6})
    with pytest.raises(InvalidValue, match="one simulate_noise_seed"):
        train_together([task_of("quadratic", TaskOptions.of(run))], [[run, other]], 5)


# ---- the store ----


def test_a_sweep_and_its_store(tmp_path):
    store = tmp_path / "s.sqlite"
    last = finished(SMALL, store)
    assert (last.done, last.failed, last.total, last.left) == (48, 0, 48, 0.0)
    with Store(store) as kept:
        (row,) = kept.table(
            "*",
            "algorithm = 'dp-fedavg' AND epsilon = 2 AND clip_norm = 0.1 AND local_steps = 3 AND "
            "seed = 1",
        )
        points = kept.curve(row["key"])
    settings = {
        "task": "quadratic",
        "clients": 4,
        "iterations": 6,
        "local_steps": 3,
        "epsilon": 2.0,
        "clip": 0.1,
    }
    alone = train(**settings, seed=1, simulate_noise_seed=1, diagnostics=True)
    assert row["test_error"] == pytest.approx(alone.test_error)
    assert row["epsilon_spent"] == alone.epsilon_spent
    assert [point["test_error"] for point in points] == pytest.approx(
        [point.test_error for point in alone.curve]
    )
    assert points[-1]["clipped"] == alone.per_round[-1].clipped
    assert points[-1]["train_error"] == pytest.approx(alone.per_round[-1].train_error)
    document = json.loads(row["result"])
    assert any("SIMULATION" in notice for notice in document["notices"])
    assert document["private"] is False


def test_finished_runs_are_never_run_again(tmp_path, monkeypatch):
    store = tmp_path / "s.sqlite"
    finished({**SMALL, "seeds": [0]}, store)
    before = contents(store)
    calls = []
    monkeypatch.setattr("equipoise.sweeps.workers.run_stack", lambda *a: calls.append(a))
    finished({**SMALL, "seeds": [0]}, store)
    assert (calls, contents(store)) == ([], before)


@pytest.mark.slow
def test_results_do_not_depend_on_interruptions_or_processes(tmp_path):
    """Stopped after three stacks and started again, by two processes: the same store, bit for
    bit.
    """
    whole, parts = tmp_path / "whole.sqlite", tmp_path / "parts.sqlite"
    finished(SMALL, whole)
    steps = sweep("small", grid(SMALL).cells, parts)
    for _ in range(4):
        next(steps)
    steps.close()
    assert 0 < len(contents(parts)[0]) < 48
    assert finished(SMALL, parts, workers=2).done == 48
    assert contents(parts) == contents(whole)


def test_a_key_is_what_decides_the_numbers():
    one, *_ = (resolved(settings) for settings in grid(SMALL).settings)
    assert key_of(one) == key_of(one.model_copy())
    assert (
        len(
            {
                key_of(one.model_copy(update=change))
                for change in ({}, {"epsilon": 2.5}, {"seed": 9}, {"eta": 0.1})
            }
        )
        == 4
    )


def _write(store):
    runs = stacks_of(grid({**SMALL, "seeds": [0]}).cells)
    return [run_stack(stack, store, "small") for stack in runs]


@pytest.mark.slow
def test_several_processes_write_the_same_runs_once(tmp_path):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(_write, [tmp_path / "s.sqlite"] * 3) == [[{}] * 4] * 3
    assert len(contents(tmp_path / "s.sqlite")[0]) == 24


def test_failures_are_kept_and_retried(tmp_path, monkeypatch):
    store = tmp_path / "s.sqlite"

    def fails(tasks, runs, points, ends):
        if runs[0][0].local_steps == 2:
            raise RuntimeError("out of luck")
        return train_together(tasks, runs, points, ends)

    with monkeypatch.context() as patch:
        patch.setattr("equipoise.sweeps.stacks.train_together", fails)
        last = finished(SMALL, store)
    assert (last.done, last.failed) == (36, 12)
    with Store(store) as kept:
        assert {*kept.failures().values()} == {"RuntimeError"}
    assert (finished(SMALL, store).done, finished(SMALL, store).failed) == (36, 12)
    last = finished(SMALL, store, retry=True)
    assert (last.done, last.failed) == (48, 0)
    with Store(store) as kept:
        assert kept.failures() == {}


def test_one_failure_is_not_everybody_s(tmp_path, monkeypatch):
    """Whatever a user's code raises is noted; and a key that failed elsewhere does not keep its
    stack from running."""
    store = tmp_path / "s.sqlite"
    key = key_of(resolved(next(grid(SMALL).settings)))
    with Store(store) as kept:
        kept.fail({key: "{}"}, "elsewhere")

    def fails(tasks, runs, points, ends):
        if runs[0][0].local_steps == 2:
            raise KeyError("mine")
        return train_together(tasks, runs, points, ends)

    monkeypatch.setattr("equipoise.sweeps.stacks.train_together", fails)
    last = finished(SMALL, store)
    assert (last.done, last.failed) == (36, 12)
    with Store(store) as kept:
        assert {*kept.failures().values()} == {"KeyError"}


def test_of_a_larger_grid_only_what_is_new_is_trained(tmp_path, monkeypatch):
    trained = []

    def counted(tasks, runs, points, ends):
        trained.extend(run for row in runs for run in row)
        return train_together(tasks, runs, points, ends)

    monkeypatch.setattr("equipoise.sweeps.stacks.train_together", counted)
    store = tmp_path / "s.sqlite"
    small, large = {**SMALL, "epsilon": [2.0]}, {**SMALL, "epsilon": [2.0, 1.0]}
    assert finished(small, store).done == len(trained) == 32
    assert finished(large, store).done == len(trained) == 64
    assert finished({**large, "seeds": [0, 1, 2]}, store).done == len(trained) == 96
    assert len({key_of(run) for run in trained}) == 96


def test_variants_may_add_trials_to_a_cell(tmp_path):
    variants = [{"seeds": [0, 1]}, {"local_steps": [2, 6], "seeds": [0, 1, 2, 3]}]
    runs = grid(
        {**SMALL, "epsilon": 2.0, "clip": 1.0, "algorithm": "dp-fedavg", "variant": variants}
    )
    assert {cell[0].local_steps: len(cell) for cell in runs.cells} == {1: 2, 2: 4, 3: 2, 6: 4}
    *_, last = sweep("small", runs.cells, tmp_path / "s.sqlite")
    assert (last.done, last.total) == (12, 12)
    *_, (_, found) = search(runs, tmp_path / "s.sqlite")
    assert [answer.of for answer in found] == [12]


def test_what_a_larger_grid_adds_is_counted_honestly(tmp_path):
    store = tmp_path / "s.sqlite"
    finished({**SMALL, "clip": 0.1}, store)
    first = next(sweep("small", grid(SMALL).cells, store))
    assert (first.done, first.total) == (32, 48)


class Deadly:
    """Workers of which one dies whenever it runs what is `deadly`; stacks are done when waited
    for."""

    def __init__(self, deadly, number=2):
        self.deadly, self.number, self.submitted = deadly, number, []

    def submit(self, stack, store, sweep):
        future = Future()
        self.submitted.append(stack)
        try:
            for part in computations_of(stack):
                with Store(store) as kept:
                    done = kept.finished(key_of(run) for run in runs_of(part))
                if {key_of(run) for run in runs_of(part)} - done and self.deadly(part):
                    raise BrokenExecutor
                run_stack(part, store, sweep)
            future.set_result({})
        except BrokenExecutor as death:
            future.set_exception(death)
        return future


DEATH = "its process died 3 times: there may be too little memory"


def test_who_ran_beside_a_process_that_died_is_not_blamed(tmp_path):
    store = tmp_path / "s.sqlite"
    workers = Deadly(lambda stack: stack[0][0].local_steps == 2)
    last = finished(SMALL, store, workers=workers)
    assert (last.done, last.failed, last.left) == (36, 12, 0.0)
    assert len(workers.submitted) == 3 + 2 + 3  # the others once; twice among them, thrice alone
    with Store(store) as kept:
        assert {*kept.failures().values()} == {DEATH}


def test_what_died_by_accident_is_run_again_and_nothing_else_is(tmp_path):
    """A process that is killed costs its own stack a second time, and no other."""
    deaths = iter([True])
    workers = Deadly(lambda stack: stack[0][0].local_steps == 3 and next(deaths, False))
    last = finished(SMALL, tmp_path / "s.sqlite", workers=workers)
    assert (last.done, last.failed) == (48, 0)
    assert len(workers.submitted) == 5
    finished(SMALL, tmp_path / "whole.sqlite")
    assert contents(tmp_path / "s.sqlite") == contents(tmp_path / "whole.sqlite")


def test_of_a_row_of_networks_only_the_run_that_dies_is_given_up(tmp_path):
    """The runs after it are trained, and those before it once."""
    store = tmp_path / "s.sqlite"
    document = {**NETWORK, "algorithm": "dp-fedavg", "iterations": 2, "local_steps": [1, 2]}
    rows = stacks_of(grid({**document, "seeds": [0]}).cells)
    (row,) = rows[0]
    assert len(row) > 3
    last = finished({**document, "seeds": [0]}, store, workers=Deadly(lambda s: s == ((row[1],),)))
    assert (last.failed, last.done) == (1, last.total - 1)
    with Store(store) as kept:
        assert kept.failures() == {key_of(row[1]): DEATH}


def test_a_process_that_dies_takes_no_other_with_it(tmp_path):
    with Processes(2) as some:
        one, other, *_ = stacks_of(grid(SMALL).cells)
        dying, living = (some.submit(s, tmp_path / "s.sqlite", "small") for s in (one, other))
        (process,) = some._busy[dying]._processes.values()
        process.kill()
        with pytest.raises(BrokenExecutor):
            dying.result()
        assert living.result() == {}
        assert some.submit(one, tmp_path / "s.sqlite", "small").result() == {}
        assert some.submit(one, tmp_path / "s.sqlite", "small").result() == {}
        assert len(some._idle) + len(some._busy) <= 2


def test_a_task_of_one_s_own_can_be_swept_and_its_code_is_in_the_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(TASK_FILE)
    document = {"task": "mine.py", "iterations": 2, "epsilon": math.inf, "seeds": [0]}
    assert finished(document, tmp_path / "s.sqlite").done == 1
    keys = {key_of(resolved(next(grid(document).settings)))}
    for change in ("# another metric\n", "metric = lambda outputs, labels: 0.5\n"):
        Path("mine.py").write_text(TASK_FILE + change)
        task_of.cache_clear()
        keys.add(key_of(resolved(next(grid(document).settings))))
    task_of.cache_clear()
    assert len(keys) == 3


def test_a_store_may_be_born_to_several_at_once(tmp_path):
    def opened(path):
        with Store(path) as store:
            return store.keys()

    with ThreadPoolExecutor(6) as pool:
        for i in range(20):
            assert list(pool.map(opened, [tmp_path / f"{i}.sqlite"] * 6)) == [set()] * 6


def test_a_full_disk_is_told(tmp_path):
    result = train(task="quadratic", iterations=4, epsilon=math.inf, simulate_noise_seed=0)
    with Store(tmp_path / "s.sqlite") as kept:
        kept.add("s", [Finished("a", result, 1.0)])
        kept._db.execute("PRAGMA max_page_count = 12")
        with pytest.raises(DataError, match="full; make room on the disk"):
            kept.add("s", (Finished(f"b{i}", result, 1.0) for i in range(1000)))
        assert kept.keys() == {"a"}


def test_a_run_and_its_curve_go_in_together(tmp_path):
    """A store that breaks in the middle of a stack keeps nothing of it."""
    store = tmp_path / "s.sqlite"
    result = train(task="quadratic", iterations=4, epsilon=math.inf, simulate_noise_seed=0)

    def two():
        yield Finished("a", result, 1.0)
        raise OSError(28, "No space left on device")

    with Store(store) as kept:
        with pytest.raises(DataError, match="No space left on device"):
            kept.add("s", two())
        assert kept.keys() == set()
        kept.add("s", [Finished("a", result, 1.0), Finished("a", result, 1.0)])
        assert kept.keys() == {"a"}


def test_stores_that_cannot_be_used(tmp_path, capsys):
    newer = tmp_path / "newer.sqlite"
    with Store(newer):
        pass
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(DataError, match=r"newer.sqlite was written by a newer Equipoise \(form 99"):
        Store(newer)
    (tmp_path / "text.sqlite").write_text(
        "no database, but a text that is long enough to be looked at" * 100
    )
    with pytest.raises(DataError, match=r"text.sqlite is damaged or no store"):
        Store(tmp_path / "text.sqlite")
    with sqlite3.connect(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE mine (x)")
    with pytest.raises(DataError, match="is a database, but not a store of Equipoise"):
        Store(tmp_path / "other.sqlite")
    with pytest.raises(DataError, match="there is no such file"):
        Store(tmp_path / "none.sqlite", read_only=True)
    code, _, error = run_command(capsys, "report", str(tmp_path / "none.sqlite"))
    assert code == 2
    assert "there is no such file" in error


def test_a_damaged_store_is_told(tmp_path):
    store = tmp_path / "s.sqlite"
    finished({**SMALL, "seeds": [0]}, store)
    content = bytearray(store.read_bytes())
    content[4096:20000] = b"\xff" * (20000 - 4096)
    store.write_bytes(content)
    with pytest.raises(DataError, match="damaged or no store"), Store(store) as kept:
        kept.table()


def test_a_locked_store_is_told(tmp_path, monkeypatch):
    store = tmp_path / "s.sqlite"
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda path, timeout, **how: connect(path, timeout=0.1, **how)
    )
    with Store(store) as kept:
        other = connect(store, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DataError, match="locked; another program holds it"):
            kept.fail({"a": "{}"}, "error")
        other.close()


# ---- the command ----


def test_the_command(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(
        'task = "quadratic"\nclients = 4\niterations = 4\nlocal_steps = "divisors"\n'
        "epsilon = [1.0, inf]\nclip = 1.0\nseeds = [0]\n"
    )
    arguments = (
        "sweep",
        str(tmp_path / "mine.toml"),
        "--store",
        str(tmp_path / "s.sqlite"),
        "--workers",
        "1",
    )
    code, out, _ = run_command(capsys, *arguments)
    assert code == 0
    assert "6 of 6 runs are in" in out
    code, out, _ = run_command(capsys, *arguments, "--json")
    assert json.loads(out)["done"] == 6
    code, out, _ = run_command(capsys, "sweep", "paper", "--task", "femnist", "--show-grid")
    (tmp_path / "paper.toml").write_text(out)
    assert grid(read_grid(tmp_path / "paper.toml")).cells == grid(paper_grid("femnist")).cells
    for path in sorted((ROOT / "examples").glob("*.toml")):  # with variants
        code, out, _ = run_command(capsys, "sweep", str(path), "--show-grid")
        (tmp_path / "shown.toml").write_text(out)
        assert grid(read_grid(tmp_path / "shown.toml")) == grid(read_grid(path))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("mine.toml --figure 2", "figure=2 with mine.toml: figures are parts of the paper's grid"),
        ("mine.toml --seeds 3", "seeds=3 with mine.toml: a number of trials is for the paper's"),
        ("mine.toml --seeds 3 --show-grid", "give a list in mine.toml, such as seeds = [0, 1, 2]"),
        ("mine.toml --iterations 8", "iterations with a grid of your own: give it in mine.toml"),
        ("mine.toml --ray=", "ray= is empty: give the address of a Ray cluster, HOST:PORT, or"),
        ("mine.toml --store .", "store=. is a folder: give the name of a file"),
    ],
)
def test_what_a_grid_of_one_s_own_does_not_take(tmp_path, capsys, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('task = "quadratic"\niterations = 4\nepsilon = inf\nseeds = [0]\n')
    code, out, error = run_command(capsys, "sweep", *arguments.split())
    assert (code, out) == (2, "")
    assert sentence in error
    assert not Path("sweep.sqlite").exists()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        *(
            (f"--v={v}", "is neither a positive number nor one of")
            for v in ("nope", -1, "nan", "inf")
        ),
        ("--unit=patient", "unit='patient': input should be 'client', 'record' or 'person'"),
        ("--iterations=0", "iterations=0 is not a whole number"),
    ],
)
def test_a_grid_is_checked_before_it_is_shown(capsys, wrong, sentence):
    code, out, error = run_command(
        capsys, "sweep", "paper", "--task", "femnist", "--show-grid", wrong
    )
    assert (code, out) == (2, "")
    assert sentence in error


def test_the_paper_s_trials_are_three_or_as_many_as_are_asked_for(capsys):
    command = ("sweep", "paper", "--task", "femnist", "--show-grid")
    assert "seeds = [0, 1, 2]" in run_command(capsys, *command)[1]
    assert "seeds = [0, 1, 2]" in run_command(capsys, *command, "--seeds", "3")[1]
    assert "seeds = [0]" in run_command(capsys, *command, "--seeds", "1")[1]


@pytest.mark.parametrize("search", [(), ("--search",)])
def test_an_interrupted_command_says_what_is_kept(tmp_path, capsys, monkeypatch, search):
    def interrupted(*_):
        raise KeyboardInterrupt

    (tmp_path / "mine.toml").write_text(
        'task = "quadratic"\niterations = 4\nepsilon = inf\nseeds = [0]\n'
    )
    monkeypatch.setattr("equipoise.sweeps.workers.run_stack", interrupted)
    arguments = (
        str(tmp_path / "mine.toml"),
        "--store",
        str(tmp_path / "s.sqlite"),
        "--workers",
        "1",
        *search,
    )
    code, _, error = run_command(capsys, "sweep", *arguments)
    assert code == 130
    assert "interrupted: what is finished is in" in error
    assert error.endswith("; the same command goes on from there\n")


def test_failed_runs_make_the_command_fail(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("equipoise.sweeps.stacks.train_together", lambda *_: 1 / 0)
    (tmp_path / "mine.toml").write_text(
        'task = "quadratic"\niterations = 4\nepsilon = inf\nseeds = [0]\n'
    )
    arguments = (
        "sweep",
        str(tmp_path / "mine.toml"),
        "--store",
        str(tmp_path / "s.sqlite"),
        "--workers",
        "1",
    )
    code, out, error = run_command(capsys, *arguments, "--json")
    assert (code, json.loads(out)["failed"]) == (1, 1)
    assert "1 runs failed: ZeroDivisionError" in error
    code, _, error = run_command(
        capsys, "report", str(tmp_path / "s.sqlite"), "--out", str(tmp_path / "out")
    )
    assert code == 2
    assert "ZeroDivisionError" in error


NETWORK = {
    "name": "network",
    "task": "digits-mlp",
    "clients": 5,
    "algorithm": ["dp-fedavg", "dp-scaffnew", "dp-fedprox", "clip21-sgd2m", "fed-norm-ec"],
    "iterations": 12,
    "local_steps": [1, 3, 12],
    "epsilon": [3.0, 30.0],
    "clip": [0.3, 3.0],
    "seeds": [0, 1],
}


@pytest.mark.slow
def test_first_steps_of_networks_are_made_once_and_change_no_bit(tmp_path, monkeypatch):
    """Runs of a seed begin alike: 12 steps of the first are enough for all of them, but those of
    FedProx, which feel a pull from the second step on."""
    steps = []

    def counted(self, x, t):
        steps.append(t)
        return self.gradient(x, t)

    cells = grid(NETWORK).cells
    (one, *_), *_ = stacks = stacks_of(cells)
    assert {len({run.seed for run in row}) for (row,) in stacks} == {1}
    assert [run.local_steps for run in one] == sorted(run.local_steps for run in one)
    finished(NETWORK, tmp_path / "s.sqlite")
    with Store(tmp_path / "s.sqlite", read_only=True) as store:
        for row in store.table("key, test_error, result", "seed = 1"):
            run = json.loads(row["result"])["run"]
            alone = train(Settings.of(**run))
            assert row["test_error"] == alone.test_error, run["algorithm"]
            last = store.curve(row["key"])[-1]
            assert last["test_loss"] == alone.curve[-1].test_loss
    monkeypatch.setattr("equipoise.algorithms.algorithm.FirstSteps.__call__", counted)
    plain = {**NETWORK, "algorithm": ["dp-fedavg", "dp-scaffnew"], "local_steps": 12, "seeds": [0]}
    finished(plain, tmp_path / "plain.sqlite")
    assert steps == [], "runs of one round make their steps together"


def test_norms_of_every_round_are_kept(tmp_path):
    """Of 60 rounds 25 points at most: each is the mean of the rounds that it stands for."""
    document = {**SMALL, "iterations": 60, "local_steps": 1, "epsilon": 2.0, "seeds": [0]}
    finished(document, tmp_path / "s.sqlite")
    settings = {"task": "quadratic", "clients": 4, "iterations": 60, "epsilon": 2.0, "clip": 0.1}
    every = train(**settings, simulate_noise_seed=0, diagnostics=True).per_round
    with Store(tmp_path / "s.sqlite", read_only=True) as store:
        (row,) = store.table("key", "algorithm = 'dp-fedavg' AND clip_norm = 0.1")
        points = [p for p in store.curve(row["key"]) if p["round"]]
    assert [point["round"] for point in points] == list(range(3, 61, 3))
    for k, point in enumerate(points):
        three = every[3 * k : 3 * k + 3]
        assert point["clipped"] == pytest.approx(sum(seen.clipped for seen in three) / 3)
        assert point["update_norm"] == pytest.approx(sum(seen.update_norm for seen in three) / 3)
        assert point["train_error"] == pytest.approx(three[-1].train_error)


@pytest.mark.parametrize(
    ("figure", "task", "clips"),
    [(2, "femnist", [10]), (4, "femnist-narrow", [10, 50, 100]), (6, "reddit", [50.0]),
     (7, "cifar10", [100]), (8, "hippocampus", [10, 20, 50]), (9, "deepdrid-narrow", [10, 20, 50])],
)  # fmt: skip
def test_a_figure_of_the_paper_is_a_part_of_its_grid(figure, task, clips):
    document = paper_grid(task, figure=figure)
    assert document["clip"] == clips
    assert document["name"] == f"paper-{task}-figure-{figure}"


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"figure": 3}, "figure=3 shows errors at the best local steps of each budget"),
        ({"figure": 10, "iterations": 9}, "iterations=9 with figure=10, which has those of the"),
        ({"figure": 3, "store": Path("none.sqlite")}, "store=none.sqlite has no runs of task=fem"),
        ({"figure": 1}, "figure=1 is not one that a sweep can make"),
        (
            {"figure": 8},
            "figure=8 with task=femnist: it is about fed-ixi, hippocampus, hippocampus-narrow "
            "alone; choose one of them",
        ),
        ({"v": 1.0, "unit": "record"}, "Lemma 1 is about clients"),
    ],
)
def test_figures_that_no_grid_can_make_are_refused(how, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        paper_grid("femnist", **how)
    with pytest.raises(InvalidValue, match="for which Table 1 has no such clip threshold"):
        paper_grid("messidor", figure=7)


def test_figure_3_has_the_best_local_steps_of_figure_2(tmp_path, monkeypatch):
    row = ROWS["femnist"]._replace(clients=5, iterations=24, clips=(0.1, 10.0))
    monkeypatch.setitem(ROWS, "breast-cancer", row)
    store = tmp_path / "figures.sqlite"
    equipoise.sweep("paper", task="breast-cancer", store=store)
    with pytest.raises(InvalidValue, match=r"no runs of .* with unit=client, v=0.5, noise"):
        equipoise.sweep("paper", task="breast-cancer", figure=3, v=0.5, store=store)
    by_steps = defaultdict(lambda: defaultdict(list))
    columns = "algorithm, epsilon, clip_norm, local_steps, test_error"
    for run in Store(store, read_only=True).table(columns):
        if run["clip_norm"] in (10.0, math.inf):
            at = run["algorithm"], run["epsilon"]
            by_steps[at][run["local_steps"]].append(run["test_error"])
    best = {
        at: min(errors, key=lambda steps: (round(fmean(errors[steps]), 12), steps))
        for at, errors in by_steps.items()
    }
    variants = paper_grid("breast-cancer", figure=3, store=store)["variant"]
    assert {(v["algorithm"], v["epsilon"]): v["local_steps"] for v in variants} == best
    assert len({*best.values()}) > 1
    for variant in variants:
        assert {variant["local_steps"], 24, 48} <= {variant["local_steps"], *variant["iterations"]}
        assert all(total % variant["local_steps"] == 0 for total in variant["iterations"])
    done = equipoise.sweep("paper", task="breast-cancer", figure=10, store=store)
    assert done.done == done.total == 3 * sum(len(variant["iterations"]) for variant in variants)


def test_before_the_paper_s_grid_runs_the_planner_is_asked(tmp_path, monkeypatch, capsys):
    row = ROWS["femnist"]._replace(clients=5, iterations=4, clips=(1.0,))
    monkeypatch.setitem(ROWS, "breast-cancer", row)
    where = ("--store", str(tmp_path / "s.sqlite"), "--workers", "1", "--seeds", "1")
    code, _, said = run_command(capsys, "sweep", "paper", "--task", "breast-cancer", *where)
    assert code == 0
    foretold = equipoise.plan(task="breast-cancer", epsilon=3.3)
    (line,) = [line for line in said.splitlines() if line.startswith("plan ")]
    assert line.split(None, 1)[1] == (
        f"at epsilon = 3.3 for one client: {foretold.verdict}; nu^2 = {foretold.nu2:.3g}"
    )


def test_before_a_sweep_begins_it_says_what_it_will_take():
    """Of a network, whose steps are timed, and of a label that is no budget."""
    document = {
        **{name: NETWORK[name] for name in ("name", "task", "clients", "iterations", "seeds")},
        "algorithm": "dp-fedavg",
        "local_steps": [1, 12],
        "variant": [
            {"epsilon": math.inf},
            {"epsilon": [1.0, 3.0], "clip": 1.0},
            {"epsilon": 3.0, "clip": 1.0, "noise_rule": "lemma1", "v": 0.01},
        ],
    }
    labels, lines = zip(*foreword(grid(document)), strict=True)
    assert labels == ("task", "noise", "noise", "noise", "work")
    assert lines[0].startswith("digits-mlp: 5 clients, batch ")
    exact, label, none = sorted(lines[1:4], key=lambda line: ("inf" in line, "label" in line))
    assert "rule exact, trust local: 8 runs; the mean noise of a round is" in exact
    assert "its epsilon is a label: 3 spends" in label
    assert none == "none (epsilon = inf): 4 runs"
    assert lines[4].startswith("192 local steps of all clients at ")
    run = resolved(Settings.of(task="digits-mlp", clients=5, iterations=12, epsilon=1.0, clip=1.0))
    sigma = noise_sigma(1.0, 1e-5, 12, 2.0)  # the loudest: twelve rounds
    d = task_of("digits-mlp", TaskOptions.of(run)).dimension
    assert f"to {sigma * math.sqrt(d / 5):.2g} times as long as what it hides may be" in exact
