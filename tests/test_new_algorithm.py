"""An algorithm that nobody has seen: no guarantee, plan or sweep takes it for one that is known."""

import math
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

import equipoise
from equipoise.algorithms.algorithm import Algorithm, AlgorithmSpec, Hyper, no_memory
from equipoise.algorithms.catalogue import ALGORITHMS
from equipoise.errors import InvalidValue
from equipoise.fleets import SimulatedFleet, averaged, server_rounds
from equipoise.planning.candidates import Candidate
from equipoise.planning.trial import Level, try_all
from equipoise.planning.worlds import known_of, worlds_of
from equipoise.privacy.clip import ClippedRelease
from equipoise.privacy.mechanisms.catalogue import mechanism
from equipoise.privacy.noise import SimulatedNoise
from equipoise.tasks import TaskOptions, load_task

RECORD = {"task": "breast-cancer", "clients": 5, "unit": "record", "epsilon": 2, "iterations": 8}


class State(NamedTuple):
    velocity: torch.Tensor


def heavy_ball(eta):
    """Momentum that goes on from round to round."""

    def init(x):
        return State(torch.zeros_like(x))

    def local_round(x, state, iterations, gradient):
        x_i, velocity = x, state.velocity
        for t in iterations:
            velocity = 0.9 * velocity - eta * gradient(x_i, t)
            x_i = x_i + velocity
        return x_i - x, State(velocity)

    return Algorithm(init, local_round)


def make(hyper):
    return heavy_ball(hyper.eta)


def remembers_anything(options):
    return "private"


@pytest.fixture
def heavy(monkeypatch):
    spec = AlgorithmSpec("dp-heavy-ball", "momentum", make, remembers_anything)
    monkeypatch.setitem(ALGORITHMS, "dp-heavy-ball", spec)


@pytest.fixture
def restarted(monkeypatch):
    """It remembers nothing, but its steps are no gradient steps."""
    spec = AlgorithmSpec("dp-restarted", "momentum within a round", make, no_memory)
    monkeypatch.setitem(ALGORITHMS, "dp-restarted", spec)


@pytest.mark.parametrize("place", ["message", "hidden-gradient"])
@pytest.mark.usefixtures("heavy", "restarted")
def test_bounds_for_gradient_steps_are_refused_to_other_steps(place):
    """With momentum one flipped label moves a message by 1.8 times the bound for plain steps."""
    for algorithm in ("dp-heavy-ball", "dp-restarted"):
        with pytest.raises(InvalidValue, match="not plain gradient steps"):
            equipoise.train(**RECORD, algorithm=algorithm, noise_in=place)
        assert equipoise.train(**RECORD, algorithm=algorithm, clip=1).private


def test_what_a_round_hid_is_not_carried_into_the_next(monkeypatch):
    spec = AlgorithmSpec("dp-sly", "", make, remembers_anything, gradient_steps=True)
    monkeypatch.setitem(ALGORITHMS, "dp-sly", spec)
    for place in ("message", "hidden-gradient"):
        with pytest.raises(InvalidValue, match="what it remembers"):
            equipoise.train(**RECORD, algorithm="dp-sly", noise_in=place)
    scaffnew = equipoise.train(**RECORD, algorithm="dp-scaffnew", noise_in="hidden-gradient")
    assert scaffnew.private  # h follows from messages that are released as they are


@pytest.mark.usefixtures("heavy")
def test_it_is_planned_for_one_record_where_it_can_be():
    plan = equipoise.plan(**RECORD, algorithm="dp-heavy-ball")
    assert {option.noise_in for option in plan.options[:-1]} == {"gradient"}


@pytest.mark.usefixtures("heavy")
def test_it_is_tried_by_itself():
    """Not by what is known of plain gradient steps."""
    task = load_task("breast-cancer", TaskOptions(clients=6, public_records=40))
    worlds = worlds_of(task, known_of(task, None, None), 2, 0)

    def level(candidate):
        return Level(mechanism("client"), (0.0,) * 6)

    plans = [
        Candidate("dp-heavy-ball", 0.5 / task.L, 2, K, C, gamma, "message")
        for K in (4, 1)
        for C in (0.5, 1.0)
        for gamma in (1.0, 0.5)
    ]
    tried = try_all(worlds, plans, level, range(1))
    assert len(tried) == 4 * 2 + 4
    plain = try_all(worlds, [replace(p, algorithm="dp-fedavg") for p in plans], level, range(1))
    assert [trial.mean for trial in tried] != [trial.mean for trial in plain]
    for trial in tried:
        candidate = trial.candidate
        for w, world in enumerate(worlds.rows):
            fleet = SimulatedFleet(
                6,
                world.clients.gradient,
                make(Hyper(candidate.eta, 0.5, candidate.clip, {})),
                ClippedRelease(candidate.clip, 0.0),
                SimulatedNoise(0),
            )
            rounds = server_rounds(
                world.x0, (2,) * candidate.rounds, fleet, fleet.algorithm, candidate.gamma
            )
            *_, last = averaged(rounds)
            model = last.x if candidate.returns == "last" else last.average
            torch.testing.assert_close(trial.x[w, 0], model, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("heavy")
def test_its_plan_is_trained():
    plan = equipoise.plan(
        task="quadratic", epsilon=20, algorithm="dp-heavy-ball", trust="secure-aggregation"
    )
    assert plan.chosen.algorithm == "dp-heavy-ball"
    assert equipoise.train(plan, anyway=True).run.algorithm == "dp-heavy-ball"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_stack_is_each_of_its_algorithms_at_its_own_value(name):
    spec = ALGORITHMS[name]
    if spec.stack is None:
        return
    task = load_task("breast-cancer", TaskOptions(clients=4))
    hyper = Hyper(1 / task.L, 0.5, math.inf, {})
    models = []
    for algorithm in (spec.make(hyper), spec.stack.make(hyper, spec.stack.own)):
        release = ClippedRelease(0.5, 0.1)
        fleet = SimulatedFleet(4, task.clients.gradient, algorithm, release, SimulatedNoise(1))
        *_, last = server_rounds(task.x0, (2, 2, 2), fleet, algorithm)
        models.append(last.x)
    assert torch.equal(*models)


def test_options_of_one_name_are_one_option():
    """The command has one flag for each."""
    options = {}
    for spec in ALGORITHMS.values():
        for name, option in spec.options.items():
            assert options.setdefault(name, option) is option
