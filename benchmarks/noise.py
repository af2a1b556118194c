"""What secret noise costs: nanoseconds of processor time a number, for a million numbers.

    make bench-noise

`before` is the release that the lattice replaced: the same cipher and transformation, scaled and
added in floating point. Everything is timed in turns, on one thread; the quickest turn counts.
"""

import os
import time
from collections.abc import Callable

import numpy as np
import torch

from equipoise.privacy.clip import ClippedRelease, clip
from equipoise.privacy.lattice import Lattice, Sums, discrete_sigma, spacing
from equipoise.privacy.noise import SecretNoise
from equipoise.privacy.samplers import Stream

NUMBERS, TURNS, AT_ONCE = 10**6, 9, 1 << 15
SIGMA = 3.0


def box_muller() -> np.ndarray:
    """Normals from the cipher, in double precision."""
    stream, pairs = Stream(os.urandom(32), os.urandom(16)), np.empty((NUMBERS // 2, 2))
    for first in range(0, len(pairs), AT_ONCE):
        part = pairs[first : first + AT_ONCE]
        uniform = (stream.blocks(first, len(part)) + 0.5) * 2.0**-64
        radius, angle = np.sqrt(-2 * np.log(uniform[:, 0])), 2 * np.pi * uniform[:, 1]
        np.multiply(radius, np.cos(angle), out=part[:, 0])
        np.multiply(radius, np.sin(angle), out=part[:, 1])
    return pairs.reshape(-1)


def ways() -> dict[str, Callable[[], object]]:
    noise, update = SecretNoise(), torch.randn(NUMBERS, dtype=torch.float64) / 1e4
    sums = Sums(20, 19)
    gamma = spacing(1.0, SIGMA, sums)
    share = discrete_sigma(SIGMA, gamma, sums)
    alone = ClippedRelease(1.0, SIGMA)
    summed = ClippedRelease(1.0, share, Lattice(gamma, sums=True))
    generator, scale = np.random.default_rng(0), SIGMA / float(alone.lattice.gamma)
    return {
        "torch.randn, float32 (no secret)": lambda: torch.randn(NUMBERS),
        "torch.randn, float64 (no secret)": lambda: torch.randn(NUMBERS, dtype=torch.float64),
        "numpy's generator (no secret)": lambda: generator.standard_normal(NUMBERS),
        "before: normals from the cipher": box_muller,
        "rounded Gaussian": lambda: noise.whole("rounded", 1, (NUMBERS,), scale),
        "discrete Gaussian": lambda: noise.whole("discrete", 1, (NUMBERS,), share / gamma),
        "before: a whole release in floating point": lambda: (
            clip(update, 1.0) + SIGMA * torch.from_numpy(box_muller())
        ),
        "a whole release, seen by itself": lambda: alone.release(update, noise, 1),
        "a whole release, seen in sums": lambda: summed.release(update, noise, 1),
    }


def main() -> None:
    torch.set_num_threads(1)
    chosen = ways()
    best = dict.fromkeys(chosen, float("inf"))
    for _ in range(TURNS):
        for name, way in chosen.items():
            start = time.process_time()
            way()
            best[name] = min(best[name], time.process_time() - start)
    reference = best["before: normals from the cipher"]
    print(f"{'':44} ns a number   of before")
    for name, seconds in best.items():
        print(f"{name:44} {seconds / NUMBERS * 1e9:11.1f}   {seconds / reference:9.2f}")


if __name__ == "__main__":
    main()
