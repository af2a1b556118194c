"""Named random streams. There is no global generator: every draw says what it is for.

These streams are public: they decide splits, coins and minibatches. Noise that protects anybody
never comes from here (see `privacy.noise`).
"""

from hashlib import blake2b

import numpy as np


def digest(size: int, seed: int, *name: str | int) -> bytes:
    """`size` bytes that depend on the seed and the name of the stream, and on nothing else."""
    return blake2b(repr((seed, *name)).encode(), digest_size=size).digest()


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """The generator of the stream `name` under `seed`, e.g. ``stream(0, "minibatch", client,
    epoch)``."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest(16, seed, *name))))
