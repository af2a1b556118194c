"""A user's own tables, LIBSVM files and models: what they say, what they refuse, what they never reveal."""

import bz2
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import optimize, special
from torch import nn

import equipoise
from equipoise import DataError, InvalidValue, UnsafeModel, own_task, train
from equipoise.cli import main
from equipoise.privacy import noise as privacy_noise
from equipoise.saved import load, reserve, save
from equipoise.statement import statement
from equipoise.tasks import Options, libsvm, load_task

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("EQUIPOISE_DATA", ROOT.parent / "shared" / "data"))

BOUNDS = """
[age]
low = 0
high = 100
[sex]
categories = ["f", "m"]
[score]
low = -1
high = 1
fill = 0.5
[outcome]
categories = ["no", "yes"]
"""
HEADER = "age,sex,score,outcome\n"


@pytest.fixture
def clinic(tmp_path, monkeypatch):
    """A folder with bounds.toml, two clients' tables and public test records; returns settings for task csv."""
    monkeypatch.chdir(tmp_path)
    Path("bounds.toml").write_text(BOUNDS)
    Path("a.csv").write_text(HEADER + "30,f,0.1,no\n70,m,0.9,yes\n65,m,,yes\n")
    Path("b.csv").write_text("outcome,score,sex,age\nyes,0.5,f,80\nno,-0.5,m,20\n")
    Path("test.csv").write_text(HEADER + "30,f,0.1,no\n70,m,0.9,yes\n90,f,0.9,yes\n")
    return {"task": "csv", "data": ("a.csv", "b.csv"), "label": "outcome", "bounds": "bounds.toml", "epsilon": math.inf}


def csv_task(**changes):
    options = {"data": ("a.csv", "b.csv"), "label": "outcome", "bounds": "bounds.toml", **changes}
    return load_task("csv", Options(**options))


def test_scaling_and_coding_follow_from_the_bounds_alone(clinic):
    task = csv_task(test=("test.csv",))
    third = math.sqrt(3)
    rows = task.clients.features[0] * third
    expected = [[-0.4, 1, 0, 0.1, third], [0.4, 0, 1, 0.9, third], [0.3, 0, 1, 0.5, third]]  # the fill of score is 0.5
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
        "a.csv: 3 records, of which 1 left out (label missing or not declared); cells clipped or filled: age 2, sex 1, score 3"
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
    assert float(task.measure(task.x0).error) == pytest.approx(np.sqrt(np.mean([20**2, 20**2, 40**2])))
    assert task.constant_error == pytest.approx(np.std([30, 70, 90]))


def test_parquet_says_the_same_as_csv(clinic):
    import pyarrow
    import pyarrow.parquet

    columns = {"age": [30.0, 70.0, 65.0], "sex": ["f", "m", "m"], "score": [0.1, 0.9, None], "outcome": ["no", "yes", "yes"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), "a.parquet")
    assert torch.equal(csv_task(data=("a.parquet", "b.csv")).clients.features, csv_task().clients.features)
    Path("bad.parquet").write_text("no")
    with pytest.raises(DataError, match=r"bad\.parquet is not a Parquet file"):
        csv_task(data=("bad.parquet",))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("age,sex,outcome\n1,f,no\n", "a.csv does not have the columns of the bounds file: it lacks score"),
        ("age,sex,score,outcome,name\n1,f,0,no,x\n", "it has name besides"),
        ("age,sex,score,score,outcome\n1,f,0,0,no\n", "repeats a column"),
        ("age,sexe,score,outcome\n1,f,0,no\n", "it lacks sex and has sexe besides"),
        (HEADER, "a.csv has a header and no records"),
        ("", "data=a.csv is empty"),
        ("age;sex;score;outcome\n1;f;0;no\n", "a.csv looks separated by semicolons"),
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
    """Too few or too many cells, broken quotes, foreign bytes, huge cells: filled, cut, and counted by the client alone."""
    rows = b'30,f\n30,f,0.1,no,9,9\n30,"f,0.1,no\n30,\xff,0.1,no\n' + b"9" * 200_000 + b",f,0.1,no\n"
    Path("a.csv").write_bytes(HEADER.encode() + rows)
    task = csv_task()
    assert 1 <= task.clients.sizes[0] <= 5
    assert task.clients.features.isfinite().all()
    assert "left out" in client_log[0]


def test_a_file_is_one_client_once(clinic):
    for given in ({"data": ("a.csv", "./a.csv")}, {"test": ("b.csv",)}, {"proxy": ("a.csv",)}):
        with pytest.raises(InvalidValue, match="is given twice"):
            csv_task(**given)


def test_labels_that_are_missing_are_not_invented(clinic):
    Path("a.csv").write_text(HEADER + ",f,0.1,no\noops,f,0.1,no\n40,f,0.1,no\n400,f,0.1,no\n")
    task = csv_task(label="age")
    assert task.clients.sizes[0] == 2
    assert task.clients.targets[0, :2, 0].tolist() == pytest.approx([-0.2, 1.0])  # 400 is clipped to 100


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("low = 0", "low = nan", "bounds.toml, column age: low=nan and high=100.0 are not two numbers"),
        ("low = 0", "low = 200", "low=200.0 and high=100.0 are not two numbers with low < high"),
        ("low = 0\nhigh = 100", "", "column age: give either low and high, or categories"),
        ("low = 0", "lowest = 0", "column age: expected low and high, or categories"),
        ('["f", "m"]', '["f"]', "column sex: categories=['f'] needs two or more different values"),
        ("fill = 0.5", "fill = 2", "column score: fill=2 is not between low=-1.0 and high=1.0"),
        ("[age]", "[age", "bounds.toml is not TOML"),
        ('["f", "m"]', '"fm"', "column sex: categories='fm' is not a list of values"),
        ("high = 100", "high = 1" + 400 * "0", "low=0.0 and high=inf are not two numbers"),
        ('["no", "yes"]', '["no", "yes"]\nfill = "no"', "column outcome: a label cannot be filled"),
        ("[outcome]", "[result]", "label='outcome' is not in bounds.toml, which has age, sex, score, result"),
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
    _, template, _ = run_command(capsys, "data", "bounds", "--columns", "age", "blood pressure", "outcome")
    Path("bounds.toml").write_text(template)
    with pytest.raises(DataError, match=r"column age: low=nan and high=nan.*fill in what is publicly known"):
        csv_task()
    filled = template.replace("low = nan", "low = 0").replace("high = nan", "high = 9")
    Path("bounds.toml").write_text(filled)
    Path("a.csv").write_text("age,blood pressure,outcome\n1,2,3\n")
    assert csv_task(data=("a.csv",)).dimension == 3


def run_command(capsys, *arguments):
    """Exit code, standard output and standard error of the command."""
    try:
        main(list(arguments))
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


@pytest.mark.parametrize("secret", [False, True])
def test_nothing_but_the_releases_depends_on_private_values(clinic, capsys, monkeypatch, secret):
    """Neighbouring data sets (one client replaced, size and oddities included), given noise: all else is identical.

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
            "--task csv --data a.csv b.csv --label outcome --bounds bounds.toml --test test.csv --epsilon 2 --clip 1 --batch 5"
        )
        more = "--iterations 12 --local-steps 3 --out out --json" + ("" if secret else " --simulate-noise-seed 1")
        code, stdout, stderr = run_command(capsys, "train", *flags.split(), *more.split())
        document = json.loads(stdout)
        assert json.loads((out / "result.json").read_text()) == document
        released = {key: document.pop(key) for key in ("curve", "test_error")}
        files = sorted(
            (path.name, re.sub("SHA-256 `.*`", "", path.read_text()) if path.suffix in (".md", ".toml") else "")
            for path in out.iterdir()
        )
        seen[name] = code, document, stderr, files, released
    usual = seen["usual"]
    assert usual[0] == 0
    assert usual[1]["private"] == secret
    for other in seen.values():
        assert usual[:4] == other[:4]
    assert len({str(other[4]) for other in seen.values()}) > 3, "the data sets must differ where they may"


def test_csv_walk_through(tmp_path, monkeypatch, capsys):
    """The README's commands, word for word, from data to statement."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"```sh\n(python examples/hospitals.*?)```", text, re.DOTALL)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-euc", block], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = load(tmp_path / "run-1")
    assert result.private
    assert result.clients == 30
    assert (tmp_path / "run-1" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "outside the guarantee" in done.stdout.splitlines()[-1]


def test_own_model_example(capsys):
    """The README's ten lines, word for word."""
    text = (ROOT / "README.md").read_text()
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "own_task" in code]
    assert len([line for line in block.splitlines() if line.strip()]) <= 14
    names = {}
    exec(block, names)
    assert names["result"].private
    assert names["result"].test_error < names["result"].baseline_error


def blobs(clients=6, n=20):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * n + 60, 4, generator=generator)
    y = (x[:, 0] + x[:, 1] > 0).long()
    pairs = list(zip(x[60:].split(n), y[60:].split(n), strict=True))
    return pairs, (x[:60], y[:60])


class Remembers(nn.Linear):
    """Keeps a running mean in a plain attribute: one client's data would reach the next."""

    def __init__(self):
        super().__init__(4, 2)
        self.mean = torch.zeros(4)

    def forward(self, inputs):
        self.mean = 0.5 * self.mean + 0.5 * inputs.mean(0)
        return super().forward(inputs - self.mean)


@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-scaffnew"])
def test_own_models_train_like_any_task(algorithm):
    clients, test = blobs()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    task = own_task(network, clients, nn.functional.cross_entropy, equipoise.accuracy, test=test, learning_rate=0.5, batch=10)
    result = train(task=task, algorithm=algorithm, epsilon=math.inf, iterations=60, local_steps=5)
    assert result.test_error < 0.15 < result.baseline_error
    assert list(result.parameters) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    before = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    assert torch.equal(before, task.x0), "training leaves the user's module alone"


def test_own_gradients_are_autograds_and_clients_can_be_alone():
    clients, _ = blobs(3)
    network = nn.Linear(4, 2).double()
    clients = [(x.double(), y) for x, y in clients]
    task = own_task(network, clients, nn.functional.cross_entropy, equipoise.accuracy)
    x = torch.randn(2, 3, task.dimension, dtype=torch.float64)
    stacked = task.clients.gradient(x, 0)
    for run in range(2):
        torch.testing.assert_close(task.clients.gradient(x[run], 0), stacked[run])
        for i, (inputs, targets) in enumerate(clients):
            weights, bias = x[run, i, :8].reshape(2, 4), x[run, i, 8:]
            residual = torch.softmax(inputs @ weights.T + bias, -1) - nn.functional.one_hot(targets, 2)
            by_hand = torch.cat([(residual.T @ inputs / len(inputs)).reshape(-1), residual.mean(0)])
            torch.testing.assert_close(stacked[run, i], by_hand)
            torch.testing.assert_close(task.clients.alone(i).gradient(x[run, i], 0), by_hand)


def test_a_client_whose_records_fail_sends_zero_and_noise_and_nobody_hears(client_log):
    """A label that the model cannot have is that client's own business."""
    clients, test = blobs()
    clients[3] = (clients[3][0], clients[3][1] + 7)
    task = own_task(nn.Linear(4, 2), clients, nn.functional.cross_entropy, equipoise.accuracy, test=test)
    result = train(task=task, epsilon=2, clip_norm=1, iterations=3)
    assert result.private
    assert result.failed is None
    assert "client 3, local step 0: IndexError" in client_log[0]
    assert "client 3" not in result.to_json()


def test_dropout_is_off_when_measuring_and_repeats_when_training():
    clients, test = blobs()
    network = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2))
    task = own_task(network, clients, nn.functional.cross_entropy, equipoise.accuracy, test=test, learning_rate=0.5)
    assert len({float(task.measure(task.x0).loss) for _ in range(4)}) == 1
    x = task.x0.expand(6, -1)
    assert torch.equal(task.clients.gradient(x, 3), task.clients.gradient(x, 3))
    assert not torch.equal(task.clients.gradient(x, 3), task.clients.gradient(x, 4))
    assert torch.equal(task.clients.alone(2).gradient(task.x0, 3), task.clients.gradient(x, 3)[2])


def test_frozen_parameters_stay_and_are_not_released():
    clients, test = blobs()
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    network[0].requires_grad_(False)
    task = own_task(network, clients, nn.functional.cross_entropy, equipoise.accuracy, test=test)
    assert task.dimension == 34
    assert list(task.shapes) == ["2.weight", "2.bias"]


def test_words_can_be_inputs():
    words = [(torch.randint(0, 9, (20, 3)), torch.randint(0, 2, (20,))) for _ in range(3)]
    network = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    result = train(task=own_task(network, words, nn.functional.cross_entropy, equipoise.accuracy), epsilon=2, clip_norm=1)
    assert result.test_error is None


def test_data_sets_and_pairs_of_tensors_are_the_same():
    clients, test = blobs()
    sets = [torch.utils.data.TensorDataset(*pair) for pair in clients]
    torch.manual_seed(0)
    network = nn.Linear(4, 2)
    one, two = (
        train(
            task=own_task(network, data, nn.functional.cross_entropy, equipoise.accuracy, test=test, learning_rate=0.5),
            epsilon=2,
            clip_norm=1,
            simulate_noise_seed=0,
        )
        for data in (clients, sets)
    )
    assert one == two


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"model": nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))}, UnsafeModel, "is a batch norm"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, InvalidValue, "must be a mean over examples"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, InvalidValue, "must be a mean over examples"),
        ({"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))}, InvalidValue, "no class weights"),
        ({"loss": nn.MSELoss()}, InvalidValue, "fail on examples|warn on examples"),
        ({"model": nn.Linear(4, 2).half()}, UnsafeModel, "need float32 or float64"),
        ({"model": Remembers()}, UnsafeModel, "remembers earlier inputs"),
        ({"model": "linear"}, InvalidValue, "not a torch nn.Module"),
        ({"test": (torch.zeros(0, 4), torch.zeros(0).long())}, DataError, "the test set is empty"),
        (
            {"metric": lambda outputs, targets: 1 / 0, "test": blobs()[1]},
            InvalidValue,
            "fail on the test set: division by zero",
        ),
        ({"model": nn.Linear(3, 2)}, InvalidValue, "fail on examples shaped like the clients'"),
        ({"clients": []}, InvalidValue, "clients is not a list"),
        ({"clients": iter([])}, InvalidValue, "clients is not a list"),
        ({"clients": [(torch.zeros(3, 4), torch.zeros(2).long())]}, InvalidValue, "client 0 does not have as many inputs"),
        ({"clients": [(torch.zeros(0, 4), torch.zeros(0).long())]}, InvalidValue, "or there are none"),
        ({"clients": [42]}, DataError, "client 0 is neither a data set"),
    ],
)
def test_own_tasks_that_cannot_work_are_refused(change, error, sentence):
    parts = {"model": nn.Linear(4, 2), "clients": blobs()[0], "loss": nn.functional.cross_entropy, "metric": equipoise.accuracy}
    with pytest.raises(error, match=sentence):
        own_task(**{**parts, **change})


TASK_FILE = """
import torch
from torch import nn
from equipoise import accuracy as metric

x = torch.randn(300, 4)
y = (x[:, 0] > 0).long()
model = nn.Linear(4, 2)
clients = list(zip(x[:240].split(40), y[:240].split(40)))
test = x[240:], y[240:]
loss = nn.functional.cross_entropy
learning_rate = 0.5
"""


def test_task_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(TASK_FILE)
    flags = "train --task task.py --epsilon 2 --clip 1 --local-steps 10 --simulate-noise-seed 0 --json".split()
    first, second = (json.loads(run_command(capsys, *flags)[1]) for _ in range(2))
    assert first == second, "initial weights follow from the public seed"
    assert first["clients"] == 6
    assert first["dimension"] == 10


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            TASK_FILE.replace("model = nn.Linear(4, 2)", "model = nn.Linear(4, two)"),
            "task.py, line 8: NameError: name 'two' is not",
        ),
        (TASK_FILE.replace("x = torch", "x == torch"), "task.py, line 6: NameError"),
        (TASK_FILE + "for", "task.py, line 13: SyntaxError: invalid syntax"),
        (TASK_FILE.replace("loss =", "lost ="), "task.py defines no loss"),
        (TASK_FILE + "raise SystemExit(3)", "task.py, line 13: SystemExit: 3"),
    ],
)
def test_task_files_that_fail_say_where(tmp_path, monkeypatch, capsys, content, sentence):
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(content)
    code, out, err = run_command(capsys, "train", "--task", "task.py", "--epsilon", "inf")
    assert code == 2
    assert out == ""
    assert sentence in err
    assert len(err.splitlines()) == 1


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
        pytest.skip("the LIBSVM files are not here: put a9a.bz2 and the others into $EQUIPOISE_DATA/libsvm")
    data, test = (str(folder / f"{name}.bz2"),), (str(folder / "a9a.t.bz2"),) if name == "a9a" else ()
    ((records, labels),) = libsvm._read(list(data))
    assert records.shape == (rows, features + 1)
    assert (np.sum(labels == labels.min()), np.sum(labels == labels.max())) == counts
    task = load_task("libsvm", Options(data=data, test=test))
    assert sum(task.clients.sizes) == (rows if test else rows - -(-rows // 5))
    flags = {"task": "libsvm", "data": data, "test": test, "trust": "secure-aggregation", "local_steps": 8}
    for privacy in ({"epsilon": math.inf}, {"epsilon": 3.3, "clip_norm": 1.0, "simulate_noise_seed": 0}):
        result = train(**flags, **privacy)
        assert result.baseline_error == pytest.approx(task.constant_error)
        assert result.curve[-1].test_loss < 0.8 * result.curve[0].test_loss
        if name != "w8a":  # where three in a hundred are positive, and saying no is hard to beat in 64 steps
            assert result.test_error < 0.85 * result.baseline_error


@pytest.mark.parametrize("labels", ["-1 +1", "1 2", "0 1"])
def test_all_label_conventions_mean_the_same(tmp_path, labels):
    low, high = labels.split()
    lines = [f"{high if k % 3 else low} 1:{k % 3} 4:1 " for k in range(50)] + [low, f"{high} 2:0.5"]
    (tmp_path / "f.txt").write_text("\n".join(lines))  # rows without features, trailing blanks, no final newline
    (tmp_path / "f.bz2").write_bytes(bz2.compress("\n".join(lines).encode()))
    tasks = [load_task("libsvm", Options(data=(str(tmp_path / f),), clients=4)) for f in ("f.txt", "f.bz2")]
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
        ("\n".join(f"{k}.5 1:1" for k in range(1200)), "has 1200 labels: task libsvm is for classification"),
        ("", "f.txt has no records"),
        ("1 1:1\n1 2:1\n", "has one label, 1"),
        ("1 1:1\n0 2:inf\n", "f.txt has a value that is not finite"),
    ],
)
def test_malformed_libsvm_lines_are_found(tmp_path, lines, sentence):
    path = tmp_path / "f.txt"
    path.write_text(lines)
    with pytest.raises(equipoise.EquipoiseError, match=re.escape(sentence)):
        load_task("libsvm", Options(data=(str(path),), clients=1))


def test_truncated_archives_are_found(tmp_path):
    whole = bz2.compress(b"\n".join(b"%d 1:1 2:%d" % (k % 2, k) for k in range(100_000)))
    (tmp_path / "f.bz2").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read to its end"):
        load_task("libsvm", Options(data=(str(tmp_path / "f.bz2"),)))
    with pytest.raises(DataError, match="there is no such file"):
        load_task("libsvm", Options(data=("nowhere.txt",)))


@pytest.mark.parametrize(("name", "rest"), [("digits", {}), ("digits-mlp", {"local_steps": 8})])
def test_digits_learn_privately(name, rest):
    settings = {"task": name, "trust": "secure-aggregation", "local_steps": 4, **rest}
    free = train(**settings, epsilon=math.inf)
    assert free.clients == 100
    assert free.baseline_error > 0.85
    assert free.test_error < 0.2
    private = train(**settings, epsilon=8, clip_norm=1.0, simulate_noise_seed=0)
    assert private.test_error < 0.6 * private.baseline_error


STATEMENT = {  # every field of guarantee.md, and what its value looks like
    "epsilon, exact": r"inf|[0-9.e+-]+",
    "epsilon, nominal": r"inf|[0-9.e+-]+",
    "delta": r"[0-9.e-]+",
    "unit": r"client: .+",
    "neighbours": r"(replace-one|zero-out): .+",
    "trust": r"local|secure-aggregation",
    "the adversary sees": r".+",
    "colluding clients": r"any number|\d+",
    "clients": r"\d+",
    "where it ran": r"one process .+",
    "releases": r"\d+",
    "what": r"\d+ numbers per client and round: a model update, .+",
    "clip norm C": r"inf|[0-9.e+-]+",
    "sensitivity": r"inf|[0-9.e+-]+",
    "sigma": r"[0-9.e+-]+",
    "sigma is": r"per coordinate, of .+",
    "sigma of one client": r"[0-9.e+-]+",
    "schedule": r"(periodic|coin), .+",
    "noise source": r".+",
    "noise rule": r"(exact|lemma1).*",
}


def fields(text):
    return dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", text, re.MULTILINE))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"trust": "secure-aggregation", "colluding": 3, "neighbours": "zero-out"},
        {"schedule": "coin", "p": 0.3, "local_steps": None},
        {"noise_rule": "lemma1", "v": "proof"},
        {"epsilon": math.inf, "clip_norm": None},
        {"simulate_noise_seed": 1, "diagnostics": True},
    ],
)
def test_a_reader_can_recompute_epsilon_from_the_statement(change):
    settings = {"task": "breast-cancer", "epsilon": 2, "clip_norm": 0.7, "iterations": 32, "local_steps": 4, "clients": 10}
    result = train(**{**settings, **change})
    text = statement(result)
    values = fields(text)
    assert set(values) == set(STATEMENT)
    for name, pattern in STATEMENT.items():
        assert re.fullmatch(pattern, values[name]), (name, values[name])
    assert all(notice in text for notice in result.notices)
    assert ("differentially private for one client" in text.split("##")[0]) == result.private
    for words in (
        "What is not covered",
        "each spends its own budget",
        "records declared public",
        result.version,
        result.repeat,
    ):
        assert words in text
    sigma, sensitivity, releases = float(values["sigma"]), float(values["sensitivity"]), int(values["releases"])
    if sigma == 0:
        assert values["epsilon, exact"] == "inf"
        return
    mu, delta = sensitivity * math.sqrt(releases) / sigma, float(values["delta"])

    def excess(epsilon):  # the formula of the statement, and nothing of the product
        log_second = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
        return special.ndtr(mu / 2 - epsilon / mu) - math.exp(log_second) - delta

    assert optimize.brentq(excess, 0, 1e4, xtol=1e-12) == pytest.approx(float(values["epsilon, exact"]), rel=1e-6)
    honest = result.clients - int(values["colluding clients"]) if values["trust"] == "secure-aggregation" else 1
    assert float(values["sigma of one client"]) * math.sqrt(honest) == pytest.approx(sigma, rel=1e-12)


def test_a_saved_run_reads_back(tmp_path, capsys):
    out = tmp_path / "run"
    flags = "train --task breast-cancer --epsilon 2 --clip 1 --clients 10 --iterations 8 --simulate-noise-seed 0 --json"
    code, printed, err = run_command(capsys, *flags.split(), "--out", str(out))
    assert code == 0
    assert f"saved in {out}" in err.replace("\n", "")
    assert sorted(path.name for path in out.iterdir()) == ["curve.png", "guarantee.md", "model.safetensors", "result.json"]
    result = load(out)
    assert json.loads(result.to_json()) == json.loads(printed)
    again = train(task="breast-cancer", epsilon=2, clip_norm=1, clients=10, iterations=8, simulate_noise_seed=0)
    assert again == result
    assert np.array_equal(again.x, result.x)
    shown = run_command(capsys, "show", str(out), "--json")[1]
    assert json.loads(shown) == json.loads(printed)
    measured = json.loads(run_command(capsys, "evaluate", str(out), "--json")[1])
    assert measured["error"] == result.test_error
    code, _, err = run_command(capsys, *flags.split(), "--out", str(out))
    assert code == 2
    assert "already holds model.safetensors" in err.replace("\n", " ")
    assert load(out) == result, "the first run is untouched"


def test_the_model_is_a_state_dict(tmp_path):
    from safetensors.torch import load_file

    clients, test = blobs()
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    task = own_task(network, clients, nn.functional.cross_entropy, equipoise.accuracy, test=test, learning_rate=0.5)
    result = train(task=task, epsilon=2, clip_norm=1)
    reserve(tmp_path / "run")
    save(result, tmp_path / "run")
    network.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    with torch.no_grad():
        assert equipoise.accuracy(network(test[0]), test[1]) == pytest.approx(1 - result.test_error)


def test_evaluate_on_other_files(clinic, tmp_path, capsys):
    flags = "train --task csv --data a.csv b.csv --label outcome --bounds bounds.toml --epsilon inf --out run --json"
    assert json.loads(run_command(capsys, *flags.split())[1])["test_error"] is None
    for gone in ("a.csv", "b.csv", "bounds.toml"):
        Path(gone).unlink()  # the folder is enough
    measured = json.loads(run_command(capsys, "evaluate", "run", "--data", "test.csv", "--json")[1])
    assert 0 <= measured["error"] <= 1
    assert measured["covered"] is False
    code, _, err = run_command(capsys, "evaluate", "run")
    assert code == 2
    assert "give --data FILE" in err


def test_a_libsvm_model_needs_its_training_file_no_more(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("f.txt").write_text("\n".join(f"{k % 2} 1:{k % 2} 3:1" for k in range(40)))
    Path("more.txt").write_text("1 1:1 2:1\n1 1:1\n")
    Path("odd.txt").write_text("7 1:1\n")
    Path("wide.txt").write_text("1 9:1\n")
    flags = "train --task libsvm --data f.txt --clients 4 --epsilon inf --out run --json"
    assert run_command(capsys, *flags.split())[0] == 0
    Path("f.txt").unlink()
    assert json.loads(run_command(capsys, "evaluate", "run", "--data", "more.txt", "--json")[1])["error"] == 0
    assert "has a label that the training file lacks: 7" in run_command(capsys, "evaluate", "run", "--data", "odd.txt")[2]
    assert "does not fit" in run_command(capsys, "evaluate", "run", "--data", "wide.txt")[2]


def test_the_table_of_a_run_without_test_records(clinic, capsys):
    flags = "train --task csv --data a.csv b.csv --label outcome --bounds bounds.toml --epsilon inf --out run --json"
    run_command(capsys, *flags.split())
    assert "no public test records" in run_command(capsys, "show", "run")[1]


def test_folders_that_cannot_be_kept_are_refused_before_training(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    flags = "train --task breast-cancer --epsilon 2 --clip 1 --out".split()
    code, out, err = run_command(capsys, *flags, str(tmp_path / "file" / "run"))
    assert (code, out) == (2, "")
    assert "cannot be written: Not a directory" in err.replace("\n", " ")
    with pytest.raises(DataError, match=r"holds no finished run: result\.json is missing"):
        load(tmp_path)
    (tmp_path / "result.json").write_text("{")
    (tmp_path / "model.safetensors").write_text("{")
    with pytest.raises(DataError, match="does not hold a run that this version can read"):
        load(tmp_path)


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    result = train(task="breast-cancer", epsilon=2, clip_norm=1, clients=5, iterations=4)
    reserve(tmp_path)

    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(equipoise.EquipoiseError, match="No space left on device; the files that are there are whole"):
        save(result, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "unfinished"]
    with pytest.raises(InvalidValue, match=r"already holds model\.safetensors, unfinished"):
        reserve(tmp_path)


def test_two_runs_cannot_claim_one_folder(tmp_path):
    reserve(tmp_path / "run")
    with pytest.raises(InvalidValue, match="already holds unfinished"):
        reserve(tmp_path / "run")


@pytest.mark.parametrize("name", ["a[bold]b", "a$_^$b", "run \N{SNOWMAN}"])
def test_strange_names_lose_nothing(tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.py").write_text(TASK_FILE)
    code, out, err = run_command(capsys, "train", "--task", f"{name}.py", "--epsilon", "2", "--clip", "1", "--out", name)
    assert code == 0, err
    assert f"{name}.py" in out
    assert load(Path(name)).task == f"{name}.py"
    assert (Path(name) / "curve.png").exists()


def test_a_broken_pipe_comes_after_saving(tmp_path):
    program = Path(sys.executable).with_name("equipoise")
    command = f"{program} train --task breast-cancer --epsilon 2 --clip 1 --json --out {tmp_path / 'run'} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    assert load(tmp_path / "run").private


def test_the_command_to_repeat_a_run_repeats_it(capsys):
    flags = (
        "--task breast-cancer --algorithm dp-scaffnew --epsilon 2.5 --clip 0.5 --schedule coin --p 0.2 --diagnostics --seed 3"
    )
    first = json.loads(run_command(capsys, "train", *flags.split(), "--simulate-noise-seed", "4", "--json")[1])
    words = first["repeat"].split()
    assert words[:2] == ["equipoise", "train"]
    assert json.loads(run_command(capsys, *words[1:], "--json")[1]) == first


def test_client_logs_stay_with_the_client(clinic, capsys):
    flags = "train --task csv --data a.csv b.csv --label outcome --bounds bounds.toml --epsilon 2 --clip 1"
    code, out, err = run_command(capsys, *flags.split(), "--client-log", "own.log")
    assert (code, err) == (0, "")
    assert "cells clipped" not in out
    assert "label missing or not declared); cells clipped or filled: age 0, sex 0, score 1" in Path("own.log").read_text()
    assert Path("own.log").stat().st_mode & 0o077 == 0


def test_a_client_log_that_cannot_be_written_stays_silent(clinic, capsys):
    flags = "train --task csv --data a.csv b.csv --label outcome --bounds bounds.toml --epsilon 2 --clip 1 --json"
    code, _, err = run_command(capsys, *flags.split(), "--client-log", "/dev/full")
    assert (code, err) == (0, "")


def test_readings_of_lemma_1_that_would_need_private_sizes_are_refused(clinic):
    private = {**clinic, "epsilon": 2, "clip_norm": 1, "noise_rule": "lemma1"}
    with pytest.raises(InvalidValue, match="v=record-style needs the clients' numbers of records, which are private here"):
        train(**private, v="record-style")
    assert train(**private, v="proof").epsilon_spent > 2


def test_a_task_object_keeps_its_own_clients():
    clients, _ = blobs()
    task = own_task(nn.Linear(4, 2), clients, nn.functional.cross_entropy, equipoise.accuracy)
    with pytest.raises(InvalidValue, match="a task object has its own clients"):
        train(task=task, epsilon=2, clip_norm=1, batch=5)
