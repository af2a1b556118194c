"""Worlds: clients as they may be, drawn from what the public information leaves open, on which
plans can be tried for nothing.

Between worlds differ the truth that labels follow, the records, how they fall to the clients and,
where that is not known, how many there are. So the spread over worlds is what is not known.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import DataError, require
from equipoise.facts import Weights
from equipoise.planning.population import (
    Population,
    Seen,
    Truth,
    made_up_pool,
    population_of,
    seen_of,
)
from equipoise.seeds import stream
from equipoise.tasks.linear import SHARE_WRONG, LinearClients, LinearMeasure, linear_clients
from equipoise.tasks.public import minimiser, public_model, rough_minimiser
from equipoise.tasks.splits import parse_split, skewed
from equipoise.tasks.task import Convex, Table, Task

GUESSED_RECORDS = 100  # of a client whose size is private
STAND_INS = 40  # at most: more cost time and change little
TABLE = 80_000  # numbers in the tables of a world, where that leaves every client FEW_RECORDS
LARGE_TABLE = 500_000  # where one plan is judged, not many tried
FEW_RECORDS, MOST_RECORDS = 100, 400
TEST_RECORDS = 1000
SOFTMAX = 3  # times the work of one output
SPARE = 4  # times as many truths are drawn as are kept
MADE_UP_RECORDS = 200
OWN_TRUTHS = 0.2, 1.0  # how far clients' own teachers may lie from the common one, in its length

Kind = Literal["real records", "drawn by the task", "made up"]


class Skew(NamedTuple):
    """How clients may differ: the Dirichlet concentration of their labels (inf: not at all), and
    how far apart their own truths may lie."""

    name: str
    concentration: float = math.inf
    apart: tuple[float, float] = (0.0, 0.0)


NO_SKEW, MILD, STRONG = Skew("none"), Skew("mild", 1.0), Skew("strong", 0.1)
UNKNOWN = (NO_SKEW, MILD, STRONG, Skew("own truths", apart=OWN_TRUTHS))
"""What is planned for where nobody says."""


def parse_skew(said: str) -> Skew:
    """none, mild, strong, or the Dirichlet concentration itself."""
    named = {skew.name: skew for skew in (NO_SKEW, MILD, STRONG)}
    if said in named:
        return named[said]
    try:
        concentration = float(said)
    except ValueError:
        concentration = math.nan
    require(
        0 < concentration < math.inf,
        f"skew={said!r} is neither none, mild, strong nor a Dirichlet concentration A > 0, such as "
        "0.3",
    )
    return Skew(f"dirichlet:{concentration:g}", concentration)


@dataclass(frozen=True)
class World:
    """Stand-ins for the clients, and records on which a model would be judged there.

    best      x*, the minimiser of the clients' mean loss
    public    what a public pool of this world teaches; None where there is none
    test      records that no client holds; None where the task has no records
    truth     what these were drawn from, likewise
    """

    skew: Skew
    clients: Convex
    x0: Tensor
    best: Tensor
    public: Tensor | None = None
    test: "HeldOut | None" = None
    truth: Truth | None = None

    @cached_property
    def least(self) -> float:
        return float(self.clients.loss(self.best))

    def excess(self, x: Tensor) -> Tensor:
        """f(x) - f(x*) of models [..., d]."""
        return self.clients.loss(x) - self.least

    def with_l2(self, l2: float) -> "World":
        """The same records with another regulariser."""
        clients = replace(cast(LinearClients, self.clients), l2=l2)
        return replace(self, clients=clients, best=_best(clients, self.best))


class HeldOut(NamedTuple):
    """features [truths, n, features] and targets [truths, n, outputs]: one truth for all clients,
    or every client's own."""

    features: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Worlds:
    """Worlds of equal shape, and all that a planner knows.

    sizes       the records of the real clients for which the stand-ins stand
    weights     how much these count; None where all count alike
    longest     the longest step size with which the stand-ins' local steps are stable
    kind        what they are made of: only real records predict an error, and made-up labels do not
                even tell whether there is anything to learn
    """

    rows: tuple[World, ...]
    sizes: tuple[int, ...]
    x0: Tensor
    longest: float
    kind: Kind
    sentences: tuple[str, ...]
    weights: Weights = None

    @property
    def number(self) -> int:
        """Of stand-ins."""
        return len(self.rows[0].clients.sizes)

    @property
    def shares(self) -> bool:
        """Whether errors are shares of records; otherwise they are in the label's own unit."""
        clients = self.rows[0].clients
        return isinstance(clients, LinearClients) and clients.link.error_name == SHARE_WRONG

    @property
    def width(self) -> int:
        """Numbers that a local step of all clients goes through."""
        clients: Any = self.rows[0].clients
        if isinstance(clients, LinearClients):
            outputs = clients.targets.shape[-1]
            return clients.features.numel() * outputs * (1 if outputs == 1 else SOFTMAX)
        return self.number * len(self.x0) ** 2

    @cached_property
    def clients(self) -> Any:
        """All worlds' clients in one, for gradients at x [worlds, plans, seeds, clients, d]."""
        rows: Any = [row.clients for row in self.rows]
        return type(rows[0]).stacked(rows, axes=2)

    @cached_property
    def skews(self) -> list[list[int]]:
        """The worlds of each kind of skew, as places in `rows`."""
        names = list(dict.fromkeys(row.skew for row in self.rows))
        return [[i for i, row in enumerate(self.rows) if row.skew == name] for name in names]

    def first(self, count: int) -> "Worlds":
        """Some of these worlds, as many of every skew."""
        chosen = [i for places in self.skews for i in places[: -(-count // len(self.skews))]]
        return replace(self, rows=tuple(self.rows[i] for i in sorted(chosen)))

    def with_l2(self, l2: float) -> "Worlds":
        return replace(self, rows=tuple(row.with_l2(l2) for row in self.rows))

    @property
    def fewer_records(self) -> bool:
        """Whether stand-ins have fewer records than the clients for which they stand."""
        return max(self.rows[0].clients.sizes) < max(self.sizes)

    def of_clients_sizes(self) -> "Worlds":
        """The same truths, whose stand-ins have as many records as the clients, or as many as a
        LARGE_TABLE has room for."""
        rows, features = [], len(self.x0)
        most = max(FEW_RECORDS, LARGE_TABLE // (features * len(self.sizes)))
        sizes = [min(size, most) for size in self.sizes]
        for w, row in enumerate(self.rows):
            assert row.truth is not None
            clients, rng = cast(LinearClients, row.clients), stream(w, "of clients' sizes")
            public = row.public is not None
            like = clients.l2, clients.client_weights
            rows.append(_world(row.truth, row.skew, sizes, *like, row.x0, public, rng))
        width = max(cast(LinearClients, row.clients).features.shape[1] for row in rows)
        return replace(self, rows=tuple(_padded(row, width) for row in rows))

    def excess(self, x: Tensor) -> Tensor:
        """[worlds, ...] of models [worlds, ..., d]."""
        return torch.stack([row.excess(models) for row, models in zip(self.rows, x, strict=True)])

    def start(self, warm: bool) -> Tensor:
        """Where training begins in every world, [worlds, d]."""
        starts = [row.public if warm else row.x0 for row in self.rows]
        return torch.stack([start for start in starts if start is not None])

    @property
    def warm(self) -> bool:
        """Whether there is a public model to begin from."""
        return self.rows[0].public is not None

    def distance(self, warm: bool) -> float:
        """From the start to the optimum, in the root mean square over worlds."""
        best = torch.stack([row.best for row in self.rows])
        return float((best - self.start(warm)).square().sum(-1).mean().sqrt())


@runtime_checkable
class Generated(Protocol):
    """Clients that a public generator draws."""

    def like_these(self, number: int, seed: int) -> Convex: ...


class Known(NamedTuple):
    """What is known of the clients: how they may differ, and how many records they have.

    sizes     of every client; None where they are guessed
    guess     about how many, then
    weights   how much each counts; None where all count alike
    """

    skews: tuple[Skew, ...]
    sizes: tuple[int, ...] | None
    guess: int
    sentences: tuple[str, ...]
    weights: Weights = None


def known_of(task: Task, skew: str | None, records: tuple[int, ...] | None) -> Known:
    """From the task where it deals its records by public seeds, else from what the user says."""
    clients, sentences = len(task.clients.sizes), []
    if task.sizes_public:
        require(
            records is None,
            f"records with task={task.name}, whose clients have public numbers of records: leave "
            "it out",
        )
        require(
            skew is None,
            f"skew={skew} with task={task.name}, whose records are dealt by --split: say that, and "
            "leave skew out",
        )
        concentration = parse_split(task.split)
        known = NO_SKEW if concentration == math.inf else Skew(str(task.split), concentration)
        return Known((known,), task.clients.sizes, 0, ())
    if records is not None and len(records) > 1:
        require(
            len(records) == clients,
            f"records: {len(records)} sizes for {clients} clients; give one for each, or one "
            "number for all",
        )
    sizes = None if records is None else records if len(records) > 1 else records * clients
    if sizes is None:
        sentences.append(
            f"GUESSED: about {GUESSED_RECORDS} records a client (say it: --records n, or one "
            "number for each client)"
        )
    if skew is None and clients > 1:
        sentences.append(
            "GUESSED: nothing was said of how clients differ, so the plan is one that is good "
            "whether they differ or not (say it: --skew none, mild or strong)"
        )
    skews = (UNKNOWN if clients > 1 else (NO_SKEW,)) if skew is None else (parse_skew(skew),)
    return Known(skews, sizes, GUESSED_RECORDS, tuple(sentences))


def worlds_of(task: Task, known: Known, count: int, seed: int) -> Worlds:
    """`count` worlds, as many for each skew that is possible."""
    if task.L is None or task.mu is None:
        raise DataError(f"task={task.name}: no smoothness is known, so no plan can be tried")
    private = task.clients
    if isinstance(private, LinearClients):
        return _of_records(task, private, known, count, seed)
    if not isinstance(private, Generated):
        raise DataError(
            f"task={task.name}: nothing public can stand in for its clients, so no plan can be "
            "tried"
        )
    require(
        known.weights is None,
        f"weights with task={task.name}, whose clients are planned for as equals: leave them out",
    )
    number, rows = min(len(private.sizes), STAND_INS), []
    for w in range(count):
        drawn = private.like_these(number, seed + 10**6 * (w + 1)).single()
        x0 = task.x0.to(torch.float32)
        rows.append(World(NO_SKEW, drawn, x0, minimiser(drawn, x0, 1e-5)))
    return Worlds(
        tuple(rows),
        (1,) * number,
        task.x0.float(),
        1 / task.L,
        "drawn by the task",
        (*task.public, "stand-ins drawn by the task's public generator with other seeds"),
    )


def _of_records(
    task: Task,
    private: LinearClients,
    known: Known,
    count: int,
    seed: int,
) -> Worlds:
    assert task.L is not None
    assert task.mu is not None
    kind: Kind = "real records"
    sentences = (*task.public,)
    outputs, features = task.shapes["weight"]
    norm = math.sqrt(max(0.0, (task.L - task.mu) / private.link.curvature - 1))
    pools = [task.pool]
    if not isinstance(task.pool, Table):
        pools = [
            made_up_pool(MADE_UP_RECORDS, features, outputs, private.link, norm, seed + w)
            for w in range(count)
        ]
        kind = "made up"
        sentences += ("nothing else: the worlds have made-up records, which predict no test error",)
    rows, l2 = [], private.l2
    chosen = _stand_ins(known, len(private.sizes))
    weights = _counted(known, chosen)
    seen = _seen(task) if kind == "real records" else None
    if seen:
        sentences += ("error and loss of the public model on the test records",)
    populations = [
        population_of(cast(Table, pool), private.link, norm, task.public_l2) for pool in pools
    ]
    truths = _truths(populations, known.skews, count, seed, seen)
    for w, (truth, skew) in enumerate(truths):
        rng = stream(seed, "world", w)
        sizes = _sizes(known, chosen, features * outputs, rng)
        real = kind == "real records"
        rows.append(_world(truth, skew, sizes, l2, weights, task.x0, real, rng))
    tables = [cast(LinearClients, row.clients) for row in rows]
    width = max(clients.features.shape[1] for clients in tables)
    rows = [_padded(row, width) for row in rows]
    longest = min(map(longest_step, tables))
    stand_for = tuple(known.guess if known.sizes is None else known.sizes[i] for i in chosen)
    return Worlds(
        tuple(rows),
        stand_for,
        task.x0.float(),
        max(longest, 1 / task.L),
        kind,
        sentences,
        weights,
    )


def _stand_ins(known: Known, clients: int) -> list[int]:
    """Which clients stand for all: every one, or some of all sizes, the smallest among them."""
    number = min(clients, STAND_INS)
    if known.sizes is None or number >= clients:
        return [i % clients for i in range(number)]
    order = sorted(range(clients), key=known.sizes.__getitem__)
    return [order[round(place)] for place in np.linspace(0, clients - 1, number)]


def _counted(known: Known, chosen: list[int]) -> Weights:
    """How much each stand-in counts."""
    if known.weights is None:
        return None
    own = [known.weights[i] for i in chosen]
    return tuple(weight / math.fsum(own) for weight in own)


def _sizes(known: Known, chosen: list[int], width: int, rng: np.random.Generator) -> list[int]:
    """Records of the stand-ins: the clients' own numbers, or a guess that may be twice too large
    or too small; no more than a table should have."""
    if known.sizes is None:
        sizes = [round(known.guess * 2 ** rng.uniform(-1, 1))] * len(chosen)
    else:
        sizes = [known.sizes[i] for i in chosen]
    most = min(MOST_RECORDS, max(FEW_RECORDS, TABLE // (width * len(chosen))))
    return [max(1, min(size, most)) for size in sizes]


def _seen(task: Task) -> Seen | None:
    """What the public model reaches on the public test records, where there are any."""
    if not isinstance(task.measure, LinearMeasure):
        return None
    measure = task.measure
    records = Table(measure.features.numpy(), measure.targets.numpy())
    return seen_of(public_model(task), records, measure.link)


def _truths(
    populations: list[Population],
    skews: tuple[Skew, ...],
    count: int,
    seed: int,
    seen: Seen | None,
) -> list[tuple[Truth, Skew]]:
    """A truth for every world, as many for each skew: all from the one pool that there is, or each
    from one that was made up."""
    rng = stream(seed, "truths")
    in_turn = [skews[w % len(skews)] for w in range(count)]
    if len(populations) > 1:
        pairs = zip(populations, in_turn, strict=True)
        return [(people.draw(1, rng, 1, None, skew.apart)[0], skew) for people, skew in pairs]
    (people,) = populations
    wanted = Counter(skew.apart for skew in in_turn)
    drawn = {
        apart: iter(people.draw(number, rng, SPARE, seen, apart))
        for apart, number in wanted.items()
    }
    return [(next(drawn[skew.apart]), skew) for skew in in_turn]


def _world(
    truth: Truth,
    skew: Skew,
    sizes: list[int],
    l2: float,
    weights: Weights,
    x0: Tensor,
    public: bool,
    rng: np.random.Generator,
) -> World:
    if truth.apart:
        truths = [truth.own(rng) for _ in sizes]
        tables = [own.records(size, rng) for own, size in zip(truths, sizes, strict=True)]
    else:
        truths = [truth]
        tables = _dealt(truth.records(sum(sizes), rng), skew.concentration, sizes, rng)
    clients = linear_clients(tables, truth.population.link, l2, None, 0)
    clients = replace(clients, client_weights=weights)
    judged = [own.records(TEST_RECORDS // len(truths) + 1, rng) for own in truths]
    features, targets = (
        torch.from_numpy(np.stack(parts)).float() for parts in zip(*judged, strict=True)
    )
    return World(
        skew,
        clients.single(),
        x0.float(),
        _best(clients, x0),
        truth.taught().float() if public else None,
        HeldOut(features, targets),
        truth,
    )


def _best(clients: LinearClients, start: Tensor) -> Tensor:
    """x*, of all clients' records in one table."""
    union = replace(
        clients,
        features=clients.features.flatten(0, 1)[None].double(),
        targets=clients.targets.flatten(0, 1)[None].double(),
        weights=(clients.weights.double() * clients.counting).flatten()[None],
        sizes=(sum(clients.sizes),),
        client_weights=None,
    )
    return rough_minimiser(union, start.double()).float()


def _dealt(
    table: Table, concentration: float, sizes: list[int], rng: np.random.Generator
) -> list[Table]:
    order = np.arange(len(table.features))
    if concentration == math.inf:
        return [table.rows(part) for part in np.split(order, np.cumsum(sizes)[:-1])]
    parts = skewed(_labels(table), order, sizes, concentration, rng)
    return [table.rows(part) for part in parts]


def _labels(table: Table) -> Any:
    """Classes as whole numbers; targets that are numbers fall into quarters."""
    targets = table.targets
    if targets.shape[1] > 1:
        return targets.argmax(1)
    if len(np.unique(targets)) <= 2:
        return targets[:, 0].astype(np.int64)
    return np.searchsorted(np.quantile(targets, (0.25, 0.5, 0.75)), targets[:, 0])


def _padded(row: World, width: int) -> World:
    clients = cast(LinearClients, row.clients)
    return replace(row, clients=clients.padded(width))


def longest_step(clients: LinearClients) -> float:
    """1 / the largest curvature of a client at x = 0, where it is largest for classes."""
    outputs = torch.zeros(1, clients.targets.shape[-1])
    bend = float(torch.linalg.matrix_norm(clients.link.hessian(outputs)[0], 2))
    weighted = clients.features * clients.weights.sqrt().unsqueeze(-1)
    largest = torch.linalg.matrix_norm(weighted, 2).square().max()
    return 1 / (bend * float(largest) + clients.l2)
