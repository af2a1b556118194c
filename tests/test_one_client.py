"""One client alone: it opens nothing that belongs to the others, and computes what it would among
them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise import InvalidValue
from equipoise.algorithms.dp_scaffnew import dp_scaffnew
from equipoise.fleets import Broadcast, SimulatedFleet, client_round
from equipoise.privacy.clip import ClippedRelease
from equipoise.privacy.lattice import NOT_ROUNDED
from equipoise.privacy.noise import SimulatedNoise
from equipoise.privacy.noisy_gradient import NoisyGradient
from equipoise.settings import Settings
from equipoise.tasks import TaskOptions, load_client, load_task
from equipoise.training import account_of
from problems import FINE, HEADER

FUNCTIONS = """
from pathlib import Path

import torch
from torch import nn
from equipoise import accuracy as metric


def records(client):
    def read():
        with Path("opened.txt").open("a") as log:
            log.write(f"{client} ")
        generator = torch.Generator().manual_seed(client)
        x = torch.randn(20 + client, 4, generator=generator, dtype=torch.float64)
        return x, (x[:, 0] > 0).long()

    return read


model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2)).double()
clients = [records(client) for client in range(5)]
loss = nn.functional.cross_entropy
learning_rate, batch = 0.5, 6
"""


def table(rows, seed):
    """A client's file of `rows` records."""
    rng = np.random.default_rng(seed)
    lines = [
        f"{rng.uniform(0, 100):.3f},{rng.choice(['f', 'm'])},{rng.uniform(-1, 1):.3f},"
        f"{rng.choice(['no', 'yes'])}"
        for _ in range(rows)
    ]
    return HEADER + "\n".join(lines) + "\n"


@pytest.fixture
def files(clinic):
    """Options of a task csv with four clients of unequal size, whose files lie in this folder."""
    names = tuple(f"{letter}.csv" for letter in "abcd")
    for seed, name in enumerate(names):
        Path(name).write_text(table(9 + 4 * seed, seed))
    return TaskOptions(
        data=names, label="outcome", bounds="bounds.toml", test=("test.csv",), batch=5, seed=3
    )


def check_alike(alone, together, client):
    """The same gradients, minibatches, measure and public facts; the client among all is
    `together.clients.alone`."""
    generator = torch.Generator().manual_seed(0)
    number = len(together.clients.sizes)
    among, by_itself = together.clients, alone.clients
    assert by_itself.sizes == (among.sizes[client],)
    for t in (0, 1, 7, 40):
        x = torch.randn(number, together.dimension, dtype=torch.float64, generator=generator)
        gradient = among.gradient(x, t)[client]
        torch.testing.assert_close(by_itself.gradient(x[client], t), gradient, rtol=0, atol=1e-12)
        if getattr(among, "minibatches", None):
            expected = among.minibatches.of(client, t)
            assert np.array_equal(by_itself.minibatches.of(0, t), expected)
    for unit in ("client", "record"):
        facts = together.facts(unit)
        assert alone.facts(unit) == facts._replace(sizes=None), "others' sizes are not known alone"
    assert torch.equal(alone.x0, together.x0)
    if together.measure:
        x = torch.randn(together.dimension, dtype=torch.float64, generator=generator)
        assert alone.measure(x) == together.measure(x)


def check_one_record_s_privacy(alone, together, client):
    """The noisy gradient: the same sum and noise, and a sample of its own records."""
    number, size = len(together.clients.sizes), together.clients.sizes[client]
    x = 0.3 * torch.ones(number, together.dimension, dtype=torch.float64)
    everybody = NoisyGradient(together.clients, 0.4, 0.7, (1.0,) * number, SimulatedNoise(5), FINE)
    noise = SimulatedNoise(5, first_client=client)
    by_itself = NoisyGradient(alone.clients, 0.4, 0.7, (1.0,), noise, FINE)
    torch.testing.assert_close(by_itself(x[client], 2), everybody(x, 2)[client], rtol=0, atol=1e-12)

    sampled = NoisyGradient(alone.clients, 0.4, 0.0, (0.5,), noise, NOT_ROUNDED)
    chosen = sampled._sample(x[client], 2)
    assert chosen.shape == (size,)
    masks = torch.zeros(number, max(together.clients.sizes), dtype=torch.bool)
    masks[client, :size] = chosen
    total = together.clients.clipped_sum(x, masks, 0.4, 0)[client]
    expected = total / (0.5 * size) + together.clients.regulariser(x)[client]
    torch.testing.assert_close(sampled(x[client], 2), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("others", ["garbage", "missing", "folders"])
@pytest.mark.parametrize("client", [0, 2])
@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_client_of_task_csv_opens_its_own_file_only(files, others, client, unit):
    options = replace(files, unit=unit)
    together = load_task("csv", options)
    for name in options.data:
        if name != options.data[client]:
            Path(name).unlink()
            if others == "garbage":
                Path(name).write_bytes(b"\xff\x00PK;;\n\x00")
            elif others == "folders":
                Path(name).mkdir()
    check_alike(load_client("csv", options, client), together, client)
    whole = replace(together, clients=replace(together.clients, minibatches=None), batch=None)
    check_alike(load_client("csv", replace(options, batch=None), client), whole, client)


@pytest.mark.parametrize("client", [1, 3])
def test_one_client_of_task_csv_protects_its_records_as_among_all(files, client):
    options = replace(files, unit="record", batch=None)
    together, alone = load_task("csv", options), load_client("csv", options, client)
    check_one_record_s_privacy(alone, together, client)


@pytest.mark.parametrize("client", [0, 3])
def test_a_task_file_calls_the_function_of_its_own_client_only(tmp_path, monkeypatch, client):
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(FUNCTIONS)
    alone = load_client("task.py", TaskOptions(seed=2), client)
    assert Path("opened.txt").read_text().split() == [str(client)]
    together = load_task("task.py", TaskOptions(seed=2))
    assert Path("opened.txt").read_text().split() == [str(client), *"01234"]
    assert together.clients.sizes == (20, 21, 22, 23, 24)
    check_alike(alone, together, client)


@pytest.mark.parametrize("options", [{}, {"batch": 7}, {"split": "dirichlet:0.3", "batch": 4}])
@pytest.mark.parametrize("client", [0, 11])
def test_a_client_of_breast_cancer_alone(options, client):
    options = TaskOptions(seed=1, **options)
    together = load_task("breast-cancer", options)
    alone = load_client("breast-cancer", options, client)
    check_alike(alone, together, client)
    check_one_record_s_privacy(alone, together, client)


def test_a_client_of_every_other_kind_of_task_alone(tmp_path):
    lines = [f"{k % 2} 1:{k % 7 + 1} 2:{k % 5 + 1}" for k in range(60)]
    (tmp_path / "f.txt").write_text("\n".join(lines))
    kinds = {
        "quadratic": TaskOptions(clients=4),
        "digits": TaskOptions(clients=4, batch=8),
        "libsvm": TaskOptions(data=(str(tmp_path / "f.txt"),), clients=4, batch=3),
    }
    for name, options in kinds.items():
        check_alike(load_client(name, options, 2), load_task(name, options), 2)


def test_clients_alone_train_what_they_train_together(files):
    """A silo for each file, and a server that sees releases alone: the simulated fleet's model."""
    together = load_task("csv", files)
    silos = [load_client("csv", files, i) for i in range(4)]
    algorithm, releaser, x = dp_scaffnew(0.5, 1 / 3), ClippedRelease(0.2, 0.1), together.x0
    fleet = SimulatedFleet(4, together.clients.gradient, algorithm, releaser, SimulatedNoise(9))
    states = [algorithm.init(x)] * 4
    for number in (1, 2, 3):
        broadcast = Broadcast(number, range(3 * number - 3, 3 * number), x)
        releases = []
        for i, silo in enumerate(silos):
            noise = SimulatedNoise(9, first_client=i)
            release, memory = client_round(
                broadcast, states[i], algorithm, releaser, silo.clients.gradient, noise
            )
            states[i] = memory.state
            releases.append(release.update)
        mean = torch.stack(releases).mean(0)
        torch.testing.assert_close(mean, fleet.exchange(broadcast), rtol=0, atol=1e-12)
        x = x + mean


def test_settings_are_resolved_alike_from_one_client_and_from_all(files):
    settings = Settings.of(task="csv", epsilon=2, clip=1, local_steps=4)
    runs = [
        settings.resolve(task.facts("client"))
        for task in (load_task("csv", files), *(load_client("csv", files, i) for i in range(4)))
    ]
    assert len({run.model_dump_json() for run in runs}) == 1
    assert runs[0].clients == 4


def test_an_account_that_needs_everybody_s_sizes_is_not_guessed_by_one(files):
    """From its own size alone a client would make an account that nobody else has."""
    options = replace(files, unit="record")
    settings = Settings.of(task="csv", unit="record", epsilon=2, clip=1)
    everybody = load_task("csv", options).facts("record")
    facts = load_client("csv", options, 0).facts("record")
    run = settings.resolve(facts)
    assert run == settings.resolve(everybody)
    assert run.batch == 5
    with pytest.raises(InvalidValue, match="needs the number of records of every client"):
        account_of(run, facts, (1,))
    rates = [event.rate for event in account_of(run, everybody, (1,)).events]
    assert rates == [min(1.0, 5 / size) for size in everybody.sizes]


@pytest.mark.parametrize("client", [-1, 4])
def test_a_client_that_does_not_exist_is_refused(files, tmp_path, client):
    sentence = f"client={client} is not one of the {{}} clients, from 0"
    with pytest.raises(InvalidValue, match=sentence.format(4)):
        load_client("csv", files, client)
    with pytest.raises(InvalidValue, match=sentence.format(3)):
        load_client("breast-cancer", TaskOptions(clients=3), client)
    Path("task.py").write_text(FUNCTIONS.replace("range(5)", "range(4)"))
    with pytest.raises(InvalidValue, match=sentence.format(4)):
        load_client("task.py", TaskOptions(), client)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"sampling_rate": 0.5}, {"noise_in": "message"}])
def test_a_silo_that_is_told_the_sizes_makes_the_account_of_everybody(files, how):
    """Of one record: sizes are public there, and a client alone knows only its own."""
    whole = "full" if "noise_in" in how else None
    files = replace(files, unit="record", batch=whole)
    together = load_task("csv", files)
    said = Settings.of(task="csv", epsilon=3, clip=1, unit="record", iterations=4, **how)
    facts = together.facts("record")
    run, schedule = said.resolve(facts), (1, 1, 1, 1)
    for client in range(4):
        alone = load_client("csv", files, client)
        assert alone.facts("record").sizes is None
        told = alone.facts("record", facts.sizes)
        assert told == facts
        assert said.resolve(told) == run
        assert account_of(run, told, schedule) == account_of(run, facts, schedule)
