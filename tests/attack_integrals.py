"""The best attacks on secret samples, by integration: made of the worst neighbours, and of numpy
and scipy alone."""

import math

import numpy as np
from scipy import stats


def worst(neighbours, rate, flip):
    """The worst pair of one step, null and alternative: (1 - q) N(0) + q N(at), as (q, at)."""
    pair = [(rate, -1.0 if neighbours == "replace-one" else 0.0), (rate, 1.0)]
    return pair[::-1] if flip else pair


def density(law, x, noise):
    rate, at = law
    return (1 - rate) * stats.norm.pdf(x, 0, noise) + rate * stats.norm.pdf(x, at, noise)


def found_by_integration(neighbours, rate, noise, steps, flip):
    """Shares of false alarms and of cases found: tails of the sum of `steps` log-likelihood ratios,
    whose density is convolved on a grid of 5e-4."""
    null, other = worst(neighbours, rate, flip)
    x = np.linspace(-1 - 12 * noise, 1 + 12 * noise, 400_001)
    loss = np.log(density(other, x, noise) / density(null, x, noise))
    cells = np.rint((loss - loss.min()) / 5e-4).astype(int)
    size = 2 ** math.ceil(math.log2(steps * (cells.max() + 2)))
    tails = []
    for law in (null, other):
        mass = np.bincount(cells, density(law, x, noise))
        transform = np.fft.rfft(mass / mass.sum(), size) ** steps
        tails.append(np.fft.irfft(transform, size)[::-1].cumsum())  # the largest losses first
    return np.maximum.accumulate(tails[0]), np.maximum.accumulate(tails[1])


def best_found(neighbours, rate, noise, steps, rates):
    """What the best attack finds at these shares of false alarms, in the worse of both orders."""
    found = np.zeros_like(rates)
    for flip in (False, True):
        curve = found_by_integration(neighbours, rate, noise, steps, flip)
        found = np.maximum(found, np.interp(rates, *curve))
    return found
