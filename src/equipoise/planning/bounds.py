"""The corrected bound of Theorem 1, its minimiser, and the displacement law. No torch."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy import optimize

from equipoise.errors import require
from equipoise.facts import Facts, Weights
from equipoise.privacy.gaussian import gdp_mu
from equipoise.privacy.promise import Promise

if TYPE_CHECKING:
    from equipoise.settings import Run


def trainability(
    promise: Promise, clients: int, dimension: float, weights: Weights = None
) -> float:
    """nu^2 = (Delta/C)^2 d / (mu(epsilon, delta)^2 N_eff).

    It is |averaged noise|^2 / C^2 of a run with a single release. With K releases each of them has
    K times that: noise of sqrt(K) nu clips. N_eff says how averaging lessens the noise: N if trust
    is local, N (N - c) under secure aggregation with c colluders; less if clients count unequally.
    """
    over_mu = promise.over_clip / gdp_mu(promise.epsilon, promise.delta)
    return over_mu**2 * dimension / promise.averaging(clients, weights)


def trainability_of_gradients(run: "Run", facts: Facts) -> float | None:
    """The same number where noise is in the mean gradients of a client's records; None where
    stability bounds the sensitivity, and the noise is no multiple of the clip."""
    if run.mechanism.by_stability:
        return None
    events = run.mechanism.events(run, facts, (1,))
    means = [
        event.sigma / (event.rate * size)
        for event, size in zip(events, facts.sizes or (), strict=True)
    ]
    averaged = run.promise.averaged(means, facts.weights(run.weights))
    return facts.dimension * len(means) / facts.clients * (averaged / run.clip) ** 2


@dataclass(frozen=True)
class Problem:
    """What the bounds know about a problem and its budget.

    mu, L        strong convexity and smoothness of every client's loss
    psi0         |x_0 - x*|^2 + (eta^2/p^2) |h_0 - h*|^2, stacked over the N clients, as in the
    paper
    r0, zeta     |x_0 - x*| of one model; root of the mean of |grad f_i(x*)|^2. With them the
                 corrected bound is complete (psi0 hides how it depends on eta and p); with psi0
                 alone the start is taken to be psi0/N
    """

    mu: float
    L: float
    dimension: int
    promise: Promise
    clients: int
    clip: float
    psi0: float | None = None
    r0: float | None = None
    zeta: float | None = None

    def __post_init__(self) -> None:
        require(0 < self.mu < math.inf, f"mu={self.mu} is not a positive number")
        require(
            self.mu <= self.L < math.inf,
            f"mu={self.mu} with smoothness={self.L}: strong convexity cannot exceed smoothness",
        )
        require(self.dimension >= 1, f"dimension={self.dimension} is not >= 1")
        require(0 < self.clip < math.inf, f"clip={self.clip} is not a positive number")
        for name, value in (("psi0", self.psi0), ("r0", self.r0)):
            require(
                value is None or 0 < value < math.inf, f"{name}={value} is not a positive number"
            )
        require(self.zeta is None or 0 <= self.zeta < math.inf, f"zeta={self.zeta} is not >= 0")
        require(
            (self.r0 is None) == (self.zeta is None),
            "r0 and zeta belong together: give both, or psi0 alone",
        )
        require(
            self.psi0 is not None or self.r0 is not None,
            "how far is the start from the optimum? give psi0, or r0 and zeta",
        )

    @cached_property
    def price(self) -> float:
        """d Delta^2 / (mu(epsilon, delta)^2 N_eff): what every release of a run adds to |averaged
        noise|^2 of each release."""
        return trainability(self.promise, self.clients, self.dimension) * self.clip**2

    @property
    def untrained(self) -> float:
        """What the bounds must beat: R0^2, or psi0/N."""
        return self.r0**2 if self.r0 is not None else float(self.psi0 or 0) / self.clients

    def stacked_start(self, eta: float, p: float) -> float:
        """psi0 as the paper needs it, from r0 and zeta where it was not given."""
        return self.psi0 if self.psi0 is not None else self.clients * self.start(eta, p)

    def start(self, eta: float, p: float) -> float:
        """(1/N) psi_0 = R0^2 + eta^2 zeta^2 / p^2, for h_0 = 0."""
        return self.untrained + (eta * (self.zeta or 0) / p) ** 2


@dataclass(frozen=True)
class Proposal:
    """Parameters that minimise a bound, un-rounded, and the bound there."""

    eta: float
    p: float
    iterations: float
    bound: float

    @property
    def local_steps(self) -> float:
        return 1 / self.p

    @property
    def rounds(self) -> float:
        return self.p * self.iterations


def corrected_bound(problem: Problem, eta: float, p: float, T: float) -> float:
    """(1/N) E psi_T <= rho^T (R0^2 + eta^2 zeta^2/p^2) + 2 p d s^2 (1 - rho^T) / (1 - rho), rho =
    max((1 - eta mu)^2, 1 - p^2).

    s^2 = Delta^2 pT / (mu(epsilon, delta)^2 N_eff) is the variance per coordinate of the averaged
    noise. The left side is at least the expected squared distance of the communicated model from
    x*. It holds without clipping, for eta <= 2/(L + mu), full gradients and the coin. Against the
    printed bound: the dimension, the clients and the trust are in, and the noise is exact.
    """
    rho = max((1 - eta * problem.mu) ** 2, 1 - p * p)
    decayed = rho**T
    return float(
        decayed * problem.start(eta, p) + 2 * p * p * T * problem.price * (1 - decayed) / (1 - rho)
    )


def corrected_closed_form(problem: Problem) -> Proposal:
    """Corollary 1 put right: eta = 1/L, p = sqrt(mu/L), T* = ln((psi0/N) decay / (2 price)) /
    decay, decay = ln(1/(1 - mu/L)).

    As in the paper, noise is priced as in an endless run. The bound told is the corrected one; T* =
    0 is "do not train".
    """
    eta, p = 1 / problem.L, math.sqrt(problem.mu / problem.L)
    T = 1.0
    if problem.mu < problem.L:
        decay = -math.log1p(-problem.mu / problem.L)
        T = max(0.0, math.log(problem.start(eta, p) * decay / (2 * problem.price)) / decay)
    return Proposal(eta, p, T, corrected_bound(problem, eta, p, T) if T else problem.untrained)


def best_p(problem: Problem, eta: float, T: float) -> float:
    """The p that minimises the corrected bound for given eta and T, in closed form.

    Above p_c = sqrt(1 - (1 - eta mu)^2) the bound is A/p^2 + B p^2 + const, least at (A/B)^(1/4);
    below p_c it is never better where training is worth while.
    """
    rho = (1 - eta * problem.mu) ** 2
    A = rho**T * (eta * (problem.zeta or 0)) ** 2
    B = 2 * T * problem.price * (1 - rho**T) / (1 - rho)
    return min(1.0, max(math.sqrt(1 - rho), math.sqrt(math.sqrt(A / B))))


def corrected_plan(problem: Problem) -> Proposal:
    """The least corrected bound over eta, p and T, T = 0 (not to train) included; with psi0 alone,
    the closed form."""
    if problem.r0 is None:
        return corrected_closed_form(problem)

    def bound(eta: float, log_T: float) -> float:
        return corrected_bound(problem, eta, best_p(problem, eta, math.exp(log_T)), math.exp(log_T))

    best = Proposal(1 / problem.L, 1.0, 0.0, problem.untrained)
    logs = np.linspace(0, math.log(1e3 * problem.L / problem.mu), 60).tolist()
    for eta in (2 / (problem.L + problem.mu) * np.geomspace(1 / 64, 1, 25)).tolist():
        values = [bound(eta, log_T) for log_T in logs]
        at = values.index(min(values))
        around = logs[max(at - 1, 0)], logs[min(at + 1, len(logs) - 1)]
        least = optimize.minimize_scalar(
            lambda log_T, eta=eta: bound(eta, log_T), bounds=around, method="bounded"
        )
        if least.fun < best.bound:
            T = math.exp(least.x)
            best = Proposal(eta, best_p(problem, eta, T), T, float(least.fun))
    return best


@dataclass(frozen=True)
class Displacement:
    """How far a run should move when nearly every message is clipped, and what that gains.

    Each round then moves x by C u, u the mean of the clients' unit directions, plus noise whose
    size grows with C and with the square root of the number K of rounds. To second order, with D =
    K C,

        f(x_K) = f_0 - D <-g_0, u> + (D^2/2) (u'Hu + (Delta/C)^2 tr(H) / (mu(epsilon, delta)^2
        N_eff)),

    so only the product D matters: K* = D*/C, and at a fixed number T of iterations tau* = T C / D*,
    linear in C.
    """

    distance: float
    gain: float

    def rounds(self, clip: float) -> int:
        return max(1, round(self.distance / clip))

    def gamma(self, clip: float) -> float:
        """The server step that keeps a single round from overshooting."""
        return min(1.0, self.distance / (self.rounds(clip) * clip))


def displacement_law(
    slope: float, curvature: float, trace: float, promise: Promise, clients: int
) -> Displacement:
    """D* from <-g_0, u>, u'Hu and tr(H)."""
    distance = max(0.0, slope / (curvature + trainability(promise, clients, trace)))
    return Displacement(distance, slope * distance / 2)
