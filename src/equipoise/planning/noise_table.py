"""Where nothing can be tried (networks): the exact noise of every pace, and no pretence."""

import math
from importlib.metadata import version

from equipoise.algorithms.schedule import divisors_of
from equipoise.facts import Facts
from equipoise.planning.bounds import trainability
from equipoise.planning.plan import NoiseLevel, Plan, Prediction, Question
from equipoise.privacy.gaussian import gdp_mu
from equipoise.settings import Run, Settings


def plan_noise(
    question: Question, facts: Facts, public: list[str], untrained: Prediction, epsilon: float
) -> Plan:
    promise, C = question.promise(epsilon), question.clip or 1.0
    T = question.iterations or facts.iterations
    nu2 = _nu2(question, facts, epsilon)
    levels = []
    for tau in divisors_of(T):
        run = _run(question, facts, epsilon, T, tau, C)
        sigma = run.mechanism.events(run, facts, (tau,) * (T // tau))[0].sigma
        client_sigma = promise.client_sigma(sigma, facts.clients)
        levels.append(
            NoiseLevel(local_steps=tau, rounds=T // tau, sigma=sigma, client_sigma=client_sigma)
        )
    reason = (
        "nothing was tried: which local steps are best, and whether training is worth while, only "
        f"a sweep on public data can show. nu^2 = {nu2:.3g}: if there were one release, the "
        f"averaged noise would be about {math.sqrt(nu2):.3g} times the clip; with K releases it is "
        "sqrt(K) times that in each"
    )
    if run.mechanism.words.per == "local step":
        reason += "; with noise in the gradients local steps save communication, not privacy"
    return Plan(
        verdict="inconclusive",
        reason=reason,
        promise=promise,
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


def _nu2(question: Question, facts: Facts, epsilon: float) -> float:
    """nu^2 of messages, or of full-batch gradients averaged over clients if the unit is a
    record.
    """
    promise = question.promise(epsilon)
    if question.unit == "client":
        return trainability(promise, facts.clients, facts.dimension)
    mean = sum(facts.sizes or (1,)) / facts.clients
    mu = gdp_mu(epsilon, promise.delta)
    return promise.over_clip**2 * facts.dimension / (mu**2 * facts.clients * mean**2)
