"""What a public pool says of the population that it was drawn from, and what it leaves open.

Features are drawn by a smoothed bootstrap of the pool; labels follow a linear model with the task's
own link. That model is uncertain: it is fitted to the pool with random weights on its records
(Rubin's Bayesian bootstrap), and with a regulariser drawn by how well it predicts records that were
left out. A `Truth` is one draw: every world has its own, and its own public pool.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.errors import DataError
from equipoise.seeds import stream
from equipoise.tasks.linear import SHARE_WRONG, Link, linear_clients, linear_measure
from equipoise.tasks.public import minimiser
from equipoise.tasks.task import Table

FEWEST_RECORDS = 8
STRENGTHS = np.geomspace(1e-4, 1.0, 9)  # of a regulariser
SMOOTHING = 0.5  # standard deviations of the pool's features that are added to a drawn record

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """One population that the public records leave possible.

    shares    of the pool's records among those that are drawn
    teacher   the weights [outputs, features] that labels follow
    noise     standard deviation of least squares' targets
    """

    pool: Table
    link: Link
    spread: Floats
    norm: float
    shares: Floats
    teacher: Floats
    noise: float

    def features(self, count: int, rng: np.random.Generator) -> Floats:
        """Records of the pool, moved by a part of its spread (and shrunk as much, so that the
        spread stays), no longer than a record may be; the last feature is 1."""
        pool = self.pool.features[:, :-1]
        mean = self.shares @ pool
        drawn = pool[rng.choice(len(pool), size=count, p=self.shares)] - mean
        moved = drawn + SMOOTHING * rng.standard_normal((count, len(self.spread))) @ self.spread
        rows = mean + moved / math.sqrt(1 + SMOOTHING**2)
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        rows *= np.minimum(1, self.norm / np.maximum(length, 1e-300))
        return np.hstack([rows, np.ones((count, 1))])

    def targets(self, features: Floats, rng: np.random.Generator) -> Floats:
        return drawn_targets(self.link, features @ self.teacher.T, self.noise, rng)

    def own(self, distance: float, rng: np.random.Generator) -> "Truth":
        """Another teacher, so far away in units of this one's length."""
        direction = rng.standard_normal(self.teacher.shape)
        direction *= np.linalg.norm(self.teacher) / np.linalg.norm(direction)
        return Truth(
            self.pool,
            self.link,
            self.spread,
            self.norm,
            self.shares,
            self.teacher + distance * direction,
            self.noise,
        )


@dataclass(frozen=True)
class Population:
    """What the pool says, whatever the truth: how likely each strength of the regulariser is."""

    pool: Table
    link: Link
    norm: float
    spread: Floats
    probabilities: Floats

    def draw(self, rng: np.random.Generator) -> Truth:
        strength = float(STRENGTHS[rng.choice(len(STRENGTHS), p=self.probabilities)])
        shares = rng.dirichlet(np.ones(len(self.pool.features)))
        teacher = _fit(self.pool, self.link, strength, shares)
        left = self.pool.features @ teacher.T - self.pool.targets
        noise = math.sqrt(float(shares @ np.square(left).sum(1)))
        return Truth(self.pool, self.link, self.spread, self.norm, shares, teacher, noise)


def _fit(pool: Table, link: Link, strength: float, shares: Floats | None = None) -> Floats:
    """The regularised linear model [outputs, features] of the pool, its records weighted."""
    clients = linear_clients([pool], link, strength, None, 0)
    if shares is not None:
        clients = replace(clients, weights=torch.from_numpy(shares)[None])
    start = torch.zeros(pool.features.shape[1] * pool.targets.shape[1], dtype=torch.float64)
    fitted: Floats = minimiser(clients, start, 1e-4).numpy().reshape(pool.targets.shape[1], -1)
    return fitted


def population_of(pool: Table, link: Link, norm: float) -> Population:
    """From a public pool; `norm` bounds the features of a record but for the last, which is 1."""
    if len(pool.features) < FEWEST_RECORDS:
        raise DataError(
            f"{len(pool.features)} public records are too few to stand for clients: give "
            f"{FEWEST_RECORDS} or more"
        )
    if link.error_name == SHARE_WRONG and _classes(pool) < 2:
        raise DataError(
            f"the {len(pool.features)} public records all have one label: nothing can be learnt "
            "from them; give others, or more"
        )
    evidence = -len(pool.features) * np.array([_loss_elsewhere(pool, link, s) for s in STRENGTHS])
    if link.error_name != SHARE_WRONG:  # the likeliest noise: n/2 log of the mean square
        evidence = len(pool.features) / 2 * np.log(-evidence)
        evidence = -evidence
    probabilities = np.exp(evidence - evidence.max())
    probabilities[probabilities < 1e-3] = 0
    return Population(
        pool, link, norm, _spread(pool.features), probabilities / probabilities.sum()
    )


def _loss_elsewhere(pool: Table, link: Link, strength: float) -> float:
    """Mean loss on records that were left out, five times a fifth of them."""
    folds, total = np.arange(len(pool.features)) % 5, 0.0
    for k in range(5):
        used, left_out = (pool.rows(np.flatnonzero(at)) for at in (folds != k, folds == k))
        weights = torch.from_numpy(_fit(used, link, float(strength)).ravel())
        total += float(linear_measure(left_out, link)(weights).loss) * len(left_out.features)
    return total / len(pool.features)


def _classes(pool: Table) -> int:
    return len(np.unique(pool.targets, axis=0))


def _spread(features: Floats) -> Floats:
    """A root of the covariance of the features but for the last, shrunk towards a multiple of the
    identity as Ledoit and Wolf (2004) do: S = root' root."""
    rows = features[:, :-1] - features[:, :-1].mean(0)
    n, d = rows.shape
    covariance = rows.T @ rows / n
    scale = np.trace(covariance) / d
    distance = np.square(covariance).sum() - d * scale**2
    error = (np.square(rows).sum(1) ** 2).mean() - np.square(covariance).sum()
    share = min(1.0, error / n / distance) if distance > 1e-15 * scale**2 else 1.0
    shrunk = (1 - share) * covariance + share * scale * np.eye(d)
    values, vectors = np.linalg.eigh(shrunk)
    root: Floats = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    return root


def made_up_pool(records: int, features: int, outputs: int, link: Link, norm: float, seed: int) -> Table:
    """Made-up records from public constants alone: features with a decaying spectrum, targets from
    a random linear teacher."""
    rng = stream(seed, "synthetic")
    spectrum = 1 / np.sqrt(np.arange(1, features))
    rotation, _ = np.linalg.qr(rng.standard_normal((features - 1, features - 1)))
    rows = rng.standard_normal((records, features - 1)) * spectrum @ rotation
    rows *= norm / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), norm / 0.7)
    data = np.hstack([rows, np.ones((records, 1))])
    scores = data @ rng.standard_normal((outputs, features)).T
    scores = 3 * (scores - scores.mean(0)) / np.maximum(scores.std(0), 1e-9)
    if link.error_name != SHARE_WRONG:
        scores = scores / 6
    return Table(data, drawn_targets(link, scores, 0.0, rng))


def drawn_targets(link: Link, scores: Floats, noise: float, rng: np.random.Generator) -> Floats:
    """Targets [n, outputs] by the link's own law, of scores [n, outputs]."""
    if link.error_name != SHARE_WRONG:
        moved: Floats = np.clip(scores + noise * rng.standard_normal(scores.shape), -1, 1)
        return moved
    if scores.shape[1] == 1:
        heads: Floats = (rng.random(scores.shape) < 1 / (1 + np.exp(-scores))).astype(np.float64)
        return heads
    chosen = (scores + rng.gumbel(size=scores.shape)).argmax(1)
    one_hot: Floats = np.eye(scores.shape[1])[chosen]
    return one_hot
