"""The paper's Table 1, with the learning rates that its text gives, by task. Stand-ins and smaller
models have the row of the task that they stand for."""

from typing import NamedTuple


class Row(NamedTuple):
    """A row of the table, and the learning rate."""

    clients: int
    batch: int
    iterations: int
    clips: tuple[float, ...]
    learning_rate: float


CIFAR10 = Row(clients=5, batch=64, iterations=10_000, clips=(10, 50, 100), learning_rate=0.01)
FEMNIST = Row(clients=6, batch=16, iterations=10_000, clips=(10, 50, 100), learning_rate=0.01)
REDDIT = Row(clients=3, batch=64, iterations=10_000, clips=(10, 50, 100), learning_rate=0.05)
FED_IXI = Row(clients=3, batch=1, iterations=400, clips=(10, 20, 50), learning_rate=0.01)
MESSIDOR = Row(clients=3, batch=4, iterations=500, clips=(10, 20, 50), learning_rate=0.01)

ROWS: dict[str, Row] = {
    "cifar10": CIFAR10,
    "cifar10-narrow": CIFAR10,
    "femnist": FEMNIST,
    "femnist-narrow": FEMNIST,
    "reddit": REDDIT,
    "reddit-narrow": REDDIT,
    "fed-ixi": FED_IXI,
    "hippocampus": FED_IXI,
    "hippocampus-narrow": FED_IXI,
    "messidor": MESSIDOR,
    "deepdrid": MESSIDOR,
    "deepdrid-narrow": MESSIDOR,
}
