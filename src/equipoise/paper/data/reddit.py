"""Reddit (LEAF, Caldas et al. 2018): comments in sequences of ten tokens, by user.

Read is LEAF's form: data/{train,test}/*.json and its vocabulary of 10,000, a pickle of plain
values. A record is one sequence; a comment has one or more of them, and a user many.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.cache import Arrays
from equipoise.errors import DataError
from equipoise.paper.data.data_set import DataSet
from equipoise.paper.data.files import File, unpickled
from equipoise.paper.data.leaf import Parts, add_users, check_same_users, entries

LENGTH, PAD, UNKNOWN = 10, 0, 1


class Sequence(NamedTuple):
    """Ten tokens, and the ten that come next."""

    tokens: list[str]
    targets: list[str]


class Vocabulary(NamedTuple):
    """The number of each token, below `size`."""

    numbers: dict[str, int]
    size: int

    def numbered(self, rows: list[list[str]]) -> NDArray[np.int64]:
        return np.array([self._row(row) for row in rows])

    def _row(self, tokens: list[str]) -> list[int]:
        return [self.numbers.get(token, UNKNOWN) for token in tokens]


def read(files: Iterator[File]) -> Arrays:
    """Tokens [n, 10], targets [n, 10, 2]: the next token and whether the input token counts; the
    user's number in order of names; and the size of the vocabulary."""
    vocabulary: Vocabulary | None = None
    parts: Parts[list[Sequence]] = {"train": {}, "test": {}}
    for file in files:
        if file.name.endswith(".pck"):
            vocabulary = _vocabulary(file)
        else:
            add_users(parts, file, "user", _sequences)
    if vocabulary is None:
        raise DataError(
            "Reddit's vocabulary is missing: LEAF's vocab/reddit_vocab.pck belongs beside its "
            "folder data"
        )
    check_same_users(parts, "user")
    arrays: Arrays = {"vocabulary": np.array([vocabulary.size])}
    for part, users in parts.items():
        arrays |= _arrays(part, [users[name] for name in sorted(users)], vocabulary)
    return arrays


def _arrays(part: str, users: list[list[Sequence]], vocabulary: Vocabulary) -> Arrays:
    sequences = [sequence for user in users for sequence in user]
    if not sequences:
        raise DataError(f"Reddit has no {part} sequences: all its comments are empty")
    tokens = vocabulary.numbered([sequence.tokens for sequence in sequences])
    targets = vocabulary.numbered([sequence.targets for sequence in sequences])
    return {
        f"{part}_inputs": tokens,
        f"{part}_targets": np.stack([targets, (tokens != PAD).astype(np.int64)], axis=-1),
        f"{part}_owners": np.repeat(np.arange(len(users)), [len(user) for user in users]),
    }


def _sequences(records: dict[str, Any], place: str) -> list[Sequence]:
    sequences = []
    for number, (x, y) in enumerate(zip(records["x"], records["y"], strict=True)):
        sequences += _of_comment(x, y, f"{place}, comment {number}")
    return sequences


def _of_comment(x: Any, y: Any, place: str) -> list[Sequence]:
    (targets,) = entries(y, "target_tokens")
    if not isinstance(x, list) or not isinstance(targets, list) or len(x) != len(targets):
        raise DataError(f"{place}: x and target_tokens must be lists of equally many sequences")
    if not all(map(_is_sequence, [*x, *targets])):
        raise DataError(f"{place}: a sequence is not {LENGTH} tokens")
    return [Sequence(*pair) for pair in zip(x, targets, strict=True)]


def _is_sequence(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == LENGTH
        and all(isinstance(token, str) for token in row)
    )


def _vocabulary(file: File) -> Vocabulary:
    document = unpickled(file.content, file.place)
    numbers, size, *symbols = entries(document, "vocab", "size", "unk_symbol", "pad_symbol")
    if not isinstance(numbers, dict) or type(size) is not int or symbols != [UNKNOWN, PAD]:
        raise DataError(
            f"{file.place} is not LEAF's vocabulary: a dict with vocab, size, unk_symbol "
            f"{UNKNOWN}, pad_symbol {PAD}"
        )
    known = range(size)
    for token, number in numbers.items():
        if type(token) is not str or type(number) is not int or number not in known:
            raise DataError(
                f"{file.place}: its vocabulary does not give every token a number below its size, "
                f"{size}"
            )
    return Vocabulary(numbers, size)


REDDIT = DataSet(
    name="reddit",
    folder="reddit",
    read=read,
    wanted=r"(?<![^/])(?:data/(?:train|test)/[^/]+\.json|vocab/reddit_vocab\.pck)",
    most=2**33,
    records=(86_250, 35_421),
    table_1="3 clients: 28,750 ± 0 train, 11,807 ± 0 test",
    licence="none stated; text by Reddit's users, collected by pushshift; LEAF's code: "
    "BSD-2-Clause",
    how="get LEAF's preprocessed Reddit data and vocabulary by the links in data/reddit/README.md "
    "of https://github.com/TalwalkarLab/leaf, and put its folders data and vocab there",
)
