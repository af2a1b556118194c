"""MR scans of the head with masks: of the brain (Fed-IXI) and of the hippocampus.

Fed-IXI is of FLamby (du Terrail et al., "FLamby: datasets and benchmarks for cross-silo federated
learning in realistic healthcare settings", 2022): the 566 scans of IXI-Tiny, which come from three
hospitals, with FLamby's split and preparation. The hippocampus scans are Task04 of the Medical
Segmentation Decathlon (Antonelli et al. 2022), 260 of them, which do not say where they come from.
Every fifth, by number, is declared public and is a test record.
"""

import gzip
import io
import math
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from equipoise.cache import Arrays
from equipoise.errors import DataError
from equipoise.paper.data.data_set import DataSet
from equipoise.paper.data.files import File

SHAPE = (48, 60, 48)
LARGEST = 2**26  # bytes of a volume: IXI-Tiny's have 0.8 million, the hippocampus's at most 0.4
HOSPITALS = ("Guys", "HH", "IOP")

# Of IXI001, IXI002, ... the hospital by its first letter, large for a test record; a dot for a
# number that IXI-Tiny lacks. It is FLamby's metadata_tiny.csv (https://github.com/owkin/FLamby, MIT
# licence).
SPLIT = (
    ".G.........HhhHgG.gggggGggGgggg.hHiGgghggg.ggg.hHghhgGghhGhgggGgGghgggghg.Gggghhg.hggggg.g"
    "ghhh.hH.g..hg.hGGgggGGgggGgGgGGgg..hHhGhhh.gGhhgggGgggGh.H.hG.Gg.ggghhH.hghghhgg.ghhhhgggh"
    "ggggGg.gG.gggGhgggggHh.hhhggggHhhH.hhHg.hgggghggGiIiii.ggIhGgh.g..gHggghhHhHhhhhhhhGg.hgGG"
    "...hhhhhGh.H.hggggGiIiIIhhgggg.higiiigiIggHIihggGggi.gggHHHgiiihhGIh.i.g.gi.ig.gg.hh.hhggg"
    "gHhGg.ggGgiii.gggigggiHhhhhIggggggihgGggGGgggGgGggggggGggggG.giiiiiGgIggiiihHhhhhihHhhg.gg"
    "HhhggGggggGiiih.ggiI..iiiiiiGghhhhHggggggGgggGggGggGGGgggh.iHg..hhiHH.hhGHhhhg..gigggghhg."
    "iiIh.hIiggggiggh.ghgigi.hhhhg.Ihiihghgg..g.gGH.iG.gggGIiiHhhh.h.hhGhhhhHhh.gggg.g.g.gGg.gg"
    "hhHHHhhhgggghg.h.G..ggg.......hg"
)


class Scan(NamedTuple):
    """An image [1, 48, 60, 48], and its mask [48, 60, 48] of 0 and 1."""

    image: NDArray[np.float32]
    mask: NDArray[np.uint8]


def read_fed_ixi(files: Iterator[File]) -> Arrays:
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


def read_hippocampus(files: Iterator[File]) -> Arrays:
    """The same. The foreground is both halves of the hippocampus, which have the labels 1 and 2;
    the owner is always 0."""
    scans = _scans(files, r"hippocampus_\d+", highest=2)
    return _arrays(scans, np.arange(len(scans)) % 5 == 0, np.zeros(len(scans), np.int64))


def _scans(files: Iterator[File], name: str, highest: int) -> dict[str, Scan]:
    """Every scan that has both an image and a mask, in order of their names."""
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
        place = next(iter(single.values())).place if single else "the data set"
        raise DataError(
            f"{place}: none of the {len(single)} scans here has both an image and a mask"
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
        raise DataError(
            f"{image.place}: it has {_size(voxels)} voxels, but its mask {_size(labels)}"
        )
    if not torch.isin(labels, torch.arange(highest + 1)).all():
        raise DataError(
            f"{mask.place}: a mask has whole numbers from 0 to {highest}, and it has others"
        )
    resized = _resized(voxels)
    normal = (resized - resized.mean()) / resized.std(unbiased=False)
    if voxels.min() == voxels.max() or not normal.isfinite().all():
        raise DataError(f"{image.place}: its voxels are all alike, or too large for float32")
    foreground = _resized((labels > 0).float()).to(torch.uint8)
    return Scan(normal[None].numpy(), foreground.numpy())


def _size(volume: Tensor) -> str:
    return " x ".join(map(str, volume.shape))


def _resized(volume: Tensor) -> Tensor:
    return interpolate(volume[None, None], size=SHAPE, mode="area")[0, 0]


def _volume(file: File) -> Tensor:
    """The voxels of a NIfTI file [x, y, z], scaled as it says."""
    try:
        volume = _decoded(file)
    except DataError:
        raise
    except Exception as error:  # a broken file can raise anything
        raise DataError(
            f"{file.place}: not a readable NIfTI volume: {str(error) or type(error).__name__}"
        ) from None
    if not volume.isfinite().all():
        raise DataError(f"{file.place}: it has voxels that are not finite numbers")
    return volume


def _decoded(file: File) -> Tensor:
    nibabel: Any = import_module("nibabel")  # half a second to import

    content = gzip.GzipFile(fileobj=io.BytesIO(file.content)).read(LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(
            f"{file.place}: unpacked it has more than {LARGEST:,} bytes, as no volume of this data "
            f"set has"
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
            f"{file.place}: it is cut short: {list(shape)} voxels of {kind} do not fit into its "
            f"bytes"
        )
    return torch.from_numpy(image.get_fdata(dtype=np.float64)).float()


def _arrays(scans: dict[str, Scan], test: NDArray[np.bool_], owners: NDArray[np.int64]) -> Arrays:
    every = list(scans.values())
    arrays: Arrays = {}
    for part, chosen in (("train", np.flatnonzero(~test)), ("test", np.flatnonzero(test))):
        images = np.array([every[i].image for i in chosen], np.float32)
        masks = np.array([every[i].mask for i in chosen], np.uint8)
        arrays[f"{part}_inputs"] = images.reshape(-1, 1, *SHAPE)  # of no scans too
        arrays[f"{part}_targets"] = masks.reshape(-1, *SHAPE)
        arrays[f"{part}_owners"] = owners[chosen]
    return arrays


FED_IXI = DataSet(
    name="fed-ixi",
    folder="brain-mri",
    read=read_fed_ixi,
    wanted=r"(?P<subject>IXI\d{3}-[A-Za-z]+-\d+)/"
    r"(?:T1/(?P=subject)_image|label/(?P=subject)_label)\.nii\.gz",
    most=LARGEST,
    records=(453, 113),
    table_1="3 clients: 151 ± 95 train, 38 ± 24 test",
    licence="CC BY-SA 3.0; acknowledge https://brain-development.org/ixi-dataset/ and TorchIO "
    "(arXiv 2003.04696)",
    how="put 7kd5wj7v7p-3.zip (IXI-Tiny, 444 MB) there as it is; FLamby downloads it, and has its "
    "present address as DATASET_URL in "
    "https://github.com/owkin/FLamby/blob/main/flamby/datasets/fed_ixi/common.py",
    libraries=("nibabel", "torch"),
    extra="mri",
)
HIPPOCAMPUS = DataSet(
    name="hippocampus",
    folder="brain-mri",
    read=read_hippocampus,
    wanted=r"(?:images|labels)Tr/hippocampus_\d+\.nii\.gz",
    most=LARGEST,
    records=(208, 52),
    table_1="not in the paper",
    licence="CC BY-SA 4.0; cite Antonelli et al., The Medical Segmentation Decathlon, Nature "
    "Communications 13, 2022",
    how="put Task04_Hippocampus.tar there as it is, from "
    "https://msd-for-monai.s3-us-west-2.amazonaws.com/Task04_Hippocampus.tar",
    libraries=("nibabel", "torch"),
    extra="mri",
)
