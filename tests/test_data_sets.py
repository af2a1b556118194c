"""The paper's data sets: real files, official layouts, and the commands about them."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

from data_files import BATCHES, binary, cifar_archive, femnist_files, leaf, put, tar_of, writer
from equipoise import DataError, report, sweep, train
from equipoise.paper.data.cifar10 import CIFAR10
from equipoise.paper.data.femnist import FEMNIST
from equipoise.paper.data.reddit import REDDIT
from equipoise.paper.tasks import table1
from equipoise.paper.tasks.reddit import next_word_accuracy, next_word_loss
from equipoise.tasks import TaskOptions, load_task
from problems import run_command


@pytest.mark.slow
def test_real_cifar10(real_data):
    arrays = CIFAR10.prepared()
    assert arrays["train_inputs"].shape == (20_000, 3, 32, 32)
    assert arrays["test_inputs"].shape == (4_000, 3, 32, 32)
    assert arrays["train_targets"][:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert arrays["train_inputs"][0, 0, 0, :4].tolist() == [59, 43, 50, 68]
    assert np.bincount(arrays["train_targets"]).tolist() == [2_000] * 10
    assert np.bincount(arrays["train_owners"])[1:].tolist() == [4_000] * 5
    task = load_task("cifar10", TaskOptions())
    assert (task.clients.sizes, task.dimension, task.batch) == ((4_000,) * 5, 878_538, 64)
    assert task.constant_error == pytest.approx(0.9)


@pytest.mark.slow
def test_real_femnist(real_data):
    arrays = FEMNIST.prepared()
    assert (len(arrays["train_targets"]), len(arrays["test_targets"])) == (14_708, 1_685)
    assert {*arrays["train_targets"]} == {*range(62)}
    assert {*arrays["train_owners"]} == {*arrays["test_owners"]} == {*range(105)}
    assert arrays["train_inputs"].max() == 1
    assert arrays["train_inputs"][:, 0, 0, 0].mean() > 0.99
    task = load_task("femnist", TaskOptions())
    assert (sum(task.clients.sizes), len(task.clients.sizes), task.dimension) == (
        14_708,
        6,
        608_702,
    )
    assert load_task("femnist-narrow", TaskOptions()).dimension == 44_318
    by_writer = load_task("femnist", TaskOptions(split="natural"))
    assert sum(by_writer.clients.sizes) == 14_708
    assert len({*by_writer.clients.sizes}) > 2
    for inputs, _ in by_writer.clients.data:  # no writer is with two clients
        owners = {*arrays["train_owners"][inputs.index.numpy()].tolist()}
        others = [i.index.numpy() for i, _ in by_writer.clients.data if i is not inputs]
        assert not owners & {*arrays["train_owners"][np.concatenate(others)].tolist()}


@pytest.mark.slow
def test_real_reddit(real_data):
    arrays = REDDIT.prepared()
    assert (arrays["train_inputs"].shape, arrays["test_inputs"].shape) == (
        (50_990, 10),
        (18_123, 10),
    )
    assert arrays["vocabulary"].tolist() == [10_000]
    first = arrays["train_inputs"][:, 0]
    assert Counter(first.tolist())[5] == 8_259  # every comment begins with <BOS>, number 5
    tokens, targets = arrays["train_inputs"], arrays["train_targets"]
    inside = tokens[:, 1:] != 0
    assert (
        tokens[:, 1:][inside] == targets[:, :-1, 0][inside]
    ).all()  # the target is the next input
    assert (targets[..., 1] == (tokens != 0)).all()
    assert (tokens == 1).sum() / (tokens != 0).sum() == pytest.approx(
        0.0553, abs=0.02
    )  # the vocabulary covers 92.5 % of words
    task = load_task("reddit", TaskOptions())
    assert (task.clients.sizes, task.dimension) == ((16_997, 16_997, 16_996), 6_182_672)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10-narrow", "femnist-narrow"])
@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-scaffnew"])
def test_real_images_are_learnt(real_data, name, algorithm):
    """A few steps bring the loss down; measured are all test records, and the clients' own."""
    flags = {
        "task": name,
        "iterations": 60,
        "local_steps": 20,
        "eta": 0.1,
        "algorithm": algorithm,
        "batch": 16,
    }
    result = train(epsilon=float("inf"), **flags)
    assert result.curve[-1].test_loss < result.curve[0].test_loss - 0.004
    assert result.client_error is not None
    assert abs(result.client_error - result.test_error) < 0.02
    assert len(result.curve) < 10  # a network is not measured after every round


@pytest.mark.slow
def test_real_images_with_the_privacy_of_a_record(real_data):
    flags = {
        "task": "femnist-narrow",
        "iterations": 4,
        "local_steps": 2,
        "clip": 1.0,
        "epsilon": 3.0,
    }
    result = train(unit="record", sampling_rate=0.01, **flags)
    assert result.private
    assert result.epsilon_spent <= 3
    assert not any("SLOW" in notice for notice in result.notices)


def test_next_word_accuracy_as_leaf_counts_it():
    """Right are 2 of the 4 counted: <UNK> and <PAD> are never right, and the padded place does not
    count."""
    words = [[7, 1, 0, 9, 0] + [0] * 5]
    counted = [[1, 1, 1, 1, 0] + [0] * 5]
    targets = torch.tensor([words, counted]).permute(1, 2, 0)
    outputs = torch.nn.functional.one_hot(targets[..., 0], 12).double()
    assert next_word_accuracy(outputs, targets) == pytest.approx(2 / 4)
    outputs[0, 0] = 0
    assert next_word_accuracy(outputs, targets) == pytest.approx(1 / 4)
    loss = next_word_loss(outputs, targets)
    outputs[0, 5:] = 100 * torch.randn(
        5, 12
    )  # what is predicted behind the padding does not matter
    assert torch.equal(loss, next_word_loss(outputs, targets))


# ---- layouts ----


def test_packed_or_not_it_is_the_same(place):
    cifar_archive(place)
    packed = CIFAR10.prepared()
    labels = np.array([[i % 10, 1, 2, 9] for i in range(1, 6)])
    assert packed["train_targets"].tolist() == labels.flatten().tolist()
    (place / "cifar10" / "cifar-10-binary.tar.gz").unlink()
    for name, content in BATCHES.items():
        put(place / "cifar10" / "cifar-10-batches-bin" / f"{name}.bin", content)
    plain = CIFAR10.prepared()
    assert all(np.array_equal(packed[key], plain[key]) for key in packed)


def test_of_two_versions_of_cifar10_the_binary_is_read(place):
    """A folder that has only the Python version is told how to get the other."""
    python = {"cifar-10-batches-py/data_batch_1": b"a pickle"}
    tar_of(place / "cifar10" / "cifar-10-python.tar.gz", python)
    with pytest.raises(DataError, match="run `equipoise data fetch cifar10`"):
        CIFAR10.prepared()
    cifar_archive(place)
    assert len(CIFAR10.prepared()["train_targets"]) == 20


def test_a_packed_copy_beside_unpacked_files_is_not_read_twice(place):
    cifar_archive(place)
    put(place / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin", binary([3]))
    arrays = CIFAR10.prepared()
    assert (len(arrays["train_targets"]), arrays["test_targets"].tolist()) == (20, [3])


def test_femnist_writers_become_clients(place):
    users = {f"f{i:04}": writer([i % 62, 1, 2, 3], i) for i in range(7)}
    put(place / "femnist" / "data" / "train" / "a.json", leaf(users))
    put(place / "femnist" / "data" / "test" / "a.json", leaf({name: writer([5]) for name in users}))
    put(place / "femnist" / "data" / "test_without_train" / "b.json", b"not looked at")
    task = load_task("femnist-narrow", TaskOptions(split="natural", clients=7, public_records=3))
    assert sum(task.clients.sizes) == 25
    assert task.pool.sizes == (3,)
    assert task.clients.data[0][0].shape[1:] == (1, 28, 28)
    with pytest.raises(ValueError, match="clients=8 with split=natural: there are 7 writers"):
        load_task("femnist-narrow", TaskOptions(split="natural", clients=8))


# ---- the command ----


def test_a_missing_data_set_is_one_sentence_with_the_command(place, capsys):
    code, _, error = run_command(capsys, "train", "--task", "cifar10", "--epsilon", "inf")
    assert code == 2
    assert "run `equipoise data fetch cifar10`" in error
    assert str(place) in error
    code, _, error = run_command(capsys, "train", "--task", "messidor", "--epsilon", "inf")
    assert code == 2
    assert "https://www.adcis.net" in error


def test_the_list_of_data_sets(place, capsys):
    cifar_archive(place)
    code, out, _ = run_command(capsys, "data")
    assert code == 0
    assert "present, not read yet: `equipoise data check cifar10`" in out
    assert "missing" in out
    code, out, _ = run_command(capsys, "data", "check", "cifar10", "--json")
    (stock,) = json.loads(out)
    assert (stock["state"], stock["train"], stock["test"], stock["complete"]) == (
        "incomplete",
        20,
        3,
        False,
    )
    code, out, _ = run_command(capsys, "data")
    assert (
        "incomplete: 20 train and 3 test records (whole: 50,000 train and 10,000 test records)"
        in out
    )
    code, _, error = run_command(capsys, "data", "fetch", "nonsense")
    assert code == 2
    assert "'nonsense' is no data set" in error
    code, _, error = run_command(capsys, "data", "fetch", "messidor")
    assert code == 2
    assert "cannot be fetched by a command: ask for Base11.zip" in error


# ---- clients ----


@pytest.mark.parametrize("split", ["random", "natural"])
def test_a_client_copies_rows_of_its_own_only(place, split):
    """The arrays stay mapped; what lies in the rows of others does not reach a client."""
    users = {f"f{i}": writer([i, 1, 2, 3], i) for i in range(6)}
    femnist_files(place, leaf(users), leaf({name: writer([5]) for name in users}))
    task = load_task("femnist-narrow", TaskOptions(split=split, clients=3, batch="full"))
    for client, (inputs, targets) in enumerate(task.clients.data):
        assert (len(inputs), inputs[:].shape) == (8, (8, 1, 28, 28))
        assert inputs.whole.data_ptr() == task.clients.data[0][0].whole.data_ptr()
        before = task.clients.alone(client).gradient(task.x0, 0)
        others = np.setdiff1d(np.arange(24), inputs.index.numpy())
        saved = inputs.whole[others].clone(), targets.whole[others].clone()
        inputs.whole[others], targets.whole[others] = torch.nan, 61
        assert torch.equal(task.clients.alone(client).gradient(task.x0, 0), before)
        inputs.whole[others], targets.whole[others] = saved


def test_what_a_split_takes_as_public(place):
    users = {f"f{i}": writer([i, 1, 2, 3], i) for i in range(6)}
    femnist_files(place, leaf(users), leaf({name: writer([5]) for name in users}))
    for split, sentence in (
        (None, "an equal random split"),
        ("dirichlet:1", "a split skewed by the labels"),
        ("natural", "which writer a record comes from, and which client has which"),
    ):
        assert load_task("femnist-narrow", TaskOptions(split=split)).public[-1] == sentence


def test_an_equal_split_reads_no_targets(place, monkeypatch):
    """Masks are as large as scans: to deal records at random they need not be copied."""

    class Unread(np.ndarray):
        def __getitem__(self, index):
            raise AssertionError("read")

    targets = np.zeros((12, 2, 2, 2), dtype=np.uint8).view(Unread)
    arrays = {"train_targets": targets, "test_targets": targets}
    dealt = table1._records_dealt(arrays, TaskOptions(public_records=3), 3, "a task")
    assert [len(part) for part in (dealt.pool, *dealt.parts, *dealt.tests)] == [3, 3, 3, 3, 4, 4, 4]
    with pytest.raises(ValueError, match="a target of task=a task is not a class"):
        table1._records_dealt(arrays, TaskOptions(split="dirichlet:1"), 3, "a task")


def test_a_part_of_a_data_set_is_called_one(place, tmp_path):
    """In the task, the result, and the report; the whole is not."""
    users = {f"f{i}": writer([i, 1, 2, 3], i) for i in range(6)}
    femnist_files(place, leaf(users), leaf({name: writer([5]) for name in users}))
    task = load_task("femnist-narrow", TaskOptions())
    part = "24 of 36,774 training and 6 of 4,104 test records"
    assert task.part == part
    result = train(task="femnist-narrow", epsilon=2, clip=1, iterations=2, diagnostics=True)
    assert result.part == part
    assert f"PART OF THE DATA: {part}." in result.notices
    document = {"task": "femnist-narrow", "epsilon": 2, "clip": 1, "iterations": 2, "seeds": [0]}
    sweep(document, store=tmp_path / "s.sqlite")
    report(tmp_path / "s.sqlite", out=tmp_path / "r")
    assert part in (tmp_path / "r" / "index.html").read_text()
    assert load_task("digits", TaskOptions()).part == ""
