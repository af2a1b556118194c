"""A run that is killed, at any moment, goes on from its journal: the same model, and no release in
two versions."""

import json
import multiprocessing
import os
import signal
import stat
import sys
from hashlib import sha256
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import equipoise
from equipoise import (
    DataError,
    EquipoiseError,
    InvalidValue,
    estimate,
    journal,
    resume,
    saved,
    training,
)
from equipoise.fleets import simulated
from equipoise.privacy.noise import RepeatableNoise
from problems import blobs, run_command

FORK = multiprocessing.get_context("fork")
KILLED = -signal.SIGKILL
RUN = {"task": "breast-cancer", "epsilon": 2, "clip": 0.5, "clients": 4, "iterations": 12}
SEEDED = {**RUN, "simulate_noise_seed": 5}


def in_a_process(function, *arguments):
    """Run it in a process of its own; how that ended."""
    process = FORK.Process(target=function, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def dying(place, name, at, after=False):
    """Let the process die at the `at`-th call of a function, before it does anything or after."""
    calls, honest = count(1), getattr(place, name)

    def dies(*arguments, **keywords):
        last = next(calls) == at
        if last and not after:
            die()
        value = honest(*arguments, **keywords)
        if last:
            die()
        return value

    setattr(place, name, dies)


class Witness:
    """Writes down what is released, and what is shown, whatever becomes of the process."""

    def __init__(self, folder):
        self._released, self._shown = folder / "released.txt", folder / "shown.txt"
        self._journal = folder / "run" / "journal"

    def listen(self):
        honest = simulated.client_round

        def tapped(broadcast, *rest):
            release, memory = honest(broadcast, *rest)
            self._note(self._released, release.round, release.update)
            return release, memory

        simulated.client_round = tapped

    def watch(self, rounds, total):
        for round in rounds:
            stand = journal.kept(self._journal).head["stand"]["number"]
            assert stand >= round.number, "a round is shown before it is kept"
            self._note(self._shown, round.number, round.x)
            yield round

    @staticmethod
    def _note(path, number, tensor):
        with open(path, "a") as file:
            file.write(f"{number} {sha256(tensor.contiguous().numpy().tobytes()).hexdigest()}\n")

    @property
    def released(self):
        return self._read(self._released)

    @property
    def shown(self):
        return self._read(self._shown)

    @staticmethod
    def _read(path):
        return [line.split() for line in path.read_text().splitlines()]


def started(folder, settings, kill=None, every=0.0):
    """Train into folder/run, in this process; `kill` says where it dies."""
    witness = Witness(folder)
    resume.EVERY = every
    resume.SHARE = 1e9 if every == 0 else resume.SHARE
    witness.listen()
    if kill:
        dying(*kill)
    equipoise.train(**settings, watch=witness.watch, out=folder / "run")


KILLS = [  # where, what, at which call, whether after it
    (saved, "check_room", 1),  # before anything
    (training, "prepare", 1, True),
    (journal, "_sync_folder", 1, True),  # the journal holds round 0
    (simulated, "client_round", 2, True),  # made, not kept
    (Path, "replace", 3),  # half kept
    (journal, "_sync_folder", 4, True),  # kept, not shown
    (simulated, "client_round", 4),
    (os, "fsync", 4),
]
RARE_KILLS = [
    (simulated, "client_round", 2, True),
    (simulated, "client_round", 9),
    (simulated, "client_round", 12, True),
    (Path, "replace", 1),  # all rounds made, and half kept
]
ENDS = [  # of the last process
    (saved, "write_whole", 1),
    (saved, "write_whole", 2, True),
    (saved, "wipe", 1),  # all but the picture
]

OWN = {"epsilon": 3, "clip": 1, "iterations": 8, "simulate_noise_seed": 5}
VARIANTS = {
    "plain": SEEDED,
    "variates": {**SEEDED, "algorithm": "dp-scaffnew", "local_steps": 2, "trust": "local"},
    "sums": {**SEEDED, "algorithm": "dp-scaffnew", "trust": "secure-aggregation"},
    "average": {**SEEDED, "returns": "average", "schedule": "coin", "p": 0.7, "batch": 7},
    "feedback": {**SEEDED, "algorithm": "clip21-sgd2m"},
    "records": {**SEEDED, "algorithm": "dp-scaffold", "unit": "record", "sampling_rate": 0.3},
    "momentum": {**SEEDED, "server_optimiser": "momentum", "gamma": 0.3, "eta_schedule": "cosine"},
    "adam": {**SEEDED, "server_optimiser": "adam", "gamma": 0.05, "returns": "average"},
    "local momentum": {**SEEDED, "local_optimiser": "momentum", "local_steps": 2, "unit": "record"},
    "hidden": {**SEEDED, "unit": "record", "noise_in": "hidden-gradient", "local_steps": 2},
    "diagnosed": {**SEEDED, "diagnostics": True, "iterations": 24, "algorithm": "dp-scaffnew"},
}


def stateless(result):
    return {k: v for k, v in result.model_dump().items() if k != "repeat"}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_that_is_killed_gives_the_model_of_one_that_is_not(tmp_path, name):
    settings = VARIANTS[name]
    whole = equipoise.train(**settings)
    for kill in [(simulated, "client_round", 3), (journal, "_sync_folder", 4, True), ENDS[1]]:
        assert in_a_process(started, tmp_path, settings, kill) == KILLED
    assert in_a_process(started, tmp_path, settings) == 0
    result = equipoise.load(tmp_path / "run")
    assert np.array_equal(result.x, whole.x)
    assert stateless(result) == stateless(whole)


@pytest.mark.parametrize(
    ("every", "kills"),
    [(0.0, KILLS), (1e9, RARE_KILLS)],
    ids=["every round is kept", "only the last round is kept"],
)
@pytest.mark.parametrize("settings", [RUN, SEEDED], ids=["secret", "given"])
def test_no_release_is_made_in_two_versions(tmp_path, settings, every, kills):
    """Killed at every kind of moment: of each round all that was released, and all that was shown,
    is the same bit for bit; and what was kept is not made again."""
    for kill in [*kills, *ENDS]:
        assert in_a_process(started, tmp_path, settings, kill, every) == KILLED
    assert in_a_process(started, tmp_path, settings, None, every) == 1, "it was finished"
    witness = Witness(tmp_path)
    assert len(witness.released) > 12, "some rounds were made twice"
    for seen in (witness.released, witness.shown):
        assert {int(number) for number, _ in seen} == {*range(1, 13)}
        assert len({(number, digest) for number, digest in seen}) == 12, "two versions of one round"
    result = equipoise.load(tmp_path / "run")
    held = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert held == [
        "guarantee.html",
        "guarantee.json",
        "guarantee.md",
        "model-card.md",
        "model.safetensors",
        "result.json",
    ]
    assert sha256(result.x.tobytes()).hexdigest() == witness.shown[-1][1]
    assert result.account.releases == 12
    if settings is SEEDED:
        assert np.array_equal(result.x, equipoise.train(**settings).x)


def test_a_network_goes_on_too(tmp_path):
    """Dropout, a record that fails and is left out from then on, and one that cannot be read."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 2))

        def forward(self, x):
            if bool((x == 77).any()):
                raise ValueError
            return self.layers(x)

    def task():
        clients, test = blobs()
        clients[1][0][2] = 77.0
        loss = nn.functional.cross_entropy
        return equipoise.own_task(Odd(), clients, loss, equipoise.accuracy, test=test)

    settings = {"epsilon": 3, "clip": 1, "iterations": 8, "unit": "record", "batch": None}
    settings |= {"simulate_noise_seed": 5, "algorithm": "dp-scaffnew", "local_steps": 2}
    whole = equipoise.train(task=task(), **settings)
    folder, made = tmp_path, task()
    for kill in [(simulated, "client_round", 2), (simulated, "client_round", 2)]:
        assert in_a_process(started, folder, {**settings, "task": made}, kill) == KILLED
    entry = journal.kept(folder / "run" / "journal")
    from safetensors.numpy import load

    assert load(entry.body)["useless.1"].sum() == 1, "it is remembered that the record fails"
    assert in_a_process(started, folder, {**settings, "task": task()}) == 0
    assert np.array_equal(equipoise.load(folder / "run").x, whole.x)


# ---- the journal ----


def unfinished(folder, settings=RUN, at=4):
    """A folder in which a run was killed; returns it."""
    assert in_a_process(started, folder, settings, (simulated, "client_round", at)) == KILLED
    return folder / "run"


def test_a_damaged_journal_is_refused_and_left_as_it_is(tmp_path):
    """Cut off at every byte, and with every byte changed: refused, never taken for a beginning."""
    small = tmp_path / "small"
    journal.keep(small, {"number": 3}, [b"what it takes", b" to go on"])
    assert journal.kept(small) == ({"number": 3}, b"what it takes to go on")
    whole = small.read_bytes()
    cut_off = [whole[:length] for length in range(len(whole))]
    changed = [
        bytes([*whole[:place], whole[place] ^ 1 << place % 8, *whole[place + 1 :]])
        for place in range(len(whole))
    ]
    for content in [*cut_off, *changed, whole + b"0"]:
        small.write_bytes(content)
        with pytest.raises(DataError, match="is damaged, so what was begun there cannot go on"):
            journal.kept(small)
    run = unfinished(tmp_path)
    path = run / "journal"
    whole = path.read_bytes()
    assert journal.kept(path).head["stand"]["number"] == 3
    for content in (b"", whole[:-1], whole[:100]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is damaged"):
            equipoise.train(**RUN, out=run)
        assert path.read_bytes() == content
        assert (run / "unfinished").exists()
    path.write_bytes(whole)
    assert equipoise.train(**RUN, out=run) == equipoise.load(run)


def test_what_is_private_is_only_its_owners_and_is_wiped(tmp_path):
    before = os.umask(0)
    try:
        run = unfinished(tmp_path)
        (run / ".journal.part").write_text("what a crash left")
        (run / ".journal.part").chmod(0o644)
        assert stat.S_IMODE((run / "journal").stat().st_mode) == 0o600
        link, modes = tmp_path / "link", []

        def watch(rounds, total):
            for round in rounds:
                modes.append(stat.S_IMODE((run / "journal").stat().st_mode))
                if round.number == total:
                    os.link(run / "journal", link)
                yield round

        equipoise.train(**RUN, out=run, watch=watch)
    finally:
        os.umask(before)
    assert {*modes} == {0o600}
    assert not any(link.read_bytes()), "it was overwritten before it was removed"
    assert not [path for path in run.iterdir() if "journal" in path.name or path.name[0] == "."]


def test_no_entry_can_take_the_noise_off_an_earlier_round(tmp_path):
    """Every entry has a new key, and holds no older one."""
    keys, resume_every = [], resume.EVERY

    def watch(rounds, total):
        for round in rounds:
            content = (tmp_path / "run" / "journal").read_bytes()
            assert not any(key.encode() in content for key in keys)
            keys.append(journal.kept(tmp_path / "run" / "journal").head["stand"]["key"])
            yield round

    try:
        resume.EVERY, share = 0.0, resume.SHARE
        resume.SHARE = 1e9
        equipoise.train(**RUN, out=tmp_path / "run", watch=watch)
    finally:
        resume.EVERY, resume.SHARE = resume_every, share
    assert len({*keys}) == 12


def test_records_cannot_be_known_again_from_two_journals(tmp_path):
    heads = []
    for name in "ab":
        (tmp_path / name).mkdir()
        heads.append(journal.kept(unfinished(tmp_path / name) / "journal").head)
    assert heads[0]["records"] != heads[1]["records"]
    ready = training.prepare(**RUN)
    assert ready.task.fingerprint not in json.dumps(heads)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"epsilon": 3, "clip": 0.7},
            "holds an unfinished run with epsilon=2.0, clip=0.5, not epsilon=3.0, clip=0.7: give "
            "the settings of that run, or choose another folder",
        ),
        ({"simulate_noise_seed": 1}, "with simulate_noise_seed=None, not simulate_noise_seed=1"),
        ({"iterations": 13, "seed": 1, "clients": 5, "clip": 1}, "and others"),
        ({"task": "digits"}, "with task=breast-cancer, eta="),
    ],
)
def test_another_run_is_refused(tmp_path, change, sentence):
    run = unfinished(tmp_path)
    before = (run / "journal").read_bytes()
    with pytest.raises(InvalidValue) as caught:
        equipoise.train(**{**RUN, **change}, out=run)
    assert sentence in str(caught.value)
    assert (run / "journal").read_bytes() == before


@pytest.mark.parametrize("name", ["torch.__version__", "numpy.__version__"])
def test_other_arithmetic_is_refused(tmp_path, monkeypatch, name):
    run = unfinished(tmp_path)
    monkeypatch.setattr(name, "99.0")
    with pytest.raises(
        InvalidValue, match=r"begun with \w+ .* and this is 99\.0: its numbers would"
    ):
        equipoise.train(**RUN, out=run)
    assert (run / "journal").exists()


def test_records_that_changed_are_refused_without_a_word_of_them(clinic, tmp_path, capsys):
    flags = (
        "--task csv --data a.csv b.csv --label outcome --bounds bounds.toml --epsilon 2 --clip 1"
    )
    settings = {**clinic, "epsilon": 2, "clip": 1, "iterations": 6}
    unfinished(tmp_path, settings)
    honest = Path("a.csv").read_text()
    sentences = set()
    for text in (honest.replace("70", "71"), honest + "1,f,0.1,no\n", honest.replace("no", "?")):
        Path("a.csv").write_text(text)
        code, out, err = run_command(
            capsys, "train", *flags.split(), "--iterations", "6", "--out", "run"
        )
        assert (code, out) == (2, "")
        sentences.add(err)
    assert sentences == {
        "error: out=run holds an unfinished run on other records, or with another task file, than "
        "these: put those back, or choose another folder, for a run of its own\n"
    }
    Path("a.csv").write_text(honest)
    code, out, err = run_command(
        capsys, "train", *flags.split(), "--iterations", "6", "--out", "run"
    )
    assert code == 0
    assert "goes on after round 3 of 6, nothing is spent twice" in err


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path):
    unfinished(tmp_path)
    with (
        saved.claimed(tmp_path / "run"),
        pytest.raises(InvalidValue, match="is where another process trains now"),
    ):
        equipoise.train(**RUN, out=tmp_path / "run")
    equipoise.train(**RUN, out=tmp_path / "run")
    with pytest.raises(InvalidValue, match=r"already holds result\.json"):
        equipoise.train(**RUN, out=tmp_path / "run")


def test_nothing_else_is_saved_where_a_run_is_unfinished(tmp_path):
    result, run = equipoise.train(**RUN), unfinished(tmp_path)
    with pytest.raises(InvalidValue, match="already holds journal, unfinished"):
        equipoise.save(result, run)
    assert (run / "journal").exists()


def test_a_full_disk_stops_a_run_where_it_stands(tmp_path, monkeypatch):
    """Before the first round nothing is spent and nothing is left; later it goes on from there."""
    monkeypatch.setattr(resume, "EVERY", 0.0)
    monkeypatch.setattr(resume, "SHARE", 1e9)
    calls, honest = count(1), journal.keep

    def full(at):
        def keep(path, head, body):
            if next(calls) == at:
                path.with_name(".journal.part").write_text("half a")
                raise OSError(28, "No space left on device")
            honest(path, head, body)

        monkeypatch.setattr(resume, "keep", keep)

    full(1)
    with pytest.raises(EquipoiseError, match=r"No space left on device, .* no budget is spent"):
        equipoise.train(**RUN, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    full(5)
    with pytest.raises(EquipoiseError, match=r"stands after round 2: make room and start the same"):
        equipoise.train(**RUN, out=tmp_path / "run")
    monkeypatch.setattr(resume, "keep", honest)
    seen = []

    def watch(rounds, total):
        for round in rounds:
            seen.append(round.number)
            yield round

    equipoise.train(**RUN, out=tmp_path / "run", watch=watch)
    assert seen == [*range(2, 13)], "it begins with the round after which it goes on"


def test_an_interrupt_says_where_the_run_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(resume, "EVERY", 0.0)
    monkeypatch.setattr(resume, "SHARE", 1e9)
    monkeypatch.chdir(tmp_path)
    honest, calls = simulated.client_round, count(1)

    def interrupted(*arguments):
        if next(calls) == 4:
            raise KeyboardInterrupt
        return honest(*arguments)

    monkeypatch.setattr(simulated, "client_round", interrupted)
    flags = "train --task breast-cancer --epsilon 2 --clip 1 --iterations 8 --out run".split()
    code, out, err = run_command(capsys, *flags)
    assert (code, out) == (130, "")
    assert err == (
        "interrupted: after round 3 of 8; start the same again to go on from there: nothing is "
        "spent twice\n"
    )
    load = training.load_task

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "load_task", stopped)
    code, out, err = run_command(capsys, *flags)
    assert err == (
        "interrupted: the run stands where it stood; start the same again to go on from there\n"
    )
    monkeypatch.setattr(training, "load_task", load)
    code, out, err = run_command(capsys, *flags)
    assert code == 0
    assert err == "goes on after round 3 of 8, nothing is spent twice\nsaved in run\n"
    assert "for 8 releases" in out


# ---- its noise ----


@pytest.mark.parametrize("law", ["normals", "uniforms", "rounded", "discrete"])
def test_noise_is_repeated_under_its_key_and_never_otherwise(law):
    def drawn(source, number):
        if law in ("normals", "uniforms"):
            return getattr(source, law)(number, (3, 500))
        return source.whole(law, number, (3, 500), 2.0**31)

    source = RepeatableNoise()
    key = source.key
    first = [drawn(source, number) for number in (1, 2, 1, 1)]  # a round may draw more than once
    rows = np.concatenate([*first, drawn(RepeatableNoise(), 1)])
    assert len(np.unique(rows, axis=0)) == 15
    again = RepeatableNoise()
    again.begin(key)
    assert all(np.array_equal(drawn(again, 9), draw) for draw in first), (
        "the number decides nothing"
    )
    source.begin(os.urandom(32))
    assert not np.array_equal(drawn(source, 1), first[0])
    assert len(key) == 32


# ---- what is seen of a run on its way, and before it ----


def test_progress_is_told_off_a_terminal(monkeypatch, capsys):
    """The first line after ten seconds, then one a minute, and the last; nothing of what is quickly
    done."""
    from equipoise.cli import console

    now = iter([0.0, 5.0, 11.0, 30.0, 72.0, 90.0, 100.0, 200.0])
    monkeypatch.setattr(console, "monotonic", lambda: next(now))
    with console.progress_bar("training") as show:
        for round in range(1, 8):
            show(round / 7, f"round {round} of 7")
    assert capsys.readouterr().err.splitlines() == [
        "training: round 2 of 7, about 55 s left",
        "training: round 4 of 7, about 72 s left",
        "training: round 7 of 7",
    ]


def test_the_curve_is_written_where_others_look(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = "train --task breast-cancer --epsilon 2 --clip 1 --iterations 4 --diagnostics".split()
    assert run_command(capsys, *flags, "--log", "csv", "--out", "run")[0] == 0
    result = equipoise.load("run")
    header, *lines = Path("run/curve.csv").read_text().splitlines()
    assert header.split(",")[:4] == ["round", "iteration", "test_error", "test_loss"]
    assert "norm" not in header, "no private value"
    assert [float(line.split(",")[2]) for line in lines] == [p.test_error for p in result.curve]
    code, out, err = run_command(capsys, *flags, "--log", "csv")
    assert (code, out) == (2, "")
    assert err == "error: log=csv needs a folder to write into: give --out\n"
    with pytest.raises(InvalidValue, match="log=xml is not one of csv, tensorboard, mlflow"):
        equipoise.train(**RUN, out="other", log="xml")
    assert not Path("other").exists()


@pytest.mark.parametrize("log", ["tensorboard", "mlflow"])
def test_a_log_whose_program_is_not_there_costs_no_budget(tmp_path, monkeypatch, log):
    monkeypatch.setitem(sys.modules, log, None)
    with pytest.raises(InvalidValue, match=rf"pip install 'equipoise\[{log}\]'"):
        equipoise.train(**RUN, out=tmp_path / "run", log=log)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_tensorboard_reads_the_curve(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = equipoise.train(**RUN, diagnostics=True, out=tmp_path / "run", log="tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert {*events.Tags()["scalars"]} == {
        "iteration",
        *("test_error", "test_loss", "average_error", "average_loss"),
    }
    read = {event.step: event.value for event in events.Scalars("test_error")}
    assert read == pytest.approx({point.round: point.test_error for point in result.curve})


@pytest.mark.slow
def test_mlflow_reads_the_curve(tmp_path, monkeypatch):
    """In the run's folder, or where the user's server is; that nothing is sent home is its own
    switch."""
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = equipoise.train(**RUN, diagnostics=True, out="run", log="mlflow")
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    for name in ("run-2", "run-3"):
        equipoise.save(result, name, log="mlflow")
    assert not Path("run-2/mlflow.db").exists()
    for place, names in (("run/mlflow.db", ["run"]), ("elsewhere.db", ["run-2", "run-3"])):
        client = MlflowClient(tracking_uri=f"sqlite:///{place}")
        (experiment,) = [e for e in client.search_experiments() if e.name == "equipoise"]
        runs = client.search_runs([experiment.experiment_id])
        assert sorted(run.info.run_name for run in runs) == names
        for run in runs:
            history = client.get_metric_history(run.info.run_id, "test_error")
            assert [metric.value for metric in history] == [p.test_error for p in result.curve]
            assert not any("norm" in name for name in run.data.metrics), "no private value"


@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_dry_run_says_what_would_be_and_leaves_nothing(tmp_path, monkeypatch, capsys, unit):
    """The account is that of the run itself; no noise is added to what could be kept, no file is
    written, and a folder that cannot be used is refused."""
    monkeypatch.chdir(tmp_path)
    settings = {**RUN, "local_steps": 3, "unit": unit}
    before = torch.random.get_rng_state()
    dry = equipoise.dry_run(**settings)
    assert torch.equal(torch.random.get_rng_state(), before)
    result = equipoise.train(**settings)
    assert (dry.result.run, dry.result.account) == (result.run, result.account)
    assert dry.result.rounds == result.rounds == 4
    assert 0 < dry.seconds < 60
    assert float(f"{dry.seconds:.0e}") == dry.seconds
    assert str(dry.seconds).strip("0.e-")[0] in "125"
    flags = "train --task breast-cancer --epsilon 2 --clip 0.5 --clients 4 --iterations 12".split()
    flags += ["--local-steps", "3", "--unit", unit, "--dry-run"]
    code, out, err = run_command(capsys, *flags, "--out", "run")
    assert (code, err) == (0, "")
    assert "would spend epsilon = 2 of 2 at delta = 1e-05" in out
    assert "nothing was trained, nothing is spent, and nothing was written" in out
    assert "test error" not in out
    document = json.loads(run_command(capsys, *flags, "--json")[1])
    assert document["account"] == json.loads(result.to_json())["account"]
    assert document["rounds"] == 4
    assert {"test_error", "curve", "private"}.isdisjoint(document)
    assert list(tmp_path.iterdir()) == []
    equipoise.save(result, "run")
    code, _, err = run_command(capsys, *flags, "--out", "run")
    assert code == 2
    assert "already holds result.json" in err


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, 0.0), (0.00123, 0.001), (1.5, 2.0), (6.9, 5.0), (7.2, 10.0), (149.0, 200.0), (4e9, 5e9)],
)
def test_what_is_measured_is_told_to_one_figure(value, told):
    assert estimate.one_figure(value) == told
