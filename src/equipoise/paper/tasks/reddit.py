"""Reddit: which word comes next?

A record is one sequence of ten tokens; a comment has one or more of them and a user many, so the
privacy of one record is not that of a user. Sequences are dealt to clients at random as in the
paper, or whole users with split=natural. The error is 1 - LEAF's accuracy: right next tokens, where
<UNK> and <PAD> are never right, over the number of input tokens that are not <PAD>.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from equipoise.paper.data.reddit import PAD, REDDIT, UNKNOWN
from equipoise.paper.networks import NextWord
from equipoise.paper.tasks.rows import ROWS
from equipoise.paper.tasks.table1 import federated_task
from equipoise.tasks.network import PerExample
from equipoise.tasks.task import Task, TaskOptions, TaskSpec

ROW = ROWS["reddit"]


def reddit(options: TaskOptions) -> Task:
    arrays = REDDIT.prepared()
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


SPEC = TaskSpec("reddit", reddit)
