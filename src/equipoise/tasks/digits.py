"""Which digit is it? On the 8 x 8 images embedded in scikit-learn (1,797 records; Alpaydin and
Kaynak 1998).

`digits` is multinomial logistic regression, `digits-mlp` a small network: a non-convex task that
runs anywhere. Every third record is declared public and is the test set. CENTRE is the mean of
those public records, rounded to whole grey levels.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from equipoise.tasks.linear import MULTINOMIAL, deal, linear_task, one_hot, with_bias
from equipoise.tasks.own import accuracy, own_task
from equipoise.tasks.splits import pool_and_parts
from equipoise.tasks.task import Table, Takes, Task, TaskOptions, TaskSpec

CLIENTS = 100
ITERATIONS = 64
L2 = 0.01
FEATURE_NORM = (
    2.0  # of the grey levels, 0 to 16, less CENTRE, divided by 16; the bias feature 1 comes on top
)
HIDDEN = 32
LEARNING_RATE = 0.5  # of the network
PUBLIC = ("every third record, which is the test set", "the mean image of those records")

# fmt: off
CENTRE = np.array([
    0, 0, 5, 12, 12, 6, 1, 0,
    0, 2, 10, 12, 10, 8, 2, 0,
    0, 3, 10, 7, 7, 8, 2, 0,
    0, 2, 9, 9, 10, 7, 2, 0,
    0, 3, 8, 9, 10, 9, 3, 0,
    0, 2, 7, 7, 8, 8, 4, 0,
    0, 1, 7, 9, 9, 9, 4, 0,
    0, 0, 5, 12, 12, 7, 2, 0,
])
# fmt: on


def _records() -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
    """Scaled images [records, 64], labels, and which records are public."""
    from sklearn.datasets import load_digits  # a second to import

    images, labels = load_digits(return_X_y=True)
    return (images - CENTRE) / 16, labels, np.arange(len(labels)) % 3 == 0


def digits(options: TaskOptions) -> Task:
    images, labels, public = _records()
    table = Table(with_bias(images, FEATURE_NORM), one_hot(labels, 10))
    dealt = deal(table.rows(~public), labels[~public], options, CLIENTS)
    test = table.rows(public)
    return linear_task(
        "digits", dealt, test, MULTINOMIAL, L2, FEATURE_NORM, options, PUBLIC, iterations=ITERATIONS
    )


def digits_mlp(options: TaskOptions) -> Task:
    images, labels, public = _records()
    inputs, targets = torch.tensor(images, dtype=torch.float32), torch.from_numpy(labels)
    pool, parts = pool_and_parts(labels[~public], options, CLIENTS)
    private = inputs[~public], targets[~public]
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        network = nn.Sequential(nn.Linear(64, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10))
    return own_task(
        network,
        [(private[0][part], private[1][part]) for part in parts],
        nn.functional.cross_entropy,
        accuracy,
        test=(inputs[public], targets[public]),
        pool=(private[0][pool], private[1][pool]) if len(pool) else None,
        learning_rate=LEARNING_RATE,
        iterations=ITERATIONS,
        batch=options.minibatch,
        seed=options.seed,
        name="digits-mlp",
        public=("the initial weights", *PUBLIC),
        sizes_public=True,
    )


SPEC = TaskSpec("digits", digits, Takes(l2=True), pools_itself=True)
MLP_SPEC = TaskSpec("digits-mlp", digits_mlp, pools_itself=True)
