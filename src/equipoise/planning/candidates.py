"""What a plan is, and how it is told: the same few words for every planner. No torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from equipoise.planning.closed_forms import Proposal
from equipoise.privacy.gaussian import noise_sigma
from equipoise.privacy.promise import Budget, Guarantee

if TYPE_CHECKING:
    from equipoise.tasks.task import Task


@dataclass(frozen=True)
class Candidate:
    """A plan: K rounds of tau local steps, step size, clip, server step; and what it is expected to
    leave of the loss."""

    algorithm: str
    eta: float
    local_steps: int
    rounds: int
    clip_norm: float
    gamma: float
    noise_in: str = "message"
    excess: float = math.nan
    standard_error: float = math.nan


def describe(candidate: Candidate, budget: Budget, guarantee: Guarantee) -> dict[str, Any]:
    sigma = noise_sigma(
        budget.epsilon, budget.delta, candidate.rounds, guarantee.sensitivity(candidate.clip_norm)
    )
    return describe_with(candidate, sigma, guarantee)


def describe_with(candidate: Candidate, sigma: float, guarantee: Guarantee) -> dict[str, Any]:
    return {
        "algorithm": candidate.algorithm,
        "eta": candidate.eta,
        "local_steps": candidate.local_steps,
        "p": 1 / candidate.local_steps,
        "iterations": candidate.local_steps * candidate.rounds,
        "rounds": candidate.rounds,
        "clip_norm": candidate.clip_norm,
        "gamma": candidate.gamma,
        "sigma": sigma,
        "client_sigma": guarantee.client_sigma(sigma),
    }


def describe_proposal(proposal: Proposal) -> dict[str, Any]:
    return {
        "eta": proposal.eta,
        "p": proposal.p,
        "local_steps": proposal.local_steps,
        "iterations": proposal.iterations,
        "rounds": proposal.rounds,
        "bound": proposal.bound,
    }


def untrained_error(task: "Task") -> float | None:
    if task.measure is None:
        return None
    start = float(task.measure(task.x0).error)
    return start if task.constant_error is None else min(start, task.constant_error)


def smallest(enough: Callable[[float], bool], start: float, whole: bool = False) -> float | None:
    """About the smallest value from `start` on that is enough, to two per cent; None if a million
    times the start is not."""
    low = high = float(start)
    while not enough(high):
        low, high = high, 2 * high
        if high > 1e6 * start:
            return None
    while high / low > 1.02 and not (whole and math.ceil(high) - math.ceil(low) <= 1):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return math.ceil(high) if whole else float(f"{high:.3g}")
