"""l2-regularised generalised linear models, for all clients in one computation: logistic,
multinomial, least squares.

The model x is a matrix W [outputs, features], flattened; the last feature of every record is 1, so
that the last column is the bias, regularised like the rest. For records a of norm at most B every
client's loss

    f_i(x) = mean_j loss(W a_ij, target_ij) + (l2/2) |x|^2

is l2-strongly convex and (link.curvature B^2 + l2)-smooth.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.errors import DataError, InvalidValue
from equipoise.facts import Weights
from equipoise.tasks.persons import LinearPersons
from equipoise.tasks.splits import Minibatches, StackedMinibatches, pool_and_parts
from equipoise.tasks.task import Measured, Predictions, Table, Task, TaskOptions, fingerprint


@dataclass(frozen=True)
class Link:
    """How outputs W a, [..., n, outputs], meet targets [n, outputs].

    residual     the derivative of a record's loss by its outputs
    loss         each record's loss, [..., n]
    hessian      its second derivative by the outputs, [..., n, outputs, outputs]
    error        of all records together, their weights [n] summing to one
    constant     the error of the best constant answer to the targets
    answers      probabilities or values, as `Predictions` has them, from outputs [n, outputs]
    truth        classes or values, as `Predictions` has them, from targets
    classes      of so many outputs; 0 where values are predicted
    error_name   what the error is, in words
    curvature    the largest second derivative of a record's loss by its outputs
    steepest     the largest norm of the residual
    scalar       whether there is one output: then a clipped gradient is the gradient of a convex
    loss, as smooth as before
    """

    residual: Callable[[Tensor, Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]
    hessian: Callable[[Tensor], Tensor]
    error: Callable[[Tensor, Tensor, Tensor], Tensor]
    constant: Callable[[NDArray[np.float64]], float]
    answers: Callable[[Tensor], Tensor]
    truth: Callable[[Tensor], Tensor]
    classes: Callable[[int], int]
    error_name: str
    curvature: float
    steepest: float
    scalar: bool


def _multinomial_hessian(shares: Tensor) -> Tensor:
    return torch.diag_embed(shares) - shares.unsqueeze(-1) * shares.unsqueeze(-2)


SHARE_WRONG = "share of wrong predictions"
LOGISTIC = Link(  # one output; targets 0 or 1; an output of zero says 1
    residual=lambda outputs, targets: torch.sigmoid(outputs) - targets,
    loss=lambda outputs, targets: nn.functional.softplus((1 - 2 * targets) * outputs).sum(-1),
    hessian=lambda outputs: (torch.sigmoid(outputs) * torch.sigmoid(-outputs)).unsqueeze(-1),
    error=lambda outputs, targets, weights: (
        ((outputs >= 0) != (targets > 0)).squeeze(-1) * weights
    ).sum(-1),
    constant=lambda targets: min(targets.mean(), 1 - targets.mean()),
    answers=lambda outputs: torch.sigmoid(outputs).squeeze(-1),
    truth=lambda targets: (targets > 0).squeeze(-1).long(),
    classes=lambda outputs: 2,
    error_name=SHARE_WRONG,
    curvature=1 / 4,
    steepest=1.0,
    scalar=True,
)


def _softmax(outputs: Tensor) -> Tensor:
    """Over the last axis, of a few classes: several times as fast as torch.softmax there."""
    shares = (outputs - outputs.amax(-1, keepdim=True)).exp_()
    return shares.div_(shares.sum(-1, keepdim=True))


MULTINOMIAL = Link(  # an output for each class; targets one-hot
    residual=lambda outputs, targets: _softmax(outputs).sub_(targets),
    loss=lambda outputs, targets: -(torch.log_softmax(outputs, -1) * targets).sum(-1),
    hessian=lambda outputs: _multinomial_hessian(torch.softmax(outputs, -1)),
    error=lambda outputs, targets, weights: (
        (outputs.argmax(-1) != targets.argmax(-1)) * weights
    ).sum(-1),
    constant=lambda targets: 1 - targets.mean(0).max(),
    answers=lambda outputs: torch.softmax(outputs, -1),
    truth=lambda targets: targets.argmax(-1),
    classes=lambda outputs: outputs,
    error_name=SHARE_WRONG,
    curvature=1 / 2,
    steepest=math.sqrt(2),
    scalar=False,
)


def least_squares(unit: float) -> Link:
    """One output; targets scaled so that 1 is `unit` of the label."""
    return Link(
        residual=lambda outputs, targets: outputs - targets,
        loss=lambda outputs, targets: (outputs - targets).square().sum(-1) / 2,
        hessian=lambda outputs: torch.ones_like(outputs).unsqueeze(-1),
        error=lambda outputs, targets, weights: (
            unit * ((outputs - targets).square().squeeze(-1) * weights).sum(-1).sqrt()
        ),
        constant=lambda targets: unit * targets.std(),
        answers=lambda outputs: unit * outputs.squeeze(-1),
        truth=lambda targets: unit * targets.squeeze(-1),
        classes=lambda outputs: 0,
        error_name="root mean squared error",
        curvature=1.0,
        steepest=math.inf,
        scalar=True,
    )


@dataclass(frozen=True, repr=False)
class LinearClients:
    """`features` is [clients, n, features], `targets` [clients, n, outputs], padded by records of
    weight zero.

    `weights` [clients, n] are 1 / (number of records) of each client.
    """

    features: Tensor
    targets: Tensor
    weights: Tensor
    sizes: tuple[int, ...]
    link: Link
    l2: float
    minibatches: Minibatches | StackedMinibatches | None = None
    client_weights: Weights = None  # how much each client counts in f; None: 1/N each
    owners: tuple[NDArray[np.int64], ...] | None = None  # the person of each record, if known

    def gradient(self, x: Tensor, t: int) -> Tensor:
        features, targets, weights = self.features, self.targets, self.weights
        if self.minibatches:
            chosen, weights = (part.to(x.device) for part in self.minibatches.at(t))
            chosen = chosen.reshape(*features.shape[:-2], -1)
            weights = weights.reshape(chosen.shape)
            features, targets = _rows(features, chosen), _rows(targets, chosen)
        outputs = torch.einsum("...nf,...kf->...nk", features, self._matrix(x))
        residual = self.link.residual(outputs, targets) * weights[..., None]
        summed = torch.einsum("...nk,...nf->...kf", residual, features).flatten(-2)
        return summed.add_(
            x, alpha=self.l2
        )  # in this order stacked models keep the layout that einsum need not copy

    def clipped_sum(self, x: Tensor, chosen: Tensor | None, C: float | Tensor, draw: int) -> Tensor:
        """A record's gradient is residual times features, so its norm is known without it
        (Goodfellow 2015)."""
        outputs = torch.einsum("...nf,...kf->...nk", self.features, self._matrix(x))
        residual = self.link.residual(outputs, self.targets)
        length = residual.norm(dim=-1, keepdim=True) * self.features.norm(dim=-1, keepdim=True)
        if isinstance(C, Tensor) and C.dim():  # against [..., clients, d]: records come between
            C = C.unsqueeze(-1).to(residual)
        threshold = C * (1 - 1e-12) if residual.dtype == torch.float64 else C * (1 - 1e-5)
        residual = residual * (threshold / length).clamp(max=1.0).nan_to_num(0.0)
        chosen = None if chosen is None else chosen.to(x.device)
        counted = self.weights > 0 if chosen is None else (self.weights > 0) & chosen
        residual = torch.where(counted.unsqueeze(-1) & length.isfinite(), residual, 0.0)
        return torch.einsum("...nk,...nf->...kf", residual, self.features).flatten(-2)

    def of_persons(self, most: int) -> LinearPersons:
        return LinearPersons.of(self, most)

    def regulariser(self, x: Tensor) -> Tensor:
        return self.l2 * x

    def check_records(self) -> None:
        """Records of a table can always be told apart."""

    def isolated(self) -> Self:
        raise InvalidValue(
            "isolate with a linear model, whose records cannot mix: it belongs to networks; leave "
            "it out"
        )

    def slow_layers(self) -> tuple[str, ...]:
        return ()

    def loss(self, x: Tensor) -> Tensor:
        """f(x), the weighted mean of the clients' regularised losses, of a model [..., d]."""
        outputs = torch.einsum("cnf,...kf->...cnk", self.features, self._matrix(x))
        records = self.link.loss(outputs, self.targets) * self.weights
        if self.client_weights is None:
            mean = records.sum((-1, -2)) / len(self.sizes)
        else:
            mean = (records * self.counting.to(records.dtype)).sum((-1, -2))
        return mean + self.l2 / 2 * x.square().sum(-1)

    @property
    def counting(self) -> Tensor:
        """How much each client counts, [clients, 1]."""
        equal = (1 / len(self.sizes),) * len(self.sizes)
        weights = self.client_weights or equal
        return torch.tensor(weights, dtype=torch.float64).unsqueeze(-1)

    def hessians(self, x: Tensor) -> Tensor:
        """The Hessian of every client's loss at the model x [d]: [clients, d, d]."""
        outputs = torch.einsum("cnf,kf->cnk", self.features, self._matrix(x))
        weighted = self.link.hessian(outputs) * self.weights[..., None, None]
        if x.shape[-1] == self.features.shape[-1]:  # one output
            blocks = (weighted[..., 0] * self.features).transpose(1, 2) @ self.features
        else:
            blocks = torch.einsum("cnkl,cnf,cng->ckflg", weighted, self.features, self.features)
        return blocks.reshape(len(self.sizes), x.shape[-1], x.shape[-1]) + self.l2 * torch.eye(
            x.shape[-1], dtype=x.dtype
        )

    def error(self, x: Tensor) -> Tensor:
        """The error over the records of all clients together."""
        features, targets = self.features.flatten(-3, -2), self.targets.flatten(-3, -2)
        matrix = self._matrix(x.to(features.device))
        outputs = torch.einsum("...nf,...kf->...nk", features, matrix)
        weights = (self.weights > 0).flatten(-2).double() / max(sum(self.sizes), 1)
        return self.link.error(outputs, targets, weights).cpu()

    def alone(self, client: int) -> Self:
        size = max(self.sizes[client], 1)  # without the padding that longer tables need
        return replace(
            self,
            features=self.features[client, :size],
            targets=self.targets[client, :size],
            weights=self.weights[client, :size],
            sizes=self.sizes[client : client + 1],
            minibatches=self.minibatches.alone(client)
            if isinstance(self.minibatches, Minibatches)
            else None,
            owners=self.owners and self.owners[client : client + 1],
        )

    @staticmethod
    def stacked(rows: "list[LinearClients]", axes: int = 1) -> "LinearClients":
        """The clients of several tasks alike in one, for gradients at x [tasks, settings, clients,
        d], with as many axes of settings as are said."""
        batches = [row.minibatches for row in rows if isinstance(row.minibatches, Minibatches)]
        minibatches = StackedMinibatches(batches) if batches else None
        tensors = _stacked(rows, "features", "targets", "weights", axes=axes)
        return replace(rows[0], **tensors, minibatches=minibatches)

    def padded(self, length: int) -> Self:
        """The same clients, with records of weight zero up to this length."""
        more = length - self.features.shape[1]
        pad = nn.functional.pad
        return replace(
            self,
            features=pad(self.features, (0, 0, 0, more)),
            targets=pad(self.targets, (0, 0, 0, more)),
            weights=pad(self.weights, (0, more)),
        )

    def single(self) -> Self:
        """The same clients in single precision."""
        return self.to(torch.float32)

    def to(self, where: torch.dtype | torch.device) -> Self:
        """The same clients on a device, or in another precision."""
        return replace(
            self,
            features=self.features.to(where),
            targets=self.targets.to(where),
            weights=self.weights.to(where),
        )

    def _matrix(self, x: Tensor) -> Tensor:
        return _matrix(x, self.targets, self.features)


def joined(tables: list[Table]) -> Table | None:
    """All records of these tables in one; None without tables."""
    return (
        Table(*(np.concatenate(arrays) for arrays in zip(*tables, strict=True))) if tables else None
    )


def _matrix(x: Tensor, targets: Tensor, features: Tensor) -> Tensor:
    """W [..., outputs, features] of the flat x [..., d]."""
    return x.reshape(*x.shape[:-1], targets.shape[-1], features.shape[-1])


def _rows(table: Tensor, chosen: Tensor) -> Tensor:
    """The chosen rows [..., batch] of the table [..., n, columns] of every client."""
    starts = torch.arange(0, table.shape[:-1].numel(), table.shape[-2], device=table.device)
    first = starts.reshape(*table.shape[:-2], 1)
    whole = table.reshape(-1, table.shape[-1]).index_select(0, (chosen + first).flatten())
    return whole.reshape(*chosen.shape, -1)


def deal(
    table: Table, labels: NDArray[np.int64], options: TaskOptions, clients: int
) -> tuple[list[Table], Table | None]:
    """Split a table among clients (`clients` of them if the user does not say), less a pool of
    records declared public."""
    pool, parts = pool_and_parts(labels, options, clients)
    return [table.rows(part) for part in parts], table.rows(pool) if len(pool) else None


def linear_clients(
    tables: list[Table], link: Link, l2: float, batch: int | None, seed: int
) -> LinearClients:
    """One client for each table; a client without records has only the regulariser."""
    sizes = tuple(len(table.features) for table in tables)
    longest = max(*sizes, 1)
    features, targets = (
        torch.stack([_padded(part, longest) for part in parts])
        for parts in zip(*tables, strict=True)
    )
    weights = torch.stack([_padded(np.full(size, 1 / max(size, 1)), longest) for size in sizes])
    minibatches = Minibatches(seed, batch, sizes) if batch else None
    return LinearClients(features, targets, weights, sizes, link, l2, minibatches)


def _padded(rows: NDArray[np.float64], length: int) -> Tensor:
    padded = torch.zeros(length, *rows.shape[1:], dtype=torch.float64)
    padded[: len(rows)] = torch.from_numpy(rows)
    return padded


@dataclass(frozen=True, repr=False)
class LinearMeasure:
    """Error and loss (without the regulariser) on the records of a table, of models [..., d].

    `names` are those of the classes; `groups` those of the records, by the column `grouped_by`.
    """

    features: Tensor
    targets: Tensor
    link: Link
    names: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    grouped_by: str = ""

    def __call__(self, x: Tensor) -> Measured:
        outputs = self._outputs(x)
        weights = outputs.new_full(outputs.shape[-2:-1], 1 / outputs.shape[-2])
        loss = self.link.loss(outputs, self.targets) * weights
        return Measured(self.link.error(outputs, self.targets, weights).cpu(), loss.sum(-1).cpu())

    def predictions(self, x: Tensor) -> Predictions:
        link = self.link
        return Predictions(
            link.answers(self._outputs(x.to(self.features.dtype))).cpu().numpy(),
            link.truth(self.targets).cpu().numpy(),
            link.classes(self.targets.shape[-1]),
            self.names,
            self.groups,
            self.grouped_by,
        )

    def _outputs(self, x: Tensor) -> Tensor:
        matrix = _matrix(x.to(self.features.device), self.targets, self.features)
        return torch.einsum("...nf,...kf->...nk", self.features, matrix)

    def to(self, device: torch.device) -> Self:
        return replace(self, features=self.features.to(device), targets=self.targets.to(device))

    @staticmethod
    def stacked(rows: "list[LinearMeasure]") -> "LinearMeasure":
        """For models [tables, settings, d]."""
        return replace(rows[0], **_stacked(rows, "features", "targets"))


def linear_measure(table: Table, link: Link, names: tuple[str, ...] = ()) -> LinearMeasure:
    """`names` are those of the classes."""
    if not len(table.features):
        raise DataError("the test records are empty, or none has a declared label")
    features, targets = (torch.from_numpy(part) for part in table)
    return LinearMeasure(features, targets, link, names)


def _stacked(rows: Sequence[Any], *names: str, axes: int = 1) -> dict[str, Any]:
    """These tensors of all rows in one, [rows, 1, ...]: against models [rows, settings, ...]."""
    ones = (1,) * axes
    tensors = {name: torch.stack([getattr(row, name) for row in rows]) for name in names}
    return {name: each.reshape(len(rows), *ones, *each.shape[1:]) for name, each in tensors.items()}


def with_bias(rows: NDArray[np.float64], norm: float) -> NDArray[np.float64]:
    """Each row clipped to `norm`, a bound that looks at no other row, and the bias feature 1."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    clipped = rows * np.minimum(1, norm / np.maximum(lengths, 1e-300))
    return np.hstack([clipped, np.ones((len(rows), 1))])


def one_hot(labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Targets for `classes` classes: a column of 0 and 1 for two of them, one-hot for more."""
    return labels[:, None].astype(np.float64) if classes == 2 else np.eye(classes)[labels]


def linear_task(
    name: str,
    dealt: tuple[list[Table], Table | None],
    test: Table | None,
    link: Link,
    l2: float,
    feature_norm: float,
    options: TaskOptions,
    public: tuple[str, ...],
    names: tuple[str, ...] = (),
    **about: Any,
) -> Task:
    """A task on these clients and this public pool; its constants follow from the public bound on
    features alone. `names` are those of the classes."""
    l2 = options.l2 or l2
    L = link.curvature * (feature_norm**2 + 1) + l2
    tables, pool = dealt
    features, outputs = tables[0].features.shape[1], tables[0].targets.shape[1]
    return Task(
        name=name,
        x0=torch.zeros(outputs * features, dtype=torch.float64),
        shapes={"weight": (outputs, features)},
        clients=linear_clients(tables, link, l2, options.minibatch, options.seed),
        measure=linear_measure(test, link, names) if test else None,
        error_name=link.error_name,
        constant_error=float(link.constant(test.targets)) if test and len(test.targets) else None,
        pool=pool,
        public_l2=options.public_l2,
        public=(*public, *([f"{len(pool.features)} records for planning"] if pool else [])),
        batch=options.minibatch,
        split=options.split,
        fingerprint=fingerprint(
            array for table in (*tables, test, pool) if table for array in table
        ),
        learning_rate=1 / L,
        mu=l2,
        L=L,
        gradient_bound=link.steepest
        * math.sqrt((L - l2) / link.curvature),  # L = curvature B^2 + mu
        clipped_convex=link.scalar,
        **about,
    )
