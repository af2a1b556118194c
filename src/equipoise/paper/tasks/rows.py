"""The rows of the paper's Table 1, by task."""

from equipoise.paper.tasks import cifar10, fed_ixi, femnist, messidor, reddit
from equipoise.paper.tasks.table1 import Row

ROWS: dict[str, Row] = {
    "cifar10": cifar10.ROW,
    "cifar10-narrow": cifar10.ROW,
    "femnist": femnist.ROW,
    "femnist-narrow": femnist.ROW,
    "reddit": reddit.ROW,
    "reddit-narrow": reddit.ROW,
    "fed-ixi": fed_ixi.ROW,
    "hippocampus": fed_ixi.ROW,
    "hippocampus-narrow": fed_ixi.ROW,
    "messidor": messidor.ROW,
    "deepdrid": messidor.ROW,
    "deepdrid-narrow": messidor.ROW,
}
