"""A federation of real processes that trains on tables, for tests."""

import numpy as np
import pytest

import equipoise
from equipoise.federation.agreement import write_agreement
from equipoise.federation.lead import propose
from federations import SEED
from members import HERE, wait, world
from problems import BOUNDS
from silo_process import ALONE
from test_one_client import table

NAMES = ("clinic-a", "clinic-b", "clinic-c")
SIZES = (40, 25, 60)
COLUMNS = {"task": "csv", "label": "outcome"}
RUN = {"epsilon": 4.0, "clip": 0.5, "iterations": 10}


class Federation:
    """A world with a link, and what its silos and its lead are started with."""

    def __init__(self, here):
        self.here, self.folder, self.number = here, here.folder, 0
        (self.folder / "bounds.toml").write_text(BOUNDS)
        (self.folder / "test.csv").write_text(table(200, 99))
        for i, name in enumerate(NAMES):
            (self.folder / name).mkdir()
            (self.folder / name / "mine.csv").write_text(table(SIZES[i], i))

    @property
    def files(self):
        return [str(self.folder / name / "mine.csv") for name in NAMES]

    def propose(self, **values):
        """An agreement in a file of its own."""
        self.number += 1
        settings = equipoise.Settings.of(
            **COLUMNS, bounds=str(self.folder / "bounds.toml"), **values
        )
        sizes = None if settings.unit == "client" else SIZES
        keys = [self.here.keys[name].public() for name in NAMES]
        path = self.folder / f"agreement-{self.number}.json"
        write_agreement(propose(settings, keys, sizes), path)
        return path

    def silo(self, agreement, name, *, noise="secret", link="", ca="hub/ca.pem"):
        """`noise` is secret, or that of a simulation: of which client, or of its own."""
        others = [f"{other}.pub" for other in NAMES if other != name]
        words = [agreement.name, "--key", f"{name}.key", "--data", f"{name}/mine.csv"]
        words += ["--ledger", f"{name}/{agreement.stem}.db", "--link", link or self.here.address]
        words += ["--ca", ca, "--cap-epsilon", "50", "--cap-delta", "2e-5", "--fellows", *others]
        client = str(NAMES.index(name)) if noise == "given" else noise
        return self.here.start(name, str(HERE / "silo_process.py"), client, *words)

    def lead(self, agreement, out, *more):
        words = ["federation", "lead", agreement.name, "--link", "hub", "--out", out]
        return self.here.start("lead", "-m", "equipoise", *words, "--test", "test.csv", *more)

    def train(self, agreement, out, **how):
        """From the start of the silos to the result."""
        silos = [self.silo(agreement, name, **how) for name in NAMES]
        lead = self.lead(agreement, out)
        wait(lambda: lead.process.poll() is not None)
        assert lead.process.returncode == 0, lead.said()
        for silo in silos:
            wait(lambda silo=silo: silo.process.poll() is not None)
            assert silo.process.returncode == 0, silo.said()
            assert silo.said().splitlines()[-1] == ALONE
        return equipoise.load(self.folder / out)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with world(tmp_path_factory.mktemp("silos") / "world", *NAMES) as here:
        here.link()
        yield Federation(here)


def check_same(federation, **values):
    """The model of three processes is that of one, bit for bit."""
    agreement = federation.propose(**values)
    result = federation.train(agreement, f"run-{federation.number}", noise="given")
    together = equipoise.train(
        **COLUMNS,
        **values,
        bounds=str(federation.folder / "bounds.toml"),
        data=federation.files,
        test=str(federation.folder / "test.csv"),
        simulate_noise_seed=SEED,
    )
    assert np.array_equal(result.x, together.x)
    assert result.test_error == together.test_error
    assert result.account == together.account
    assert result.federated.silos == NAMES
