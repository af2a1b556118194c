"""Clients on a device: nothing of theirs is on the host, and numbers are those of the host.

There is no GPU here: whole runs are made on a stand-in that is as strict (`stand_in.py`).
"""

import json
import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map_only

import federations
from equipoise import InvalidValue, Settings, audit, own_task, plan, sweep, train
from equipoise.algorithms.catalogue import ALGORITHMS
from equipoise.device import KINDS, check_device, device_of, full_precision
from equipoise.federation.agreement import Agreement, check_agreement
from equipoise.planning.candidates import Candidate
from equipoise.planning.plan import Question
from equipoise.planning.rehearsal import Problem, known_of
from equipoise.privacy.mechanisms.catalogue import MECHANISMS
from equipoise.privacy.per_example import clipped_sum as clipping
from equipoise.privacy.per_example import shares
from equipoise.privacy.promise import Promise
from equipoise.sweeps.keys import run_key
from equipoise.sweeps.stacks import resolved
from equipoise.sweeps.store import Store
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks import linear as linear_module
from equipoise.tasks.linear import (
    LOGISTIC,
    MULTINOMIAL,
    LinearClients,
    least_squares,
    linear_task,
)
from equipoise.tasks.model_records import Rows
from equipoise.tasks.network import ModelClients
from equipoise.tasks.own import accuracy
from equipoise.tasks.placing import chosen_device, placed
from equipoise.tasks.task import Table
from equipoise.training import train_together
from federations import Parties, proposed
from problems import run_command
from stand_in import NAME, StandIn, There, WrongDevice, stand_in

OWNERS = ([0, 1, 0, 2, 2], [1, 0, 1])
RUN = {"epsilon": 8.0, "clip": 0.5, "iterations": 4, "local_steps": 2, "simulate_noise_seed": 5}
SAMPLED = {"unit": "record", "sampling_rate": 0.6}
WITHOUT_CLIP = {"epsilon": math.inf, "clip": None}


def linear(link=LOGISTIC, outputs=1, batch=None, seed=0):
    rng = np.random.default_rng(seed)

    def table(n):
        labels = rng.integers(0, max(2, outputs), n)
        targets = labels[:, None] if outputs == 1 else np.eye(outputs)[labels]
        return Table(rng.normal(size=(n, 3)) / 3, targets.astype(float))

    tables = [table(len(own)) for own in OWNERS]
    options = TaskOptions(batch=batch, seed=seed)
    dealt = tables, table(6)
    task = linear_task("made", dealt, table(7), link, 0.1, 1.0, options, (), iterations=4)
    owners = tuple(np.array(own) for own in OWNERS)
    return replace(task, clients=replace(task.clients, owners=owners))


class Ignored(nn.Module):
    """Something to train in a kind of layer that has no books."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.scale


def dense():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 2))


def convolution():
    layers = nn.Conv2d(1, 2, 2), nn.GroupNorm(1, 2), nn.PReLU(), nn.Flatten(), nn.Linear(18, 2)
    return nn.Sequential(nn.Unflatten(1, (1, 4, 4)), *layers)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 3, padding_idx=0)
        self.recurrent = nn.LSTM(3, 3, num_layers=2, dropout=0.5, batch_first=True)
        self.normal, self.last = nn.LayerNorm(3), nn.Linear(3, 2)

    def forward(self, words):
        outputs, _ = self.recurrent(self.table(words))
        return self.last(self.normal(outputs[:, -1]))


def slow():
    return nn.Sequential(nn.Linear(4, 2), Ignored())


def network(make=dense, width=4, loss=nn.functional.cross_entropy, metric=accuracy, **options):
    torch.manual_seed(0)

    def records(n):
        words = torch.randint(0, 7, (n, width))
        inputs = words if make is Words else torch.randn(n, width)
        return inputs, torch.arange(n) % 2

    clients, persons = [records(len(own)) for own in OWNERS], OWNERS
    more = {"test": records(5), "pool": records(4), "learning_rate": 0.1, "iterations": 2}
    more["sizes_public"] = True
    return own_task(make(), clients, loss, metric, persons=persons, **more, **options)


def same_there(monkeypatch, make_task, double=True, **settings):
    """The run on the host, and on the device: the same."""
    settings = {**RUN, **settings}
    here = train(task=make_task(), **settings)
    with stand_in(monkeypatch, double) as there:
        result = train(task=make_task(), device=NAME, **settings)
    assert there.seen > 10
    assert result.run.device == NAME
    assert here.run.device == "cpu"
    assert type(result.x) is np.ndarray
    assert result.x == pytest.approx(here.x, rel=1e-5, abs=1e-5)
    assert result.measures == here.measures
    assert result.public_only == here.public_only
    for point, other in zip(result.curve, here.curve, strict=True):
        assert point.test_error == pytest.approx(other.test_error, rel=1e-4)
        assert point.test_loss == pytest.approx(other.test_loss, rel=1e-4)
    assert (result.per_round is None) == (here.per_round is None)
    for seen, other in zip(result.per_round or (), here.per_round or (), strict=True):
        assert seen.update_norm == pytest.approx(other.update_norm, rel=1e-4)
        assert seen.train_error == pytest.approx(other.train_error, rel=1e-4)
    assert np.abs(here.x).max() > 0
    assert result.failed == here.failed
    return here, result


# ---- every mechanism, algorithm and kind of task ----


@pytest.mark.parametrize(
    "mechanism", MECHANISMS.values(), ids=lambda m: f"{m.unit}-{m.noise_in}-{m.rule}"
)
def test_every_mechanism(monkeypatch, mechanism):
    constant = {"v": 1.0} if mechanism.rule == "lemma1" else {}
    settings = {"unit": mechanism.unit, "noise_in": mechanism.noise_in, **constant}
    settings["noise_rule"] = mechanism.rule
    same_there(monkeypatch, linear, warm_start=True, **settings)
    if not mechanism.by_stability:
        same_there(monkeypatch, network, **settings)


def settings_for(spec):
    """With which an algorithm may run."""
    if not spec.private:
        return WITHOUT_CLIP
    return {} if "client" in spec.units else {"unit": "record"}


@pytest.mark.parametrize("spec", ALGORITHMS.values(), ids=lambda spec: spec.name)
def test_every_algorithm_and_each_of_its_choices(monkeypatch, spec):
    choices = [[(name, c) for c in option.choices] for name, option in spec.options.items()]
    for chosen in product(*filter(None, choices)):
        settings = {"algorithm": spec.name, **settings_for(spec), **dict(chosen)}
        same_there(monkeypatch, linear, gamma=0.5, returns="average", **settings)


@pytest.mark.parametrize(
    ("link", "outputs"), [(LOGISTIC, 1), (MULTINOMIAL, 3), (least_squares(2.0), 1)]
)
@pytest.mark.parametrize("settings", [{}, SAMPLED, {**SAMPLED, "unit": "person"}])
def test_every_linear_model(monkeypatch, link, outputs, settings):
    same_there(monkeypatch, lambda: linear(link, outputs), diagnostics=True, **settings)
    batch = None if settings else 2
    same_there(monkeypatch, lambda: linear(link, outputs, batch), **settings)


def test_the_quadratic(monkeypatch):
    same_there(monkeypatch, lambda: load_task("quadratic", TaskOptions(clients=3)))


@pytest.mark.parametrize(
    ("make", "width"),
    [(dense, 4), (convolution, 16), (Words, 3), (slow, 4)],
    ids=["dense", "convolution", "words", "slow"],
)
@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "dp-scaffnew", "warm_start": True, "diagnostics": True},
        {**SAMPLED, "weights": "records"},
        {"unit": "record", "isolate": True},
        {"unit": "person", "weights": "equal"},
    ],
    ids=["client", "record", "isolate", "person"],
)
def test_every_way_through_a_network(monkeypatch, make, width, settings):
    same_there(monkeypatch, lambda: network(make, width), **settings)


class Weighted(nn.Module):
    """A loss that holds a tensor."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]), requires_grad=False)

    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(2 * outputs * self.weight, targets)


def share(outputs, targets):
    return float((outputs.argmax(-1) == targets).numpy().mean())


@pytest.mark.parametrize("settings", [{}, {"unit": "record"}])
def test_minibatches_losses_with_tensors_and_metrics_in_numpy(monkeypatch, settings):
    batch = None if settings else 2
    make = lambda: network(loss=Weighted(), metric=share, batch=batch)  # noqa: E731
    here, _ = same_there(monkeypatch, make, **settings)
    assert here.test_error in [n / 5 for n in range(6)]


@pytest.mark.parametrize("settings", [{}, {"unit": "record"}])
def test_augmented_records_and_those_on_disk_move_when_they_are_used(monkeypatch, settings):
    def some(task, **changes):
        rows = tuple(
            (*(Rows(p, torch.arange(len(p))) for p in pair),) for pair in task.clients.data
        )
        return replace(task, clients=replace(task.clients, data=rows, **changes))

    def noisy(inputs, generator):
        return inputs + torch.randn(inputs.shape, generator=generator)

    same_there(monkeypatch, lambda: some(network()), **settings)
    same_there(monkeypatch, lambda: some(network(), augment=noisy), **settings)


@pytest.mark.parametrize("settings", [{}, {"unit": "record"}])
def test_records_that_fail_count_for_nothing_there_too(monkeypatch, settings):
    def broken():
        task = network()
        task.clients.data[0][1][3] = 9  # a class that there is not
        task.clients.unreadable[1][0] = task.clients.useless[1][0] = True
        return task

    same_there(monkeypatch, broken, **settings)


def test_runs_in_one_computation(monkeypatch):
    tasks = [linear(batch=2, seed=seed) for seed in (0, 1)]

    def stack(device, names, **options):
        settings = {"iterations": 4, "local_steps": 2, "diagnostics": True, "epsilon": 8, **options}
        kinds = list(product(names, (0.1, 1.0)))
        facts = tasks[0].facts("client")
        return [
            [
                Settings.of(
                    **{**settings, "task": "made", "algorithm": name, "clip": clip},
                    seed=seed,
                    simulate_noise_seed=seed,
                )
                .resolve(facts)
                .model_copy(update={"device": device})
                for name, clip in kinds
            ]
            for seed in (0, 1)
        ]

    private = [spec.name for spec in ALGORITHMS.values() if "client" in spec.units]
    groups = [(name,) for name in private] + [("dp-fedavg", "dp-scaffnew")]
    for names in groups:
        options = {"h_update": "clipped"} if names == ("dp-scaffnew",) else {}
        here = train_together(tasks, stack("cpu", names, **options), 9)
        with stand_in(monkeypatch) as there:
            results = train_together(tasks, stack(NAME, names, **options), 9)
        assert there.seen
        for row, other in zip(results, here, strict=True):
            for result, known in zip(row, other, strict=True):
                assert result.x == pytest.approx(known.x, rel=1e-9)
                assert result.curve == known.curve
                assert result.per_round == known.per_round


@pytest.mark.parametrize("unit", ["client", "record"])
def test_rehearsals(monkeypatch, unit):
    def rehearsed(device):
        question = Question.of(task="own", epsilon=(8.0,), unit=unit, device=device)
        task = network()
        pool = replace(task.pool, data=(linear_blobs(24),))
        task = placed(replace(task, pool=pool), device, unit)
        problem = Problem(known_of(question, task), Promise(8.0, 1e-5, unit))
        noise_in = None if unit == "client" else "gradient"
        plan = Candidate("dp-scaffnew", 0.1, 2, 2, 0.7, 1.0, noise_in)
        lengths = problem.public.length(False), problem.public.distance(True)
        return problem.rehearse(plan, 0, 1), lengths

    here = rehearsed("cpu")
    with stand_in(monkeypatch) as there:
        found = rehearsed(NAME)
    assert there.seen > 100
    assert np.ravel([*found[0].values()]) == pytest.approx(np.ravel([*here[0].values()]), rel=1e-4)
    assert found[1] == pytest.approx(here[1], rel=1e-4)


def linear_blobs(n):
    inputs = torch.randn(n, 4, generator=torch.Generator().manual_seed(1))
    return inputs, (inputs[:, 0] > 0).long()


@pytest.mark.parametrize("settings", [{"clip": 0.5}, {"clip": 1.0, "unit": "record"}])
def test_every_silo_has_a_device_of_its_own(monkeypatch, tmp_path, settings):
    """One of three is elsewhere, goes on from its ledger there, and the model is the same."""
    sizes = None if "unit" not in settings else (127, 126, 126)
    settings = {"task": "breast-cancer", "epsilon": 8, "clients": 3, "iterations": 4, **settings}
    agreement = proposed(sizes, **settings, local_steps=2, algorithm="dp-scaffnew")
    assert "device" not in agreement.to_json()
    here = Parties(agreement, tmp_path / "here", monkeypatch).train()
    part = federations.silo_part

    def elsewhere(agreement, i, data):
        loaded = part(agreement, i, data)
        return placed(loaded, NAME, agreement.run.unit) if i == 1 else loaded

    monkeypatch.setattr(federations, "silo_part", elsewhere)
    with stand_in(monkeypatch) as there:
        result = Parties(agreement, tmp_path / "there", monkeypatch).train()
    assert there.seen > 100
    assert result.x == pytest.approx(here.x, rel=1e-9)


def test_a_run_goes_on_there(monkeypatch, tmp_path):
    """What clients carry comes from the journal, and goes to the device again."""
    settings = {**RUN, "algorithm": "dp-scaffnew", "diagnostics": True}
    whole = train(task=network(), **settings)

    def killed(rounds, total):
        for round in rounds:
            yield round
            raise KeyboardInterrupt

    monkeypatch.setattr("equipoise.resume.EVERY", 0.0)
    with stand_in(monkeypatch):
        with pytest.raises(KeyboardInterrupt, match="after round 1 of 2"):
            train(task=network(), device=NAME, out=tmp_path / "run", watch=killed, **settings)
        result = train(task=network(), device=NAME, out=tmp_path / "run", **settings)
    assert result.x == pytest.approx(whole.x, rel=1e-5)
    assert len(result.per_round) == len(whole.per_round) == 2


# ---- a device without double precision ----


@pytest.mark.parametrize(
    "settings", [{"algorithm": "dp-scaffnew", "h_update": "clipped"}, {"unit": "person"}]
)
def test_without_double_precision_sums_are_on_the_host(monkeypatch, settings):
    same_there(monkeypatch, network, double=False, returns="average", **settings)


def test_what_needs_double_precision_is_refused(monkeypatch):
    with stand_in(monkeypatch, double=False):
        with pytest.raises(InvalidValue, match=f"device={NAME} with task=made is in double"):
            train(task=linear(), device=NAME, **RUN)
        with pytest.raises(InvalidValue, match=f"device={NAME} with task=own and unit=record"):
            train(task=network(), device=NAME, unit="record", **RUN)
        assert train(task=network(), device="auto", unit="record", **RUN).run.device == "cpu"


# ---- the stand-in itself ----


def test_the_stand_in_is_strict(monkeypatch):
    on_host = torch.arange(3.0)
    with stand_in(monkeypatch) as there:
        x = on_host.to(NAME)
        assert isinstance(x, There)
        assert isinstance(torch.zeros(3, device=NAME), There)
        assert isinstance(x + 1, There)
        assert isinstance(x.new_zeros(2), There)
        assert isinstance(x + torch.tensor(1.0), There)  # one number, as of a GPU
        assert x[torch.tensor([2, 0])].tolist() == [2, 0]
        assert type((x + x).cpu()) is torch.Tensor
        assert (x + x).cpu().tolist() == [0, 2, 4]
        for mixed in (
            lambda: x + on_host,
            lambda: torch.stack([x, on_host]),
            lambda: torch.where(on_host > 1, x, x),
            lambda: x @ on_host,
            lambda: x.index_select(0, torch.tensor([0])),
            lambda: x + torch.tensor([1.0, 2.0, 3.0]),
        ):
            with pytest.raises(WrongDevice):
                mixed()
        with pytest.raises((RuntimeError, TypeError)):
            x.numpy()
        before = torch.get_rng_state()
        torch.rand(3, device=NAME)
        assert torch.equal(before, torch.get_rng_state())  # a generator of its own
        assert there.seen > 5
    with StandIn(double=False), pytest.raises(WrongDevice, match="no double precision"):
        on_host.to(NAME).double()


def on_the_host(function):
    """The same, but what it returns is made on the host."""
    return lambda *given: tree_map_only(torch.Tensor, lambda x: x.cpu(), function(*given))


def wide():
    return network(lambda: nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 2)), 32)


PLANTS = {
    "the regulariser of linear clients": (LinearClients, "regulariser", linear, SAMPLED),
    "the chosen rows of a table": (linear_module, "_rows", lambda: linear(batch=2), {}),
    "a copy of a network's parameters": (clipping, "_leaves", network, SAMPLED),
    "the weights of clipped gradients": (clipping, "_weights", network, SAMPLED),
    "the products of all pairs of positions": (shares, "all_pairs", wide, SAMPLED),
    "a gradient of linear clients": (LinearClients, "gradient", linear, {}),
    "the regulariser of a network": (ModelClients, "regulariser", network, SAMPLED),
    "the gradient of one client's batch": (ModelClients, "gradient_of", network, {}),
}


@pytest.mark.parametrize("name", PLANTS)
def test_one_tensor_on_the_wrong_device_is_noticed(monkeypatch, name):
    room, function, make, settings = PLANTS[name]
    monkeypatch.setattr(room, function, on_the_host(getattr(room, function)))
    with pytest.raises((WrongDevice, AssertionError, InvalidValue)):
        same_there(monkeypatch, make, **settings)


# ---- what is random, and how exact products are ----


def test_dropout_draws_from_the_generator_of_its_device(monkeypatch):
    """What a model draws there follows from its draw alone, as on the host."""
    model, loss = network().clients.model, nn.functional.cross_entropy
    inputs, targets = linear_blobs(6)
    with stand_in(monkeypatch):
        there = placed(network(), NAME, "client").clients.model
        x = there.initial()
        batch = inputs.to(NAME), targets.to(NAME)
        first = there.gradient(x, loss, *batch, 1).cpu()
        torch.rand(5, device=NAME)
        again, other = (there.gradient(x, loss, *batch, draw).cpu() for draw in (1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first, model.gradient(model.initial(), loss, inputs, targets, 1))


def test_products_of_clipped_gradients_are_in_full_precision():
    """Factors of 8 or 11 bits would make gradients longer than what they were clipped by."""
    seen = []

    def loss(outputs, targets):
        seen.append(precisions())
        return nn.functional.cross_entropy(outputs, targets)

    model, before = network(slow).clients.model, torch.get_float32_matmul_precision()
    inputs, targets = linear_blobs(4)
    layout = model.layout(inputs)
    try:
        torch.set_float32_matmul_precision("medium")
        lower = precisions()
        model.clipped_sum(model.initial(), loss, inputs, targets, 1.0, layout, 0)
        assert precisions() == lower
        assert "ieee" not in lower
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen
    assert all({*each} == {"ieee"} for each in seen)


def precisions():
    room = torch.backends
    products = room.cuda.matmul, room.cudnn.conv, room.cudnn.rnn, room.mkldnn.matmul
    return [each.fp32_precision for each in products]


def test_older_builds_of_torch_have_two_switches(monkeypatch):
    monkeypatch.setattr(torch, "backends", SimpleNamespace(cudnn=torch.backends.cudnn))
    assert torch.backends.cudnn.allow_tf32
    with full_precision():
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32


# ---- names, and what a device is part of ----


@pytest.mark.parametrize(
    "name", ["gpu", "cuda:", "cuda:-1", "cuda:01", "cpu:0", "auto:1", "", "CPU"]
)
def test_names_that_no_device_has(name):
    with pytest.raises(InvalidValue, match=f"device={name!r} is none of cpu, cuda, mps and auto"):
        Settings.of(task="quadratic", epsilon=1, clip=1, device=name)


def test_devices_that_are_not_here(monkeypatch):
    monkeypatch.setitem(KINDS, "cuda", KINDS["cuda"]._replace(present=lambda: 0))
    check_device("cuda:3")
    with pytest.raises(InvalidValue, match=r"device=cuda: PyTorch finds no cuda.*use device=cpu"):
        train(task="quadratic", epsilon=1, clip=1, device="cuda")
    monkeypatch.setitem(KINDS, "cuda", KINDS["cuda"]._replace(present=lambda: 2))
    assert device_of("cuda:1") == torch.device("cuda", 1)
    assert device_of("cuda") == torch.device("cuda", 0)
    with pytest.raises(InvalidValue, match=r"device=cuda:2: this machine has 2.*use device=cuda:1"):
        train(task="quadratic", epsilon=1, clip=1, device="cuda:2")


def test_auto_takes_a_device_for_networks_only(monkeypatch):
    none = {kind: known._replace(present=lambda: 0) for kind, known in KINDS.items()}
    for kind, known in none.items():
        monkeypatch.setitem(KINDS, kind, known)
    assert chosen_device("auto", network(), "client") == "cpu"
    with stand_in(monkeypatch):
        assert chosen_device("auto", network(), "client") == NAME
        assert chosen_device("auto", linear(), "client") == "cpu"
    monkeypatch.setitem(KINDS, "mps", KINDS["mps"]._replace(present=lambda: 1))
    assert chosen_device("auto", network(), "person") == "mps"
    assert chosen_device("auto", network(), "record") == "cpu"
    assert chosen_device("cuda:1", linear(), "record") == "cuda:1"


def test_a_model_that_makes_tensors_on_the_host_is_refused(monkeypatch):
    constant = torch.tensor([1.0, 2.0])

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs * constant, targets)

    with stand_in(monkeypatch), pytest.raises(InvalidValue, match="fail there with WrongDevice"):
        train(task=network(loss=loss), device=NAME, **RUN)


def test_clients_that_cannot_move_are_refused(monkeypatch):
    class Fixed:
        sizes = (1, 1)

    with stand_in(monkeypatch), pytest.raises(InvalidValue, match="computes on the host: use"):
        placed(replace(linear(), clients=Fixed()), NAME, "client")


def on(run, device):
    return run.model_copy(update={"device": device})


def test_the_device_is_part_of_a_run_that_is_not_on_the_host():
    """Numbers differ in their last digits; a key of before stays."""
    settings = Settings.of(task="quadratic", epsilon=1, clip=1, local_steps=2)
    run = resolved(settings)
    known = run_key(run, "data")
    assert known == "9f65c60c0957bd8ceff3f759c157a68d"  # of a run before there were devices
    assert run_key(on(run, "cuda"), "data") not in (known, run_key(on(run, "mps"), "data"))
    assert run_key(on(run, "cuda:1"), "data") == run_key(on(run, "cuda"), "data")
    assert "--device" not in settings.command
    assert "--device cuda:1" in on(run, "cuda:1").command


def test_no_agreement_prescribes_a_device():
    agreement = proposed(task="quadratic", epsilon=8, clip=1, clients=3)
    document = json.loads(agreement.to_json())
    document["run"]["device"] = "cuda"
    forged = Agreement.model_validate(document)
    with pytest.raises(InvalidValue, match="it names device=cuda, which every silo chooses"):
        check_agreement(forged)
    with pytest.raises(InvalidValue, match="it names device=cuda, which every silo chooses"):
        proposed(task="quadratic", epsilon=8, clip=1, clients=3, device="cuda")


def test_an_audit_is_of_the_border():
    with pytest.raises(InvalidValue, match="device=cuda with an audit"):
        audit(task="quadratic", epsilon=1, clip=1, device="cuda")


def test_a_plan_is_trained_on_any_device(monkeypatch):
    """A plan names none, and one may be given beside it."""
    made = plan(task="quadratic", epsilon=8, clip=1, iterations=4, algorithm="dp-fedavg")
    assert made.settings.device == "cpu"
    with stand_in(monkeypatch):
        assert train(made, anyway=True, device=NAME).run.device == NAME


GRID = """
task = "quadratic"
clients = 2
iterations = 2
epsilon = 2.0
clip = 1.0
seeds = [0, 1]
"""


def test_a_sweep_takes_a_device_beside_its_grid(monkeypatch, tmp_path):
    """The grid says what is run; on which machine, whoever runs it."""
    grid, store = tmp_path / "grid.toml", tmp_path / "store.sqlite"
    grid.write_text(GRID)
    assert sweep(grid, store=store).done == 2
    with stand_in(monkeypatch) as there:
        ended = sweep(grid, store=store, device=NAME)
    assert there.seen
    assert (ended.done, ended.failed) == (2, 0)
    with Store(store, read_only=True) as kept:
        runs = [json.loads(row["result"])["run"] for row in kept.table("result")]
    assert sorted(run["device"] for run in runs) == ["cpu", "cpu", NAME, NAME]


def test_commands_take_a_device(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(KINDS, "cuda", KINDS["cuda"]._replace(present=lambda: 0))
    asked = "--task", "quadratic", "--epsilon", "8", "--clip", "1", "--iterations", "4"
    _, made, _ = run_command(capsys, "plan", *asked, "--json")
    (tmp_path / "plan.json").write_text(made)
    for arguments in (
        ("train", *asked, "--device", "cuda"),
        ("train", "--plan", str(tmp_path / "plan.json"), "--anyway", "--device", "cuda"),
        ("plan", *asked, "--device", "cuda"),
    ):
        code, _, sentence = run_command(capsys, *arguments)
        assert code == 2
        assert "device=cuda: PyTorch finds no cuda device" in sentence
