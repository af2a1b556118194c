"""Does a photograph of the back of the eye show diabetic retinopathy? Messidor, three hospitals;
and DeepDRiD, its stand-in.

In training a photograph is flipped and turned at random. The network is VGG-11.

A record is one photograph, and one person has several: four in DeepDRiD, two in most of Messidor,
which says nowhere whose they are. unit=record hides a photograph; unit=person hides a person, in
DeepDRiD.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from equipoise.cache import Arrays
from equipoise.paper.data.data_set import DataSet
from equipoise.paper.data.fundus import DEEPDRID, MESSIDOR
from equipoise.paper.networks import vgg11
from equipoise.paper.tasks.rows import ROWS
from equipoise.paper.tasks.table1 import PERSONS, federated_task, majority_error
from equipoise.tasks.own import accuracy
from equipoise.tasks.task import Task, TaskOptions, TaskSpec

PIXELS = 64  # of smaller pictures
TURN = 10.0  # degrees, at most, either way
ROW = ROWS["messidor"]


def messidor(options: TaskOptions) -> Task:
    """Clients are the hospitals: Lariboisière, St Etienne, Brest."""
    arrays = MESSIDOR.prepared()
    return _task("messidor", arrays, options, MESSIDOR, owner="hospital", natural=True)


def deepdrid(options: TaskOptions) -> Task:
    """Clients are equal random parts, because two of the three sources have too few records to
    train on: 36 and 24 of 1,200. split=natural makes the sources clients as they are."""
    return _task("deepdrid", DEEPDRID.prepared(), options, DEEPDRID)


def deepdrid_narrow(options: TaskOptions) -> Task:
    """The same with 64 x 64 pixels, an eighth of the channels and 64 hidden units, for quick
    studies."""
    arrays = dict(DEEPDRID.prepared())
    for part in ("train", "test"):
        images = arrays[f"{part}_inputs"]
        small = [_reduced(images[start : start + 100]) for start in range(0, len(images), 100)]
        arrays[f"{part}_inputs"] = np.concatenate(small)
    return _task("deepdrid-narrow", arrays, options, DEEPDRID, network=narrow_vgg11)


def narrow_vgg11() -> nn.Module:
    return vgg11(hidden=64, width=8)


def _reduced(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Means of the pixels that fall into each of PIXELS x PIXELS squares."""
    means = functional.adaptive_avg_pool2d(torch.from_numpy(images).float(), PIXELS)
    reduced: NDArray[np.uint8] = means.round().to(torch.uint8).numpy()
    return reduced


def _task(
    name: str,
    arrays: Arrays,
    options: TaskOptions,
    data_set: DataSet,
    owner: str = "source",
    natural: bool = False,
    network: Callable[[], nn.Module] | None = None,
) -> Task:
    return federated_task(
        name,
        network or vgg11,
        arrays,
        ROW,
        functional.cross_entropy,
        accuracy,
        options,
        whole=data_set.records,
        owner=owner,
        natural=natural,
        constant_error=majority_error(arrays["test_targets"]),
        error_name="1 - accuracy",
        augment=flipped_and_turned,
        person="person" if PERSONS in arrays else "",
    )


def flipped_and_turned(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each square image [c, h, w], uint8, flipped left to right and upside down with probability
    1/2 each, and turned by an angle uniform between -10 and 10 degrees about its centre: bilinear,
    black where nothing was, to the nearest grey value."""
    if not len(images):
        return images
    mirrored, upside_down, turned = torch.rand(len(images), 3, generator=generator).unbind(1)
    x, y = torch.where(mirrored < 0.5, -1.0, 1.0), torch.where(upside_down < 0.5, -1.0, 1.0)
    angle = torch.deg2rad(TURN * (2 * turned - 1))
    zero = torch.zeros_like(angle)
    moves = torch.stack(
        [x * angle.cos(), -x * angle.sin(), zero, y * angle.sin(), y * angle.cos(), zero], 1
    ).view(-1, 2, 3)
    grid = functional.affine_grid(moves, list(images.shape), align_corners=False)
    moved = functional.grid_sample(images.float(), grid, align_corners=False)
    return moved.round().to(images.dtype)


SPEC = TaskSpec("messidor", messidor)
DEEPDRID_SPEC = TaskSpec("deepdrid", deepdrid)
DEEPDRID_NARROW_SPEC = TaskSpec("deepdrid-narrow", deepdrid_narrow)
