"""The search for a plan: it leaves its first grid, is good whatever the skew is, keeps to its
effort, and finds the same twice."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from equipoise.planning import problems, search
from equipoise.planning.candidates import Candidate
from equipoise.planning.plan import Question
from equipoise.planning.planner import _limits
from equipoise.planning.problems import LADDER, LONGEST, MOST_ROUNDS, ClientProblem, RecordProblem
from equipoise.planning.search import Effort, Purse, Searched, Stage, effort_of, mean_excess
from equipoise.planning.trial import Trial
from equipoise.planning.worlds import known_of, worlds_of
from equipoise.tasks import TaskOptions, load_task

SMALL = Effort(Stage(2, range(1)), Stage(2, range(1)), Stage(3, range(2)), 2e9)


def problem_of(less_noise=1.0, clients=6, count=3, **question):
    task = load_task("quadratic", TaskOptions(clients=clients))
    worlds = worlds_of(task, known_of(task, None, None), count, 0)
    asked = Question.of(
        task="quadratic",
        epsilon=2,
        clients=clients,
        trust="secure-aggregation",
        **{"algorithm": "dp-fedavg", **question},
    )
    facts = task.facts("client")
    return ClientProblem(asked, worlds, asked.promise(2.0), facts, asked.mechanisms[0], less_noise)


def coarse(problem):
    """Of the grid that a search begins with."""
    return [c for line in problem.lines() for c in problem.beginning(line)]


# ---- beyond the grid ----


def test_a_search_leaves_the_grid_where_the_best_lies_at_its_edge():
    """With little noise more rounds are better than the grid has; where a limit remains, it is
    said."""
    problem = problem_of(less_noise=0.002, clip=0.05)
    most = max(candidate.rounds for candidate in coarse(problem))
    assert most == 64
    (best,) = search.search(problem, SMALL).best(1)
    assert best.candidate.rounds > most
    at_limit = best.candidate.rounds >= MOST_ROUNDS or best.candidate.iterations > LONGEST // 2
    assert bool(_limits(problem.question, best.candidate, problem.worlds)) == at_limit


@pytest.mark.parametrize(
    ("rounds", "tau", "iterations", "said"),
    [(512, 1, None, 1), (512, 4, None, 2), (64, 32, None, 1), (64, 1, None, 0), (512, 4, 2048, 1)],
)
def test_limits_are_said(rounds, tau, iterations, said):
    question = Question.of(task="quadratic", epsilon=2, iterations=iterations)
    worlds = problem_of().worlds
    limits = _limits(question, Candidate("dp-fedavg", 1.0, tau, rounds, 1.0, 1.0), worlds)
    assert len(limits) == said
    assert all(limit.startswith("LIMIT: ") for limit in limits)


def test_steps_may_be_as_long_as_the_stand_ins_allow():
    """Up from 1/L, which is stable whatever the records are."""
    task = load_task("breast-cancer", TaskOptions(clients=5, public_records=40))
    worlds = worlds_of(task, known_of(task, None, None), 2, 0)
    asked = Question.of(task="breast-cancer", epsilon=2, clients=5, trust="secure-aggregation")
    problem = ClientProblem(
        asked, worlds, asked.promise(2.0), task.facts("client"), asked.mechanisms[0]
    )
    line, *_ = problem.lines()
    etas = problem._etas(line)
    assert etas[0] == pytest.approx(1 / task.L)
    assert etas == sorted(etas)
    assert etas[-1] <= worlds.longest * (1 + 1e-9)
    assert 4 * etas[-1] > worlds.longest, "no step of the ladder is left out"
    for row in worlds.rows:
        largest = torch.linalg.eigvalsh(row.clients.hessians(row.x0).double()).max()
        assert worlds.longest * float(largest) <= 2, "stable for every stand-in"
    pulled = problem._etas(replace(line, algorithm="dp-fedprox", options={"prox": 3.0}))
    assert pulled[0] == pytest.approx(1 / (task.L + 3))
    assert pulled[-1] <= 1 / (1 / worlds.longest + 3) * (1 + 1e-9)


def test_neighbours_differ_in_one_thing_or_go_as_far():
    problem = problem_of()
    at = Candidate("dp-fedavg", problem._etas(problem.lines()[0])[0], 4, 8, 0.3, 1.0, "message")
    near = problem.neighbours(at)
    for other in near:
        differ = [
            name
            for name in ("eta", "local_steps", "rounds", "clip", "gamma")
            if getattr(other, name) != getattr(at, name)
        ]
        as_far = other.rounds * other.clip == pytest.approx(at.rounds * at.clip)
        assert len(differ) <= 1 or (differ == ["rounds", "clip"] and as_far)
    assert {other.rounds for other in near} >= {6, 12}
    edge = replace(at, rounds=LADDER[-1], local_steps=4)
    assert max(c.rounds for c in problem.neighbours(edge)) == MOST_ROUNDS
    assert max(c.iterations for c in problem.neighbours(edge)) <= LONGEST
    fixed = problem_of(iterations=96)
    for other in fixed.neighbours(replace(at, local_steps=4, rounds=24)):
        assert other.iterations == 96


# ---- regret ----


def world_of(skew):
    return SimpleNamespace(skew=skew)


def tried_in(skews, *rows, iterations=1):
    """Trials with given values in worlds of these skews."""
    names = list(dict.fromkeys(skews))
    places = [[i for i, name in enumerate(skews) if name == skew] for skew in names]
    worlds = SimpleNamespace(rows=[world_of(s) for s in skews], skews=places)
    searched = Searched(worlds, mean_excess, [], [])
    for number, row in enumerate(rows):
        candidate = Candidate("dp-fedavg", 1.0, iterations, 1, 1.0 + number, 1.0)
        excess = torch.tensor(row, dtype=torch.float64)[:, None]
        searched.add([Trial(candidate, torch.zeros(len(row), 1, 1), excess)])
    return searched


def winner(searched):
    return searched.trials.index(searched.best(1)[0])


def test_a_plan_that_is_good_in_all_skews_beats_one_that_is_best_in_most():
    """Minimax over skews: the mean over all worlds would choose the first."""
    skews = ["none", "none", "none", "strong"]
    specialist, all_round = [1.0, 1.0, 1.0, 4.0], [1.9, 1.9, 1.9, 2.0]
    other = [9.0, 9.0, 9.0, 1.9]
    searched = tried_in(skews, specialist, all_round, other)
    assert sum(specialist) < sum(all_round)
    assert winner(searched) == 1
    assert winner(tried_in(["none"] * 4, specialist, all_round, other)) == 0, "one kind of skew"


def test_regret_is_counted_in_what_is_left_in_a_world():
    """And a world in which nearly nothing is left does not count beyond measure."""
    nothing = tried_in(["none"] * 3, [1.0, 1.0, 1e-9], [1.3, 1.3, 1e-12])
    assert winner(nothing) == 0
    assert all(math.isfinite(regret) for regret in nothing.regrets())


def test_kinds_of_skew_in_which_more_is_left_do_not_count_more():
    """Regret is a ratio: five times the best in an easy kind is worse than 1.2 times in a hard."""
    easy_and_hard = ["none", "strong"]
    rows = ([0.01, 0.12], [0.05, 0.1], [0.0105, 0.1])
    assert winner(tried_in(easy_and_hard, *rows[:2])) == 0
    assert tried_in(easy_and_hard, *rows).regrets()[2] == pytest.approx(1.0, abs=0.01)


def test_what_is_next_to_nothing_is_never_below_zero():
    searched = tried_in(["none"], [-4e-8], [1e-3])
    assert winner(searched) == 0
    assert min(searched.regrets()) >= 1.0


def test_a_plan_that_diverges_is_never_chosen():
    searched = tried_in(["none"] * 2, [math.inf, 0.1], [2.0, 2.0])
    assert winner(searched) == 1


def test_of_plans_that_are_as_good_the_one_with_fewer_steps_is_taken():
    few = tried_in(["none"], [1.0])
    many = tried_in(["none"], [0.999], iterations=64)
    both = Searched(
        few.worlds, mean_excess, [*few.trials, *many.trials], [*few.values, *many.values]
    )
    assert winner(both) == 0
    better = tried_in(["none"], [0.9], iterations=64)
    both = Searched(
        few.worlds, mean_excess, [*few.trials, *better.trials], [*few.values, *better.values]
    )
    assert winner(both) == 1, "ten per cent are worth six doublings"


# ---- effort ----


def test_a_purse_pays_for_short_plans_first_and_never_more_than_it_holds():
    worlds = SimpleNamespace(rows=[0, 1], width=10)
    plans = [Candidate("dp-fedavg", 1.0, 1, K, 1.0, 1.0) for K in (8, 1, 4, 2)]
    stage = Stage(2, range(3))
    purse = Purse(2 * 3 * 10 * 7)
    bought = purse.affordable(worlds, plans, stage)
    assert [plan.rounds for plan in bought] == [1, 2, 4]
    assert purse.left == 0
    assert purse.affordable(worlds, plans, stage) == []


@pytest.mark.parametrize("most", [3e5, 3e6])
def test_a_search_keeps_to_its_effort(monkeypatch, most):
    """What is tried before the last stage costs no more than it may; the last stage tries the best
    of every line, and a few."""
    problem, spent, last = problem_of(clip=0.3), [], []
    honest = search.try_all

    def counted(worlds, candidates, level, seeds):
        cost = sum(c.iterations for c in candidates) * len(worlds.rows) * len(seeds) * worlds.width
        (last if len(seeds) == 2 else spent).append((cost, len(candidates)))
        return honest(worlds, candidates, level, seeds)

    monkeypatch.setattr(search, "try_all", counted)
    searched = search.search(problem, SMALL._replace(most=most))
    assert 0.02 * most < sum(cost for cost, _ in spent) <= most
    assert sum(number for _, number in last) <= 4 + len(problem.lines())
    assert searched.best(1)


def test_the_same_search_finds_the_same():
    first, again = (search.search(problem_of(clip=0.3), SMALL) for _ in range(2))
    assert [t.candidate for t in first.best(3)] == [t.candidate for t in again.best(3)]
    assert first.regrets() == again.regrets()


def test_a_search_hears_its_progress():
    heard = []
    search.search(problem_of(clip=0.3), SMALL._replace(most=3e6), progress=heard.append)
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


def test_every_line_ends_with_a_trial():
    """Of an algorithm that is far behind too, so that a table can show it."""
    problem = problem_of(algorithm="all", prox=0.5, clip=0.3)
    searched = search.search(problem, SMALL)
    names = {line.algorithm for line in problem.lines()}
    assert len(names) == 7
    for line in problem.lines():
        (trial,) = searched.best_of(line)
        assert trial.candidate.algorithm == line.algorithm
        assert len(trial.excess) == 3


def test_larger_tables_may_cost_more():
    small = SimpleNamespace(width=10, skews=[[0]], rows=[0] * 16)
    large = SimpleNamespace(width=10**6, skews=[[0]], rows=[0] * 16)
    assert effort_of(small).most < effort_of(large).most <= 2e10
    assert effort_of(small).end.worlds == 16


# ---- records ----


def test_where_local_steps_are_paid_for_plans_begin_with_one_each():
    task = load_task("breast-cancer", TaskOptions(clients=5, public_records=60))
    worlds = worlds_of(task, known_of(task, None, None), 2, 0)
    asked = Question.of(
        task="breast-cancer", epsilon=2, clients=5, unit="record", algorithm="dp-fedavg"
    )
    facts = task.facts("client")._replace(sizes=task.clients.sizes)
    problem = RecordProblem(asked, worlds, asked.promise(2.0), facts)
    places = {line.place.noise_in for line in problem.lines()}
    assert places == {"gradient", "message", "hidden-gradient"}
    for line in problem.lines():
        paces = {candidate.local_steps for candidate in problem.beginning(line)}
        assert paces == ({1, 8} if line.place.paid_per == "round" else {1})
        for candidate in problem.beginning(line):
            assert candidate.clip <= 1.001 * facts.gradient_bound
            assert candidate.gamma == 1.0
    gradient = next(line for line in problem.lines() if line.place.paid_per == "local step")
    cheaper = problem.cheaper(gradient.candidate(0.5, 1, 32, 0.5))
    assert {c.iterations for c in cheaper} == {32}
    assert [c.rounds for c in cheaper] == sorted((c.rounds for c in cheaper), reverse=True)


def test_the_ladder_is_known_to_all():
    assert LADDER[0] == 1
    assert LADDER[-1] == MOST_ROUNDS
    assert list(LADDER) == sorted(set(LADDER))
    assert problems._beside(64) == [48, 96]
    assert problems._beside(512) == [384]
