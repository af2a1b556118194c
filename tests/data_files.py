"""Small data sets in their official layouts, for tests of their readers."""

import gzip
import io
import json
import pickle
import tarfile

import nibabel
import numpy as np
import xlwt
from PIL import Image
from torch import nn

from equipoise.paper.data import brain_mri as mri
from equipoise.paper.data import fundus


def tar_of(path, members, mode="w:gz"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def binary(labels, seed=0):
    """Records of CIFAR-10's binary form."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return np.hstack([np.array(labels, dtype=np.uint8)[:, None], pixels]).tobytes()


BATCHES = {
    **{f"data_batch_{i}": binary([i % 10, 1, 2, 9], seed=i) for i in range(1, 6)},
    "test_batch": binary([0, 1, 9], seed=9),
}


def cifar_archive(place, **changes):
    """A small CIFAR-10 in its official archive; `changes` replace whole files."""
    members = {
        f"cifar-10-batches-bin/{name}.bin": content
        for name, content in {**BATCHES, **changes}.items()
        if content
    }
    tar_of(place / "cifar10" / "cifar-10-binary.tar.gz", members)


def leaf(users):
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(r["y"]) for r in users.values()],
            "user_data": users,
        }
    ).encode()


def writer(labels, seed=0):
    pictures = np.random.default_rng(seed).integers(0, 256, (len(labels), 784)) / 255
    return {"x": pictures.tolist(), "y": list(labels)}


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def femnist_files(place, train, test=None):
    put(place / "femnist" / "data" / "train" / "a.json", train)
    put(
        place / "femnist" / "data" / "test" / "a.json",
        leaf({"f1": writer([1])}) if test is None else test,
    )


VOCABULARY = "reddit/vocab/reddit_vocab.pck"
VOCABULARY_OF_TWO = {"vocab": {"a": 2}, "size": 3, "unk_symbol": 1, "pad_symbol": 0}


def reddit_files(place, user, vocabulary=VOCABULARY_OF_TWO):
    for part in ("train", "test"):
        put(place / f"reddit/data/{part}/a.json", leaf({"1": user}))
    if vocabulary:
        put(place / VOCABULARY, pickle.dumps(vocabulary))


# ---- brain scans ----

SMALL = (8, 12, 8)  # for brain_mri.SHAPE


def subject(letter, number=0):
    """The name of a subject whose letter in SPLIT this is: g, h or i for a training record, G, H or
    I for a test record."""
    numbers = [k + 1 for k, other in enumerate(mri.SPLIT) if other == letter]
    hospital = {"G": "Guys", "H": "HH", "I": "IOP"}[letter.upper()]
    return f"IXI{numbers[number]:03d}-{hospital}-0001"


def nifti(voxels):
    return gzip.compress(nibabel.Nifti1Image(voxels, np.eye(4)).to_bytes(), 1)


def scan(seed=0, shape=(9, 7, 8)):
    """A noisy volume that is brighter where the mask is."""
    mask = np.zeros(shape, np.uint8)
    mask[2:7, 1:6, 2:6] = 1
    return (mask + np.random.default_rng(seed).normal(0, 0.2, shape)).astype(np.float32), mask


def of_subject(name, image=None, mask=None):
    """The two files of a subject, as FLamby lays them out."""
    image, mask = (
        nifti(scan()[0]) if image is None else image,
        nifti(scan()[1]) if mask is None else mask,
    )
    return {f"{name}/T1/{name}_image.nii.gz": image, f"{name}/label/{name}_label.nii.gz": mask}


def hospitals(letters="ggGhhHiiI"):
    """Files of as many subjects as there are letters."""
    files = {}
    for k, letter in enumerate(letters):
        files |= of_subject(subject(letter, letters[:k].count(letter)), *map(nifti, scan(k)))
    return files


def hippocampus_files():
    """Files of sixteen subjects, with two labels in every mask."""
    files = {}
    for k in range(16):
        image, mask = scan(k)
        labels = mask * (1 + np.arange(9) % 2).astype(np.uint8)[:, None, None]
        for name, content in (("imagesTr", image), ("labelsTr", labels)):
            files |= {f"Task04_Hippocampus/{name}/hippocampus_{3 * k:03d}.nii.gz": nifti(content)}
    return files


# ---- fundus photographs ----

DEPARTMENTS = {
    "1": "Service Ophtalmologie Lariboisière",
    "2": "CHU de St Etienne",
    "3": "LaTIM - CHU de BREST",
}
BASES = [f"Base{i}{k}" for i in (1, 2, 3) for k in (1, 2, 3, 4)]
HEADER = ["Image name", "Ophthalmologic department", "Retinopathy grade", "Risk of macular edema "]
EACH = 4  # photographs of a base


class Tiny(nn.Module):
    """In place of VGG-11."""

    def __init__(self, hidden=0, width=0):
        super().__init__()
        self.full = nn.Linear(3, 2)

    def forward(self, images):
        return self.full(images.float().mean((2, 3)) / 255)


def picture(number, kind="TIFF", **more):
    """A photograph of 40 x 30 pixels in one colour with noise, and a black border."""
    rng = np.random.default_rng(number)
    pixels = np.zeros((30, 40, 3), dtype=np.uint8)
    pixels[3:27, 5:35] = rng.integers(20, 200, 3) + rng.integers(0, 20, (24, 30, 3))
    return encoded(pixels, kind, **more)


def encoded(pixels, kind="TIFF", **more):
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(file, kind, **more)
    return file.getvalue()


def tif(base, k):
    return f"2005{base[4:]}01_{10 * BASES.index(base) + k}_0{base[4]}00_PP.tif"


def rows_of(base):
    return [[tif(base, k), DEPARTMENTS[base[4]], k, 0] for k in range(EACH)]


def write_sheet(path, rows, header=HEADER):
    book = xlwt.Workbook()
    sheet = book.add_sheet("Feuil1")
    for i, row in enumerate([header, *rows]):
        for j, value in enumerate(row):
            sheet.write(i, j, value)
    book.save(str(path))


def make_messidor(place):
    """Unpacked: Base11/*.tif and so on, with the sheets beside them. Every base has one photograph
    of each grade."""
    for base in BASES:
        (place / base).mkdir()
        for k in range(EACH):
            (place / base / tif(base, k)).write_bytes(picture(100 * BASES.index(base) + k))
        write_sheet(place / f"Annotation_{base}.xls", rows_of(base))


def make_deepdrid(place):
    """Five patients with four photographs each to train on, two to test."""
    for part, patients in (("training", range(5)), ("validation", range(5, 7))):
        folder = place / "regular_fundus_images" / f"regular-fundus-{part}"
        rows, sources = (
            ["patient_id,image_id,image_path,left_eye_DR_Level,right_eye_DR_Level"],
            ["patient_id,image_id,Source"],
        )
        for patient in patients:
            (folder / "Images" / str(patient)).mkdir(parents=True)
            for eye in ("l1", "l2", "r1", "r2"):
                image, grade = f"{patient}_{eye}", patient % 5
                (folder / "Images" / str(patient) / f"{image}.jpg").write_bytes(
                    picture(len(rows), "JPEG")
                )
                grades = f"{grade}," if eye[0] == "l" else f",{grade}"
                rows.append(f"{patient},{image},\\{part}\\{patient}\\{image}.jpg,{grades}")
                sources.append(f"{patient},{image},{fundus.SOURCES[patient % 3]}")
        (folder / f"regular-fundus-{part}.csv").write_text("\r\n".join([*rows, ""]), newline="")
        (folder / f"regular-fundus-source-{part}.csv").write_text("\n".join(sources), newline="")
    return place
