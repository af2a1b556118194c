"""LIBSVM files, real and malformed, and the embedded digits."""

import bz2
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import equipoise
from equipoise import DataError, train
from equipoise.tasks import TaskOptions, libsvm, load_task
from problems import DATA, run_command


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
    data, test = (
        (str(folder / f"{name}.bz2"),),
        (str(folder / "a9a.t.bz2"),) if name == "a9a" else (),
    )
    ((records, labels),) = libsvm._read(list(data))
    assert records.shape == (rows, features + 1)
    assert (np.sum(labels == labels.min()), np.sum(labels == labels.max())) == counts
    task = load_task("libsvm", TaskOptions(data=data, test=test))
    assert sum(task.clients.sizes) == (rows if test else rows - -(-rows // 5))
    flags = {
        "task": "libsvm",
        "data": data,
        "test": test,
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


@pytest.mark.parametrize("labels", ["-1 +1", "1 2", "0 1"])
def test_all_label_conventions_mean_the_same(tmp_path, labels):
    low, high = labels.split()
    lines = [f"{high if k % 3 else low} 1:{k % 3} 4:1 " for k in range(50)] + [low, f"{high} 2:0.5"]
    (tmp_path / "f.txt").write_text(
        "\n".join(lines)
    )  # rows without features, trailing blanks, no final newline
    (tmp_path / "f.bz2").write_bytes(bz2.compress("\n".join(lines).encode()))
    tasks = [
        load_task("libsvm", TaskOptions(data=(str(tmp_path / f),), clients=4))
        for f in ("f.txt", "f.bz2")
    ]
    for task in tasks:
        assert sum(task.clients.sizes) == 52 - 11
        assert task.clients.targets.sum() == sum(1 for k in range(50) if k % 3 and k % 5) + 1
        assert task.dimension == 5
        norms = task.clients.features[..., :-1].norm(dim=-1)
        assert ((norms - 1).abs() < 1e-12).logical_or(norms == 0).all()


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("1 1:2\n-1 1:x\n", "f.txt, line 2: its word 2 is not index:value"),
        ("1 1:2\none 1:2\n", "f.txt, line 2: it does not begin with a label"),
        ("1 1:2\n\n-1 3:1 2:1\n", "f.txt, line 3: its word 3: indices must rise"),
        ("1 1:2\n-1 7\n", "f.txt, line 2: its word 2 is not index:value"),
        ("1 1:2\n-1 ²:3\n", "f.txt, line 2: its word 2 is not index:value"),
        (
            "\n".join(f"{k}.5 1:1" for k in range(1200)),
            "has 1200 labels: task libsvm is for classification",
        ),
        ("", "f.txt has no records"),
        ("1 1:1\n1 2:1\n", "has one label, 1"),
        ("1 1:1\n0 2:inf\n", "f.txt has a value that is not finite"),
    ],
)
def test_malformed_libsvm_lines_are_found(tmp_path, lines, sentence):
    path = tmp_path / "f.txt"
    path.write_text(lines)
    with pytest.raises(equipoise.EquipoiseError, match=re.escape(sentence)):
        load_task("libsvm", TaskOptions(data=(str(path),), clients=1))


def test_truncated_archives_are_found(tmp_path):
    whole = bz2.compress(b"\n".join(b"%d 1:1 2:%d" % (k % 2, k) for k in range(100_000)))
    (tmp_path / "f.bz2").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read to its end"):
        load_task("libsvm", TaskOptions(data=(str(tmp_path / "f.bz2"),)))
    with pytest.raises(DataError, match="there is no such file"):
        load_task("libsvm", TaskOptions(data=("nowhere.txt",)))


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


def test_a_libsvm_model_needs_its_training_file_no_more(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("f.txt").write_text("\n".join(f"{k % 2} 1:{k % 2} 3:1" for k in range(40)))
    Path("more.txt").write_text("1 1:1 2:1\n1 1:1\n")
    Path("odd.txt").write_text("7 1:1\n")
    Path("wide.txt").write_text("1 9:1\n")
    flags = "train --task libsvm --data f.txt --clients 4 --epsilon inf --out run --json"
    assert run_command(capsys, *flags.split())[0] == 0
    Path("f.txt").unlink()
    assert (
        json.loads(run_command(capsys, "evaluate", "run", "--data", "more.txt", "--json")[1])[
            "error"
        ]
        == 0
    )
    assert (
        "has a label that the training file lacks"
        in run_command(capsys, "evaluate", "run", "--data", "odd.txt")[2]
    )
    assert "does not fit" in run_command(capsys, "evaluate", "run", "--data", "wide.txt")[2]
