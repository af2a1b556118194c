"""Which voxels belong to it? MR scans of the head, with masks: of the brain (task fed-ixi) and of
the hippocampus.

fed-ixi has FLamby's loss and measure; hippocampus is a smaller task of the same form, whose scans
do not say where they come from.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.cache import Arrays
from equipoise.errors import DataError
from equipoise.paper.data.brain_mri import FED_IXI, HIPPOCAMPUS, HOSPITALS
from equipoise.paper.networks import UNet3d
from equipoise.paper.tasks.rows import ROWS
from equipoise.paper.tasks.table1 import federated_task
from equipoise.tasks.network import PerExample
from equipoise.tasks.task import Task, TaskOptions, TaskSpec

ROW = ROWS["fed-ixi"]
SPACE = (-3, -2, -1)  # the axes of a volume


def fed_ixi(options: TaskOptions) -> Task:
    """By default the clients are the hospitals. The error is that of FLamby: soft, and the mean of
    background and brain."""
    arrays = FED_IXI.prepared()
    for part, kind in (("train", "training"), ("test", "test")):
        _check_hospitals(arrays[f"{part}_owners"], kind)
    return federated_task(
        "fed-ixi",
        UNet3d,
        arrays,
        ROW,
        dice_loss,
        soft_dice,
        options,
        whole=FED_IXI.records,
        owner="hospital",
        natural=True,
        constant_error=constant_error(soft_dice, arrays["test_targets"]),
        error_name="1 - Dice (soft, mean of background and brain)",
    )


def _check_hospitals(owners: NDArray[Any], kind: str) -> None:
    for number, hospital in enumerate(HOSPITALS):
        if number not in owners:
            raise DataError(
                f"the data of task=fed-ixi is incomplete: hospital {hospital} has no {kind} record "
                f"in {FED_IXI.place}; {FED_IXI.how}"
            )


def hippocampus(options: TaskOptions) -> Task:
    """Clients are dealt equal random parts. The error is that of the mask: of voxels more likely
    hippocampus than not."""
    return _hippocampus("hippocampus", HIPPOCAMPUS.prepared(), options)


def hippocampus_narrow(options: TaskOptions) -> Task:
    """The same on volumes of half the size, 24 x 32 x 24, with half the channels, for quick
    studies."""
    arrays = dict(HIPPOCAMPUS.prepared())
    for part in ("train", "test"):
        inputs, masks = arrays[f"{part}_inputs"], arrays[f"{part}_targets"]
        arrays[f"{part}_inputs"] = _halved(inputs[:, 0])[:, None]
        arrays[f"{part}_targets"] = (_halved(masks) >= 0.5).astype(np.uint8)
    return _hippocampus("hippocampus-narrow", arrays, options, width=4)


def _halved(volumes: NDArray[Any]) -> NDArray[np.float32]:
    """Means of 2 x 2 x 2 voxels; sizes are filled up with zeros, so that half of them is divisible
    by 4."""
    missing = [-size % 8 for size in volumes.shape[1:]]
    filled = np.pad(volumes, [(0, 0), *((less // 2, less - less // 2) for less in missing)])
    n, a, b, c = filled.shape
    means: NDArray[np.float32] = filled.reshape(n, a // 2, 2, b // 2, 2, c // 2, 2).mean(
        (2, 4, 6), dtype=np.float32
    )
    return means


def _hippocampus(name: str, arrays: Arrays, options: TaskOptions, width: int = 8) -> Task:
    return federated_task(
        name,
        partial(UNet3d, width),
        arrays,
        ROW,
        dice_loss,
        foreground_dice,
        options,
        whole=HIPPOCAMPUS.records,
        owner="source",
        natural=False,
        constant_error=constant_error(foreground_dice, arrays["test_targets"]),
        error_name="1 - Dice of the hippocampus",
    )


def dice_loss(outputs: Tensor, masks: Tensor) -> Tensor:
    """1 - Dice of the probabilities `outputs` [n, 2, ...], mean over background and foreground and
    over the scans.

    It is FLamby's 1 - 2 TP / (2 TP + FP + FN + 1e-9): with probabilities, 2 TP + FP + FN is the sum
    of both volumes.
    """
    wanted = _both(masks)
    shared = (outputs * wanted).sum(SPACE)
    return (1 - 2 * shared / (outputs.sum(SPACE) + wanted.sum(SPACE) + 1e-9)).mean()


def _soft_dice(outputs: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    wanted = _both(masks)
    shared, volume = (outputs * wanted).sum(SPACE), (outputs + wanted).sum(SPACE) / 2
    dice = torch.where(volume == 0, 1, shared / (volume + 1e-7)).mean(1)
    return dice, torch.ones_like(dice)


def _foreground_dice(outputs: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    guessed, wanted = outputs[:, 1] > outputs[:, 0], masks > 0
    shared, volume = (guessed & wanted).sum(SPACE), (guessed.sum(SPACE) + wanted.sum(SPACE)) / 2
    dice = torch.where(volume == 0, 1, shared / volume.clamp(min=0.5))
    return dice, torch.ones_like(dice)


soft_dice = PerExample(_soft_dice)
"""FLamby's measure: Dice of the probabilities, of each scan the mean of background and
foreground.
"""

foreground_dice = PerExample(_foreground_dice)
"""Dice of the foreground alone, of voxels where it is the more probable: what a user of the mask
sees."""


def _both(masks: Tensor) -> Tensor:
    """What the probabilities [n, 2, ...] of background and foreground should be."""
    foreground = masks.float()
    return torch.stack([1 - foreground, foreground], 1)


def constant_error(metric: PerExample, masks: NDArray[Any]) -> float:
    """The error of the better constant answer: all is background, or all is foreground."""
    answers = torch.eye(2).view(2, 1, 2, 1, 1, 1).expand(2, 1, 2, *masks.shape[1:])
    return min(_mean_error(metric, answer, masks) for answer in answers)


def _mean_error(metric: PerExample, answer: Tensor, masks: NDArray[Any]) -> float:
    return 1 - float(np.mean([metric(answer, torch.from_numpy(mask[None])) for mask in masks]))


SPEC = TaskSpec("fed-ixi", fed_ixi)
HIPPOCAMPUS_SPEC = TaskSpec("hippocampus", hippocampus)
HIPPOCAMPUS_NARROW_SPEC = TaskSpec("hippocampus-narrow", hippocampus_narrow)
