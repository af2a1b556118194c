"""Theorem 1 and Corollary 1 of the paper as printed. Label them so: the noise term lacks the
dimension, and psi_0 is taken for a constant (docs/paper.md)."""

import math

from equipoise.paper.lemma1 import exact_v
from equipoise.planning.bounds import Problem, Proposal


def printed_bound(problem: Problem, v: float, eta: float, p: float, T: float) -> float:
    """Theorem 1 as printed: E psi_T <= theta^T psi0 + (2 p^2 / (1 - theta)) v C^2 T ln(1/delta) /
    epsilon^2."""
    theta = max(1 - problem.mu * eta, 1 - p * p)
    noise = (
        v * problem.clip**2 * T * math.log(1 / problem.promise.delta) / problem.promise.epsilon**2
    )
    return float(theta**T * problem.stacked_start(eta, p) + 2 * p * p / (1 - theta) * noise)


def corollary_1(problem: Problem, v: float | None = None) -> Proposal:
    """Corollary 1 as printed: eta* = 1/L, p* = sqrt(mu/L), T*. Without `v`, the exact constant for
    this sensitivity.

    A T* below 1, or negative, means that the bound grows from the first step on.
    """
    if v is None:
        v = exact_v(problem.promise.epsilon, problem.promise.delta, problem.promise.over_clip)
    eta, p = 1 / problem.L, math.sqrt(problem.mu / problem.L)
    T = 1.0
    if problem.mu < problem.L:
        decay = -math.log1p(-problem.mu / problem.L)
        price = (
            2
            * v
            * problem.clip**2
            * math.log(1 / problem.promise.delta)
            / problem.promise.epsilon**2
        )
        T = math.log(problem.stacked_start(eta, p) * decay / price) / decay
    return Proposal(eta, p, T, printed_bound(problem, v, eta, p, T))
