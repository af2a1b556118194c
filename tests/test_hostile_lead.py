"""A lead that wants to know more than it was promised: agreements and models that nobody honest
would make."""

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest

from equipoise import InvalidValue
from equipoise.federation.agreement import read_agreement
from equipoise.federation.messages import question, read_answer
from equipoise.federation.part import silo_part
from equipoise.privacy.ledger import Ledger
from equipoise.privacy.stability import Stability
from federations import Parties, proposed
from test_federation import CANCER, refused


def test_a_file_whose_hash_nobody_agreed_on_is_never_run(tmp_path, monkeypatch):
    """Or a lead runs any Python file that it can name on a silo's machine."""
    monkeypatch.chdir(tmp_path)
    Path("left.py").write_text("raise SystemExit('it ran')\n")
    Path("deeper").mkdir()
    Path("deeper/left.py").write_text("raise SystemExit('it ran')\n")
    document = json.loads(proposed(**CANCER).to_json())

    def changed(task, **values):
        run = {**document["run"], "task": task}
        Path("a.json").write_text(json.dumps({**document, "run": run, **values}))
        silo_part(read_agreement(Path("a.json")), 0, "mine.csv")

    with pytest.raises(InvalidValue, match=r"about task=left\.py without the file's SHA-256"):
        changed("left.py")
    with pytest.raises(InvalidValue, match="it names task of somebody's machine"):
        changed("deeper/left.py", task_file="0" * 64)
    with pytest.raises(InvalidValue, match="about task=breast-cancer with the SHA-256 of a file"):
        changed("breast-cancer", task_file="0" * 64)
    with pytest.raises(InvalidValue, match="give your copy"):
        changed("left.py", task_file="0" * 64)


@pytest.mark.parametrize("odd", ["\x1b[2A\x1b[0J", "\u202e", "\n"])
def test_an_agreement_cannot_paint_over_what_an_operator_reads(tmp_path, odd):
    document = json.loads(proposed(**CANCER).to_json())
    for name, value in (("ignore", [f"name{odd}"]), ("label", odd), ("split", odd)):
        run = {**document["run"], name: value}
        (tmp_path / "a.json").write_text(json.dumps({**document, "run": run}))
        with pytest.raises(InvalidValue, match=f"its {name} holds what no terminal shows"):
            read_agreement(tmp_path / "a.json")


def test_a_run_that_is_closed_is_not_even_begun(tmp_path, monkeypatch):
    """Nothing would leave; but a lead that may try one model after the other could watch for how
    long a silo works on each, and whether it fails."""
    agreement = proposed(**CANCER)
    silo, name = Parties(agreement, tmp_path).silos[0], agreement.digest
    silo.answer(question(name, 1, np.zeros(31)))
    with Ledger(tmp_path / "0.db") as ledger:
        ledger.close(agreement.name)
    begun = []
    monkeypatch.setattr("equipoise.federation.silo.client_round", lambda *_: begun.append(1))
    for x in (np.zeros(31), np.ones(31)):
        refused(silo, question(name, 2, x), "ledger")
    assert not begun


@pytest.mark.parametrize("noise_in", ["message", "hidden-gradient"])
@pytest.mark.parametrize("task", ["breast-cancer", "digits"])
def test_a_model_so_long_that_rounding_shows_a_record_is_refused(tmp_path, task, noise_in):
    """Where stability bounds what one record moves, it does so for real numbers. A lead that makes
    up a model of length 2^56 has every step rounded to whole tens, up or down by one record."""
    sizes = {"breast-cancer": (127, 126, 126), "digits": (400, 399, 399)}[task]
    both = {"unit": "record", "noise_in": noise_in, "clip": None, "eta": None}
    agreement = proposed(sizes, **{**CANCER, **both, "task": task})
    parties = Parties(agreement, tmp_path)
    silo, name, d = parties.silos[0], agreement.digest, agreement.dimension
    rng = np.random.default_rng(1)
    for length in (1e13, 2.0**56, 1e200, 1e308):
        x = rng.choice([-1.0, 1.0], d) * length / math.sqrt(d)
        refused(silo, question(name, 1, x), "far")
    # as far as any training goes, and ten times farther, it is no matter
    x = rng.standard_normal(d) * 1e3
    assert read_answer(silo.answer(question(name, 1, x)), name).round == 1


@pytest.mark.parametrize(("records", "d"), [(40, 6), (200, 30)])
def test_rounding_stays_below_a_hundredth_of_what_a_record_moves(records, d):
    """At the longest model that a silo takes, against the same steps with sixty digits."""
    rng, mu = np.random.default_rng(2), 0.01
    features = rng.uniform(-1, 1, (records, d)) / math.sqrt(d)
    bound = Stability(2 / (0.25 + 2 * mu), 3, 0.25 + mu, mu, 1.0, records, "replace-one")

    def moved(x, exp):
        """By three steps on a logistic loss, in the numbers that x and exp are of."""
        begin = x.copy()
        for _ in range(3):
            shares = np.array([1 / (1 + exp(-(row @ x))) for row in features.astype(x.dtype)])
            x = x - bound.eta * (shares @ features / records + mu * x)
        return x - begin

    for _ in range(5):
        x = rng.standard_normal(d)
        x *= bound.farthest(d) / np.linalg.norm(x)
        with np.errstate(over="ignore"), mpmath.workdps(60):
            exact = moved(np.array([mpmath.mpf(entry) for entry in x]), mpmath.exp)
            wrong = (exact - moved(x, np.exp)).astype(float)
        assert 2 * np.linalg.norm(wrong) <= 0.01 * bound.sensitivity
