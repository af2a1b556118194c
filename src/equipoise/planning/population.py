"""What a public pool says of the population that it was drawn from, and what it leaves open.

A `Truth` is one population that may be: records near those of the pool (a smoothed bootstrap with
random weights, after Rubin), whose labels are in part those of their neighbours in the pool and in
part drawn from a linear model of the pool. How much of either, how sharp the model is and how
strongly it is regularised is not known, and differs from truth to truth. So a truth may be easier
or harder than the real one; `Population.draw` takes those in which a pool of the same size teaches
about as much as the real one does, by its error on records that were left out.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import DataError
from equipoise.seeds import stream
from equipoise.tasks.linear import SHARE_WRONG, Link, linear_clients, linear_measure
from equipoise.tasks.public import minimiser
from equipoise.tasks.task import Table

FEWEST_RECORDS = 8
STRENGTHS = np.geomspace(1e-4, 1.0, 9)  # of a regulariser
SMOOTHING = 0.7  # standard deviations of the pool's features that are added to a drawn record
SHARPEST = 3.0  # times as sharp, or as blunt, as the fitted model a truth may be
FOLDS = 5
JUDGED = 1000  # records on which a model is judged in a truth

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """One population that the public records leave possible.

    shares    of the pool's records among those that are drawn
    teacher   the weights [outputs, features] that labels follow
    kept      the share of labels that are a neighbour's in the pool instead
    noise     standard deviation of the targets of least squares
    public    what a pool drawn from it taught
    """

    population: "Population"
    shares: Floats
    teacher: Floats
    kept: float
    noise: float
    public: Tensor | None = None

    def records(self, count: int, rng: np.random.Generator) -> Table:
        """Records of the pool, moved by a part of the spread around their class (and shrunk as
        much, so that the spread stays), no longer than a record may be; the last feature is 1."""
        people = self.population
        pool = people.pool.features[:, :-1]
        chosen = rng.choice(len(pool), size=count, p=self.shares)
        centres = people.centres[people.classes[chosen]]
        steps = SMOOTHING * rng.standard_normal((count, pool.shape[1])) @ people.spread
        rows = centres + (pool[chosen] - centres + steps) / math.sqrt(1 + SMOOTHING**2)
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        rows *= np.minimum(1, people.norm / np.maximum(length, 1e-300))
        features = np.hstack([rows, np.ones((count, 1))])
        labels = self.targets(features, rng)
        own = rng.random((count, 1)) < self.kept
        return Table(features, np.where(own, people.pool.targets[chosen], labels))

    def targets(self, features: Floats, rng: np.random.Generator) -> Floats:
        """By the linear model alone."""
        return drawn_targets(self.population.link, features @ self.teacher.T, self.noise, rng)

    def own(self, distance: float, rng: np.random.Generator) -> "Truth":
        """A linear model so far from this one, in units of its length."""
        direction = rng.standard_normal(self.teacher.shape)
        direction *= np.linalg.norm(self.teacher) / np.linalg.norm(direction)
        return replace(self, teacher=self.teacher + distance * direction, kept=0.0)


@dataclass(frozen=True)
class Population:
    """What the pool says, whatever the truth; `norm` bounds the features of a record but for the
    last, which is 1, and l2 is the regulariser of the public model."""

    pool: Table
    link: Link
    norm: float
    l2: float

    @property
    def labelled(self) -> bool:
        return self.link.error_name == SHARE_WRONG

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """Of every record, numbered from 0; all are of one class where the targets are numbers."""
        targets = self.pool.targets
        if not self.labelled:
            return np.zeros(len(targets), dtype=np.int64)
        return np.unique(targets, axis=0, return_inverse=True)[1].reshape(-1)

    @cached_property
    def centres(self) -> Floats:
        rows = self.pool.features[:, :-1]
        return np.stack([rows[self.classes == k].mean(0) for k in range(self.classes.max() + 1)])

    @cached_property
    def spread(self) -> Floats:
        """Around the centres of the classes."""
        return spread_of(self.pool.features[:, :-1] - self.centres[self.classes])

    @cached_property
    def probabilities(self) -> Floats:
        """Of the strengths of a regulariser: by the likelihood of records that were left out."""
        n, losses = len(self.pool.features), np.array([self._elsewhere(s)[1] for s in STRENGTHS])
        evidence = -n * losses if self.labelled else -n / 2 * np.log(losses)
        probabilities = np.exp(evidence - evidence.max())
        probabilities[probabilities < 1e-3] = 0
        found: Floats = probabilities / probabilities.sum()
        return found

    @cached_property
    def noise(self) -> float:
        """Of the targets of least squares: what the likeliest fit leaves, over the degrees of
        freedom that are left."""
        n, best = len(self.pool.features), float(STRENGTHS[self.probabilities.argmax()])
        left = self.pool.features @ _fit(self.pool, self.link, best).T - self.pool.targets
        values = np.linalg.eigvalsh(self.pool.features.T @ self.pool.features / n)
        used = float((values / (values + best)).sum())
        return math.sqrt(float(np.square(left).sum()) / max(n - used, 1.0))

    def _elsewhere(self, strength: float) -> tuple[float, float]:
        """Mean error and loss on records that were left out, a fifth of them five times."""
        folds = np.arange(len(self.pool.features)) % FOLDS
        errors, losses = [], []
        for k in range(FOLDS):
            used, left_out = (self.pool.rows(at) for at in (folds != k, folds == k))
            weights = torch.from_numpy(_fit(used, self.link, float(strength)).ravel())
            measured = linear_measure(left_out, self.link)(weights)
            errors.append(float(measured.error) ** (1 if self.labelled else 2))
            losses.append(float(measured.loss))
        return float(np.mean(errors)), float(np.mean(losses))

    def draw(self, count: int, rng: np.random.Generator, spare: int) -> list[Truth]:
        """Truths in which a public pool teaches about as much as the real one: the error of the
        real one is known to a binomial's precision (a chi-square's for least squares), so as many
        errors are drawn, and for each the truth that is nearest, among `spare` times as many."""
        n, (error, _) = len(self.pool.features), self._elsewhere(self.l2)
        places = (rng.permutation(count) + rng.random(count)) / count
        if self.labelled:
            wanted = _beta_quantiles(n * error + 0.5, n * (1 - error) + 0.5, places)
        else:
            wanted = np.sqrt(n * error / _chi_square_quantiles(n, places))
        drawn = [self._truth(rng) for _ in range(spare * count)]
        reached = [self._judged(truth, rng) for truth in drawn]
        chosen = []
        for each in wanted:
            nearest = min(range(len(drawn)), key=lambda i: abs(reached[i] - each))
            chosen.append(drawn[nearest])
            reached[nearest] = math.inf
        return chosen

    def _truth(self, rng: np.random.Generator) -> Truth:
        strength = float(STRENGTHS[rng.choice(len(STRENGTHS), p=self.probabilities)])
        shares = rng.dirichlet(np.ones(len(self.pool.features)))
        teacher = _fit(self.pool, self.link, strength, shares)
        sharper = SHARPEST ** rng.uniform(-1, 1)
        if self.labelled:
            truth = Truth(self, shares, sharper * teacher, rng.random(), 0.0)
        else:
            truth = Truth(self, shares, teacher, 0.0, self.noise / math.sqrt(sharper))
        pool = truth.records(len(self.pool.features), rng)
        taught = torch.from_numpy(_fit(pool, self.link, self.l2).ravel())
        return replace(truth, public=taught)

    def _judged(self, truth: Truth, rng: np.random.Generator) -> float:
        assert truth.public is not None
        records = truth.records(JUDGED, rng)
        return float(linear_measure(records, self.link)(truth.public).error)


def population_of(pool: Table, link: Link, norm: float, l2: float) -> Population:
    if len(pool.features) < FEWEST_RECORDS:
        raise DataError(
            f"{len(pool.features)} public records are too few to stand for clients: give "
            f"{FEWEST_RECORDS} or more"
        )
    population = Population(pool, link, norm, l2)
    if population.labelled and population.classes.max() == 0:
        raise DataError(
            f"the {len(pool.features)} public records all have one label: nothing can be learnt "
            "from them; give others, or more"
        )
    return population


def _beta_quantiles(a: float, b: float, places: Floats) -> Floats:
    from scipy.special import betaincinv

    found: Floats = betaincinv(a, b, places)
    return found


def _chi_square_quantiles(n: int, places: Floats) -> Floats:
    from scipy.special import gammaincinv

    found: Floats = 2 * gammaincinv(n / 2, places)
    return found


def _fit(pool: Table, link: Link, strength: float, shares: Floats | None = None) -> Floats:
    """The regularised linear model [outputs, features] of the pool, its records weighted."""
    clients = linear_clients([pool], link, strength, None, 0)
    if shares is not None:
        clients = replace(clients, weights=torch.from_numpy(shares)[None])
    start = torch.zeros(pool.features.shape[1] * pool.targets.shape[1], dtype=torch.float64)
    fitted: Floats = minimiser(clients, start, 1e-4).numpy().reshape(pool.targets.shape[1], -1)
    return fitted


def spread_of(rows: Floats) -> Floats:
    """A root of the covariance of rows with mean zero, shrunk towards a multiple of the identity
    as Ledoit and Wolf (2004) do: S = root' root."""
    n, d = rows.shape
    covariance = rows.T @ rows / n
    scale = np.trace(covariance) / d
    distance = np.square(covariance).sum() - d * scale**2
    error = (np.square(rows).sum(1) ** 2).mean() - np.square(covariance).sum()
    share = min(1.0, error / n / distance) if distance > 1e-15 * scale**2 else 1.0
    values, vectors = np.linalg.eigh((1 - share) * covariance + share * scale * np.eye(d))
    root: Floats = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    return root


def made_up_pool(
    records: int, features: int, outputs: int, link: Link, norm: float, seed: int
) -> Table:
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
