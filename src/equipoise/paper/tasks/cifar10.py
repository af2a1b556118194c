"""CIFAR-10: what is in the picture? As in the paper pixels are used directly: the network only
divides them by 255."""

from functools import partial

from torch.nn.functional import cross_entropy

from equipoise.paper.data.cifar10 import CIFAR10, CLASSES, SHAPE
from equipoise.paper.networks import NARROW, Cnn
from equipoise.paper.tasks.rows import ROWS
from equipoise.paper.tasks.table1 import federated_task, majority_error
from equipoise.tasks.own import accuracy
from equipoise.tasks.task import Task, TaskOptions, TaskSpec

ROW = ROWS["cifar10"]


def cifar10(
    options: TaskOptions, widths: tuple[int, int, int] = (32, 64, 512), name: str = "cifar10"
) -> Task:
    arrays = CIFAR10.prepared()
    return federated_task(
        name,
        partial(Cnn, *SHAPE[:2], CLASSES, widths),
        arrays,
        ROW,
        cross_entropy,
        accuracy,
        options,
        whole=CIFAR10.records,
        owner="file",
        natural=False,
        constant_error=majority_error(arrays["test_targets"]),
        error_name="1 - accuracy",
    )


SPEC = TaskSpec("cifar10", cifar10)
NARROW_SPEC = TaskSpec("cifar10-narrow", partial(cifar10, widths=NARROW, name="cifar10-narrow"))
