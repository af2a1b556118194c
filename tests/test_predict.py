"""Predictions: what a saved model says of new records equals a computation by hand from the bounds
file, whatever a record holds; and the torch module says the same."""

import csv
import io
import json
import math
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import equipoise
from equipoise import DataError, InvalidValue
from equipoise.prediction import predictions
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.csv import TableReader
from problems import HEADER, TASK_FILE, blobs, run_command

LABELS = {
    "two classes": '[outcome]\ncategories = ["no", "yes"]',
    "three classes": '[outcome]\ncategories = ["no", "perhaps", "yes"]',
    "a number": "[outcome]\nlow = -50\nhigh = 150",
}
COLUMNS = """
[age]
low = 18
high = 100

[dose]
low = -2.5
high = 7
fill = 0.25

[ward]
categories = ["surgery", "medicine", "3"]

[smoker]
categories = ["no", "yes"]
fill = "yes"

"""
ODD = {
    "age": ["", "17", "1e9", "-inf", "nan", "old", " 44 ", "44.50", '"61"'],
    "dose": ["", "-2.5", "7.0001", "NaN", "x", "1e-3"],
    "ward": ["", "3", "3.0", "ICU", "Surgery", " medicine "],
    "smoker": ["", "Yes", "no ", "1"],
}


def train_table(bounds, answers, seed=0):
    """A run of two clients in the folder `run`; noise-free, so that its weights are far from 0."""
    Path("bounds.toml").write_text(bounds)
    rng = np.random.default_rng(seed)
    for name in ("a.csv", "b.csv"):
        rows = [
            f"{rng.integers(18, 100)},{rng.uniform(-2, 7):.2f},"
            f"{rng.choice(['surgery', 'medicine'])},{rng.choice(['no', 'yes'])},"
            f"{rng.choice(answers)}"
            for _ in range(40)
        ]
        Path(name).write_text("age,dose,ward,smoker,outcome\n" + "\n".join(rows) + "\n")
    result = equipoise.train(
        task="csv",
        data=("a.csv", "b.csv"),
        label="outcome",
        bounds="bounds.toml",
        epsilon=math.inf,
        iterations=40,
    )
    equipoise.save(result, "run")
    for gone in ("a.csv", "b.csv", "bounds.toml"):
        Path(gone).unlink()
    return result


def new_rows(number, seed):
    """Rows to predict, a third of whose cells are odd, with an identifier and a visit."""
    rng = np.random.default_rng(seed)
    ordinary = {
        "age": lambda: f"{rng.uniform(18, 100):.3f}",
        "dose": lambda: repr(float(rng.uniform(-2.5, 7))),
        "ward": lambda: str(rng.choice(["surgery", "medicine", "3"])),
        "smoker": lambda: str(rng.choice(["no", "yes"])),
    }
    rows = []
    for i in range(number):
        row = {"patient": f"P{number - i:05}", "visit": f'"{i}, again"'}
        for name, cell in ordinary.items():
            row[name] = str(rng.choice(ODD[name])) if rng.random() < 1 / 3 else cell()
        rows.append(row)
    return rows


def write_rows(path, rows, names=None):
    names = names or list(rows[0])
    lines = [",".join(names), *(",".join(row[name] for name in names) for row in rows)]
    Path(path).write_text("\n".join(lines) + "\n")


# ---- by hand: nothing of the product but the files of the folder ----


def as_number(cell):
    try:
        return float(cell)
    except ValueError:
        return math.nan


def by_hand(folder, path, label):
    """Probabilities or values of a file, from bounds.toml and model.safetensors."""
    bounds = tomllib.loads(Path(folder, "bounds.toml").read_text())
    weight = load_file(Path(folder, "model.safetensors"))["weight"].tolist()
    target = bounds.pop(label)
    answers = []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            inputs = []
            for name, column in bounds.items():
                cell = row[name].strip()
                if "categories" in column:
                    names = [str(category) for category in column["categories"]]
                    if cell not in names:
                        alike = [each for each in names if each.lower() == cell.lower()]
                        alike += [each for each in names if as_number(each) == as_number(cell)]
                        cell = alike[0] if alike else column.get("fill")
                    inputs += [1.0 if cell == category else 0.0 for category in names]
                else:
                    low, high = column["low"], column["high"]
                    value = as_number(cell)
                    if math.isnan(value):
                        value = column.get("fill", (low + high) / 2)
                    value = min(max(value, low), high)
                    inputs.append((value - (low + high) / 2) / ((high - low) / 2))
            inputs = [each / math.sqrt(len(bounds)) for each in inputs] + [1.0]
            outputs = [sum(w * a for w, a in zip(line, inputs, strict=True)) for line in weight]
            if "low" in target:
                middle, half = target["low"] + target["high"], target["high"] - target["low"]
                answers.append([middle / 2 + half / 2 * outputs[0]])
            elif len(target["categories"]) == 2:
                yes = 1 / (1 + math.exp(-outputs[0]))
                answers.append([1 - yes, yes])
            else:
                powers = [math.exp(output) for output in outputs]
                answers.append([power / sum(powers) for power in powers])
    return np.array(answers)


@pytest.mark.parametrize("kind", LABELS)
def test_predictions_equal_a_computation_by_hand_on_1000_rows(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    target = tomllib.loads(LABELS[kind])["outcome"]
    train_table(COLUMNS + LABELS[kind], target.get("categories", range(-50, 150)))
    rows = new_rows(1000, seed=1)
    write_rows("new.csv", rows)
    code, out, err = run_command(capsys, "predict", "run", "new.csv")
    assert code == 0, err
    made = list(csv.DictReader(io.StringIO(out)))
    expected = by_hand("run", "new.csv", "outcome")
    names = [f"P(outcome={name})" for name in target.get("categories", ())]
    names = names or ["predicted outcome"]
    assert list(made[0]) == ["patient", "visit", *names]
    assert len(made) == 1000
    values = np.array([[float(row[name]) for name in names] for row in made])
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    assert len({tuple(row) for row in values.round(9)}) > 900, "rows must differ"
    assert [row["patient"] for row in made] == [row["patient"] for row in rows]
    assert [row["visit"] for row in made] == [row["visit"].strip('"') for row in rows]
    if names == ["predicted outcome"]:
        assert np.ptp(values) > 1
        return
    np.testing.assert_allclose(values.sum(1), 1)


# ---- sources, identifiers, summaries ----


@pytest.fixture
def run(clinic):
    """A folder `run` of task csv, and a file new.csv of three records without labels."""
    result = equipoise.train(**clinic, iterations=8)
    equipoise.save(result, "run")
    Path("new.csv").write_text("name,score,age,sex\nBea,0.5,80,f\nAbe,,20,m\nCid,9,x,q\n")
    return result


def probabilities(text):
    return [float(row["P(outcome=yes)"]) for row in csv.DictReader(io.StringIO(text))]


def test_all_sources_say_the_same(run):
    frame = pandas.read_csv("new.csv", index_col="name")
    frame.reset_index().to_parquet("new.parquet")
    expected = run.predict("new.csv")
    assert expected.shape == (3, 2)
    loaded = equipoise.load("run")
    columns = {name: frame[name].tolist() for name in frame}
    arrays = {name: frame[name].to_numpy() for name in frame}
    for source in ("new.csv", Path("new.csv"), "new.parquet", columns, arrays):
        assert np.array_equal(loaded.predict(source), expected)
    predicted = loaded.predict(frame)
    assert list(predicted.index) == ["Bea", "Abe", "Cid"]
    assert list(predicted.columns) == ["P(outcome=no)", "P(outcome=yes)"]
    assert np.array_equal(predicted.to_numpy(), expected)
    odd = frame.astype(object).assign(age=[80, pandas.NA, None], sex=["f", "m", float("nan")])
    assert np.array_equal(loaded.predict(odd).to_numpy()[0], expected[0])
    assert loaded.predict(frame.iloc[:0]).shape == (0, 2)
    made = predictions(loaded, frame)
    assert made.changed == {"age": 1, "sex": 1, "score": 2}
    assert "name" not in made.kept, "an index is the caller's own"


def test_a_label_is_not_looked_at(run):
    expected = run.predict("new.csv")
    for labels in (["yes", "no", "maybe"], ["no", "yes", ""]):
        lines = Path("new.csv").read_text().splitlines()
        added = [f"{line},{label}" for line, label in zip(lines[1:], labels, strict=True)]
        Path("with.csv").write_text("\n".join([lines[0] + ",outcome", *added]) + "\n")
        assert np.array_equal(run.predict("with.csv"), expected)


def test_identifiers(run, capsys):
    Path("new.csv").write_text(
        '"name","visit",score,age,sex,outcome\n"Bea, B.",1,0.5,80,f,no\nAbe,"2 ""x""",,20,m,no\n'
    )
    rows = list(csv.reader(io.StringIO(run_command(capsys, "predict", "run", "new.csv")[1])))
    assert [row[:2] for row in rows] == [["name", "visit"], ["Bea, B.", "1"], ["Abe", '2 "x"']]
    assert rows[0][2:] == ["P(outcome=no)", "P(outcome=yes)"], "a label is declared: not carried"
    words = "predict run new.csv --keep outcome visit"
    kept = list(csv.reader(io.StringIO(run_command(capsys, *words.split())[1])))
    assert [row[:2] for row in kept] == [["outcome", "visit"], ["no", "1"], ["no", '2 "x"']]
    Path("bare.csv").write_text("score,age,sex\n0.5,80,f\n,20,m\n")
    bare = list(csv.reader(io.StringIO(run_command(capsys, "predict", "run", "bare.csv")[1])))
    assert [row[0] for row in bare] == ["row", "1", "2"]
    assert [row[-1] for row in bare[1:]] == [row[-1] for row in rows[1:]]


def test_the_summary_counts_what_was_filled_or_clipped(run, capsys):
    code, out, err = run_command(capsys, "predict", "run", "new.csv", "--out", "out.csv")
    assert (code, out) == (0, "")
    assert err == (
        "3 rows; cells clipped or filled as in training: age 1, sex 1, score 2; predictions in "
        "out.csv\n"
    )
    code, out, err = run_command(capsys, "predict", "run", "new.csv")
    assert Path("out.csv").read_text() == out
    document = json.loads(run_command(capsys, "predict", "run", "new.csv", "--json")[1])
    assert document["rows"] == 3
    assert document["changed"] == {"age": 1, "sex": 1, "score": 2}
    assert document["predictions"]["name"] == ["Bea", "Abe", "Cid"]
    assert document["predictions"]["P(outcome=yes)"] == probabilities(out)
    words = "predict run new.csv --json --out again.csv"
    document = json.loads(run_command(capsys, *words.split())[1])
    assert (document["out"], document["predictions"]) == ("again.csv", None)


ODD_LINES = {
    "open quote": b'Xx,"0.5,80,f',
    "carriage return": b"Xx,0.5,80,f\r",
    "NUL": b"Xx,\x00,80,f",
    "foreign bytes": b"\xff\xfe,0.5,80,f\xe2",
    "nothing": b"",
    "too few": b"Xx",
    "too many": b"Xx,0.5,80,f" + b",9" * 2000,
    "long": b"Xx,0.5," + b"9" * 200_000 + b",f",
    "not finite": b"Xx,nan,-inf,f",
}


@pytest.mark.parametrize("odd", ODD_LINES)
def test_a_line_is_a_record_and_changes_no_other(run, capsys, odd):
    """However odd it is, it gets a prediction, and the others keep theirs and their places."""
    first, *rest = Path("new.csv").read_bytes().splitlines()
    usual = probabilities(run_command(capsys, "predict", "run", "new.csv")[1])
    Path("new.csv").write_bytes(b"\n".join([first, rest[0], ODD_LINES[odd], *rest[1:]]) + b"\n")
    code, out, err = run_command(capsys, "predict", "run", "new.csv")
    assert code == 0
    among = probabilities(out)
    assert [among[0], *among[2:]] == usual
    assert 0 < among[1] < 1
    cells = ODD_LINES[odd].count(b",") + 1
    ragged = odd == "open quote" or cells != 4
    assert ("rows with too few or too many cells, or unreadable: 1" in err) == ragged


def test_what_cannot_be_predicted_is_one_sentence(run, capsys):
    Path("lacks.csv").write_text("name,sex\nBea,f\n")
    Path("twice.csv").write_text("age,age,sex,score\n1,2,f,0\n")
    Path("empty.csv").write_text("")
    Path("again.csv").write_text("age,sex,score,P(outcome=no)\n1,f,0,0.5\n")
    for words, sentence in {
        "run lacks.csv": "lacks.csv lacks columns that the model needs: age, score",
        "run twice.csv": "twice.csv repeats a column: age",
        "run empty.csv": "data=empty.csv is empty",
        "run none.csv": "data=none.csv: No such file or directory",
        "run new.csv --keep nmae": "keep=nmae: new.csv has no such column",
        "run again.csv": "again.csv has a column P(outcome=no), which is what a prediction is",
        "run new.csv --out new.txt": "out=new.txt: predictions are written as CSV; give the name",
        "run new.csv --out new.csv": "out=new.csv is the file that is read: choose another name",
        "run new.csv --out no/p.csv": "out=no/p.csv cannot be written: No such file or directory",
        "none new.csv": "none holds no finished run: result.json is missing",
    }.items():
        code, out, err = run_command(capsys, "predict", *words.split())
        assert (code, out) == (2, ""), words
        assert err.startswith(f"error: {sentence}"), err
        assert len(err.splitlines()) == 1
    with pytest.raises(InvalidValue, match="data is a list: give a path, a pandas frame, or a"):
        run.predict([1, 2])
    with pytest.raises(DataError, match="the table lacks columns that the model needs: score"):
        run.predict({"age": [1], "sex": ["f"]})
    with pytest.raises(DataError, match="the table has columns of different lengths"):
        run.predict({"age": [1, 2], "sex": ["f"], "score": [0]})
    assert run_command(capsys, "predict", "run", "again.csv", "--keep", "age")[0] == 0


def test_a_file_without_rows_gives_a_heading(run, capsys):
    Path("new.csv").write_text("name,score,age,sex\n")
    code, out, err = run_command(capsys, "predict", "run", "new.csv")
    assert (code, out) == (0, "name,P(outcome=no),P(outcome=yes)\n")
    assert err.startswith("0 rows;")


def test_a_run_of_another_version_is_refused(run, capsys):
    path = Path("run/result.json")
    path.write_text(path.read_text().replace('"format": 1', '"format": 2', 1))
    for words in ("predict run new.csv", "adapt run --data a.csv", "evaluate run"):
        code, _, err = run_command(capsys, *words.split())
        assert code == 2
        assert err == (
            "error: format=2 is of a newer Equipoise, where this one reads up to 1: update\n"
        )


def test_a_run_that_reads_records_in_another_way_is_refused(run):
    other = run.model_copy(update={"reading": {**run.reading, "era": "of the emperor"}})
    with pytest.raises(DataError, match="the run does not say how records are read as this vers"):
        other.predict("new.csv")


# ---- LIBSVM texts ----


def libsvm_run(monkeypatch, folder):
    monkeypatch.chdir(folder)
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(60):
        a, b, c = rng.normal(size=3)
        lines.append(f"{1 if a + b > 0 else -1} 1:{a:.4f} 3:{b:.4f} 5:{c:.4f}")
    Path("a.txt").write_text("\n".join(lines) + "\n")
    Path("bounds.toml").write_text("[index]\nlow = 1\nhigh = 5\n[label]\ncategories = [-1, 1]\n")
    result = equipoise.train(
        task="libsvm",
        data="a.txt",
        bounds="bounds.toml",
        clients=3,
        epsilon=math.inf,
        iterations=20,
    )
    equipoise.save(result, "run")
    return result


def test_libsvm_by_hand_with_labels_or_without(tmp_path, monkeypatch, capsys):
    libsvm_run(monkeypatch, tmp_path)
    records = [{1: 2.0, 3: -1.0}, {5: 0.25}, {}, {1: 1e300, 2: 1e300}]
    texts = [" ".join(f"{i}:{v!r}" for i, v in record.items()) for record in records]
    weight = load_file("run/model.safetensors")["weight"][0]
    expected = []
    for record in records:
        largest = max(map(abs, record.values()), default=1)
        norm = math.sqrt(sum((v / largest) ** 2 for v in record.values())) or 1
        inner = sum(weight[i - 1] * v / largest / norm for i, v in record.items())
        expected.append(1 / (1 + math.exp(-inner - weight[-1])))
    Path("bare.txt").write_text("\n".join(texts) + "\n")
    Path("labelled.txt").write_text("\n".join(f"7 {text}" for text in texts) + "\n")
    for name in ("bare.txt", "labelled.txt"):
        code, out, err = run_command(capsys, "predict", "run", name)
        assert code == 0, err
        rows = list(csv.DictReader(io.StringIO(out)))
        assert list(rows[0]) == ["row", "P(label=-1)", "P(label=1)"]
        assert [row["row"] for row in rows] == ["1", "2", "3", "4"]
        np.testing.assert_allclose([float(row["P(label=1)"]) for row in rows], expected, 1e-12)
        assert "filled as in training: none" in err
    Path("odd.txt").write_text("1:1 9:4\nage,sex\n3:1 1:2\n1:1\n")
    _, out, err = run_command(capsys, "predict", "run", "odd.txt")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows[0]["P(label=1)"] == rows[3]["P(label=1)"], "index 9 is not of the model"
    assert rows[1]["P(label=1)"] == rows[2]["P(label=1)"], "neither line is a record"
    assert "filled as in training: index 1; rows with too few or too many cells, or" in err
    assert "unreadable: 2" in err
    Path("no.txt").write_text("age,sex\n30,f\n")
    assert "no.txt is no LIBSVM text" in run_command(capsys, "predict", "run", "no.txt")[2]
    refused = run_command(capsys, "predict", "run", "bare.txt", "--keep", "id")[2]
    assert "keep=id: a LIBSVM text has no columns to carry over" in refused


# ---- the torch module ----


def test_the_module_of_a_linear_model_says_the_same(run):
    module = equipoise.load("run").model
    assert isinstance(module, nn.Linear)
    assert not module.training
    third = math.sqrt(3)
    coded = torch.tensor([[0.6, 1, 0, 0.5], [-0.6, 0, 1, 0.5]], dtype=torch.float64) / third
    with torch.no_grad():
        says = torch.sigmoid(module(coded))[:, 0]
    np.testing.assert_allclose(says.numpy(), run.predict("new.csv")[:2, 1], rtol=1e-12)


@pytest.mark.parametrize("name", ["breast-cancer", "digits", "digits-mlp"])
def test_modules_of_tasks_with_records_of_their_own(name):
    """On the coded records of the task's public test set they have the error of the result."""
    result = equipoise.train(task=name, epsilon=math.inf, iterations=4, clients=5)
    module, task = result.model, load_task(name, TaskOptions(clients=5))
    with pytest.raises(InvalidValue, match=rf"task={name} reads no file .*load\(RUN\)\.model"):
        result.predict("new.csv")
    if name == "digits-mlp":
        assert isinstance(module, nn.Sequential)
        from sklearn.datasets import load_digits

        from equipoise.tasks.digits import CENTRE

        images, labels = load_digits(return_X_y=True)
        with torch.no_grad():
            says = module(torch.tensor((images[::3] - CENTRE) / 16, dtype=torch.float32))
        wrong = (says.argmax(1).numpy() != labels[::3]).mean()
    else:
        with torch.no_grad():
            says = module(task.measure.features[:, :-1])
        targets = task.measure.targets
        if name == "breast-cancer":
            wrong = ((says >= 0) != (targets > 0)).double().mean()
        else:
            wrong = (says.argmax(1) != targets.argmax(1)).double().mean()
    assert float(wrong) == pytest.approx(result.test_error)


def own(clients):
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2))
    return equipoise.own_task(
        network,
        clients[0],
        nn.functional.cross_entropy,
        equipoise.accuracy,
        test=clients[1],
        learning_rate=0.5,
    )


def test_the_module_of_a_task_that_was_made_in_python(tmp_path):
    task = own(blobs())
    result = equipoise.train(task=task, epsilon=math.inf, iterations=20)
    inputs, labels = blobs()[1]
    module = result.model
    assert not module.training
    with torch.no_grad():
        wrong = (module(inputs).argmax(1) != labels).double().mean()
    assert float(wrong) == pytest.approx(result.test_error)
    initial = dict(task.clients.model.module.named_parameters())
    assert not torch.equal(initial["0.weight"], module.get_parameter("0.weight")), "a copy"
    assert pickle.loads(pickle.dumps(result)) == result
    equipoise.save(result, tmp_path / "run")
    loaded = equipoise.load(tmp_path / "run")
    with pytest.raises(InvalidValue, match="was made in Python, so its module is there"):
        _ = loaded.model
    with pytest.raises(InvalidValue, match="task=own reads no file"):
        result.predict("new.csv")


def test_the_module_of_a_task_file_needs_none_of_its_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(TASK_FILE)
    result = equipoise.train(task="mine.py", epsilon=math.inf, iterations=10)
    equipoise.save(result, "run")
    bare = "from torch import nn\nmodel = nn.Linear(4, 2)\n"
    Path("mine.py").write_text(bare)  # clients, loss and metric have gone
    module = equipoise.load("run").model
    np.testing.assert_array_equal(module.weight.detach().numpy().reshape(-1), result.x[:8])
    Path("mine.py").write_text(bare.replace("4", "5"))
    with pytest.raises(DataError, match=r"task=mine\.py has another model now"):
        _ = equipoise.load("run").model


def test_a_vector_is_no_module():
    result = equipoise.train(task="quadratic", epsilon=math.inf, iterations=2)
    with pytest.raises(InvalidValue, match="task=quadratic has no inputs"):
        _ = result.model


def test_reading_a_result_loads_no_torch(run):
    script = (
        "import sys, equipoise\n"
        "result = equipoise.load('run')\n"
        "print(result.test_error, str(result)[:3], 'torch' in sys.modules)\n"
        "result.predict('new.csv')\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["None", "NOT", "False", "True"], done.stderr


# ---- the card ----


def test_the_card_says_what_the_result_says(run, clinic):
    card = Path("run/model-card.md").read_text()
    assert "A linear model with 5 parameters for P(outcome=no), P(outcome=yes)" in card
    assert "input 0: (age - 50) / 50 / sqrt(3), age clipped to [0, 100]; missing: 50" in card
    assert "input 2: 1 / sqrt(3) if sex is m, else 0; missing or unknown: none of these" in card
    assert "missing: 0.5" in card
    assert "`weight` [1, 5]" in card
    assert "**NOT PRIVATE.** none: epsilon = inf" in card
    assert "Not known: no record was public." in card
    private = equipoise.train(**{**clinic, "epsilon": 2, "test": "test.csv"}, clip=1)
    equipoise.save(private, "private")
    card = Path("private/model-card.md").read_text()
    assert "epsilon = 2 at delta = 1e-05 for one client" in card
    assert "NOT PRIVATE" not in card
    assert f"On public test records: {private.test_error:.4f}" in card


def test_the_card_tells_the_measures_of_public_records(clinic):
    rows = [f"{30 + i},{'fm'[i % 2]},0.{i % 10},{'no' if i % 3 else 'yes'}\n" for i in range(60)]
    Path("test.csv").write_text(HEADER + "".join(rows))
    result = equipoise.train(**{**clinic, "test": "test.csv"})
    equipoise.save(result, "measured")
    card = Path("measured/model-card.md").read_text()
    assert f"AUROC {result.measures['auroc'].value:.3f} [" in card
    assert "20 of 60 test records positive; in brackets 95 % intervals" in card


def test_what_stands_for_a_missing_cell_is_told_to_the_last_digit():
    bounds = "[income]\nlow = 0\nhigh = 24691357\n[ill]\ncategories = ['no', 'yes']\n"
    line = TableReader.of(bounds, "ill").coding()[0]
    assert "(income - 12345678.5)" in line
    assert line.endswith("missing: 12345678.5")


def test_the_coding_of_the_card_is_that_of_the_model(run):
    """What the card says of every input, worked out by machine for one record, gives what is
    predicted of it."""
    card = Path("run/model-card.md").read_text()
    lines = re.findall(r"^- input \d+: (.+)$", card, re.MULTILINE)
    record, inputs = {"age": 80, "sex": "f", "score": 0.5}, []
    for line in lines:
        if ranged := re.match(r"\((\w+) - (\S+)\) / (\S+) / sqrt\((\d+)\)", line):
            name, middle, half, root = ranged.groups()
            inputs.append((record[name] - float(middle)) / float(half) / math.sqrt(int(root)))
        else:
            root, name, category = re.match(r"1 / sqrt\((\d+)\) if (\w+) is (\w+),", line).groups()
            inputs.append((record[name] == category) / math.sqrt(int(root)))
    weight = load_file("run/model.safetensors")["weight"][0]
    output = weight @ [*inputs, 1]
    assert run.predict("new.csv")[0, 1] == pytest.approx(1 / (1 + math.exp(-output)), rel=1e-12)
