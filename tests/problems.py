"""Small problems, files and helpers that the tests share."""

import json
import math
import os
import sqlite3
from pathlib import Path

import numpy as np
import torch

from equipoise.cli.main import main
from equipoise.fleets import SimulatedFleet, server_rounds
from equipoise.privacy.clip import ClippedRelease
from equipoise.privacy.lattice import Lattice
from equipoise.result import Result
from equipoise.sweeps.grid import grid
from equipoise.sweeps.store import Store
from equipoise.sweeps.sweep import sweep
from equipoise.tasks import TaskOptions, load_task

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("EQUIPOISE_DATA", ROOT.parent / "shared" / "data"))

BOUNDS = """
[age]
low = 0
high = 100
[sex]
categories = ["f", "m"]
[score]
low = -1
high = 1
fill = 0.5
[outcome]
categories = ["no", "yes"]
"""
HEADER = "age,sex,score,outcome\n"
TASK_FILE = """
import torch
from torch import nn
from equipoise import accuracy as metric

x = torch.randn(300, 4)
y = (x[:, 0] > 0).long()
model = nn.Linear(4, 2)
clients = list(zip(x[:240].split(40), y[:240].split(40)))
test = x[240:], y[240:]
loss = nn.functional.cross_entropy
learning_rate = 0.5
"""


FINE = Lattice(2.0**-44)
"""So fine that releases agree with the paper's real numbers to twelve digits."""


class NearestWhole:
    """Whole numbers nearest to the normals that a source of noise has."""

    def whole(self, law, round, shape, scale):
        return np.rint(scale * self.normals(round, shape))


class GivenNoise(NearestWhole):
    """noise[k][i] is what client i adds in its k-th message; divided by sigma, since the mechanism
    multiplies by it."""

    name = "given"

    def __init__(self, noise, sigma):
        self._normals = np.asarray(noise) / sigma

    def normals(self, round, shape):
        return np.broadcast_to(self._normals[round - 1], shape)


def quadratic(clients=5, seed=0):
    """A heterogeneous quadratic with kappa = 100, and its clients' gradients as the oracle wants
    them."""
    task = load_task("quadratic", TaskOptions(clients=clients, seed=seed))
    A, b = task.clients.A.numpy(), task.clients.b.numpy()
    return task, lambda i, x, k: A[i] @ (x - b[i])


def logistic(clients=4, batch=5, seed=0):
    """Logistic regression with minibatches; the oracle's gradient is written out for one client."""
    task = load_task(
        "breast-cancer", TaskOptions(clients=clients, split="dirichlet:0.5", batch=batch, seed=seed)
    )
    features, labels = task.clients.features.numpy(), task.clients.targets.numpy()[..., 0]

    def gradient(i, x, k):
        chosen = task.clients.minibatches.of(i, k)
        a, y = features[i][chosen], labels[i][chosen]
        return ((1 / (1 + np.exp(-a @ x)) - y)[:, None] * a).mean(0) + task.clients.l2 * x

    return task, gradient


def last_model(task, schedule, algorithm, clip=np.inf, noise=None, sigma=0.0, gamma=1.0, x0=None):
    """The product's communicated model after the whole schedule."""
    clients = len(task.clients.sizes)
    releaser = ClippedRelease(clip, sigma, FINE) if sigma else ClippedRelease(clip, 0.0)
    fleet = SimulatedFleet(clients, task.clients.gradient, algorithm, releaser, noise)
    rounds = list(server_rounds(task.x0 if x0 is None else x0, schedule, fleet, algorithm, gamma))
    return rounds[-1].x, fleet


def csv_task(**changes):
    options = {"data": ("a.csv", "b.csv"), "label": "outcome", "bounds": "bounds.toml", **changes}
    return load_task("csv", TaskOptions(**options))


def run_command(capsys, *arguments):
    """Exit code, standard output and standard error of the command."""
    try:
        main(list(arguments))
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


def blobs(clients=6, n=20):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * n + 60, 4, generator=generator)
    y = (x[:, 0] + x[:, 1] > 0).long()
    pairs = list(zip(x[60:].split(n), y[60:].split(n), strict=True))
    return pairs, (x[:60], y[:60])


SMALL = {  # a grid
    "name": "small",
    "task": "quadratic",
    "clients": 4,
    "algorithm": ["dp-fedavg", "dp-scaffnew"],
    "iterations": 6,
    "local_steps": "divisors",
    "epsilon": [2.0, math.inf],
    "clip": [0.1, 1.0],
    "seeds": [0, 1],
}


def swept(document, path):
    """Run a grid to its end; of every run its result without the curve, and its last test loss."""
    *_, last = sweep(document["name"], grid(document).cells, path)
    assert (last.done, last.failed) == (last.total, 0)
    with Store(path, read_only=True) as store:
        return [
            (
                Result.model_validate(json.loads(row["result"])),
                store.curve(row["key"])[-1]["test_loss"],
            )
            for row in store.table("key, result")
        ]


def contents(store):
    """Everything that a store holds but the time that runs took."""
    with sqlite3.connect(store) as db:
        runs = db.execute("SELECT * FROM runs ORDER BY key").fetchall()
        names = [column[1] for column in db.execute("PRAGMA table_info(runs)")]
        place = names.index("seconds")
        return [row[:place] + row[place + 1 :] for row in runs], db.execute(
            "SELECT * FROM curves ORDER BY key, round"
        ).fetchall()
