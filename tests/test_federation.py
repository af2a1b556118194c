"""Runs between silos: the model of one process, bit for bit; what is refused; what leaves."""

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from data_files import femnist_files, leaf, writer
from equipoise import InvalidValue
from equipoise.algorithms.catalogue import ALGORITHMS
from equipoise.errors import DataError, EquipoiseError
from equipoise.federation.agreement import Agreement, read_agreement
from equipoise.federation.lead import dismiss, lead, propose
from equipoise.federation.masks import mask
from equipoise.federation.messages import (
    WORDS,
    BadMessage,
    answer,
    question,
    read_answer,
    read_question,
    refusal,
)
from equipoise.federation.part import lead_part, silo_part, tried
from equipoise.fleets.keys import write_keys
from equipoise.fleets.link import MissingSilo
from equipoise.privacy.clip import clip
from equipoise.privacy.statement import statement
from equipoise.tasks import TaskOptions, load_task
from federations import SEED, Parties, keys_of, proposed, public_of
from problems import BOUNDS, csv_task, run_command
from test_one_client import table
from test_persons import PATIENTS, stays

RUN = {"epsilon": 4.0, "clip": 0.5, "iterations": 12}
EVERY_THIRD = {**RUN, "local_steps": 3}
CANCER = {"task": "breast-cancer", "clients": 3, **EVERY_THIRD}


def check_same(tmp_path, monkeypatch, **values):
    """The federated model equals that of one process, bit for bit."""
    together = equipoise.train(**values, simulate_noise_seed=SEED)
    agreement = proposed(together.sizes, **values)
    result = Parties(agreement, tmp_path, monkeypatch).train()
    assert np.array_equal(result.x, together.x)
    assert [p.test_error for p in result.curve] == [p.test_error for p in together.curve]
    assert result.account == together.account
    assert result.private
    assert not together.private
    return result


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
@pytest.mark.parametrize("name", [s.name for s in ALGORITHMS.values() if s.protects("client")])
def test_every_algorithm_is_the_same_between_silos(tmp_path, monkeypatch, name, trust):
    weights = "3,2,1" if trust != "local" else "equal"
    check_same(tmp_path, monkeypatch, **CANCER, algorithm=name, trust=trust, weights=weights)


@pytest.mark.parametrize("name", [s.name for s in ALGORITHMS.values() if s.protects("record")])
def test_every_algorithm_protects_a_record_the_same(tmp_path, monkeypatch, name):
    """Secret samples, of unequal silos."""
    unequal = {"split": "dirichlet:0.5", "unit": "record", "batch": 20}
    check_same(tmp_path, monkeypatch, **CANCER, **unequal, algorithm=name)


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "dp-scaffnew", "schedule": "coin", "p": 0.4, "local_steps": None},
        {"unit": "record", "noise_in": "message", "trust": "secure-aggregation"},
        {"unit": "record", "noise_in": "message", "split": "dirichlet:0.5", "weights": "equal"},
        {"unit": "record", "noise_in": "hidden-gradient", "split": "dirichlet:0.5"},
        {"warm_start": True, "public_records": 60, "returns": "average"},
        {"neighbours": "zero-out", "batch": 5, "seed": 3},
        {"task": "quadratic", "clients": 4, "trust": "secure-aggregation", "colluding": 2},
        {"server_optimiser": "momentum", "server_beta": 0.5, "eta_schedule": "linear"},
        {"server_optimiser": "adam", "gamma": 0.05, "trust": "secure-aggregation"},
        {"unit": "record", "local_optimiser": "adam", "eta": 0.05, "batch": 20},
    ],
)
def test_other_settings_are_the_same(tmp_path, monkeypatch, changes):
    check_same(tmp_path, monkeypatch, **{**CANCER, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "record"])
def test_networks_are_the_same(tmp_path, monkeypatch, unit):
    network = {**CANCER, "task": "digits-mlp", "clip": 1.0}
    check_same(tmp_path, monkeypatch, **network, unit=unit, batch=16)


@pytest.fixture
def tables(clinic):
    """Three silos' own files, of which each stands in a folder of its own."""
    files = []
    for i in range(3):
        path = Path(f"silo-{i}") / "mine.csv"
        path.parent.mkdir()
        path.write_text(table(20 + 9 * i, i))
        files.append(str(path))
    return files


@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_silo_opens_its_own_table_only(tmp_path, monkeypatch, tables, unit):
    columns = {"task": "csv", "label": "outcome", "bounds": "bounds.toml"}
    values = {**columns, **EVERY_THIRD, "unit": unit, "batch": 5}
    together = equipoise.train(**values, data=tables, test=["test.csv"], simulate_noise_seed=SEED)
    agreement = proposed(together.sizes, **values, data=tables)
    text = agreement.to_json()
    assert "mine.csv" not in text
    assert "bounds.toml" not in text
    sizes = csv_task(data=tuple(tables), unit=unit).clients.sizes
    Path("bounds.toml").unlink()  # its text is in the agreement
    for i in range(3):
        others = [Path(path) for path in tables if path != tables[i]]
        parked = [path.rename(path.with_suffix(".parked")) for path in others]
        assert silo_part(agreement, i, tables[i]).clients.sizes == (sizes[i],)
        for path, place in zip(parked, others, strict=True):
            path.rename(place)
    result = Parties(agreement, tmp_path, monkeypatch, tables).train(test=("test.csv",))
    assert np.array_equal(result.x, together.x)
    assert result.test_error == together.test_error


def test_libsvm_files_of_silos(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    declared = "[index]\nlow = 1\nhigh = 3\n[label]\ncategories = [-1, 1]\n"
    Path("bounds.toml").write_text(declared)
    rng, files = np.random.default_rng(0), []
    for i, number in enumerate((20, 31, 12)):
        files.append(f"{i}.txt")
        rows = rng.normal(size=(number, 3))
        lines = [f"{1 if x[0] > 0 else -1} 1:{x[0]:.4f} 2:{x[1]:.4f} 3:{x[2]:.4f}" for x in rows]
        Path(files[-1]).write_text("\n".join(lines))
    for unit in ("client", "record"):
        values = {"task": "libsvm", "bounds": "bounds.toml", **EVERY_THIRD, "unit": unit}
        together = equipoise.train(**values, data=files, simulate_noise_seed=SEED)
        agreement = proposed(together.sizes, **values)
        result = Parties(agreement, tmp_path / unit, monkeypatch, files).train()
        assert np.array_equal(result.x, together.x)
    Path("a.json").write_text(proposed(**{**values, "unit": "client"}).to_json())
    with Path(files[1]).open("a") as file:
        file.write("\nno record")
    check = ["silo", "check", "a.json", "--silo", "clinic-1", "--data", files[1]]
    code, out, err = run_command(capsys, *check)
    assert code == 1  # a line that an operator should look at
    assert "1.txt: 32 lines, of which 1 are no record" in err
    assert "you are     clinic-1" in out


def test_a_data_set_of_the_paper_is_a_silo_s_own_folder(tmp_path, monkeypatch, place):
    """Every party has the folder; a silo takes its part of the split."""
    users = {f"f{i}": writer([i % 62, 3, 5, i % 7], seed=i) for i in range(6)}
    femnist_files(place, leaf(users), leaf({name: writer([1]) for name in users}))
    values = {"task": "femnist-narrow", "clients": 3, **RUN, "iterations": 4, "local_steps": 2}
    result = check_same(tmp_path, monkeypatch, **values, batch=4)
    assert result.run.task == "femnist-narrow"


def test_a_parquet_file_is_a_silo_s_table(tmp_path, monkeypatch, tables):
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    columns = {"task": "csv", "label": "outcome", "bounds": "bounds.toml", **EVERY_THIRD}
    together = equipoise.train(**columns, data=tables, simulate_noise_seed=SEED)
    files = [str(Path(path).with_suffix(".parquet")) for path in tables]
    for path, file in zip(tables, files, strict=True):
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(path), file)
    agreement = proposed(**columns)
    result = Parties(agreement, tmp_path, monkeypatch, [files[0], tables[1], files[2]]).train()
    assert np.array_equal(result.x, together.x)


@pytest.mark.parametrize("rate", [{}, {"sampling_rate": 0.5}])
def test_persons_of_silos(tmp_path, monkeypatch, rate):
    """A person with all rows that it has at a silo; the numbers of persons are public."""
    monkeypatch.chdir(tmp_path)
    Path("bounds.toml").write_text(PATIENTS)
    files, persons = [], (6, 9, 5)
    for i, number in enumerate(persons):
        rows = [
            (f"p{k}", [f"{20 + 3 * k + i},a,{'no' if k % 3 else 'yes'}"] * (1 + k % 3))
            for k in range(number)
        ]
        files.append(f"{i}.csv")
        Path(files[-1]).write_text(stays(*rows))
    values = {"task": "csv", "label": "ill", "bounds": "bounds.toml", "unit": "person"}
    values |= {"person": "patient", "max_records": 3, **EVERY_THIRD, **rate}
    together = equipoise.train(**values, data=files, simulate_noise_seed=SEED)
    assert together.sizes == persons
    agreement = proposed(persons, **values)
    assert np.array_equal(Parties(agreement, tmp_path, monkeypatch, files).train().x, together.x)
    Path(files[0]).write_text(stays(("p0", ["30,a,no"])))
    with pytest.raises(InvalidValue, match="1 persons where the agreement says 6 for clinic-0"):
        Parties(agreement, tmp_path / "other", data=files)


CLIENT_FILE = """
import torch
from torch import nn
from equipoise import accuracy as metric


def client(path):
    numbers = torch.tensor([[float(cell) for cell in line.split()] for line in open(path)])
    return numbers[:, :4], (numbers[:, 4] > 0).long()


model = nn.Linear(4, 2)
loss = nn.functional.cross_entropy
example = torch.zeros(4), torch.tensor(0)
learning_rate = 0.5
"""


def test_a_task_file_makes_each_silo_s_data_of_its_own_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(CLIENT_FILE)
    rng = np.random.default_rng(0)
    paths = [f"{name}.txt" for name in "abc"]
    for path in paths:
        np.savetxt(path, rng.normal(size=(30, 5)))
    values = {"task": "task.py", **EVERY_THIRD, "batch": 5}
    together = equipoise.train(**values, data=paths, simulate_noise_seed=SEED)
    agreement = proposed(**values)
    parties = Parties(agreement, tmp_path, monkeypatch, paths, task_file="task.py")
    assert np.array_equal(parties.train(task_file="task.py").x, together.x)
    Path("other.py").write_text(CLIENT_FILE + "\n")
    with pytest.raises(InvalidValue, match="is not the file that was agreed on"):
        Parties(agreement, tmp_path, data=paths, task_file="other.py")
    with pytest.raises(InvalidValue, match=r"give your copy \(--task-file task.py\)"):
        Parties(agreement, tmp_path, data=paths)


@pytest.mark.parametrize("unit", ["client", "record", "person"])
def test_a_silo_opens_its_own_text_only(tmp_path, monkeypatch, unit):
    """LIBSVM texts, with a file of names beside each if persons are protected: what silos make of
    them is what each would make of it by itself."""
    monkeypatch.chdir(tmp_path)
    Path("form.toml").write_text("[index]\nlow = 1\nhigh = 4\n[label]\ncategories = [0, 1]\n")
    rng, texts, names = np.random.default_rng(0), [], []
    for i in range(3):
        values = rng.normal(size=(20 + 4 * i, 4))
        lines = [
            " ".join([str(int(row[0] > 0)), *(f"{j}:{row[j - 1]:.3f}" for j in range(1, 5))])
            for row in values
        ]
        texts.append(f"mine-{i}.txt")
        names.append(f"names-{i}.txt")
        Path(texts[i]).write_text("\n".join([*lines, "no record", "7 1:1"]))
        Path(names[i]).write_text("\n".join(f"p{k // 2}" for k in range(len(lines) + 2)))
    Path("test.txt").write_text("\n".join(lines))
    sizes = {"client": None, "record": (22, 26, 30), "person": (11, 13, 15)}[unit]
    values = {"task": "libsvm", "bounds": "form.toml", "unit": unit, **EVERY_THIRD}
    settings = {**values, "person": names[0]} if unit == "person" else values
    agreement = proposed(sizes, **settings)
    Path("form.toml").unlink()  # its text is in the agreement
    assert not any(word in agreement.to_json() for word in ("form.toml", "names-0", "mine-"))
    for i in range(3):
        files = {"person": names[i]} if unit == "person" else {}
        others = [Path(path) for path in (*texts, *names) if path not in (texts[i], names[i])]
        parked = [path.rename(path.with_suffix(".parked")) for path in others]
        part = silo_part(agreement, i, texts[i], **files)
        for path, place in zip(parked, others, strict=True):
            path.rename(place)
        Path("one.toml").write_text(agreement.bounds)
        alone = TaskOptions(data=(texts[i],), bounds="one.toml", unit=unit, clients=1, **files)
        mine = load_task("libsvm", alone).clients
        one, other = (
            sorted(torch.hstack([c.features.reshape(-1, 5), c.targets.reshape(-1, 1)]).tolist())
            for c in (part.clients, mine)
        )
        assert one == other
        assert (part.clients.owners is None) == (unit != "person")
        look = tried(agreement, texts[i], **files)
        assert (look.code, look.files[0].rows) == (1, 22 + 4 * i)
    if unit == "person":
        with pytest.raises(InvalidValue, match="give a file that has, for each line"):
            silo_part(agreement, 0, texts[0])
        with pytest.raises(DataError, match=r"names-1.txt does not have as many lines"):
            silo_part(agreement, 0, texts[0], person=names[1])
        return
    result = Parties(agreement, tmp_path, monkeypatch, texts).train(test=("test.txt",))
    assert result.private
    assert np.abs(result.x).sum() > 0
    assert 0 <= result.test_error <= 1


def test_persons_of_texts_are_protected_between_silos(tmp_path, monkeypatch):
    """Texts in which every line is a person's of its own make the model of unit record."""
    monkeypatch.chdir(tmp_path)
    Path("form.toml").write_text("[index]\nlow = 1\nhigh = 2\n[label]\ncategories = [0, 1]\n")
    rng, texts = np.random.default_rng(0), [f"mine-{i}.txt" for i in range(3)]
    for text in texts:
        rows = rng.normal(size=(12, 2))
        Path(text).write_text("\n".join(f"{a > b:d} 1:{a:.3f} 2:{b:.3f}" for a, b in rows))
    Path("names.txt").write_text("\n".join(map(str, range(12))))
    values, sizes = {"task": "libsvm", "bounds": "form.toml", **EVERY_THIRD}, (12, 12, 12)
    made = {}
    for unit, files in (("record", {}), ("person", {"person": "names.txt"})):
        agreement = proposed(sizes, **values, unit=unit, batch=4)
        parties = Parties(agreement, tmp_path / unit, monkeypatch, texts, **files)
        made[unit] = parties.train()
    np.testing.assert_allclose(made["record"].x, made["person"].x, rtol=0, atol=1e-6)
    assert made["record"].account.epsilons == made["person"].account.epsilons
    assert "one person at one client" in statement(made["person"])
    csv = {"task": "csv", "label": "outcome", "bounds": "bounds.toml"}
    Path("bounds.toml").write_text(BOUNDS)
    columns = proposed((4, 4, 4), **csv, **EVERY_THIRD, unit="person", person="patient")
    with pytest.raises(InvalidValue, match="where the agreement names the column patient"):
        silo_part(columns, 0, "a.csv", person="names.txt")


# -------------------------------------------------------------------------------------------------
# what dies, and what is asked twice


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
def test_a_run_that_died_is_the_same_when_it_is_started_again(tmp_path, trust):
    """With secret noise: silos and lead die between any two answers."""
    agreement = proposed(**{**CANCER, "trust": trust, "algorithm": "dp-scaffnew"})
    rng = np.random.default_rng(0)

    class Dying(Parties):
        def ask(self, question):
            for i in np.flatnonzero(rng.random(3) < 0.4):
                self.silos[i] = self.silo(int(i))
            if rng.random() < 0.3:
                self.silos[0].answer(question)  # which never arrives
                raise MissingSilo(["clinic-1"], "silo clinic-1 does not answer")
            return super().ask(question)

    parties, model = Dying(agreement, tmp_path), None
    for _ in range(50):
        try:
            model = parties.train().x
            break
        except MissingSilo:
            continue
    assert model is not None
    again = Parties(agreement, tmp_path)
    assert np.array_equal(again.train().x, model)
    for silo in again.silos:
        (run,) = silo.ledger.runs()
        assert run.released == 4
        (event,) = agreement.prepared(lead_part(agreement)).account.events
        exact = 4 * (event.sensitivity / event.sigma) ** 2
        assert exact <= run.row.mu2 <= exact * (1 + 1e-12)


def test_a_silo_that_lost_its_answer_before_it_was_kept_makes_another(tmp_path, monkeypatch):
    """Nothing had left, so other noise is right; and the ledger has one row for the round."""
    agreement = proposed(**CANCER)
    silo = Parties(agreement, tmp_path).silos[0]
    asked = question(agreement.digest, 1, np.zeros(31))
    commit = silo.ledger.commit

    def full(*arguments):
        raise EquipoiseError("ledger: no space left on device")

    monkeypatch.setattr(silo.ledger, "commit", full)
    with pytest.raises(BadMessage, match="its ledger does not let the release out"):
        read_answer(silo.answer(asked), agreement.digest)
    monkeypatch.setattr(silo.ledger, "commit", commit)
    first = silo.answer(asked)
    assert read_answer(first, agreement.digest).round == 1
    assert silo.answer(asked) == first


def test_when_it_is_over_silos_wipe_what_they_kept(tmp_path):
    agreement = proposed(**CANCER, algorithm="dp-scaffnew")
    parties = Parties(agreement, tmp_path)
    parties.train()
    assert parties.silos[0].ledger.state(agreement.name)
    assert dismiss(agreement, parties) == ""
    assert parties.answers[-1] == [None] * 3
    for silo in parties.silos:
        assert silo.ledger.state(agreement.name) is None
        (run,) = silo.ledger.runs()
        assert (run.open, run.released) == (False, 4)
    with pytest.raises(EquipoiseError, match="clinic-0 refused"):
        Parties(agreement, tmp_path).train()


def test_a_silo_that_runs_twice_at_once_answers_once(tmp_path):
    """Both made a release of the same round; the ledger lets one of them out, and then it alone."""
    agreement = proposed(**{**CANCER, "trust": "secure-aggregation"})
    parties = Parties(agreement, tmp_path)
    one, two = parties.silos[0], parties.silo(0)
    asked, others = question(agreement.digest, 1, np.zeros(31)), []
    commit = one.ledger.commit

    def late(*arguments):
        others.append(two.answer(asked))
        commit(*arguments)

    one.ledger.commit = late
    assert one.answer(asked) == refusal(agreement.digest, "ledger")
    assert read_answer(others[0], agreement.digest).round == 1
    assert one.answer(asked) == two.answer(asked) == others[0]


def test_agreements_with_the_same_nonce_are_two(tmp_path):
    """Whatever else differs: a silo of one hears nothing of the other, and masks differ."""
    agreement = proposed(**{**CANCER, "trust": "secure-aggregation"})
    run = agreement.run.model_copy(update={"seed": 4})
    other = agreement.model_copy(update={"run": run})
    assert other.nonce == agreement.nonce
    one = Parties(agreement, tmp_path).silos[0]
    x = np.zeros(31)
    refused(one, question(other.digest, 1, x), "agreement")
    public = [member.keys.mask_bytes() for member in agreement.silos]
    masks = [
        mask(keys_of(3)[0].mask, 0, public, agreed.digest + bytes(36), 1000)
        for agreed in (agreement, other)
    ]
    assert np.mean(masks[0] == masks[1]) < 0.01


# -------------------------------------------------------------------------------------------------
# what is refused


def refused(silo, message, word):
    """One word leaves, and nothing is spent."""
    agreement, ledger = silo.agreement, silo.ledger
    before = ledger.rounds(agreement.name)
    answered = silo.answer(message)
    assert answered == refusal(agreement.digest, word)
    assert ledger.rounds(agreement.name) == before


def test_what_is_no_next_question_is_refused(tmp_path):
    agreement = proposed(**CANCER)
    silo = Parties(agreement, tmp_path).silos[0]
    name, x = agreement.digest, np.zeros(31)
    refused(silo, b"", "form")
    refused(silo, question(name, 1, x)[:-1], "form")
    refused(silo, b"GET / HTTP/1.1\r\n\r\n" + bytes(100), "form")
    refused(silo, question(bytes(32), 1, x), "agreement")
    refused(silo, question(name, 2, x), "order")
    for wrong in (x[:-1], np.zeros(32), x.astype(np.float32), x.astype(np.uint32)):
        refused(silo, question(name, 1, wrong), "size")
    for bad in (math.nan, math.inf):
        refused(silo, question(name, 1, np.where(np.arange(31) == 5, bad, x)), "finite")
    assert read_answer(silo.answer(question(name, 1, x)), name).round == 1
    refused(silo, question(name, 1, x + 1), "another")
    refused(silo, question(name, 3, x), "order")
    for number in (2, 3, 4):
        silo.answer(question(name, number, x))
    refused(silo, question(name, 5, x), "order")
    refused(silo, question(name, 2**31, x), "order")


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_no_bytes_are_read_as_what_they_are_not(junk):
    for read in (read_question, read_answer):
        with pytest.raises(BadMessage):
            read(junk, bytes(range(32)))


@pytest.mark.parametrize("kind", [RuntimeError, EquipoiseError, MemoryError])
def test_what_fails_at_a_silo_stays_there(tmp_path, monkeypatch, caplog, kind):
    """And it tells one thing only: a lead that tries models until one fails gets no second word of
    what is made of records, before the operator has seen it."""
    agreement = proposed(**CANCER)
    parties = Parties(agreement, tmp_path)
    silo, name, x = parties.silos[0], agreement.digest, np.zeros(31)
    first = silo.answer(question(name, 1, x))

    def failing(*arguments):
        raise kind("patient 4711")

    with monkeypatch.context() as patch:
        patch.setattr("equipoise.federation.silo.client_round", failing)
        with caplog.at_level(logging.WARNING, "equipoise.silo"):
            refused(silo, question(name, 2, x), "failed")
    assert "4711" in caplog.text  # its own log
    for other in (x, x + 1, x + 2):
        refused(silo, question(name, 2, other), "failed")
    refused(silo, question(name, 2, x[1:]), "size")
    assert silo.answer(question(name, 1, x)) == first, "what was answered before tells nothing new"
    again = parties.silo(0)
    assert read_answer(again.answer(question(name, 2, x)), name).round == 2


def test_a_run_that_was_not_admitted_releases_nothing(tmp_path):
    agreement = proposed(**CANCER)
    silo = Parties(agreement, tmp_path, admit=False).silos[1]
    asked = question(agreement.digest, 1, np.zeros(31))
    assert silo.answer(asked) == refusal(agreement.digest, "ledger")
    assert silo.ledger.runs() == []


def test_the_sizes_of_the_agreement_are_a_silo_s_own(tmp_path):
    agreement = proposed(sizes=(100, 100, 121), **CANCER, unit="record")
    with pytest.raises(InvalidValue, match="records where the agreement says 100 for clinic-0"):
        Parties(agreement, tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"epsilon": math.inf, "clip": math.inf}, "epsilon=inf: without noise nothing may leave"),
        (
            {"noise_rule": "lemma1", "v": "proof"},
            "noise_rule=lemma1: it spends more",
        ),
        ({"simulate_noise_seed": 3}, "between silos noise is secret"),
        ({"diagnostics": True}, "between silos noise is secret"),
        ({"unit": "record"}, "unit=record .*needs the number of records of every"),
        ({"trust": "secure-aggregation", "colluding": 3}, "no honest client's noise is left"),
    ],
)
def test_what_no_silo_should_sign_is_not_proposed(changes, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        proposed(**{"task": "breast-cancer", **RUN, **changes})


def test_a_silo_is_one_client():
    settings = equipoise.Settings.of(**{**CANCER, "clients": 5})
    with pytest.raises(InvalidValue, match="clients=5 with 3 silos"):
        propose(settings, public_of(3))


def test_an_agreement_that_was_changed_is_another_one_or_is_refused(tmp_path):
    agreement = proposed(**CANCER)
    path = tmp_path / "agreement.json"
    path.write_text(agreement.to_json())
    assert read_agreement(path) == agreement
    document = json.loads(path.read_text())
    assert Agreement(**document).digest == agreement.digest
    path.write_text(json.dumps(document, sort_keys=True))
    assert read_agreement(path).digest == agreement.digest, "its layout does not matter"

    def changed(**values):
        path.write_text(json.dumps({**document, **values}))
        return read_agreement(path)

    assert changed(nonce="0" * 32).digest != agreement.digest
    lower = changed(run={**document["run"], "epsilon": 40.0})
    with pytest.raises(InvalidValue, match="which follows from its settings here"):
        lower.prepared(lead_part(lower))
    for values, sentence in (
        ({"version": "0.1"}, "made with equipoise 0.1"),
        ({"silos": document["silos"][:2]}, "clients=3 with 2 silos"),
        ({"silos": [document["silos"][0]] * 3}, "two of them have the name clinic-0"),
        ({"sizes": [1, 2, 3]}, "records with unit=client, where they are private"),
        ({"run": {**document["run"], "data": ["/home/x.csv"]}}, "it names data of somebody's"),
        ({"run": {**document["run"], "epsilon": "inf"}}, "epsilon=inf: without noise"),
    ):
        with pytest.raises(InvalidValue, match=sentence):
            changed(**values)
    with pytest.raises(DataError, match="is no agreement"):
        changed(lies=1)
    with pytest.raises(DataError, match="cannot be read"):
        read_agreement(tmp_path / "nowhere.json")


def test_the_lead_names_the_silo_that_sends_no_release(tmp_path):
    agreement = proposed(**CANCER)
    parties = Parties(agreement, tmp_path)

    class Odd:
        def __init__(self, spoilt):
            self.spoilt = spoilt

        def ask(self, asked):
            sent = parties.ask(asked)
            return [sent[0], self.spoilt(sent[1]), sent[2]]

    name = agreement.digest
    for spoilt, sentence in (
        (lambda sent: b"", "clinic-1 refused: it is no question of this version"),
        (lambda sent: refusal(name, "order"), "clinic-1 refused: the round is not the next one"),
        (lambda sent: refusal(bytes(32), "order"), "clinic-1 refused"),
        (lambda sent: sent[:-4], "clinic-1 sent no release of round 1"),
        (lambda sent: answer(name, 2, np.zeros(31, np.uint32)), "clinic-1 sent no release"),
        (lambda sent: answer(name, 1, np.zeros(31)), "clinic-1 sent no release"),
    ):
        with pytest.raises(EquipoiseError, match=sentence):
            lead(agreement, lead_part(agreement), Odd(spoilt))


@pytest.mark.parametrize("colluding", [0, 1, 2])
def test_under_masks_a_silo_knows_the_keys_of_enough_fellows_itself(
    tmp_path, monkeypatch, capsys, colluding
):
    """Or the lead writes keys of its own into the agreement, takes the masks off, and reads the one
    message that is left, with a share of the noise that was promised."""
    monkeypatch.chdir(tmp_path)
    for keys in keys_of(4):
        write_keys(keys, tmp_path)
    trust = {"trust": "secure-aggregation", "colluding": colluding}
    agreement = proposed(**{**CANCER, "clients": 4, **trust})
    Path("a.json").write_text(agreement.to_json())

    def serve(*arguments, **named):
        raise EquipoiseError("connecting")

    monkeypatch.setattr("equipoise.fleets.flower.silo.serve", serve)
    needed = 3 - colluding
    sentence = f"of {needed} known: under trust=secure-aggregation whoever wrote the agreement"
    here = ["a.json", "--key", "clinic-0.key"]
    # one's own key is no fellow's, and the same one twice is one
    given = ["clinic-0.pub", "clinic-1.pub", "clinic-1.pub"]
    given += [f"clinic-{i}.pub" for i in range(2, needed)]
    run = ["--link", "localhost:1", "--ledger", "l.db", "--cap-epsilon", "9", "--cap-delta", "1e-5"]
    if needed > 1:
        code, _, said = run_command(capsys, "silo", "run", *here, "--fellows", *given, *run)
        assert code == 2
        assert f"error: fellows: {needed - 1} {sentence}" in said
        code, _, said = run_command(capsys, "silo", "check", *here, "--fellows", *given)
        assert code == 1
        assert f"fellows: {needed - 1} {sentence}" in said
    else:
        code, _, said = run_command(capsys, "silo", "run", *here, *run)
        assert f"error: fellows: 0 {sentence}" in said
    assert not Path("l.db").exists()

    enough = [*given, f"clinic-{needed}.pub"] if needed > 1 else given
    _, _, said = run_command(capsys, "silo", "run", *here, "--fellows", *enough, *run)
    assert "error: connecting" in said
    assert Path("l.db").exists()


def test_what_a_ledger_has_no_room_for_never_meets_the_link(tmp_path, monkeypatch, capsys):
    """A run of records under a cap for clients alone; a run that would fit by itself, and not
    beside another that is open. No link is called, and the ledger stays as it was."""
    monkeypatch.chdir(tmp_path)
    for keys in keys_of(3):
        write_keys(keys, tmp_path)
    served = []
    monkeypatch.setattr("equipoise.fleets.flower.silo.serve", lambda *_, **__: served.append(1))

    def run(*more, **values):
        sizes = (127, 126, 126) if "unit" in values else None
        agreement = proposed(sizes, **{**CANCER, **values})
        Path("a.json").write_text(agreement.to_json())
        link = ["--link", "localhost:1", "--ledger", "l.db"]
        return run_command(capsys, "silo", "run", "a.json", "--key", "clinic-0.key", *link, *more)

    code, _, said = run("--cap-epsilon", "5", "--cap-delta", "1e-5")
    assert (code, len(served)) == (0, 1), said
    before = Path("l.db").read_bytes()
    for values, sentence in (
        ({"unit": "record", "trust": "local"}, "of unit record bounds nothing for unit client"),
        ({"epsilon": 4.0}, "costs epsilon = 4.0"),
        ({"neighbours": "zero-out", "epsilon": 2.0}, "by itself"),
    ):
        code, _, said = run(**values)
        assert code == 2
        assert sentence in said
        assert said.count("\n") == 1
        assert len(served) == 1
        assert Path("l.db").read_bytes() == before


# -------------------------------------------------------------------------------------------------
# what leaves


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
def test_two_silos_that_differ_in_their_records_send_the_same(tmp_path, monkeypatch, tables, trust):
    """With updates that the lattice rounds to zero, and the same noise: nothing but the update
    depends on records."""
    columns = {"task": "csv", "label": "outcome", "bounds": "bounds.toml"}
    agreement = proposed(**columns, **{**EVERY_THIRD, "eta": 1e-30, "trust": trust})
    asked, sent = question(agreement.digest, 1, np.zeros(5)), []
    for i, mine in enumerate(tables):
        data = [mine, *tables[1:]] if i else tables
        parties = Parties(agreement, tmp_path / str(i), monkeypatch, data)
        sent.append(parties.silos[0].answer(asked))
    assert read_answer(sent[0], agreement.digest).round == 1
    assert sent == sent[:1] * 3


@pytest.mark.parametrize(
    "values",
    [
        {"algorithm": "dp-scaffnew"},
        {"algorithm": "dp-scaffnew", "trust": "secure-aggregation"},
        {"unit": "record"},
        {"unit": "record", "sampling_rate": 0.4, "algorithm": "dp-scaffnew"},
    ],
)
def test_with_clips_of_nearly_nothing_two_silos_send_the_same(
    tmp_path, monkeypatch, tables, values
):
    """Over all rounds, control variates and samples included: of records only what a clip lets
    through reaches an answer. Here it lets 1e-30 through, while the noise is as agreed."""
    monkeypatch.setattr("equipoise.privacy.clip.clip", lambda u, C: clip(u, 1e-30))
    monkeypatch.setattr("equipoise.privacy.noisy_gradient.inner_clip", lambda *_: 1e-30)
    columns = {"task": "csv", "label": "outcome", "bounds": "bounds.toml", **EVERY_THIRD}
    sizes = (20, 29, 38) if "unit" in values else None
    agreement = proposed(sizes, **{**columns, **values})
    Path("other.csv").write_text(table(20 if sizes else 50, 77))
    sent = []
    for mine in (tables[0], "other.csv"):
        folder = tmp_path / f"with {Path(mine).stem}"
        parties = Parties(agreement, folder, monkeypatch, [mine, *tables[1:]])
        parties.silos[0] = parties.silo(0)  # its noise was made last
        x, answers = np.full(agreement.dimension, 0.1), []
        for number in range(1, 5):
            answers.append(parties.silos[0].answer(question(agreement.digest, number, x)))
            assert read_answer(answers[-1], agreement.digest).round == number
        sent.append(answers)
    assert sent[0] == sent[1]
    assert len({*sent[0]}) == 4


@pytest.mark.parametrize("chosen", [{}, {"server_optimiser": "adam", "gamma": 0.1}])
def test_an_answer_is_as_long_as_the_model_and_nothing_else(tmp_path, chosen):
    agreement = proposed(**CANCER, **chosen)
    parties = Parties(agreement, tmp_path)
    parties.train()
    head = len(answer(agreement.digest, 1, np.empty(0, np.uint32)))
    assert {len(sent) for row in parties.answers for sent in row} == {head + 4 * 31}
    assert len({len(refusal(agreement.digest, word)) for word in WORDS}) > 1
    assert all(len(refusal(agreement.digest, word)) < head + 16 for word in WORDS)


def test_masks_cancel_in_the_sum_of_all_and_in_no_other(tmp_path):
    keys = [pair.mask for pair in keys_of(4)]
    public = [key.public_key().public_bytes_raw() for key in keys]
    masks = [mask(key, i, public, b"round 1", 1000) for i, key in enumerate(keys)]
    total = np.stack(masks).sum(0, dtype=np.uint32)
    assert not total.any()
    for kept in range(1, 15):
        some = [masks[i] for i in range(4) if kept >> i & 1]
        partial = np.stack(some).sum(0, dtype=np.uint32)
        # uniform: each bit is set half of the time, within six standard deviations
        shares = np.unpackbits(partial.view(np.uint8)).mean()
        assert abs(shares - 0.5) < 6 * 0.5 / math.sqrt(32 * 1000)
    again = mask(keys[0], 0, public, b"round 2", 1000)
    assert np.mean(again == masks[0]) < 0.01
    one_more = mask(keys[1], 1, public, b"round 2", 1000)
    assert np.mean(one_more + masks[0] == 0) < 0.01


def test_a_lead_that_shows_silos_different_models_learns_nothing(tmp_path, monkeypatch):
    """What it adds up is uniform; so it is if it leaves a silo out."""
    agreement = proposed(**{**CANCER, "trust": "secure-aggregation", "clip": 1e-3})
    parties = Parties(agreement, tmp_path, monkeypatch)
    name, x = agreement.digest, np.zeros(31)

    def total(models, number):
        sent = [
            read_answer(silo.answer(question(name, number, model)), name).numbers
            for silo, model in zip(parties.silos, models, strict=False)
        ]
        return np.stack(sent).sum(0, dtype=np.uint32).astype(np.int32)

    def is_small(numbers):
        return np.abs(numbers.astype(float)).max() < 2**30

    assert is_small(total([x, x, x], 1))
    assert not is_small(total([x, x, x + 1], 2))
    assert not is_small(total([x, x], 3))


def test_the_statement_says_where_it_ran(tmp_path):
    for trust, sentence in (
        ("local", "the messages of every silo, as they are described here"),
        ("secure-aggregation", "the sum of their masked messages"),
    ):
        agreement = proposed(**{**CANCER, "trust": trust})
        result = Parties(agreement, tmp_path / trust).train()
        text = statement(result)
        assert "3 separate silos (clinic-0, clinic-1, clinic-2)" in text
        assert sentence in text
        assert agreement.name in text
        assert ("enforced by pairwise masks" in text) == (trust != "local")
        assert "one process" not in text
        assert result.noise_source.endswith("of each silo")
        assert result.origin.run == agreement.name
        assert "settings are those of the agreement" in text
        assert equipoise.Result.model_validate_json(result.to_json()) == result


def test_the_silos_of_an_agreement_are_known_by_their_keys():
    agreement = proposed(**CANCER)
    for i, keys in enumerate(public_of(3)):
        assert agreement.index(keys) == i
        assert agreement.index(keys._replace(name="another")) == i
    with pytest.raises(InvalidValue, match="belongs to none of the silos of this agreement"):
        agreement.index(public_of(3)[0]._replace(mask=public_of(3)[1].mask))
    silos = [public_of(3)[0]._replace(mask="AAAA"), *public_of(3)[1:]]
    with pytest.raises(InvalidValue, match="not a key of 32 bytes"):
        propose(equipoise.Settings.of(**CANCER), silos)
    small = "A" * 43 + "="  # a point of small order: every mask that is made with it is known
    silos = [public_of(3)[0]._replace(mask=small), *public_of(3)[1:]]
    with pytest.raises(InvalidValue, match="with which nobody shares a secret"):
        propose(equipoise.Settings.of(**CANCER), silos)
