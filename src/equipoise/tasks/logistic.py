"""l2-regularised logistic regression, for all clients in one computation."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.tasks.records import Indices, Minibatches


@dataclass(frozen=True)
class LogisticClients:
    """f_i(x) = mean_j ln(1 + exp(-s_ij . x)) + (l2/2) |x|^2, where s_ij is a record's features (the last is 1) times its
    label, -1 or +1. The bias is regularised too, so f_i is l2-strongly convex and (B^2/4 + l2)-smooth for |s_ij| <= B.

    `signed` is [clients, n, d], padded with zero records of weight 0 where a client has fewer; `weights` is [clients, n].
    """

    signed: Tensor
    weights: Tensor
    sizes: tuple[int, ...]
    l2: float
    minibatches: Minibatches | None = None

    def gradient(self, x: Tensor, t: int) -> Tensor:
        signed, weights = self.signed, self.weights
        if self.minibatches:
            index = torch.from_numpy(self.minibatches.at(t)).reshape(*weights.shape[:-1], -1)
            signed = torch.take_along_dim(signed, index[..., None], -2)
            weights = torch.full_like(index, 1 / index.shape[-1], dtype=signed.dtype)
        margins = torch.einsum("...nd,...d->...n", signed, x)
        return self.l2 * x - torch.einsum("...nd,...n->...d", signed, weights * torch.sigmoid(-margins))

    def error(self, x: Tensor) -> Tensor:
        """Wrong predictions, counted over the records of all clients together; zero predicts label +1."""
        margins = torch.einsum("...nd,...d->...n", self.signed, x.unsqueeze(-2))
        wrong = (margins < 0) | ((margins == 0) & (self.signed[..., -1] < 0))  # the last entry is the label itself
        return (wrong & (self.weights > 0)).sum((-1, -2)) / sum(self.sizes)

    def alone(self, client: int) -> Self:
        return replace(
            self,
            signed=self.signed[client],
            weights=self.weights[client],
            sizes=self.sizes[client : client + 1],
            minibatches=self.minibatches and self.minibatches.alone(client),
        )


def logistic_clients(
    features: NDArray[np.float64],
    labels: NDArray[np.int64],
    parts: list[Indices],
    l2: float,
    batch: int | None,
    seed: int,
) -> LogisticClients:
    """Clients that hold the records `parts[i]` of a table: features [records, d], labels 0 or 1."""
    signed_records = features * (2 * labels - 1)[:, None]
    sizes = tuple(len(part) for part in parts)
    signed = torch.zeros(len(parts), max(sizes), features.shape[1], dtype=torch.float64)
    weights = torch.zeros(len(parts), max(sizes), dtype=torch.float64)
    for i, part in enumerate(parts):
        signed[i, : len(part)] = torch.from_numpy(signed_records[part])
        weights[i, : len(part)] = 1 / len(part)
    return LogisticClients(signed, weights, sizes, l2, Minibatches(seed, batch, sizes) if batch else None)
