"""Real LIBSVM files, and the embedded digits."""

import math

import numpy as np
import pytest

from equipoise import train
from equipoise.tasks import TaskOptions, libsvm_text, load_task
from problems import DATA


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows", "features", "counts"),
    [
        ("a9a", 32_561, 123, (24_720, 7_841)),
        ("w8a", 49_749, 300, (48_270, 1_479)),
        ("mushrooms", 8_124, 112, (3_916, 4_208)),
        ("phishing", 11_055, 68, (4_898, 6_157)),
    ],
)
def test_real_libsvm_files(name, rows, features, counts):
    """Row, feature and class counts; trained privately and not."""
    folder = DATA / "libsvm"
    if not folder.is_dir():
        pytest.skip(
            "the LIBSVM files are not here: put a9a.bz2 and the others into $EQUIPOISE_DATA/libsvm"
        )
    data = (str(folder / f"{name}.bz2"),)
    test = {"test": (str(folder / "a9a.t.bz2"),)} if name == "a9a" else {"test_share": 0.2}
    labels = libsvm_text.read_lines(*data).labels
    assert (np.sum(labels == labels.min()), np.sum(labels == labels.max())) == counts
    task = load_task("libsvm", TaskOptions(data=data, **test))
    assert sum(task.clients.sizes) == (rows if name == "a9a" else rows - -(-rows // 5))
    assert task.dimension == features + 1
    flags = {
        "task": "libsvm",
        "data": data,
        **test,
        "trust": "secure-aggregation",
        "local_steps": 8,
    }
    for privacy in (
        {"epsilon": math.inf},
        {"epsilon": 3.3, "clip": 1.0, "simulate_noise_seed": 0},
    ):
        result = train(**flags, **privacy)
        assert result.baseline_error == pytest.approx(task.constant_error)
        assert result.curve[-1].test_loss < 0.8 * result.curve[0].test_loss
        if (
            name != "w8a"
        ):  # where three in a hundred are positive, and saying no is hard to beat in 64 steps
            assert result.test_error < 0.85 * result.baseline_error


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rest"), [("digits", {}), ("digits-mlp", {"local_steps": 8})])
def test_digits_learn_privately(name, rest):
    settings = {"task": name, "trust": "secure-aggregation", "local_steps": 4, **rest}
    free = train(**settings, epsilon=math.inf)
    assert free.run.clients == 100
    assert free.baseline_error > 0.85
    assert free.test_error < 0.2
    private = train(**settings, epsilon=8, clip=1.0, simulate_noise_seed=0)
    assert private.test_error < 0.6 * private.baseline_error
