"""No repr, exception, log or traceback of ours shows a private value."""

import io
import logging
import math
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

import equipoise
from equipoise import EquipoiseError, InvalidValue, Question, Settings, own_task
from equipoise.engine import noise_of, single_fleet
from equipoise.sweeps.store import Store
from equipoise.tasks import TaskOptions, load_task
from equipoise.training import prepare
from problems import BOUNDS, TASK_FILE, blobs

MARK = 0.7265625  # exact in binary, and in nobody's public facts
TEXT = "patient 4711"
ARRAYS = ("tensor(", "array(", "Parameter")


def csv_files(folder):
    (folder / "bounds.toml").write_text(BOUNDS)
    row = f"{100 * MARK},f,{MARK},no\n{100 * MARK},m,{MARK},yes\n"
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text("age,sex,score,outcome\n" + row)
    data = tuple(str(folder / name) for name in ("a.csv", "b.csv"))
    bounds = str(folder / "bounds.toml")
    return "csv", TaskOptions(data=data, label="outcome", bounds=bounds)


def libsvm_file(folder):
    lines = [f"{1 if i % 2 else -1} 1:{MARK} 2:{i + 1}\n" for i in range(30)]
    (folder / "x.libsvm").write_text("".join(lines))
    return "libsvm", TaskOptions(data=(str(folder / "x.libsvm"),), clients=3)


def task_file(folder):
    text = TASK_FILE.replace("y = (x", f"x[:, 3] = {MARK}\ny = (x")
    (folder / "own.py").write_text(text)
    return str(folder / "own.py"), TaskOptions()


KINDS = {
    "csv": csv_files,
    "libsvm": libsvm_file,
    "own": task_file,
    "breast-cancer": lambda folder: ("breast-cancer", TaskOptions(clients=4, public_records=20)),
    "digits": lambda folder: ("digits", TaskOptions(clients=4)),
    "digits-mlp": lambda folder: ("digits-mlp", TaskOptions(clients=4, public_records=20)),
    "quadratic": lambda folder: ("quadratic", TaskOptions(clients=4)),
}


@pytest.fixture(params=KINDS)
def task(request, tmp_path):
    return load_task(*KINDS[request.param](tmp_path))


def shown(value):
    """Whatever can be printed of a value, and of its parts."""
    yield repr(value)
    yield str(value)
    yield f"{value}"
    for part in getattr(value, "__dict__", {}).values():
        if not isinstance(part, torch.Tensor | np.ndarray | nn.Module):
            yield repr(part)


def everything_said(error):
    """By an error and by all that hang on it, which a debugger or a report of crashes shows."""
    chain = [error]
    for one in chain:
        chain += [more for more in (one.__cause__, one.__context__) if more and more not in chain]
    return "".join(map(repr, chain)) + "".join(traceback.format_exception(error))


def check(text):
    assert str(MARK) not in text
    assert not any(word in text for word in ARRAYS), text


def test_no_repr_shows_records(task):
    pieces = [task, task.clients, task.clients.alone(0), task.measure, task.pool]
    for piece in pieces:
        texts = list(shown(piece)) if piece in (task, task.measure) else [repr(piece), str(piece)]
        for text in texts:
            check(text)


@pytest.mark.parametrize("make", [Settings.of, Question.of, Settings, Question])
@pytest.mark.parametrize("name", ["task", "data", "clip", "seed", "nonsense"])
def test_no_error_about_settings_shows_records(task, make, name):
    """A task, or data, where a name or a number belongs: refused without repeating it."""
    values = {"task": "quadratic", "epsilon": 2, "clip": 1}
    for wrong in (task, task.clients, [MARK] * 1000, np.full(3, MARK), torch.full((3,), MARK)):
        stream = io.StringIO()
        try:
            make(**{**values, name: wrong})
        except (InvalidValue, ValidationError):
            traceback.print_exc(file=stream)
        assert stream.getvalue(), "it must be refused"
        check(stream.getvalue())


def test_what_training_holds_shows_no_records(task):
    """Prepared runs, fleets, memories and noised gradients, before and after a round."""
    for unit in ("client", "record"):
        if unit == "record" and task.name == "quadratic":
            continue
        ready = prepare(task=task, epsilon=3, clip=1, unit=unit, iterations=2)
        fleet, _ = single_fleet(ready.task, ready.run, ready.account, ready.noise)
        gradient, releaser = noise_of(ready.run, ready.task, ready.account, ready.noise)
        list(equipoise.rounds(task=task, epsilon=3, clip=1, unit=unit, iterations=2))
        for value in (ready.task, fleet, fleet.memory, releaser):
            check(repr(value))
        assert str(MARK) not in repr(gradient)


class Raises:
    """A data set whose errors name a patient."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise self.error


@pytest.mark.parametrize(
    "error", [KeyError(TEXT), ValueError(TEXT), RuntimeError(TEXT), OSError(TEXT), TypeError(TEXT)]
)
def test_errors_of_a_data_set_stay_with_it(error):
    with pytest.raises(EquipoiseError) as caught:
        own_task(nn.Linear(2, 2), [Raises(error)], nn.functional.cross_entropy, equipoise.accuracy)
    text = everything_said(caught.value)
    assert TEXT not in text
    assert "client 0" in text
    assert type(error).__name__ in text


@pytest.mark.parametrize(
    "line",
    [
        f"raise ValueError('{TEXT}')",
        f"raise __import__('equipoise').DataError('{TEXT}')",
        f"raise SystemExit('{TEXT}')",
        f"{{}}['{TEXT}']",
        "eval(''.join(map(chr, [112, 97, 116, 105, 101, 110, 116, 52, 55, 49, 49])))",
    ],
)
def test_errors_of_a_task_file_are_told_by_kind_and_line(tmp_path, line):
    path = tmp_path / "own.py"
    path.write_text(f"import torch\n{line}\n")
    with pytest.raises(EquipoiseError) as caught:
        load_task(str(path), TaskOptions())
    text = everything_said(caught.value)
    assert TEXT not in text
    assert TEXT.replace(" ", "") not in text
    assert "line 2" in str(caught.value)


def test_our_own_errors_in_a_task_file_are_told_in_full(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("import equipoise\nequipoise.load('nowhere')\n")
    with pytest.raises(EquipoiseError, match="nowhere") as caught:
        load_task(str(path), TaskOptions())
    assert "line 2" not in str(caught.value)


def test_errors_about_code_are_told_in_full(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("import a_package_that_is_not_there\n")
    with pytest.raises(EquipoiseError, match="a_package_that_is_not_there"):
        load_task(str(path), TaskOptions())


def test_nothing_private_reaches_a_log_that_others_read(tmp_path, caplog, capsys):
    """Loggers of ours that propagate say nothing; what clients notice stays in their own log."""
    name, options = csv_files(tmp_path)
    Path(options.data[0]).write_text(
        f"age,sex,score,outcome\n{TEXT},f,{MARK},{TEXT}\n30,m,0.1,no\n"
    )
    with caplog.at_level(logging.DEBUG):
        settings = {"data": options.data, "label": "outcome", "bounds": options.bounds}
        for unit in ("client", "record"):
            equipoise.train(task=name, **settings, epsilon=2, clip=1, iterations=2, unit=unit)
    printed = capsys.readouterr()
    for text in (caplog.text, printed.out, printed.err):
        assert TEXT not in text
        assert str(MARK) not in text


def test_a_table_without_a_header_is_refused_without_its_first_record(tmp_path):
    name, options = csv_files(tmp_path)
    Path(options.data[0]).write_text(f"{100 * MARK},f,{MARK},{TEXT}\n30,m,0.1,no\n")
    with pytest.raises(EquipoiseError, match="lacks age, sex, score, outcome") as caught:
        load_task(name, options)
    check(str(caught.value))
    assert TEXT not in str(caught.value)


def odd_cells():
    """Two cells of every type that pyarrow cannot turn into Python, or only into something odd."""
    import pyarrow as pa

    text = pa.array([b"\xff4711", b"f"], pa.binary()).view(pa.string())
    return {
        "nanoseconds": pa.array([4711_000_000_001, 0], pa.timestamp("ns")),
        "far date": pa.array([4711 * 10**12, 0], pa.timestamp("s")),
        "year 99999": pa.array([35_805_000, 0], pa.date32()),
        "before 1677": pa.array([-(2**63) + 1, 0], pa.timestamp("us")),
        "nowhere": pa.array([4711, 0], pa.timestamp("us", tz="Nowhere/Land")),
        "duration": pa.array([2**62, 0], pa.duration("ns")),
        "not text": text,
        "not text, coded": text.dictionary_encode(),
        "bytes": pa.array([b"\xff4711", b"f"], pa.binary()),
        "nested": pa.array([{"a": 4711}, {"a": None}]),
        "list": pa.array([[4711], None]),
        "nothing": pa.array([None, None], pa.null()),
    }


@pytest.mark.parametrize("column", ["age", "sex", "outcome"])
@pytest.mark.parametrize("cell", odd_cells())
def test_a_cell_that_parquet_cannot_turn_into_python_is_a_missing_one(
    tmp_path, capfd, cell, column
):
    import pyarrow
    import pyarrow.parquet

    name, options = csv_files(tmp_path)
    path = tmp_path / "a.parquet"
    columns = {"age": [30, 40], "sex": ["f", "m"], "score": [0.1, 0.2], "outcome": ["no", "yes"]}
    pyarrow.parquet.write_table(pyarrow.table({**columns, column: odd_cells()[cell]}), path)
    data = (str(path), options.data[1])
    task = load_task(name, replace(options, data=data, unit="record"))
    assert task.clients.sizes == (2, 2)
    assert task.clients.features.isfinite().all()
    assert capfd.readouterr() == ("", "")


def test_what_a_parser_says_of_a_broken_file_hangs_on_no_error(tmp_path, monkeypatch):
    import pyarrow.parquet

    def broken(path):
        raise ValueError(TEXT)

    monkeypatch.setattr(pyarrow.parquet, "read_table", broken)
    name, options = csv_files(tmp_path)
    (tmp_path / "a.parquet").touch()
    with pytest.raises(EquipoiseError, match="not a Parquet file") as caught:
        load_task(name, replace(options, data=(str(tmp_path / "a.parquet"),)))
    assert TEXT not in everything_said(caught.value)


class Rows(Sequence):
    """Clients that fail when they are looked at."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        raise KeyError(TEXT)


def test_errors_of_a_list_of_clients_stay_with_it():
    with pytest.raises(EquipoiseError) as caught:
        own_task(nn.Linear(2, 2), Rows(), nn.functional.cross_entropy, equipoise.accuracy)
    assert TEXT not in everything_said(caught.value)


def test_a_label_on_which_the_loss_fails_is_named_nowhere(tmp_path, monkeypatch, capsys):
    """Neither by the train error of diagnostics, nor by a sweep, nor in its store."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        TASK_FILE.replace(".long()\n", ".long()\ny[0] = 4711\n").replace("40", "30")
    )
    settings = {"task": "own.py", "epsilon": 3, "clip": 1, "iterations": 2}
    for unit in ("client", "record"):
        result = equipoise.train(**settings, unit=unit, diagnostics=True)
        assert math.isnan(result.per_round[-1].train_error)
    swept = equipoise.sweep(**settings, seeds=[0], store="s.sqlite", simulate=True)
    assert (swept.done, swept.failed) == (1, 0)
    printed = capsys.readouterr()
    assert "4711" not in printed.out + printed.err
    assert b"4711" not in Path("s.sqlite").read_bytes()


class Speaks(nn.Module):
    """Its errors and warnings repeat a record. `when` says which inputs they are about."""

    def __init__(self, when, warns=False):
        super().__init__()
        self.layer, self.when, self.warns = nn.Linear(4, 2), when, warns

    def forward(self, x):
        if self.when(self, x):
            if not self.warns:
                raise ValueError(TEXT)
            warnings.warn(TEXT, stacklevel=1)
        return self.layer(x)


@pytest.mark.parametrize(
    ("when", "warns", "sentence"),
    [
        (lambda model, x: True, False, "fail on examples .*, inputs .4. float32"),
        (lambda model, x: True, True, "warn on examples .*, inputs .4. float32"),
        (lambda model, x: model.training, False, "fail on examples"),
        (lambda model, x: model.training, True, "warn on examples"),
        (lambda model, x: len(x) == 60, False, "fail on the test set"),
    ],
)
def test_what_a_model_says_when_it_is_tried_stays_with_it(when, warns, sentence):
    clients, test = blobs()
    model, loss = Speaks(when, warns), nn.functional.cross_entropy
    with pytest.raises(EquipoiseError, match=sentence) as caught:
        own_task(model, clients, loss, equipoise.accuracy, test=test)
    text = everything_said(caught.value)
    assert TEXT not in text
    assert f"{'UserWarning' if warns else 'ValueError'} at test_private_values.py, line" in text


def test_what_a_model_says_of_single_records_stays_with_it(client_log):
    """When it is taken apart, and when it trains; not even in the client's own log."""
    clients, _ = blobs()
    model = Speaks(lambda model, x: torch.is_grad_enabled() and len(x) == 1)
    task = own_task(model, clients, nn.functional.cross_entropy, equipoise.accuracy)
    with pytest.raises(EquipoiseError, match="no gradient of a single example") as caught:
        equipoise.train(task=task, epsilon=3, clip=1, unit="record")
    assert TEXT not in everything_said(caught.value)
    clients[2][0][3] = MARK
    for unit in ("client", "record"):
        model = Speaks(lambda model, x: bool((x == MARK).any()))
        task = own_task(model, clients, nn.functional.cross_entropy, equipoise.accuracy)
        equipoise.train(task=task, epsilon=3, clip=1, unit=unit, iterations=2, diagnostics=True)
    assert len(client_log) >= 6
    of_client = [said for said in client_log if "client 2" in said]
    assert of_client
    assert all("ValueError at test_private_values.py, line" in said for said in of_client)
    assert TEXT not in "".join(client_log)


class Unusual(BaseException):
    """Not an Exception: whoever catches those alone is stopped by it."""


@pytest.mark.parametrize("error", [SystemExit(TEXT), Unusual(TEXT), GeneratorExit(TEXT)])
@pytest.mark.parametrize("where", ["model", "loss"])
def test_no_record_stops_a_run_whatever_the_code_raises(client_log, capfd, error, where):
    """What leaves nevertheless is the sum of the other records."""
    clients, _ = blobs()
    clients[2][0][3] = MARK

    def check_records(inputs):
        if bool((inputs == MARK).any()):
            raise error
        return inputs

    def loss(outputs, targets):
        if where == "loss":
            check_records(outputs)
        return nn.functional.cross_entropy(outputs[:, :2], targets)

    class Model(nn.Linear):
        def forward(self, x):
            if where == "model":
                check_records(x)
            return torch.cat([super().forward(x), x], 1)

    task = own_task(Model(4, 2), clients, loss, lambda outputs, targets: 0.5)
    for unit in ("client", "record"):
        equipoise.train(task=task, epsilon=3, clip=1, unit=unit, iterations=2, diagnostics=True)
    assert any(type(error).__name__ in said for said in client_log)
    assert TEXT not in "".join([*client_log, *capfd.readouterr()])
    x = task.x0.expand(len(clients), -1)
    sums = task.clients.clipped_sum(x, None, 1.0, 0)
    others = torch.ones(len(clients), max(task.clients.sizes), dtype=torch.bool)
    others[2, 3] = False
    torch.testing.assert_close(sums, task.clients.clipped_sum(x, others, 1.0, 0))
    assert sums[2].any()


def test_ctrl_c_stops_a_run():
    def loss(outputs, targets):
        if len(targets) > 4:  # more than the made-up examples
            raise KeyboardInterrupt
        return nn.functional.cross_entropy(outputs, targets)

    task = own_task(nn.Linear(4, 2), blobs()[0], loss, equipoise.accuracy)
    with pytest.raises(KeyboardInterrupt):
        equipoise.train(task=task, epsilon=3, clip=1, iterations=1)


def test_what_somebody_elses_code_raises_in_a_sweep_is_told_by_its_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        TASK_FILE
        + f"""
calls = []
def metric(outputs, targets):
    calls.append(1)
    if len(calls) > 3:
        raise ValueError("{TEXT}")
    return 0.5
"""
    )
    equipoise.sweep(
        task="own.py", epsilon=3, clip=1, iterations=2, seeds=[0], store="s.sqlite", simulate=True
    )
    with Store(Path("s.sqlite"), read_only=True) as store:
        assert list(store.failures().values()) == ["ValueError"]


def test_a_name_of_the_error_that_is_no_text_is_refused_before_anything_is_spent(tmp_path):
    (tmp_path / "own.py").write_text(TASK_FILE + f"\nerror_name = [{MARK}]\n")
    with pytest.raises(InvalidValue, match="error_name is not a text"):
        load_task(str(tmp_path / "own.py"), TaskOptions())


@pytest.mark.parametrize("name", ["iterations", "seeds", "local_steps", "task", "epsilon"])
def test_no_error_about_a_grid_shows_records(name):
    values = {"task": "quadratic", "epsilon": 2, "clip": 1, "iterations": 4}
    for what in (None, "paper"):
        with pytest.raises((EquipoiseError, TypeError)) as caught:
            equipoise.sweep(what, **{**values, name: [np.full(3, MARK)]})
        check(everything_said(caught.value))
