"""What a public pool says of the population that it was drawn from, and what it leaves open.

A `Truth` is one population that may be: records near those of the pool (a smoothed bootstrap with
random weights, after Rubin), whose labels are in part those of their neighbours in the pool and in
part drawn from a linear model of the pool. How much of either, how sharp the model is and how
strongly it is regularised is not known, and differs from truth to truth. So a truth may be easier
or harder than the real one; `Population.draw` takes those in which a pool of the same size teaches
about as much as the real one does: by its error on the public test records, where there are any,
else on records of the pool that were left out.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import DataError
from equipoise.seeds import stream
from equipoise.tasks.linear import SHARE_WRONG, Link, linear_clients
from equipoise.tasks.public import rough_minimiser
from equipoise.tasks.task import Table

FEWEST_RECORDS = 8
STRENGTHS = np.geomspace(1e-4, 1.0, 9)  # of a regulariser
SMOOTHING = 0.7  # standard deviations of the pool's features that are added to a drawn record
WIDEST = 2.5  # times as far apart as in the pool records of a class may lie
SHARPEST = 3.0  # times as sharp, or as blunt, as the fitted model a truth may be
FOLDS = 5
BLUR = 0.03  # of an error, or a loss: what is nearer is as near
JUDGED = 1000  # records on which a model is judged in a truth

Floats = NDArray[np.float64]


class Seen(NamedTuple):
    """Error (of least squares: mean squared error) and loss of a model on records that it was not
    made of, and the standard errors of both."""

    error: float
    loss: float
    error_se: float
    loss_se: float

    def distance(self, other: "Seen") -> float:
        """In standard errors, of which none is smaller than what matters."""
        error = (self.error - other.error) / max(self.error_se, BLUR * self.error)
        loss = (self.loss - other.loss) / max(self.loss_se, BLUR * self.loss)
        return math.hypot(error, loss)

    def again(self, rng: np.random.Generator) -> "Seen":
        """What may be true, given what was seen."""
        error = self.error + self.error_se * rng.standard_normal()
        loss = self.loss + self.loss_se * rng.standard_normal()
        return self._replace(error=max(error, 0.0), loss=max(loss, 0.0))


def seen_of(weights: Tensor, records: Table, link: Link) -> Seen:
    """What the model [outputs, features], flattened, reaches on these records."""
    return _seen(*_of_records(weights, records, link), link)


def _of_records(weights: Tensor, records: Table, link: Link) -> tuple[Tensor, Tensor]:
    """Error and loss of every record."""
    features, targets = torch.from_numpy(records.features), torch.from_numpy(records.targets)
    outputs = features @ weights.reshape(targets.shape[1], -1).T
    losses = link.loss(outputs, targets)
    if link.error_name == SHARE_WRONG:
        alone = torch.ones(1, dtype=torch.float64)  # every record by itself
        errors = link.error(outputs[:, None], targets[:, None], alone)
    else:
        errors = (outputs - targets).square().sum(-1)
    return errors, losses


def _seen(errors: Tensor, losses: Tensor, link: Link) -> Seen:
    n = len(losses)
    # one more wrong and one more right keep an error of zero from being certain; of one record
    # alone the spread is as large as what it shows
    least = 1 / n if link.error_name == SHARE_WRONG else 0.0
    spreads = [
        float(values.var(correction=0)) + float(values.mean()) ** 2 / n
        for values in (errors, losses)
    ]
    error_se, loss_se = math.sqrt(max(spreads[0], least) / n), math.sqrt(spreads[1] / n)
    return Seen(float(errors.mean()), float(losses.mean()), error_se, loss_se)


@dataclass(frozen=True)
class Truth:
    """One population that the public records leave possible.

    shares    of the pool's records among those that are drawn
    teacher   the weights [outputs, features] that labels follow
    kept      the share of labels that are a neighbour's in the pool instead
    noise     standard deviation of the targets of least squares
    wider     times as far as in the pool do records lie from the centre of their class
    apart     how far clients' own teachers lie from the common one, in its length; a record of no
              client in particular is of some client
    pool      a public pool that was drawn from it
    """

    population: "Population"
    shares: Floats
    teacher: Floats
    kept: float
    noise: float
    wider: float = 1.0
    apart: float = 0.0
    pool: Table | None = None

    def taught(self) -> Tensor:
        """What the public pool teaches."""
        assert self.pool is not None
        people = self.population
        return torch.from_numpy(_fit(self.pool, people.link, people.public_l2).ravel())

    def records(self, count: int, rng: np.random.Generator) -> Table:
        """Records of the pool, moved by a part of the spread around their class (and shrunk as
        much, so that the spread stays, or is `wider`), no longer than a record may be; the last
        feature is 1."""
        people = self.population
        pool = people.pool.features[:, :-1]
        chosen = rng.choice(len(pool), size=count, p=self.shares)
        centres = people.centres[people.classes[chosen]]
        steps = SMOOTHING * rng.standard_normal((count, pool.shape[1])) @ people.spread
        away = (pool[chosen] - centres + steps) / math.sqrt(1 + SMOOTHING**2)
        rows = centres + self.wider * away
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        rows *= np.minimum(1, people.norm / np.maximum(length, 1e-300))
        features = np.hstack([rows, np.ones((count, 1))])
        labels = self.targets(features, rng)
        own = rng.random((count, 1)) < self.kept
        return Table(features, np.where(own, people.pool.targets[chosen], labels))

    def targets(self, features: Floats, rng: np.random.Generator) -> Floats:
        """By the linear model alone, or every record by the model of a client of its own."""
        scores = features @ self.teacher.T
        if self.apart:
            moved = rng.standard_normal((len(features), *self.teacher.shape))
            scores = scores + self._step(moved) * (moved @ features[..., None])[..., 0]
        return drawn_targets(self.population.link, scores, self.noise, rng)

    def own(self, rng: np.random.Generator) -> "Truth":
        """The truth of one client."""
        direction = rng.standard_normal(self.teacher.shape)
        moved = self.teacher + self._step(direction[None])[0] * direction
        return replace(self, teacher=moved, apart=0.0)

    def _step(self, directions: Floats) -> Floats:
        """Makes directions [n, outputs, features] as long as own teachers are apart: [n, 1]."""
        lengths: Floats = np.linalg.norm(directions, axis=(1, 2))[:, None]
        return self.apart * np.linalg.norm(self.teacher) / lengths


@dataclass(frozen=True)
class Population:
    """What the pool says, whatever the truth; `norm` bounds the features of a record but for the
    last, which is 1. `l2` is the regulariser of the public model, where it is given."""

    pool: Table
    link: Link
    norm: float
    l2: float | None

    @property
    def public_l2(self) -> float:
        """The regulariser of the public model: the likeliest."""
        return self.l2 or float(STRENGTHS[self.probabilities.argmax()])

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
        n, losses = (
            len(self.pool.features),
            np.array([self._elsewhere(float(s)) for s in STRENGTHS]),
        )
        evidence = -n * losses if self.labelled else -n / 2 * np.log(losses)
        probabilities = np.exp(evidence - evidence.max())
        probabilities[probabilities < 1e-3] = 0
        normalised: Floats = probabilities / probabilities.sum()
        return normalised

    @cached_property
    def noise(self) -> float:
        """Of the targets of least squares: what the likeliest fit leaves, over the degrees of
        freedom that are left."""
        n, best = len(self.pool.features), float(STRENGTHS[self.probabilities.argmax()])
        left = self.pool.features @ _fit(self.pool, self.link, best).T - self.pool.targets
        values = np.linalg.eigvalsh(self.pool.features.T @ self.pool.features / n)
        used = float((values / (values + best)).sum())
        return math.sqrt(float(np.square(left).sum()) / max(n - used, 1.0))

    def _elsewhere(self, strength: float) -> float:
        """Mean loss on records that were left out, a fifth of them five times."""
        folds, losses = np.arange(len(self.pool.features)) % FOLDS, []
        for k in range(FOLDS):
            used, left_out = (self.pool.rows(at) for at in (folds != k, folds == k))
            weights = torch.from_numpy(_fit(used, self.link, strength).ravel())
            losses.append(seen_of(weights, left_out, self.link).loss)
        return float(np.mean(losses))

    def draw(
        self,
        count: int,
        rng: np.random.Generator,
        spare: int,
        seen: Seen | None,
        apart: tuple[float, float] = (0.0, 0.0),
    ) -> list[Truth]:
        """Truths in which a public pool teaches about as much as the real one: what that reaches is
        known up to its standard errors, so as many values are drawn, and for each the truth that is
        nearest, among `spare` times as many. Own truths are between so far `apart`."""
        seen = seen or self._left_out()
        drawn = [self._truth(rng, rng.uniform(*apart)) for _ in range(spare * count)]
        reached = [seen_of(t.taught(), t.records(JUDGED, rng), self.link) for t in drawn]
        chosen, left = [], set(range(len(drawn)))
        for _ in range(count):
            wanted = seen.again(rng)
            nearest = min(left, key=lambda i: wanted.distance(reached[i]))
            chosen.append(drawn[nearest])
            left.remove(nearest)
        return chosen

    def _left_out(self) -> Seen:
        """What pools like this one reach, on records of the pool that were left out."""
        folds, of_folds = np.arange(len(self.pool.features)) % FOLDS, []
        for k in range(FOLDS):
            used, left_out = (self.pool.rows(at) for at in (folds != k, folds == k))
            weights = torch.from_numpy(_fit(used, self.link, self.public_l2).ravel())
            of_folds.append(_of_records(weights, left_out, self.link))
        errors, losses = (torch.cat(parts) for parts in zip(*of_folds, strict=True))
        return _seen(errors, losses, self.link)

    def _truth(self, rng: np.random.Generator, apart: float) -> Truth:
        strength = float(STRENGTHS[rng.choice(len(STRENGTHS), p=self.probabilities)])
        shares = rng.dirichlet(np.ones(len(self.pool.features)))
        teacher = _fit(self.pool, self.link, strength, shares)
        sharper = SHARPEST ** rng.uniform(-1, 1)
        if self.labelled:
            wider = WIDEST ** rng.uniform(-0.5, 1)
            kept = 0.0 if apart else rng.random()
            truth = Truth(self, shares, sharper * teacher, kept, 0.0, wider, apart)
        else:
            noise = self.noise / math.sqrt(sharper)
            truth = Truth(self, shares, teacher, 0.0, noise, apart=apart)
        return replace(truth, pool=truth.records(len(self.pool.features), rng))


def population_of(pool: Table, link: Link, norm: float, l2: float | None) -> Population:
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
    if not population.labelled and np.ptp(pool.targets) == 0:
        raise DataError(
            f"the {len(pool.features)} public records all have the same label: nothing can be "
            "learnt from them; give others, or more"
        )
    return population


def _fit(pool: Table, link: Link, strength: float, shares: Floats | None = None) -> Floats:
    """The regularised linear model [outputs, features] of the pool, its records weighted."""
    clients = linear_clients([pool], link, strength, None, 0)
    if shares is not None:
        clients = replace(clients, weights=torch.from_numpy(shares)[None])
    start = torch.zeros(pool.features.shape[1] * pool.targets.shape[1], dtype=torch.float64)
    fitted: Floats = rough_minimiser(clients, start).numpy().reshape(pool.targets.shape[1], -1)
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
