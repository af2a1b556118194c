"""FEMNIST: which of 62 characters did somebody write?"""

from functools import partial

from torch.nn.functional import cross_entropy

from equipoise.paper.data.femnist import CLASSES, FEMNIST, SIZE
from equipoise.paper.networks import NARROW, Cnn
from equipoise.paper.tasks.rows import ROWS
from equipoise.paper.tasks.table1 import federated_task, majority_error
from equipoise.tasks.own import accuracy
from equipoise.tasks.task import Task, TaskOptions, TaskSpec

ROW = ROWS["femnist"]


def femnist(
    options: TaskOptions, widths: tuple[int, int, int] = (32, 64, 512), name: str = "femnist"
) -> Task:
    arrays = FEMNIST.prepared()
    return federated_task(
        name,
        partial(Cnn, 1, SIZE, CLASSES, widths),
        arrays,
        ROW,
        cross_entropy,
        accuracy,
        options,
        whole=FEMNIST.records,
        owner="writer",
        natural=False,
        person="writer",
        constant_error=majority_error(arrays["test_targets"]),
        error_name="1 - accuracy",
    )


SPEC = TaskSpec("femnist", femnist)
NARROW_SPEC = TaskSpec("femnist-narrow", partial(femnist, widths=NARROW, name="femnist-narrow"))
