"""Is a breast mass benign? l2-regularised logistic regression on the Wisconsin diagnostic data embedded in scikit-learn
(569 records, 30 measurements; Street, Wolberg and Mangasarian 1993).

Every third record is declared public and is the test set, in every run. CENTRE and SCALE are the mean and the standard
deviation of those public records, to two digits; no training record decides them, so L and MU are public constants.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.tasks.logistic import logistic_clients
from equipoise.tasks.records import split_records
from equipoise.tasks.task import Task

CLIENTS = 20
ITERATIONS = 64
L2 = 0.01
FEATURE_NORM = 1.0  # features are scaled by SCALE * 4, then clipped to this norm; the bias feature 1 comes on top
MU, L = L2, (FEATURE_NORM**2 + 1) / 4 + L2

# fmt: off
CENTRE = np.array([
    14, 19, 94, 670, 0.096, 0.11, 0.091, 0.05, 0.18, 0.062,           # mean radius, texture, perimeter, area, smoothness,
    0.42, 1.2, 2.9, 41, 0.0068, 0.026, 0.032, 0.012, 0.02, 0.0037,    # compactness, concavity, concave points, symmetry,
    17, 26, 110, 910, 0.13, 0.26, 0.28, 0.12, 0.29, 0.084,            # fractal dimension; their errors; their worst
])
SCALE = np.array([
    3.4, 4.3, 24, 340, 0.015, 0.058, 0.083, 0.041, 0.029, 0.0074,
    0.27, 0.59, 2.0, 37, 0.003, 0.018, 0.024, 0.0067, 0.0091, 0.0022,
    4.9, 5.9, 34, 560, 0.023, 0.17, 0.21, 0.068, 0.063, 0.02,
])
# fmt: on


def public_features(measurements: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale by public constants, clip each record to FEATURE_NORM, append the bias feature: [records, 31]."""
    scaled = (measurements - CENTRE) / (4 * SCALE)
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    clipped = scaled * np.minimum(1, FEATURE_NORM / np.maximum(norms, 1e-300))
    return np.hstack([clipped, np.ones((len(clipped), 1))])


def breast_cancer(clients: int | None, split: str, batch: int | None, seed: int) -> Task:
    from sklearn.datasets import load_breast_cancer  # a second to import

    measurements, labels = load_breast_cancer(return_X_y=True)
    features = public_features(measurements)
    public = np.arange(len(labels)) % 3 == 0
    parts = split_records(labels[~public], CLIENTS if clients is None else clients, split, seed)
    private = logistic_clients(features[~public], labels[~public], parts, L2, batch, seed)
    test_features, test_labels = torch.from_numpy(features[public]), torch.from_numpy(labels[public])

    def test_error(x: Tensor) -> Tensor:
        """Wrong predictions on the public records; a margin of zero says benign, the more frequent answer."""
        benign = torch.einsum("nd,...d->...n", test_features, x) >= 0
        return (benign != test_labels.bool()).double().mean(-1)

    x0 = torch.zeros(features.shape[1], dtype=torch.float64)
    return Task("breast-cancer", x0, private, test_error, 1 / L, ITERATIONS, batch, MU, L)
