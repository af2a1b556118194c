"""Persons in place of records: clients who know whose each of their records is, seen as clients
that hold one person after the other, each with all its records (at most so many).

A person counts once, however many records it has: its loss is the mean over its records, and what
is clipped is the gradient of that mean. So whatever holds of one record (sampling, accounts,
stability) holds of one person word for word. Which records of a person with too many are taken is
decided by their order alone.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.device import in_double
from equipoise.errors import DataError, InvalidValue

if TYPE_CHECKING:
    from equipoise.tasks.linear import LinearClients
    from equipoise.tasks.network import ModelClients

AT_ONCE = 2**23  # numbers in the gradients of persons that are formed together


def numbered(names: Any, records: int) -> NDArray[np.int64]:
    """The persons 0, 1, ... of records, given a name for each: in the order in which they first
    occur, so that no name decides which number another has, nor by its length what all take."""
    names = np.asarray(names, dtype=object)
    if names.shape != (records,):
        raise DataError(
            f"persons: {names.shape[0] if names.ndim else 'no'} names for {records} records of a "
            "client; give one for each"
        )
    if any(name is None or name != name or str(name).strip() == "" for name in names.tolist()):
        raise DataError("persons: some record of a client has no person; every record needs one")
    numbers: dict[str, int] = {}
    index = [numbers.setdefault(_text(name), len(numbers)) for name in names.tolist()]
    return np.array(index, dtype=np.int64)


def _text(name: Any) -> str:
    """A number is one name, with a point or without."""
    return str(int(name)) if isinstance(name, float) and name.is_integer() else str(name)


def rows_of(owners: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """The first records of every person, [persons, most]; -1 where it has fewer."""
    persons = int(owners.max()) + 1 if len(owners) else 0
    rows = np.full((persons, most), -1)
    order = np.argsort(owners, kind="stable")
    _, starts, counts = np.unique(owners[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(starts, counts)
    kept = rank < most
    rows[owners[order][kept], rank[kept]] = order[kept]
    return rows


def held(owners: "tuple[NDArray[np.int64], ...]") -> tuple[int, ...]:
    """How many persons each client has."""
    return tuple(int(own.max()) + 1 if len(own) else 0 for own in owners)


@dataclass(frozen=True, repr=False)
class LinearPersons:
    """Clients of a linear model. `features` is [clients, persons, most, features], `targets`
    [clients, persons, most, outputs]; `shares` [clients, persons, most] is 1 / its number of
    records for each record of a person, 0 where there is none."""

    clients: "LinearClients"
    features: Tensor
    targets: Tensor
    shares: Tensor
    sizes: tuple[int, ...]
    alone: bool

    @classmethod
    def of(cls, clients: "LinearClients", most: int) -> "LinearPersons":
        assert clients.owners is not None
        sizes, f, k = held(clients.owners), clients.features.shape[-1], clients.targets.shape[-1]
        shape = len(sizes), max(*sizes, 1), most
        alone = clients.features.dim() == 2  # one client by itself has no axis of clients
        of_rows = [part[None] if alone else part for part in (clients.features, clients.targets)]
        device = clients.features.device
        features = torch.zeros(*shape, f, dtype=torch.float64, device=device)
        targets = torch.zeros(*shape, k, dtype=torch.float64, device=device)
        shares = torch.zeros(shape, dtype=torch.float64, device=device)
        for i, own in enumerate(clients.owners):
            rows = torch.from_numpy(rows_of(own, most))
            full, persons = rows >= 0, slice(0, len(rows))
            features[i, persons][full] = of_rows[0][i][rows[full]].double()
            targets[i, persons][full] = of_rows[1][i][rows[full]].double()
            shares[i, persons] = full.double() / full.sum(1, keepdim=True).clamp(min=1)
        return cls(clients, features, targets, shares, sizes, alone)

    def clipped_sum(self, x: Tensor, chosen: Tensor | None, C: float | Tensor, draw: int) -> Tensor:
        """Every person's gradient is formed before it is clipped: what cancels within a person must
        not leave its rounding in the sum."""
        if self.alone:
            masks = None if chosen is None else chosen.unsqueeze(-2)
            several = replace(self, alone=False)
            return several.clipped_sum(x.unsqueeze(-2), masks, C, draw).squeeze(-2)
        weights = x.reshape(*x.shape[:-1], self.targets.shape[-1], self.features.shape[-1])
        if isinstance(C, Tensor) and C.dim():
            C = C.unsqueeze(-1).to(x.device)
        threshold = C * (1 - 1e-12)
        chosen = None if chosen is None else chosen.to(x.device)
        counted = self.shares.sum(-1) > 0 if chosen is None else (self.shares.sum(-1) > 0) & chosen
        together = max(1, AT_ONCE // max(1, x.numel()))
        total = x.new_zeros(x.shape, dtype=torch.float64)
        for start in range(0, self.features.shape[1], together):
            some = slice(start, start + together)
            features, shares = self.features[:, some], self.shares[:, some, :, None]
            outputs = torch.einsum("cprf,...ckf->...cprk", features, weights.double())
            slopes = self.clients.link.residual(outputs, self.targets[:, some]) * shares
            gradients = torch.einsum("...cprk,cprf->...cpkf", slopes, features).flatten(-2)
            length = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True)
            clipped = gradients * (threshold / length).clamp(max=1.0).nan_to_num(0.0)
            into = counted[..., some].unsqueeze(-1) & length.isfinite()
            total += torch.where(into, clipped, 0.0).sum(-2)
        return total

    def regulariser(self, x: Tensor) -> Tensor:
        return self.clients.regulariser(x)

    def check_records(self) -> None:
        """Persons of a table can always be told apart."""

    def isolated(self) -> Self:
        raise InvalidValue(
            "isolate with a linear model, whose persons cannot mix: it belongs to networks; leave "
            "it out"
        )

    def slow_layers(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, repr=False)
class ModelPersons:
    """Clients of a network. Every person has a pass of its own, so that nothing a model does to a
    batch lets persons mix."""

    clients: "ModelClients"
    most: int

    @property
    def sizes(self) -> tuple[int, ...]:
        assert self.clients.owners is not None
        return held(self.clients.owners)

    @cached_property
    def _rows(self) -> list[list[Tensor]]:
        """The records of each client's persons."""
        assert self.clients.owners is not None
        tables = [rows_of(own, self.most) for own in self.clients.owners]
        return [[torch.from_numpy(row[row >= 0]) for row in table] for table in tables]

    def clipped_sum(self, x: Tensor, chosen: Tensor | None, C: float | Tensor, draw: int) -> Tensor:
        if x.dim() == 1:
            return self._sum(0, x, chosen, float(C), draw)
        masks = [None] * len(x) if chosen is None else chosen
        parts = [self._sum(i, x[i], masks[i], float(C), draw) for i in range(len(x))]
        return torch.stack(parts)

    def _sum(self, i: int, x: Tensor, chosen: Tensor | None, C: float, draw: int) -> Tensor:
        total, eps = in_double(torch.zeros_like(x)), torch.finfo(torch.float64).eps
        threshold = C * (1 - eps * (8 + len(x)))
        for person, rows in enumerate(self._rows[i]):
            if chosen is not None and not bool(chosen[person]):
                continue
            gradient = in_double(self.clients.gradient_of(i, rows, x, "a person", draw, person))
            length = torch.linalg.vector_norm(gradient)
            if bool(length.isfinite()):
                total += gradient * (threshold / length).clamp(max=1.0).nan_to_num(0.0)
        return total

    def regulariser(self, x: Tensor) -> Tensor:
        return self.clients.regulariser(x)

    def check_records(self) -> None:
        """Nobody meets anybody."""

    def isolated(self) -> Self:
        return self

    def slow_layers(self) -> tuple[str, ...]:
        return ()
