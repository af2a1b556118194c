"""Task libsvm: every line is a record, none is public unless the user says so, and none decides on
another."""

import bz2
import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import equipoise
from equipoise import DataError, train
from equipoise.tasks import TaskOptions, load_client, load_task, load_to_plan
from problems import run_command


@pytest.mark.parametrize("labels", ["-1 +1", "1 2", "0 1"])
def test_all_label_conventions_mean_the_same(tmp_path, labels):
    low, high = labels.split()
    lines = [f"{high if k % 3 else low} 1:{k % 3} 4:1 " for k in range(50)] + [low, f"{high} 2:0.5"]
    (tmp_path / "f.txt").write_text(
        "\n".join(lines)
    )  # rows without features, trailing blanks, no final newline
    (tmp_path / "f.bz2").write_bytes(bz2.compress("\n".join(lines).encode()))
    tasks = [
        load_task("libsvm", TaskOptions(data=(str(tmp_path / f),), clients=4, test_share=0.2))
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
        (
            "\n".join(f"{k}.5 1:1" for k in range(1200)),
            "has 1200 labels: task libsvm is for classification",
        ),
        ("", "f.txt has no records"),
        ("1 1:1\n1 2:1\n", "has one label: there is nothing to learn"),
        ("age,outcome\n4711,yes\n", "f.txt is no LIBSVM text: no line is `label index:value"),
    ],
)
def test_files_that_are_no_data_set_are_refused_without_a_record(tmp_path, lines, sentence):
    path = tmp_path / "f.txt"
    path.write_text(lines)
    with pytest.raises(equipoise.EquipoiseError, match=re.escape(sentence)) as caught:
        load_task("libsvm", TaskOptions(data=(str(path),), clients=1))
    assert "4711" not in str(caught.value)


FORM = "[index]\nlow = 1\nhigh = {}\n[label]\ncategories = [0, 1]\n"


def test_more_features_than_fit_in_memory_are_refused_where_they_are_declared(tmp_path):
    (tmp_path / "f.txt").write_text("1 1:1\n0 2:1\n")
    (tmp_path / "b.toml").write_text(FORM.format(800_000_000))
    options = TaskOptions(
        data=(str(tmp_path / "f.txt"),), bounds=str(tmp_path / "b.toml"), clients=1
    )
    with pytest.raises(DataError, match="2 records of 800000000 features do not fit in memory"):
        load_task("libsvm", options)


@pytest.mark.parametrize("index", [999_999_999, 1_000_001, 900_000])
def test_no_index_stops_a_run(tmp_path, index, monkeypatch):
    """What would not fit in memory, or is beyond any that may stand undeclared, is left out."""
    monkeypatch.setattr("equipoise.tasks.libsvm.MOST_CELLS", 40 * 500_000)
    lines = [f"{k % 2} 1:{k + 1} 3:1" for k in range(40)]
    options = TaskOptions(data=(str(tmp_path / "f.txt"),), clients=4)
    (tmp_path / "f.txt").write_text("\n".join(lines))
    ordinary = load_task("libsvm", options)
    (tmp_path / "f.txt").write_text("\n".join([*lines[:7], f"{lines[7]} {index}:0.5", *lines[8:]]))
    assert torch.equal(load_task("libsvm", options).clients.features, ordinary.clients.features)


@pytest.mark.parametrize("odd", ["73.25 77:1", "73.25 1:1", "1 77:4711"])
def test_what_is_read_off_the_private_file_is_said_first_and_labels_are_not_shown(
    tmp_path, capsys, monkeypatch, odd
):
    monkeypatch.chdir(tmp_path)
    Path("f.txt").write_text("\n".join([*(f"{k % 2} 1:1 2:{k}" for k in range(40)), odd]))
    Path("b.toml").write_text(FORM.format(2))
    asked = {"task": "libsvm", "data": ("f.txt",), "clients": 4, "epsilon": 8, "iterations": 2}
    notice = "OUTSIDE THE GUARANTEE: the labels and the number of features were read off"
    result, plan = train(**asked, clip=1), equipoise.plan(**asked, algorithm="dp-fedavg")
    for notices in (result.notices, plan.notices):
        (said,) = [line for line in notices if line.startswith(notice)]
        assert "--bounds" in said
    flags = "--task libsvm --data f.txt --clients 4 --epsilon 8 --iterations 2"
    for command in (f"plan {flags}", f"train {flags} --clip 1 --out out"):
        code, printed, _ = run_command(capsys, *command.split())
        assert code == 0
        assert "OUTSIDE THE GUARANTEE: the labels" in " ".join(printed.split())
        assert "73.25" not in printed
    for text in (Path("out/guarantee.md").read_text(), *result.public, *plan.public):
        assert "73.25" not in text
    declared = train(**asked, clip=1, bounds="b.toml")
    planned = equipoise.plan(**asked, algorithm="dp-fedavg", bounds="b.toml")
    assert not any("OUTSIDE" in said for said in (*declared.notices, *planned.notices))
    assert declared.dimension == 3


ODD_LINES = {
    "no value": b"1 1:x",
    "no index": b"1 7",
    "no label": b"patient 1:2",
    "falling": b"1 2:1 1:1",
    "twice": b"1 1:1 1:2",
    "a digit of another kind": "1 ²:3".encode(),
    "negative": b"1 -1:3",
    "infinite": b"1 1:inf",
    "beyond float": b"1 1:1e999",
    "label not a number": b"nan 1:1",
    "label infinite": b"-inf 1:1",
    "three parts": b"1 1:2:3",
    "index beyond 64 bits": b"1 99999999999999999999:1",
    "index of many digits": b"1 " + b"9" * 5000 + b":1",
    "NUL": b"1 1:1\x00",
    "foreign bytes": b"\xff\xfe 1:1",
    "nothing": b"",
    "comment": b"# 1 1:1",
    "long": b"1 1:" + b"x" * 200_000,
}


@pytest.mark.parametrize("odd", ODD_LINES)
@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_line_is_a_record_and_changes_no_other(tmp_path, odd, unit, client_log):
    """One that is no LIBSVM text teaches nothing, and nobody but the client hears of it."""
    lines = [b"%d 1:%d 3:1" % (k % 2, k + 1) for k in range(40)]
    options = TaskOptions(data=(str(tmp_path / "f.txt"),), clients=4, unit=unit)
    (tmp_path / "f.txt").write_bytes(b"\n".join(lines))
    ordinary = load_task("libsvm", options)
    (tmp_path / "f.txt").write_bytes(b"\n".join([*lines[:7], ODD_LINES[odd], *lines[8:], b""]))
    task = load_task("libsvm", options)
    assert task.clients.sizes == ordinary.clients.sizes == (10,) * 4
    assert task.public == ordinary.public
    changed = (task.clients.features != ordinary.clients.features).any(-1)
    assert changed.sum() == 1
    assert not task.clients.features[changed].any()
    assert not task.clients.targets[changed].any()
    assert torch.equal(task.clients.targets[~changed], ordinary.clients.targets[~changed])
    assert client_log[-1].endswith("40 lines, of which 1 are no record")


def test_words_that_others_write_into_libsvm_files_are_understood(tmp_path):
    (tmp_path / "f.txt").write_bytes(b"1 qid:7 1:3 2:4 # 4711\r\n+1 1:1\r\n-1e0\t2:5e-1  \r\n")
    task = load_task("libsvm", TaskOptions(data=(str(tmp_path / "f.txt"),), clients=1))
    rows = sorted(task.clients.features[0].tolist())
    assert rows == [[0, 1, 1], pytest.approx([0.6, 0.8, 1]), [1, 0, 1]]


def numbered(path, records=40):
    """Records that can be told apart: the angle of record k grows with k."""
    path.write_text("\n".join(f"{k % 2} 1:1 2:{k}" for k in range(records)))
    return (str(path),)


def places(features):
    """Which record of `numbered` each row is, without the padding."""
    rows = features.reshape(-1, 3)
    return sorted(round(float(row[1] / row[0])) for row in rows if row[0])


def test_no_record_is_public_unless_somebody_says_so(tmp_path):
    data = numbered(tmp_path / "f.txt")
    task = load_task("libsvm", TaskOptions(data=data, clients=4))
    assert places(task.clients.features) == list(range(40))
    assert (task.measure, task.pool, task.constant_error) == (None, None, None)
    assert not any("test" in sentence for sentence in task.public)
    (tmp_path / "b.toml").write_text(FORM.format(2))
    result = train(
        task="libsvm",
        data=data,
        bounds=tmp_path / "b.toml",
        clients=4,
        epsilon=3,
        clip=1,
        iterations=4,
    )
    assert (result.test_error, result.baseline_error, result.curve) == (None, None, [])
    assert not any("OUTSIDE" in notice for notice in result.notices)


@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_planner_takes_no_record_of_a_private_file(tmp_path, unit):
    data = numbered(tmp_path / "f.txt")
    asked = {"task": "libsvm", "data": data, "clients": 4, "epsilon": 30, "unit": unit}
    plan = equipoise.plan(**asked, iterations=4, algorithm="dp-fedavg")
    assert plan.settings.public_records == 0
    assert plan.settings.test_share == 0
    assert plan.public_only is None
    assert plan.predicted.test_error is None
    assert plan.verdict in ("inconclusive", "do not train")
    assert any("made-up records" in sentence for sentence in plan.public)
    assert sum(train(plan, anyway=True).sizes or (40,)) == 40


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.2, list(range(0, 40, 5))),  # every fifth
        (0.5, list(range(0, 40, 2))),
        (1 / 3, list(range(0, 40, 3))),
        (0.001, [0]),
        (0.75, [k for k in range(40) if k % 4 != 3]),
    ],
)
def test_a_share_is_public_if_somebody_says_so(tmp_path, share, expected):
    data = numbered(tmp_path / "f.txt")
    task = load_task("libsvm", TaskOptions(data=data, clients=2, test_share=share))
    assert places(task.measure.features) == expected
    assert places(task.clients.features) == [k for k in range(40) if k not in expected]
    flags = {"task": "libsvm", "data": data, "clients": 2, "epsilon": 3, "clip": 1}
    result = train(**flags, iterations=2, test_share=share)
    assert result.test_error is not None
    assert any(
        f"OUTSIDE THE GUARANTEE: test_share={share:g} declares" in line for line in result.notices
    )
    assert any("outside the guarantee" in sentence for sentence in result.public)
    again = train(**flags, iterations=2, public_records=8)
    assert again.test_error is None
    assert any("OUTSIDE THE GUARANTEE: public_records=8 declares" in line for line in again.notices)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"test_share": 0.2, "test": "f.txt"}, "the test records are in files, or a share"),
        ({"task": "breast-cancer", "data": (), "test_share": 0.2}, "test_share with task="),
        ({"task": "csv", "test_share": 0.2}, "test_share with task=csv: only task libsvm"),
        ({"test_share": 1}, "test_share=1.0 is not a share"),
        ({"test_share": -0.1}, "test_share=-0.1 is not a share"),
        ({"test_share": math.nan}, "test_share=nan is not a share"),
        ({"test_share": 0.99}, "clients=4 is more than the 0 records"),
    ],
)
def test_shares_that_make_no_sense_are_refused(tmp_path, options, sentence):
    data = numbered(tmp_path / "f.txt")
    flags = {"task": "libsvm", "data": data, "clients": 4, "epsilon": 3, "clip": 1, **options}
    if "test" in options:
        flags["test"] = numbered(tmp_path / "t.txt")
    with pytest.raises(equipoise.EquipoiseError, match=re.escape(sentence)):
        train(**flags)


DECLARED = "[index]\nlow = 1\nhigh = 3\n[label]\ncategories = [0, 1]\n"


@pytest.mark.parametrize("odd", ["4711 1:1", "1 9:1", "0 0:1 3:7", "1.5 2:1", "no record"])
def test_declared_labels_and_indices_hold_whatever_a_record_says(tmp_path, odd):
    lines = [f"{k % 2} 1:{k + 1} 2:1" for k in range(40)]
    (tmp_path / "bounds.toml").write_text(DECLARED)
    options = TaskOptions(
        data=(str(tmp_path / "f.txt"),), clients=4, bounds=str(tmp_path / "bounds.toml")
    )
    (tmp_path / "f.txt").write_text("\n".join(lines))
    ordinary = load_task("libsvm", options)
    (tmp_path / "f.txt").write_text("\n".join([*lines[:7], odd, *lines[8:]]))
    task = load_task("libsvm", options)
    assert task.dimension == ordinary.dimension == 4
    assert task.public == ordinary.public
    assert (task.facts("record"), task.reading) == (ordinary.facts("record"), ordinary.reading)
    assert (task.clients.features != ordinary.clients.features).any(-1).sum() == 1


@pytest.mark.parametrize(
    "text",
    [
        DECLARED.replace("index", "feature"),
        DECLARED + "[age]\nlow = 0\nhigh = 1\n",
        DECLARED.replace("high = 3", "high = 3.5"),
        "[index]\nlow = 1\nhigh = 3\n[label]\nlow = 0\nhigh = 1\n",
        DECLARED.replace("[0, 1]", '["no", "yes"]'),
    ],
)
def test_bounds_of_a_libsvm_file_that_make_no_sense_are_refused(tmp_path, text):
    (tmp_path / "b.toml").write_text(text)
    data = numbered(tmp_path / "f.txt")
    with pytest.raises(DataError, match=r"task libsvm needs \[index\]"):
        load_task("libsvm", TaskOptions(data=data, bounds=str(tmp_path / "b.toml"), clients=4))


def test_truncated_archives_are_found(tmp_path):
    whole = bz2.compress(b"\n".join(b"%d 1:1 2:%d" % (k % 2, k) for k in range(100_000)))
    (tmp_path / "f.bz2").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read to its end"):
        load_task("libsvm", TaskOptions(data=(str(tmp_path / "f.bz2"),)))
    with pytest.raises(DataError, match="there is no such file"):
        load_task("libsvm", TaskOptions(data=("nowhere.txt",)))


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


@pytest.fixture
def each(tmp_path, monkeypatch):
    """Three files, one of each client, and what is declared for all of them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bounds.toml").write_text(DECLARED)
    for i, name in enumerate("abc"):
        lines = [f"{k % 2} 1:{k % 7 + i} {2 + k % 2}:{k % 3}" for k in range(12 + 9 * i)]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    return TaskOptions(data=("a.txt", "b.txt", "c.txt"), bounds="bounds.toml")


def test_several_files_are_a_client_s_each_and_the_others_stay_closed(each, tmp_path):
    together = load_task("libsvm", each)
    assert together.clients.sizes == (12, 21, 30)
    assert together.facts("client").sizes is None
    assert together.facts("record").sizes == (12, 21, 30)
    planned = load_to_plan("libsvm", replace(each, data=(), clients=3))
    for name in "ac":
        (tmp_path / f"{name}.txt").unlink()
    alone = load_client("libsvm", each, 1)
    x = torch.randn(3, together.dimension, generator=torch.Generator().manual_seed(1)).double()
    assert torch.equal(alone.clients.gradient(x[1], 0), together.clients.gradient(x, 0)[1])
    for unit in ("client", "record"):
        facts = together.facts(unit)._replace(sizes=None)
        assert alone.facts(unit) == facts
        assert planned.facts(unit)._replace(sizes=None) == facts


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bounds": None}, "a file for each client needs bounds"),
        ({"clients": 4}, "clients=4 with 3 files: each is one client's"),
        ({"split": "dirichlet:0.5"}, "split=dirichlet:0.5 with a file for each client"),
        ({"public_records": 5}, "public_records=5 with a file for each client"),
        ({"test_share": 0.1}, "test_share=0.1 with a file for each client"),
    ],
)
def test_several_files_are_read_by_what_is_declared_alone(each, options, sentence):
    for load in (load_task, partial(load_client, client=1), load_to_plan):
        with pytest.raises(equipoise.InvalidValue, match=re.escape(sentence)):
            load("libsvm", options=replace(each, **options))
