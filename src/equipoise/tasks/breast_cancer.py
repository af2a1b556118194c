"""Is a breast mass benign? l2-regularised logistic regression on the Wisconsin diagnostic data
embedded in scikit-learn (569 records, 30 measurements; Street, Wolberg and Mangasarian 1993).

Every third record is declared public and is the test set, in every run. CENTRE and SCALE are the
mean and the standard deviation of those public records, to two digits; no training record decides
them, so that L and mu are public constants.
"""

import numpy as np

from equipoise.tasks.linear import LOGISTIC, deal, linear_task, one_hot, with_bias
from equipoise.tasks.task import Table, Takes, Task, TaskOptions, TaskSpec

CLIENTS = 20
ITERATIONS = 64
L2 = 0.01
# features are scaled by SCALE * 4, then clipped to this norm; the bias feature 1 comes on top
FEATURE_NORM = 1.0

# fmt: off
CENTRE = np.array([
    # mean radius, texture, perimeter, area, smoothness,
    14, 19, 94, 670, 0.096, 0.11, 0.091, 0.05, 0.18, 0.062,         
    # compactness, concavity, concave points, symmetry,
    0.42, 1.2, 2.9, 41, 0.0068, 0.026, 0.032, 0.012, 0.02, 0.0037,  
    # fractal dimension; their errors; their worst
    17, 26, 110, 910, 0.13, 0.26, 0.28, 0.12, 0.29, 0.084,          
])
SCALE = np.array([
    3.4, 4.3, 24, 340, 0.015, 0.058, 0.083, 0.041, 0.029, 0.0074,
    0.27, 0.59, 2.0, 37, 0.003, 0.018, 0.024, 0.0067, 0.0091, 0.0022,
    4.9, 5.9, 34, 560, 0.023, 0.17, 0.21, 0.068, 0.063, 0.02,
])
# fmt: on


def breast_cancer(options: TaskOptions) -> Task:
    from sklearn.datasets import load_breast_cancer  # a second to import

    measurements, labels = load_breast_cancer(return_X_y=True)
    table = Table(
        with_bias((measurements - CENTRE) / (4 * SCALE), FEATURE_NORM), one_hot(labels, 2)
    )
    public = np.arange(len(labels)) % 3 == 0
    return linear_task(
        "breast-cancer",
        deal(table.rows(~public), labels[~public], options, CLIENTS),
        table.rows(public),
        LOGISTIC,
        L2,
        FEATURE_NORM,
        options,
        iterations=ITERATIONS,
        names=("malignant", "benign"),
        public=(
            "every third record, which is the test set",
            "centre and scale of the measurements, from those records",
        ),
    )


SPEC = TaskSpec("breast-cancer", breast_cancer, Takes(l2=True), pools_itself=True)
