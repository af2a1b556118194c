"""Brain scans: FLamby's split, preparation, loss and measure; real files, and every way a file can
be broken."""

import csv
import gzip
import math
import re
import zipfile

import nibabel
import numpy as np
import pytest
import torch

import equipoise
from data_files import SMALL, hippocampus_files, hospitals, nifti, of_subject, scan, subject
from equipoise.errors import DataError
from equipoise.paper.data import brain_mri as mri
from equipoise.paper.data.files import File
from equipoise.paper.tasks import fed_ixi as tasks
from equipoise.tasks.task import TaskOptions
from problems import DATA


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Puts files where the data set is looked for, unpacked or in FLamby's archive."""
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data" / "brain-mri"
    folder.mkdir(parents=True)

    def put(files, packed=False):
        if packed:
            with zipfile.ZipFile(folder / "7kd5wj7v7p-3.zip", "w") as archive:
                for name, content in files.items():
                    archive.writestr(f"7kd5wj7v7p-3/IXI_sample/{name}", content)
        else:
            for name, content in files.items():
                path = folder / "IXI_sample" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    return put


@pytest.fixture
def real(tmp_path, monkeypatch):
    if not (DATA / "brain-mri").is_dir():
        pytest.skip(
            "no MR scans here: put IXI-Tiny, or some of it, and Task04_Hippocampus.tar into "
            "$EQUIPOISE_DATA/brain-mri"
        )
    monkeypatch.setenv("EQUIPOISE_DATA", str(DATA))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path))
    return DATA / "brain-mri"


def test_split_is_that_of_flamby(real):
    counts = [(mri.SPLIT.count(letter), mri.SPLIT.count(letter.upper())) for letter in "ghi"]
    assert counts == [(249, 62), (145, 36), (59, 15)]
    assert mri.FED_IXI.records == tuple(map(sum, zip(*counts, strict=True)))
    tables = [
        real / name
        for name in ("metadata_tiny.csv", "ixi_tiny_flamby_split.csv")
        if (real / name).exists()
    ]
    if not tables:
        pytest.skip("FLamby's metadata_tiny.csv is not here")
    letters = ["."] * 662
    for row in csv.DictReader(tables[0].open()):
        letter = "ghi"[int(row["Manufacturer"])]
        letters[int(row["Patient ID"]) - 1] = letter.upper() if row["Split"] == "test" else letter
    assert "".join(letters) == mri.SPLIT


def test_real_subjects(real):
    """IXI012 is a test record of HH; IXI015 has no mask here, and is left out."""
    if not (real / "ixi-two-subjects.tar").exists():
        pytest.skip("the two subjects are not here")
    arrays = mri.FED_IXI.prepared()
    assert arrays["train_inputs"].shape == (0, 1, *mri.SHAPE)
    assert (arrays["test_inputs"].shape, arrays["test_targets"].shape) == (
        (1, 1, *mri.SHAPE),
        (1, *mri.SHAPE),
    )
    assert (arrays["test_inputs"].dtype, arrays["test_targets"].dtype) == (np.float32, np.uint8)
    assert arrays["test_owners"].tolist() == [1]
    scan, mask = arrays["test_inputs"][0, 0], arrays["test_targets"][0]
    assert (scan.mean(), scan.std()) == pytest.approx((0, 1), abs=1e-5)
    assert (scan.min(), scan.max()) == pytest.approx((-0.815, 4.259), abs=1e-3)
    assert mask.mean() == pytest.approx(0.14238, abs=1e-5)
    assert scan[mask == 1].mean() > 1  # the brain is brighter than the rest
    with pytest.raises(
        DataError,
        match=r"hospital Guys has no training record in .*brain-mri; put 7kd5wj7v7p-3.zip",
    ):
        tasks.fed_ixi(TaskOptions())


@pytest.mark.slow
def test_real_hippocampus(real):
    if not (real / "msd-task04-hippocampus.tar").exists():
        pytest.skip("the hippocampus volumes are not here")
    arrays = mri.HIPPOCAMPUS.prepared()
    assert (
        (len(arrays["train_inputs"]), len(arrays["test_inputs"]))
        == mri.HIPPOCAMPUS.records
        == (208, 52)
    )
    assert arrays["train_targets"].mean() == pytest.approx(0.03933, abs=1e-5)
    assert arrays["train_targets"].max() == 1
    assert np.allclose(arrays["test_inputs"].std(axis=(1, 2, 3, 4)), 1, atol=1e-4)
    task = tasks.hippocampus(TaskOptions())
    assert (task.clients.sizes, task.batch, task.iterations) == ((70, 69, 69), 1, 400)
    assert task.constant_error == pytest.approx(
        0.92594, abs=1e-4
    )  # all is hippocampus: 1 - 2 s / (1 + s), of the share s
    assert task.error_name == "1 - Dice of the hippocampus"
    gradient = task.clients.alone(0).gradient(task.x0, 0)
    assert gradient.isfinite().all()
    assert gradient.norm() > 1e-3


@pytest.mark.parametrize("shape", [(83, 44, 55), (35, 51, 36), (48, 60, 48), (120, 120, 90)])
def test_preparation_is_that_of_flamby_with_monai(shape):
    transforms = pytest.importorskip("monai.transforms")
    rng = np.random.default_rng(0)
    image, mask = 100 * rng.gamma(2.0, size=shape), rng.random(shape) < 0.9
    start = [
        transforms.ToTensor(),
        transforms.EnsureChannelFirst(channel_dim="no_channel"),
        transforms.Resize(mri.SHAPE),
    ]
    wanted = transforms.Compose([*start, transforms.NormalizeIntensity()])(image)
    one_hot = transforms.Compose([*start, transforms.AsDiscrete(to_onehot=2)])(mask.astype(float))
    files = (File("", "", nifti(array)) for array in (image, mask.astype(np.uint8)))
    inputs, targets = mri._scan(*files, highest=1)
    assert np.array_equal(inputs, wanted.numpy())
    assert np.array_equal(np.stack([1 - targets, targets]), one_hot.numpy())
    if shape != mri.SHAPE:
        assert 0.01 < targets.mean() < 0.85  # rounded down: only where all of a voxel is foreground


def flamby_loss(output, target):
    """As FLamby writes it."""
    tp, fp, fn = (
        x.sum((2, 3, 4)) for x in (output * target, output * (1 - target), (1 - output) * target)
    )
    return (1 - 2 * tp / (2 * tp + fp + fn + 1e-9)).mean()


def test_loss_and_soft_measure_are_those_of_flamby():
    torch.manual_seed(0)
    outputs, masks = (
        torch.randn(3, 2, *SMALL).softmax(1),
        (torch.rand(3, *SMALL) < 0.2).to(torch.uint8),
    )
    masks[2] = 0
    target = torch.stack([1 - masks, masks], 1)
    for kind in (torch.uint8, torch.bool, torch.float32):
        assert torch.allclose(
            tasks.dice_loss(outputs, masks.to(kind)), flamby_loss(outputs, target)
        )
    singles = [tasks.dice_loss(outputs[k : k + 1], masks[k : k + 1]) for k in range(3)]
    assert torch.allclose(tasks.dice_loss(outputs, masks), torch.stack(singles).mean())
    dice = (outputs * target).sum((2, 3, 4)) / ((0.5 * (outputs + target)).sum((2, 3, 4)) + 1e-7)
    assert tasks.soft_dice(outputs, masks) == pytest.approx(float(dice.mean()))
    nothing = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1, 1).expand(1, 2, *SMALL)
    assert tasks.soft_dice(nothing, torch.zeros(1, *SMALL)) == pytest.approx(
        1
    )  # both are empty: nothing was missed


def test_foreground_dice_counts_voxels():
    masks, guessed = torch.zeros(2, 3, *SMALL, dtype=torch.uint8)
    masks[0, :4], guessed[0, 2:4] = 1, 1  # half of it: 2 * 192 / (384 + 192)
    masks[1, :2], guessed[1, 4:] = 1, 1  # none of it; the last has nothing, and nothing is guessed
    outputs = torch.stack([0.9 - 0.3 * guessed, 0.1 + 0.7 * guessed], 1)
    values, weights = tasks.foreground_dice.score(outputs, masks)
    assert values.tolist() == pytest.approx([2 / 3, 0, 1])
    assert weights.tolist() == [1, 1, 1]


def test_constant_error_is_that_of_the_better_constant():
    masks = np.zeros((2, *mri.SHAPE), np.uint8)
    masks[:, :12] = 1
    assert tasks.constant_error(tasks.soft_dice, masks) == pytest.approx(1 - 0.75 / 0.875 / 2)
    assert tasks.constant_error(tasks.foreground_dice, masks) == pytest.approx(1 - 0.25 / 0.625)


@pytest.mark.parametrize("packed", [False, True])
def test_hospitals_are_clients_and_train(put, monkeypatch, packed):
    monkeypatch.setattr(mri, "SHAPE", SMALL)
    extra = {
        "IXI.xls": b"",
        f"__MACOSX/{subject('g')}/T1/._{subject('g')}_image.nii.gz": b"no image",
        "a.nii.gz": b"",
    }
    put(hospitals() | extra, packed)
    task = tasks.fed_ixi(TaskOptions())
    assert task.clients.sizes == (2, 2, 2)
    for k, letter in enumerate("ghi"):
        for number in range(2):
            seed = [i for i, other in enumerate("ggGhhHiiI") if other == letter][number]
            files = (File("", "", nifti(array)) for array in scan(seed))
            inputs, mask = mri._scan(*files, highest=1)
            assert np.array_equal(task.clients.data[k][0][:][number], inputs)
            assert np.array_equal(task.clients.data[k][1][:][number], mask)
    for algorithm in ("dp-fedavg", "dp-scaffnew"):
        result = equipoise.train(
            task=task, algorithm=algorithm, epsilon=math.inf, iterations=2, local_steps=2, eta=0.1
        )
        assert result.curve[-1].test_loss < result.curve[0].test_loss
        assert result.client_error == pytest.approx(
            result.test_error
        )  # every hospital has one test record
        assert result.dimension == 246_156
    private = equipoise.train(
        task="fed-ixi", epsilon=3, clip=10, iterations=1, simulate_noise_seed=0
    )
    assert private.error_name == "1 - Dice (soft, mean of background and brain)"
    assert private.baseline_error == task.constant_error
    mixed = tasks.fed_ixi(TaskOptions(split="random", clients=2, public_records=2))
    assert mixed.clients.sizes == (2, 2)
    assert mixed.pool.sizes == (2,)


def test_gradients_of_single_scans_are_clipped(put, monkeypatch):
    monkeypatch.setattr(mri, "SHAPE", SMALL)
    put(hospitals())
    clients = tasks.fed_ixi(TaskOptions()).clients
    x, (inputs, masks) = clients.model.initial().requires_grad_(), clients.data[1]
    losses = [
        tasks.dice_loss(clients.model(x, inputs[:][k : k + 1]), masks[:][k : k + 1])
        for k in range(2)
    ]
    gradients = [torch.autograd.grad(loss, x)[0].double() for loss in losses]
    wanted = sum(gradient * min(1, 0.5 / gradient.norm()) for gradient in gradients)
    assert torch.allclose(clients.alone(1).clipped_sum(x.detach(), None, 0.5, 0), wanted, atol=1e-5)
    assert clients.slow_layers() == ()


def test_preparation_is_kept(put, monkeypatch):
    monkeypatch.setattr(mri, "SHAPE", SMALL)
    put(hospitals())
    first = mri.FED_IXI.prepared()
    monkeypatch.setattr(mri, "_volume", lambda file: pytest.fail("read again"))
    again = mri.FED_IXI.prepared()
    assert all(np.array_equal(first[key], again[key]) for key in first)


image, mask = scan()
gzipped = nifti(image)
promises = bytearray(nibabel.Nifti1Image(image, np.eye(4)).to_bytes())
promises[42:48] = np.array([9000, 9000, 9000], np.int16).tobytes()
BROKEN = {
    "cut short": (
        {"image": gzipped[: len(gzipped) // 2]},
        "_image.nii.gz: not a readable NIfTI volume: Compressed file ended",
    ),
    "cut inside": (
        {"image": gzip.compress(gzip.decompress(gzipped)[:900])},
        "_image.nii.gz: it is cut short: [9, 7, 8] voxels",
    ),
    "promises": (
        {"image": gzip.compress(promises)},
        "_image.nii.gz: it is cut short: [9000, 9000, 9000] voxels of float32",
    ),
    "no gzip": (
        {"image": b"<html>not found</html>"},
        "_image.nii.gz: not a readable NIfTI volume: Not a gzipped file",
    ),
    "no NIfTI": (
        {"mask": gzip.compress(b"\0" * 400)},
        "_label.nii.gz: not a readable NIfTI volume",
    ),
    "empty": ({"mask": b""}, "_label.nii.gz: not a readable NIfTI volume"),
    "4-D": (
        {"image": nifti(np.stack([image] * 2, -1))},
        "_image.nii.gz: it has voxels [9, 7, 8, 2] of float32; three axes",
    ),
    "complex": (
        {"image": nifti(image.astype(np.complex64))},
        "_image.nii.gz: it has voxels [9, 7, 8] of complex64; three axes",
    ),
    "shapes": (
        {"mask": nifti(mask[:, 1:])},
        "_image.nii.gz: it has 9 x 7 x 8 voxels, but its mask 9 x 6 x 8",
    ),
    "NaN": (
        {"image": nifti(np.where(mask, np.nan, image))},
        "_image.nii.gz: it has voxels that are not finite numbers",
    ),
    "constant": (
        {"image": nifti(np.full_like(image, 0.1))},
        "_image.nii.gz: its voxels are all alike",
    ),
    "infinite": (
        {"image": nifti(image.astype(float) * 1e300)},
        "_image.nii.gz: it has voxels that are not finite numbers",
    ),
    "too large": (
        {"image": nifti(image * np.float32(1e38))},
        "_image.nii.gz: its voxels are all alike, or too large",
    ),
    "labels": (
        {"mask": nifti(mask * 2)},
        "_label.nii.gz: a mask has whole numbers from 0 to 1, and it has others",
    ),
    "fractions": (
        {"mask": nifti(mask * 0.5)},
        "_label.nii.gz: a mask has whole numbers from 0 to 1, and it has others",
    ),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_named_and_nothing_is_kept(put, tmp_path, case, packed):
    changes, sentence = BROKEN[case]
    put(of_subject(subject("H")) | of_subject(subject("g"), **changes), packed)
    with pytest.raises(DataError, match=re.escape(sentence)) as raised:
        tasks.fed_ixi(TaskOptions())
    assert subject("g") in str(raised.value)
    assert ("7kd5wj7v7p-3.zip: " in str(raised.value)) == packed
    assert {path.name for path in (tmp_path / "cache").glob("*")} <= {"checksums.json"}


def test_a_file_that_swells_is_not_read_on(put, monkeypatch):
    monkeypatch.setattr(mri, "LARGEST", 2000)
    put(of_subject(subject("g")))
    with pytest.raises(DataError, match=r"_image.nii.gz: unpacked it has more than 2,000 bytes"):
        tasks.fed_ixi(TaskOptions())


@pytest.mark.parametrize(
    "name",
    ["IXI001-Guys-0828", "IXI002-HH-0828", "IXI002-Mars-0828", "IXI000-Guys-0001", "IXI900-IOP-01"],
)
def test_strangers_are_refused(put, name):
    put(of_subject(name))
    with pytest.raises(DataError, match=f"subject {name} is not one of the 566 of IXI-Tiny"):
        tasks.fed_ixi(TaskOptions())


def test_scans_without_a_mask_are_left_out(put, monkeypatch):
    monkeypatch.setattr(mri, "SHAPE", SMALL)
    files = hospitals("ghiGHI")
    lonely = {
        name: content for name, content in of_subject(subject("g", 5)).items() if "T1" in name
    }
    put(lonely)
    with pytest.raises(DataError, match="none of the 1 scans here has both an image and a mask"):
        tasks.fed_ixi(TaskOptions())
    put(files, packed=True)
    assert tasks.fed_ixi(TaskOptions()).clients.sizes == (1, 1, 1)


@pytest.mark.parametrize(
    ("letters", "lack"), [("ghGHI", "IOP has no training"), ("ghiGI", "HH has no test")]
)
def test_a_hospital_without_records_is_named(put, monkeypatch, letters, lack):
    monkeypatch.setattr(mri, "SHAPE", SMALL)
    put(hospitals(letters))
    with pytest.raises(
        DataError, match=f"the data of task=fed-ixi is incomplete: hospital {lack} record in"
    ):
        tasks.fed_ixi(TaskOptions())


def test_hippocampus_labels_are_one_foreground(put, monkeypatch):
    monkeypatch.setattr(mri, "SHAPE", SMALL)
    files = hippocampus_files()
    of_a_macintosh = {name.replace("/hippo", "/._hippo"): b"of a Macintosh" for name in files}
    no_mask = {"Task04_Hippocampus/imagesTs/hippocampus_099.nii.gz": b"has no mask"}
    put(files | of_a_macintosh | no_mask)
    arrays = mri.HIPPOCAMPUS.prepared()
    assert (len(arrays["train_inputs"]), len(arrays["test_inputs"])) == (12, 4)
    wanted = mri._resized(torch.from_numpy(scan()[1]).float()) == 1
    assert np.array_equal(arrays["test_targets"], [wanted.numpy()] * 4)
    first = mri._scan(*(File("", "", nifti(array)) for array in scan(5)), highest=2)[0]
    assert np.array_equal(arrays["test_inputs"][1], first)  # every fifth, by number
    assert tasks.hippocampus(TaskOptions()).clients.sizes == (4, 4, 4)


def test_missing_data_comes_with_the_way_to_get_it(put):
    for load, request in (
        (tasks.fed_ixi, "put 7kd5wj7v7p-3.zip"),
        (tasks.hippocampus, "put Task04_Hippocampus.tar there"),
    ):
        with pytest.raises(DataError, match=f"is not in .*brain-mri: {request}"):
            load(TaskOptions())
