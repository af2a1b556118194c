"""Task csv: what public bounds make of private tables, what is refused, and what is never
revealed.
"""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise import DataError, InvalidValue, train
from equipoise.privacy import noise as privacy_noise
from equipoise.tasks.bounds import Column
from problems import BOUNDS, HEADER, csv_task, run_command


def test_scaling_and_coding_follow_from_the_bounds_alone(clinic):
    task = csv_task(test=("test.csv",))
    third = math.sqrt(3)
    rows = task.clients.features[0] * third
    expected = [
        [-0.4, 1, 0, 0.1, third],
        [0.4, 0, 1, 0.9, third],
        [0.3, 0, 1, 0.5, third],
    ]  # the fill of score is 0.5
    np.testing.assert_allclose(rows.numpy(), expected, atol=1e-15)
    assert task.clients.targets[0, :, 0].tolist() == [0, 1, 1]
    assert task.clients.targets[1, :2, 0].tolist() == [1, 0]  # columns in another order
    assert task.clients.sizes == (3, 2)
    assert task.L == pytest.approx(0.51)
    assert task.clients.features.norm(dim=-1).max() <= math.sqrt(2)
    assert not task.sizes_public


def test_cells_outside_the_bounds_are_clipped_and_only_the_client_knows(clinic, client_log):
    Path("a.csv").write_text(HEADER + "1e9,f,nan,no\n-inf,x,oops,yes\n50,m,7,maybe\n")
    task = csv_task()
    rows = task.clients.features[0, :2] * math.sqrt(3)
    np.testing.assert_allclose(rows[:, :4].numpy(), [[1, 1, 0, 0.5], [-1, 0, 0, 0.5]])
    assert task.clients.sizes == (2, 2)  # the label `maybe` is not declared
    assert client_log[0] == (
        "a.csv: 3 records, of which 1 left out (label missing or not declared); cells clipped or "
        "filled: age 2, sex 1, score 3"
    )


def test_more_labels_and_numbers_as_labels(clinic):
    many = BOUNDS.replace('["no", "yes"]', '["no", "yes", "maybe"]')
    Path("bounds.toml").write_text(many)
    task = csv_task(test=("test.csv",))
    assert task.dimension == 3 * 5
    assert task.L == pytest.approx(1.01)
    Path("bounds.toml").write_text(BOUNDS)
    task = csv_task(label="age", test=("test.csv",))  # a number: least squares, in years
    assert task.error_name == "root mean squared error"
    assert float(task.measure(task.x0).error) == pytest.approx(
        np.sqrt(np.mean([20**2, 20**2, 40**2]))
    )
    assert task.constant_error == pytest.approx(np.std([30, 70, 90]))


GRADED = BOUNDS.replace('["f", "m"]', "[1, 2]").replace('["no", "yes"]', "[0, 1, 2]")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["sex", "outcome"])
def test_one_missing_cell_does_not_change_what_the_others_of_its_column_are(clinic, ending, column):
    """It makes whole numbers real: 1 is written 1.0 then, and is the category 1 nevertheless."""
    import pandas

    Path("bounds.toml").write_text(GRADED)
    frame = pandas.DataFrame(
        {"age": [30, 40, 50], "sex": [1, 2, 1], "score": 0.1, "outcome": [0, 2, 1]}
    )
    tasks = []
    for table in (frame, frame.assign(**{column: frame[column].where([True, True, False])})):
        path = f"graded.{ending}"
        table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path)
        tasks.append(csv_task(data=(path,), unit="record").clients)
    whole, missing = tasks
    assert whole.features[0, :, 1:3].sum(-1).all()
    assert whole.targets[0].sum(-1).all()
    assert torch.equal(whole.features[0, :2], missing.features[0, :2])
    assert torch.equal(whole.targets[0, :2], missing.targets[0, :2])


def test_cells_are_categories_by_their_text_then_their_letters_then_their_number():
    def index(categories, *cells):
        return Column("c", categories=categories).index(list(cells)).tolist()

    assert index(("1", "2"), "1", " 1.0 ", "+2", "2e0", "3", "", "nan", "x") == [
        *(0, 0, 1, 1),
        *(-1, -1, -1, -1),
    ]
    assert index(("01", "1"), "1", "01", "1.0") == [1, 0, -1]  # which of them 1.0 is, nobody knows
    assert index(("low", "nan"), "low", "nan", "x", "NaN", "") == [0, 1, -1, 1, -1]
    assert index(("low", "nan", "Nan"), "nan", "NaN", "x") == [1, -1, -1]
    assert index(("0.5", "true"), ".50", "true", "1") == [0, 1, 1]


def test_parquet_says_the_same_as_csv(clinic):
    import pyarrow
    import pyarrow.parquet

    columns = {
        "age": [30.0, 70.0, 65.0],
        "sex": ["f", "m", "m"],
        "score": [0.1, 0.9, None],
        "outcome": ["no", "yes", "yes"],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), "a.parquet")
    assert torch.equal(
        csv_task(data=("a.parquet", "b.csv")).clients.features, csv_task().clients.features
    )
    Path("bad.parquet").write_text("no")
    with pytest.raises(DataError, match=r"bad\.parquet is not a Parquet file"):
        csv_task(data=("bad.parquet",))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "age,sex,outcome\n1,f,no\n",
            "a.csv does not have the columns of the bounds file: it lacks score",
        ),
        (
            "age,sex,score,outcome,full name,\n1,f,0,no,x,\n",
            "it also has full name, a column without a name: declare them there, or leave them "
            "aside (--ignore 'full name' '')",
        ),
        ("age,sex,score,score,outcome\n1,f,0,0,no\n", "repeats a column"),
        ("age,sexe,score,outcome\n1,f,0,no\n", "it lacks sex"),
        (HEADER, "a.csv has a header and no records"),
        ("", "data=a.csv is empty"),
    ],
)
def test_tables_that_do_not_fit_are_refused(clinic, content, sentence):
    Path("a.csv").write_text(content)
    with pytest.raises(DataError, match=re.escape(sentence)):
        csv_task()


def test_unreadable_tables(clinic):
    with pytest.raises(DataError, match=r"data=c\.csv: No such file"):
        csv_task(data=("c.csv",))
    with pytest.raises(DataError, match=r"data=\.: Is a directory"):
        csv_task(data=(".",))


def test_rows_that_are_no_rows_stop_nothing(clinic, client_log):
    """Too few or too many cells, broken quotes, foreign bytes, huge cells: filled, cut, and counted
    by the client alone."""
    rows = (
        b'30,f\n30,f,0.1,no,9,9\n30,"f,0.1,no\n30,\xff,0.1,no\n' + b"9" * 200_000 + b",f,0.1,no\n"
    )
    Path("a.csv").write_bytes(HEADER.encode() + rows)
    assert csv_task(unit="record").clients.sizes[0] == 5
    task = csv_task()
    assert task.clients.sizes[0] == 3  # the first and the third line have no label
    assert task.clients.features.isfinite().all()
    assert "left out" in client_log[0]


ODD_LINES = {
    "open quote": b'30,"f,0.1,no',
    "quote within": b'30,f"",0.1,"no',
    "carriage return": b"30,f\r,0.1,no",
    "two records by a carriage return": b"30,f,0.1,no\r70,m,0.9,yes",
    "NUL": b"30,\x00f,0.1,no\x00",
    "other line breaks": "30,f\x0b\x0c\x1c\x85\u2028,0.1,no".encode(),
    "foreign bytes": b"30,\xff\xfe\xe2\x82,0.1,no\xe2",
    "byte order mark": b"\xef\xbb\xbf30,f,0.1,no",
    "nothing": b"",
    "blanks": b"   ",
    "too few": b"30",
    "too many": b"30,f,0.1,no" + b",9" * 2000,
    "long": b"9" * 200_000 + b',f,0.1,"no',
    "beyond 64 bits": b"-99999999999999999999999999,f,18446744073709551616,no",
    "not finite": b"nan,f,1e999,no",
    "infinite": b"-inf,f,Infinity,no",
    "quotes alone": b'"""""""',
}


@pytest.mark.parametrize("odd", ODD_LINES)
@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_line_is_a_record_and_changes_no_other(clinic, odd, unit):
    """Neither how the lines before and after are read nor, where a record is the unit, how many
    there are."""
    before, after = b"30,f,0.1,no\n70,m,0.9,yes\n", b"65,m,,yes\n12,f,-1,no\n99,m,1,yes\n"
    Path("a.csv").write_bytes(HEADER.encode() + before + after)
    ordinary = csv_task(unit=unit).clients
    Path("a.csv").write_bytes(HEADER.encode() + before + ODD_LINES[odd] + b"\n" + after)
    clients = csv_task(unit=unit).clients
    if unit == "record":
        assert clients.sizes == (6, 2)
    assert clients.features.isfinite().all()
    for read, expected in (
        (clients.features, ordinary.features),
        (clients.targets, ordinary.targets),
    ):
        assert torch.equal(read[0, :2], expected[0, :2])
        assert torch.equal(read[0, clients.sizes[0] - 3 : clients.sizes[0]], expected[0, 2:5])


def test_a_line_break_within_quotes_makes_two_records(clinic):
    """Legal CSV, but to join lines one would have to let a quote decide on the lines that
    follow."""
    Path("a.csv").write_text(HEADER + '30,"f\nm",0.1,no\n70,m,0.9,yes\n')
    clients = csv_task(unit="record").clients
    assert clients.sizes == (3, 2)
    assert clients.targets[0, :, 0].tolist() == [0, 0, 1]
    assert not clients.features[0, :2].any()  # neither half has a label


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("last", [True, False])
def test_ordinary_files_are_read_alike(clinic, end, mark, last):
    expected = csv_task(unit="record").clients
    lines = Path("a.csv").read_text().splitlines()
    quoted = ['"' + line.replace(",", '","') + '"' for line in lines]
    for version in (lines, quoted):
        text = mark + end.join(version) + (end if last else "")
        Path("a.csv").write_bytes(text.encode())
        clients = csv_task(unit="record").clients
        assert clients.sizes == expected.sizes
        assert torch.equal(clients.features, expected.features)


def test_a_file_whose_lines_cannot_be_told_apart_is_refused_without_its_records(clinic):
    """Lines that end in CR alone: all of it would be the header."""
    for header in (HEADER.strip(), HEADER.strip() + ","):
        Path("a.csv").write_text(header + "\r4711,f,0.1,no\r70,m,0.9,yes\r")
        with pytest.raises(DataError, match="its lines end in CR alone") as caught:
            csv_task()
        assert "4711" not in str(caught.value)


def test_a_file_is_one_client_once(clinic):
    for given in ({"data": ("a.csv", "./a.csv")}, {"test": ("b.csv",)}, {"proxy": ("a.csv",)}):
        with pytest.raises(InvalidValue, match="is given twice"):
            csv_task(**given)


def test_labels_that_are_missing_are_not_invented(clinic):
    Path("a.csv").write_text(HEADER + ",f,0.1,no\noops,f,0.1,no\n40,f,0.1,no\n400,f,0.1,no\n")
    task = csv_task(label="age")
    assert task.clients.sizes[0] == 2
    assert task.clients.targets[0, :2, 0].tolist() == pytest.approx(
        [-0.2, 1.0]
    )  # 400 is clipped to 100


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "low = 0",
            "low = nan",
            "bounds.toml, column age: low=nan and high=100.0 are not two numbers",
        ),
        ("low = 0", "low = 200", "low=200.0 and high=100.0 are not two numbers with low < high"),
        ("low = 0\nhigh = 100", "", "column age: give either low and high, or categories"),
        ("low = 0", "lowest = 0", "column age: expected low and high, or categories"),
        ('["f", "m"]', '["f"]', "column sex: categories=['f'] needs two or more different values"),
        ("fill = 0.5", "fill = 2", "column score: fill=2 is not between low=-1.0 and high=1.0"),
        ("[age]", "[age", "bounds.toml is not TOML"),
        ('["f", "m"]', '"fm"', "column sex: categories='fm' is not a list of values"),
        ("high = 100", "high = 1" + 400 * "0", "low=0.0 and high=inf are not two numbers"),
        ('["no", "yes"]', '["no", "yes"]\nfill = "no"', "column outcome: a label cannot be filled"),
        (
            "[outcome]",
            "[result]",
            "label='outcome' is not in bounds.toml, which has age, sex, score, result",
        ),
    ],
)
def test_bounds_that_make_no_sense_are_refused(clinic, old, new, sentence):
    Path("bounds.toml").write_text(BOUNDS.replace(old, new, 1))
    with pytest.raises(DataError, match=re.escape(sentence)):
        csv_task()


def test_what_task_csv_needs(clinic):
    for missing in ("data", "label", "bounds"):
        with pytest.raises(InvalidValue, match=f"task=csv needs {missing}"):
            csv_task(**{missing: () if missing == "data" else None})
    with pytest.raises(InvalidValue, match="clients=3 with 2 files"):
        csv_task(clients=3)
    with pytest.raises(DataError, match="writes a template"):
        csv_task(bounds="none.toml")


def test_the_template_asks_to_be_filled_in(clinic, capsys):
    _, template, _ = run_command(
        capsys, "data", "bounds", "--columns", "age", "blood pressure", "outcome"
    )
    Path("bounds.toml").write_text(template)
    with pytest.raises(
        DataError, match=r"column age: low=nan and high=nan.*fill in what is publicly known"
    ):
        csv_task()
    filled = template.replace("low = nan", "low = 0").replace("high = nan", "high = 9")
    Path("bounds.toml").write_text(filled)
    Path("a.csv").write_text("age,blood pressure,outcome\n1,2,3\n")
    assert csv_task(data=("a.csv",)).dimension == 3


@pytest.mark.slow
@pytest.mark.parametrize("secret", [False, True])
def test_nothing_but_the_releases_depends_on_private_values(clinic, capsys, monkeypatch, secret):
    """Neighbouring data sets (one client replaced, size and oddities included), given noise: all
    else is identical.

    Once in a simulation, once as a private run whose noise the test has fixed.
    """
    neighbours = {
        "usual": HEADER + "30,f,0.1,no\n70,m,0.9,yes\n65,m,,yes\n",
        "strange": HEADER + "1e30,q,nan,perhaps\n" + "-5,f,,no\n" * 40,
        "ragged": HEADER + "30,f\n30,f,0.1,no,9,9\n",
        "large": HEADER + "30,f,0.1,no\n" * 500,
        "useless": HEADER + "30,f,0.1,perhaps\n",
        "broken": HEADER + '30,"f,0.1,no\n' + "9" * 200_000 + ",f,0.1,no\n",
    }
    if secret:
        monkeypatch.setattr(privacy_noise.os, "urandom", bytes)
    seen = {}
    for name, content in neighbours.items():
        Path("a.csv").write_text(content)
        out = Path("out")
        shutil.rmtree(out, ignore_errors=True)
        flags = (
            "--task csv --data a.csv b.csv --label outcome --bounds bounds.toml --test "
            "test.csv --epsilon 2 --clip 1 --batch 5"
        )
        more = "--iterations 12 --local-steps 3 --out out --json" + (
            "" if secret else " --simulate-noise-seed 1"
        )
        code, stdout, stderr = run_command(capsys, "train", *flags.split(), *more.split())
        document = json.loads(stdout)
        assert json.loads((out / "result.json").read_text()) == document
        released = {key: document.pop(key) for key in ("curve", "test_error")}
        origin = document.pop("origin")
        assert (origin is not None) == secret
        files = sorted(
            (
                path.name,
                re.sub(
                    r"SHA-256 `.*`|Run `.*`, ended .*|(?<=public test records: )\d\.\d{4}",
                    "",
                    path.read_text(),
                )
                if path.suffix in (".md", ".toml")
                else "",
            )
            for path in out.iterdir()
        )
        seen[name] = code, document, stderr, files, released
    usual = seen["usual"]
    assert usual[0] == 0
    assert usual[1]["private"] == secret
    for other in seen.values():
        assert usual[:4] == other[:4]
    assert len({str(other[4]) for other in seen.values()}) > 3, (
        "the data sets must differ where they may"
    )


def test_client_logs_stay_with_the_client(clinic, capsys):
    flags = (
        "train --task csv --data a.csv b.csv --label outcome --bounds bounds.toml --epsilon 2 "
        "--clip 1"
    )
    code, out, err = run_command(capsys, *flags.split(), "--client-log", "own.log")
    assert (code, err) == (0, "")
    assert "cells clipped" not in out
    assert (
        "label missing or not declared); cells clipped or filled: age 0, sex 0, score 1"
        in Path("own.log").read_text()
    )
    assert Path("own.log").stat().st_mode & 0o077 == 0


def test_a_client_log_that_cannot_be_written_stays_silent(clinic, capsys):
    flags = (
        "train --task csv --data a.csv b.csv --label outcome --bounds bounds.toml --epsilon 2 "
        "--clip 1 --json"
    )
    code, _, err = run_command(capsys, *flags.split(), "--client-log", "/dev/full")
    assert (code, err) == (0, "")


def test_readings_of_lemma_1_that_would_need_private_sizes_are_refused(clinic):
    private = {**clinic, "epsilon": 2, "clip": 1, "noise_rule": "lemma1"}
    with pytest.raises(
        InvalidValue,
        match="v=record-style needs the clients' numbers of records, which are private here",
    ):
        train(**private, v="record-style")
    assert train(**private, v="proof").epsilon_spent > 2


def test_where_a_record_is_the_unit_no_record_decides_on_the_number_of_records(clinic):
    """A record without a declared label stays, and teaches nothing: its neighbours change the sum
    by one clip at most."""
    flags = {
        "task": "csv",
        "data": ("a.csv", "b.csv"),
        "label": "outcome",
        "bounds": "bounds.toml",
        "test": ("test.csv",),
    }
    promise = {"unit": "record", "epsilon": 3.0, "clip": 0.5, "iterations": 4}
    Path("a.csv").write_text(HEADER + "30,f,0.1,no\n70,m,0.9,yes\n65,m,,yes\n")
    before = train(**flags, **promise, simulate_noise_seed=0)
    Path("a.csv").write_text(HEADER + "30,f,0.1,no\n70,m,0.9,unheard of\n65,m,,yes\n")
    after = train(**flags, **promise, simulate_noise_seed=0)
    assert before.account == after.account
    assert before.sizes == after.sizes == (3, 2)
    task = csv_task(unit="record")
    assert task.clients.sizes == (3, 2)
    everything = task.clients.clipped_sum(torch.zeros(2, 5, dtype=torch.float64), None, 0.5, 0)
    others = torch.tensor([[True, False, True], [True, True, True]])
    torch.testing.assert_close(
        everything, task.clients.clipped_sum(torch.zeros(2, 5, dtype=torch.float64), others, 0.5, 0)
    )
