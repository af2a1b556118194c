"""Does a photograph of the back of the eye show diabetic retinopathy? Messidor, three hospitals;
and DeepDRiD, its stand-in.

A photograph is cropped to the box of its pixels whose grey value is above 1 (the paper: "black
edges were cropped based on a pixel threshold value of 1"), and resized to 224 x 224 with Pillow's
bilinear filter, which averages when it shrinks. The label is grade > 0. In training it is flipped
and turned at random. The network is VGG-11.

A record is one photograph, and one person has several: four in DeepDRiD, two in most of Messidor,
which says nowhere whose they are. unit=record hides a photograph, not a person.
"""

import csv
import hashlib
import io
import re
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from equipoise.errors import DataError
from equipoise.paper.data.files import File
from equipoise.paper.data.prepared import Arrays, DataSet
from equipoise.paper.networks import vgg11
from equipoise.paper.tasks.table1 import Row, federated_task, majority_error
from equipoise.seeds import stream
from equipoise.tasks.own import accuracy
from equipoise.tasks.task import Options, Task, TaskSpec

SIDE = 224
DARK = 1  # grey values up to this are border
TURN = 10.0  # degrees, at most, either way
MOST_PIXELS = 50_000_000
ROW = Row(clients=3, batch=4, iterations=500, clips=(10, 20, 50), learning_rate=0.01)
HOSPITALS = (
    "lariboisi",
    "tienne",
    "brest",
)  # what the names of clients 0, 1, 2 contain, whatever the accents
SOURCES = ("Nicheng", "Nation", "Shanghai")  # clients 0, 1, 2 if split natural
SHEET = re.compile(r"Annotation[_ ](?P<base>Base\d\d)(?:_update(?P<date>\d+))?\.xls")
COLUMNS = ("Image name", "Ophthalmologic department", "Retinopathy grade")

MESSIDOR = DataSet(
    name="messidor",
    folder="fundus",
    wanted=r"(?<![^/])(?:Annotation[_ ]Base\d\d(?:_update\d+)?\.xls|\d+_\d+_\d+_PP\.tiff?)",
    archives=r"base\d\d",
    most=2**26,
    records=(900, 300),
    table_1="3 clients: 300 ± 0 train, 100 ± 0 test",
    licence="for research and teaching only, no redistribution; cite Decencière et al. 2014, doi "
    "10.5566/ias.1155",
    how="ask for Base11.zip to Base34.zip and the twelve sheets Annotation_Base*.xls at "
    "https://www.adcis.net/en/third-party/messidor/ and put them there as they are",
    libraries=("pillow", "xlrd"),
    extra="images",
)
DEEPDRID = DataSet(
    name="deepdrid",
    folder="fundus",
    wanted=r"(?<![^/])regular-fundus-(?:training|validation)/"
    r"(?:Images/[^/]+/[^/.]+\.jpg|regular-fundus-(?:source-)?(?:training|validation)\.csv)",
    archives="deepdrid|regular.fundus",
    most=2**25,
    records=(1200, 400),
    table_1="not in the paper",
    licence="CC BY-SA 4.0; cite Liu et al. 2022, doi 10.1016/j.patter.2022.100512",
    how="put regular_fundus_images/ of https://github.com/deepdrdoc/DeepDRiD there, or an archive "
    "of it",
    libraries=("pillow",),
    extra="images",
)


def messidor(options: Options) -> Task:
    """Clients are the hospitals: Lariboisière, St Etienne, Brest."""
    return _task(
        "messidor", MESSIDOR.prepared(prepare_messidor), options, owner="hospital", natural=True
    )


def deepdrid(options: Options) -> Task:
    """Clients are equal random parts, because two of the three sources have too few records to
    train on: 36 and 24 of 1,200. split=natural makes the sources clients as they are."""
    return _task(
        "deepdrid", DEEPDRID.prepared(prepare_deepdrid), options, owner="source", natural=False
    )


def _task(name: str, arrays: Arrays, options: Options, owner: str, natural: bool) -> Task:
    return federated_task(
        name,
        vgg11,
        arrays,
        ROW,
        functional.cross_entropy,
        accuracy,
        options,
        owner=owner,
        natural=natural,
        constant_error=majority_error(arrays["test_targets"]),
        error_name="1 - accuracy",
        augment=flipped_and_turned,
    )


def flipped_and_turned(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each square image [c, h, w], uint8, flipped left to right and upside down with probability
    1/2 each, and turned by an angle uniform between -10 and 10 degrees about its centre: bilinear,
    black where nothing was, to the nearest grey value."""
    if not len(images):
        return images
    mirrored, upside_down, turned = torch.rand(len(images), 3, generator=generator).unbind(1)
    x, y = (torch.where(draw < 0.5, -1.0, 1.0) for draw in (mirrored, upside_down))
    angle = torch.deg2rad(TURN * (2 * turned - 1))
    zero = torch.zeros_like(angle)
    moves = torch.stack(
        [x * angle.cos(), -x * angle.sin(), zero, y * angle.sin(), y * angle.cos(), zero], 1
    ).view(-1, 2, 3)
    grid = functional.affine_grid(moves, list(images.shape), align_corners=False)
    return (
        functional.grid_sample(images.float(), grid, align_corners=False).round().to(images.dtype)
    )


class Photograph(NamedTuple):
    place: str
    digest: bytes  # of all its pixels, before it was made small
    pixels: NDArray[np.uint8]


class Record(NamedTuple):
    pixels: NDArray[np.uint8]
    label: bool
    owner: int


def photograph(file: File, kind: str) -> Photograph:
    """The photograph in a file of the given kind (Pillow's name for it), cropped and resized, as
    [3, 224, 224]."""
    from PIL import Image

    try:
        with warnings.catch_warnings(
            action="ignore"
        ):  # of metadata; and of size, which is checked here
            image: Any = Image.open(io.BytesIO(file.content), formats=[kind])
            if image.width * image.height > MOST_PIXELS:
                raise DataError(
                    f"{file.place} has {image.width} x {image.height} pixels: no photograph is "
                    f"that large"
                )
            image = image.convert("RGB")
    except DataError:
        raise
    except Exception as error:  # a broken image can raise anything
        said = f"{type(error).__name__}: {str(error)[:100]}"
        raise DataError(
            f"{file.place} is not a readable {kind} image, or is cut short: {said}"
        ) from None
    box = image.convert("L").point([0] * (DARK + 1) + [255] * (255 - DARK)).getbbox()
    if box is None:
        raise DataError(f"{file.place} is black all over")
    small = image.crop(box).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    digest = hashlib.sha256(repr(image.size).encode() + image.tobytes()).digest()
    return Photograph(file.place, digest, np.asarray(small).transpose(2, 0, 1).copy())


def prepare_messidor(files: Iterator[File]) -> Arrays:
    """Three quarters of each hospital's photographs to train on and a quarter to test: of each
    label, by a fixed public stream.

    Of photographs with equal pixels one is kept, and none if their labels differ; `left_out` counts
    the others. The errata of the site list 13 repeats in Base33 (16 August 2017), so that 1,187 of
    1,200 remain. Where a sheet has an update, the newest counts: there is one of 24 October 2016
    for Base11 and for Base13.
    """
    sheets: dict[str, tuple[str, File]] = {}
    photographs: dict[str, Photograph] = {}
    for file in files:
        if sheet := SHEET.fullmatch(file.name):
            sheets[sheet["base"]] = max(
                sheets.get(sheet["base"], ("", file)), (sheet["date"] or "", file)
            )
        else:
            photographs[_stem(file.name)] = photograph(file, "TIFF")
    graded: dict[str, tuple[str, int, int]] = {}
    for _, sheet_file in sheets.values():
        for place, name, hospital, grade in _rows(sheet_file):
            if name not in photographs:
                raise DataError(f"{place} names {name}.tif, which is not there")
            if graded.setdefault(name, (place, hospital, grade))[1:] != (hospital, grade):
                raise DataError(f"{place} says something else of {name}.tif than {graded[name][0]}")
    for name, found in photographs.items():
        if name not in graded:
            raise DataError(f"{found.place} has no row in any sheet Annotation_Base*.xls")
    equal: dict[bytes, list[Record]] = {}
    for name in sorted(photographs):
        _, hospital, grade = graded[name]
        equal.setdefault(photographs[name].digest, []).append(
            Record(photographs[name].pixels, grade > 0, hospital)
        )
    records = [same[0] for same in equal.values() if len({record.label for record in same}) == 1]
    held_out = _a_quarter(records)
    parts = {
        part: [records[j] for j in np.flatnonzero(held_out == (part == "test"))]
        for part in ("train", "test")
    }
    return _arrays(parts) | {"left_out": np.array([len(photographs) - len(records)])}


def _rows(sheet: File) -> Iterator[tuple[str, str, int, int]]:
    """Of each row of an annotation sheet: where it is, the photograph, the client and the grade."""
    import xlrd

    try:
        table = xlrd.open_workbook(
            file_contents=sheet.content, logfile=io.StringIO()
        ).sheet_by_index(0)
        header, *rows = [table.row_values(k) for k in range(table.nrows)]
    except Exception as error:  # a broken workbook can raise anything
        raise DataError(
            f"{sheet.place} is not a readable .xls sheet: {type(error).__name__}: "
            f"{str(error)[:100]}"
        ) from None
    names = [str(name).strip().casefold() for name in header]
    for column in COLUMNS:
        if column.casefold() not in names:
            raise DataError(f"{sheet.place} has no column {column!r}")
    places = [names.index(column.casefold()) for column in COLUMNS]
    for number, row in enumerate(rows, start=2):
        place = f"{sheet.place}, row {number},"
        name, department, grade = (row[k] for k in places)
        if not any((name, department, grade)):
            continue
        hospital = [i for i, part in enumerate(HOSPITALS) if part in str(department).casefold()]
        if len(hospital) != 1:
            raise DataError(f"{place} has the unknown department {str(department)[:100]!r}")
        said = str(grade).strip().removesuffix(".0")  # numbers in .xls are floats
        if said not in ("0", "1", "2", "3"):
            raise DataError(f"{place} has the grade {said[:20]!r}, not 0, 1, 2 or 3")
        yield place, _stem(str(name)), hospital[0], int(said)


def _stem(name: str) -> str:
    return name.strip().removesuffix(".tif").removesuffix(".tiff")


def _a_quarter(records: list[Record]) -> NDArray[np.bool_]:
    """Which records are test records: every fourth of each hospital's, sorted by label after
    stream(0, "messidor", hospital) has shuffled them. Of 400 that is 100, and of each label a
    quarter to within one."""
    owners, labels = (
        np.array([record.owner for record in records]),
        np.array([record.label for record in records]),
    )
    chosen = np.zeros(len(records), dtype=bool)
    for owner in np.unique(owners):
        order = stream(0, "messidor", int(owner)).permutation(np.flatnonzero(owners == owner))
        chosen[order[np.argsort(labels[order], kind="stable")][3::4]] = True
    return chosen


def prepare_deepdrid(files: Iterator[File]) -> Arrays:
    """The training part to train on, the validation part to test; no person is in both."""
    tables: dict[str, File] = {}
    photographs: dict[str, Photograph] = {}
    for file in files:
        if file.name.endswith(".csv"):
            tables[file.name.rpartition("/")[2]] = file
        else:
            photographs[file.name] = photograph(file, "JPEG")
    parts = {
        part: list(_records(folder, tables, photographs))
        for part, folder in (("train", "training"), ("test", "validation"))
    }
    for left in photographs.values():
        raise DataError(f"{left.place} has no row in any regular-fundus-*.csv")
    return _arrays(parts)


def _records(
    folder: str, tables: dict[str, File], photographs: dict[str, Photograph]
) -> Iterator[Record]:
    """Of each row of the table of `folder`, its photograph (taken out of `photographs`), label and
    source."""
    levels = ("left_eye_DR_Level", "right_eye_DR_Level")
    sources = {
        row["image_id"]: (place, row["Source"])
        for place, row in _table(f"source-{folder}", tables, "image_id", "Source")
    }
    for place, row in _table(folder, tables, "patient_id", "image_id", *levels):
        filled = [
            row[level].strip() for level in levels if row[level].strip()
        ]  # in 11 rows not the eye that image_id names
        if len(filled) != 1 or filled[0] not in ("0", "1", "2", "3", "4"):
            raise DataError(f"{place} has not one grade from 0 to 4, for one of the two eyes")
        at, source = sources.get(row["image_id"], (place, ""))
        if source not in SOURCES:
            raise DataError(f"{at}: {row['image_id']} has the unknown source {source[:100]!r}")
        name = f"regular-fundus-{folder}/Images/{row['patient_id']}/{row['image_id']}.jpg"
        if name not in photographs:
            raise DataError(f"{place} names {name}, which is not there, or is named twice")
        yield Record(photographs.pop(name).pixels, filled[0] != "0", SOURCES.index(source))


def _table(
    name: str, tables: dict[str, File], *columns: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a table, with where they are; it must have the columns."""
    file = tables.get(f"regular-fundus-{name}.csv")
    if file is None:
        raise DataError(f"regular-fundus-{name}.csv of DeepDRiD is not there")
    try:
        rows = list(
            csv.DictReader(
                io.StringIO(file.content.decode("utf-8-sig"), newline=""), restval="", strict=True
            )
        )
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file.place} is not a readable CSV file: {error}") from None
    for column in columns:
        if not rows or column not in rows[0]:
            raise DataError(f"{file.place} has no {'rows' if not rows else f'column {column!r}'}")
    for number, row in enumerate(rows, start=2):
        yield f"{file.place}, line {number},", row


def _arrays(parts: dict[str, list[Record]]) -> Arrays:
    arrays: Arrays = {}
    for part, records in parts.items():
        if not records:
            raise DataError(f"these are too few photographs: none is left to {part} on")
        pixels, labels, owners = zip(*records, strict=True)
        arrays[f"{part}_inputs"] = np.stack(pixels)
        arrays[f"{part}_targets"] = np.array(labels, dtype=np.int64)
        arrays[f"{part}_owners"] = np.array(owners, dtype=np.int64)
    return arrays


SPEC = TaskSpec("messidor", messidor)
DEEPDRID_SPEC = TaskSpec("deepdrid", deepdrid)
