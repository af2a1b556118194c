"""Reddit: which word comes next?

A record is one sequence of ten tokens; a comment has one or more of them and a user many, so the
privacy of one record is not that of a user. Sequences are dealt to clients at random as in the
paper, or whole users with split=natural. The error is 1 - LEAF's accuracy: right next tokens, where
<UNK> and <PAD> are never right, over the number of input tokens that are not <PAD>.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from equipoise.cache import Arrays
from equipoise.paper.data.reddit import PAD, REDDIT, UNKNOWN
from equipoise.paper.networks import NextWord
from equipoise.paper.tasks.rows import ROWS
from equipoise.paper.tasks.table1 import federated_task
from equipoise.tasks.network import PerExample
from equipoise.tasks.task import Task, TaskOptions, TaskSpec

ROW = ROWS["reddit"]


FEW_WORDS, NARROW = 2000, 64  # of a smaller network, for quick studies


def reddit(options: TaskOptions) -> Task:
    arrays = REDDIT.prepared()
    words = int(arrays["vocabulary"][0])
    return _task("reddit", arrays, partial(NextWord, words), options)


def reddit_narrow(options: TaskOptions) -> Task:
    """The same with the first 2,000 words of the vocabulary, which has them by frequency; the
    others are <UNK>."""
    arrays = dict(REDDIT.prepared())
    for part in ("train", "test"):
        inputs, targets = arrays[f"{part}_inputs"], arrays[f"{part}_targets"].copy()
        targets[..., 0] = _known(targets[..., 0])
        arrays |= {f"{part}_inputs": _known(inputs), f"{part}_targets": targets}
    return _task("reddit-narrow", arrays, partial(NextWord, FEW_WORDS, NARROW), options)


def _known(words: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(words < FEW_WORDS, words, UNKNOWN)


def _task(
    name: str, arrays: Arrays, network: Callable[[], nn.Module], options: TaskOptions
) -> Task:
    return federated_task(
        name,
        network,
        arrays,
        ROW,
        next_word_loss,
        next_word_accuracy,
        options,
        whole=REDDIT.records,
        owner="user",
        natural=False,
        person="user",
        constant_error=_constant_error(arrays["test_targets"]),
        error_name="1 - next-word accuracy",
    )


def next_word_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy [n, 10, vocabulary] of the next tokens, mean over a sequence's own tokens, then
    over sequences."""
    words, counted = targets.unbind(-1)
    # As one long list: over the last axis of memory a softmax takes a tenth of the time.
    each = cross_entropy(outputs.flatten(0, 1), words.flatten(), reduction="none")
    each = each.view_as(words) * counted
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


SPEC = TaskSpec("reddit", reddit)
NARROW_SPEC = TaskSpec("reddit-narrow", reddit_narrow)
