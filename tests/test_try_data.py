"""`equipoise data try`: what training makes of a client's own file, told to its owner alone."""

import csv
import gzip
import json
import math
import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import equipoise
from equipoise import DataError, InvalidValue, try_data
from equipoise.tasks import TaskOptions
from equipoise.tasks.csv import code_cells, table_model
from equipoise.tasks.table_file import read_table_file
from problems import HEADER, csv_task, run_command

FLAGS = ("--bounds", "bounds.toml", "--label", "outcome")


def try_one(path="a.csv", **changes):
    (file,) = try_data(path, **{"bounds": "bounds.toml", "label": "outcome", **changes}).files
    return file


def people(rng, number):
    """Rows as they come: numbers beyond the bounds, blanks, words of others, several of a
    person."""
    return [
        {
            "age": rng.choice(["30", "70.5", "120", "-4", "1e3", "", "NA", "old", "72,5"]),
            "sex": rng.choice(["f", "m", "F", "female", "", "x"]),
            "score": rng.choice(["0.1", "-1", "2", "inf", "nan", "true", "?"]),
            "outcome": rng.choice(["no", "yes", "Yes", "NO", "maybe", ""]),
            "patient": rng.choice(["a", "b", "c", " d", ""]),
        }
        for _ in range(number)
    ]


def is_number(text):
    try:
        return not math.isnan(float(text))
    except ValueError:
        return text == "true"


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_a_computation_by_hand(clinic, seed):
    rows = people(np.random.default_rng(seed), 400)
    with Path("a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    tried = try_one(person="patient")
    texts = {name: [row[name] for row in rows] for name in rows[0]}
    blank = ("", "NA", "nan")
    for column in tried.columns[::2]:
        low, high = {"age": (0, 100), "score": (-1, 1)}[column.name]
        cells = texts[column.name]
        numbers = [1.0 if text == "true" else float(text) for text in cells if is_number(text)]
        assert column.filled == sum(not is_number(text) for text in cells)
        words = [text for text in cells if not is_number(text) and text not in blank]
        assert column.unreadable == len(words)
        assert column.most_unreadable == Counter(words)
        assert column.clipped == sum(not low <= value <= high for value in numbers)
        finite = [value for value in numbers if math.isfinite(value)]
        assert (column.smallest, column.largest) == (min(finite), max(finite))
    sex = tried.columns[1]
    assert sex.filled == sum(text not in ("f", "m", "F") for text in texts["sex"])
    others = Counter(text for text in texts["sex"] if text in ("female", "x"))
    assert (sex.unreadable, sex.most_unreadable, sex.clipped) == (others.total(), others, 0)
    classes = Counter(text.lower() for text in texts["outcome"])
    assert tried.classes == {"no": classes["no"], "yes": classes["yes"]}
    assert (tried.rows, tried.kept) == (400, classes["no"] + classes["yes"])
    assert tried.label.filled == classes["maybe"] + classes[""]
    assert tried.label.most_unreadable == {"maybe": classes["maybe"]}
    persons = Counter(text.strip() for text in texts["patient"])
    missing = persons.pop("")
    assert tried.persons.number == 4
    assert tried.persons.median == np.median([*persons.values()])
    assert (tried.persons.largest, tried.persons.missing) == (max(persons.values()), missing)


def test_it_is_read_by_the_code_that_training_reads_with(clinic, client_log):
    """The same records remain, and the same cells are changed as the client's log says."""
    Path("a.csv").write_text(HEADER + "1e9,f,nan,no\n-inf,x,oops,yes\n50,m,7,maybe\n")
    tried = try_one()
    assert client_log == []
    assert csv_task().clients.sizes[0] == tried.kept == 2
    changed = {column.name: column.filled + column.clipped for column in tried.columns}
    assert changed == {"age": 2, "sex": 1, "score": 3}
    assert client_log[0].endswith("age 2, sex 1, score 3")
    assert "1 left out" in client_log[0]


def test_a_label_that_is_a_number_has_a_range_and_a_mean(clinic):
    Path("a.csv").write_text(HEADER + "30,f,0,no\n130,m,0,no\nold,m,0,no\n,m,0,no\n")
    tried = try_one(label="age")
    assert (tried.kept, tried.mean, tried.classes) == (2, 80, {})
    assert (tried.label.smallest, tried.label.largest, tried.label.clipped) == (30, 130, 1)
    assert "label     age: mean 80; there is 30 to 130" in str(
        try_data("a.csv", bounds="bounds.toml", label="age")
    )


FINE = HEADER + "30,f,0.1,no\n70,M,,Yes\n65,m,1,yes\n"


@pytest.mark.parametrize(
    ("content", "code", "sentence"),
    [
        (FINE, 0, "a.csv: fine"),
        (FINE + "130,m,0,no\n", 1, "column age: 1 of 4 cells are beyond 0 to 100, and clipped"),
        (FINE + "x,m,0,no\n", 1, 'column age: 1 of 4 cells are not numbers: "x" 1'),
        (FINE + "30,W,0,no\n", 1, 'column sex: 1 of 4 cells are none of its categories: "W" 1'),
        (FINE + "30,m,0,\n", 1, "1 of 4 rows have no declared label, and are left out"),
        (FINE + "30,m,0,Ja\n", 1, 'outcome: 1 of 4 cells are none of its categories: "Ja" 1'),
        (FINE + "\n", 1, "1 of 4 rows have fewer cells than the header"),
        (FINE + "30,m,0,5,no\n", 1, "1 of 4 rows have more cells than the header, and are cut"),
        (HEADER + "30,f,,no\n40,m,,yes\n", 1, "column score is empty"),
        (HEADER + "30,f,1,no\n40,m,1,no\n", 1, "no row has the label yes"),
        (HEADER + "30,f,1,Ja\n40,m,1,Nein\n", 2, "no row of a.csv has a declared label"),
        (HEADER, 2, "a.csv has a header and no records"),
        (FINE.replace("age", "years"), 2, "it lacks age"),
        (FINE.replace("age", "age,id"), 2, "it also has id: declare it there, or leave it"),
        (FINE.replace("age", "age,age"), 2, "it repeats a column"),
        ("", 2, "data=a.csv is empty"),
    ],
)
def test_an_exit_code_that_a_script_can_use(clinic, capsys, content, code, sentence):
    Path("a.csv").write_text(content)
    before = contents()
    exit_code, out, err = run_command(capsys, "data", "try", "a.csv", *FLAGS)
    assert (exit_code, err) == (code, "")
    assert out.startswith("PRIVATE: ")
    assert sentence in out
    exit_code, out, _ = run_command(capsys, "data", "try", "a.csv", *FLAGS, "--json")
    document = json.loads(out)
    assert exit_code == document["code"] == document["files"][0]["code"] == code
    assert document["notice"].startswith("PRIVATE: ")
    assert contents() == before, "nothing is saved"
    if code == 2 and "no row of" not in sentence:
        with pytest.raises(DataError, match=r"a\.csv"):
            csv_task()


def contents():
    return {path: path.read_bytes() for path in Path.cwd().rglob("*") if path.is_file()}


def test_files_are_tried_each_by_itself(clinic, capsys):
    Path("broken.csv").write_text("a;b\n1;2\n")
    code, out, _ = run_command(capsys, "data", "try", "a.csv", "broken.csv", "none.csv", *FLAGS)
    assert code == 2
    assert "a.csv: fine" in out
    assert "broken.csv: CANNOT BE USED\n  broken.csv does not have the columns" in out
    assert "none.csv: CANNOT BE USED\n  data=none.csv: No such file" in out
    tried = try_data(["a.csv", Path("b.csv")], bounds=Path("bounds.toml"), label="outcome")
    assert (tried.code, [file.rows for file in tried.files]) == (0, [3, 2])
    code, out, _ = run_command(capsys, "data", "try", "a.csv", "b.csv", *FLAGS, "--json")
    assert out.rstrip() == tried.to_json()


def test_a_file_is_opened_once(clinic):
    """So that a pipe will do."""
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_text(FINE), daemon=True)
    writer.start()
    assert try_one("pipe").kept == 3
    writer.join()


def test_columns_that_nobody_spoke_of_are_named_and_read_past(clinic):
    Path("a.csv").write_text(FINE.replace("age", "id,age").replace("\n", "\n7,")[:-2])
    tried = try_one()
    assert (tried.undeclared, tried.code, tried.kept) == (("id",), 2, 3)
    tried = try_one(ignore=["id", "ward"])
    assert (tried.ignored, tried.undeclared, tried.code) == (("id",), (), 0)
    tried = try_one(person="id")
    assert (tried.undeclared, tried.code, tried.persons.largest) == ((), 0, 3)
    assert try_one(person="id", ignore="id").persons.largest == 3
    assert try_one("b.csv", person="id").refused == (
        "person=id is no column of b.csv, which has outcome, score, sex, age"
    )
    assert try_one("b.csv", person="age").persons.number == 2


MISMATCHES = {  # each is read, or told in one sentence
    "0.0 and 1.0": ("[0, 1]", HEADER + "30,f,0,0.0\n40,m,0,1.0\n", ""),
    "0 and 1 for real ones": ("[0.0, 1.0]", HEADER + "30,f,0,0\n40,m,0,1\n", ""),
    "booleans": ("[0, 1]", HEADER + "30,f,0,False\n40,m,0,TRUE\n", ""),
    "numbers for booleans": ("[false, true]", HEADER + "30,f,0,0\n40,m,0,1.0\n", ""),
    "Yes": ('["no", "yes"]', HEADER + "30,f,0,No\n40,m,0,YES\n", ""),
    "semicolons": ('["no", "yes"]', (HEADER + "30,f,0,no\n40,m,0,yes\n").replace(",", ";"), ""),
    "UTF-16": ('["no", "yes"]', (HEADER + "30,f,0,no\n40,m,0,yes\n").encode("utf-16"), ""),
    "gzip": ('["no", "yes"]', gzip.compress((HEADER + "30,f,0,no\n40,m,0,yes\n").encode()), ""),
    "Latin-1": (
        '["nä", "yes"]',
        (HEADER + "30,f,0,NÄ\n40,m,0,yes\n").encode("latin-1"),
        "",
    ),
    "another code page": (
        '["męski", "yes"]',
        (HEADER + "30,f,0,męski\n40,m,0,yes\n").encode("cp1250"),
        '"mêski" 1 (if letters look wrong, save it as UTF-8)',
    ),
    "decimal commas": (
        '["no", "yes"]',
        'age;sex;score;outcome\n30,5;f;0,5;no\n40;m;0,25;yes\n',
        'column score: 2 of 2 cells are not numbers: "0,5" 1, "0,25" 1; 2 would be with decimal '
        'commas: if that is how they are written, say decimal = "," under [score] in bounds.toml',
    ),
    "decimal commas that part cells": (
        '["no", "yes"]',
        HEADER + "30,5,f,0,no\n40,m,0,yes\n",
        "1 of 2 rows have more cells than the header, and are cut: a separator within a cell, such "
        "as a decimal comma, needs quotes around the cell",
    ),
    "thousands": (
        '["no", "yes"]',
        "age;sex;score;outcome\n1.000,5;f;0;no\n40;m;0;yes\n",
        'column age: 1 of 2 cells are not numbers: "1.000,5" 1',
    ),
    "CR alone": ('["no", "yes"]', HEADER.replace("\n", "\r") + "30,f,0,no\r", "end in CR alone"),
    "other words": (
        "[0, 1]",
        HEADER + "30,f,0,Ja\n40,m,0,Nein\n30,f,0,0\n",
        'column outcome: 2 of 3 cells are none of its categories: "Ja" 1, "Nein" 1',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISMATCHES)
def test_what_formats_do_is_said_before_anything_is_spent(clinic, capsys, case):
    labels, content, sentence = MISMATCHES[case]
    bounds = Path("bounds.toml").read_text().replace('["no", "yes"]', labels)
    Path("bounds.toml").write_text(bounds, encoding="utf-8")
    Path("a.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, _ = run_command(capsys, "data", "try", "a.csv", *FLAGS)
    assert (code == 0) == (not sentence)
    assert sentence in out
    if not sentence:
        clients = csv_task(data=("a.csv",)).clients
        assert clients.targets[0, :, 0].tolist() == [0, 1]
    if "decimal = " in sentence:
        declared = bounds.replace("fill = 0.5", 'decimal = ","')
        declared = declared.replace("high = 100", 'high = 100\ndecimal = ","')
        Path("bounds.toml").write_text(declared, encoding="utf-8")
        assert run_command(capsys, "data", "try", "a.csv", *FLAGS)[0] == 0
        rows = csv_task(data=("a.csv",)).clients.features[0] * math.sqrt(3)
        assert rows[:, [0, 3]].tolist() == pytest.approx(np.array([[-0.39, 0.5], [-0.2, 0.25]]))


def test_long_odd_and_many_cells_are_shown_in_short(clinic):
    rows = [f"{name},f,0,no\n" for name in ("\x1b[2J", "y" * 500, *"abcdefg", "a", "a")]
    Path("a.csv").write_text(FINE + "".join(rows))
    column = try_one().columns[0]
    assert column.unreadable == 11
    assert len(column.most_unreadable) == 5
    assert next(iter(column.most_unreadable.items())) == ("a", 3)
    words = str(try_data("a.csv", bounds="bounds.toml", label="outcome"))
    assert all(line.isprintable() for line in words.splitlines())
    assert "yyyy…" in words
    assert ", ..." in words


def test_its_value_is_frozen_and_its_repr_private(clinic):
    Path("a.csv").write_text(FINE + "4711,patient 4711,0,4711\n")
    tried = try_data("a.csv", bounds="bounds.toml", label="outcome", person="age")
    (file,) = tried.files
    assert "4711" in str(tried)
    assert repr(tried) == "Tried(files=1, code=1)"
    model = table_model(TaskOptions(bounds="bounds.toml", label="outcome"))
    read = read_table_file("a.csv", model.names)
    coded = code_cells(read.cells, model)
    for value in (tried, file, file.columns[0], file.persons, read, coded):
        assert "4711" not in repr(value)
        assert "120" not in repr(value)
    with pytest.raises(AttributeError):
        file.rows = 0
    assert equipoise.try_data is try_data


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (FLAGS, "data is empty: give the files to try, before any flag"),
        (("a.csv", *FLAGS[:2], "--label", "result"), "label='result' is not in bounds.toml"),
        (("a.csv", *FLAGS[:2]), "task=csv needs label, the column to predict"),
        (("a.csv", *FLAGS, "--task", "libsvm"), "label and ignore with task=libsvm"),
        (("a.csv", *FLAGS, "--task", "digits"), "task=digits: tables (csv) and LIBSVM texts"),
        (("a.csv", *FLAGS[2:]), "--bounds needs a value"),
        (("a.csv", *FLAGS[2:], "--bounds", "b.toml"), "bounds=b.toml: No such file"),
        (("a.csv", *FLAGS, "--ignore", "sex"), "ignore=sex is declared in bounds.toml"),
        (("a.csv", *FLAGS, "--person", "outcome"), "person=outcome is the label"),
        (("a.csv", *FLAGS, "--persons", "id"), "unknown option --persons"),
    ],
)
def test_mistakes_are_one_sentence(clinic, capsys, arguments, sentence):
    code, out, err = run_command(capsys, "data", "try", *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_mistakes_in_python(clinic):
    with pytest.raises(InvalidValue, match="data is empty"):
        try_data([], bounds="bounds.toml", label="outcome")


def test_a_client_of_which_nothing_is_left_takes_part_and_its_log_says_so(clinic, client_log):
    """Towards the others it is silent."""
    Path("a.csv").write_text(HEADER + "30,f,0,Ja\n40,m,0,Nein\n")
    for unit in ("client", "record"):
        equipoise.train(
            **{**clinic, "epsilon": 2, "clip": 1, "iterations": 2, "unit": unit, "seed": 0}
        )
    assert sum("a.csv: NO RECORD IS LEFT" in said for said in client_log) == 2
    assert not any("b.csv: NO RECORD" in said for said in client_log)
