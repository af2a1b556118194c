"""Settings of the test tools: no time limits (machines differ), no memory of earlier failures (runs
repeat)."""

import logging
import math
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from equipoise.fleets import client_round, simulated
from equipoise.privacy import noisy_gradient
from problems import BOUNDS, DATA, HEADER

torch.set_num_threads(1)  # small problems
settings.register_profile("equipoise", deadline=None, database=None)
settings.load_profile("equipoise")


@pytest.fixture(autouse=True)
def logs_are_as_before():
    """A command that shows logs does so for the rest of its process."""
    logs = [logging.getLogger(name) for name in ("equipoise.client", "equipoise.silo")]
    before = [(log.level, [*log.handlers]) for log in logs]
    yield
    for log, (level, handlers) in zip(logs, before, strict=True):
        log.setLevel(level)
        log.handlers[:] = handlers


@pytest.fixture
def client_log():
    """What clients say to themselves during the test, as a list of sentences."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    log = logging.getLogger("equipoise.client")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield said
    log.removeHandler(handler)
    log.setLevel(level)


@pytest.fixture
def leaves(monkeypatch):
    """Everything that leaves the clients, and the updates behind it, in runs of the test: lists of
    [clients, d]."""
    releases, updates = [], []

    def tapped(*arguments):
        release, memory = client_round(*arguments)
        releases.append(release.update)
        updates.append(memory.update)
        return release, memory

    monkeypatch.setattr(simulated, "client_round", tapped)
    return releases, updates


@pytest.fixture
def noised_sums(monkeypatch):
    """The noised sums of gradients in runs of the test: a list of [..., clients, d]."""
    sums, on_lattice = [], noisy_gradient.on_lattice

    def tapped(*arguments):
        sums.append(on_lattice(*arguments))
        return sums[-1]

    monkeypatch.setattr(noisy_gradient, "on_lattice", tapped)
    return sums


@pytest.fixture
def clinic(tmp_path, monkeypatch):
    """A folder with bounds.toml, two clients' tables and public test records; returns settings for
    task csv."""
    monkeypatch.chdir(tmp_path)
    Path("bounds.toml").write_text(BOUNDS)
    Path("a.csv").write_text(HEADER + "30,f,0.1,no\n70,m,0.9,yes\n65,m,,yes\n")
    Path("b.csv").write_text("outcome,score,sex,age\nyes,0.5,f,80\nno,-0.5,m,20\n")
    Path("test.csv").write_text(HEADER + "30,f,0.1,no\n70,m,0.9,yes\n90,f,0.9,yes\n")
    return {
        "task": "csv",
        "data": ("a.csv", "b.csv"),
        "label": "outcome",
        "bounds": "bounds.toml",
        "epsilon": math.inf,
    }


@pytest.fixture(scope="session")
def real_data(tmp_path_factory):
    """The data sets at hand, with one cache for all tests."""
    if not (DATA / "cifar10").is_dir():
        pytest.skip(
            "the data sets are not here: `equipoise data` tells how to get them into "
            "$EQUIPOISE_DATA"
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUIPOISE_DATA", str(DATA))
        patch.setenv("EQUIPOISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A data folder, yet to be made, with a cache of its own."""
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"
