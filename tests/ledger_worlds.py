"""Random worlds of a ledger: runs are admitted, rounds released, runs closed, while processes die
at any moment; and what must hold of what was sent.

    make ledger-test              # 10,000 worlds in which processes really die; about ten minutes

The oracle knows nothing of the ledger's books. It counts, in exact fractions, what was sent, and
compares it with the largest mu^2 that a cap allows, found with 40 digits.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import tempfile
from collections import Counter
from fractions import Fraction
from functools import cache
from pathlib import Path

import mpmath
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.errors import InvalidValue
from equipoise.privacy.events import Event
from equipoise.privacy.ledger import Ledger
from equipoise.privacy.ledger_costs import Cap, Cost

FORK = multiprocessing.get_context("fork")
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where syncing takes no time
CAPS = [Cap(2, 1e-5), Cap(0.5, 1e-6), Cap(8, 1e-7)]
SIZES = [(1.0, 1), (0.7, 5), (0.3, 3), (0.11, 12), (0.02, 2)]  # share of the cap, rounds
OPERATIONS = ("admit", "round", "round", "round", "again", "ahead", "close", "reopen")


class Died(BaseException):
    """In the place of a process that dies."""


@cache
def most(epsilon, delta):
    """The largest mu^2 that is (epsilon, delta)-DP, with 40 digits."""
    with mpmath.workdps(40):
        wanted = mpmath.mpf(delta)

        def excess(mu):
            upper, lower = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
            return mpmath.ncdf(upper) - mpmath.exp(epsilon) * mpmath.ncdf(lower) - wanted

        low, high = mpmath.mpf("1e-9"), mpmath.mpf(50)
        for _ in range(150):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
        return Fraction(int(mpmath.floor(low * low * 2**100)), 2**100)


def cost_of(cap, share, rounds, neighbours="replace-one"):
    """A run whose mu is about this share of the cap's."""
    mu = share * float(most(cap.epsilon, cap.delta)) ** 0.5
    over = 1 if neighbours == "replace-one" else 2
    event = Event("client", neighbours, 2.0, 2 * over * rounds**0.5 / mu, 1.0, rounds)
    return Cost.of([event], (1,) * rounds)


def of_a_round(cost):
    (event,) = cost.events
    over = 1 if event.neighbours == "replace-one" else 2
    return (over * Fraction(event.sensitivity) / Fraction(event.sigma)) ** 2


class Faults:
    """Dies at the `at`-th step, before or after it. Steps are statements of the database, and what
    the head does on the disk."""

    def __init__(self, at, after, die):
        self.left, self.after, self.die = at, after, die

    def step(self, honest, *arguments):
        self.left -= 1
        if self.left == 0 and not self.after:
            self.die()
        value = honest(*arguments)
        if self.left == 0:
            self.die()
        return value

    def __enter__(self):
        self._kept = Ledger._connected, os.fsync, Path.replace
        connected, fsync, replace = self._kept

        Ledger._connected = lambda ledger: Stepwise(connected(ledger), self.step)
        os.fsync = lambda place: self.step(fsync, place)
        Path.replace = lambda path, target: self.step(replace, path, target)
        return self

    def __exit__(self, *_):
        Ledger._connected, os.fsync, Path.replace = self._kept


class Stepwise:
    """A connection to a database, of which every statement is a step."""

    def __init__(self, honest, step):
        self._honest, self._step = honest, step

    def __getattr__(self, name):
        return getattr(self._honest, name)

    def execute(self, *arguments):
        return self._step(self._honest.execute, *arguments)


class World:
    """A folder with a ledger, and what was sent from there, in the order of sending."""

    def __init__(self, folder, cap, costs, operations):
        self.file, self.sent_file = folder / "ledger.db", folder / "sent.txt"
        self.done_file = folder / "done.txt"
        self.cap, self.costs, self.operations = cap, costs, operations

    def play(self):
        """Go on after the last operation that was done."""
        done = len(self._lines(self.done_file))
        ledger = Ledger(self.file)
        try:
            for operation, which in self.operations[done:]:
                name, cost = f"run{which}", self.costs[which]
                if operation == "reopen":
                    ledger.__exit__()
                    ledger = Ledger(self.file)
                elif operation == "admit":
                    self._admit(ledger, name, cost)
                else:
                    try:
                        getattr(self, f"_{operation}")(ledger, name, cost)
                    except InvalidValue:
                        self._check_refusal(ledger, operation, name, cost)
                self._note(self.done_file, [operation, which])
        finally:
            ledger._db.close()

    def _admit(self, ledger, name, cost):
        there = name in {run.name for run in ledger.runs()}
        charged = self._charged(ledger)
        new = Fraction(0) if there else of_a_round(cost) * cost.rounds
        share = charged + new
        try:
            ledger.admit(name, cost, {"client": self.cap} if not charged else None)
            assert there or share <= self.room(), "more was admitted than there is room for"
        except InvalidValue:
            least = most(self.cap.epsilon, self.cap.delta * 0.99) * (1 - Fraction(1, 10**9))
            assert share > least, "what would fit was refused"

    def _round(self, ledger, name, cost):
        """What a silo does when a lead that has seen all that was sent asks for the next round."""
        asked = len({number for run, number, _ in self.sent() if run == name}) + 1
        self._answer(ledger, name, asked)

    def _again(self, ledger, name, cost):
        """A lead that began anew asks for a round that was sent before."""
        self._answer(ledger, name, 1)

    def _answer(self, ledger, name, asked):
        question = b"question %d" % asked
        before = ledger.answer(name, asked)
        if before is None:
            run = next(run for run in ledger.runs() if run.name == name)
            ahead = any(how == "ahead" for *_, how in self.sent())
            rounds = run.released if run.open else 0
            assert ahead or (ledger.state(name) or b"") == self._state(name, rounds)
            answer = os.urandom(8)
            ledger.commit(name, asked, question, answer, self._state(name, asked))
        else:
            assert before.question == question
            answer = before.answer
        self._note(self.sent_file, [name, asked, answer.hex()])

    def _ahead(self, ledger, name, cost):
        """What a run in one process does: it writes down rounds ahead."""
        seen = min(ledger.rounds(name) + 2, cost.rounds)
        ledger.release(name, seen)
        self._note(self.sent_file, [name, seen, "ahead"])

    def _close(self, ledger, name, cost):
        ledger.close(name)

    def _check_refusal(self, ledger, operation, name, cost):
        """Nothing is refused but what is not there, is over, or is out of order."""
        runs = {run.name: run for run in ledger.runs()}
        if name not in runs or not runs[name].open:
            return
        asked = {number for run, number, _ in self.sent() if run == name}
        ahead = "ahead" in {how for run, _, how in self.sent() if run == name}
        assert ahead or len(asked) == cost.rounds or runs[name].released > len(asked), operation

    @staticmethod
    def _state(name, rounds):
        return f"state of {name} after {rounds}".encode() if rounds else b""

    def _charged(self, ledger):
        """By the oracle's own arithmetic: open runs whole, closed ones what they released."""
        total = Fraction(0)
        for run in ledger.runs():
            cost = self.costs[int(run.name[3:])]
            total += of_a_round(cost) * (cost.rounds if run.open else run.released)
        return total

    def room(self):
        return most(self.cap.epsilon, self.cap.delta)

    def sent(self):
        return self._lines(self.sent_file)

    def check(self):
        """At the end, whatever happened: what was sent was never too much, nothing twice."""
        answers, rounds = {}, {}
        for name, number, answer in self.sent():
            assert answers.setdefault((name, number, answer == "ahead"), answer) == answer
            rounds[name] = max(rounds.get(name, 0), number)
        spent = Fraction(0)
        for name, number in rounds.items():
            cost = self.costs[int(name[3:])]
            assert number <= cost.rounds
            spent += of_a_round(cost) * number
        assert spent <= self.room(), "overspent"
        with Ledger(self.file) as ledger:
            ledger.verify()
            released = {run.name: run.released for run in ledger.runs()}
            assert all(released[name] >= number for name, number in rounds.items())
            charged = sum(Fraction(run.row.mu2) for run in ledger.runs())
            assert charged >= self._charged(ledger) >= spent
        assert {path.stat().st_mode & 0o777 for path in self.file.parent.glob("ledger.db*")} == {
            0o600
        }

    @staticmethod
    def _note(path, line):
        place = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(place, json.dumps(line).encode() + b"\n")
        os.close(place)

    @staticmethod
    def _lines(path):
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def random_world(folder, chance):
    cap = chance.choice(CAPS)
    costs = [
        cost_of(cap, *chance.choice(SIZES), chance.choice(("replace-one", "zero-out")))
        for _ in range(4)
    ]
    operations = [
        (chance.choice(OPERATIONS), chance.randrange(len(costs)))
        for _ in range(chance.randrange(5, 25))
    ]
    return World(folder, cap, costs, [("admit", 0), *operations])


def injected(world, faults):
    """Play to the end, with a death in the place of each fault."""

    def die():
        raise Died

    for at, after in faults:
        try:
            with Faults(at, after, die):
                world.play()
            break
        except Died:
            pass
    world.play()
    world.check()


def killed(world, faults):
    """The same with processes that die; how many did."""

    def life(fault):
        with Faults(*fault, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            world.play()

    deaths = 0
    for fault in (*faults, (10**9, False)):
        process = FORK.Process(target=life, args=(fault,))
        process.start()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), "a process failed"
        deaths += process.exitcode != 0
    world.check()
    return deaths


def random_faults(chance, most_faults=4):
    return [
        (chance.randrange(1, 80), chance.random() < 0.5)
        for _ in range(chance.randrange(most_faults + 1))
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("worlds", type=int, nargs="?", default=10_000)
    number, seen = parser.parse_args().worlds, Counter()

    @settings(
        max_examples=number, deadline=None, database=None, suppress_health_check=[*HealthCheck]
    )
    @given(seed=st.integers(0, 2**32))
    def random_worlds(seed):
        chance = random.Random(seed)
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            world = random_world(Path(folder), chance)
            seen["deaths"] += killed(world, random_faults(chance))
            seen["sent"] += len(world.sent())
        seen["worlds"] += 1
        if seen["worlds"] % 1000 == 0:
            print(f"{seen['worlds']} worlds, {seen['deaths']} deaths", flush=True)

    random_worlds()
    print(
        f"{seen['worlds']} worlds, {seen['deaths']} deaths, {seen['sent']} answers sent: "
        "nothing overspent, nothing released twice"
    )


if __name__ == "__main__":
    main()
