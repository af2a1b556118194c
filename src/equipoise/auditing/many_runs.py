"""An audit by many runs of a small case, each in one of two worlds that a fair coin chooses."""

import secrets
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.auditing.adversary import Floats, Seen, play
from equipoise.auditing.bounds import (
    epsilon_of_errors_sampled,
    epsilon_of_mu,
    epsilon_of_rates,
    mu_of_errors,
)
from equipoise.auditing.worst_case import TARGET, SmallCase
from equipoise.privacy.noise import NoiseSource, RepeatableNoise, SecretNoise
from equipoise.seeds import digest, stream

RUNS = 100_000
LEAST_RUNS = 400
AT_ONCE = 4096  # runs side by side
RARE = 0.01  # the share of alpha of the bound for any mechanism: Gaussian noise leaves it loose


class Evidence(NamedTuple):
    """What the attack achieved on the runs that count.

    case       what was run
    statistic  how the adversary weighed what it saw
    wrong      guesses of `tested` that were wrong, with the threshold of a balanced attack
    rates      false positives, negatives, false negatives, positives, with the threshold that
               proves most of any mechanism
    """

    case: SmallCase
    statistic: str
    wrong: int
    tested: int
    rates: tuple[int, int, int, int]

    def mu(self, alpha: float) -> float | None:
        """The lower bound of mu; None where records are sampled."""
        if self.case.account.events[TARGET].rate < 1:
            return None
        return mu_of_errors(self.wrong, self.tested, (1 - RARE) * alpha)

    def bounds(self, alpha: float) -> dict[str, float]:
        """Lower bounds of epsilon, which hold together."""
        event, run = self.case.account.events[TARGET], self.case.run
        of_rates = epsilon_of_rates(*self.rates, run.delta, RARE * alpha)
        mu = self.mu(alpha)
        if mu is None:
            steps = event.count, event.rate, run.neighbours, run.delta
            name = "Gaussian noise on Poisson samples"
            bound = epsilon_of_errors_sampled(self.wrong, self.tested, (1 - RARE) * alpha, *steps)
        else:
            name, bound = "Gaussian DP", epsilon_of_mu(mu, run.delta)
        return {name: bound, "any (epsilon, delta)-DP": of_rates}


def coins_of(seed: int | None) -> np.random.Generator:
    """Public coins of an audit: nothing that it protects."""
    return stream(secrets.randbits(63) if seed is None else seed, "audit")


def noise_of_audit(seed: int | None) -> NoiseSource:
    """That of real runs; under a key that follows from a seed, if an audit is to be repeated."""
    if seed is None:
        return SecretNoise()
    noise = RepeatableNoise()
    noise.begin(digest(32, seed, "noise of an audit"))
    noise.name = f"AES-256-CTR under a key that follows from seed {seed}"
    return noise


def many_runs(case: SmallCase, runs: int) -> Evidence:
    """An eighth of the runs teaches the adversary how to weigh what it sees, another eighth which
    way of weighing is best and where the thresholds lie, and the rest counts."""
    seed = case.run.simulate_noise_seed
    coins, noise = coins_of(seed), noise_of_audit(seed)
    world = coins.integers(0, 2, runs).astype(bool)
    seen = _all_seen(case, world, noise)
    first, second = runs // 8, runs // 4
    learn, choose, test = slice(first), slice(first, second), slice(second, None)
    ways = (_score(name, weigh, seen, world, learn, choose) for name, weigh in _WAYS.items())
    _, statistic, score = min(ways, key=lambda way: way[0])
    threshold, _ = balanced(score[choose], world[choose])
    wrong = int(np.sum((score[test] > threshold) != world[test]))
    candidates = np.quantile(score[choose], _shares(first))
    rare = max(
        candidates,
        key=lambda at: epsilon_of_rates(
            *_rates(score[choose], world[choose], at), case.run.delta, 0.01
        ),
    )
    return Evidence(case, statistic, wrong, runs - second, _rates(score[test], world[test], rare))


def _all_seen(case: SmallCase, world: NDArray[np.bool_], noise: NoiseSource) -> Seen:
    parts, where = [], []
    for side in (0, 1):
        index = np.flatnonzero(world == bool(side))
        for start in range(0, len(index), AT_ONCE):
            some = index[start : start + AT_ONCE]
            parts.append(play(case, side, len(some), noise))
            where.append(some)
    return Seen.joined(parts).rows(np.argsort(np.concatenate(where)))


# ---- how the adversary weighs what it sees ----

Weigh = Callable[[Seen, NDArray[np.bool_], slice], Floats]


def _by_likelihood(seen: Seen, world: NDArray[np.bool_], learn: slice) -> Floats:
    return seen.ratio


def _fisher(
    look: Callable[[Seen], Floats], seen: Seen, world: NDArray[np.bool_], learn: slice
) -> Floats:
    """Fisher's linear discriminant of some features, learnt from some of the runs: it finds
    coordinates and releases with less noise, and noise that cancels."""
    features = look(seen)
    known, truth = features[learn], world[learn]
    ones, zeros = known[truth], known[~truth]
    spread = (np.cov(ones.T, ddof=0) + np.cov(zeros.T, ddof=0)).reshape(len(known.T), -1) / 2
    spread += 1e-12 * np.trace(spread) * np.eye(len(spread)) + 1e-300 * np.eye(len(spread))
    weights = np.linalg.solve(spread, ones.mean(0) - zeros.mean(0))
    return features @ weights


_WAYS: dict[str, Weigh] = {
    "likelihood ratio": _by_likelihood,
    "Fisher's discriminant of coordinates": partial(_fisher, lambda seen: seen.coordinates),
    "Fisher's discriminant of releases": partial(_fisher, lambda seen: seen.releases),
    "Fisher's discriminant with another client's noise": partial(
        _fisher, lambda seen: np.column_stack([seen.ratio, seen.beside])
    ),
}


def _score(
    name: str, weigh: Weigh, seen: Seen, world: NDArray[np.bool_], learn: slice, choose: slice
) -> tuple[float, str, Floats]:
    """How often it errs, its name, and what it makes of every run."""
    score = np.nan_to_num(weigh(seen, world, learn))
    return balanced(score[choose], world[choose])[1], name, score


def balanced(score: Floats, world: NDArray[np.bool_]) -> tuple[float, float]:
    """The threshold above which "world 1" is guessed that errs least, and the share of errors."""
    order = np.argsort(score)
    truth = world[order]
    wrong = np.concatenate([[0], np.cumsum(truth)]) + np.concatenate(
        [np.cumsum(~truth[::-1])[::-1], [0]]
    )
    at = int(np.argmin(wrong))
    ends = score[order[max(at - 1, 0)]], score[order[min(at, len(order) - 1)]]
    return float(np.mean(ends)), float(wrong[at]) / len(order)


def _shares(runs: int) -> Floats:
    """Of runs below a threshold that is tried: all over, and closer at the ends."""
    ends = np.geomspace(1 / runs, 0.01, 16)
    return np.concatenate([ends, np.linspace(0.02, 0.98, 49), 1 - ends])


def _rates(score: Floats, world: NDArray[np.bool_], threshold: float) -> tuple[int, int, int, int]:
    guess = score > threshold
    false_positives, false_negatives = np.sum(guess & ~world), np.sum(~guess & world)
    return int(false_positives), int(np.sum(~world)), int(false_negatives), int(np.sum(world))
