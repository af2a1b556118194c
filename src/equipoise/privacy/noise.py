"""Where the randomness of the noise comes from: AES-256 in counter mode, turned into normals by Box
and Muller.

`SecretNoise` takes a fresh key from the operating system for every draw, so nothing can be
repeated, predicted, or shared by two processes. `SimulatedNoise` derives its key from a seed:
whoever knows the seed can subtract the noise, so it exists for simulation only and every result
made with it says so.
"""

import math
import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from equipoise.seeds import digest

Draw = Callable[[list[bytes], bytes, int], NDArray[np.float64]]
_AT_ONCE = 1 << 17  # normals made at a time: what fits the processor's cache


class NoiseSource(Protocol):
    """Independent standard normals for every noisy release, and secret coins for every sample of
    records."""

    name: str

    def normals(self, round: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Normals of shape [..., clients, d] (or [d] for one client alone) for this round's
        release."""
        ...

    def uniforms(self, step: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Uniforms on (0, 1) of shape [..., clients, records] (or [records]) for the sample of this
        local step."""
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

    `first_client` says which client the first row is, so that one client alone draws what it draws
    among all. Stacked runs [runs, clients, d] share their noise (common random numbers); of [seeds,
    runs, clients, d] those of a seed do.
    """

    def __init__(self, *seeds: int, first_client: int = 0) -> None:
        self.name = f"simulated from seed {', '.join(map(str, seeds))}: not private"
        self._keys = [
            [digest(32, seed, f"simulated {what}") for seed in seeds]
            for what in ("noise", "sample")
        ]
        self._first_client = first_client

    def normals(self, round: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return self._rows(_normals, self._keys[0], round, shape)

    def uniforms(self, step: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return self._rows(_uniforms, self._keys[1], step, shape)

    def _rows(
        self, draw: Draw, keys: list[bytes], number: int, shape: tuple[int, ...]
    ) -> NDArray[np.float64]:
        clients, length = shape[-2:] if len(shape) > 1 else (1, shape[0])
        even = length + length % 2  # a row starts on a block of 16 bytes, which makes two numbers
        start = number.to_bytes(8) + (self._first_client * even // 2).to_bytes(8)
        rows = draw(keys, start, clients * even).reshape(len(keys), 1, clients, even)[..., :length]
        if len(shape) > 3:
            return rows
        return np.broadcast_to(rows[0, 0] if len(shape) > 1 else rows[0, 0, 0], shape)


def standard_normals(key: bytes, start: bytes, count: int) -> NDArray[np.float64]:
    """`count` standard normals from AES-256-CTR under `key`, its counter beginning at `start` (16
    bytes)."""
    return _normals([key], start, count).reshape(count)


def standard_uniforms(key: bytes, start: bytes, count: int) -> NDArray[np.float64]:
    """`count` uniforms on (0, 1), odd multiples of 2^-53, from AES-256-CTR as above."""
    return _uniforms([key], start, count).reshape(count)


def _normals(keys: list[bytes], start: bytes, count: int) -> NDArray[np.float64]:
    """[keys, count]: those of several keys in one computation."""
    encryptors = [Cipher(algorithms.AES(key), modes.CTR(start)).encryptor() for key in keys]
    pairs = np.empty((len(keys), -(-count // 2), 2))
    at_once = max(1, _AT_ONCE // 2 // len(keys))
    for first in range(0, pairs.shape[1], at_once):
        part = pairs[:, first : first + at_once]
        bits = b"".join(encryptor.update(bytes(part[0].nbytes)) for encryptor in encryptors)
        box_muller(np.frombuffer(bits, "<u8").reshape(part.shape), part)
    return pairs.reshape(len(keys), -1)[:, :count]


def _uniforms(keys: list[bytes], start: bytes, count: int) -> NDArray[np.float64]:
    encryptors = (Cipher(algorithms.AES(key), modes.CTR(start)).encryptor() for key in keys)
    bits = np.frombuffer(
        b"".join(encryptor.update(bytes(8 * count)) for encryptor in encryptors), "<u8"
    )
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5).reshape(len(keys), count) * 2.0**-52


def box_muller(bits: NDArray[np.uint64], normals: NDArray[np.float64]) -> None:
    """Turn pairs of 64-bit integers into pairs of normals: sqrt(-2 ln u) (cos, sin)(2 pi w), u and
    w uniform.

    All 64 bits of u count, so the tail reaches sqrt(2 * 65 ln 2) = 9.49 standard deviations.
    """
    uniform = (bits + 0.5) * 2.0**-64  # in (0, 1]
    radius = np.sqrt(-2 * np.log(uniform[..., 0]))
    angle = 2 * np.pi * uniform[..., 1]
    np.multiply(radius, np.cos(angle), out=normals[..., 0])
    np.multiply(radius, np.sin(angle), out=normals[..., 1])
