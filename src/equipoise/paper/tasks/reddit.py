"""Reddit (LEAF, Caldas et al. 2018): which word comes next? Comments in sequences of ten tokens.

Read is LEAF's form: data/{train,test}/*.json and its vocabulary of 10,000 (a pickle of plain
values). A record is one sequence; a comment has one or more of them and a user many, so the privacy
of one record is not that of a user. Sequences are dealt to clients at random as in the paper, or
whole users with split=natural. The error is 1 - LEAF's accuracy: right next tokens, where <UNK> and
<PAD> are never right, over the number of input tokens that are not <PAD>.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from equipoise.errors import DataError
from equipoise.paper.data.files import File, unpickled
from equipoise.paper.data.prepared import Arrays, DataSet
from equipoise.paper.networks import NextWord
from equipoise.paper.tasks.femnist import check_same_users, leaf_users
from equipoise.paper.tasks.table1 import Row, federated_task
from equipoise.tasks.network import PerExample
from equipoise.tasks.task import Options, Task, TaskSpec

ROW = Row(clients=3, batch=64, iterations=10_000, clips=(10, 50, 100), learning_rate=0.05)
LENGTH, PAD, UNKNOWN = 10, 0, 1
REDDIT = DataSet(
    name="reddit",
    folder="reddit",
    wanted=r"(?<![^/])(?:data/(?:train|test)/[^/]+\.json|vocab/reddit_vocab\.pck)",
    most=2**33,
    records=(86_250, 35_421),
    table_1="3 clients: 28,750 ± 0 train, 11,807 ± 0 test",
    licence="none stated; text by Reddit's users, collected by pushshift; LEAF's code: "
    "BSD-2-Clause",
    how="get LEAF's preprocessed Reddit data and vocabulary by the links in data/reddit/README.md "
    "of "
    "https://github.com/TalwalkarLab/leaf, and put its folders data and vocab there",
)


def reddit(options: Options) -> Task:
    arrays = REDDIT.prepared(prepare)
    return federated_task(
        "reddit",
        lambda: NextWord(int(arrays["vocabulary"][0])),
        arrays,
        ROW,
        next_word_loss,
        next_word_accuracy,
        options,
        owner="user",
        natural=False,
        constant_error=_constant_error(arrays["test_targets"]),
        error_name="1 - next-word accuracy",
    )


def next_word_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy [n, 10, vocabulary] of the next tokens, mean over a sequence's own tokens, then
    over sequences."""
    words, counted = targets.unbind(-1)
    each = cross_entropy(outputs.transpose(1, 2), words, reduction="none") * counted
    return (each.sum(1) / counted.sum(1).clamp(min=1)).mean()


@PerExample
def next_word_accuracy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """For each sequence how many next tokens are right, and how many input tokens count."""
    return _right(outputs.argmax(-1), targets), targets[..., 1].sum(1)


def _right(guesses: Tensor, targets: Tensor) -> Tensor:
    words, counted = targets.unbind(-1)
    return ((guesses == words) & (words != PAD) & (words != UNKNOWN) & (counted == 1)).sum(1)


def _constant_error(targets: NDArray[np.int64]) -> float:
    """Of always guessing the token that is most often next."""
    words, counted = targets[..., 0], targets[..., 1]
    times = np.bincount(words[(counted == 1) & (words != PAD) & (words != UNKNOWN)])
    return 1 - float(times.max() / counted.sum())


def prepare(files: Iterator[File]) -> Arrays:
    """Tokens [n, 10], targets [n, 10, 2]: the next token and whether the input token counts; and
    the user's number."""
    vocabulary: dict[str, int] | None = None
    size = 0
    users: dict[str, dict[str, list[Any]]] = {"train": {}, "test": {}}
    for name, place, content in files:
        if name.endswith(".pck"):
            vocabulary, size = _vocabulary(content, place)
            continue
        part = "train" if "data/train/" in name else "test"
        for user, records in leaf_users(content, place):
            if user in users[part]:
                raise DataError(f"{place}: user {user} is in another {part} file too")
            users[part][user] = list(_sequences(records, f"{place}, user {user}"))
    if vocabulary is None:
        raise DataError(
            "Reddit's vocabulary is missing: LEAF's vocab/reddit_vocab.pck belongs beside its "
            "folder data"
        )
    check_same_users(users["train"], users["test"], "user")
    arrays: Arrays = {"vocabulary": np.array([size])}
    for part, of_part in users.items():
        sequences = [
            (number, *pair) for number, user in enumerate(sorted(of_part)) for pair in of_part[user]
        ]
        owners, inputs, targets = zip(*sequences, strict=True)
        tokens, words = (
            np.array([[vocabulary.get(token, UNKNOWN) for token in row] for row in rows])
            for rows in (inputs, targets)
        )
        arrays[f"{part}_inputs"] = tokens
        arrays[f"{part}_targets"] = np.stack([words, (tokens != PAD).astype(np.int64)], axis=-1)
        arrays[f"{part}_owners"] = np.array(owners)
    return arrays


def _sequences(records: dict[str, Any], place: str) -> Iterator[tuple[list[str], list[str]]]:
    """Pairs of ten tokens and the ten that come next."""
    for comment, (x, y) in enumerate(zip(records["x"], records["y"], strict=True)):
        target = y.get("target_tokens") if isinstance(y, dict) else None
        if not isinstance(x, list) or not isinstance(target, list) or len(x) != len(target):
            raise DataError(
                f"{place}, comment {comment}: x and target_tokens must be lists of as many "
                f"sequences"
            )
        for pair in zip(x, target, strict=True):
            for row in pair:
                if (
                    not isinstance(row, list)
                    or len(row) != LENGTH
                    or not all(isinstance(token, str) for token in row)
                ):
                    raise DataError(
                        f"{place}, comment {comment}: a sequence is not {LENGTH} tokens"
                    )
            yield pair


def _vocabulary(content: bytes, place: str) -> tuple[dict[str, int], int]:
    """The number of each token, and how many numbers there are."""
    found = unpickled(content, place)
    keys = ("vocab", "size", "unk_symbol", "pad_symbol")
    tokens, size, unknown, pad = (
        (found.get(key) for key in keys) if isinstance(found, dict) else (None,) * 4
    )
    if not isinstance(tokens, dict) or type(size) is not int or (unknown, pad) != (UNKNOWN, PAD):
        raise DataError(
            f"{place} is not LEAF's vocabulary: a dict with vocab, size, unk_symbol {UNKNOWN}, "
            f"pad_symbol {PAD}"
        )
    if not all(
        type(token) is str and type(number) is int and 0 <= number < size
        for token, number in tokens.items()
    ):
        raise DataError(
            f"{place}: its vocabulary does not give every token a number below its size, {size}"
        )
    return tokens, size


SPEC = TaskSpec("reddit", reddit)
