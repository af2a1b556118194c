"""Closed forms beside the plan: what each proposes, and what that is worth on the stand-ins."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from equipoise.algorithms import dp_fedavg, dp_scaffnew
from equipoise.paper.corollary import corollary_1
from equipoise.planning.bounds import Problem, Proposal, corrected_plan, displacement_law
from equipoise.planning.candidates import Candidate, option_of
from equipoise.planning.plan import Option, Prediction
from equipoise.planning.problems import ClientProblem
from equipoise.planning.trial import Trial, try_all
from equipoise.planning.worlds import World, Worlds

MOST_STEPS = 512  # tried for a closed form that asks for more
SEEDS = range(2)


class Context(NamedTuple):
    """What formulas need: the problem, the clip, Lemma 1's v, how to predict, and not training."""

    problem: ClientProblem
    clip: float
    v: float | None
    predict: Callable[[Trial, Worlds], Prediction]
    untrained: Prediction


def formulas(context: Context) -> list[Option]:
    """The displacement law, the corrected bound and Corollary 1, with one world's constants."""
    return [formula(context) for formula in FORMULAS]


def _world(context: Context) -> World:
    return context.problem.worlds.rows[0]


def _slopes(world: World) -> Tensor:
    """The gradient of each client at x*."""
    return world.clients.gradient(world.best.expand(len(world.clients.sizes), -1), 0)


def _constants(context: Context) -> Problem:
    problem, world = context.problem, _world(context)
    zeta = math.sqrt(float(_slopes(world).square().sum(-1).mean()))
    r0 = float((world.best - world.x0).norm())
    facts = problem.facts
    assert facts.mu is not None
    assert facts.L is not None
    return Problem(
        facts.mu,
        facts.L,
        facts.dimension,
        problem.promise,
        facts.clients,
        context.clip,
        r0=r0,
        zeta=zeta,
    )


def _displacement(context: Context) -> Option:
    problem, world, clip = context.problem, _world(context), context.clip
    gradients = world.clients.gradient(world.x0.expand(len(world.clients.sizes), -1), 0)
    norms = gradients.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    direction = -(gradients / norms).mean(0)
    H = world.clients.hessians(world.x0 + 0.7 * (world.best - world.x0)).mean(0)
    slope, curvature = float(-gradients.mean(0) @ direction), float(direction @ H @ direction)
    law = displacement_law(
        slope, curvature, float(H.trace()), problem.promise, problem.facts.clients
    )
    assert problem.facts.L is not None
    tau = min(32, max(1, math.ceil(2 * clip * problem.facts.L / float(norms.median()))))
    rounds = min(law.rounds(clip), max(1, MOST_STEPS // tau))
    plain = _candidate(dp_fedavg.SPEC.name, 1 / problem.facts.L, tau, rounds, context)
    plain = replace(plain, gamma=law.gamma(clip))
    option = plain.option(
        "displacement law",
        problem.event(plain),
        problem.promise,
        problem.facts.clients,
        _predicted(plain, context),
    )
    return option.model_copy(update={"distance": law.distance})


def _candidate(algorithm: str, eta: float, tau: int, K: int, context: Context) -> Candidate:
    place = context.problem.place.noise_in
    return Candidate(algorithm, eta, tau, K, context.clip, 1.0, place)


def _predicted(plain: Candidate, context: Context) -> Prediction:
    worlds = context.problem.worlds
    trial, *_ = try_all(worlds, [plain], context.problem.level, SEEDS)
    return context.predict(trial, worlds)


def _corrected(context: Context) -> Option:
    return _proposed("corrected bound", corrected_plan(_constants(context)), context)


def _corollary(context: Context) -> Option:
    proposal = corollary_1(_constants(context), context.v)
    return _proposed("Corollary 1 as printed", proposal, context)


def _proposed(origin: str, proposal: Proposal, context: Context) -> Option:
    """The proposal un-rounded, and what it reaches when rounded: T* <= 0 is not to train."""
    tau, K = max(1, round(proposal.local_steps)), max(1, round(proposal.rounds))
    K = min(K, max(1, MOST_STEPS // tau))
    predicted = context.untrained
    if proposal.iterations > 0:
        plain = _candidate(dp_scaffnew.SPEC.name, proposal.eta, tau, K, context)
        predicted = _predicted(plain, context)
    return option_of(origin, proposal, predicted)


FORMULAS = [_displacement, _corrected, _corollary]
