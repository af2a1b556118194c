"""Where nothing can be tried (networks): the exact noise of every pace, and no pretence."""

import math
from importlib.metadata import version

from equipoise.algorithms.schedule import divisors_of
from equipoise.facts import Facts
from equipoise.planning.bounds import trainability, trainability_of_gradients
from equipoise.planning.plan import NoiseLevel, Plan, Prediction, Question
from equipoise.privacy.promise import Promise
from equipoise.settings import Run, Settings


def plan_noise(
    question: Question, facts: Facts, public: list[str], untrained: Prediction, epsilon: float
) -> Plan:
    promise, C = question.promise(epsilon), question.clip or 1.0
    T = question.iterations or facts.iterations
    levels = []
    for tau in divisors_of(T):
        run = _run(question, facts, epsilon, T, tau, C)
        events = run.mechanism.events(run, facts, (tau,) * (T // tau))
        sigma, sampled = max(e.sigma for e in events), any(e.rate < 1 for e in events)
        client_sigma = promise.client_sigma(sigma, facts.clients, events[0].lattice)
        levels.append(
            NoiseLevel(local_steps=tau, rounds=T // tau, sigma=sigma, client_sigma=client_sigma)
        )
    nu2 = _nu2(promise, facts, run)
    reason = (
        "nothing was tried, since there are too few public records: with a pool (--public-records "
        "n, or pool in a task file) the planner would rehearse which local steps are best, and "
        f"whether training is worth while{_in_words(nu2, sampled)}"
    )
    if run.mechanism.paid_per == "local step":
        reason += "; with noise in the gradients local steps save communication, not privacy"
    return Plan(
        verdict="inconclusive",
        reason=reason,
        promise=promise,
        units=facts.units(promise.unit),
        nu2=nu2,
        chosen=None,
        options=[],
        untrained=untrained,
        noise=levels,
        public=public,
        settings=None,
        version=version("equipoise"),
    )


def _run(question: Question, facts: Facts, epsilon: float, T: int, tau: int, C: float) -> Run:
    shared = question.passed_on(None)
    settings = Settings.of(
        **{**shared, "task": facts.task, "epsilon": epsilon, "clip": C},
        iterations=T,
        local_steps=tau,
        noise_in=question.noise_in,
    )
    return settings.resolve(facts)


def _nu2(promise: Promise, facts: Facts, run: Run) -> float | None:
    if promise.unit == "client":
        weights = facts.weights(run.weights)
        return trainability(promise, facts.clients, facts.dimension, weights)
    return trainability_of_gradients(run, facts)


def _in_words(nu2: float | None, sampled: bool) -> str:
    if nu2 is None:
        return ""
    more = "the noise of several is in the table"
    if not sampled:
        more = "with K releases it is sqrt(K) times that in each"
    return (
        f". nu^2 = {nu2:.3g}: if there were one release, the averaged noise would be about "
        f"{math.sqrt(nu2):.3g} times the clip; {more}"
    )
