"""One person with all records takes the place of one record."""

import json
import math
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import equipoise
from equipoise import Settings
from equipoise.algorithms.schedule import schedule_of
from equipoise.engine import noise_of, record_clients
from equipoise.errors import DataError, InvalidValue
from equipoise.privacy import SimulatedNoise
from equipoise.privacy.events import Event, account
from equipoise.privacy.groups import together
from equipoise.privacy.statement import statement
from equipoise.tasks import TaskOptions, load_client, load_task
from equipoise.tasks.linear import LOGISTIC, MULTINOMIAL, linear_task
from equipoise.tasks.persons import numbered, rows_of
from equipoise.tasks.task import Table
from equipoise.training import account_of
from problems import DATA, run_command

L2 = 0.01
GROUPS = ([0, 1, 0, 2, 2, 2, 1, 0, 3], [1, 0, 1, 1])  # whose each record of two clients is


def linear(link=LOGISTIC, outputs=1, groups=GROUPS, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    tables = []
    for own in groups:
        features = scale * rng.normal(size=(len(own), 3))
        labels = rng.integers(0, max(2, outputs), len(own))
        targets = labels[:, None] if outputs == 1 else np.eye(outputs)[labels]
        tables.append(Table(features, targets.astype(float)))
    task = linear_task(
        "made", (tables, None), None, link, 0.01, 1.0, TaskOptions(), (), iterations=4
    )
    owners = tuple(np.array(own) for own in groups)
    return replace(task, clients=replace(task.clients, owners=owners)), tables


def network(groups=GROUPS, seed=0, persons=True):
    generator = torch.Generator().manual_seed(seed)
    clients = []
    for own in groups:
        x = torch.randn(len(own), 4, generator=generator, dtype=torch.float64)
        clients.append((x, (x[:, 0] > 0).long()))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    return equipoise.own_task(
        model,
        clients,
        nn.functional.cross_entropy,
        equipoise.accuracy,
        learning_rate=0.5,
        persons=groups if persons else None,
    )


def by_hand(gradients, owners, most, C, chosen=None):
    """sum over persons of clip(mean of their first records' gradients)."""
    total = 0
    for person in range(max(owners) + 1):
        rows = [j for j, owner in enumerate(owners) if owner == person][:most]
        if chosen is None or chosen[person]:
            g = sum(gradients[j] for j in rows) / len(rows)
            total = total + min(1, C / np.linalg.norm(g)) * g
    return total


@pytest.mark.parametrize(("link", "outputs"), [(LOGISTIC, 1), (MULTINOMIAL, 3)])
@pytest.mark.parametrize("most", [1, 2, 10])
def test_a_person_s_mean_gradient_is_clipped_as_one(link, outputs, most):
    task, tables = linear(link, outputs)
    persons = task.persons().of_persons(most)
    assert persons.sizes == (4, 2)
    x = torch.randn(2, task.dimension, dtype=torch.float64)
    chosen = torch.tensor([[True, False, True, True], [True, True, False, False]])
    found = persons.clipped_sum(x, chosen, 0.3, 0)
    for i, (table, own) in enumerate(zip(tables, GROUPS, strict=True)):
        W = x[i].numpy().reshape(outputs, 3)
        z = table.features @ W.T
        p = 1 / (1 + np.exp(-z)) if outputs == 1 else np.exp(z) / np.exp(z).sum(1, keepdims=True)
        g = np.einsum("nk,nf->nkf", p - table.targets, table.features).reshape(len(own), -1)
        expected = by_hand(g, own, most, 0.3, chosen[i].numpy())
        np.testing.assert_allclose(found[i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("chosen", [None, [[True, False, True, True], [False, True, False, False]]])
def test_networks_do_the_same_in_a_pass_for_each_person(most, chosen):
    task = network()
    persons = task.persons().of_persons(most)
    x = task.x0 + 0.3 * torch.randn(2, task.dimension, dtype=torch.float64)
    found = persons.clipped_sum(x, chosen and torch.tensor(chosen), 0.2, 0)
    for i, own in enumerate(task.clients.owners):
        inputs, targets = task.clients.data[i]
        g = [
            task.clients.model.gradient(
                x[i], task.clients.loss, inputs[j : j + 1], targets[j : j + 1], 0
            ).numpy()
            for j in range(len(own))
        ]
        expected = by_hand(g, own, most, 0.2, chosen and chosen[i])
        np.testing.assert_allclose(found[i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [linear, network])
def test_persons_with_one_record_each_are_records(make):
    """Accounts, and gradients with the same noise."""
    groups = (list(range(9)), list(range(4)))
    task = make(groups=groups)
    task = task[0] if isinstance(task, tuple) else task
    both = []
    for unit in ("record", "person"):
        facts = task.facts(unit)
        settings = Settings.of(
            task="made", unit=unit, epsilon=3, clip=0.3, iterations=4, sampling_rate=0.5
        )
        run = settings.resolve(facts)
        spent = account_of(run, facts, schedule_of(run))
        gradient, _ = noise_of(run, task, spent, SimulatedNoise(3))
        both.append((gradient(task.x0.expand(2, -1), 0), spent))
    torch.testing.assert_close(both[0][0], both[1][0], rtol=0, atol=1e-6)
    assert both[0][1].epsilons == both[1][1].epsilons
    assert [replace(e, unit="record") for e in both[1][1].events] == list(both[0][1].events)


@pytest.mark.parametrize("make", [linear, network])
@pytest.mark.parametrize("other", [[0] * 12, [0]])
def test_a_person_moves_a_sum_by_two_clips_whatever_rows_it_brings(make, other):
    """Person 0 of the first client is replaced by one with other records, and other numbers of
    them; as records they move the sum by more."""
    C, sums, as_records = 0.05, [], []
    for rows, seed in (([0] * 4, 1), (other, 2)):
        groups = ([*rows, 1, 1, 2, 3, 3], [0, 1])
        task = make(groups=groups, seed=0)
        task = task[0] if isinstance(task, tuple) else task
        task = _with_rows_of_person_0(task, len(rows), -1.0 if seed == 2 else 1.0)
        x = task.x0.expand(2, -1)
        persons = task.persons().of_persons(10)
        assert persons.sizes == (4, 2)
        sums.append(persons.clipped_sum(x, None, C, 0)[0])
        as_records.append(task.clients.clipped_sum(x, None, C, 0)[0])
    moved = float((sums[0] - sums[1]).norm())
    assert moved <= 2 * C
    assert moved > 1.5 * C
    assert float((as_records[0] - as_records[1]).norm()) > 2.2 * C


def test_a_run_uses_the_first_records_of_a_person_and_no_more():
    """Whatever the others hold; and secret samples are as large as persons, not records, say."""
    made = []
    for seed in (0, 1):
        task, _ = linear()
        features = task.clients.features.clone()
        later = torch.from_numpy(np.array([2, 4, 5, 6, 7]))  # no first one of anybody
        generator = torch.Generator().manual_seed(seed)
        features[0, later] = torch.randn(5, 3, generator=generator, dtype=torch.float64)
        task = replace(task, clients=replace(task.clients, features=features))
        settings = {"unit": "person", "epsilon": 8, "clip": 0.3, "iterations": 2}
        given = {**settings, "simulate_noise_seed": 1, "sampling_rate": 0.5}
        made.append(
            [equipoise.train(task=task, **given, max_records=most).x.tobytes() for most in (1, 2)]
        )
    assert made[0][0] == made[1][0]
    assert made[0][1] != made[1][1]
    task = linear()[0]
    facts = replace(task, batch=2).facts("person")
    spent = account_of(Settings.of(task="made", **settings).resolve(facts), facts, (1, 1))
    assert facts.sizes == (4, 2)
    assert sorted(event.rate for event in spent.events) == [0.5, 1.0]


def _with_rows_of_person_0(task, rows, sign):
    """All others as they were; those of person 0 pull as hard as they can to one side."""
    clients = task.clients
    if hasattr(clients, "features"):
        features, targets = clients.features.clone(), clients.targets.clone()
        rng = torch.Generator().manual_seed(5)
        rest = torch.randn(5, 3, generator=rng, dtype=torch.float64)
        features[0, rows : rows + 5] = rest
        targets[0, rows : rows + 5] = 1.0
        features[0, :rows] = torch.tensor([1.0, 0.0, 0.0])
        targets[0, :rows] = 1.0 if sign > 0 else 0.0
        return replace(task, clients=replace(clients, features=features, targets=targets))
    inputs, targets = (part.clone() for part in clients.data[0])
    rng = torch.Generator().manual_seed(5)
    inputs[rows:] = torch.randn(5, 4, generator=rng, dtype=torch.float64)
    targets[rows:] = 1
    inputs[:rows] = 3.0
    targets[:rows] = int(sign > 0)
    data = ((inputs, targets), *clients.data[1:])
    return replace(task, clients=replace(clients, data=data))


def test_an_audit_of_a_person_with_many_rows_stays_below_the_claim():
    """The likelihood-ratio statistic of the worst pair, over its noise, is mu: the person's stays
    below what was accounted for, that of its records does not."""
    groups = ([0] * 6 + [1, 2, 3], [0, 1])
    claims = {}
    for unit in ("person", "record"):
        seen = []
        for sign in (1.0, -1.0):
            task, _ = linear(groups=groups)
            task = _audited(task, sign)
            facts = task.facts(unit)
            settings = Settings.of(task="made", unit=unit, epsilon=8, clip=0.1, iterations=1)
            run = settings.resolve(facts)
            spent = account_of(run, facts, (1,))
            noise = SimulatedNoise(7 if sign > 0 else 8)
            gradient, _ = noise_of(run, task, spent, noise)
            x, scale = task.x0.expand(2, -1), facts.sizes[0]
            draws = torch.stack([scale * gradient(x, t)[0] for t in range(4000)])
            seen.append((draws, spent))
        direction = seen[0][0].mean(0) - seen[1][0].mean(0)
        direction = direction / direction.norm()
        ends = [draws @ direction for draws, _ in seen]
        shift = float(ends[0].mean() - ends[1].mean()) / float(ends[0].std())
        claims[unit] = shift / seen[0][1].mu
    assert 0.8 < claims["person"] < 1.05
    assert claims["record"] > 3


def _audited(task, sign):
    clients = task.clients
    features, targets = clients.features.clone(), clients.targets.clone()
    features[0, :6] = torch.tensor([1.0, 0.0, 0.0])
    targets[0, :6] = 1.0 if sign > 0 else 0.0
    return replace(task, clients=replace(clients, features=features, targets=targets))


def test_rows_of_a_person_are_the_first_ones():
    rows = rows_of(np.array([2, 0, 2, 2, 1, 0]), 2)
    assert rows.tolist() == [[1, 5], [4, -1], [0, 2]]


def test_names_become_numbers():
    """As they occur, so that another name for a person leaves the numbers of all others."""
    assert numbered(["b", "a", "b", "c"], 4).tolist() == [0, 1, 0, 2]
    assert numbered(["b", "z", "b", "c"], 4).tolist() == [0, 1, 0, 2]
    assert numbered(np.array([7, 7, 3]), 3).tolist() == [0, 0, 1]
    assert numbered([7, 7.0, 3], 3).tolist() == [0, 0, 1]
    assert numbered(["a", "a\0", "a"], 3).tolist() == [0, 1, 0]
    assert numbered([], 0).dtype == np.int64


def test_a_long_name_takes_no_memory_for_the_others():
    """Or a cell that a broken line filled would decide whether a run stops."""
    names = [f"p{i // 4}" for i in range(2000)]
    tracemalloc.start()
    numbered(["x" * 20_000, *names[1:]], 2000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e6


@pytest.mark.parametrize("names", [["a", ""], ["a", None], [1.0, math.nan], ["a"], ["a", " "]])
def test_every_record_needs_a_person(names):
    with pytest.raises(DataError, match="persons: "):
        numbered(names, 2)


def test_what_several_records_mean_is_told():
    """From the exact mu: epsilon = 2 is 10.0 for four rows, 33 for ten."""
    mu = 0.5015516892
    spent = account([Event("record", "replace-one", mu, 1.0, 1.0, 1)], 1e-5)
    assert spent.epsilon == pytest.approx(2, rel=1e-6)
    assert together(spent, 1e-5, 4).epsilon == pytest.approx(10.0, abs=0.05)
    assert together(spent, 1e-5, 10).epsilon == pytest.approx(33, abs=0.5)
    sampled = account([Event("record", "replace-one", 2.0, 8.0, 0.1, 50)], 1e-5)
    pair = together(sampled, 1e-5, 2)
    assert pair.epsilon == 2 * sampled.epsilon
    assert pair.delta == pytest.approx(1e-5 * (math.exp(sampled.epsilon) + 1))


def test_statements_of_records_and_persons():
    task = network()
    for unit, words in (
        ("record", ["Somebody with several records", "- 4 records: epsilon = "]),
        (
            "person",
            ["one person at one client", "at two of them, or under", "| persons |"],
        ),
    ):
        text = statement(equipoise.train(task=task, unit=unit, epsilon=2, clip=0.5, iterations=2))
        assert all(word in text for word in words), unit
    assert "Somebody with several records" not in text
    assert "the number of persons of each client" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "digits"}, "unit=person with task=digits: nothing says whose a record is"),
        ({"task": "quadratic"}, "unit=person with task=quadratic"),
        ({"max_records": 0}, "max_records=0 is not >= 1"),
        ({"unit": "record", "person": "patient"}, "person=patient with unit=record"),
        ({"trust": "secure-aggregation"}, "trust=secure-aggregation with noise in gradients"),
    ],
)
def test_what_has_no_persons_is_refused(changes, words):
    settings = {"task": "breast-cancer", "unit": "person", "epsilon": 2, "clip": 1, **changes}
    with pytest.raises(InvalidValue, match=words):
        equipoise.train(**settings)


def test_whose_records_they_are_is_part_of_what_they_are():
    """A run that goes on, and a store, know other persons for other data."""
    prints = {network(groups=groups).fingerprint for groups in (GROUPS, (GROUPS[0], [0, 1, 1, 1]))}
    assert len(prints | {network(persons=False).fingerprint}) == 3


def test_lists_of_persons_must_fit():
    x = torch.randn(4, 4), torch.zeros(4, dtype=torch.long)
    model = nn.Linear(4, 2)
    loss, metric = nn.functional.cross_entropy, equipoise.accuracy
    with pytest.raises(InvalidValue, match="1 lists for 2 clients"):
        equipoise.own_task(model, [x, x], loss, metric, persons=[[1, 1, 2, 3]])
    with pytest.raises(DataError, match="3 names for 4 records"):
        equipoise.own_task(model, [x], loss, metric, persons=[[1, 1, 2]])


def test_noise_in_the_message_protects_persons_too():
    task, _ = linear(scale=0.3)
    facts = task.facts("person")
    run = Settings.of(
        task="made", unit="person", noise_in="message", epsilon=2, iterations=8, local_steps=4
    ).resolve(facts)
    spent = account_of(run, facts, (4, 4))
    of_records = Settings.of(
        task="made", unit="record", noise_in="message", epsilon=2, iterations=8, local_steps=4
    ).resolve(facts._replace(sizes=(4, 2)))
    same = account_of(of_records, facts._replace(sizes=(4, 2)), (4, 4))
    assert spent.epsilons == same.epsilons
    assert [e.sigma for e in spent.events] == [e.sigma for e in same.events]
    assert record_clients(task, run).sizes == (4, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "persons"), [("femnist-narrow", 105), ("deepdrid-narrow", 300)])
def test_the_persons_of_real_data(monkeypatch, name, persons):
    folder = {"femnist-narrow": "femnist", "deepdrid-narrow": "fundus"}[name]
    if not (DATA / folder).exists():
        pytest.skip(f"{folder}/ is not in {DATA}: see `equipoise data`")
    monkeypatch.setenv("EQUIPOISE_DATA", str(DATA))
    task = load_task(name, TaskOptions(unit="person"))
    assert sum(task.facts("person").sizes) == persons
    everybody = sum(task.clients.sizes)
    assert everybody == sum(load_task(name, TaskOptions()).clients.sizes)
    rate = 0.1 if name == "femnist-narrow" else 0.02
    result = equipoise.train(
        task=name, unit="person", epsilon=8, clip=1, iterations=2, sampling_rate=rate, max_records=4
    )
    assert result.private
    assert result.account.epsilon <= 8


PATIENTS = """
[age]
low = 0
high = 100
[ward]
categories = ["a", "b"]
[ill]
categories = ["no", "yes"]
"""
FLAGS = (
    "train --task csv --data one.csv two.csv --label ill --bounds bounds.toml --unit person "
    "--person patient --max-records 3 --epsilon 4 --clip 0.5 --iterations 4 --json --out out"
)


def stays(*persons):
    """A file with these persons: a name, and the stays of each."""
    rows = [f"{name},{row}" for name, own in persons for row in own]
    return "\n".join(["patient,age,ward,ill", *rows, ""])


@pytest.fixture
def silos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bounds.toml").write_text(PATIENTS)
    ill = ["no" if i % 3 == 0 else "yes" for i in range(9)]
    others = [(f"p{i}", [f"{20 + 3 * i},a,{ill[i]}"] * (1 + i % 4)) for i in range(9)]
    Path("two.csv").write_text(stays(*others))
    return others


def test_tables_name_persons(silos):
    Path("one.csv").write_text(stays(*silos[:5], ("x", ["50,b,yes"])))
    given = {"data": ("one.csv", "two.csv"), "label": "ill", "bounds": "bounds.toml"}
    task = load_task("csv", TaskOptions(**given, unit="person", person="patient"))
    assert task.facts("person").sizes == (6, 9)
    assert task.clients.sizes == (12, 21)
    alone = load_client("csv", TaskOptions(**given, unit="person", person="patient"), 1)
    persons, x = alone.persons().of_persons(3), torch.randn(task.dimension).double()
    assert persons.sizes == (9,)
    everybody = task.persons().of_persons(3).clipped_sum(x.expand(2, -1), None, 0.2, 0)
    torch.testing.assert_close(persons.clipped_sum(x, None, 0.2, 0), everybody[1])
    for wrong, words in (
        ({"unit": "person"}, "person=None with unit=person"),
        ({"unit": "person", "person": "age"}, "person=age is declared in bounds.toml"),
    ):
        with pytest.raises(InvalidValue, match=words):
            load_task("csv", TaskOptions(**given, **wrong))
    with pytest.raises(DataError, match="lacks nobody"):
        load_task("csv", TaskOptions(**given, unit="person", person="nobody"))
    Path("one.csv").write_text(stays(*silos[:5], (" ", ["50,b,yes"])))
    with pytest.raises(DataError, match=r"some row of one\.csv has none"):
        load_task("csv", TaskOptions(**given, unit="person", person="patient"))


NEIGHBOURS = {  # another person in the place of the fifth: a name, and the rows
    "one stay": ("q", ["40,a,yes"]),
    "ten": ("q", ["70,b,no"] * 10),
    "another name": ("a much longer name than that of anybody else", ["70,b,no"] * 2),
    "without a label": ("q", ["40,a,", "41,a,"]),
    "odd cells": ("p99", ["x,y,z", ",,", "1,2,3,4,5"]),
    "the other answer": ("0", ["40,a,no"] * 3),
}
TEXT_FLAGS = (
    "train --task libsvm --data lines.txt --bounds form.toml --unit person --person names.txt "
    "--max-records 3 --epsilon 4 --clip 0.5 --iterations 4 --clients 3 --json --out out"
)


def as_table(others, name, rows):
    Path("one.csv").write_text(stays(*others[:4], (name, rows), *others[5:]))
    return FLAGS


def as_text(others, name, rows):
    """The same as a LIBSVM text with a file of names: first a line of everybody, then the rest."""
    persons = [*others[:4], (name, rows), *others[5:]]
    ordered = [(who, own[0]) for who, own in persons]
    ordered += [(who, row) for who, own in persons for row in own[1:]]
    Path("names.txt").write_text("".join(f"{who}\n" for who, _ in ordered))
    lines = [row.split(",") for _, row in ordered]
    Path("lines.txt").write_text(
        "".join(f"{cells[2] == 'yes':d} 1:{cells[0]} {cells[1]}:1\n" for cells in lines)
        .replace(" a:1", " 2:1")
        .replace(" b:1", " 3:1")
    )
    Path("form.toml").write_text("[index]\nlow = 1\nhigh = 3\n[label]\ncategories = [0, 1]\n")
    return TEXT_FLAGS


def left_behind(capsys, flags):
    """All that anybody can see of a run but the model: what it says, and what lies there after."""
    shutil.rmtree("out", ignore_errors=True)
    for path in Path().glob("ledger*"):
        path.unlink()
    code, out, err = run_command(capsys, *flags)
    assert code == 0, err
    kept = [*Path("out").iterdir(), *Path().glob("ledger*")]
    sizes = {path.name: path.stat().st_size for path in kept if path.name != "model.safetensors"}
    document = json.loads(out)
    for random in ("run", "when"):  # a name, and the time
        (document["origin"] or {}).pop(random, None)
    return (code, document, err, sizes), equipoise.load("out").x.tobytes()


@pytest.mark.parametrize("write", [as_table, as_text])
def test_a_person_with_any_other_rows_changes_nothing_but_the_releases(silos, capsys, write):
    """Exit code, output, names and sizes of files are those of the neighbour."""
    seen = {}
    for name, person in NEIGHBOURS.items():
        flags = write(silos, *person).split()
        seen[name] = left_behind(capsys, [*flags, "--simulate-noise-seed", "1"])
    assert all(other[0] == seen["one stay"][0] for other in seen.values())
    assert len({other[1] for other in seen.values()}) > 3, "they must differ where they may"


@pytest.mark.parametrize("write", [as_table, as_text])
def test_a_person_changes_nothing_of_a_ledger(silos, capsys, write):
    """With secret noise, and a ledger beside the run: what it says and how large it is, too."""
    seen = []
    for person in NEIGHBOURS.values():
        flags = [*write(silos, *person).split(), "--ledger", "ledger.db"]
        said, _ = left_behind(capsys, [*flags, "--cap-epsilon", "9", "--cap-delta", "1e-4"])
        _, shown, _ = run_command(capsys, "ledger", "show", "ledger.db", "--json")
        entries = json.loads(shown)
        for entry in entries["runs"]:
            entry.pop("run")  # a random name
            entry.pop("when")
        seen.append((said, entries))
    assert "ledger.db" in seen[0][0][3]
    assert all(other == seen[0] for other in seen)


def test_a_run_for_persons_can_be_used(silos, capsys):
    """Predicted and measured on files with and without names."""
    Path("one.csv").write_text(stays(*silos))
    code, _, _ = run_command(capsys, *FLAGS.split())
    assert code == 0
    assert "one person at one client" in Path("out/guarantee.md").read_text()
    frame = equipoise.load("out").predict({"age": ["30", "60"], "ward": ["a", "b"]})
    assert frame.shape == (2, 2)
    assert 0 <= float(equipoise.evaluate("out", "two.csv").error) <= 1


# ---- a LIBSVM text with a file of names ----


@pytest.fixture
def text(tmp_path, monkeypatch):
    """24 persons with one to four lines, in no order; what everybody's lines hold differs."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = rng.permutation([f"p{i}" for i in range(24) for _ in range(1 + i % 4)])
    values = rng.normal(size=(len(names), 3))
    lines = [f"{row[0] > 0:d} 1:{row[0]:.6f} 2:{row[1]:.6f} 3:{row[2]:.6f}" for row in values]
    Path("lines.txt").write_text("\n".join(lines) + "\n")
    Path("names.txt").write_text("\n".join(names) + "\n")
    Path("form.toml").write_text("[index]\nlow = 1\nhigh = 3\n[label]\ncategories = [0, 1]\n")
    return [*names], values / np.linalg.norm(values, axis=1, keepdims=True)


OF_TEXT = {"data": ("lines.txt",), "bounds": "form.toml", "unit": "person", "clients": 5}


def of_text(**changes):
    return TaskOptions(**{**OF_TEXT, "person": "names.txt", **changes})


def lines_of(features, values):
    """Which lines of the file these records are; others are left out."""
    far = np.abs(np.asarray(features)[..., :3].reshape(-1, 1, 3) - values).sum(-1)
    return [int(row.argmin()) for row in far if row.min() < 1e-5]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_person_s_lines_are_at_one_client(text, seed):
    """All lines are somewhere, whole persons are dealt evenly and by seed, and in the order of the
    file."""
    names, values = text
    task, where = load_task("libsvm", of_text(seed=seed)), {}
    assert task.facts("person").sizes == (5, 5, 5, 5, 4)
    for i, features in enumerate(task.clients.features):
        own = lines_of(features, values)
        assert own == sorted(own)
        persons = [names[line] for line in own]
        assert numbered(persons, len(own)).tolist() == task.clients.owners[i].tolist()
        where |= dict.fromkeys(own, i)
    assert sorted(where) == list(range(len(names)))
    assert len({(names[line], i) for line, i in where.items()}) == 24
    alone = load_client("libsvm", of_text(seed=seed), 2)
    assert torch.equal(alone.clients.features, task.clients.features[2][: alone.clients.sizes[0]])
    assert alone.facts("person", (5, 5, 5, 5, 4)) == task.facts("person")
    other = load_task("libsvm", of_text(seed=seed + 1))
    assert other.fingerprint != task.fingerprint


def test_whole_persons_are_public(text):
    names, values = text
    task = load_task("libsvm", of_text(test_share=0.25, public_records=12))
    tests = lines_of(task.measure.features, values)
    pool = lines_of(task.pool.features, values)
    private = lines_of(task.clients.features, values)
    assert sorted([*tests, *pool, *private]) == list(range(len(names)))
    parts = [{names[line] for line in part} for part in (tests, pool, private)]
    assert sum(map(len, parts)) == 24, "nobody is in two of them"
    assert len(parts[0]) == 6
    assert len(pool) >= 12
    assert sum(task.facts("person").sizes) == len(parts[2])
    assert not any("lines of the file, which" in sentence for sentence in task.public)
    assert any("6 of the file's persons" in sentence for sentence in task.public)


def test_another_person_with_other_lines_leaves_all_others_where_they_are(text):
    """Neither its name nor the number of its lines decides who is where, or public."""
    names, values = text
    before = load_task("libsvm", of_text(test_share=0.25, public_records=12))
    lines = Path("lines.txt").read_text().splitlines()
    pools = {names[line] for line in lines_of(before.pool.features, values)}
    who = next(name for name in names if names.count(name) == 3 and name not in pools)
    first = names.index(who)
    for new, most, extra in (("0", 9, 0), ("zz", 9, 7), (who, 1, 0)):
        kept = [k for k in range(len(names)) if names[k] != who or k == first or most > 1]
        changed = [new if names[k] == who else names[k] for k in kept] + [new] * extra
        Path("names.txt").write_text("\n".join(changed) + "\n")
        content = [*(lines[k] for k in kept), *["1 1:0.5 2:0.1"] * extra]
        Path("lines.txt").write_text("\n".join(content) + "\n")
        after = load_task("libsvm", of_text(test_share=0.25, public_records=12))
        assert after.facts("person") == before.facts("person")
        assert after.public == before.public
        assert torch.equal(
            torch.from_numpy(after.pool.features), torch.from_numpy(before.pool.features)
        )
        for i in range(5):
            old = lines_of(before.clients.features[i], values)
            now = lines_of(after.clients.features[i][: after.clients.sizes[i]], values)
            kept = [[line for line in each if names[line] != who] for each in (old, now)]
            assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("content", "changes", "words"),
    [
        ("a\nb\n", {}, "person=names.txt does not have as many lines as lines.txt"),
        ("a\n" * 61, {}, "person=names.txt does not have as many lines as lines.txt"),
        ("a\n" * 30 + "\n" + "b\n" * 29, {}, "person=names.txt: some line is empty"),
        ("a\n" * 30 + " \t\n" + "b\n" * 29, {}, "person=names.txt: some line is empty"),
        ("a\n" * 60, {}, "clients=5 with unit=person: there are 1 persons"),
        ("", {}, "names.txt has no records"),
        (None, {}, "person=names.txt: there is no such file"),
        ("a\n" * 60, {"person": "lines.txt"}, "person=lines.txt is the file of the data"),
        ("a\n" * 60, {"person": None}, "unit=person with task=libsvm: give a file"),
        ("a\n" * 60, {"split": "dirichlet:1"}, "whole persons are dealt at random"),
        ("a\nb\n" * 30, {"public_records": 60, "clients": 1}, "there are 0 persons"),
    ],
)
def test_files_of_names_that_do_not_fit_are_one_sentence(text, content, changes, words):
    Path("names.txt").unlink()
    if content is not None:
        Path("names.txt").write_text(content)
    with pytest.raises((DataError, InvalidValue), match=words) as refused:
        load_task("libsvm", of_text(**changes))
    assert str(refused.value).count("\n") == 0


def test_a_file_of_names_in_other_encodings(text):
    names, _ = text
    plain = load_task("libsvm", of_text()).clients.owners
    Path("names.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(names).encode())
    marked = load_task("libsvm", of_text()).clients.owners
    assert all(np.array_equal(*pair) for pair in zip(plain, marked, strict=True))
    Path("names.txt").write_text("\n".join(names), encoding="utf-16")
    with pytest.raises(DataError, match="is no text in UTF-8"):
        load_task("libsvm", of_text())


def test_a_text_with_names_is_trained_planned_and_tuned(text, capsys):
    flags = "--task libsvm --data lines.txt --bounds form.toml --unit person --person names.txt"
    run = f"train {flags} --clients 3 --epsilon 4 --clip 0.5 --iterations 4 --out out"
    code, _, err = run_command(capsys, *run.split())
    assert code == 0, err
    assert "one person at one client" in Path("out/guarantee.md").read_text()
    assert equipoise.load("out").sizes == (8, 8, 8)
    mine = equipoise.adapt("out", client=1)
    assert mine.adapted.records >= 10
    assert equipoise.load("out").predict("lines.txt").shape == (60, 2)
    assert float(equipoise.evaluate("out", "lines.txt").error) <= 1


def test_a_text_is_tried_with_its_names(text, capsys):
    flags = "data try lines.txt --task libsvm --bounds form.toml --person names.txt".split()
    code, out, _ = run_command(capsys, *flags)
    assert code == 0
    assert "24 in names.txt; rows of each: median 2.5, largest 4" in out
    (tried,) = json.loads(run_command(capsys, *flags, "--json")[1])["files"]
    assert (tried["rows"], tried["kept"], sum(tried["classes"].values())) == (60, 60, 60)
    with Path("lines.txt").open("a") as file:
        file.write("7 1:1\nodd\n1 2:1 9:4\n")
    code, out, _ = run_command(capsys, *flags)
    assert code == 2
    assert "person=names.txt has 60 lines, and lines.txt 63" in out
    with Path("names.txt").open("a") as file:
        file.write("p1\np1\np2\n")
    code, out, _ = run_command(capsys, *flags)
    assert code == 1
    assert '1 of 63 lines have a label that is not declared, and teach nothing: "7" 1' in out
    assert "1 of 63 lines are no `label index:value ...`" in out
    assert "1 of 183 values are at an index beyond 1 to 3, and left out; there is 1 to 9" in out
    Path("names.txt").write_text("\n" * 3 + "p\n" * 60)
    code, out, _ = run_command(capsys, *flags)
    assert code == 2
    assert "person=names.txt: 3 of its lines are empty" in out


@pytest.mark.slow
def test_a_plan_for_persons_of_a_text(text):
    """Its silos have as many records as there are persons; the plan is one that trains."""
    asked = {**OF_TEXT, "task": "libsvm", "person": "names.txt", "epsilon": 20, "iterations": 4}
    plan = equipoise.plan(**asked, algorithm="dp-fedavg", public_records=20)
    assert (plan.settings.clients, plan.settings.person) == (5, "names.txt")
    trained = equipoise.train(plan, anyway=True)
    assert sum(trained.sizes) == plan.units
    assert plan.units < 24


@pytest.mark.slow
def test_a_plan_for_persons(silos):
    plan = equipoise.plan(
        task="csv",
        data=["one.csv", "two.csv"],
        label="ill",
        bounds="bounds.toml",
        unit="person",
        person="patient",
        records=200,
        epsilon=4,
        synthetic=True,
    )
    assert plan.settings.unit == "person"
    assert plan.settings.person == "patient"
    assert plan.promise.unit == "person"
