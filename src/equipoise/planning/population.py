"""What a public pool says of the population that it was drawn from, and what it leaves open.

Features are drawn by a smoothed bootstrap of the pool. Labels follow a linear model with the task's
own link, whose weights are uncertain: a normal prior, its strength drawn by its evidence, and
Laplace's approximation of the posterior given the pool (MacKay 1992). A `Truth` is one draw: every
world has its own.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import DataError
from equipoise.seeds import stream
from equipoise.tasks.linear import SHARE_WRONG, Link, linear_clients
from equipoise.tasks.public import minimiser
from equipoise.tasks.task import Table

FEWEST_RECORDS = 8
STRENGTHS = np.geomspace(1e-4, 3.0, 8)  # of the prior, as l2 of the pool's mean loss
SMOOTHING = 0.5  # standard deviations of the pool's features that are added to a drawn record

Floats = NDArray[np.float64]


class Fit(NamedTuple):
    """The posterior for one strength of the prior: its mode, and the root R of its precision R R',
    in units of `noise`, the standard deviation of least squares' targets (1 for classes)."""

    mode: Tensor
    root: Tensor
    noise: float
    log_evidence: float


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
    """What the pool says, whatever the truth."""

    pool: Table
    link: Link
    norm: float
    spread: Floats
    fits: tuple[Fit, ...]
    probabilities: Floats

    def draw(self, rng: np.random.Generator) -> Truth:
        fit = self.fits[rng.choice(len(self.fits), p=self.probabilities)]
        outputs = self.pool.targets.shape[1]
        z = torch.from_numpy(rng.standard_normal((len(fit.mode), 1)))
        away = torch.linalg.solve_triangular(fit.root.mT, z, upper=True).squeeze(-1)
        noise = fit.noise
        if self.link.error_name != SHARE_WRONG:
            noise *= math.sqrt(len(self.pool.features) / rng.chisquare(len(self.pool.features)))
            away = noise * away
        teacher = (fit.mode + away).numpy().reshape(outputs, -1)
        shares = rng.dirichlet(np.ones(len(self.pool.features)))  # Rubin's Bayesian bootstrap
        return Truth(self.pool, self.link, self.spread, self.norm, shares, teacher, noise)


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
    fits = tuple(_fits(pool, link))
    evidence = np.array([fit.log_evidence for fit in fits])
    probabilities = np.exp(evidence - evidence.max())
    probabilities[probabilities < 1e-3] = 0
    return Population(
        pool, link, norm, _spread(pool.features), fits, probabilities / probabilities.sum()
    )


def _classes(pool: Table) -> int:
    return len(np.unique(pool.targets, axis=0))


def _fits(pool: Table, link: Link) -> list[Fit]:
    n, x = len(pool.features), torch.zeros(pool.features.shape[1] * pool.targets.shape[1]).double()
    fits = []
    for strength in STRENGTHS[::-1].tolist():
        clients = linear_clients([pool], link, strength, None, 0)
        x = minimiser(clients, x, 1e-5)
        root = torch.linalg.cholesky(n * clients.hessians(x)[0])
        determinants = len(x) * math.log(n * strength) / 2 - float(root.diagonal().log().sum())
        least, noise = n * float(clients.loss(x)), 1.0
        log_evidence = determinants - least
        if link.error_name != SHARE_WRONG:  # the likeliest noise for this ratio of prior to noise
            noise = math.sqrt(max(2 * least / n, 1e-12))
            log_evidence = determinants - n * math.log(noise)
        fits.append(Fit(x, root, noise, log_evidence))
    return fits


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
