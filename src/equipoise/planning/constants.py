"""Plans from the constants of a problem alone: the bounds, printed and corrected, and what they
say."""

import math
from dataclasses import replace
from importlib.metadata import version

from equipoise.algorithms import dp_scaffnew
from equipoise.paper.corollary import corollary_1
from equipoise.paper.lemma1 import exact_v
from equipoise.planning.bounds import Problem, corrected_plan, trainability
from equipoise.planning.candidates import Candidate, option_of, smallest
from equipoise.planning.plan import Changes, Plan, Prediction, Question
from equipoise.privacy.events import Event
from equipoise.privacy.gaussian import noise_sigma
from equipoise.privacy.lattice import spacing


def plan_constants(question: Question, epsilon: float) -> Plan:
    problem = _problem(question, epsilon)
    promise, clients = problem.promise, problem.clients
    v = exact_v(epsilon, promise.delta, promise.over_clip) if question.v is None else question.v
    corrected = corrected_plan(problem)
    compared_with = "R0^2" if problem.r0 is not None else "psi0/N"
    form = "the least corrected bound"
    if problem.r0 is None:
        form = "the corrected bound with p = sqrt(mu/L), from psi0 alone,"
    worth = corrected.iterations >= 1 and corrected.bound < problem.untrained
    tau, K = max(1, round(corrected.local_steps)), max(1, round(corrected.rounds))
    chosen = None
    if worth:
        candidate = Candidate(dp_scaffnew.SPEC.name, corrected.eta, tau, K, problem.clip, 1.0)
        sensitivity = promise.sensitivity(problem.clip)
        sigma = noise_sigma(epsilon, promise.delta, K, sensitivity)
        gamma = spacing(problem.clip, sigma, promise.sums(clients))
        event = Event("client", promise.neighbours, sensitivity, sigma, 1.0, K, gamma)
        chosen = candidate.option("plan", event, promise, clients)
    printed = option_of("Corollary 1 as printed", corollary_1(problem, v))
    return Plan(
        verdict="train" if worth else "do not train",
        reason=f"{form} is {corrected.bound:.4g}, against {compared_with} = "
        f"{problem.untrained:.4g} without training",
        promise=promise,
        units=clients,
        nu2=trainability(promise, clients, problem.dimension),
        chosen=chosen,
        options=[
            option_of("corrected bound", corrected),
            printed.model_copy(update={"v": v}),
        ],
        untrained=Prediction(squared_distance=problem.untrained),
        changes=None if worth else _changes(problem),
        public=["the constants given"],
        settings=None,
        version=version("equipoise"),
    )


def _problem(question: Question, epsilon: float) -> Problem:
    """The constants of a question that was checked to have them."""
    return Problem(
        mu=question.mu or math.nan,
        L=question.smoothness or math.nan,
        dimension=question.dimension or 0,
        promise=question.promise(epsilon),
        clients=question.clients or 0,
        clip=question.clip or math.nan,
        psi0=question.psi0,
        r0=question.r0,
        zeta=question.zeta,
    )


def _changes(problem: Problem) -> Changes:
    """The smallest epsilon, and number of clients, for which the corrected bound falls below the
    start."""

    def worth(changed: Problem) -> bool:
        best = corrected_plan(changed)
        return best.iterations >= 1 and best.bound < changed.untrained

    def with_epsilon(epsilon: float) -> Problem:
        return replace(problem, promise=replace(problem.promise, epsilon=epsilon))

    def with_clients(clients: int) -> Problem:
        psi0 = None if problem.psi0 is None else problem.psi0 / problem.clients * clients
        return replace(problem, clients=clients, psi0=psi0)

    more = smallest(lambda n: worth(with_clients(math.ceil(n))), problem.clients, whole=True)
    return Changes(
        epsilon=smallest(lambda e: worth(with_epsilon(e)), problem.promise.epsilon),
        clients=None if more is None else int(more),
    )
