"""The search: the best local steps of every budget with a fraction of the grid's runs."""

import math
import re
import statistics
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from equipoise import InvalidValue
from equipoise.sweeps.grid import grid
from equipoise.sweeps.search import search
from equipoise.sweeps.stacks import key_of, resolved
from equipoise.training import train_together
from problems import SMALL, TASK_FILE, contents, run_command


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dp-fedavg", ["dp-fedavg", "dp-scaffnew"]])
def test_the_search_finds_what_the_grid_finds(tmp_path, algorithm):
    """On a planted landscape: unimodal in log tau, the optimum moves with the noise, trials differ
    by what a seed does."""
    document = {
        **SMALL,
        "iterations": 120,
        "epsilon": [4.0, 2.0, 1.0, 0.5],
        "clip": [0.1, 1.0, 10.0],
        "seeds": [0, 1, 2],
    }
    runs = grid({**document, "algorithm": algorithm})

    def planted(settings):
        best = 8 * (settings.clip / settings.epsilon) ** 0.4
        wobble = np.random.default_rng([settings.local_steps, settings.seed]).normal()
        return 0.1 * math.exp(0.25 * math.log(settings.local_steps / best) ** 2 + 0.1 * wobble)

    class Planted:
        def __init__(self, store):
            self.store = store

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def table(self, _):
            return [
                {"key": key_of(resolved(s)), "test_error": planted(s), "failed": None}
                for s in runs.settings
            ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("equipoise.sweeps.search.Store", Planted)
        patch.setattr("equipoise.sweeps.search.sweep", lambda name, cells, *_: iter(()))
        *_, (_, found) = search(runs, tmp_path / "s.sqlite")
    used, of = sum(answer.runs for answer in found), sum(answer.of for answer in found)
    assert used <= 0.15 * of
    for answer in found:
        cell = [
            c
            for c in runs.cells
            if (c[0].epsilon, c[0].clip) == (answer.settings.epsilon, answer.settings.clip)
        ]
        errors = {c[0].local_steps: [planted(s) for s in c] for c in cell}
        means = {tau: statistics.mean(values) for tau, values in errors.items()}
        best = min(means, key=means.get)
        assert means[answer.local_steps] <= 1.05 * means[best]
        assert 0 <= answer.probability <= 1


@pytest.mark.slow
def test_a_search_in_a_store(tmp_path, capsys):
    document = {**SMALL, "iterations": 12, "seeds": [0, 1, 2]}
    store = tmp_path / "s.sqlite"
    *_, (progress, found) = search(grid(document), store)
    assert len(found) == 2 * 3
    assert len(contents(store)[0]) == sum(answer.runs for answer in found) == progress.done
    again = contents(store)
    *_, (_, same) = search(grid(document), store)
    assert [answer.local_steps for answer in same] == [answer.local_steps for answer in found]
    assert contents(store) == again
    Path(tmp_path / "grid.toml").write_text(
        'name = "small"\ntask = "quadratic"\nclients = 4\nalgorithm = ["dp-fedavg", '
        '"dp-scaffnew"]\niterations = 12\n'
        'local_steps = "divisors"\nepsilon = [2.0, inf]\nclip = [0.1, 1.0]\n'
    )
    code, out, _ = run_command(
        capsys,
        "sweep",
        str(tmp_path / "grid.toml"),
        "--search",
        "--store",
        str(store),
        "--workers",
        "1",
    )
    assert code == 0
    assert "of the grid's" in out


def test_a_search_starts_its_processes_once(tmp_path, monkeypatch):
    started = []

    class Here:
        def __init__(self, *_):
            started.append(self)

        def submit(self, function, *arguments):
            future = Future()
            future.set_result(function(*arguments))
            return future

        def shutdown(self):
            pass

    monkeypatch.setattr("equipoise.sweeps.workers.ProcessPoolExecutor", Here)
    steps = [
        progress.done
        for progress, _ in search(
            grid({**SMALL, "iterations": 12}), tmp_path / "s.sqlite", workers=2
        )
    ]
    assert len({*steps}) > 3
    assert len(started) == 1


def test_a_search_answers_only_what_it_has_run(tmp_path, monkeypatch):
    """Every cell is run, even beyond the share; one whose runs fail has no answer, and the command
    says so."""
    document = {
        **SMALL,
        "iterations": 4,
        "clients": [4, 5],
        "algorithm": "dp-fedavg",
        "epsilon": [2.0, 1.0, 0.5],
        "seeds": [0],
    }

    def fails(tasks, runs, points, ends):
        if runs[0][0].clients == 5:
            raise ValueError("mine")
        return train_together(tasks, runs, points, ends)

    monkeypatch.setattr("equipoise.sweeps.stacks.train_together", fails)
    *_, (_, found) = search(grid(document), tmp_path / "s.sqlite")
    assert [answer.settings.clients for answer in found] == [4] * 6
    assert all(answer.runs >= 1 for answer in found)


def test_a_search_needs_an_error_to_search_by(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(re.sub(r"^test = .*\n", "", TASK_FILE, flags=re.MULTILINE))
    with pytest.raises(InvalidValue, match="has no test records"):
        next(
            search(
                grid({"task": "mine.py", "iterations": 2, "epsilon": math.inf}),
                tmp_path / "s.sqlite",
            )
        )
