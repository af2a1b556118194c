"""Small problems that the tests share."""

import numpy as np
import torch

from equipoise.algorithms import dp_fedavg, dp_scaffnew
from equipoise.fleets import SimulatedFleet, server_rounds
from equipoise.privacy.mechanism import GaussianMechanism
from equipoise.tasks import Options, load_task


class GivenNoise:
    """noise[k][i] is what client i adds in its k-th message; divided by sigma, since the mechanism multiplies by it."""

    name = "given"

    def __init__(self, noise, sigma):
        self._normals = np.asarray(noise) / sigma

    def normals(self, round, shape):
        return np.broadcast_to(self._normals[round - 1], shape)


def quadratic(clients=5, seed=0):
    """A heterogeneous quadratic with kappa = 100, and its clients' gradients as the oracle wants them."""
    task = load_task("quadratic", Options(clients=clients, seed=seed))
    A, b = task.clients.A.numpy(), task.clients.b.numpy()
    return task, lambda i, x, k: A[i] @ (x - b[i])


def logistic(clients=4, batch=5, seed=0):
    """Logistic regression with minibatches; the oracle's gradient is written out for one client."""
    task = load_task("breast-cancer", Options(clients=clients, split="dirichlet:0.5", batch=batch, seed=seed))
    features, labels = task.clients.features.numpy(), task.clients.targets.numpy()[..., 0]

    def gradient(i, x, k):
        chosen = task.clients.minibatches.of(i, k)
        a, y = features[i][chosen], labels[i][chosen]
        return ((1 / (1 + np.exp(-a @ x)) - y)[:, None] * a).mean(0) + task.clients.l2 * x

    return task, gradient


def last_model(task, schedule, algorithm, clip_norm=np.inf, noise=None, sigma=0.0, gamma=1.0, x0=None):
    """The product's communicated model after the whole schedule."""
    clients = len(task.clients.sizes)
    fleet = SimulatedFleet(clients, task.clients.gradient, algorithm, GaussianMechanism(clip_norm, sigma), noise)
    rounds = list(server_rounds(task.x0 if x0 is None else x0, schedule, fleet, gamma))
    return rounds[-1].x, fleet


__all__ = ["GivenNoise", "dp_fedavg", "dp_scaffnew", "last_model", "logistic", "quadratic", "torch"]
