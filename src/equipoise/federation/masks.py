"""Pairwise masks: what makes a sum of messages the only thing that the lead can read.

Silos i < j share a key by Diffie and Hellman on X25519 (RFC 7748). Of it, of the agreement, the
round and the model that was sent, HKDF (RFC 5869) makes the key of a stream of numbers modulo 2^32,
AES-256 in counter mode; i adds it to its message, and j subtracts it. In the sum over all silos,
modulo 2^32, all masks cancel. To whoever has none of the keys each message by itself is uniform,
and so is the sum of any of them but all. If the lead sends silos different models, or leaves one
out, what it adds up is uniform too. There is no way around a silo that is missing: the round stops.
(The construction is that of Bonawitz et al., "Practical secure aggregation for privacy-preserving
machine learning", 2017, without what lets clients drop out.)
"""

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

MaskKey = X25519PrivateKey


def mask(
    own: MaskKey, index: int, public: Sequence[bytes], about: bytes, length: int
) -> NDArray[np.uint32]:
    """What the silo `index` adds to a message of so many numbers. `public` are the keys of all
    silos; `about` says which message it is, and is never used for two."""
    total = np.zeros(length, dtype=np.uint32)
    for other, key in enumerate(public):
        if other != index:
            stream = _stream(own.exchange(X25519PublicKey.from_public_bytes(key)), about, length)
            total += stream if index < other else -stream  # modulo 2^32
    return total


def _stream(shared: bytes, about: bytes, length: int) -> NDArray[np.uint32]:
    made = HKDF(SHA256(), 48, None, b"equipoise mask 1" + about).derive(shared)
    cipher = Cipher(algorithms.AES256(made[:32]), modes.CTR(made[32:]))
    return np.frombuffer(cipher.encryptor().update(bytes(4 * length)), dtype="<u4")
