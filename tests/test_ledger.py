"""A data owner's ledger: what rows cost, what caps admit, and that nothing is sent that is not
written, whatever dies, fills up or is tampered with."""

import json
import math
import multiprocessing
import os
import random
import resource
import shutil
import sqlite3
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import equipoise
from equipoise import DataError, EquipoiseError, InvalidValue
from equipoise.fleets import simulated
from equipoise.privacy import sampled
from equipoise.privacy.events import Event
from equipoise.privacy.gaussian import gdp_mu, noise_sigma
from equipoise.privacy.ledger import Ledger
from equipoise.privacy.ledger_books import Books
from equipoise.privacy.ledger_costs import KEPT, NOTHING_KEPT, Cap, Cost, Row, kept_for
from equipoise.privacy.sampled import least_gaussian, sampled_noise
from ledger_worlds import MEMORY, World, injected, most, random_faults, random_world
from problems import run_command

FORK = multiprocessing.get_context("fork")
CAP = Cap(2, 1e-5)
RUN = {"task": "breast-cancer", "clip": 0.5, "clients": 4, "iterations": 8}


def cost(mu, unit="client", rounds=4, neighbours="replace-one", slack=0.0, rate=1.0):
    """Of a run that is mu-GDP under its own neighbours."""
    over = 2.0 if neighbours == "replace-one" else 1.0
    event = Event(unit, neighbours, over, over * rounds**0.5 / mu, rate, rounds, 0.0, slack)
    return Cost.of([event], (1,) * rounds)


@pytest.fixture
def folder():
    """In memory, where syncing takes no time."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        yield Path(place)


@pytest.fixture
def file(folder):
    return folder / "ledger.db"


# -------------------------------------------------------------------------------------------------
# what a run costs


@given(
    sensitivity=st.floats(1e-6, 1e6),
    sigma=st.floats(1e-6, 1e6),
    count=st.integers(1, 10**6),
    neighbours=st.sampled_from(["replace-one", "zero-out"]),
)
def test_a_gaussian_row_is_exact_and_rounded_up(sensitivity, sigma, count, neighbours):
    event = Event("client", neighbours, sensitivity, sigma, 1.0, count)
    row = Cost.of([event], (count,)).row(1e-5)
    doubled = 1 if neighbours == "replace-one" else 2
    exact = count * (doubled * Fraction(sensitivity) / Fraction(sigma)) ** 2
    assert exact <= Fraction(row.mu2) <= exact * (1 + Fraction(1, 2**51))
    assert row.delta0 == 0


def test_neighbours_that_are_half_as_far_apart_count_twice():
    """zero-out and add-remove reach any other data in two steps."""
    for neighbours, unit in (("zero-out", "client"), ("add-remove", "record")):
        one, two = (
            cost(0.3, unit, neighbours=way).row(1e-5) for way in ("replace-one", neighbours)
        )
        assert two.mu2 == pytest.approx(4 * one.mu2)


@pytest.mark.parametrize("share", [KEPT, NOTHING_KEPT])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8, 1e-12])
@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1, 2, 3.3, 8, 20])
def test_the_room_of_a_cap_is_what_60_digits_allow(epsilon, delta, share):
    """Never above it, and not visibly below."""
    room = Cap(epsilon, delta).room(share)
    exact = most(epsilon, float(Fraction(delta) * (1 - share)))
    assert room <= exact
    assert room >= exact * (1 - Fraction(1, 10**9))


@given(
    epsilon=st.floats(0.05, 20),
    exponent=st.floats(-9, -3),
    rounds=st.integers(1, 5000),
    clip=st.floats(1e-3, 1e3),
    slack=st.sampled_from([0.0, 1e-31]),
)
@settings(max_examples=50)
def test_a_run_that_needs_all_of_the_cap_is_admitted_first_and_nothing_after_it(
    epsilon, exponent, rounds, clip, slack
):
    delta = 10**exponent
    sigma = noise_sigma(epsilon, delta, rounds, 2 * clip)
    event = Event("client", "replace-one", 2 * clip, sigma, 1.0, rounds, 0.0, slack)
    whole, caps = Cost.of([event], (1,) * rounds), {"client": Cap(epsilon, delta)}
    books = Books()
    books.read(1, "run", {**books.admission("a", whole, caps), "about": {}, "when": ""})
    assert books.standing("client").kept == NOTHING_KEPT
    with pytest.raises(InvalidValue, match="run=b costs epsilon = "):
        books.admission("b", whole, {})


SAMPLED = [(2, 64, 0.05), (1, 1000, 0.01), (3.3, 100, 0.3), (8, 500, 0.02), (0.3, 2000, 0.01)]


@pytest.mark.parametrize(("epsilon", "steps", "rate"), SAMPLED)
def test_a_sampled_row_covers_every_epsilon(epsilon, steps, rate):
    """Against a distribution on another grid, at epsilons between those that were compared; and a
    mu that is 4 % smaller does not. It is at most 8 % above that of the run's epsilon."""
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
    )
    from dp_accounting.pld import PLDAccountant

    delta0, noise = 1e-9, sampled_noise(epsilon, 1e-5, steps, rate, "replace-one")
    mu = least_gaussian(noise, steps, rate, delta0)
    accountant = PLDAccountant(
        NeighboringRelation.REPLACE_ONE, value_discretization_interval=7e-5
    ).compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps))
    chance = np.random.default_rng(0)
    last = float(accountant.get_epsilon(delta0 / 2))
    epsilons = np.sort(np.concatenate([chance.uniform(0, last, 2000), [0, last, 2 * last]]))
    truth = np.array(accountant.get_delta(list(epsilons)))

    def claimed(mu):
        upper = norm.cdf(mu / 2 - epsilons / mu)
        gaussian = upper - np.exp(epsilons + norm.logcdf(-mu / 2 - epsilons / mu))
        return (1 - delta0) * gaussian + delta0

    # The other grid errs too, to the pessimistic side.
    assert (truth <= claimed(mu) * (1 + 1e-3)).all()
    assert (truth > claimed(0.96 * mu)).any()
    assert mu <= 1.08 * gdp_mu(epsilon, 0.99e-5)


@pytest.mark.parametrize(
    ("noise", "steps", "rate"), [(1.2, 1, 0.3), (1.0, 16, 0.1), (2.0, 200, 0.05)]
)
def test_a_sampled_row_covers_losses_composed_by_hand(noise, steps, rate):
    """Of a sum over a sample, one record replaced by its opposite: P and Q are mixtures of two
    normals, and log P/Q rises with x. Every loss is rounded down to a grid, so that these deltas
    are never above the true ones; 8 % less mu would not cover them."""
    delta0, h, size = 1e-9, 5e-5, 2**20  # sums beyond 26 have no chance
    x = np.linspace(-14 * noise, 14 * noise, 2**18 + 1)

    def chance(at, sign):
        return (1 - rate) * norm.cdf(at / noise) + rate * norm.cdf((at - sign) / noise)

    def density(at, sign):
        return (1 - rate) * norm.pdf(at / noise) + rate * norm.pdf((at - sign) / noise)

    masses = np.diff(chance(x, 1))
    losses = np.floor(np.log(density(x[:-1], 1) / density(x[:-1], -1)) / h).astype(int)
    one = np.bincount(losses % size, masses, minlength=size)
    composed = np.fft.irfft(np.fft.rfft(one) ** steps, size)
    sums = h * np.fft.fftfreq(size, 1 / size)
    mu = least_gaussian(noise, steps, rate, delta0)

    def exceeds(mu):
        for epsilon in np.linspace(0, 12, 61):
            truth = float(np.sum(composed * -np.expm1(np.minimum(epsilon - sums, 0))))
            upper = norm.cdf(mu / 2 - epsilon / mu)
            gaussian = upper - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
            # transforms are exact to about 1e-13
            if truth - 1e-11 > (1 - delta0) * gaussian + delta0:
                return True
        return False

    assert not exceeds(mu)
    assert exceeds(0.92 * mu)


def test_a_sampled_row_is_for_replace_one_whatever_the_neighbours():
    noise = 2.0
    events = {
        "replace-one": Event("record", "replace-one", 2.0, noise, 0.1, 50),
        "add-remove": Event("record", "add-remove", 1.0, noise, 0.1, 50),
    }
    rows = {name: Cost.of([event], (5,) * 10).row(1e-5) for name, event in events.items()}
    assert rows["replace-one"] == rows["add-remove"]
    assert rows["replace-one"].mu2 == pytest.approx(least_gaussian(2.0, 50, 0.1, 1e-9) ** 2)
    assert rows["replace-one"].delta0 == 1e-9


def test_where_sampling_gains_nothing_the_row_is_exact():
    """Too little noise, or so many steps that rounding leaves nothing of delta0."""
    for noise, steps in ((0.05, 10), (2000.0, 10**7)):
        event = Event("record", "replace-one", 2.0, noise, 0.5, steps)
        row = Cost.of([event], (steps,)).row(1e-5)
        assert row.mu2 == pytest.approx(steps * (2 / noise) ** 2, rel=1e-12)
        assert row.delta0 == 0


def test_every_cell_is_bounded_by_its_worse_end(monkeypatch):
    """A coarser grid may cost more, never less."""
    fine = least_gaussian(1.6, 64, 0.05, 1e-9)
    monkeypatch.setattr(sampled, "_CELLS", 16)
    least_gaussian.cache_clear()
    coarse = least_gaussian(1.6, 64, 0.05, 1e-9)
    least_gaussian.cache_clear()
    assert coarse > 1.02 * fine


@pytest.mark.slow
def test_what_transforms_may_round_away_is_added_to_every_cell(monkeypatch):
    """mu grows with that margin; where it is as large as delta0, nothing is claimed."""
    mus = []
    for rounded in (0.0, 1e-9 / 64 / 4, 1e-9 / 64):
        monkeypatch.setattr(sampled, "_ROUNDING", rounded)
        mus.append(least_gaussian.__wrapped__(1.6, 64, 0.05, 1e-9))
    sampled._upper.cache_clear()
    assert mus[0] < mus[1] < mus[2] == math.inf


def test_the_dearest_client_decides():
    cheap = Event("record", "replace-one", 2.0, 50.0, 1.0, 6, 0.0, 1e-20)
    dear = Event("record", "replace-one", 2.0, 20.0, 1.0, 6)
    row = Cost.of([cheap, dear, cheap], (2, 1, 3)).row(1e-5)
    assert row.mu2 == pytest.approx(6 / 100)
    assert row.delta0 == 1e-20


def test_a_run_that_ends_early_is_charged_what_it_released():
    run = Cost.of([Event("record", "replace-one", 2.0, 20.0, 1.0, 6)], (2, 1, 3))
    row = run.row(1e-5)
    shares = [run.released(row, rounds).mu2 for rounds in range(4)]
    assert shares == pytest.approx([0, 2 / 100, 3 / 100, 6 / 100])
    samples = Cost.of([Event("record", "replace-one", 2.0, 4.0, 0.1, 6)], (2, 1, 3))
    row = samples.row(1e-5)
    assert [samples.released(row, n) for n in range(4)] == [Row(0, 0), row, row, row]


@pytest.mark.parametrize(
    "event",
    [
        Event("client", "replace-one", 2.0, 0.0, 1.0, 4),
        Event("client", "replace-one", math.inf, 1.0, 1.0, 4),
        Event("client", "replace-one", 2.0, math.nan, 1.0, 4),
    ],
)
def test_without_noise_nothing_is_admitted(event):
    with pytest.raises(InvalidValue, match="without noise, or a bound"):
        Cost.of([event], (1,) * 4)


def test_a_cost_is_read_back_as_it_was():
    for steps in ((1,) * 7, (2, 3, 2)):
        whole = Cost.of([Event("record", "add-remove", 1 / 3, math.pi, 0.1, 7, 2.0**-9)], steps)
        assert Cost.read(json.loads(json.dumps(whole.as_json()))) == whole


# -------------------------------------------------------------------------------------------------
# what caps admit


def test_rows_that_leave_something_to_chance_need_a_share_of_delta_from_the_beginning():
    """Who spends delta0 where the losses so far are small, and mu^2 where they are large, gets more
    than delta from a rule that takes delta0 from delta as it comes; not from a share that is kept.
    """
    epsilon, delta, most_delta0 = 1.0, 1e-2, 2e-3

    def total(room_without, room_with):
        """delta at epsilon of that strategy: half of the Gaussian budget first."""
        first = room_with / 2
        losses = np.linspace(-12, 12, 200_001) * first**0.5 + first / 2
        weights = norm.pdf(losses, first / 2, first**0.5) * (losses[1] - losses[0])

        def rest(mu2):
            """The mean of (1 - e^(epsilon - loss))+ after so much more."""
            mean, spread = losses + mu2 / 2, mu2**0.5
            far = (epsilon - mean) / spread
            return norm.sf(far) - np.exp(epsilon - losses) * norm.sf(far + spread)

        on = rest(room_without - first)
        off = most_delta0 + rest(room_with - first)
        return float(np.sum(weights * np.maximum(on, off)))

    def room(share):
        return gdp_mu(epsilon, delta * share) ** 2

    kept = 1 - most_delta0 / delta
    assert total(room(1), room(kept)) > 1.02 * delta  # as it comes
    assert total(room(kept), room(kept)) <= delta * (1 + 1e-6)


def test_the_share_is_kept_unless_the_first_run_needs_all():
    all_of_it = cost(gdp_mu(2, 1e-5)).row(1e-5)
    assert kept_for(all_of_it, CAP) == NOTHING_KEPT
    assert kept_for(all_of_it._replace(mu2=all_of_it.mu2 * 0.99), CAP) == KEPT
    assert kept_for(all_of_it._replace(mu2=0.0, delta0=1e-6), CAP) == NOTHING_KEPT


def test_a_run_is_charged_to_every_cap_whose_unit_it_protects(file):
    caps = {"client": Cap(4, 1e-5), "record": Cap(2, 1e-5)}
    with Ledger(file) as ledger:
        ledger.admit("clients", cost(0.3, "client"), caps)
        ledger.admit("records", cost(0.2, "record"))
        ledger.admit("persons", cost(0.1, "person"))
        client, record = (ledger.standings()[n] for n in range(2))
        assert float(client.mu2) == pytest.approx(0.09)
        assert float(record.mu2) == pytest.approx(0.09 + 0.04 + 0.01)
        assert record.spent == pytest.approx(Cap(2, 0.99e-5).epsilon_of(record.mu2, NOTHING_KEPT))
        with pytest.raises(InvalidValue, match="of the ledger's cap for unit record, epsilon = 2"):
            ledger.admit("too many", cost(0.4, "client"))  # the client cap has room for it


def test_a_run_that_protects_no_capped_unit_is_refused(file):
    with Ledger(file) as ledger:
        ledger.admit("a", cost(0.1), {"client": CAP})
        for unit in ("record", "person"):
            with pytest.raises(
                InvalidValue, match=f"of unit {unit} bounds nothing for unit client"
            ):
                ledger.admit("b", cost(0.01, unit))
        assert "not counted" not in str(ledger.standings()[0])
        ledger.set_cap("record", CAP)
        ledger.admit("b", cost(0.01, "record"))
        client, record = ledger.standings()
        assert float(record.mu2) == pytest.approx(0.01 + 0.0001)
        # what it tells of a client has no bound, and whoever reads the client's cap must know
        assert (client.uncounted, record.uncounted) == (1, 0)
        assert "not counted: 1 run that hides less than a client" in str(client)
        assert client.as_json()["uncounted"] == 1
        assert "not counted" not in str(record)


def test_the_first_run_brings_the_cap_and_another_is_a_deliberate_act(file):
    with Ledger(file) as ledger:
        with pytest.raises(InvalidValue, match="the ledger has no cap yet"):
            ledger.admit("a", cost(0.3))
        with pytest.raises(InvalidValue, match="would fit: ask for less"):
            ledger.admit("a", cost(0.6), {"client": CAP})
        assert ledger.standings() == []  # what was refused brings no cap
        ledger.admit("a", cost(0.3), {"client": CAP})
        ledger.admit("b", cost(0.3), {"client": CAP})
        for caps in ({"client": Cap(9, 1e-5)}, {"record": CAP}):
            with pytest.raises(InvalidValue, match="leave it out, or change"):
                ledger.admit("c", cost(0.3), caps)
        with pytest.raises(InvalidValue, match="a run of at most epsilon = "):
            ledger.admit("c", cost(0.3))
        ledger.set_cap("client", Cap(3, 1e-5))
        ledger.admit("c", cost(0.3))
        assert ledger.standings()[0].changes == 1
    with Ledger(file) as ledger:
        assert ledger.standings()[0].cap == Cap(3, 1e-5)
        ledger.set_cap("record", CAP)
        assert [standing.changes for standing in ledger.standings()] == [1, 0]


def test_a_cap_that_is_raised_far_enough_keeps_a_share_again():
    books, whole = Books(), cost(gdp_mu(2, 1e-5))
    books.read(1, "run", {**books.admission("a", whole, {"client": CAP}), "about": {}, "when": ""})
    for epsilon, kept in ((2.0000001, NOTHING_KEPT), (2.5, KEPT), (2.2, KEPT)):
        books.read(2, "cap", {"unit": "client", "epsilon": epsilon, "delta": 1e-5})
        assert books.standing("client").kept == kept


def test_runs_that_sample_have_a_hundred_shares_of_delta(file):
    sampling = [Event("record", "replace-one", 2.0, 400.0 + n, 0.01, 10) for n in range(102)]
    costs = [Cost.of([event], (1,) * 10) for event in sampling]
    with Ledger(file) as ledger:
        for number in range(100):
            ledger.admit(f"{number}", costs[0], {"record": CAP})
        with pytest.raises(InvalidValue, match="leaves delta0 = 1e-09 to chance, and "):
            ledger.admit("100", costs[0])
        ledger.admit("exact", cost(0.01, "record"))


def test_a_run_that_is_admitted_again_costs_nothing_more(file):
    with Ledger(file) as ledger:
        ledger.admit("a", cost(0.4), {"client": CAP}, task="x")
        before = ledger.receipt()["row"]
        ledger.admit("a", cost(0.4))
        assert ledger.receipt()["row"] == before
        with pytest.raises(InvalidValue, match="was admitted with another cost"):
            ledger.admit("a", cost(0.3))
        ledger.close("a")
        ledger.admit("a", cost(0.4))  # it may be asked what it was
        with pytest.raises(InvalidValue, match="is closed: it releases nothing more"):
            ledger.commit("a", 1, b"q", b"a", b"s")


def test_what_would_be_is_told_and_not_written(file):
    with Ledger(file) as ledger:
        (standing,) = ledger.after("a", cost(0.4), {"client": CAP})
        assert float(standing.mu2) == pytest.approx(0.16)
        assert ledger.runs() == []


# -------------------------------------------------------------------------------------------------
# what is written before it is sent


def filled(file, rounds=3):
    """A ledger with a run that was closed, and one in its midst."""
    ledger = Ledger(file)
    ledger.admit("old", cost(0.2, rounds=2), {"client": CAP}, task="first")
    ledger.commit("old", 1, b"q", b"OLD ANSWER" * 9, b"OLD STATE" * 9)
    ledger.close("old")
    ledger.admit("now", cost(0.3, rounds=9), task="second")
    for n in range(1, rounds + 1):
        ledger.commit("now", n, b"question %d" % n, b"ANSWER %d" % n, b"STATE %d" % n)
    return ledger


def everything(ledger):
    """All that a ledger answers."""
    kept = [
        (ledger.answer(run.name, n), ledger.state(run.name))
        for run in ledger.runs()
        for n in range(1, 10)
    ]
    return ledger.runs(), ledger.standings(), kept, ledger.receipt()["mac"]


def test_rounds_come_in_order_once_and_no_more_than_were_admitted(file):
    with Ledger(file) as ledger:
        with pytest.raises(InvalidValue, match="run=a is not in the ledger"):
            ledger.commit("a", 1, b"q", b"a", b"s")
        ledger.admit("a", cost(0.3, rounds=2), {"client": CAP})
        with pytest.raises(InvalidValue, match="comes before round 1"):
            ledger.commit("a", 2, b"q", b"a", b"s")
        ledger.commit("a", 1, b"q", b"one", b"s1")
        for round, why in ((1, "was released already"), (3, "admitted for 2 rounds")):
            with pytest.raises(InvalidValue, match=why):
                ledger.commit("a", round, b"q", b"other", b"s")
        ledger.commit("a", 2, b"q2", b"two", b"s2")
        assert ledger.answer("a", 1) == (b"q", b"one")
        assert ledger.state("a") == b"s2"
        assert ledger.answer("a", 3) is None
        assert ledger.rounds("a") == 2


def test_what_a_closed_run_kept_is_nowhere_in_the_files(file):
    ledger = filled(file)
    ledger.commit("now", 4, b"q", b"LONG" * 50_000, b"STATE" * 50_000)
    before = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert b"LONG" in before
    ledger.close("now")
    for path in file.parent.iterdir():
        content = path.read_bytes()
        for words in (b"ANSWER", b"STATE", b"LONG"):
            assert words not in content, path
    (old, now), _, _, _ = everything(ledger)
    assert (old.released, now.released) == (1, 4)
    assert now.row.mu2 == pytest.approx(0.09 * 4 / 9)
    ledger.verify()


def test_only_the_owner_may_read_its_files(file):
    ledger = filled(file)
    assert {path.name for path in file.parent.iterdir()} == {
        *("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.key", "ledger.db.head")
    }
    for path in file.parent.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path
    ledger.__exit__()


@pytest.mark.parametrize("name", ["ledger.db", "ledger.db.key", "ledger.db.head"])
def test_a_file_that_others_may_read_is_refused(file, name):
    """As a copy may be that was put back."""
    filled(file).__exit__()
    file.with_name(name).chmod(0o640)
    with pytest.raises(InvalidValue, match=f"{name} can be read by others: chmod 600 "):
        Ledger(file)
    with Ledger(file, read_only=True) as ledger:
        assert len(ledger.runs()) == 2
    file.with_name(name).chmod(0o600)
    Ledger(file).__exit__()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("place", [os, Path])
def test_an_answer_that_the_head_does_not_know_is_not_sent(file, monkeypatch, place, moment):
    """A disk that fails between the row and the head: no answer until the head is there."""
    name = "fsync" if place is os else "replace"
    honest = getattr(place, name)

    def fails(*arguments):
        if moment == "after":
            honest(*arguments)
        raise OSError(28, "No space left on device")

    ledger = filled(file)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, fails)
        with pytest.raises(EquipoiseError, match="No space left on device; nothing was released"):
            ledger.commit("now", 4, b"q4", b"FOUR", b"S4")
        if moment == "before":
            with pytest.raises(EquipoiseError, match="No space left"):
                ledger.answer("now", 4)
            with pytest.raises(EquipoiseError, match="No space left"):
                ledger.commit("now", 5, b"q5", b"FIVE", b"S5")
    assert ledger.rounds("now") == 4  # the row was there
    assert ledger.answer("now", 4) == (b"q4", b"FOUR")
    ledger.commit("now", 5, b"q5", b"FIVE", b"S5")
    ledger.verify()


def test_a_full_disk_changes_nothing(folder, file):
    """A limit of the operating system on the size of files."""
    filled(file).__exit__()

    def life():
        ledger = Ledger(file)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        before = everything(ledger)
        for _ in range(2):
            with pytest.raises(EquipoiseError, match="nothing was released"):
                ledger.commit("now", 4, b"q", b"x" * 10**6, b"s")
        assert everything(ledger) == before

    assert in_a_process(life) == 0
    with Ledger(file) as ledger:
        ledger.verify()
        assert ledger.rounds("now") == 3
        ledger.commit("now", 4, b"q", b"x" * 10**6, b"s")


def in_a_process(function, *arguments):
    process = FORK.Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def test_a_ledger_that_another_process_holds_is_waited_for(file):
    filled(file).__exit__()
    import fcntl

    with open(file.with_name("ledger.db.key")) as key:
        fcntl.flock(key, fcntl.LOCK_EX)
        with pytest.raises(EquipoiseError, match="is held by another process"):
            Ledger(file, patience=0)
    with Ledger(file, patience=0):
        pass


def test_two_that_have_it_open_see_each_other(file):
    with Ledger(file) as one, Ledger(file) as two:
        one.admit("a", cost(0.3), {"client": CAP})
        two.commit("a", 1, b"q", b"a", b"s")
        two.admit("b", cost(0.3))
        assert one.answer("a", 1) == (b"q", b"a")
        with pytest.raises(InvalidValue, match="would fit"):
            one.admit("c", cost(0.4))
        one.commit("a", 2, b"q", b"a2", b"s")
        with pytest.raises(InvalidValue, match="released already"):
            two.commit("a", 2, b"q", b"other", b"s")


def race(file, name, barrier):
    barrier.wait()
    with Ledger(file) as ledger:
        try:
            ledger.admit(name, cost(0.4), {"client": CAP})
        except InvalidValue:
            os._exit(3)
    os._exit(0)


def test_of_two_runs_that_together_exceed_the_cap_exactly_one_is_admitted(folder):
    """A hundred races of two processes, every other one for a ledger that is not there yet."""
    for number in range(100):
        file = folder / f"{number}.db"
        if number % 2:
            Ledger(file).__exit__()
        barrier = FORK.Barrier(2)
        racers = [FORK.Process(target=race, args=(file, name, barrier)) for name in "ab"]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert sorted(racer.exitcode for racer in racers) == [0, 3]
        with Ledger(file) as ledger:
            ledger.verify()
            assert len(ledger.runs()) == 1


# -------------------------------------------------------------------------------------------------
# what was tampered with


def copied(folder, name):
    place = Path(tempfile.mkdtemp(dir=folder))
    for path in (folder / name).iterdir():
        shutil.copy(path, place)
    return place / "ledger.db"


def flipped(folder, name, chosen):
    """How many of these bytes, flipped in turn, were found; all others must be harmless."""
    with Ledger(copied(folder, name)) as ledger:
        honest = everything(ledger)
    found = 0
    for path, place in chosen:
        file = copied(folder, name)
        target = file.with_name(path.name)
        content = bytearray(target.read_bytes())
        content[place] ^= 1 << (place % 8)
        target.write_bytes(content)
        try:
            with Ledger(file) as ledger:
                ledger.verify()
                assert everything(ledger) == honest, (path.name, place)
        except EquipoiseError:
            found += 1
        shutil.rmtree(file.parent)
    return found


def bytes_of(folder, every):
    """Which bytes of a folder's files are flipped: of the database each that is not zero, or every
    so many."""
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        if path.name.endswith("-shm"):
            continue  # SQLite makes it anew
        places = [n for n, byte in enumerate(content) if byte or not every]
        step = every if every and len(content) > 1000 else 1
        yield from ((path, place) for place in places[:: step or 1])


@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize(
    "every", [pytest.param(0, marks=pytest.mark.slow, id="all"), pytest.param(23, id="some")]
)
def test_every_flipped_byte_is_found_or_harmless(folder, every, state):
    """Of a ledger whose process ended, and of one whose process was killed, so that much of it is
    in SQLite's log."""
    (folder / "made").mkdir()
    ledger = filled(folder / "made" / "ledger.db")
    if state == "closed":
        ledger.__exit__()
    shutil.copytree(folder / "made", folder / "honest")
    names = {path.name for path in (folder / "honest").iterdir()}
    assert ("ledger.db-wal" in names) == (state == "killed")
    chosen = [*bytes_of(folder / "honest", every)]
    found = flipped(folder, "honest", chosen)
    assert 0.1 * len(chosen) < found


def test_truncated_files_are_refused(folder):
    (folder / "honest").mkdir()
    filled(folder / "honest" / "ledger.db").__exit__()
    for name in ("ledger.db", "ledger.db.key", "ledger.db.head"):
        size = (folder / "honest" / name).stat().st_size
        for left in (0, 1, size // 2, size - 1):
            file = copied(folder, "honest")
            os.truncate(file.with_name(name), left)
            before = file.with_name(name).read_bytes()
            with (
                pytest.raises(EquipoiseError, match=r"^ledger=[^\n]*$"),
                Ledger(file) as ledger,
            ):
                ledger.verify()  # not every page is read before
            assert file.with_name(name).read_bytes() == before


@pytest.mark.parametrize("name", ["ledger.db", "ledger.db.key", "ledger.db.head"])
def test_a_file_that_is_missing_is_missed(file, name):
    filled(file).__exit__()
    file.with_name(name).unlink()
    with pytest.raises(DataError, match="ledger="):
        Ledger(file)
    assert not file.with_name(name).exists()


def snapshot(file):
    return {path: path.read_bytes() for path in file.parent.iterdir()}


def put_back(files, *names):
    for path, content in files.items():
        if path.name in names:
            path.write_bytes(content)


def test_a_database_that_was_put_back_is_refused(file):
    filled(file).__exit__()
    before = snapshot(file)
    with Ledger(file) as ledger:
        ledger.commit("now", 4, b"q", b"a", b"s")
        ledger.commit("now", 5, b"q", b"a", b"s")
    after = snapshot(file)
    put_back(before, "ledger.db")
    with pytest.raises(DataError, match="put back to what it was before"):
        Ledger(file)
    put_back(after, "ledger.db")
    put_back(before, "ledger.db.head")
    with pytest.raises(DataError, match="its head is not that of one of its last two rows"):
        Ledger(file)


def test_what_was_put_back_as_a_whole_shows_against_a_receipt(file):
    filled(file).__exit__()
    before = snapshot(file)
    with Ledger(file) as ledger:
        ledger.commit("now", 4, b"q", b"a", b"s")
        receipt = ledger.receipt("now")
        ledger.commit("now", 5, b"q", b"a", b"s")
        assert ledger.verify(receipt) == receipt["row"] + 2
        with pytest.raises(InvalidValue, match="the receipt is of ledger "):
            ledger.verify({**receipt, "ledger": "another"})
        rows = ("?", -1, -(10**30), 1e999)
        for wrong in ({}, {**receipt, "mac": "x"}, *({**receipt, "row": row} for row in rows)):
            with pytest.raises(InvalidValue, match="the receipt is none"):
                ledger.verify(wrong)
    put_back(before, *(path.name for path in before))
    with Ledger(file) as ledger:
        ledger.verify()  # nothing inside tells
        with pytest.raises(DataError, match="runs are missing"):
            ledger.verify(receipt)
        ledger.commit("now", 4, b"q", b"OTHER", b"s")
        with pytest.raises(DataError, match="another row"):
            ledger.verify(receipt)


def test_a_row_that_somebody_adds_by_hand_is_found(file):
    filled(file).__exit__()
    with sqlite3.connect(file) as db:
        body = json.dumps({"run": "now", "row": [0, 0], "when": ""}).encode()
        (n,) = db.execute("SELECT max(n) FROM chain").fetchone()
        db.execute("INSERT INTO chain VALUES (?, 'end', ?, ?)", (n + 1, body, bytes(32)))
    with pytest.raises(DataError, match="is not what was written"):
        Ledger(file)


def test_a_row_of_another_past_is_found(file):
    """A ledger that was put back and went on elsewhere has rows under the same key; none of them
    fits into this one, even at its own place."""
    filled(file).__exit__()
    before = snapshot(file)
    with Ledger(file) as ledger:
        ledger.commit("now", 4, b"q", b"cheap", b"s")
        ledger.commit("now", 5, b"q", b"a", b"s")
    with sqlite3.connect(file) as db:
        row = db.execute("SELECT * FROM chain ORDER BY n DESC LIMIT 1").fetchone()
    put_back(before, *(path.name for path in before))
    with Ledger(file) as ledger:
        ledger.commit("now", 4, b"q", b"OTHER", b"s")
        ledger.commit("now", 5, b"q", b"a", b"s")
        ledger.commit("now", 6, b"q", b"a", b"s")
    with sqlite3.connect(file) as db:
        db.execute("UPDATE chain SET body = ?, mac = ? WHERE n = ?", (*row[2:], row[0]))
    with pytest.raises(DataError, match="is not what was written"):
        Ledger(file)


def test_what_changes_while_it_is_open_is_found(file):
    ledger = filled(file)
    with sqlite3.connect(file) as db:
        db.execute("DELETE FROM chain WHERE n = (SELECT max(n) FROM chain)")
    with pytest.raises(DataError, match="has changed or is missing"):
        ledger.rounds("now")


@pytest.mark.parametrize("table", ["answers", "states"])
def test_an_answer_or_state_that_was_changed_is_not_used(file, table):
    ledger = filled(file)
    with sqlite3.connect(file) as db:
        db.execute(f"UPDATE {table} SET content = CAST('x' || content AS BLOB)")
    with pytest.raises(DataError, match="hold is not what was written"):
        ledger.answer("now", 2) if table == "answers" else ledger.state("now")
    with pytest.raises(DataError, match="hold is not what was written"):
        ledger.verify()


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("PRAGMA user_version = 2", "is of version 2, not 1"),
        ("PRAGMA user_version = 0", "is no ledger"),
        ("DROP TABLE states", "no such table"),
    ],
)
def test_another_version_and_other_databases_are_refused_unchanged(file, statement, why):
    filled(file).__exit__()
    with sqlite3.connect(file) as db:
        db.execute(statement)
    db.close()
    before = snapshot(file)
    with pytest.raises(EquipoiseError, match=why), Ledger(file) as ledger:
        ledger.verify()
    assert snapshot(file).items() >= before.items()


def test_no_file_and_no_folder(folder, file):
    with pytest.raises(InvalidValue, match="is a folder"):
        Ledger(folder)
    with pytest.raises(InvalidValue, match="there is no such file"):
        Ledger(file, read_only=True)
    with pytest.raises(EquipoiseError, match="No such file or directory"):
        Ledger(folder / "nowhere" / "ledger.db")
    file.write_text("not a database, but some text that is longer than a header of one" * 20)
    with pytest.raises(DataError, match="ledger="):
        Ledger(file)
    assert {path.name for path in folder.iterdir()} == {"ledger.db"}


def test_who_only_reads_writes_nothing(file):
    filled(file).__exit__()
    before = snapshot(file)
    with Ledger(file, read_only=True) as ledger:
        ledger.verify()
        assert ledger.state("now") == b"STATE 3"
        with pytest.raises(InvalidValue, match="opened to be read"):
            ledger.commit("now", 4, b"q", b"a", b"s")
    assert snapshot(file).items() >= before.items()


# -------------------------------------------------------------------------------------------------
# random worlds


@given(seed=st.integers(0, 2**32))
@settings(max_examples=200)
def test_in_no_world_more_is_sent_than_a_cap_allows(seed):
    """Random runs, with deaths at every step between transaction, head and sending."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        injected(random_world(Path(place), chance), random_faults(chance))


@pytest.mark.parametrize("after", [False, True])
def test_a_death_at_any_step_of_a_run_loses_and_doubles_nothing(after):
    """Every step in turn: opening, making, admission, three rounds, the end."""
    operations = [("admit", 0), *[("round", 0)] * 3, ("close", 0), ("admit", 1), ("round", 1)]
    costs = random_world(Path(), random.Random(1)).costs
    for at in range(1, 75):
        with tempfile.TemporaryDirectory(dir=MEMORY) as place:
            world = World(Path(place), Cap(2, 1e-5), costs, operations)
            injected(world, [(at, after)])


# -------------------------------------------------------------------------------------------------
# runs in this process


def test_a_run_is_admitted_whole_written_down_and_closed(file, leaves):
    result = equipoise.train(**RUN, epsilon=1, ledger=file, cap_epsilon=2, cap_delta=1e-5)
    with Ledger(file) as ledger:
        (run,), (standing,) = ledger.runs(), ledger.standings()
    assert (run.released, run.open, run.cost.rounds) == (8, False, 8)
    assert run.about["task"] == "breast-cancer"
    assert run.row.mu2 == pytest.approx(result.account.mu**2)
    assert standing.unit == "client"
    assert standing.cap == Cap(2, 1e-5)
    releases = len(leaves[0])
    with pytest.raises(InvalidValue, match=r"run=[0-9a-f]+ costs epsilon = 1.9"):
        equipoise.train(**RUN, epsilon=1.9, ledger=file)
    assert len(leaves[0]) == releases, "a step was made"


def test_rounds_are_in_the_ledger_before_they_are_seen(file):
    rows = []

    def watch(rounds, total):
        for round in rounds:
            with Ledger(file, read_only=True) as ledger:
                (run,) = ledger.runs()
                rows.append(ledger.receipt()["row"])
            assert round.number <= run.released <= min(total, 2 * round.number)
            yield round

    equipoise.train(**RUN, epsilon=1, ledger=file, cap_epsilon=2, cap_delta=1e-5, watch=watch)
    assert len({*rows}) == 3  # 2, 6, 8


@pytest.mark.parametrize(
    "protects_nobody",
    [
        {"epsilon": math.inf},
        {"epsilon": 1, "simulate_noise_seed": 1},
        {"epsilon": 1, "diagnostics": True},
    ],
)
def test_a_run_that_protects_nobody_has_no_cost(file, protects_nobody):
    with pytest.raises(InvalidValue, match="such a run protects nobody"):
        equipoise.train(**RUN, **protects_nobody, ledger=file, cap_epsilon=2, cap_delta=1e-5)
    assert not file.exists()


def test_a_cap_has_both_numbers_and_a_ledger(file):
    with pytest.raises(InvalidValue, match="a cap has both"):
        equipoise.train(**RUN, epsilon=1, ledger=file, cap_epsilon=2)
    with pytest.raises(InvalidValue, match="without a ledger"):
        equipoise.train(**RUN, epsilon=1, cap_epsilon=2, cap_delta=1e-5)


def test_a_run_that_is_interrupted_is_charged_for_what_was_seen(file):
    def watch(rounds, total):
        for round in rounds:
            if round.number == 3:
                raise KeyboardInterrupt
            yield round

    with pytest.raises(KeyboardInterrupt):
        equipoise.train(**RUN, epsilon=1, ledger=file, cap_epsilon=2, cap_delta=1e-5, watch=watch)
    with Ledger(file) as ledger:
        (run,) = ledger.runs()
    assert (run.open, run.released) == (False, 6)
    assert run.row.mu2 == pytest.approx(gdp_mu(1, 1e-5) ** 2 * 6 / 8)


@pytest.mark.parametrize("at", [1, 3, 8])
def test_a_run_that_is_killed_goes_on_and_is_charged_once(file, folder, at, monkeypatch):
    monkeypatch.setattr("equipoise.resume.EVERY", 0.0)
    monkeypatch.setattr("equipoise.resume.SHARE", 1e9)
    settings = {**RUN, "epsilon": 1.5, "ledger": file, "cap_epsilon": 2, "cap_delta": 1e-5}

    def life():
        honest, calls = simulated.client_round, [0]

        def dies(*arguments):
            calls[0] += 1
            if calls[0] == at:
                os._exit(9)
            return honest(*arguments)

        simulated.client_round = dies
        equipoise.train(**settings, out=folder / "run")

    assert in_a_process(life) == 9
    with Ledger(file) as ledger:
        (run,) = ledger.runs()
        assert run.open
    equipoise.train(**settings, out=folder / "run")
    with Ledger(file) as ledger:
        (run,) = ledger.runs()
    assert (run.open, run.released) == (False, 8)


def test_a_run_whose_folder_is_gone_stays_reserved_until_it_is_closed(file, capsys):
    with Ledger(file) as ledger:
        ledger.admit("lost", cost(0.4), {"client": CAP})
    with pytest.raises(InvalidValue, match="close runs that ended early"):
        equipoise.train(**RUN, epsilon=1.5, ledger=file)
    code, out, _ = run_command(capsys, "ledger", "close", str(file), "lost")
    assert code == 0
    assert "unit client: 0 of epsilon = 2 at delta = 1e-05" in out
    equipoise.train(**RUN, epsilon=1.5, ledger=file)


def test_records_with_samples_are_charged_by_their_row(file):
    settings = {**RUN, "unit": "record", "sampling_rate": 0.1, "epsilon": 1}
    result = equipoise.train(**settings, ledger=file, cap_epsilon=2, cap_delta=1e-5)
    (event,) = {*result.account.events}
    with Ledger(file) as ledger:
        (run,), (standing,) = ledger.runs(), ledger.standings()
    assert run.row.delta0 == 1e-9
    assert run.row.mu2 == pytest.approx(
        least_gaussian(event.sigma / 0.5, event.count, 0.1, 1e-9) ** 2
    )
    assert 1 < standing.spent < 1.05


def test_several_local_steps_are_several_releases(file):
    settings = {**RUN, "unit": "record", "local_steps": 4, "epsilon": 1}
    equipoise.train(**settings, ledger=file, cap_epsilon=2, cap_delta=1e-5)
    with Ledger(file) as ledger:
        (run,) = ledger.runs()
    assert run.cost.steps == (4, 4)


def test_a_dry_run_says_how_the_caps_would_stand(file, capsys):
    words = "train --task breast-cancer --clip 0.5 --clients 4 --iterations 8 --dry-run".split()
    words += ["--ledger", str(file), "--cap-epsilon", "2", "--cap-delta", "1e-5"]
    _, out, _ = run_command(capsys, *words, "--epsilon", "1")
    assert "ledger then unit client: 1.001 of epsilon = 2 at delta = 1e-05 spent or reserved" in out
    _, out, _ = run_command(capsys, *words, "--epsilon", "1", "--json")
    assert json.loads(out)["ledger"][0]["cap_epsilon"] == 2
    assert not file.exists()
    equipoise.train(**RUN, epsilon=1.5, ledger=file, cap_epsilon=2, cap_delta=1e-5)
    before = snapshot(file)
    code, _, err = run_command(capsys, *words, "--epsilon", "1.9")
    assert code == 2
    assert "run=this costs epsilon = 1.9" in err
    assert snapshot(file).items() >= before.items()


# -------------------------------------------------------------------------------------------------
# the command


def test_the_command_shows_verifies_closes_and_caps(file, capsys):
    filled(file).__exit__()
    name = str(file)
    _, out, _ = run_command(capsys, "ledger", "show", name)
    assert "3 of 9" in out
    assert "closed" in out
    assert "of epsilon = 2 at delta = 1e-05 spent or reserved; a run of at most " in out
    _, out, _ = run_command(capsys, "ledger", "show", name, "--json")
    shown = json.loads(out)
    assert [run["released"] for run in shown["runs"]] == [1, 3]
    assert shown["caps"][0]["mu2"] == pytest.approx(0.02 + 0.09)
    _, out, _ = run_command(capsys, "ledger", "receipt", name, "now")
    receipt = file.with_name("receipt.json")
    receipt.write_text(out)
    assert json.loads(out)["released"] == 3
    _, out, _ = run_command(capsys, "ledger", "verify", name, "--receipt", str(receipt))
    assert "rows, all as they were written, and what the receipt says is among them" in out
    _, out, _ = run_command(capsys, "ledger", "verify", name, "--json")
    assert json.loads(out) == {"rows": 8, "receipt": False}
    words = ["--unit", "client", "--epsilon", "3", "--delta", "1e-5"]
    _, out, _ = run_command(capsys, "ledger", "cap", name, *words)
    assert "of epsilon = 3 at delta = 1e-05" in out
    for command, why in (
        (("close", name, "nobody"), "run=nobody is not in the ledger"),
        (("close", name + "x", "now"), "there is no such file"),
        (("show", name + "x"), "there is no such file"),
        (("verify", name, "--receipt", name + "x"), "cannot be read: No such file"),
        (("verify", name, "--receipt", name), "cannot be read: it is no JSON"),
        (("cap", name, *words), "is epsilon = 3 at delta = 1e-05 already"),
    ):
        code, _, err = run_command(capsys, "ledger", *command)
        assert code == 2
        assert why in err
    assert not file.with_name("ledger.dbx").exists()


def test_every_sentence_of_a_refusal_says_a_way_out():
    """Refusals of the books: name=value or what is refused, a colon, and what to do."""
    books = Books()
    body = books.admission("a", cost(0.4), {"client": CAP})
    books.read(1, "run", {**body, "about": {}, "when": ""})
    for refused in (cost(0.4), cost(0.1, "record")):
        with pytest.raises(InvalidValue, match=r"run=b .*: (ask|take) .*`equipoise ledger cap`"):
            books.admission("b", refused, {})
