"""Plans where nothing can be tried: from the constants of a problem alone, or for a model of which
nothing is known."""

import math
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from equipoise.errors import require
from equipoise.planning.candidates import (
    Candidate,
    describe,
    describe_proposal,
    smallest,
    untrained_error,
)
from equipoise.planning.closed_forms import Problem, corollary_1, corrected_plan, trainability
from equipoise.planning.plan import Plan, Question
from equipoise.privacy.gaussian import exact_v, gdp_mu, noise_sigma
from equipoise.privacy.promise import Budget
from equipoise.privacy.sampled import sampled_noise

if TYPE_CHECKING:
    from equipoise.tasks.task import Task


def plan_constants(question: Question, epsilon: float) -> Plan:
    """From constants alone: the bounds, printed and corrected, and what they say."""
    assert question.clients is not None
    assert question.mu is not None
    assert question.smoothness is not None
    assert question.dimension is not None
    assert question.clip_norm is not None
    budget, guarantee = Budget(epsilon, question.delta), question.guarantee(question.clients)
    problem = Problem(
        question.mu,
        question.smoothness,
        question.dimension,
        budget,
        guarantee,
        question.clip_norm,
        question.psi0,
        question.r0,
        question.zeta,
    )
    v = (
        exact_v(epsilon, question.delta, guarantee.sensitivity(1.0))
        if question.v is None
        else question.v
    )
    printed, corrected = corollary_1(problem, v), corrected_plan(problem)
    compared_with = "R0^2" if problem.r0 is not None else "psi0/N"
    form = (
        "the least corrected bound"
        if problem.r0 is not None
        else "the corrected bound with p = sqrt(mu/L), from psi0 alone,"
    )
    worth = corrected.iterations >= 1 and corrected.bound < problem.untrained
    tau, K = max(1, round(corrected.local_steps)), max(1, round(corrected.rounds))
    candidate = Candidate("dp-scaffnew", corrected.eta, tau, K, question.clip_norm, 1.0)
    return Plan(
        verdict="train" if worth else "do not train",
        reason=f"{form} is {corrected.bound:.4g}, against {compared_with} = "
        f"{problem.untrained:.4g} without training",
        unit=question.unit,
        epsilon=epsilon,
        delta=question.delta,
        nu2=trainability(budget, guarantee, question.dimension),
        plan=describe(candidate, budget, guarantee) if worth else None,
        predicted=None,
        untrained={"squared_distance": problem.untrained},
        public_only=None,
        compared={},
        corollary1={**describe_proposal(printed), "v": v},
        corrected=describe_proposal(corrected),
        displacement=None,
        changes=None if worth else _constants_that_would_do(problem),
        public=["the constants given"],
        settings=None,
        version=version("equipoise"),
    )


def _constants_that_would_do(problem: Problem) -> dict[str, Any]:
    """The smallest epsilon, and the smallest number of clients, for which the corrected bound falls
    below the start."""

    def worth(changed: Problem) -> bool:
        found = corrected_plan(changed)
        return found.iterations >= 1 and found.bound < changed.untrained

    return {
        "epsilon": smallest(
            lambda epsilon: worth(replace(problem, budget=Budget(epsilon, problem.budget.delta))),
            problem.budget.epsilon,
        ),
        "clients": smallest(
            lambda clients: worth(_with_clients(problem, math.ceil(clients))),
            problem.guarantee.clients,
            whole=True,
        ),
    }


def _with_clients(problem: Problem, clients: int) -> Problem:
    psi0 = None if problem.psi0 is None else problem.psi0 / problem.guarantee.clients * clients
    return replace(problem, guarantee=replace(problem.guarantee, clients=clients), psi0=psi0)


def plan_blind(question: Question, task: "Task", clients: int, epsilon: float) -> Plan:
    """Where no constants are known (networks): the exact noise of every pace, and no pretence."""
    require(
        question.unit == "client" or question.noise_in in (None, "gradient"),
        f"noise_in={question.noise_in} with task={task.name}: it needs a regularised linear "
        f"model; use noise_in=gradient",
    )
    T, C = question.iterations or task.iterations, question.clip_norm or 1.0
    nu2, sigma_of = (
        _record_noise(question, task, epsilon, C)
        if question.unit == "record"
        else _client_noise(question, task, clients, epsilon, C)
    )
    rows = []
    for tau in (tau for tau in range(1, T + 1) if T % tau == 0):
        sigma = sigma_of(tau, T // tau)
        client_sigma = (
            sigma if question.unit == "record" else question.guarantee(clients).client_sigma(sigma)
        )
        rows.append(
            {"local_steps": tau, "rounds": T // tau, "sigma": sigma, "client_sigma": client_sigma}
        )
    hopeless = nu2 > 10
    reason = (
        f"nu^2 = {nu2:.3g}: one release with C = {C:g} carries noise of about "
        f"{math.sqrt(nu2):.3g} times the clip; "
        + (
            "no schedule can learn through that"
            if hopeless
            else "which local steps are best only a sweep on public data can tell"
        )
    )
    if question.unit == "record":
        reason += "; with noise in the gradients local steps save communication, not privacy"
    return Plan(
        verdict="do not train" if hopeless else "train",
        reason=reason,
        unit=question.unit,
        epsilon=epsilon,
        delta=question.delta,
        nu2=nu2,
        plan=None,
        predicted=None,
        untrained={"test_error": untrained_error(task)},
        public_only=None,
        compared={},
        corollary1=None,
        corrected=None,
        displacement=None,
        noise=rows,
        public=list(task.public),
        settings=None,
        version=version("equipoise"),
    )


Noise = Callable[[int, int], float]


def _client_noise(
    question: Question, task: "Task", clients: int, epsilon: float, C: float
) -> tuple[float, Noise]:
    guarantee = question.guarantee(clients)
    nu2 = trainability(Budget(epsilon, question.delta), guarantee, task.dimension)
    return nu2, lambda tau, K: noise_sigma(epsilon, question.delta, K, guarantee.sensitivity(C))


def _record_noise(
    question: Question, task: "Task", epsilon: float, C: float
) -> tuple[float, Noise]:
    """nu^2 of a full-batch gradient, averaged over clients; and the noise in a client's sum, the
    same for every pace."""
    sizes, over_clip = (
        task.clients.sizes,
        question.guarantee(len(task.clients.sizes)).sensitivity(1.0),
    )
    mean = sum(sizes) / len(sizes)
    rate = min(1.0, task.batch / mean) if task.batch else 1.0
    nu2 = (
        over_clip**2
        * task.dimension
        / (gdp_mu(epsilon, question.delta) ** 2 * len(sizes) * mean**2)
    )
    return (
        nu2,
        lambda tau, K: (
            C * sampled_noise(epsilon, question.delta, tau * K, rate, question.neighbours)
        ),
    )
