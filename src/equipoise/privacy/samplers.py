"""Whole numbers that have exactly the law they are said to have: the rounded and the discrete
Gaussian.

Both begin with Box and Muller's pair, sqrt(-2 ln U) (cos, sin)(2 pi W), where U and W are uniform
real numbers, of which 64 bits each are drawn at first. Computed from these in double precision, a
normal is off by at most the `error` of `unit_pairs`. Where that leaves open which whole number is
the nearest, more bits of U and W are drawn, and the pair is computed in interval arithmetic, until
it is settled: so no value depends on a rounding error, and the tail has no end.

Assumed: numpy's log, cos and sin err by less than eight units in the last place (tests compare with
60 digits). How long sampling takes depends on the noise alone, never on what is noised.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Law = Literal["rounded", "discrete"]
Floats = NDArray[np.float64]
Bits = NDArray[np.uint64]

_AT_ONCE = 1 << 15  # pairs made at a time: what fits the processor's cache
_LEAST, _MOST = np.uint64(2**46), np.uint64(2**64 - 2**14)
_MORE = 16  # bytes of U and of W that are drawn at a time when those at hand leave something open
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


class Stream(NamedTuple):
    """AES-256 in counter mode: block n, counted from `start` (16 bytes), makes the n-th pair."""

    key: bytes
    start: bytes

    def blocks(self, first: int, count: int, purpose: bytes = b"") -> Bits:
        """[count, 2]: two integers of 64 bits for every pair."""
        key = hashlib.sha256(self.key + purpose).digest() if purpose else self.key
        encryptor = Cipher(algorithms.AES(key), modes.CTR(self.counter(first))).encryptor()
        return np.frombuffer(encryptor.update(bytes(16 * count)), "<u8").reshape(count, 2)

    def counter(self, block: int) -> bytes:
        return ((int.from_bytes(self.start) + block) % 2**128).to_bytes(16)


class Number(NamedTuple):
    """One of the two numbers of a pair, and the bits that are its own beyond the first 64."""

    stream: Stream
    block: int
    member: int
    attempt: int = 0

    def more(self, what: str, size: int) -> bytes:
        """`size` bytes by SHAKE-256; the first of them are the same whatever the size. The first U
        and W belong to the pair, everything else to the number alone."""
        whose = "pair" if what in "UW" and not self.attempt else f"member {self.member}"
        label = f"{whose}, attempt {self.attempt}: {what}".encode()
        key, counter = self.stream.key, self.stream.counter(self.block)
        return hashlib.shake_256(key + counter + label).digest(size)


def whole_numbers(
    law: Law, streams: Sequence[Stream], rows: int, length: int, scale: Floats
) -> Floats:
    """Whole numbers [streams, settings, rows, length] with standard deviation about `scale`, which
    is [streams or 1, settings, rows or 1, 1].

    rounded    round(scale N), N standard normal
    discrete   k with a probability proportional to exp(-k^2 / (2 scale^2))

    Settings of a stream differ in their scale alone: they share U and W. Row r begins at a block of
    its own, r * ceil(length / 2).
    """
    pairs = -(-length // 2)
    shape = (len(streams), scale.shape[1], rows, pairs, 2)
    drawn = np.empty(shape)
    scales = np.broadcast_to(scale[..., np.newaxis], (*shape[:3], 1, 1))
    rows_at_once = max(1, _AT_ONCE // (pairs * shape[0] * shape[1]))
    for row in range(0, rows, rows_at_once):
        for pair in range(0, pairs, _AT_ONCE):
            part = drawn[:, :, row : row + rows_at_once, pair : pair + _AT_ONCE]
            _draw(law, streams, row * pairs + pair, scales[:, :, row : row + rows_at_once], part)
    return drawn.reshape(*shape[:3], 2 * pairs)[..., :length]


def _draw(law: Law, streams: Sequence[Stream], first: int, scale: Floats, out: Floats) -> None:
    """Fill `out` [streams, settings, rows, pairs, 2] from the blocks that begin at `first`."""
    rows, pairs = out.shape[2:4]
    shape = (len(streams), 1, rows, pairs, 2)
    bits = _stacked(streams, first, shape)

    def number(place: Sequence[int]) -> Number:
        stream, _, row, pair, member = place
        return Number(streams[stream], first + row * pairs + pair, member)

    _round(bits, scale, number, out)
    if law == "discrete":
        _reject(_stacked(streams, first, shape, b"coins"), scale, number, out)


def _stacked(
    streams: Sequence[Stream], first: int, shape: tuple[int, ...], purpose: bytes = b""
) -> Bits:
    blocks = math.prod(shape[1:-1])
    if len(streams) == 1:
        return streams[0].blocks(first, blocks, purpose).reshape(shape)
    each = [stream.blocks(first, blocks, purpose) for stream in streams]
    return np.stack(each).reshape(shape)


def unit_pairs(bits: Bits) -> tuple[Floats, Floats]:
    """Pairs of standard normals [..., 2] in double precision, and the largest `error` that each may
    have [..., 1].

    U = (bits[..., 0] + V) / 2^64 with V in [0, 1) not yet drawn, W likewise; V = 1/2 is taken. With
    R = sqrt(-2 ln U): what is unknown of U, and rounding it, moves R by at most 2^-51 / R where U >
    2^-13, and below by at most 2^-47 / R, which is less than R 2^-51; everything else is at most R
    2^-48. Where U < 2^-18 or U > 1 - 2^-50, too little is known of U or of ln U: the error is
    infinite.
    """
    first = bits[..., 0]
    radius = np.sqrt(-2 * np.log((first + 0.5) * 2.0**-64))
    angle = (bits[..., 1].view(np.int64) + 0.5) * (2 * np.pi * 2.0**-64)
    normals = np.empty(bits.shape)
    np.multiply(radius, np.cos(angle), out=normals[..., 0])
    np.multiply(radius, np.sin(angle), out=normals[..., 1])
    with np.errstate(divide="ignore"):
        error = radius * 2.0**-47 + 2.0**-51 / radius
    error = np.where((first < _LEAST) | (first > _MOST), np.inf, error)
    return normals, error[..., np.newaxis]


def _round(
    bits: Bits, scale: Floats, number: Callable[[Sequence[int]], Number], out: Floats
) -> None:
    """Into `out` the whole numbers nearest to scale N."""
    normals, error = unit_pairs(bits)
    scaled = scale * normals
    np.rint(scaled, out=out)
    scaled -= out
    np.abs(scaled, out=scaled)
    for place in np.argwhere(scaled > 0.5 - scale * error).tolist():
        pair = bits[place[0], 0, place[2], place[3]]
        out[tuple(place)] = nearest(pair, number(place), float(scale[tuple(place[:3])][0, 0]))


def nearest(pair: Bits, number: Number, scale: float) -> int:
    """The whole number nearest to scale N, for a pair of 64-bit integers and as many more bits of U
    and W as it takes."""
    from mpmath.ctx_iv import MPIntervalContext

    iv, size = MPIntervalContext(), 0
    turn = (iv.cos, iv.sin)[number.member]
    while True:
        size += _MORE
        iv.prec = 2 * (64 + 8 * size)
        U, W = (
            _interval(iv, int(bits), number.more(name, size))
            for bits, name in zip(pair, "UW", strict=True)
        )
        if U.a > 0:
            z = iv.mpf(scale) * iv.sqrt(-2 * iv.log(U)) * turn(2 * iv.pi * W) + iv.mpf(0.5)
            low, high = map(_floor, z._mpi_)
            if low == high:
                return low


def _interval(iv: Any, bits: int, more: bytes) -> Any:
    """What is known of a uniform number: its first 64 bits, and those that were drawn since."""
    known = bits << 8 * len(more) | int.from_bytes(more)
    return iv.mpf([known, known + 1]) / 2 ** (64 + 8 * len(more))


def _floor(end: tuple[int, int, int, int]) -> int:
    """Of an end of an interval, as mpmath holds it: (-1)^sign mantissa 2^exponent."""
    sign, mantissa, exponent, _ = end
    whole = -int(mantissa) if sign else int(mantissa)
    return whole << exponent if exponent >= 0 else whole >> -exponent


def _reject(
    coins: Bits, scale: Floats, number: Callable[[Sequence[int]], Number], out: Floats
) -> None:
    """Make discrete Gaussians of rounded ones: keep k with probability g(0) / g(k), else draw it
    again.

    A rounded Gaussian has the weight phi(k / scale) g(k) at k, g(k) = integral over |t| < 1/2 of
    cosh(k t / scale^2) exp(-t^2 / (2 scale^2)). As a uniform t, and the more so one that prefers
    the middle, has E cosh(a t) <= exp(a^2 / 24), g(0) / g(k) >= 1 - k^2 / (24 scale^4): nearly all
    are kept without looking closer.
    """
    surely = 1 - (out / (scale * scale)) ** 2 / 24
    for place in np.argwhere(coins * 2.0**-64 > surely - 2.0**-45).tolist():
        spot = tuple(place)
        coin = int(coins[place[0], 0, place[2], place[3], place[4]])
        out[spot] = _discrete(int(out[spot]), coin, number(place), float(scale[spot[:3]][0, 0]))


def _discrete(k: int, coin: int, number: Number, scale: float) -> int:
    while not _keep(k, coin, number, scale):
        number = number._replace(attempt=number.attempt + 1)
        drawn = np.frombuffer(number.more("again", 24), "<u8")
        k, coin = _once_more(drawn[:2], number, scale), int(drawn[2])
    return k


def _once_more(pair: Bits, number: Number, scale: float) -> int:
    """`_round` for one number."""
    normals, error = unit_pairs(pair)
    scaled = scale * float(normals[number.member])
    if abs(scaled - round(scaled)) > 0.5 - scale * float(error[0]):
        return nearest(pair, number, scale)
    return round(scaled)


def _keep(k: int, coin: int, number: Number, scale: float) -> bool:
    """Whether a uniform number, of which 64 bits are `coin`, is below g(0) / g(k)."""
    t = _NODES / 2  # in (-1/2, 1/2)
    bell = _WEIGHTS * np.exp(-((t / scale) ** 2) / 2)
    with np.errstate(over="ignore"):
        kept = float(bell.sum() / (bell @ np.cosh(k / scale**2 * t)))
    if abs(coin * 2.0**-64 - kept) > 2.0**-40:
        return coin * 2.0**-64 < kept
    return _keep_exactly(k, coin, number, scale)


def _keep_exactly(k: int, coin: int, number: Number, scale: float) -> bool:
    from mpmath import mp

    size = 0
    while True:
        size += _MORE
        bits = 64 + 8 * size
        uniform = coin << 8 * size | int.from_bytes(number.more("coin", size))
        with mp.workprec(2 * bits + 64):
            variance = mp.mpf(scale) ** 2

            def weight(t: Any, variance: Any = variance) -> Any:
                return mp.exp(-t * t / (2 * variance))

            half = [0, mp.mpf(1) / 2]
            middle = mp.quad(weight, half)
            at_k = mp.quad(lambda t: mp.cosh(k * t / variance) * weight(t), half)  # noqa: B023
            kept = middle / at_k * 2**bits
            if abs(kept - uniform) > 2:
                return bool(uniform < kept)
