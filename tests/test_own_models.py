"""A user's own torch model and data, through Python or a task file."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import equipoise
from equipoise import DataError, InvalidValue, UnsafeModel, own_task, train
from equipoise.algorithms.algorithm import Descends, descend
from problems import ROOT, TASK_FILE, blobs, run_command


def test_own_model_example(capsys):
    """The README's ten lines, word for word."""
    text = (ROOT / "README.md").read_text()
    (block,) = [
        code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "own_task" in code
    ]
    assert len([line for line in block.splitlines() if line.strip()]) <= 14
    names = {}
    exec(block, names)
    assert names["result"].private
    assert names["result"].test_error < names["result"].baseline_error


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
    task = own_task(
        network,
        clients,
        nn.functional.cross_entropy,
        equipoise.accuracy,
        test=test,
        learning_rate=0.5,
        batch=10,
    )
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
            residual = torch.softmax(inputs @ weights.T + bias, -1) - nn.functional.one_hot(
                targets, 2
            )
            by_hand = torch.cat([(residual.T @ inputs / len(inputs)).reshape(-1), residual.mean(0)])
            torch.testing.assert_close(stacked[run, i], by_hand)
            torch.testing.assert_close(task.clients.alone(i).gradient(x[run, i], 0), by_hand)


class Odd(nn.Module):
    """Gradients that are one tensor, that take no memory of their own, and that are not there."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.randn(4, 2))
        self.shift, self.unused = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(3))
        self.drop = nn.Dropout(0.3)

    def forward(self, inputs):
        return self.drop(inputs @ (self.a + self.b)) + self.shift


def odd_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets) + outputs.mean() / 100


@pytest.mark.parametrize("h", [None, 0.01])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_steps_in_one_piece_of_memory_are_steps_one_by_one(h, kind):
    """Bit for bit, of all clients and of one alone, and the model that they begin from stays."""
    torch.manual_seed(2)
    clients = [(inputs.to(kind), targets) for inputs, targets in blobs(3)[0]]
    clients.append((clients[0][0][:0], clients[0][1][:0]))
    task = own_task(Odd().to(kind), clients, odd_loss, equipoise.accuracy, batch=5)
    assert isinstance(task.clients.steps, Descends)
    x = task.x0 + torch.randn(4, task.dimension).to(kind) / 10
    shift = None if h is None else h * torch.randn(4, task.dimension).to(kind)
    begun = x.clone()

    everybody = descend(x, range(3, 9), task.clients.steps, 0.1, shift)
    assert torch.equal(everybody, descend(x, range(3, 9), task.clients.gradient, 0.1, shift))
    assert torch.equal(x, begun)
    for i in range(4):
        alone, own = task.clients.alone(i), None if shift is None else shift[i]
        assert torch.equal(descend(x[i], range(3, 9), alone.steps, 0.1, own), everybody[i])


def test_a_client_whose_records_fail_sends_zero_and_noise_and_nobody_hears(client_log):
    """A label that the model cannot have is that client's own business."""
    clients, test = blobs()
    clients[3] = (clients[3][0], clients[3][1] + 7)
    task = own_task(
        nn.Linear(4, 2), clients, nn.functional.cross_entropy, equipoise.accuracy, test=test
    )
    result = train(task=task, epsilon=2, clip=1, iterations=3)
    assert result.private
    assert result.failed is None
    assert "client 3, local step 0: IndexError" in client_log[0]
    assert "client 3" not in result.to_json()


def test_dropout_is_off_when_measuring_and_repeats_when_training():
    clients, test = blobs()
    network = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2))
    task = own_task(
        network,
        clients,
        nn.functional.cross_entropy,
        equipoise.accuracy,
        test=test,
        learning_rate=0.5,
    )
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
    result = train(
        task=own_task(network, words, nn.functional.cross_entropy, equipoise.accuracy),
        epsilon=2,
        clip=1,
    )
    assert result.test_error is None


def test_data_sets_and_pairs_of_tensors_are_the_same():
    clients, test = blobs()
    sets = [torch.utils.data.TensorDataset(*pair) for pair in clients]
    torch.manual_seed(0)
    network = nn.Linear(4, 2)
    one, two = (
        train(
            task=own_task(
                network,
                data,
                nn.functional.cross_entropy,
                equipoise.accuracy,
                test=test,
                learning_rate=0.5,
            ),
            epsilon=2,
            clip=1,
            simulate_noise_seed=0,
        )
        for data in (clients, sets)
    )
    assert one == two


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (
            {"model": nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))},
            UnsafeModel,
            "is a batch norm",
        ),
        (
            {"loss": nn.CrossEntropyLoss(reduction="sum")},
            InvalidValue,
            "must be a mean over examples",
        ),
        (
            {"loss": nn.CrossEntropyLoss(reduction="none")},
            InvalidValue,
            "must be a mean over examples",
        ),
        (
            {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))},
            InvalidValue,
            "no class weights",
        ),
        ({"loss": nn.MSELoss()}, InvalidValue, "fail on examples|warn on examples"),
        ({"model": nn.Linear(4, 2).half()}, UnsafeModel, "need float32 or float64"),
        ({"model": Remembers()}, UnsafeModel, "remembers earlier inputs"),
        ({"model": "linear"}, InvalidValue, "not a torch nn.Module"),
        ({"test": (torch.zeros(0, 4), torch.zeros(0).long())}, DataError, "the test set is empty"),
        (
            {"metric": lambda outputs, targets: 1 / 0, "test": blobs()[1]},
            InvalidValue,
            "fail on the test set: ZeroDivisionError",
        ),
        ({"model": nn.Linear(3, 2)}, InvalidValue, "fail on examples shaped like the clients'"),
        ({"clients": []}, InvalidValue, "clients is not a list"),
        ({"clients": iter([])}, InvalidValue, "clients is not a list"),
        (
            {"clients": [(torch.zeros(3, 4), torch.zeros(2).long())]},
            InvalidValue,
            "client 0 does not have as many inputs",
        ),
        (
            {"clients": [(torch.zeros(0, 4), torch.zeros(0).long())]},
            InvalidValue,
            "or there are none",
        ),
        ({"clients": [42]}, DataError, "client 0 is neither a data set"),
    ],
)
def test_own_tasks_that_cannot_work_are_refused(change, error, sentence):
    parts = {
        "model": nn.Linear(4, 2),
        "clients": blobs()[0],
        "loss": nn.functional.cross_entropy,
        "metric": equipoise.accuracy,
    }
    with pytest.raises(error, match=sentence):
        own_task(**{**parts, **change})


def test_task_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(TASK_FILE)
    flags = (
        "train --task task.py --epsilon 2 --clip 1 --local-steps 10 --simulate-noise-seed 0 --json"
    ).split()
    first, second = (json.loads(run_command(capsys, *flags)[1]) for _ in range(2))
    assert first == second, "initial weights follow from the public seed"
    assert first["run"]["clients"] == 6
    assert first["dimension"] == 10


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            TASK_FILE.replace("model = nn.Linear(4, 2)", "model = nn.Linear(4, two)"),
            "task.py, line 8: NameError: two is not",
        ),
        (TASK_FILE.replace("x = torch", "x == torch"), "task.py, line 6: NameError"),
        (TASK_FILE + "for", "task.py, line 13: SyntaxError: invalid syntax"),
        (TASK_FILE.replace("loss =", "lost ="), "task.py defines no loss"),
        (TASK_FILE + "raise SystemExit(x[0])", "task.py, line 13: SystemExit\n"),
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


def test_a_task_object_keeps_its_own_clients():
    clients, _ = blobs()
    task = own_task(nn.Linear(4, 2), clients, nn.functional.cross_entropy, equipoise.accuracy)
    with pytest.raises(InvalidValue, match="a task object has its own clients"):
        train(task=task, epsilon=2, clip=1, batch=5)
