"""What travels between lead and silo: bytes of a fixed form, in which nothing has a length of its
own but what everybody knows."""

import hashlib
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import EquipoiseError

_QUESTION, _ANSWER, _REFUSAL = b"EQP1?", b"EQP1!", b"EQP1-"
_FORM = struct.Struct("<5s32sIc")  # magic, agreement, round, kind of number
_KINDS: dict[bytes, "np.dtype[Any]"] = {
    b"f": np.dtype("<f4"),
    b"d": np.dtype("<f8"),
    b"u": np.dtype("<u4"),
}
DONE = 0  # the round of a question that says: no more will come
Numbers = NDArray[np.float32] | NDArray[np.float64] | NDArray[np.uint32]

WORDS = {
    "form": "it is no question of this version",
    "agreement": "it is about another agreement",
    "order": "the round is not the next one",
    "another": "another model was sent for this round before",
    "size": "the model has another size",
    "finite": "the model is not finite",
    "far": "the model is longer than rounding allows, where the stability of steps bounds a record",
    "ledger": "its ledger does not let the release out",
    "failed": "something failed there; its own log says what",
}
"""All that a silo says when it does not answer, and what it means."""


class Message(NamedTuple):
    """A round and its numbers: the model on the way to a silo, a release on the way back."""

    round: int
    numbers: Numbers


class BadMessage(EquipoiseError):
    """What came is not what was agreed on; `word` is one of WORDS."""

    def __init__(self, word: str) -> None:
        super().__init__(f"refused: {WORDS[word]}")
        self.word = word


def question(agreement: bytes, round: int, x: Numbers) -> bytes:
    return _packed(_QUESTION, agreement, round, x)


def answer(agreement: bytes, round: int, release: Numbers) -> bytes:
    return _packed(_ANSWER, agreement, round, release)


def refusal(agreement: bytes, word: str) -> bytes:
    assert word in WORDS
    return _FORM.pack(_REFUSAL, agreement, 0, b"-") + word.encode()


def read_question(message: bytes, agreement: bytes) -> Message:
    return _read(message, _QUESTION, agreement)


def read_answer(message: bytes, agreement: bytes) -> Message:
    """What a silo released, or its refusal as an error."""
    if message[: len(_REFUSAL)] == _REFUSAL:
        word = message[_FORM.size :].decode("ascii", "replace")
        raise BadMessage(word if word in WORDS else "form")
    return _read(message, _ANSWER, agreement)


def digest(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


def _packed(magic: bytes, agreement: bytes, round: int, numbers: Numbers) -> bytes:
    (kind,) = (kind for kind, dtype in _KINDS.items() if dtype == numbers.dtype)
    body = np.ascontiguousarray(numbers, _KINDS[kind]).tobytes()
    return _FORM.pack(magic, agreement, round, kind) + body


def _read(message: bytes, magic: bytes, agreement: bytes) -> Message:
    if len(message) < _FORM.size:
        raise BadMessage("form")
    form, about, round, kind = _FORM.unpack_from(message)
    if form != magic or kind not in _KINDS:
        raise BadMessage("form")
    if about != agreement:
        raise BadMessage("agreement")
    body = message[_FORM.size :]
    if len(body) % _KINDS[kind].itemsize:
        raise BadMessage("form")
    numbers: Numbers = np.frombuffer(body, dtype=_KINDS[kind])
    return Message(round, numbers)
