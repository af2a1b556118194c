"""Fundus photographs: Messidor in its official layout, made up here; DeepDRiD, the real one and
broken ones."""

import math
import re
import shutil
import zipfile

import numpy as np
import pytest
import torch

from data_files import (
    BASES,
    HEADER,
    Tiny,
    encoded,
    make_deepdrid,
    make_messidor,
    picture,
    rows_of,
    tif,
    write_sheet,
)
from equipoise import DataError, train
from equipoise.paper.data import fundus
from equipoise.paper.data.files import File
from equipoise.paper.data.fundus import DEEPDRID, MESSIDOR
from equipoise.paper.tasks import messidor
from equipoise.paper.tasks.messidor import flipped_and_turned
from equipoise.tasks import TaskOptions
from problems import DATA


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder of fundus photographs, empty; with a cache of its own, and a small network in
    place of VGG-11."""
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(messidor, "vgg11", Tiny)
    folder = tmp_path / "data" / "fundus"
    folder.mkdir(parents=True)
    return folder


def nothing_kept(place):
    return not list((place.parent.parent / "cache").glob("*messidor*")) + list(
        (place.parent.parent / "cache").glob("*deepdrid*")
    )


def pack(place):
    """The folders turned into archives Base11.zip and so on: of half of them the sheet is
    inside.
    """
    for number, base in enumerate(BASES):
        with zipfile.ZipFile(place / f"{base}.zip", "w") as archive:
            for path in sorted((place / base).iterdir()):
                archive.write(path, path.name)
            if number % 2:
                archive.write(place / f"Annotation_{base}.xls", f"Annotation_{base}.xls")
                (place / f"Annotation_{base}.xls").unlink()
        shutil.rmtree(place / base)


def test_messidor_in_its_official_layout(place):
    make_messidor(place)
    (place / "Base11" / f"._{tif('Base11', 0)}").write_bytes(b"what a Mac leaves behind")
    unpacked = MESSIDOR.prepared()
    pack(place)
    packed = MESSIDOR.prepared()
    for name, array in unpacked.items():
        assert np.array_equal(array, packed[name]), name
    assert packed["train_inputs"].shape == (36, 3, 224, 224)
    assert packed["train_inputs"].dtype == np.uint8
    assert packed["test_targets"].dtype == packed["test_owners"].dtype == np.int64
    for owner in range(3):
        assert np.bincount(packed["train_targets"][packed["train_owners"] == owner]).tolist() == [
            3,
            9,
        ]
        assert np.bincount(packed["test_targets"][packed["test_owners"] == owner]).tolist() == [
            1,
            3,
        ]
    means = np.concatenate([packed["train_inputs"], packed["test_inputs"]]).mean((2, 3))
    assert len(np.unique(means, axis=0)) == 48  # every photograph once
    assert packed["left_out"] == [0]
    task = messidor.messidor(TaskOptions())
    assert task.clients.sizes == (12, 12, 12)
    assert (task.batch, task.iterations, task.learning_rate, task.error_name) == (
        4,
        500,
        0.01,
        "1 - accuracy",
    )
    assert task.constant_error == 0.25
    mixed = messidor.messidor(TaskOptions(split="random", clients=6))
    assert mixed.clients.sizes == (6,) * 6


def test_hospitals_are_known_by_the_sheet_and_not_by_the_name_of_the_base(place):
    make_messidor(place)
    write_sheet(
        place / "Annotation_Base31.xls",
        [[row[0], "CHU de St Étienne", *row[2:]] for row in rows_of("Base31")],
    )
    arrays = MESSIDOR.prepared()
    assert np.bincount(
        np.concatenate([arrays["train_owners"], arrays["test_owners"]])
    ).tolist() == [16, 20, 12]


def test_three_hundred_and_one_hundred_of_each_hospital():
    rng = np.random.default_rng(0)
    pixels = np.zeros(0, dtype=np.uint8)
    records = [
        fundus.Record(pixels, bool(rng.random() < 0.2 + 0.3 * i), i)
        for i in range(3)
        for _ in range(400)
    ]
    chosen = fundus._a_quarter(records)
    labels, owners = np.array([r.label for r in records]), np.array([r.owner for r in records])
    for i in range(3):
        assert chosen[owners == i].sum() == 100
        assert abs(chosen[(owners == i) & labels].sum() - labels[owners == i].sum() / 4) < 1
    assert np.array_equal(chosen, fundus._a_quarter(records))


def test_black_edges_are_cropped_and_the_rest_is_resized(place):
    def seen(pixels):
        return fundus.photograph(File("f.tif", "f.tif", encoded(pixels)), "TIFF").pixels

    pixels = np.ones((50, 70, 3))  # 1 is border, 2 is not
    pixels[10:30, 20:60] = [200, 100, 2]
    assert (seen(pixels) == np.array([200, 100, 2]).reshape(3, 1, 1)).all()
    pixels[:] = 0
    pixels[5, 6], pixels[20, 40] = 2, 255
    small = seen(pixels)
    assert small.shape == (3, 224, 224)
    assert (small[:, 0, 0] == 2).all()
    assert (small[:, -1, -1] == 255).all()
    assert seen(np.full((224, 224, 3), 7)).tolist() == np.full((3, 224, 224), 7).tolist()


def test_repeated_photographs_are_kept_once(place):
    make_messidor(place)
    first, second = (place / "Base33" / tif("Base33", k) for k in (1, 2))
    second.write_bytes(picture(100 * BASES.index("Base33") + 1, compression="tiff_lzw"))
    assert first.read_bytes() != second.read_bytes()
    arrays = MESSIDOR.prepared()
    assert (len(arrays["train_inputs"]) + len(arrays["test_inputs"]), *arrays["left_out"]) == (
        47,
        1,
    )
    (place / "Base34" / tif("Base34", 0)).write_bytes(
        first.read_bytes()
    )  # and once more, with the other label
    arrays = MESSIDOR.prepared()
    assert (len(arrays["train_inputs"]) + len(arrays["test_inputs"]), *arrays["left_out"]) == (
        45,
        3,
    )


def test_the_newest_sheet_counts(place):
    make_messidor(place)
    write_sheet(
        place / "Annotation_Base11_update20161024.xls",
        [[*row[:2], 0, 0] for row in rows_of("Base11")],
    )
    arrays = MESSIDOR.prepared()
    labels = np.concatenate([arrays["train_targets"], arrays["test_targets"]])
    assert np.bincount(labels).tolist() == [15, 33]


def edited(base, row, column, value):
    def edit(place):
        rows = rows_of(base)
        rows[row][column] = value
        write_sheet(place / f"Annotation_{base}.xls", rows)

    return edit


def spoilt(base, k, change):
    def edit(place):
        path = place / base / tif(base, k)
        path.write_bytes(change(path.read_bytes()))

    return edit


def tiff_header(side):
    """A TIFF file that claims side x side pixels and has a hundred."""
    tags = [
        (256, side),
        (257, side),
        (258, 8),
        (259, 1),
        (262, 1),
        (273, 8),
        (277, 1),
        (278, side),
        (279, 100),
    ]
    entries = b"".join(
        tag.to_bytes(2, "little") + b"\4\0\1\0\0\0" + value.to_bytes(4, "little")
        for tag, value in tags
    )
    return b"II*\0\x08\0\0\0" + len(tags).to_bytes(2, "little") + entries + b"\0\0\0\0" + bytes(100)


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (
            spoilt("Base12", 1, lambda content: content[: len(content) // 2]),
            f"{tif('Base12', 1)} is not a readable TIFF image",
        ),
        (
            spoilt("Base12", 1, lambda content: b"hello"),
            f"{tif('Base12', 1)} is not a readable TIFF image",
        ),
        (
            spoilt("Base12", 1, lambda content: b""),
            f"{tif('Base12', 1)} is not a readable TIFF image",
        ),
        (
            spoilt("Base12", 1, lambda content: picture(0, "PNG")),
            f"{tif('Base12', 1)} is not a readable TIFF image",
        ),
        (
            spoilt("Base12", 1, lambda content: tiff_header(8_000)),
            f"{tif('Base12', 1)} has 8000 x 8000 pixels",
        ),
        (
            spoilt("Base12", 1, lambda content: tiff_header(10_000)),
            f"{tif('Base12', 1)} has 10000 x 10000 pixels",
        ),
        (
            spoilt("Base12", 1, lambda content: tiff_header(60_000)),
            f"{tif('Base12', 1)} is not a readable TIFF image",
        ),
        (
            spoilt("Base12", 1, lambda content: encoded(np.ones((9, 9, 3)))),
            f"{tif('Base12', 1)} is black all over",
        ),
        (spoilt("Base12", 1, lambda content: bytes(2**26 + 1)), "67,108,865 bytes"),
        (
            lambda place: (place / "Base12" / tif("Base12", 1)).unlink(),
            f"Annotation_Base12.xls, row 3, names {tif('Base12', 1)}",
        ),
        (
            lambda place: (place / "Annotation_Base12.xls").unlink(),
            f"{tif('Base12', 0)} has no row in any sheet",
        ),
        (
            lambda place: (place / "Annotation_Base12.xls").write_bytes(b"PK\3\4"),
            "Annotation_Base12.xls is not a readable .xls",
        ),
        (
            lambda place: (place / "Annotation_Base12.xls").write_bytes(
                (place / "Annotation_Base12.xls").read_bytes()[:3000]
            ),
            "Annotation_Base12.xls is not a readable .xls",
        ),
        (
            lambda place: write_sheet(place / "Annotation_Base12.xls", [], []),
            "Annotation_Base12.xls is not a readable .xls",
        ),
        (
            lambda place: write_sheet(
                place / "Annotation_Base12.xls", rows_of("Base12"), [*HEADER[:2], "Grade"]
            ),
            "Annotation_Base12.xls has no column 'Retinopathy grade'",
        ),
        (
            edited("Base12", 2, 0, "nobody.tif"),
            "Annotation_Base12.xls, row 4, names nobody.tif, which is missing",
        ),
        (
            edited("Base12", 2, 0, tif("Base12", 1)),
            "Annotation_Base12.xls, row 4, contradicts ",
        ),
        (
            edited("Base12", 2, 1, "CHU de Lyon"),
            "Annotation_Base12.xls, row 4, has the unknown department 'CHU de Lyon'",
        ),
        (
            edited("Base12", 2, 2, 4),
            "Annotation_Base12.xls, row 4, has the grade '4', not 0, 1, 2 or 3",
        ),
        (edited("Base12", 2, 2, 1.5), "Annotation_Base12.xls, row 4, has the grade '1.5'"),
        (edited("Base12", 2, 2, "two"), "Annotation_Base12.xls, row 4, has the grade 'two'"),
        (edited("Base12", 2, 2, ""), "Annotation_Base12.xls, row 4, has the grade ''"),
    ],
)
def test_what_is_broken_in_messidor_is_named(place, edit, sentence):
    make_messidor(place)
    edit(place)
    with pytest.raises(DataError, match=re.escape(sentence)):
        messidor.messidor(TaskOptions())
    assert nothing_kept(place)


def test_broken_archives_and_missing_data_are_named(place):
    with pytest.raises(DataError, match=r"task=messidor is not in .*fundus: ask for Base11.zip"):
        messidor.messidor(TaskOptions())
    make_messidor(place)
    pack(place)
    whole = (place / "Base22.zip").read_bytes()
    (place / "Base22.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"Base22.zip is broken or cut short"):
        messidor.messidor(TaskOptions())
    assert nothing_kept(place)


@pytest.mark.slow
def test_deepdrid_as_it_is(place, monkeypatch):
    if not (DATA / "fundus" / "deepdrid-256.tar").is_file():
        pytest.skip("DeepDRiD is not here: put it into $EQUIPOISE_DATA/fundus")
    monkeypatch.setenv("EQUIPOISE_DATA", str(DATA))
    first = DEEPDRID.prepared()
    assert first["train_inputs"].shape == (1200, 3, 224, 224)
    assert first["test_inputs"].shape == (400, 3, 224, 224)
    assert np.bincount(first["train_targets"]).tolist() == [540, 660]
    assert np.bincount(first["test_targets"]).tolist() == [174, 226]
    assert np.bincount(first["train_owners"]).tolist() == [1140, 36, 24]
    assert np.bincount(first["test_owners"]).tolist() == [368, 20, 12]
    monkeypatch.setattr(fundus, "photograph", None)  # it is not made again
    again = DEEPDRID.prepared()
    assert all(
        isinstance(array, np.memmap) and np.array_equal(array, first[name])
        for name, array in again.items()
    )
    task = messidor.deepdrid(TaskOptions())
    assert task.clients.sizes == (400, 400, 400)
    assert task.constant_error == pytest.approx(174 / 400)
    assert messidor.deepdrid(TaskOptions(split="natural")).clients.sizes == (1140, 36, 24)
    result = train(task=task, epsilon=math.inf, iterations=20, local_steps=20, eta=0.5)
    assert (
        result.curve[-1].test_loss < 0.8
    )  # a colour says much already, and three numbers learn little in 20 steps


TRAINING = "regular_fundus_images/regular-fundus-training"


def replaced(file, old, new):
    def edit(place):
        path = place / TRAINING / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return edit


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (
            lambda place: (place / TRAINING / "Images/1/1_l2.jpg").write_bytes(
                picture(0, "JPEG")[:500]
            ),
            "1_l2.jpg is not a readable",
        ),
        (
            lambda place: (place / TRAINING / "Images/1/1_l2.jpg").write_bytes(picture(0)),
            "1_l2.jpg is not a readable JPEG image",
        ),
        (
            lambda place: (place / TRAINING / "Images/1/1_l2.jpg").unlink(),
            "1/1_l2.jpg, which is missing",
        ),
        (
            lambda place: (place / TRAINING / "Images/1/9_l9.jpg").write_bytes(picture(9, "JPEG")),
            "9_l9.jpg has no row in any",
        ),
        (
            lambda place: (place / TRAINING / "regular-fundus-training.csv").unlink(),
            "regular-fundus-training.csv of DeepDRiD is missing",
        ),
        (
            lambda place: (place / TRAINING / "regular-fundus-training.csv").write_text(""),
            "regular-fundus-training.csv has no rows",
        ),
        (
            lambda place: (place / TRAINING / "regular-fundus-training.csv").write_bytes(
                b"\xff\xfe\0"
            ),
            "regular-fundus-training.csv is not a readable CSV file",
        ),
        (
            replaced("regular-fundus-training.csv", "left_eye_DR_Level", "left"),
            "has no column 'left_eye_DR_Level'",
        ),
        (
            replaced("regular-fundus-training.csv", "1_l2.jpg,1,", "1_l2.jpg,1,2"),
            "training.csv, line 7, does not have exactly one grade",
        ),
        (
            replaced("regular-fundus-training.csv", "1_l2.jpg,1,", "1_l2.jpg,,"),
            "training.csv, line 7, does not have exactly one grade",
        ),
        (
            replaced("regular-fundus-training.csv", "1_l2.jpg,1,", "1_l2.jpg,5,"),
            "training.csv, line 7, does not have exactly one grade",
        ),
        (
            replaced("regular-fundus-training.csv", "1,1_l2,", "1,1_l1,"),
            "line 7, names regular-fundus-training/Images/1/1_l1.jpg",
        ),
        (
            replaced("regular-fundus-source-training.csv", "Source", "source"),
            "has no column 'Source'",
        ),
        (
            replaced("regular-fundus-source-training.csv", "1_l2,Nation", "1_l2,Lyon"),
            "line 7, has the unknown source 'Lyon' of 1_l2",
        ),
        (
            replaced("regular-fundus-source-training.csv", "1,1_l2,Nation\n", ""),
            "training.csv, line 7, has the unknown source '' of 1_l2",
        ),
    ],
)
def test_what_is_broken_in_deepdrid_is_named(place, edit, sentence):
    make_deepdrid(place)
    assert np.bincount(DEEPDRID.prepared()["train_targets"]).tolist() == [4, 16]
    shutil.rmtree(place.parent.parent / "cache")
    edit(place)
    with pytest.raises(DataError, match=re.escape(sentence)):
        messidor.deepdrid(TaskOptions())
    assert nothing_kept(place)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_augmentation_is_keyed_and_every_example_is_changed_by_itself():
    images = torch.randint(0, 256, (6, 3, 48, 48), generator=seeded(0)).to(torch.uint8)
    changed = flipped_and_turned(images, seeded(1))
    assert changed.dtype == torch.uint8
    assert torch.equal(changed, flipped_and_turned(images, seeded(1)))
    assert not torch.equal(changed, flipped_and_turned(images, seeded(2)))
    others = images.clone()
    others[[0, 1, 3, 4, 5]] = 255
    assert torch.equal(changed[2], flipped_and_turned(others, seeded(1))[2])
    same = flipped_and_turned(images[:1].repeat(6, 1, 1, 1), seeded(1))
    assert len({image.numpy().tobytes() for image in same}) == 6
    assert flipped_and_turned(images[:0], seeded(1)).shape == (0, 3, 48, 48)


def test_flips_are_exact_and_as_frequent_as_not(monkeypatch):
    image = torch.randint(0, 256, (1, 3, 32, 32), generator=seeded(0)).to(torch.uint8)
    monkeypatch.setattr(messidor, "TURN", 0.0)
    flips = [image, image.flip(3), image.flip(2), image.flip(2, 3)]
    changed = flipped_and_turned(image.repeat(2000, 1, 1, 1), seeded(3))
    counts = [int((changed == flip).flatten(1).all(1).sum()) for flip in flips]
    assert sum(counts) == 2000
    assert all(abs(count - 500) < 4 * math.sqrt(2000 * 3 / 16) for count in counts)


def test_turns_are_within_ten_degrees():
    """Where a bright spot at the right edge of an image goes tells the angle, and the corners turn
    black."""
    image = torch.zeros(1, 3, 224, 224, dtype=torch.uint8)
    image[:, :, 110:114, 200:204] = 255
    x, y = torch.meshgrid(torch.arange(224) - 111.5, torch.arange(224) - 111.5, indexing="xy")
    spots = flipped_and_turned(image[:, :1].repeat(300, 1, 1, 1), seeded(4))[:, 0].float()
    across, down = ((spots * by).sum((1, 2)) / spots.sum((1, 2)) for by in (x, y))
    angles = torch.rad2deg(torch.atan(down / across))
    assert angles.abs().max() <= 10.01
    assert angles.max() > 9
    assert angles.min() < -9
    assert abs(angles.mean()) < 4 * (10 / math.sqrt(3)) / math.sqrt(300)
    white = flipped_and_turned(torch.full((50, 3, 64, 64), 255, dtype=torch.uint8), seeded(5))
    assert (white[:, :, 0, 0] == 0).any()
    assert (white[:, :, 20:44, 20:44] == 255).all()
