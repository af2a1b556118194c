"""LEAF's JSON files (Caldas et al., "LEAF: a benchmark for federated settings", 2018).

The readers of FEMNIST and Reddit use it: a change that changes their arrays raises the `version` of
both data sets.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from equipoise.errors import DataError
from equipoise.paper.data.files import File

Records = TypeVar("Records")
Parts = dict[str, dict[str, Records]]
"""The records of every user, by part (train, test) and name of the user."""


def add_users(
    parts: Parts[Records], file: File, word: str, read: Callable[[dict[str, Any], str], Records]
) -> None:
    """Add to `parts` what `read` makes of every user of a file, given x and y, and the place for
    errors. `word` is what a user is, in a word."""
    part = "train" if "data/train/" in file.name else "test"
    for user, records in _users(file):
        if user in parts[part]:
            raise DataError(f"{file.place}: {word} {user} is in another {part} file too")
        parts[part][user] = read(records, f"{file.place}, {word} {user}")


def check_same_users(parts: Parts[Any], word: str) -> None:
    """LEAF splits every user's samples: who is in one part is in the other."""
    for part, other in (("train", "test"), ("test", "train")):
        if lost := sorted({*parts[part]} - {*parts[other]}):
            raise DataError(
                f"{word} {lost[0]} (the first of {len(lost)}) has {part} samples and no {other} "
                f"samples: a file is missing"
            )


def _users(file: File) -> Iterator[tuple[str, dict[str, Any]]]:
    """The users of a file, each with lists x and y of equal length."""
    try:
        document = json.loads(file.content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file.place} is not JSON: {error}") from None
    data, names = entries(document, "user_data", "users")
    if not isinstance(data, dict) or not isinstance(names, list) or {*map(str, names)} != {*data}:
        raise DataError(
            f"{file.place} is not in LEAF's form: its `users` must be the keys of its `user_data`"
        )
    for user, records in data.items():
        _check_lengths(entries(records, "x", "y"), f"{file.place}, user {user}")
        yield user, records


def _check_lengths(lists: list[Any], place: str) -> None:
    lengths = [len(values) if isinstance(values, list) else None for values in lists]
    if lengths[0] != lengths[1] or not lengths[0]:
        words = " and ".join("no list" if n is None else str(n) for n in lengths)
        raise DataError(f"{place}: x and y must be lists of equal length, and are {words}")


def entries(document: Any, *keys: str) -> list[Any]:
    """Of a dict its entries at `keys`; None for what is missing, or if it is no dict."""
    return [document.get(key) if isinstance(document, dict) else None for key in keys]
