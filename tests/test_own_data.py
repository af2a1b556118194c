"""A user's own data sets: what cannot be read counts for nothing, stops nothing and is told to
nobody."""

import math
import traceback

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise
from equipoise import DataError, EquipoiseError, InvalidValue, own_task, train
from equipoise.tasks import TaskOptions, load_task

TEXT = "patient 4711"
ODD = 2  # the record that is odd


class Records:
    """Eight records, of which `odd` says what is at ODD."""

    def __init__(self, odd=None, first=0):
        self.odd, self.first = odd, first

    def __len__(self):
        return 8

    def __getitem__(self, j):
        if j == ODD and self.odd:
            return self.odd()
        value = math.sin(self.first + j)
        return torch.tensor([value, 1 - value]), int(value > 0)


def raising(error):
    def read():
        raise error

    return read


ODD_RECORDS = {
    "key": raising(KeyError(TEXT)),
    "exit": raising(SystemExit(TEXT)),
    "our own error": raising(InvalidValue(TEXT)),
    "stop": raising(StopIteration(TEXT)),
    "a group": raising(ExceptionGroup(TEXT, [ValueError(TEXT)])),
    "three parts": lambda: (torch.zeros(2), 1, TEXT),
    "nothing": lambda: None,
    "text": lambda: (torch.zeros(2), TEXT),
    "another shape": lambda: (torch.zeros(3), 1),
    "a target of another shape": lambda: (torch.zeros(2), [1, 0]),
    "no label": lambda: (torch.zeros(2), math.nan),
    "half a label": lambda: (torch.zeros(2), 0.5),
    "infinite label": lambda: (torch.zeros(2), -math.inf),
    "beyond 64 bits": lambda: (torch.zeros(2), 2**70),
    "complex": lambda: (torch.zeros(2, dtype=torch.complex64), 1),
}


def linear(clients, **more):
    torch.manual_seed(0)
    return own_task(
        nn.Linear(2, 2), clients, nn.functional.cross_entropy, equipoise.accuracy, **more
    )


@pytest.mark.parametrize("odd", ODD_RECORDS)
@pytest.mark.parametrize("everybody", [False, True])
def test_a_record_that_cannot_be_read_counts_for_nothing(capfd, client_log, odd, everybody):
    """In either unit the others count as they would without it, and how many there are does not
    change."""
    where = (0, 1, 2) if everybody else (1,)
    clients = [Records(ODD_RECORDS[odd] if i in where else None, 10 * i) for i in range(3)]
    task, ordinary = linear(clients), linear([Records(first=10 * i) for i in range(3)])
    assert task.clients.sizes == ordinary.clients.sizes == (8, 8, 8)
    assert task.public == ordinary.public
    assert task.facts("record") == ordinary.facts("record")
    x = torch.randn(3, task.dimension, generator=torch.Generator().manual_seed(1))
    others = torch.ones(3, 8, dtype=torch.bool)
    others[list(where), ODD] = False
    torch.testing.assert_close(
        task.clients.clipped_sum(x, None, 0.1, 0), ordinary.clients.clipped_sum(x, others, 0.1, 0)
    )
    for i in range(3):
        inputs, targets = (part[others[i]] for part in ordinary.clients.data[i])
        alone = linear([(inputs, targets)])
        torch.testing.assert_close(
            task.clients.gradient(x, 0)[i], alone.clients.gradient(x[i : i + 1], 0)[0]
        )
        torch.testing.assert_close(
            task.clients.alone(i).gradient(x[i], 0), task.clients.gradient(x, 0)[i]
        )
    for unit in ("client", "record"):
        result = train(task=task, epsilon=3, clip=1, iterations=3, unit=unit, diagnostics=True)
        assert math.isfinite(result.per_round[-1].train_error)
    printed = "".join([*capfd.readouterr(), *client_log])
    assert TEXT not in printed
    assert printed == ""


def test_minibatches_skip_what_cannot_be_read():
    task = linear([Records(raising(KeyError(TEXT)))], batch=1)
    ordinary = linear([Records()], batch=1)
    gradients = [
        (task.clients.gradient(task.x0[None], t), ordinary.clients.gradient(task.x0[None], t))
        for t in range(8)
    ]
    assert [bool(odd.any()) for odd, _ in gradients].count(False) == 1
    assert all(torch.equal(odd, usual) for odd, usual in gradients if odd.any())


FRAME = pd.DataFrame({"a": [0.5, -1.0, 2.0, 0.1], "b": [1.0, 2.0, 3.0, 4.0]})
LABELS = pd.Series([0, 1, 1, 0])
ODD_CELLS = {
    "text": (FRAME.astype(object).mask(FRAME == 3.0, TEXT), LABELS),
    "a missing label": (FRAME, LABELS.where([True, True, False, True])),
    "a missing label of pandas": (FRAME, LABELS.astype("Int64").where([True, True, False, True])),
    "a label that is text": (FRAME, LABELS.astype(object).where([True, True, False, True], TEXT)),
    "half a label": (FRAME, pd.Series([0, 1, 0.5, 0])),
    "a date": (FRAME.astype(object).mask(FRAME == 3.0, pd.Timestamp("2020-01-01")), LABELS),
    "strings": (FRAME.astype(str).mask(FRAME == 3.0, TEXT).to_numpy(dtype=str), LABELS),
}


@pytest.mark.parametrize("odd", ODD_CELLS)
@pytest.mark.parametrize("others", [0, 1, 4])
def test_a_cell_that_cannot_be_read_costs_its_record_alone(capfd, odd, others):
    """It may change the type of its whole column: what the loss wants decides on the type."""
    task = linear([ODD_CELLS[odd], *[(FRAME, LABELS)] * others])
    ordinary = linear([(FRAME, LABELS)] * (others + 1))
    assert task.clients.sizes == (4,) * (others + 1)
    x = torch.randn(others + 1, task.dimension, generator=torch.Generator().manual_seed(1))
    chosen = torch.ones(others + 1, 4, dtype=torch.bool)
    chosen[0, 2] = False
    torch.testing.assert_close(
        task.clients.clipped_sum(x, None, 0.1, 0), ordinary.clients.clipped_sum(x, chosen, 0.1, 0)
    )
    train(task=task, epsilon=3, clip=1, iterations=2)
    assert TEXT not in "".join(capfd.readouterr())


def test_numbers_to_predict_stay_real_if_one_client_has_whole_ones():
    whole, real = np.array([1, 2, 3, 4]), np.array([0.5, 1.5, 2.5, 3.5])
    for targets in ([whole, real], [real, whole]):
        task = own_task(
            nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)),
            [(FRAME, part) for part in targets],
            nn.functional.mse_loss,
            lambda outputs, wanted: -float((outputs - wanted).square().mean()),
        )
        for (_, kept), part in zip(task.clients.data, targets, strict=True):
            assert kept.tolist() == part.tolist()
        assert not any(marks.any() for marks in task.clients.unreadable)


def test_a_client_of_whom_nothing_can_be_read_stops_nobody(leaves):
    """It sends noise, like everybody."""

    class Nothing(Records):
        def __getitem__(self, j):
            raise KeyError(TEXT)

    releases, updates = leaves
    task = linear([Records(), Nothing(), Records(first=9)])
    for unit in ("client", "record"):
        train(task=task, epsilon=3, clip=1, iterations=1, unit=unit)
    assert task.clients.sizes == (8, 8, 8)
    assert not updates[0][1].any()
    assert releases[0][1].any()


@pytest.mark.parametrize("error", [KeyError(TEXT), SystemExit(TEXT), InvalidValue(TEXT)])
@pytest.mark.parametrize("place", ["function", "length", "every record"])
def test_what_is_wrong_with_a_data_set_as_a_whole_is_told_by_its_kind(error, place):
    class Broken(Records):
        def __len__(self):
            return raising(error)() if place == "length" else 8

        def __getitem__(self, j):
            raise error

    broken = raising(error) if place == "function" else Broken()
    with pytest.raises(DataError, match=f"client 0 is neither.*{type(error).__name__}") as caught:
        linear([broken])
    assert TEXT not in "".join(traceback.format_exception(caught.value))


def test_warnings_of_a_data_set_are_not_shown(recwarn):
    import warnings

    def warned():
        warnings.warn(TEXT, stacklevel=1)
        return torch.zeros(2), 1

    linear([Records(warned)])
    assert len(recwarn) == 0


def test_public_records_must_be_readable_all():
    for odd in ("key", "another shape"):
        for role in ("test", "pool"):
            with pytest.raises(DataError, match=r"the (test set|public pool) is neither") as caught:
                linear([Records()], **{role: Records(ODD_RECORDS[odd])})
            assert TEXT not in str(caught.value)
    with pytest.raises(DataError, match="the public pool is empty"):
        linear([Records()], pool=(torch.zeros(0, 2), torch.zeros(0).long()))
    wide = torch.zeros(9, 3), torch.zeros(9).long()
    for more in ({"test": Records(first=5)}, {"example": Records()[0]}):
        with pytest.raises(DataError, match="the public pool's examples differ"):
            linear([Records()], pool=wide, **more)
    with pytest.raises(InvalidValue, match=r"fail on examples .*, inputs \[3\]"):
        linear([Records()], pool=wide)
    with pytest.raises(InvalidValue, match="the test set is a DataLoader"):
        linear([Records()], test=DataLoader(TensorDataset(torch.zeros(2, 2), torch.zeros(2))))


def test_only_what_was_said_to_be_public_is():
    assert linear([Records()]).measure is None
    assert linear([Records()]).pool is None
    assert train(task=linear([Records()]), epsilon=3, clip=1, iterations=1).test_error is None
    assert not any("test" in sentence for sentence in linear([Records()]).public)
    assert linear([Records()], test=Records(first=5)).public[-1] == "the test set"
    assert linear([Records()], pool=Records(first=5)).public[-1] == "the public pool"


def test_arrays_that_differ_in_shape_are_refused():
    """That is no matter of a record."""
    wide = np.zeros((4, 3)), np.zeros(4, dtype=int)
    with pytest.raises(InvalidValue, match="differ in shape"):
        linear([(FRAME, LABELS), wide])


class Pixels(nn.Linear):
    """Bytes are pixels; other numbers are taken as they are."""

    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        return super().forward(x.float() / 255 if x.dtype == torch.uint8 else x.float())


PIXELS = np.random.default_rng(0).integers(0, 256, (32, 4), dtype=np.uint8)
CLASSES = np.arange(32) % 3


def without_a_cell(kind):
    cells = PIXELS.astype(kind)
    cells[5, 1] = np.nan if kind is float else None
    return cells


ODD_PIXELS = {"object": without_a_cell(object), "float": without_a_cell(float)}


def pixel_task(clients, **more):
    torch.manual_seed(0)
    loss = nn.functional.cross_entropy
    return own_task(Pixels(), clients, loss, equipoise.accuracy, **more)


@pytest.mark.parametrize("odd", ODD_PIXELS)
def test_no_client_decides_how_another_is_read(odd):
    """One missing cell at client 0 makes its array one of objects, or of real numbers."""
    ordinary = pixel_task([(PIXELS, CLASSES)] * 2)
    task = pixel_task([(ODD_PIXELS[odd], CLASSES), (PIXELS, CLASSES)])
    x = task.x0.expand(2, -1)
    assert torch.equal(task.clients.gradient(x, 0)[1], ordinary.clients.gradient(x, 0)[1])
    sums = [each.clients.clipped_sum(x, None, 1.0, 0)[1] for each in (task, ordinary)]
    torch.testing.assert_close(*sums, rtol=1e-9, atol=0)
    assert task.clients.data[1][0].dtype == torch.uint8
    alone = pixel_task([(ODD_PIXELS[odd], CLASSES), (PIXELS, CLASSES)], only=1)
    assert torch.equal(alone.clients.gradient(x[1], 0), task.clients.gradient(x, 0)[1])


PUBLIC = {
    "example": {"example": (PIXELS[0], CLASSES[0])},
    "test": {"test": (PIXELS[:9], CLASSES[:9])},
    "pool": {"pool": (PIXELS[:9], CLASSES[:9])},
}


@pytest.mark.parametrize("odd", ODD_PIXELS)
@pytest.mark.parametrize("public", PUBLIC)
def test_what_is_public_decides_how_records_are_read(odd, public):
    """Then a missing cell costs its record alone, and a run needs no notice."""
    task = pixel_task([(ODD_PIXELS[odd], CLASSES)], **PUBLIC[public])
    ordinary = pixel_task([(PIXELS, CLASSES)], **PUBLIC[public])
    assert task.clients.unreadable[0].nonzero().tolist() == [[5]]
    others = torch.arange(32)[None] != 5
    torch.testing.assert_close(
        task.clients.clipped_sum(task.x0[None], None, 1.0, 0),
        ordinary.clients.clipped_sum(task.x0[None], others, 1.0, 0),
    )
    assert task.public == ordinary.public
    assert task.notices == ordinary.notices == []


LANDSCAPE, PORTRAIT = torch.ones(1, 4, 6), torch.ones(1, 6, 4)


def picture_task(pictures, **more):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    clients = [[(picture, j % 2) for j, picture in enumerate(pictures)]]
    return own_task(model, clients, nn.functional.cross_entropy, equipoise.accuracy, **more)


def test_without_anything_public_most_records_decide_and_that_is_said(tmp_path):
    notice = "OUTSIDE THE GUARANTEE: the shape and type of the examples are those that most"
    pictures = [LANDSCAPE] * 5 + [PORTRAIT] * 5
    for number, odd in ((5, []), (6, [PORTRAIT])):  # one record tips the scales
        task = picture_task([*pictures, *odd])
        assert task.clients.unreadable[0].sum() == 5
        assert any("those that most records have" in sentence for sentence in task.public)
        result = train(task=task, epsilon=3, clip=1, iterations=1, unit="record")
        assert [line for line in result.notices if line.startswith(notice)]
        assert "give example=" in "".join(result.notices)
        planned = equipoise.plan(task=task, epsilon=3, clip=1, unit="record")
        assert [line for line in planned.notices if line.startswith(notice)]
        declared = picture_task([*pictures, *odd], example=(LANDSCAPE, 0))
        assert declared.clients.unreadable[0].sum() == number
        assert not any("most records" in sentence for sentence in declared.public)
        assert train(task=declared, epsilon=3, clip=1, iterations=1, unit="record").notices == []


def test_a_task_file_may_declare_an_example(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "import torch, equipoise\nmodel = torch.nn.Linear(2, 2)\nmetric = equipoise.accuracy\n"
        "loss = torch.nn.functional.cross_entropy\nclients = [[(torch.ones(2), 0)] * 4]\n"
    )
    assert load_task(str(path), TaskOptions()).notices
    path.write_text(path.read_text() + "example = torch.zeros(2), 0\n")
    assert not load_task(str(path), TaskOptions()).notices


def test_examples_that_declare_nothing_or_something_else_are_refused():
    for example in (TEXT, (torch.zeros(2),), (torch.zeros(2), TEXT), (torch.zeros(2), None)):
        with pytest.raises(InvalidValue, match="example is not") as caught:
            linear([Records()], example=example)
        assert TEXT not in str(caught.value)
    with pytest.raises(InvalidValue, match="differ in shape"):
        linear([(FRAME, LABELS)], example=(torch.zeros(3), 0))
    with pytest.raises(InvalidValue, match="differ in shape or type from what is declared"):
        picture_task([PORTRAIT] * 3, example=(LANDSCAPE, 0))


class Refusing(torch.Tensor):
    """Whatever is done with it raises."""

    @classmethod
    def __torch_function__(cls, *arguments, **more):
        raise RuntimeError(TEXT)


class Wrapped(torch.Tensor):
    """A tensor without values of its own."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (2,))

    @classmethod
    def __torch_dispatch__(cls, *arguments, **more):
        raise RuntimeError(TEXT)


ODD_TENSORS = {
    "sparse": lambda: torch.tensor([0.0, 1.0]).to_sparse(),
    "meta": lambda: torch.zeros(2, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "eight bits": lambda: torch.zeros(2, dtype=torch.float8_e4m3fn),
    "wrapped": Wrapped,
}


@pytest.mark.parametrize("odd", ODD_TENSORS)
@pytest.mark.parametrize("place", ["input", "target"])
def test_a_record_that_is_an_odd_tensor_counts_for_nothing(capfd, odd, place):
    def record():
        strange = ODD_TENSORS[odd]()
        return (strange, 1) if place == "input" else (torch.zeros(2), strange)

    task = linear([Records(record), Records(first=9)])
    assert task.clients.unreadable[0].nonzero().tolist() == [[ODD]]
    for unit in ("client", "record"):
        train(task=task, epsilon=3, clip=1, iterations=1, unit=unit)
    assert TEXT not in "".join(capfd.readouterr())


def test_tensors_with_a_history_or_a_class_of_their_own_are_read_as_numbers():
    ordinary = linear([Records(lambda: (torch.ones(2), 1))]).clients.data
    inputs, labels = ordinary[0]
    for odd in (
        torch.ones(2, requires_grad=True),
        nn.Parameter(torch.ones(2)),
        torch.ones(2).as_subclass(Refusing),
    ):
        task = linear([Records(lambda odd=odd: (odd, 1))])
        assert torch.equal(task.clients.data[0][0], inputs)
        assert not task.clients.data[0][0].requires_grad
    for whole in (inputs.clone().requires_grad_(), inputs.as_subclass(Refusing)):
        task = linear([(whole, labels)])
        assert type(task.clients.data[0][0]) is torch.Tensor
        assert not task.clients.data[0][0].requires_grad
        train(task=task, epsilon=3, clip=1, iterations=1, unit="record")


def test_a_task_with_an_unreadable_record_is_not_taken_for_one_without():
    zeros = Records(lambda: (torch.zeros(2), 0))
    odd = Records(raising(KeyError(TEXT)))
    assert linear([zeros]).fingerprint != linear([odd]).fingerprint


# -------------------------------------------------------------------------------------------------
# records on which the model or the loss fails


CALLS = []


class Counting(nn.Linear):
    """Counts how often it runs, where passes do not put things back."""

    def __init__(self):
        super().__init__(2, 2)

    def forward(self, x):
        CALLS.append(1)
        return super().forward(x)


def sums(labels, steps, loss=nn.functional.cross_entropy, rate=None, single=False):
    """Clipped sums at several models, and how often the network ran for each."""
    torch.manual_seed(0)
    network = Counting()
    inputs = torch.randn(len(labels), 2)
    task = own_task(network, [(inputs, torch.tensor(labels))], loss, equipoise.accuracy)
    clients = task.clients.alone(0) if single else task.clients
    clients.check_records()
    assert not clients.one_by_one
    generator = torch.Generator().manual_seed(5)
    found = []
    for step in range(steps):
        x = torch.randn(1, task.dimension, generator=generator)
        chosen = None
        if rate:
            chosen = torch.rand(1, len(labels), generator=generator) < rate
        before = len(CALLS)
        if single:
            total = clients.clipped_sum(x[0], None if chosen is None else chosen[0], 0.5, step)
        else:
            total = clients.clipped_sum(x, chosen, 0.5, step)[0]
        found.append((total, len(CALLS) - before))
    return task, found


@pytest.mark.parametrize("bad", [{5: 7}, {0: -1, 39: 2}, dict.fromkeys(range(0, 40, 3), 4711)])
@pytest.mark.parametrize("single", [False, True])
def test_a_record_that_fails_is_looked_for_once(bad, single):
    """From then on a step costs what it cost without it: one pass."""
    labels = [bad.get(j, j % 2) for j in range(40)]
    task, results = sums(labels, 6, single=single)
    assert [calls for _, calls in results[1:]] == [1] * 5
    kept = torch.tensor([[j not in bad for j in range(40)]])
    ordinary = own_task(
        nn.Linear(2, 2),
        [(task.clients.data[0][0], torch.arange(40) % 2)],
        nn.functional.cross_entropy,
        equipoise.accuracy,
    )
    generator = torch.Generator().manual_seed(5)
    for total, _ in results:
        x = torch.randn(1, task.dimension, generator=generator)
        expected = ordinary.clients.clipped_sum(x, kept, 0.5, 0)[0]
        torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)


def test_samples_look_for_a_record_that_fails_once():
    _, results = sums([7 if j == 3 else j % 2 for j in range(40)], 40, rate=0.3)
    assert sum(calls > 1 for _, calls in results) == 1


def test_a_model_on_which_all_fail_is_not_held_against_the_records():
    """A loss that refuses some models: at the next one every record counts again."""

    def loss(outputs, targets):
        assert outputs.abs().max() < 100
        return nn.functional.cross_entropy(outputs, targets)

    task, _ = sums([j % 2 for j in range(40)], 1, loss)
    usual = torch.full((1, task.dimension), 0.1)
    before = task.clients.clipped_sum(usual, None, 0.5, 0)
    assert not task.clients.clipped_sum(1e6 * usual, None, 0.5, 0).any()
    assert torch.equal(task.clients.clipped_sum(usual, None, 0.5, 0), before)
    assert before.any()


def test_what_a_model_raises_is_logged_by_its_kind(client_log):
    def loss(outputs, targets):
        if (targets == 7).any():
            raise ValueError(TEXT)
        return nn.functional.cross_entropy(outputs, targets)

    data = [(torch.randn(8, 2), torch.tensor([0, 1, 7, 1, 0, 1, 0, 1]))]
    task = own_task(nn.Linear(2, 2), data, loss, equipoise.accuracy)
    for unit in ("client", "record"):
        train(task=task, epsilon=3, clip=1, iterations=2, unit=unit, diagnostics=True)
    assert any("ValueError" in line for line in client_log)
    assert not any(TEXT in line for line in client_log)


def test_a_function_is_called_for_its_own_client_alone():
    asked = []

    def client(i):
        return lambda: asked.append(i) or Records(first=i)

    task = linear([client(i) for i in range(4)], only=2)
    assert asked == [2]
    assert task.number == 4
    assert task.clients.sizes == (8,)
    with pytest.raises(EquipoiseError, match="client=4 is not one of the 4 clients, from 0"):
        linear([client(i) for i in range(4)], only=4)
