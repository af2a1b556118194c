"""Closed forms beside the plan: what each proposes, and what that is worth on the stand-ins."""

import math
from collections.abc import Callable
from typing import NamedTuple

from equipoise.algorithms import dp_fedavg, dp_scaffnew
from equipoise.paper.corollary import corollary_1
from equipoise.planning.bounds import Problem, Proposal, corrected_plan, displacement_law
from equipoise.planning.candidates import Candidate, option_of
from equipoise.planning.plan import Option, Prediction
from equipoise.planning.problems import ClientProblem
from equipoise.planning.trial import Trial

MOST_STEPS = 4096  # tried for a closed form that asks for more
SEEDS = range(32)


class Context(NamedTuple):
    """What formulas need: the problem, the clip, Lemma 1's v, how to predict, and not training."""

    problem: ClientProblem
    clip: float
    v: float | None
    predict: Callable[[Trial], Prediction]
    untrained: Prediction


def formulas(context: Context) -> list[Option]:
    """The displacement law, the corrected bound and Corollary 1 with the surrogate's constants."""
    return [formula(context) for formula in FORMULAS]


def _constants(context: Context) -> Problem:
    problem, s = context.problem, context.problem.surrogate
    zeta = math.sqrt(float(s.slopes.square().sum(-1).mean()))
    r0 = float((s.best - s.x0).norm())
    d, clients = problem.facts.dimension, problem.facts.clients
    return Problem(s.mu, s.L, d, problem.promise, clients, context.clip, r0=r0, zeta=zeta)


def _displacement(context: Context) -> Option:
    problem, s, clip = context.problem, context.problem.surrogate, context.clip
    gradients = s.clients.gradient(s.x0.expand(s.number, -1), 0)
    norms = gradients.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    direction, H = -(gradients / norms).mean(0), s.hessians.mean(0)
    slope, curvature = float(-gradients.mean(0) @ direction), float(direction @ H @ direction)
    law = displacement_law(
        slope, curvature, float(H.trace()), problem.promise, problem.facts.clients
    )
    tau = min(32, max(1, math.ceil(2 * clip * s.L / float(norms.median()))))
    plain = Candidate(dp_fedavg.SPEC.name, 1 / s.L, tau, law.rounds(clip), clip, law.gamma(clip))
    predicted = context.predict(problem.try_out(plain, SEEDS))
    option = plain.option(
        "displacement law",
        problem.event(plain),
        problem.promise,
        problem.facts.clients,
        predicted,
    )
    return option.model_copy(update={"distance": law.distance})


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
        plain = Candidate(dp_scaffnew.SPEC.name, proposal.eta, tau, K, context.clip, 1.0)
        predicted = context.predict(context.problem.try_out(plain, SEEDS))
    return option_of(origin, proposal, predicted)


FORMULAS = [_displacement, _corrected, _corollary]
