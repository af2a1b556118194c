"""What the successes of an attack prove: lower bounds of epsilon that hold with a stated
confidence.

An attack that tells two neighbouring worlds apart better than a guarantee allows refutes the
guarantee. So the least guarantee that is not refuted at level alpha is a lower bound, and exceeds
the truth in at most a share alpha of all audits, whatever the attack is.

many runs, Gaussian   a mu-GDP mechanism leaves every attack FNR >= Phi(Phi^-1(1 - FPR) - mu) (Dong,
                      Roth and Su, "Gaussian differential privacy", 2022, Definition 2.6), so that
                      FPR + FNR >= 2 Phi(-mu / 2). The world of every run is a fair coin's: wrong
                      guesses are binomial with probability (FPR + FNR) / 2, and one limit of
                      Clopper and Pearson (1934) bounds mu. (Nasr et al., "Tight auditing of
                      differentially private machine learning", 2023, whose idea this is, bound FPR
                      and FNR apart, which costs two limits.)
many runs, sampled    the same with the total variation of the composed steps in place of that of a
                      Gaussian: FPR + FNR >= 1 - TV
many runs, any        (epsilon, delta)-DP means 1 - FNR <= e^epsilon FPR + delta, and the same with
                      the worlds exchanged (Kairouz, Oh and Viswanath, "The composition theorem for
                      differential privacy", 2015, Theorem 2.1)
one run               `guesses_by_chance` and `allows_guesses`
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom

from equipoise.errors import InvalidValue
from equipoise.privacy.gaussian import epsilon_spent
from equipoise.privacy.promise import OVER_CLIP, Neighbours
from equipoise.privacy.sampled import LEAST_NOISE, sampled_bounds, total_variation

MOST_EPSILON, MOST_MU = 200.0, 40.0  # beyond what any number of runs could prove


def at_most(successes: int, trials: int, alpha: float) -> float:
    """The Clopper-Pearson limit: a probability above it gives so few successes, or fewer, with
    probability below alpha."""
    if successes >= trials:
        return 1.0
    return float(betaincinv(successes + 1, trials - successes, 1 - alpha))


# ---- many runs ----


def mu_of_errors(wrong: int, trials: int, alpha: float) -> float:
    """The least mu of Gaussian DP that allows for so few wrong guesses."""
    share = at_most(wrong, trials, alpha)
    return -2 * float(ndtri(share)) if share < 0.5 else 0.0


def epsilon_of_mu(mu: float, delta: float) -> float:
    """What mu-GDP spends at delta."""
    return epsilon_spent(1.0, 1, mu, delta) if mu else 0.0


def epsilon_of_rates(
    false_positives: int,
    negatives: int,
    false_negatives: int,
    positives: int,
    delta: float,
    alpha: float,
) -> float:
    """The least epsilon of (epsilon, delta)-DP that allows for these rates, each of which gets half
    of alpha."""
    fpr = at_most(false_positives, negatives, alpha / 2)
    fnr = at_most(false_negatives, positives, alpha / 2)
    ratios = ((1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr)
    return max(0.0, *(math.log(ratio) if ratio > 0 else 0.0 for ratio in ratios))


@lru_cache(maxsize=64)
def epsilon_of_errors_sampled(
    wrong: int,
    trials: int,
    alpha: float,
    steps: int,
    rate: float,
    neighbours: Neighbours,
    delta: float,
) -> float:
    """The least epsilon at delta, of so many steps on Poisson samples of this rate with any noise,
    that allows for so few wrong guesses: epsilon of the largest noise whose total variation is
    large enough. To 1 %, rounded down."""
    tv = 1 - 2 * at_most(wrong, trials, alpha)
    if tv <= 0:
        return 0.0

    def too_quiet(noise: float) -> bool:
        """Whether the total variation may be as large as was seen."""
        return total_variation(noise, steps, rate, neighbours) >= tv

    low = high = OVER_CLIP[neighbours] * max(1.0, rate * math.sqrt(steps))
    while not too_quiet(low):
        low /= 2
        if low < LEAST_NOISE:
            return sampled_bounds(LEAST_NOISE, steps, rate, delta, neighbours).lower
    while too_quiet(high):
        high *= 2
    while high > 1.005 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if too_quiet(middle) else (low, middle)
    return sampled_bounds(high, steps, rate, delta, neighbours).lower


# ---- one run ----


def guesses_by_chance(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """The most that the probability of so many correct guesses, or more, can be under (epsilon,
    delta)-DP, if every canary is in the data, or not, by a fair coin of its own.

    Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", 2023, Theorem 5.2:
    with W binomial (guesses, e^epsilon / (1 + e^epsilon)), v the correct guesses and m canaries,
    P(W >= v) + 2 m delta max_i P(v > W >= v - i) / i.
    """
    right = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, right))
    if not correct or not delta:
        return min(1.0, tail)
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))
    worst = float((below / np.arange(1, correct + 1)).max())
    return min(1.0, tail + 2 * canaries * delta * worst)


def epsilon_of_guesses(
    canaries: int, guesses: int, correct: int, delta: float, alpha: float
) -> float:
    """The least epsilon that allows for so many correct guesses, by that theorem."""
    return _least(
        lambda epsilon: guesses_by_chance(canaries, guesses, correct, epsilon, delta) > alpha,
        MOST_EPSILON,
    )


def allows_guesses(
    inverse: Callable[[float], float], canaries: int, guesses: int, correct: int, alpha: float
) -> bool:
    """Whether f-DP leaves open that so many guesses, or more, are correct with probability alpha.

    Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run", 2024, Algorithm
    3, for two possible answers. Let p_j be the probability of j correct guesses of k in all, and
    fbar = 1 - f. To turn over the coin of one canary turns a right guess into a wrong one; f-DP
    says how much the probability of that guess, with j - 1 others right, changes; the mean over
    canaries is, since fbar is concave, for every c

        sum_{j > c} j p_j / m <= fbar(sum_{j >= c} (k - j) p_j / m)

    Begin with the least that a tail of alpha could be, and follow these inequalities downwards: if
    they ask for more than all of the probability, there is no such tail. `inverse` is that of fbar.
    """
    right, wrong = alpha * correct / canaries, alpha * (guesses - correct) / canaries
    for c in range(correct - 1, -1, -1):
        more = max(wrong, inverse(right))
        if more == wrong:  # nothing will change any more
            break
        right, wrong = right + c / (guesses - c) * (more - wrong), more
        if right + wrong > guesses / canaries:
            return False
    return right + wrong <= guesses / canaries


def mu_of_guesses(canaries: int, guesses: int, correct: int, alpha: float) -> float:
    """The least mu of Gaussian DP that allows for so many correct guesses."""

    def allows(mu: float) -> bool:
        def inverse(x: float) -> float:
            """Of fbar(x) = Phi(Phi^-1(x) + mu)."""
            return float(ndtr(ndtri(min(x, 1.0)) - mu))

        return allows_guesses(inverse, canaries, guesses, correct, alpha)

    return _least(allows, MOST_MU)


def epsilon_of_guesses_sharply(
    canaries: int, guesses: int, correct: int, delta: float, alpha: float
) -> float:
    """The least epsilon of (epsilon, delta)-DP that allows for so many correct guesses, by the
    trade-off function of (epsilon, delta)-DP, max(0, 1 - delta - e^epsilon x, e^-epsilon (1 - delta
    - x)) (Wasserman and Zhou 2010; Kairouz et al. 2015)."""

    def allows(epsilon: float) -> bool:
        factor = math.exp(epsilon)

        def inverse(y: float) -> float:
            """The least x with fbar(x) >= y."""
            return max(0.0, (y - delta) / factor, 1 - delta - factor * (1 - y))

        return allows_guesses(inverse, canaries, guesses, correct, alpha)

    return _least(allows, MOST_EPSILON)


def _least(allows: Callable[[float], bool], most: float) -> float:
    """The least value that allows for what was seen, rounded down: larger ones allow for more."""
    if allows(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not allows(high):
        low, high = high, 2 * high
        if low >= most:
            return most
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if allows(middle) else (middle, high)
    return low


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InvalidValue(
            f"confidence={confidence} is not in (0, 1): give 0.95, say, for a bound that one audit "
            "in twenty may overstate"
        )
