"""Ten federated runs with secret noise, in which silos, lead and link are killed at random moments
and started again: `make crash-federation`.

Of each run two leads that reach its end must have the same model, bit for bit, though everybody
died on the way; and every silo's ledger must have a row for each round, and no more, at the cost of
as many releases.
"""

import random
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import numpy as np

from equipoise.federation.agreement import read_agreement
from equipoise.federation.part import lead_part
from equipoise.privacy.ledger import Ledger
from members import HERE, wait, world
from real_silos import NAMES, Federation

RUNS, ROUNDS = 10, 12
APART = 1.0, 8.0  # seconds from one death to the next
KILLS = 6  # of a run
SETTINGS = {"epsilon": 4.0, "clip": 0.5, "iterations": 2 * ROUNDS, "local_steps": 2}
KINDS = (
    {"algorithm": "dp-scaffnew", "trust": "secure-aggregation"},
    {"algorithm": "dp-scaffnew", "unit": "record"},
)


class Alive:
    """Everybody, each started again after it was killed."""

    def __init__(self, federation, agreement, out):
        self.federation, self.agreement, self.out = federation, agreement, out
        self.members = {name: federation.silo(agreement, name) for name in NAMES}
        self.members["lead"] = self.lead()

    def lead(self):
        words = [str(HERE / "lead_process.py"), self.agreement.name, "hub", self.out]
        return self.federation.here.start("lead", *words)

    def kill(self, name, link):
        if name == "link":
            link.kill()
            return self.federation.here.link()
        self.members[name].kill()
        if name != "lead":
            self.members[name] = self.federation.silo(self.agreement, name)
        return link

    def done(self):
        """Whether the lead has ended well; one that ended otherwise is started again."""
        code = self.members["lead"].process.poll()
        if code not in (None, 0):
            self.members["lead"] = self.lead()
        return code == 0


def one_run(federation, link, number, rng):
    agreement = federation.propose(**SETTINGS, **KINDS[number % 2], seed=number)
    alive = Alive(federation, agreement, "first.npy")
    deaths = []
    while not alive.done():
        time.sleep(rng.uniform(*APART))
        if len(deaths) < KILLS and alive.members["lead"].process.poll() is None:
            deaths.append(rng.choice(["link", "lead", *NAMES]))
            link = alive.kill(deaths[-1], link)
    alive.out = "second.npy"
    alive.members["lead"] = alive.lead()
    wait(alive.done, seconds=600)
    first, second = (np.load(federation.folder / f"{name}.npy") for name in ("first", "second"))
    assert np.array_equal(first, second), "another model"
    for name in NAMES:
        alive.members[name].kill()
        check_ledger(federation, agreement, NAMES.index(name))
    return deaths, link


def check_ledger(federation, path, silo):
    agreement = read_agreement(path)
    ready = agreement.prepared(lead_part(agreement))
    event = ready.account.of_client(silo).events[0]
    with Ledger(federation.folder / NAMES[silo] / f"{path.stem}.db") as ledger:
        (run,) = ledger.runs()
        assert run.released == ROUNDS == len(run.answers), "another number of rounds"
        ledger.close(agreement.name)
        (run,) = ledger.runs()
        ledger.verify()
    exact = event.count * (Fraction(event.sensitivity) / Fraction(event.sigma)) ** 2
    assert exact <= Fraction(run.row.mu2) <= exact * (1 + Fraction(1, 10**9)), "another cost"


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(10**6)
    rng, deaths = random.Random(seed), []
    with (
        tempfile.TemporaryDirectory() as folder,
        world(Path(folder) / "world", *NAMES) as here,
    ):
        link, federation = here.link(), Federation(here)
        for number in range(RUNS):
            killed, link = one_run(federation, link, number, rng)
            deaths += killed
            print(f"run {number + 1} of {RUNS}: the same model; killed {', '.join(killed)}")
    print(f"{RUNS} passed, 0 failed: {len(deaths)} deaths, seed {seed}")


if __name__ == "__main__":
    main()
