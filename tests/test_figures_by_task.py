"""Figures with tasks side by side."""

import math

import pytest

from equipoise.reports.figures.by_task import common_clips, iterations_by_task, steps_by_task
from equipoise.reports.figures.every import every_figure
from equipoise.reports.optima import laws
from equipoise.reports.study import shared_meaning
from test_report import bowl, study_of, sweep

TWO = {"toy": 2, "other": 8}


def of_two_tasks(**settings):
    """Two tasks whose best local steps differ, on one scale of errors and on another."""
    for task, best in TWO.items():
        for algorithm in ("dp-fedavg", "dp-scaffnew"):
            for epsilon in (0.5, math.inf):
                factor = 1 if task == "toy" else 0.1

                def error(tau, seed, best=best, factor=factor):
                    return factor * bowl(best)(tau, seed)

                yield from sweep(error, task=task, algorithm=algorithm, epsilon=epsilon, **settings)


@pytest.fixture
def cases(tmp_path):
    return study_of(tmp_path / "two.sqlite", of_two_tasks()).cases


def test_every_task_has_a_column_and_its_own_scale(cases):
    figure = steps_by_task(cases, 1.0)
    titles = [axes.get_title().split("\n")[0] for axes in figure.axes]
    order = [case.task for case in cases]
    assert titles == [f"{t}, {a}" for a in ("dp-fedavg", "dp-scaffnew") for t in order]
    tops = {
        title.split(",")[0]: axes.get_ylim()[1]
        for title, axes in zip(titles, figure.axes, strict=True)
    }
    assert tops["toy"] > 5 * tops["other"]


def test_lines_and_rings_are_those_of_their_task(cases):
    figure = steps_by_task(cases, 1.0)
    for case, axes in zip(cases, figure.axes[: len(cases)], strict=True):
        rings = [line for line in axes.lines if len(line.get_xdata()) == 1]
        assert {float(ring.get_xdata()[0]) for ring in rings} == {TWO[case.task]}
        curve = next(line for line in axes.lines if len(line.get_xdata()) == 5)
        means = {cell.local_steps: cell.mean for cell in case.cells if cell.epsilon == 0.5}
        assert dict(zip(curve.get_xdata(), curve.get_ydata(), strict=True)) == pytest.approx(means)


def test_a_clip_that_one_task_has_is_no_figure_of_several(tmp_path):
    results = [*of_two_tasks(), *sweep(bowl(4), clip=3.0, task="toy")]
    study = study_of(tmp_path / "clips.sqlite", results)
    assert common_clips(study.cases) == [1.0]
    kinds = {drawn.kind for drawn in every_figure(study, [])}
    assert "tasks-C1" in kinds
    assert "tasks-C3" not in kinds


def test_meanings_of_epsilon_are_not_mixed(tmp_path):
    exact = sweep(bowl(4), task="toy")
    shared = sweep(bowl(4), task="other", trust="secure-aggregation")
    study = study_of(tmp_path / "meanings.sqlite", [*exact, *shared])
    assert not any(drawn.kind.startswith("tasks") for drawn in every_figure(study, []))


def test_iterations_side_by_side(tmp_path):
    results = [*of_two_tasks(), *of_two_tasks(taus=(2, 8), T=32), *of_two_tasks(taus=(2, 8), T=64)]
    figure = iterations_by_task(study_of(tmp_path / "totals.sqlite", results).cases, 1.0)
    assert [tick for axes in figure.axes for tick in axes.get_xticks()][:3] == [16, 32, 64]
    assert "training error (mean)" in {text.get_text() for text in figure.legends[0].texts}


def test_a_caption_says_once_what_tasks_share():
    meanings = {"toy": "exact; trust: local; 5 clients", "other": "exact; trust: local; 3 clients"}
    assert shared_meaning(meanings) == "exact; trust: local; toy: 5 clients; other: 3 clients"


def test_groups_with_other_clients_share_the_figure_of_laws(tmp_path):
    results = [
        run
        for task, clients in (("toy", 5), ("other", 3))
        for clip, best in ((1, 2), (2, 4), (4, 8))
        for run in sweep(bowl(best), task=task, clients=clients, clip=clip)
    ]
    study = study_of(tmp_path / "laws.sqlite", results)
    drawn = [d for d in every_figure(study, laws(study, {})) if d.kind == "optimal-steps-by-clip"]
    (figure,) = (d.figure for d in drawn)
    words = figure.get_suptitle().replace("\n", " ")
    assert "toy: 5 clients" in words
    assert "other: 3 clients" in words
