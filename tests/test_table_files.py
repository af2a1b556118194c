"""The forms in which programs write tables: each is read, or refused in one sentence, by what is
public alone. No row decides how another is read."""

import gzip
import io
import json
import math
import re
import shutil
import zipfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equipoise
from equipoise import DataError, InvalidValue, Settings, try_data
from equipoise.tasks import TaskOptions, load_task, table_file
from equipoise.tasks.bounds import Column, parse_bounds
from equipoise.tasks.table_file import read_header, read_table_file
from problems import csv_task, run_command

PLACES = """
["Größe"]
low = 0
high = 200
[Ort]
categories = ["Köln", "Łódź €", "Rom"]
[krank]
categories = ["nein", "ja"]
"""
NAMES = ["Größe", "Ort", "krank"]
WESTERN = 'Größe,Ort,krank\n170.5,Köln,ja\n180,Rom,nein\n,"Köln",ja\n'


def with_(separator):
    return WESTERN.replace(",", separator)


FORMS = {
    "commas": WESTERN.encode(),
    "semicolons": with_(";").encode(),
    "tabs": with_("\t").encode(),
    "a mark": WESTERN.encode("utf-8-sig"),
    "CR LF": WESTERN.replace("\n", "\r\n").encode(),
    "no last line break": WESTERN.removesuffix("\n").encode(),
    "Latin-1": with_(";").encode("latin-1"),
    "Windows": WESTERN.replace("\n", "\r\n").encode("cp1252"),
    "UTF-16": WESTERN.encode("utf-16"),
    "UTF-16, other end first": b"\xfe\xff" + with_("\t").encode("utf-16-be"),
    "UTF-16 of a spreadsheet": with_("\t").replace("\n", "\r\n").encode("utf-16"),
    "UTF-16, half a character at its end": WESTERN.encode("utf-16") + b"\0",
    "gzip": gzip.compress(WESTERN.encode()),
    "gzip of Latin-1": gzip.compress(with_(";").encode("latin-1")),
    "gzip of UTF-16": gzip.compress(WESTERN.encode("utf-16")),
}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A folder with bounds.toml, and the records that every form of the table has."""
    monkeypatch.chdir(tmp_path)
    Path("bounds.toml").write_text(PLACES, encoding="utf-8")
    return {"data": ("a.csv",), "label": "krank", "bounds": "bounds.toml", "unit": "record"}


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.txt"])
@pytest.mark.parametrize("form", FORMS)
def test_the_forms_that_programs_write_say_the_same(places, form, name):
    """Whatever the file is called."""
    Path(name).write_bytes(FORMS[form])
    clients = csv_task(**{**places, "data": (name,)}).clients
    root = math.sqrt(2)
    expected = [[0.705, 1, 0, 0, root], [0.8, 0, 0, 1, root], [0, 1, 0, 0, root]]
    np.testing.assert_allclose(clients.features[0].numpy() * root, expected, atol=1e-15)
    assert clients.targets[0, :, 0].tolist() == [1, 0, 1]
    assert read_header(name) == NAMES


REFUSED = {
    "UTF-16 without a mark": (WESTERN.encode("utf-16-le"), "UTF-16 without a byte order mark"),
    "UTF-32": (WESTERN.encode("utf-32"), "UTF-16 without a byte order mark"),
    "CR alone": (WESTERN.replace("\n", "\r").encode(), "its lines end in CR alone"),
    "CR in UTF-16": (WESTERN.replace("\n", "\r").encode("utf-16"), "its lines end in CR alone"),
    "half a gzip file": (gzip.compress(WESTERN.encode() * 99)[:-20], "it is damaged and cannot"),
    "no gzip file": (b"\x1f\x8b" + WESTERN.encode(), "it is damaged and cannot"),
    "nothing": (b"", "a.csv is empty"),
    "nothing in UTF-16": (b"\xff\xfe", "a.csv is empty"),
    "nothing in gzip": (gzip.compress(b""), "a.csv is empty"),
    "a header": ("Größe;Ort;krank\n".encode(), "a header and no records"),
    "another separator": (with_("|").encode(), "it lacks Größe, Ort, krank"),
    "no header": (WESTERN.partition("\n")[2].encode(), "it lacks Größe, Ort, krank"),
}


def spreadsheet():
    """As far as a reader of CSV gets in one."""
    with zipfile.ZipFile(content := io.BytesIO(), "w") as archive:
        archive.writestr("[Content_Types].xml", WESTERN * 20)
    return content.getvalue()


@pytest.mark.parametrize("form", [*REFUSED, "a spreadsheet"])
def test_other_forms_are_refused_in_one_sentence_without_a_record(places, form):
    content, sentence = REFUSED.get(form) or (spreadsheet(), "UTF-16 without a byte order mark")
    Path("a.csv").write_bytes(content)
    with pytest.raises(DataError, match=re.escape(sentence)) as caught:
        csv_task(**places)
    refusal = str(caught.value)
    assert not any(word in refusal for word in ("170", "Köln", "ja", "\n"))
    (tried,) = try_data("a.csv", bounds="bounds.toml", label="krank").files
    assert (tried.refused, tried.code, tried.rows) == (refusal, 2, 0)


ENCODINGS = {"UTF-8": "utf-8", "Latin-1": "cp1252", "gzip": "utf-8", "UTF-16": "utf-16-le"}


def in_form(form, rows):
    """A file in a form, with these rows, each as bytes of that form."""
    encoding = ENCODINGS[form]
    header, end = "\t".join(NAMES).encode(encoding), "\n".encode(encoding)
    content = end.join([header, *rows]) + end
    content = b"\xff\xfe" + content if form == "UTF-16" else content
    return gzip.compress(content) if form == "gzip" else content


def usual_rows(form):
    rows = ("170\tKöln\tja", "180,5\tRom\tnein", '"175"\t"Köln"\tja', "\tRom\tnein")
    return [row.encode(ENCODINGS[form]) for row in rows]


def lines_of(form):
    """Any line of a form: bytes without a line break; in UTF-16 whole units."""
    many = [mark * 99 for mark in (",", ";", "\t", '"', "1,5;", "ß")]
    plain = st.sampled_from([text.encode(ENCODINGS[form]) for text in many])
    if form != "UTF-16":
        return plain | st.binary(max_size=40).map(lambda line: line.replace(b"\n", b""))
    units = st.integers(0, 2**16 - 1).filter(lambda unit: unit != 10)
    special = st.sampled_from([0xD800, 0xDC00, 0x0A00, 0x0D, 0x09, 0x22, 0x2C, 0])
    return plain | st.lists(units | special, max_size=20).map(
        lambda line: b"".join(unit.to_bytes(2, "little") for unit in line)
    )


@pytest.mark.parametrize("form", ENCODINGS)
@given(data=st.data())
def test_no_row_decides_how_another_is_read(tmp_path_factory, form, data):
    """Nor how many there are: any two data sets that differ in one row."""
    path = tmp_path_factory.mktemp("rows") / "a.csv"
    rows = usual_rows(form)
    place = data.draw(st.integers(0, len(rows) - 1))
    read, columns = [], parse_bounds(PLACES, "bounds")
    for row in (rows[place], data.draw(lines_of(form))):
        path.write_bytes(in_form(form, [*rows[:place], row, *rows[place + 1 :]]))
        cells = read_table_file(str(path), NAMES).cells
        assert [len(cells[name]) for name in NAMES] == [len(rows)] * 3
        numbers = [columns[name].code(cells[name])[0] for name in NAMES]
        read.append(np.delete(np.hstack(numbers), place, axis=0))
    np.testing.assert_array_equal(*read)


TEN = [  # cells, and what the number 1.5, the category `1` and the category `true` make of them
    ("1.5", 1.5, -1, -1),
    ("1,5", math.nan, -1, -1),
    ("1", 1, 0, 0),
    ("1.0", 1, 0, 0),
    ("1.", 1, 0, 0),
    ("true", 1, 0, 0),
    ("True", 1, 0, 0),
    (" TRUE ", 1, 0, 0),
    ("0", 0, 1, 1),
    ("0.0", 0, 1, 1),
    ("-0.0", 0, 1, 1),
    ("False", 0, 1, 1),
    ("FALSE", 0, 1, 1),
    ("t", math.nan, -1, -1),
    ("yes", math.nan, -1, -1),
    ("", math.nan, -1, -1),
]


@pytest.mark.parametrize(("cell", "number", "whole", "truth"), TEN)
def test_numbers_and_booleans_match_in_every_direction(cell, number, whole, truth):
    columns = parse_bounds(
        "[n]\nlow = -1\nhigh = 2\n[w]\ncategories = [1, 0]\n[r]\ncategories = [1.0, 0.0]\n"
        "[b]\ncategories = [true, false]\n[t]\ncategories = ['TRUE', 'FALSE']\n",
        "bounds",
    )
    np.testing.assert_equal(columns["n"].numbers([cell]), [number])
    assert [columns[name].index([cell])[0] for name in "wr"] == [whole, whole]
    assert [columns[name].index([cell])[0] for name in "bt"] == [truth, truth]


def test_letters_small_or_capital_match_where_one_category_has_them():
    index = Column("c", categories=("Yes", "NO", "Straße")).index
    assert index(["yes", "YES", " No", "STRASSE", "y", "maybe"]).tolist() == [0, 0, 1, 2, -1, -1]
    index = Column("c", categories=("ca", "CA", "no")).index
    assert index(["ca", "CA", "Ca", "NO"]).tolist() == [0, 1, -1, 2]


def test_a_declared_decimal_comma_is_read_beside_points():
    columns = parse_bounds(
        '[n]\nlow = 0\nhigh = 9\ndecimal = ","\n[c]\ncategories = [1.5, 2]\ndecimal = ","\n', "b"
    )
    cells = ["1,5", "1.5", "2,0", "1.234,5", "1,234,5", ",5", "x"]
    expected = [1.5, 1.5, 2, math.nan, math.nan, 0.5, math.nan]
    np.testing.assert_equal(columns["n"].numbers(cells), expected)
    assert columns["c"].index(cells).tolist() == [0, 0, 1, -1, -1, -1, -1]
    for wrong in ('";"', '""', "1", "[1]"):
        with pytest.raises(DataError, match=re.escape('is neither "." nor ","')):
            parse_bounds(f"[n]\nlow = 0\nhigh = 9\ndecimal = {wrong}\n", "b")


def test_what_parquet_holds_is_what_a_csv_file_would_say(places):
    """Coded texts, bytes, decimals, booleans, whole numbers with gaps, small floats."""
    import pyarrow as pa
    import pyarrow.parquet

    Path("bounds.toml").write_text(PLACES + "[flag]\nlow = 0\nhigh = 1\n", encoding="utf-8")
    towns, truth = ["Köln", "Rom", None], [True, False, None]
    decimals = pa.array([Decimal("170.50"), Decimal("180.00"), None], pa.decimal128(10, 2))
    whole = pa.array([1, 0, None], pa.int8())
    variants = [
        (decimals, pa.array(towns).dictionary_encode(), truth, ["ja", "nein", "ja"]),
        (pa.array([170.5, 180, None], pa.float32()), pa.array(towns), whole, ["JA", "Nein", "ja"]),
        (
            pa.array(["170.5", "180", ""]),
            pa.array([town and town.encode() for town in towns], pa.binary()),
            pa.array([1.0, 0.0, math.nan]),
            pa.array([b"ja", b"nein", b"ja"], pa.binary()),
        ),
    ]
    read = []
    for columns in variants:
        table = pa.table(dict(zip(["Größe", "Ort", "flag", "krank"], columns, strict=True)))
        pyarrow.parquet.write_table(table, "a.parquet")
        read.append(csv_task(**{**places, "data": ("a.parquet",)}).clients)
    assert read_header("a.parquet") == ["Größe", "Ort", "flag", "krank"]
    for clients in read:
        assert torch.equal(clients.features, read[0].features)
        assert clients.targets[0, :, 0].tolist() == [1, 0, 1]
    assert (read[0].features[0, 0] * math.sqrt(3)).tolist() == pytest.approx(
        [0.705, 1, 0, 0, 1, math.sqrt(3)]
    )


def test_dates_and_nested_cells_are_missing_numbers(places, client_log):
    import pyarrow as pa
    import pyarrow.parquet

    odd = pa.array([19_000, 1, None], pa.date32())
    table = pa.table({"Größe": odd, "Ort": [["Rom"]] * 3, "krank": ["ja", "nein", "ja"]})
    pyarrow.parquet.write_table(table, "a.parquet")
    clients = csv_task(**{**places, "data": ("a.parquet",)}).clients
    assert not clients.features[0, :, :4].any()
    (tried,) = try_data("a.parquet", bounds="bounds.toml", label="krank").files
    assert [column.filled for column in tried.columns] == [3, 3]
    assert tried.columns[0].most_unreadable == {"2022-01-08": 1, "1970-01-02": 1}


def test_others_are_read_where_all_are_wanted(places):
    Path("a.csv").write_bytes(b"x;krank;" + FORMS["semicolons"].replace(b"krank", b"y"))
    file = read_table_file("a.csv", ["Ort"], ignore=None)
    assert file.header == [*file.cells] == ["x", "krank", "Größe", "Ort", "y"]
    assert file.cells["x"] == ["170.5", "180", ""]
    assert (file.short, file.long) == (3, 0)
    assert [*read_table_file("a.csv", ["y", "x"], ["Ort", "Größe", "krank"]).cells] == ["y", "x"]


# --- columns that are left aside


NAMED = "id,age,sex,score,outcome,name\n1,30,f,0.1,no,x\n2,70,m,0.9,yes,y\n3,65,m,,yes,z\n"


def test_columns_to_ignore_change_nothing(clinic, capsys):
    """Files may have them or not; the saved run reads others alike."""
    usual = csv_task(test=("test.csv",))
    Path("a.csv").write_text(NAMED)
    words = r"it also has id, name: declare them there, .* \(--ignore id name\)"
    with pytest.raises(DataError, match=words):
        csv_task()
    task = csv_task(test=("test.csv",), ignore=("id", "name", "ward"))
    assert torch.equal(task.clients.features, usual.clients.features)
    assert task.fingerprint == usual.fingerprint
    given = {**clinic, "ignore": ["id", "name"], "simulate_noise_seed": 0, "iterations": 2}
    result = equipoise.train(**given)
    equipoise.save(result, "run")
    assert "--ignore id name" in result.run.command
    assert equipoise.load("run").reading == result.reading
    assert equipoise.evaluate("run", "a.csv").error == equipoise.evaluate("run", "test.csv").error
    flags = "--data a.csv b.csv --label outcome --bounds bounds.toml --epsilon inf --iterations 2"
    words = f"train --task csv {flags} --simulate-noise-seed 0 --json --ignore id name"
    code, out, _ = run_command(capsys, *words.split())
    assert code == 0
    assert json.loads(out)["reading"]["ignore"] == ["id", "name"]
    Path("run.toml").write_text(
        'task = "csv"\ndata = ["a.csv", "b.csv"]\nlabel = "outcome"\nbounds = "bounds.toml"\n'
        'epsilon = inf\niterations = 2\nsimulate_noise_seed = 0\nignore = ["id", "name"]\n'
    )
    assert equipoise.train(config="run.toml").x.tolist() == result.x.tolist()
    code, out, _ = run_command(capsys, "train", "--config", "run.toml", "--json")
    assert (code, json.loads(out)["run"]["ignore"]) == (0, ["id", "name"])


@pytest.mark.slow
def test_a_plan_keeps_what_is_ignored(clinic):
    asked = {**clinic, "epsilon": 3, "ignore": ["id", "name"], "clip": 1, "synthetic": True}
    made = equipoise.plan(**asked, iterations=2, algorithm="dp-fedavg")
    assert made.settings.ignore == ("id", "name")


def test_a_sweep_takes_what_is_ignored_as_one_value(clinic):
    from equipoise.sweeps.grid import grid

    document = {**clinic, "ignore": ["id", "name"], "seeds": [0], "iterations": 2}
    (cell,) = grid(document).cells
    assert cell[0].ignore == ("id", "name")


def test_a_column_without_a_name_can_be_ignored(clinic, capsys):
    """As many programs write the number of a row."""
    Path("a.csv").write_text(NAMED.replace("id,", ",").replace(",name", ",a b"))
    words = "--data a.csv b.csv --label outcome --bounds bounds.toml --epsilon inf --iterations 1"
    ignored = ["--ignore", "", "a b"]
    code, _, err = run_command(capsys, "train", "--task", "csv", *words.split(), *ignored)
    assert (code, err) == (0, "")


def test_what_cannot_be_ignored(clinic):
    with pytest.raises(DataError, match=r"ignore=age is declared in bounds\.toml: take it out"):
        csv_task(ignore=("age",))
    with pytest.raises(InvalidValue, match="ignore with task=digits: only task csv reads columns"):
        load_task("digits", TaskOptions(ignore=("id",)))
    with pytest.raises(InvalidValue, match="ignore"):
        Settings.of(task="csv", epsilon=1, clip=1, ignore=3)


# --- names from a header


def test_a_template_takes_its_names_from_a_header(places, capsys, monkeypatch):
    """And reads nothing else: not one line more is split into cells."""
    split, row = [], table_file._row
    monkeypatch.setattr(table_file, "_row", lambda *given: split.append(given[0]) or row(*given))
    for content in FORMS.values():
        Path("a.csv").write_bytes(content)
        code, out, err = run_command(capsys, "data", "bounds", "--from", "a.csv")
        assert code == 0
        assert [*re.findall(r"^\[(.*)\]$", out, re.MULTILINE)] == ['"Größe"', "Ort", "krank"]
        assert "Köln" not in out + err
    assert {line.strip() for line in split} <= {with_(mark).split("\n")[0] for mark in ",;\t"}
    whole = gzip.compress(WESTERN.encode() + np.random.default_rng(0).bytes(10**6))
    Path("a.csv").write_bytes(whole[: len(whole) // 2])
    assert run_command(capsys, "data", "bounds", "--from", "a.csv")[0] == 0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("30,f,0.1,no\n", "its first line holds numbers, as a record does: give it a header"),
        ("a,b,a\n1,2,3\n", "from=a.csv: its header repeats a name"),
        ("\n1\n", "data=a.csv is empty, or its first line is"),
    ],
)
def test_a_header_that_is_none_gives_no_template(places, capsys, content, sentence):
    Path("a.csv").write_text(content)
    code, out, err = run_command(capsys, "data", "bounds", "--from", "a.csv")
    assert (code, out) == (2, "")
    assert sentence in err
    assert "0.1" not in err


@pytest.mark.parametrize("flags", [[], ["--from", "a.csv", "--columns", "a", "b"]])
def test_a_template_has_its_names_from_one_place(places, capsys, flags):
    code, _, err = run_command(capsys, "data", "bounds", *flags)
    assert code == 2
    assert "columns and from: name the columns" in err


# --- neighbouring data sets


SHAPES = {
    "semicolons and Latin-1": (";", "latin-1", bytes),
    "tabs and UTF-16": ("\t", "utf-16", bytes),
    "gzip": (",", "utf-8", gzip.compress),
}
NEIGHBOURS = {
    "usual": "id7,170.5,Köln,ja",
    "other letters": "idß,170,5,KÖLN,JA",
    "nothing": "",
    "a separator more": "id7,17,Rom,nein,9,9,9",
    "an open quote": '"id7,20,Köln,ja',
    "numbers": "1,2,3,4",
    "another": "id9,200.0,Rom,NEIN",
    "no category": "id7,nan,Zürich,vielleicht",
    "long": "id7," + "9" * 20_000 + ",Köln,ja",
}


@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_row_changes_nothing_but_the_releases(places, capsys, monkeypatch, shape, unit):
    """In every form: exit code, output, names and sizes of files are those of the neighbour."""
    separator, encoding, pack = SHAPES[shape]
    Path("bounds.toml").write_text(PLACES.replace("200\n", '200\ndecimal = ","\n'), "utf-8")

    def write(path, *rows):
        lines = ["id,Größe,Ort,krank", "id1,180,Rom,nein", *rows, "id2,160,Köln,ja", ""]
        text = "\n".join(lines).replace(",", separator)
        Path(path).write_bytes(pack(text.encode(encoding, errors="replace")))

    write("b.csv")
    flags = (
        "train --task csv --data a.csv b.csv --label krank --bounds bounds.toml --ignore id "
        f"--unit {unit} --epsilon 2 --clip 1 --iterations 4 --out out --json"
    )
    seen = {}
    for name, row in NEIGHBOURS.items():
        write("a.csv", row)
        shutil.rmtree("out", ignore_errors=True)
        code, out, err = run_command(capsys, *flags.split(), "--simulate-noise-seed", "1")
        model = json.loads(out)
        released = {key: model.pop(key) for key in ("curve", "test_error")}
        kept = {path.name: path.stat().st_size for path in sorted(Path("out").iterdir())}
        weights = equipoise.load("out").x
        seen[name] = (code, model, err, kept), weights.tobytes(), released
    assert seen["usual"][0][0] == 0
    assert all(other[0] == seen["usual"][0] for other in seen.values())
    assert len({other[1] for other in seen.values()}) > 3, "they must differ where they may"
