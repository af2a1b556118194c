"""Noise in every local gradient: what makes local steps private for one record, whatever is done
with them afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from equipoise.errors import DataError, require
from equipoise.privacy.clip import drawn_for, on_lattice
from equipoise.privacy.lattice import Lattice, inner_clip
from equipoise.privacy.noise import NoiseSource

_DRAWS = 2**62  # where the numbering of coins for what is random in a model begins


class RecordClients(Protocol):
    """Clients whose records can be told apart."""

    @property
    def sizes(self) -> tuple[int, ...]: ...

    def clipped_sum(self, x: Tensor, chosen: Tensor | None, C: float | Tensor, draw: int) -> Tensor:
        """The sum over each client's chosen records of their gradients at its x [..., clients, d],
        each clipped to `C`.

        `chosen` is a mask [..., clients, largest size] (None: all). A gradient that is not finite
        counts as zero. What is random in a model (dropout) depends on the secret number `draw`, and
        is independent for every record.
        """
        ...

    def regulariser(self, x: Tensor) -> Tensor:
        """The gradient of what the loss has besides the mean over records: it depends on no
        record.
        """
        ...


@dataclass(frozen=True)
class NoisyGradient:
    """(sum of clipped gradients of a Poisson sample + noise) / expected size of the sample, plus
    the regulariser.

    rates      the sampling rate of each client
    sigma      of the noise in the sum; one number, or one for each client [clients, 1]
    C          the clip of each record's gradient
    lattice    where the noised sum lies; None: nobody sees a sum by itself, and the noise is a
               normal number in double precision
    largest    how many records the largest client has, where it is not here

    A record is in the sample by a secret coin of its own, so neither the sample nor its size is
    known to anybody. Every record's gradient is clipped to so much less than C that rounding the
    sum to the lattice adds nothing to what one record can move.
    """

    clients: RecordClients
    C: float | Tensor
    sigma: float | Tensor
    rates: tuple[float, ...]
    noise: NoiseSource
    lattice: Lattice | None
    largest: int | None = None

    def __post_init__(self) -> None:
        for client, (size, rate) in enumerate(zip(self.clients.sizes, self.rates, strict=True)):
            require(0 < rate <= 1, f"sampling_rate={rate} of client {client} is not in (0, 1]")
            if size < 1:
                raise DataError(
                    f"client {client} has no records: it cannot take part when the unit is a record"
                )

    def __call__(self, x: Tensor, t: int) -> Tensor:
        """The private gradient of every client at its x [..., clients, d], at local step t; of one
        client alone at x [d]."""
        draw = int(2**52 * self.noise.uniforms(_DRAWS + t, (1, 1)).flat[0])
        gamma = 0.0 if self.lattice is None else self.lattice.gamma
        C = inner_clip(self.C, gamma, x.shape[-1], self._largest)
        total = self.clients.clipped_sum(x, self._sample(x, t), C, draw).double()
        if self.lattice is not None:
            drawn = drawn_for(total, self.sigma, self.lattice, self.noise, t + 1)
            total = on_lattice(total.cpu(), drawn, self.lattice)
        elif torch.as_tensor(self.sigma).any():
            normals = torch.tensor(self.noise.normals(t + 1, tuple(total.shape)))
            total = total.cpu() + self.sigma * normals
        expected = [size * rate for size, rate in zip(self.clients.sizes, self.rates, strict=True)]
        mean = total / _column(expected, x).to(total.device)
        return mean.to(x) + self.clients.regulariser(x)

    def _sample(self, x: Tensor, t: int) -> Tensor | None:
        if all(rate == 1 for rate in self.rates):
            return None
        coins = torch.tensor(self.noise.uniforms(t + 1, (*x.shape[:-1], self._largest)))
        return (coins < _column(self.rates, x))[..., : max(self.clients.sizes)]

    @property
    def _largest(self) -> int:
        return self.largest or max(self.clients.sizes)


def _column(numbers: Sequence[float], x: Tensor) -> Tensor:
    """A number for each client, against x [..., clients, d], or against [d] of one client alone."""
    column = torch.tensor(numbers, dtype=torch.float64)
    return column.unsqueeze(-1) if x.dim() > 1 else column
