"""Photographs of the back of the eye, graded for diabetic retinopathy: Messidor and DeepDRiD.

A photograph is cropped to the box of its pixels whose grey value is above 1 (the paper: "black
edges were cropped based on a pixel threshold value of 1"), and resized to 224 x 224 with Pillow's
bilinear filter, which averages when it shrinks. The label is grade > 0.
"""

import csv
import hashlib
import io
import re
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.cache import Arrays
from equipoise.errors import DataError
from equipoise.paper.data.data_set import DataSet
from equipoise.paper.data.files import File
from equipoise.seeds import stream

SIDE = 224
DARK = 1  # grey values up to this are border
MOST_PIXELS = 50_000_000
HOSPITALS = ("lariboisi", "tienne", "brest")  # parts of the names of 0, 1, 2, whatever the accents
SOURCES = ("Nicheng", "Nation", "Shanghai")  # 0, 1, 2 of DeepDRiD
SHEET = re.compile(r"Annotation[_ ](?P<base>Base\d\d)(?:_update(?P<date>\d+))?\.xls")
COLUMNS = ("Image name", "Ophthalmologic department", "Retinopathy grade")
LEVELS = ("left_eye_DR_Level", "right_eye_DR_Level")


class Photograph(NamedTuple):
    place: str
    digest: bytes  # of all its pixels, before it was made small
    pixels: NDArray[np.uint8]


class Record(NamedTuple):
    pixels: NDArray[np.uint8]
    label: bool
    owner: int
    person: str = ""


class Graded(NamedTuple):
    """A row of an annotation sheet of Messidor."""

    place: str
    photograph: str
    hospital: int
    grade: int


class Row(NamedTuple):
    """A row of a table of DeepDRiD: where it is, and its cells by column."""

    place: str
    cells: dict[str, str]


def photograph(file: File, kind: str) -> Photograph:
    """The photograph in a file of the given kind (Pillow's name for it), cropped and resized, as
    [3, 224, 224]."""
    from PIL import Image

    image = _image(file, kind)
    box = image.convert("L").point([0] * (DARK + 1) + [255] * (255 - DARK)).getbbox()
    if box is None:
        raise DataError(f"{file.place} is black all over")
    small = image.crop(box).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    digest = hashlib.sha256(repr(image.size).encode() + image.tobytes()).digest()
    return Photograph(file.place, digest, np.asarray(small).transpose(2, 0, 1).copy())


def _image(file: File, kind: str) -> Any:
    from PIL import Image

    try:
        with warnings.catch_warnings(action="ignore"):  # of metadata; of size, checked here
            image: Any = Image.open(io.BytesIO(file.content), formats=[kind])
            if image.width * image.height > MOST_PIXELS:
                raise DataError(
                    f"{file.place} has {image.width} x {image.height} pixels: no photograph is "
                    f"that large"
                )
            return image.convert("RGB")
    except DataError:
        raise
    except Exception as error:  # a broken image can raise anything
        raise DataError(
            f"{file.place} is not a readable {kind} image, or is cut short: {_brief(error)}"
        ) from None


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:100]}"


def read_messidor(files: Iterator[File]) -> Arrays:
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
            dated = (sheet["date"] or "", file)
            sheets[sheet["base"]] = max(sheets.get(sheet["base"], dated), dated)
        else:
            photographs[_stem(file.name)] = photograph(file, "TIFF")
    graded = _graded([sheet for _, sheet in sheets.values()], photographs)
    records = _without_repeats(photographs, graded)
    test = _a_quarter(records)
    arrays = _arrays("train", [records[j] for j in np.flatnonzero(~test)])
    arrays |= _arrays("test", [records[j] for j in np.flatnonzero(test)])
    return arrays | {"left_out": np.array([len(photographs) - len(records)])}


def _graded(sheets: list[File], photographs: dict[str, Photograph]) -> dict[str, Graded]:
    """The row of each photograph; each has one, and each row has a photograph."""
    graded: dict[str, Graded] = {}
    for sheet in sheets:
        for row in _annotations(sheet):
            name = f"{row.photograph}.tif"
            if row.photograph not in photographs:
                raise DataError(f"{row.place} names {name}, which is missing")
            first = graded.setdefault(row.photograph, row)
            if first[1:] != row[1:]:
                raise DataError(f"{row.place} contradicts {first.place} about {name}")
    for name in photographs:
        if name not in graded:
            place = photographs[name].place
            raise DataError(f"{place} has no row in any sheet Annotation_Base*.xls")
    return graded


def _annotations(sheet: File) -> Iterator[Graded]:
    header, *rows = _cells(sheet)
    names = [str(name).strip().casefold() for name in header]
    for column in COLUMNS:
        if column.casefold() not in names:
            raise DataError(f"{sheet.place} has no column {column!r}")
    columns = [names.index(column.casefold()) for column in COLUMNS]
    for number, row in enumerate(rows, start=2):
        name, department, grade = (row[k] for k in columns)
        if name or department or grade:
            place = f"{sheet.place}, row {number},"
            hospital = _hospital(str(department), place)
            yield Graded(place, _stem(str(name)), hospital, _grade(grade, place))


def _cells(sheet: File) -> list[list[Any]]:
    """The rows of the first table of an .xls file; at least one."""
    import xlrd

    try:
        book = xlrd.open_workbook(file_contents=sheet.content, logfile=io.StringIO())
        table = book.sheet_by_index(0)
        return [table.row_values(0), *(table.row_values(k) for k in range(1, table.nrows))]
    except Exception as error:  # a broken workbook can raise anything
        raise DataError(f"{sheet.place} is not a readable .xls sheet: {_brief(error)}") from None


def _hospital(department: str, place: str) -> int:
    hospitals = [i for i, part in enumerate(HOSPITALS) if part in department.casefold()]
    if len(hospitals) != 1:
        raise DataError(f"{place} has the unknown department {department[:100]!r}")
    return hospitals[0]


def _grade(value: Any, place: str) -> int:
    grade = str(value).strip().removesuffix(".0")  # numbers in .xls are floats
    if grade not in ("0", "1", "2", "3"):
        raise DataError(f"{place} has the grade {grade[:20]!r}, not 0, 1, 2 or 3")
    return int(grade)


def _stem(name: str) -> str:
    return name.strip().removesuffix(".tif").removesuffix(".tiff")


def _without_repeats(photographs: dict[str, Photograph], graded: dict[str, Graded]) -> list[Record]:
    """Of photographs with equal pixels the first, by name; none if their labels differ."""
    equal: dict[bytes, list[Record]] = {}
    for name in sorted(photographs):
        taken, row = photographs[name], graded[name]
        record = Record(taken.pixels, row.grade > 0, row.hospital)
        equal.setdefault(taken.digest, []).append(record)
    return [same[0] for same in equal.values() if len({record.label for record in same}) == 1]


def _a_quarter(records: list[Record]) -> NDArray[np.bool_]:
    """Which records are test records: every fourth of each hospital's, sorted by label after
    stream(0, "messidor", hospital) has shuffled them. Of 400 that is 100, and of each label a
    quarter to within one."""
    owners = np.array([record.owner for record in records])
    labels = np.array([record.label for record in records])
    chosen = np.zeros(len(records), dtype=bool)
    for owner in np.unique(owners):
        order = stream(0, "messidor", int(owner)).permutation(np.flatnonzero(owners == owner))
        chosen[order[np.argsort(labels[order], kind="stable")][3::4]] = True
    return chosen


def read_deepdrid(files: Iterator[File]) -> Arrays:
    """The training part to train on, the validation part to test; no person is in both."""
    tables: dict[str, File] = {}
    photographs: dict[str, Photograph] = {}
    for file in files:
        if file.name.endswith(".csv"):
            tables[file.name.rpartition("/")[2]] = file
        else:
            photographs[file.name] = photograph(file, "JPEG")
    training = list(_records("training", tables, photographs))
    arrays = _arrays("train", training)
    persons = [record.person for record in training]
    arrays["train_persons"] = np.unique(persons, return_inverse=True)[1].astype(np.int64)
    arrays |= _arrays("test", list(_records("validation", tables, photographs)))
    for left in photographs.values():
        raise DataError(f"{left.place} has no row in any regular-fundus-*.csv")
    return arrays


def _records(
    folder: str, tables: dict[str, File], photographs: dict[str, Photograph]
) -> Iterator[Record]:
    """Of each row of the table of `folder`, its photograph (taken out of `photographs`), label and
    source."""
    sources = {
        row.cells["image_id"]: row
        for row in _table(f"source-{folder}", tables, "image_id", "Source")
    }
    for row in _table(folder, tables, "patient_id", "image_id", *LEVELS):
        patient, image = row.cells["patient_id"], row.cells["image_id"]
        label = _has_retinopathy(row)
        owner = _source(image, sources.get(image, row))
        name = f"regular-fundus-{folder}/Images/{patient}/{image}.jpg"
        if name not in photographs:
            raise DataError(f"{row.place} names {name}, which is missing, or is named twice")
        yield Record(photographs.pop(name).pixels, label, owner, patient)


def _has_retinopathy(row: Row) -> bool:
    """By the grade of the one eye that has one: in 11 rows not the eye that image_id names."""
    grades = [row.cells[level].strip() for level in LEVELS]
    filled = [grade for grade in grades if grade]
    if len(filled) != 1 or filled[0] not in ("0", "1", "2", "3", "4"):
        raise DataError(f"{row.place} does not have exactly one grade from 0 to 4")
    return filled[0] != "0"


def _source(image: str, row: Row) -> int:
    source = row.cells.get("Source", "")
    if source not in SOURCES:
        raise DataError(f"{row.place} has the unknown source {source[:100]!r} of {image}")
    return SOURCES.index(source)


def _table(name: str, tables: dict[str, File], *columns: str) -> Iterator[Row]:
    """The rows of a table, which must have the columns."""
    file = tables.get(f"regular-fundus-{name}.csv")
    if file is None:
        raise DataError(f"regular-fundus-{name}.csv of DeepDRiD is missing")
    try:
        text = io.StringIO(file.content.decode("utf-8-sig"), newline="")
        rows = list(csv.DictReader(text, restval="", strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file.place} is not a readable CSV file: {error}") from None
    if not rows:
        raise DataError(f"{file.place} has no rows")
    for column in columns:
        if column not in rows[0]:
            raise DataError(f"{file.place} has no column {column!r}")
    for number, row in enumerate(rows, start=2):
        yield Row(f"{file.place}, line {number},", row)


def _arrays(part: str, records: list[Record]) -> Arrays:
    if not records:
        raise DataError(f"these are too few photographs: none is left to {part} on")
    return {
        f"{part}_inputs": np.stack([record.pixels for record in records]),
        f"{part}_targets": np.array([record.label for record in records], dtype=np.int64),
        f"{part}_owners": np.array([record.owner for record in records], dtype=np.int64),
    }


MESSIDOR = DataSet(
    name="messidor",
    folder="fundus",
    read=read_messidor,
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
    read=read_deepdrid,
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
