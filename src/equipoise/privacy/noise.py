"""Where the randomness of the noise comes from: AES-256 in counter mode, turned into normals by Box and Muller.

`SecretNoise` takes a fresh key from the operating system for every draw, so nothing can be repeated, predicted, or
shared by two processes. `SimulatedNoise` derives its key from a seed: whoever knows the seed can subtract the noise,
so it exists for simulation only and every result made with it says so.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from equipoise.seeds import digest

Draw = Callable[[bytes, bytes, int], NDArray[np.float64]]
_AT_ONCE = 1 << 17  # normals made at a time: what fits the processor's cache


class NoiseSource(Protocol):
    """Independent standard normals for every noisy release, and secret coins for every sample of records."""

    name: str

    def normals(self, round: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Normals of shape [..., clients, d] (or [d] for one client alone) for this round's release."""
        ...

    def uniforms(self, step: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Uniforms on (0, 1) of shape [..., clients, records] (or [records]) for the sample of this local step."""
        ...


class SecretNoise:
    """Noise that nobody can know: the only source that protects anyone."""

    name = "AES-256-CTR keyed by the operating system"

    def normals(self, round: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return standard_normals(os.urandom(32), os.urandom(16), math.prod(shape)).reshape(shape)

    def uniforms(self, step: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return standard_uniforms(os.urandom(32), os.urandom(16), math.prod(shape)).reshape(shape)


class SimulatedNoise:
    """Reproducible noise: client i's normals in round k depend only on (seed, i, k).

    `first_client` says which client the first row is, so that one client alone draws what it draws among all.
    Stacked runs [runs, clients, d] share their noise (common random numbers).
    """

    def __init__(self, seed: int, first_client: int = 0) -> None:
        self.name = f"simulated from seed {seed}: not private"
        self._keys = digest(32, seed, "simulated noise"), digest(32, seed, "simulated sample")
        self._first_client = first_client

    def normals(self, round: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return self._rows(standard_normals, self._keys[0], round, shape)

    def uniforms(self, step: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return self._rows(standard_uniforms, self._keys[1], step, shape)

    def _rows(self, draw: Draw, key: bytes, number: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        clients, length = shape[-2:] if len(shape) > 1 else (1, shape[0])
        even = length + length % 2  # a row starts on a block of 16 bytes, which makes two numbers
        start = number.to_bytes(8) + (self._first_client * even // 2).to_bytes(8)
        rows = draw(key, start, clients * even).reshape(clients, even)[:, :length]
        return np.broadcast_to(rows if len(shape) > 1 else rows[0], shape)


class SimulatedNoises:
    """Noise for stacked runs [rows, settings, clients, d]: the runs of a row share a source."""

    name = "simulated: not private"

    def __init__(self, rows: Sequence[SimulatedNoise]) -> None:
        self._rows = rows

    def normals(self, round: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return np.stack([row.normals(round, shape[-2:]) for row in self._rows])[:, None]

    def uniforms(self, step: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return np.stack([row.uniforms(step, shape[-2:]) for row in self._rows])[:, None]


def standard_normals(key: bytes, start: bytes, count: int) -> NDArray[np.float64]:
    """`count` standard normals from AES-256-CTR under `key`, its counter beginning at `start` (16 bytes)."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()
    pairs = np.empty((-(-count // 2), 2))
    for first in range(0, len(pairs), _AT_ONCE // 2):
        part = pairs[first : first + _AT_ONCE // 2]
        box_muller(np.frombuffer(encryptor.update(bytes(part.nbytes)), "<u8").reshape(part.shape), part)
    return pairs.reshape(-1)[:count]


def standard_uniforms(key: bytes, start: bytes, count: int) -> NDArray[np.float64]:
    """`count` uniforms on (0, 1), odd multiples of 2^-53, from AES-256-CTR as above."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()
    bits = np.frombuffer(encryptor.update(bytes(8 * count)), "<u8")
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def box_muller(bits: NDArray[np.uint64], normals: NDArray[np.float64]) -> None:
    """Turn pairs of 64-bit integers into pairs of normals: sqrt(-2 ln u) (cos, sin)(2 pi w), u and w uniform.

    All 64 bits of u count, so the tail reaches sqrt(2 * 65 ln 2) = 9.49 standard deviations.
    """
    uniform = (bits + 0.5) * 2.0**-64  # in (0, 1]
    radius = np.sqrt(-2 * np.log(uniform[:, 0]))
    angle = 2 * np.pi * uniform[:, 1]
    np.multiply(radius, np.cos(angle), out=normals[:, 0])
    np.multiply(radius, np.sin(angle), out=normals[:, 1])
