"""What every way is worth, world by world, and the verdict.

An interval holds 90 % of the values over worlds and seeds, and what a finite test set adds: it is
what is not known, not how often a trial was repeated.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import require
from equipoise.planning.at_home import pull_for, tuned
from equipoise.planning.plan import Prediction, Verdict, Way
from equipoise.planning.population import Truth
from equipoise.planning.question import JudgeBy
from equipoise.planning.trial import Trial
from equipoise.planning.worlds import HeldOut, Skew, World, Worlds
from equipoise.seeds import stream
from equipoise.tasks.linear import SHARE_WRONG, Link
from equipoise.tasks.task import Table

COVERED = 0.9
# Of all records, or of an error that is no share: so far from its interval none lies by chance.
FAR = 0.15
SURE = 0.8  # share of worlds in which a way must be better to be called so
MATTERS = 0.01  # by less no way is better; of what not training leaves, if errors are no shares
SILOS = (0.25, 0.75)  # quantiles of the clients' sizes that stand for all
JUDGED_AT_HOME = 1000  # records of its own truth on which a silo's model is judged
MOST_PARAMETERS_AT_HOME = 1000
NEXT_TO_NONE = 1e-4  # of a regulariser


class Judged(NamedTuple):
    """Error, loss and 1 - AUROC (of two classes, else None) of models, [worlds, seeds]; whether
    errors are shares of records."""

    error: Tensor
    loss: Tensor
    auroc_loss: Tensor | None
    shares: bool = True

    def by(self, what: JudgeBy) -> Tensor:
        """What is to be small."""
        if what == "auroc":
            assert self.auroc_loss is not None
            return self.auroc_loss
        return self.error if what == "error" else self.loss


def check_judged(what: JudgeBy | None, worlds: Worlds) -> None:
    """Refuse to judge by what cannot be known."""
    require(
        what is None or worlds.kind == "real records",
        f"for={what} needs public records with labels: give --proxy FILE",
    )
    require(
        what != "auroc" or _two_classes(worlds.rows[0]),
        "for=auroc needs a label of two classes, which this task does not have: give error or loss",
    )


def _two_classes(row: World) -> bool:
    assert row.test is not None
    clients: Any = row.clients
    return clients.link.error_name == SHARE_WRONG and row.test.targets.shape[-1] == 1


def judge_models(worlds: Worlds, x: Tensor) -> Judged:
    """Models [worlds, seeds, d], on the records of their worlds that no client holds."""
    each = [_judge(row, models) for row, models in zip(worlds.rows, x, strict=True)]
    errors, losses, ranks = zip(*each, strict=True)
    rank = torch.stack(ranks) if all(rank is not None for rank in ranks) else None
    return Judged(torch.stack(errors), torch.stack(losses), rank, worlds.shares)


def _judge(row: World, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    assert row.test is not None
    clients: Any = row.clients
    features, targets = (part.flatten(0, 1) for part in row.test)  # as many of every truth
    return judge_on(features, targets, clients.link, x)


def judge_on(
    features: Tensor, targets: Tensor, link: Link, x: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Error, loss and 1 - AUROC on these records, of models [seeds, d]."""
    matrix = x.reshape(len(x), targets.shape[-1], features.shape[-1]).to(features.dtype)
    outputs = torch.einsum("nf,skf->snk", features, matrix)
    weights = outputs.new_full((len(features),), 1 / len(features))
    loss = link.loss(outputs, targets).mean(-1)
    binary = link.error_name == SHARE_WRONG and targets.shape[-1] == 1
    rank = 1 - area(outputs[..., 0], targets[:, 0] > 0) if binary else None
    return link.error(outputs, targets, weights), loss, rank


def area(scores: Tensor, positive: Tensor) -> Tensor:
    """AUROC: how often a positive record's score [..., n] is above a negative one's; ties count
    half."""
    yes, no = int(positive.sum()), int((~positive).sum())
    if not yes or not no:
        return scores.new_full(scores.shape[:-1], 0.5)
    scores = scores.contiguous()
    ordered = scores.sort(-1).values
    below, up_to = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
    ranks = (below + up_to + 1).double() / 2
    wins = (ranks * positive).sum(-1) - yes * (yes + 1) / 2
    return (wins / (yes * no)).to(scores.dtype)


def predicted(excess: Tensor | None, judged: Judged | None, records: int = 0) -> Prediction:
    """Means and intervals; on so many test records, if they are few enough to matter."""
    values: dict[str, float] = {}
    if excess is not None:
        values |= _interval("excess_loss", excess.clamp_min(0))
    if judged is not None:
        values |= _interval("test_error", judged.error, _sampling(judged, records))
        values |= _interval("test_loss", judged.loss)
        if judged.auroc_loss is not None:
            values |= _interval("auroc", 1 - judged.auroc_loss)
    return Prediction(**values)


def _sampling(judged: Judged, records: int) -> Tensor | None:
    """The standard deviation that so many test records add: of a share."""
    if not records or not judged.shares:
        return None
    error = judged.error
    return (error * (1 - error) / records).clamp_min(0).sqrt()


def _interval(name: str, values: Tensor, spread: Tensor | None = None) -> dict[str, float]:
    drawn = values.double().flatten().numpy()
    if spread is not None:
        rng = stream(0, "test records")
        noise = rng.standard_normal((16, len(drawn))) * spread.double().flatten().numpy()
        moved = np.clip(drawn + noise, 0, 1).ravel()
    else:
        moved = drawn
    low, high = np.quantile(moved, ((1 - COVERED) / 2, (1 + COVERED) / 2))
    return {name: float(drawn.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}


@dataclass(frozen=True)
class Tried:
    """A way, and what it is worth in every world (means over seeds, or over silos)."""

    way: Way
    values: Tensor
    """[worlds], of what ways are compared by."""


class Judge:
    """Compares ways in the same worlds."""

    def __init__(self, worlds: Worlds, what: JudgeBy, records: int) -> None:
        self._worlds, self._what, self._records = worlds, what, records

    def of_models(
        self,
        name: str,
        x: Tensor,
        excess: Tensor | None,
        free: bool,
        measured: float | None = None,
    ) -> Tried:
        """One model for all, [worlds, seeds, d]."""
        judged = judge_models(self._worlds, x)
        way = Way(
            name=name,
            free=free,
            predicted=predicted(excess, judged, self._records),
            measured=measured,
        )
        return Tried(way, judged.by(self._what).mean(1))

    def not_training(self, measured: float | None) -> Tried:
        """The best constant answer."""
        x, errors = [], []
        for row in self._worlds.rows:
            assert row.test is not None
            clients: Any = row.clients
            targets = row.test.targets.flatten(0, 1).double()
            x.append(_constant(clients.link, targets, len(row.x0)))
            errors.append(float(clients.link.constant(targets.numpy())))
        judged = judge_models(self._worlds, torch.stack(x)[:, None])
        known = torch.tensor(errors)[:, None]
        half = None if judged.auroc_loss is None else torch.full_like(known, 0.5)
        judged = judged._replace(error=known, auroc_loss=half)
        way = Way(
            name=NOT_TRAINING,
            free=True,
            predicted=predicted(None, judged, self._records),
            measured=measured,
        )
        return Tried(way, judged.by(self._what)[:, 0])

    def at_home(self, name: str, centre: Tensor | None, free: bool) -> Tried:
        """Every silo by itself: alone, or from the federated model, [worlds, d]."""
        rows = self._worlds.rows
        best = torch.stack([row.best for row in rows])
        start = torch.zeros_like(best) if centre is None else centre
        homes = [_homes(row, w) for w, row in enumerate(rows)]
        pulls = best - start
        judged, least = [], []
        for row, own, c in zip(rows, homes, start, strict=True):
            clients: Any = row.clients
            of_silos = []
            for home in own:
                pull = pull_for(len(home.records.features), pulls)
                x = tuned(home.records, clients.link, c, pull)
                of_silos.append(judge_on(*_tensors(home.test), clients.link, x[None]))
            judged.append(_mean(of_silos[1:]))
            least.append(of_silos[0])
        shares = self._worlds.shares
        every, smallest = _joined(judged, shares), _joined(least, shares)
        way = Way(
            name=name,
            free=free,
            predicted=predicted(None, every, self._records),
            smallest=predicted(None, smallest, self._records),
        )
        return Tried(way, every.by(self._what).mean(1))


class Home(NamedTuple):
    """A silo's own records, and others of its own truth, on which its model is judged."""

    records: Table
    test: Table


def _homes(row: World, w: int) -> list[Home]:
    """The smallest silo, and some of all sizes, with as many records as stand-ins have."""
    assert row.truth is not None
    rng, sizes = stream(w, "homes"), row.clients.sizes
    chosen = [min(sizes), *(int(np.quantile(sizes, at, method="nearest")) for at in SILOS)]
    homes = []
    for size in chosen:
        truth = row.truth.own(rng) if row.truth.apart else row.truth
        records = _skewed(truth, row.skew, size, rng)
        homes.append(Home(records, truth.records(JUDGED_AT_HOME, rng)))
    return homes


def _skewed(truth: Truth, skew: Skew, size: int, rng: np.random.Generator) -> Table:
    """Records of one silo, with labels of its own distribution."""
    if skew.concentration == math.inf:
        return truth.records(size, rng)
    drawn = truth.records(max(4 * size, 200), rng)
    classes, labels = np.unique(drawn.targets, axis=0, return_inverse=True)
    if len(classes) > len(drawn.features) // 4:  # numbers: quarters stand for classes
        labels = np.argsort(np.argsort(drawn.targets[:, 0])) * 4 // len(drawn.targets)
    shares = np.bincount(labels.reshape(-1)) / len(drawn.features)
    wanted = rng.dirichlet(skew.concentration * shares + 1e-9)
    weights = (wanted / shares)[labels.reshape(-1)]
    return drawn.rows(rng.choice(len(drawn.features), size=size, p=weights / weights.sum()))


def _constant(link: Link, targets: Tensor, d: int) -> Tensor:
    """A model that gives the best constant answer: its bias alone."""
    x = torch.zeros(targets.shape[1], d // targets.shape[1])
    mean = targets.mean(0)
    if link.error_name != SHARE_WRONG:
        x[:, -1] = mean
    elif targets.shape[1] == 1:
        x[:, -1] = torch.logit(mean.clamp(1e-3, 1 - 1e-3))
    else:
        x[:, -1] = mean.clamp_min(1e-3).log()
    return x.flatten()


def _tensors(table: Table) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(table.features), torch.from_numpy(table.targets)


def _mean(found: list[Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    errors, losses, ranks = zip(*found, strict=True)
    rank = None if ranks[0] is None else torch.stack(ranks).mean(0)
    return torch.stack(errors).mean(0), torch.stack(losses).mean(0), rank


def _joined(found: list[Any], shares: bool) -> Judged:
    errors, losses, ranks = zip(*found, strict=True)
    rank = None if ranks[0] is None else torch.stack(ranks)
    return Judged(torch.stack(errors), torch.stack(losses), rank, shares)


NOT_TRAINING, PUBLIC_ALONE, SILO_ALONE, PUBLIC_AT_HOME = (
    "not training",
    "public records alone",
    "each silo alone",
    "public model, tuned at home",
)
AT_HOME = (SILO_ALONE, PUBLIC_AT_HOME)
VERDICTS: dict[str, Verdict] = {
    NOT_TRAINING: "do not train",
    PUBLIC_ALONE: "public data alone is as good",
    SILO_ALONE: "each silo alone is as good",
    PUBLIC_AT_HOME: "each silo alone is as good",
}
NAMES = {"error": "error", "loss": "loss", "auroc": "AUROC"}


class Gain(NamedTuple):
    """What spending the budget gains over the best free way, in every world: [worlds]. Shares are
    of worlds of the kind in which they are smallest, since nobody knows which kind is true."""

    values: Tensor
    matters: float
    kinds: list[list[int]]

    @property
    def wins(self) -> float:
        """The share in which anything is gained."""
        return self._least_share(self.values > 0)

    @property
    def idle(self) -> float:
        """The share in which nothing that matters is gained."""
        return self._least_share(self.values <= self.matters)

    def _least_share(self, holds: Tensor) -> float:
        return min(float(holds[places].double().mean()) for places in self.kinds)

    @property
    def sure(self) -> bool:
        return self.idle < SURE <= self.wins and float(self.values.mean()) > 0


class Rules(NamedTuple):
    """What a verdict goes by: worlds of the same kind of skew, as places, and whether errors are
    shares."""

    kinds: list[list[int]]
    shares: bool


def rules_of(worlds: Worlds) -> Rules:
    return Rules(worlds.skews, worlds.shares)


def gain_of(tried: list[Tried], values: Tensor, what: JudgeBy, rules: Rules) -> Gain:
    """Of a way that is worth so much in the first worlds."""
    free = best_of(tried, free=True).values[: len(values)]
    nothing = max(_mean_value(t) for t in tried if t.way.name == NOT_TRAINING)
    unit = 1.0 if rules.shares or what == "auroc" else nothing
    return Gain((free - values).double(), MATTERS * unit, rules.kinds)


def best_of(tried: list[Tried], free: bool) -> Tried:
    return min((t for t in tried if t.way.free == free), key=_mean_value)


def verdict_of(tried: list[Tried], what: JudgeBy, rules: Rules) -> tuple[Verdict, str]:
    """The best way that spends the budget against the best that is free, world by world: a free way
    is as good unless what is spent gains something that matters."""
    free, spent = best_of(tried, free=True), best_of(tried, free=False)
    gain = gain_of(tried, spent.values, what, rules)
    best, other = (spent, free) if float(gain.values.mean()) > 0 else (free, spent)
    compared = (
        f"{best.way.name}: {NAMES[what]} {_told(best, what)}, against {_told(other, what)} of "
        f"{other.way.name}"
    )
    possible = "of the worlds that the public information leaves possible"
    if len(rules.kinds) > 1:
        possible += ", whatever kind of skew it is"
    if gain.idle >= SURE:
        idle = f"training together gains less than {gain.matters:.2g} in {gain.idle:.0%} {possible}"
        return VERDICTS[free.way.name], f"{compared}; {idle}"
    wins = f"training together is better in {gain.wins:.0%} {possible}"
    if gain.sure:
        return "train", f"{compared}; {wins}"
    return "inconclusive", f"cannot be decided at this spread: {compared}; {wins}"


def _mean_value(tried: Tried) -> float:
    return float(tried.values.mean())


def _told(tried: Tried, what: JudgeBy) -> str:
    name = {"error": "test_error", "loss": "test_loss", "auroc": "auroc"}[what]
    predicted = tried.way.predicted
    mean, low, high = (getattr(predicted, f"{name}{end}") for end in ("", "_low", "_high"))
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def disagreement(ways: list[Tried], shares: bool) -> str:
    """What to say if the public model does on the real test records what it does in no world."""
    for way in (tried.way for tried in ways if tried.way.name == PUBLIC_ALONE):
        ends, measured = way.predicted.interval("test_error"), way.measured
        if ends and measured is not None:
            away = max(ends[0] - measured, measured - ends[1])
            if away > FAR * (1.0 if shares else ends[1]):
                return (
                    "the public records and the test records disagree: the public model's error "
                    f"on these is {measured:.3g}, where {ends[0]:.3g} to {ends[1]:.3g} were to be "
                    "expected; no world is like that"
                )
    return ""


def trial_value(what: JudgeBy, trial: Trial, worlds: Worlds) -> Tensor:
    """What a plan is to make small, [worlds]."""
    return judge_models(worlds, trial.x).by(what).mean(1)


def held_out_excess(trial: Trial, worlds: Worlds) -> Tensor:
    """The loss on records that no client holds, above that of a model made of these, [worlds]:
    whatever regulariser the clients' loss has."""
    values = []
    for row, x in zip(worlds.rows, trial.x, strict=True):
        assert row.test is not None
        clients: Any = row.clients
        loss = _held_out_loss(row.test, clients.link, x).mean()
        values.append(loss - _least_held_out(row.test, clients.link))
    return torch.stack(values)


def _held_out_loss(test: HeldOut, link: Link, x: Tensor) -> Tensor:
    """Of models [seeds, d]."""
    matrix = x.reshape(len(x), test.targets.shape[-1], test.features.shape[-1])
    outputs = torch.einsum("tnf,skf->stnk", test.features, matrix.to(test.features.dtype))
    loss: Tensor = link.loss(outputs, test.targets).mean((1, 2))
    return loss.nan_to_num(math.inf, math.inf)


@lru_cache(maxsize=256)
def _least_held_out(test: HeldOut, link: Link) -> Tensor:
    records = Table(*(part.flatten(0, 1).double().numpy() for part in test))
    zero = torch.zeros(records.features.shape[1] * records.targets.shape[1], dtype=torch.float64)
    return _held_out_loss(test, link, tuned(records, link, zero, NEXT_TO_NONE)[None])[0]
