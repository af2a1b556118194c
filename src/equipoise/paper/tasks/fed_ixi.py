"""Which voxels belong to it? MR scans of the head, with masks: of the brain (task fed-ixi) and of
the hippocampus.

fed-ixi is Fed-IXI of FLamby (du Terrail et al., "FLamby: datasets and benchmarks for cross-silo
federated learning in realistic healthcare settings", 2022): the 566 scans of IXI-Tiny, which come
from three hospitals, with FLamby's split, preparation, loss and measure. hippocampus is Task04 of
the Medical Segmentation Decathlon (Antonelli et al. 2022) in the same form: a smaller task, whose
260 scans do not say where they come from. Every fifth of them, by number, is declared public and is
a test record.
"""

import gzip
import io
import math
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from equipoise.errors import DataError, EquipoiseError
from equipoise.paper.data.files import File
from equipoise.paper.data.prepared import Arrays, DataSet
from equipoise.paper.networks import UNet3d
from equipoise.paper.tasks.table1 import Row, federated_task
from equipoise.tasks.network import PerExample
from equipoise.tasks.task import Options, Task, TaskSpec

ROW = Row(clients=3, batch=1, iterations=400, clips=(10, 20, 50), learning_rate=0.01)
SHAPE = (48, 60, 48)
SPACE = (-3, -2, -1)  # the axes of a volume
LARGEST = (
    2**26
)  # bytes of a volume; those of IXI-Tiny have 0.8 million, those of the hippocampus 0.4 million at most
FED_IXI = DataSet(
    name="fed-ixi",
    folder="brain-mri",
    wanted=r"(?P<subject>IXI\d{3}-[A-Za-z]+-\d+)/(?:T1/(?P=subject)_image|label/(?P=subject)_label)\.nii\.gz",
    most=LARGEST,
    records=(453, 113),
    table_1="3 clients: 151 ± 95 train, 38 ± 24 test",
    licence="CC BY-SA 3.0; acknowledge https://brain-development.org/ixi-dataset/ and TorchIO "
    "(arXiv 2003.04696)",
    how=(
        "put 7kd5wj7v7p-3.zip (IXI-Tiny, 444 MB) there as it is; FLamby downloads it, and has its "
        "present address as "
        "DATASET_URL in https://github.com/owkin/FLamby/blob/main/flamby/datasets/fed_ixi/common.py"
    ),
    libraries=("nibabel", "torch"),
    extra="mri",
)
HIPPOCAMPUS = DataSet(
    name="hippocampus",
    folder="brain-mri",
    wanted=r"(?:images|labels)Tr/hippocampus_\d+\.nii\.gz",
    most=LARGEST,
    records=(208, 52),
    table_1="not in it",
    licence="CC BY-SA 4.0; cite Antonelli et al., The Medical Segmentation Decathlon, Nature "
    "Communications 13, 2022",
    how="put Task04_Hippocampus.tar there as it is, from "
    "https://msd-for-monai.s3-us-west-2.amazonaws.com/Task04_Hippocampus.tar",
    libraries=("nibabel", "torch"),
    extra="mri",
)
HOSPITALS = ("Guys", "HH", "IOP")

# Of IXI001, IXI002, ... the hospital by its first letter, large for a test record; a dot for a
# number that IXI-Tiny lacks. It is FLamby's metadata_tiny.csv (https://github.com/owkin/FLamby, MIT
# licence).
SPLIT = (
    ".G.........HhhHgG.gggggGggGgggg.hHiGgghggg.ggg.hHghhgGghhGhgggGgGghgggghg.Gggghhg.hggggg.gghhh.hH.g."
    ".hg.hGGgggGGgggGgGgGGgg..hHhGhhh.gGhhgggGgggGh.H.hG.Gg.ggghhH.hghghhgg.ghhhhggghggggGg.gG.gggGhggggg"
    "Hh.hhhggggHhhH.hhHg.hgggghggGiIiii.ggIhGgh.g..gHggghhHhHhhhhhhhGg.hgGG...hhhhhGh.H.hggggGiIiIIhhgggg"
    ".higiiigiIggHIihggGggi.gggHHHgiiihhGIh.i.g.gi.ig.gg.hh.hhggggHhGg.ggGgiii.gggigggiHhhhhIggggggihgGgg"
    "GGgggGgGggggggGggggG.giiiiiGgIggiiihHhhhhihHhhg.ggHhhggGggggGiiih.ggiI..iiiiiiGghhhhHggggggGgggGggGg"
    "gGGGgggh.iHg..hhiHH.hhGHhhhg..gigggghhg.iiIh.hIiggggiggh.ghgigi.hhhhg.Ihiihghgg..g.gGH.iG.gggGIiiHhh"
    "h.h.hhGhhhhHhh.gggg.g.g.gGg.gghhHHHhhhgggghg.h.G..ggg.......hg"
)


def fed_ixi(options: Options) -> Task:
    """By default the clients are the hospitals. The error is that of FLamby: soft, and the mean of
    background and brain."""
    arrays = FED_IXI.prepared(prepare)
    for part, kind in (("train", "training"), ("test", "test")):
        for number, hospital in enumerate(HOSPITALS):
            if number not in arrays[f"{part}_owners"]:
                raise DataError(
                    f"the data of task=fed-ixi is incomplete: hospital {hospital} has no {kind} "
                    f"record in {FED_IXI.place}; "
                    f"{FED_IXI.how}"
                )
    return federated_task(
        "fed-ixi",
        UNet3d,
        arrays,
        ROW,
        dice_loss,
        soft_dice,
        options,
        owner="hospital",
        natural=True,
        constant_error=constant_error(soft_dice, arrays["test_targets"]),
        error_name="1 - Dice (soft, mean of background and brain)",
    )


def hippocampus(options: Options) -> Task:
    """Clients are dealt equal random parts. The error is that of the mask: of voxels more likely
    hippocampus than not."""
    arrays = HIPPOCAMPUS.prepared(prepare_hippocampus)
    return federated_task(
        "hippocampus",
        UNet3d,
        arrays,
        ROW,
        dice_loss,
        foreground_dice,
        options,
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
    found, wanted = outputs[:, 1] > outputs[:, 0], masks > 0
    shared, volume = (found & wanted).sum(SPACE), (found.sum(SPACE) + wanted.sum(SPACE)) / 2
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
    answers = (answer.view(1, 2, 1, 1, 1).expand(1, 2, *SHAPE) for answer in torch.eye(2))
    return min(
        1 - float(np.mean([metric(answer, torch.from_numpy(mask[None])) for mask in masks]))
        for answer in answers
    )


def prepare(files: Iterator[File]) -> Arrays:
    """Scans [n, 1, 48, 60, 48], masks [n, 48, 60, 48] and hospitals; a subject without a mask is
    left out."""
    scans = _scans(files, r"IXI\d{3}-[A-Za-z]+-\d+", highest=1)
    test, hospitals = [], []
    for subject in scans:
        number, hospital = int(subject[3:6]), subject.split("-")[1]
        letter = SPLIT[number - 1 : number]
        if hospital not in HOSPITALS or letter.upper() != hospital[0]:
            raise DataError(
                f"subject {subject} is not one of the {len(SPLIT) - SPLIT.count('.')} of IXI-Tiny"
            )
        test.append(letter.isupper())
        hospitals.append(HOSPITALS.index(hospital))
    return _arrays(scans, np.array(test), np.array(hospitals))


def prepare_hippocampus(files: Iterator[File]) -> Arrays:
    """As `prepare`; the foreground are both halves of the hippocampus, which the labels 1 and 2
    tell apart."""
    scans = _scans(files, r"hippocampus_\d+", highest=2)
    return _arrays(scans, np.arange(len(scans)) % 5 == 0, np.zeros(len(scans), np.int64))


Scan = tuple[NDArray[np.float32], NDArray[np.uint8]]


def _scans(files: Iterator[File], name: str, highest: int) -> dict[str, Scan]:
    """Image and mask of every scan that has both, in order of their names."""
    single: dict[str, File] = {}
    scans: dict[str, Scan] = {}
    for file in files:
        match = re.search(name, file.name)
        assert match
        other = single.pop(match[0], None)
        if other is None:
            single[match[0]] = file
        else:
            image, mask = (file, other) if "label" in other.name else (other, file)
            scans[match[0]] = _scan(image, mask, highest)
    if not scans:
        some = next(iter(single.values())).place if single else "the data set"
        raise DataError(
            f"{some}: none of the {len(single)} scans here has both an image and a mask"
        )
    return dict(sorted(scans.items()))


def _scan(image: File, mask: File, highest: int) -> Scan:
    """A scan as FLamby prepares it with MONAI: Resize, which is by area, and NormalizeIntensity or
    AsDiscrete(to_onehot=2).

    The last casts to whole numbers, so that a voxel is foreground only where all of it is: the
    resized mask is rounded down.
    """
    voxels, labels = _volume(image), _volume(mask)
    if voxels.shape != labels.shape:
        shapes = (" x ".join(map(str, volume.shape)) for volume in (voxels, labels))
        raise DataError("{}: it has {} voxels, but its mask {}".format(image.place, *shapes))
    if not torch.isin(labels, torch.arange(highest + 1)).all():
        raise DataError(
            f"{mask.place}: a mask has whole numbers from 0 to {highest}, and it has others"
        )
    resized = _resized(voxels)
    normal = (resized - resized.mean()) / resized.std(unbiased=False)
    if voxels.min() == voxels.max() or not normal.isfinite().all():
        raise DataError(f"{image.place}: its voxels are all alike, or too large for float32")
    return normal[None].numpy(), _resized((labels > 0).float()).to(torch.uint8).numpy()


def _resized(volume: Tensor) -> Tensor:
    return interpolate(volume[None, None], size=SHAPE, mode="area")[0, 0]


def _volume(file: File) -> Tensor:
    """The voxels of a NIfTI file [x, y, z], scaled as it says."""
    nibabel: Any = import_module("nibabel")  # half a second to import

    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(file.content)).read(LARGEST + 1)
        if len(content) > LARGEST:
            raise DataError(
                f"{file.place}: unpacked it has more than {LARGEST:,} bytes; no volume of this "
                f"data set has"
            )
        image = nibabel.Nifti1Image.from_bytes(content)
        shape, kind = image.shape, image.get_data_dtype()
        if len(shape) != 3 or not all(shape) or kind.kind not in "iuf":
            raise DataError(
                f"{file.place}: it has voxels {list(shape)} of {kind}; three axes of numbers were "
                f"expected"
            )
        if math.prod(shape) * kind.itemsize > len(content):
            raise DataError(
                f"{file.place}: it is cut short: {list(shape)} voxels of {kind} do not fit into "
                f"its bytes"
            )
        volume = torch.from_numpy(image.get_fdata(dtype=np.float64)).float()
    except EquipoiseError:
        raise
    except Exception as error:  # a broken file can raise anything
        raise DataError(
            f"{file.place}: not a readable NIfTI volume: {str(error) or type(error).__name__}"
        ) from None
    if not volume.isfinite().all():
        raise DataError(f"{file.place}: it has voxels that are not finite numbers")
    return volume


def _arrays(scans: dict[str, Scan], test: NDArray[np.bool_], owners: NDArray[np.int64]) -> Arrays:
    inputs, targets = zip(*scans.values(), strict=True)
    arrays: Arrays = {}
    for part, chosen in (("train", np.flatnonzero(~test)), ("test", np.flatnonzero(test))):
        arrays[f"{part}_inputs"] = np.array([inputs[i] for i in chosen], np.float32).reshape(
            -1, 1, *SHAPE
        )
        arrays[f"{part}_targets"] = np.array([targets[i] for i in chosen], np.uint8).reshape(
            -1, *SHAPE
        )
        arrays[f"{part}_owners"] = owners[chosen]
    return arrays


SPEC = TaskSpec("fed-ixi", fed_ixi)
HIPPOCAMPUS_SPEC = TaskSpec("hippocampus", hippocampus)
