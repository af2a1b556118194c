"""Where the randomness of the noise comes from: AES-256 in counter mode, turned into noise by
`samplers`.

`SecretNoise` takes a fresh key from the operating system for every draw, so nothing can be
repeated, predicted, or shared by two processes. `RepeatableNoise` derives the keys of its draws
from one such key, which is as secret, so that a run that was killed can repeat the rounds that
nobody saw, bit for bit. `SimulatedNoise` derives its key from a seed:
whoever knows the seed can subtract the noise, so it exists for simulation only and every result
made with it says so.
"""

import hashlib
import math
import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from equipoise.privacy.samplers import Law, Stream, unit_pairs, whole_numbers
from equipoise.seeds import digest

Floats = NDArray[np.float64]
Draw = Callable[[list[Stream], int], Floats]
_AT_ONCE = 1 << 15  # pairs of normals made at a time: what fits the processor's cache


class NoiseSource(Protocol):
    """Independent noise for every release, and secret coins for every sample of records."""

    name: str

    def whole(self, law: Law, round: int, shape: tuple[int, ...], scale: Any) -> Floats:
        """Whole numbers of shape [..., clients, d] (or [d] for one client alone) for this round's
        release, by the law and with the standard deviation `scale`, a number or an array that
        broadcasts."""
        ...

    def normals(self, round: int, shape: tuple[int, ...]) -> Floats:
        """Standard normals, for noise that is not released by itself: in double precision, and no
        more exact than that."""
        ...

    def uniforms(self, step: int, shape: tuple[int, ...]) -> Floats:
        """Uniforms on (0, 1) of shape [..., clients, records] (or [records]) for the sample of this
        local step."""
        ...


class SecretNoise:
    """Noise that nobody can know: the only source that protects anyone."""

    name = "AES-256-CTR keyed by the operating system"

    def whole(self, law: Law, round: int, shape: tuple[int, ...], scale: Any) -> Floats:
        scale = np.asarray(scale, dtype=np.float64)
        shape = np.broadcast_shapes(shape, scale.shape)
        rows = math.prod(shape[:-1])
        scales = np.broadcast_to(scale, (*shape[:-1], 1)).reshape(1, 1, rows, 1)
        return whole_numbers(law, [self._fresh()], rows, shape[-1], scales).reshape(shape)

    def normals(self, round: int, shape: tuple[int, ...]) -> Floats:
        return _normals([self._fresh()], math.prod(shape)).reshape(shape)

    def uniforms(self, step: int, shape: tuple[int, ...]) -> Floats:
        return _uniforms([self._fresh()], math.prod(shape)).reshape(shape)

    def _fresh(self) -> Stream:
        return Stream(os.urandom(32), os.urandom(16))


class RepeatableNoise(SecretNoise):
    """Secret noise whose draws can be repeated by whoever has the `key`, and by nobody else: the
    n-th draw under it is AES-256-CTR under the n-th key that keyed BLAKE2b makes of it. No two
    draws share one, whatever they are for."""

    def __init__(self) -> None:
        self.begin(os.urandom(32))

    def begin(self, key: bytes) -> None:
        """Draw from now on under this key, from its first draw on."""
        self.key, self._drawn = key, 0

    def _fresh(self) -> Stream:
        number = self._drawn.to_bytes(8)
        made = hashlib.blake2b(number, digest_size=48, key=self.key, person=b"equipoise noise")
        self._drawn += 1
        return Stream(made.digest()[:32], made.digest()[32:])


class SimulatedNoise:
    """Reproducible noise: client i's noise in round k depends only on (seed, i, k).

    `first_client` says which client the first row is, so that one client alone draws what it draws
    among all. Stacked runs [runs, clients, d] share their noise (common random numbers); of [seeds,
    runs, clients, d] those of a seed do.
    """

    def __init__(self, *seeds: int, first_client: int = 0) -> None:
        self.name = f"simulated from seed {', '.join(map(str, seeds))}: not private"
        self._keys = {
            what: [digest(32, seed, f"simulated {what}") for seed in seeds]
            for what in ("noise", "sample")
        }
        self._first_client = first_client

    def whole(self, law: Law, round: int, shape: tuple[int, ...], scale: Any) -> Floats:
        scale = np.asarray(scale, dtype=np.float64)
        axes = max(len(shape), scale.ndim)
        seeds, settings, clients, d = (1,) * (4 - len(shape)) + shape
        scales = scale.reshape((1,) * (4 - scale.ndim) + scale.shape)
        drawn = whole_numbers(law, self._streams("noise", round, d), clients, d, scales)
        full = np.broadcast_shapes(drawn.shape, (seeds, settings, clients, d))
        return np.broadcast_to(drawn, full).reshape(full[4 - axes :])

    def normals(self, round: int, shape: tuple[int, ...]) -> Floats:
        return self._rows(_normals, "noise", round, shape)

    def uniforms(self, step: int, shape: tuple[int, ...]) -> Floats:
        return self._rows(_uniforms, "sample", step, shape)

    def _rows(self, draw: Draw, what: str, number: int, shape: tuple[int, ...]) -> Floats:
        clients, length = shape[-2:] if len(shape) > 1 else (1, shape[0])
        even = length + length % 2  # a row starts on a block of 16 bytes, which makes two numbers
        drawn = draw(self._streams(what, number, length), clients * even)
        rows = drawn.reshape(len(drawn), 1, clients, even)[..., :length]
        if len(shape) > 3:
            return rows
        return np.broadcast_to(rows[0, 0] if len(shape) > 1 else rows[0, 0, 0], shape)

    def _streams(self, what: str, number: int, length: int) -> list[Stream]:
        """One for each seed, beginning with the row of the first client."""
        start = number.to_bytes(8) + (self._first_client * -(-length // 2)).to_bytes(8)
        return [Stream(key, start) for key in self._keys[what]]


def _normals(streams: list[Stream], count: int) -> Floats:
    """[streams, count]."""
    pairs = np.empty((len(streams), -(-count // 2), 2))
    for s, stream in enumerate(streams):
        for first in range(0, pairs.shape[1], _AT_ONCE):
            part = pairs[s, first : first + _AT_ONCE]
            part[:], _ = unit_pairs(stream.blocks(first, len(part)))
    return pairs.reshape(len(streams), -1)[:, :count]


def _uniforms(streams: list[Stream], count: int) -> Floats:
    """[streams, count], odd multiples of 2^-53."""
    bits = np.stack([stream.blocks(0, -(-count // 2)).reshape(-1)[:count] for stream in streams])
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
