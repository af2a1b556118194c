"""One person with all records takes the place of one record."""

import json
import math
import shutil
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
def test_networks_do_the_same_in_a_pass_for_each_person(most):
    task = network()
    persons = task.persons().of_persons(most)
    x = task.x0 + 0.3 * torch.randn(2, task.dimension, dtype=torch.float64)
    found = persons.clipped_sum(x, None, 0.2, 0)
    for i, own in enumerate(GROUPS):
        inputs, targets = task.clients.data[i]
        g = [
            task.clients.model.gradient(
                x[i], task.clients.loss, inputs[j : j + 1], targets[j : j + 1], 0
            ).numpy()
            for j in range(len(own))
        ]
        np.testing.assert_allclose(found[i], by_hand(g, own, most, 0.2), rtol=0, atol=1e-12)


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
    assert numbered(["b", "a", "b"], 3).tolist() == [1, 0, 1]
    assert numbered(np.array([7, 7, 3]), 3).tolist() == [1, 1, 0]


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
def test_the_persons_of_real_data(name, persons):
    folder = {"femnist-narrow": "femnist", "deepdrid-narrow": "fundus"}[name]
    if not (DATA / folder).exists():
        pytest.skip(f"{folder}/ is not in {DATA}: see `equipoise data`")
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


NEIGHBOURS = {
    "one stay": ["40,a,yes"],
    "ten": ["70,b,no"] * 10,
    "without a label": ["40,a,", "41,a,"],
    "odd cells": ["x,y,z", ",,", "1,2,3,4,5"],
    "the other answer": ["40,a,no"] * 3,
}


def test_a_person_with_any_other_rows_changes_nothing_but_the_releases(silos, capsys):
    """Exit code, output, names and sizes of files are those of the neighbour."""
    seen = {}
    for name, rows in NEIGHBOURS.items():
        Path("one.csv").write_text(stays(*silos[:4], ("q", rows), *silos[5:]))
        shutil.rmtree("out", ignore_errors=True)
        code, out, err = run_command(capsys, *FLAGS.split(), "--simulate-noise-seed", "1")
        document = json.loads(out)
        kept = {path.name: path.stat().st_size for path in sorted(Path("out").iterdir())}
        seen[name] = (code, document, err, kept), equipoise.load("out").x.tobytes()
    assert seen["one stay"][0][0] == 0
    assert all(other[0] == seen["one stay"][0] for other in seen.values())
    assert len({other[1] for other in seen.values()}) > 3, "they must differ where they may"


def test_a_run_for_persons_can_be_used(silos, capsys):
    """Predicted and measured on files with and without names."""
    Path("one.csv").write_text(stays(*silos))
    code, _, _ = run_command(capsys, *FLAGS.split())
    assert code == 0
    assert "one person at one client" in Path("out/guarantee.md").read_text()
    frame = equipoise.load("out").predict({"age": ["30", "60"], "ward": ["a", "b"]})
    assert frame.shape == (2, 2)
    assert 0 <= float(equipoise.evaluate("out", "two.csv").error) <= 1


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
