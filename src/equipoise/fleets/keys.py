"""The keys of a silo: one that says to a link who it is, and one for masks.

A public key is a small text for everybody; a private one is a file that only its owner reads.
"""

import os
import re
import tomllib
from base64 import b64decode, b64encode
from pathlib import Path
from typing import NamedTuple, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP384R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

from equipoise.errors import EquipoiseError, InvalidValue, require

NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
OPENSSH, RAW = serialization.Encoding.OpenSSH, serialization.Encoding.Raw
PUBLIC = "# public keys of a silo: give this file to whoever proposes the agreement\n"
PRIVATE = "# PRIVATE keys of a silo: this file stays where it is\n"


class PublicKeys(NamedTuple):
    """What everybody may know of a silo's keys."""

    name: str
    node: str
    """ECDSA P-384 in OpenSSH's one line."""
    mask: str
    """X25519, 32 bytes in base64."""

    def mask_bytes(self) -> bytes:
        """The mask key itself."""
        try:
            key = b64decode(self.mask, validate=True)
        except ValueError:
            key = b""
        require(len(key) == 32, "mask: not a key of 32 bytes in base64")
        return key

    def text(self) -> str:
        lines = [f'{field} = "{value}"\n' for field, value in self._asdict().items()]
        return PUBLIC + "".join(lines)


class PrivateKeys(NamedTuple):
    name: str
    node: EllipticCurvePrivateKey
    mask: X25519PrivateKey

    @classmethod
    def new(cls, name: str) -> Self:
        require(
            NAME.fullmatch(name) is not None,
            f"name={name} is not a silo's name: use a-z, 0-9 and hyphens, such as clinic-a",
        )
        return cls(name, generate_private_key(SECP384R1()), X25519PrivateKey.generate())

    def public(self) -> PublicKeys:
        node = self.node.public_key().public_bytes(OPENSSH, serialization.PublicFormat.OpenSSH)
        mask = self.mask.public_key().public_bytes(RAW, serialization.PublicFormat.Raw)
        return PublicKeys(self.name, node.decode(), b64encode(mask).decode())

    def text(self) -> str:
        plain = serialization.NoEncryption()
        node = self.node.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain
        )
        mask = self.mask.private_bytes(RAW, serialization.PrivateFormat.Raw, plain)
        return (
            f'{PRIVATE}name = "{self.name}"\n'
            f'private_node = """\n{node.decode()}"""\n'
            f'private_mask = "{b64encode(mask).decode()}"\n'
        )

    def __repr__(self) -> str:
        return f"PrivateKeys({self.name}, private)"


def write_keys(keys: PrivateKeys, folder: Path) -> tuple[Path, Path]:
    """Write NAME.key, for its owner alone, and NAME.pub; where one of them is, nothing is
    written."""
    private, public = folder / f"{keys.name}.key", folder / f"{keys.name}.pub"
    for path in (private, public):
        require(not path.exists(), f"{path} is there already: keys are never overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    write_private(private, keys.text().encode())
    public.write_text(keys.public().text())
    return private, public


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, from its first moment on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def read_public(path: Path) -> PublicKeys:
    """The public keys in a file NAME.pub."""
    values = _values(path)
    if "private_node" in values:
        raise InvalidValue(
            f"{path} holds private keys, which stay where they are: give the .pub file beside it"
        )
    try:
        keys = PublicKeys(values["name"], values["node"], values["mask"])
        check_public(keys)
    except (KeyError, TypeError, ValueError):
        raise _no_keys(path) from None
    return keys


def check_public(keys: PublicKeys) -> None:
    """Refuse what are no public keys."""
    require(
        NAME.fullmatch(keys.name) is not None,
        f"name={keys.name} is not a silo's name: use a-z, 0-9 and hyphens, such as clinic-a",
    )
    node_key(keys.node)
    mask = X25519PublicKey.from_public_bytes(keys.mask_bytes())
    try:
        X25519PrivateKey.generate().exchange(mask)
    except ValueError:
        raise InvalidValue("mask: a key with which nobody shares a secret") from None


def read_private(path: Path) -> PrivateKeys:
    """The private keys in a file NAME.key, which nobody else may read."""
    values = _values(path)
    if "private_node" not in values:
        raise InvalidValue(f"{path} holds no private keys: give the .key file beside it")
    mode = path.stat().st_mode & 0o077
    if mode:
        raise InvalidValue(f"{path} can be read by others: chmod 600 {path}")
    try:
        require(NAME.fullmatch(values["name"]) is not None, "")
        node = serialization.load_pem_private_key(values["private_node"].encode(), None)
        mask = X25519PrivateKey.from_private_bytes(b64decode(values["private_mask"], validate=True))
        require(isinstance(node, EllipticCurvePrivateKey), "")
    except (KeyError, TypeError, ValueError, UnsupportedAlgorithm):
        raise _no_keys(path) from None
    assert isinstance(node, EllipticCurvePrivateKey)
    return PrivateKeys(values["name"], node, mask)


def node_key(text: str) -> EllipticCurvePublicKey:
    """A node's public key from OpenSSH's one line."""
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP384R1):
        raise InvalidValue("node: not a key of the kind ecdsa-sha2-nistp384")
    return key


def _values(path: Path) -> dict[str, str]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise EquipoiseError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise _no_keys(path) from None


def _no_keys(path: Path) -> InvalidValue:
    return InvalidValue(f"{path} holds no keys of a silo: `equipoise keys new NAME` makes them")
