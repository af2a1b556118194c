"""No repr, exception, log or traceback of ours shows a private value."""

import io
import logging
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import equipoise
from equipoise import EquipoiseError, InvalidValue, Question, Settings, own_task
from equipoise.engine import noise_of, single_fleet
from equipoise.tasks import TaskOptions, load_task
from equipoise.training import prepare
from problems import BOUNDS, TASK_FILE

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


def check(text):
    assert str(MARK) not in text
    assert not any(word in text for word in ARRAYS), text


def test_no_repr_shows_records(task):
    pieces = [task, task.clients, task.clients.alone(0), task.measure, task.pool]
    for piece in pieces:
        texts = list(shown(piece)) if piece in (task, task.measure) else [repr(piece), str(piece)]
        for text in texts:
            check(text)


@pytest.mark.parametrize("make", [Settings.of, Question.of])
@pytest.mark.parametrize("name", ["task", "data", "clip", "seed", "nonsense"])
def test_no_error_about_settings_shows_records(task, make, name):
    """A task, or data, where a name or a number belongs: refused without repeating it."""
    values = {"task": "quadratic", "epsilon": 2, "clip": 1}
    for wrong in (task, task.clients, [MARK] * 1000, np.full(3, MARK), torch.full((3,), MARK)):
        stream = io.StringIO()
        try:
            make(**{**values, name: wrong})
        except InvalidValue:
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
    text = "".join(traceback.format_exception(caught.value))
    assert TEXT not in text
    assert "client 0" in text
    assert type(error).__name__ in text


@pytest.mark.parametrize("line", [f"raise ValueError('{TEXT}')", f"{{}}['{TEXT}']"])
def test_errors_of_a_task_file_are_told_by_kind_and_line(tmp_path, line):
    path = tmp_path / "own.py"
    path.write_text(f"import torch\n{line}\n")
    with pytest.raises(EquipoiseError) as caught:
        load_task(str(path), TaskOptions())
    assert TEXT not in "".join(traceback.format_exception(caught.value))
    assert "line 2" in str(caught.value)


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
