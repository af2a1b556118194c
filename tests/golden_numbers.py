"""The numbers that fixed runs and a sweep give: they change only with the arithmetic's version.

`python tests/golden_numbers.py` writes tests/golden/numbers.json anew. Do that only together with a
higher `equipoise.sweeps.keys.NUMBERS` and a line in CHANGELOG.md: stores of users then run again.
"""

import json
import math
import tempfile
from pathlib import Path

import numpy as np

import equipoise
from equipoise.sweeps.keys import NUMBERS
from equipoise.sweeps.store import Store
from problems import BOUNDS, HEADER, SMALL, TASK_FILE

PLACE = Path(__file__).parent / "golden" / "numbers.json"

CLIENT = {
    "task": "breast-cancer",
    "epsilon": 2,
    "clip": 1,
    "local_steps": 4,
    "iterations": 32,
    "simulate_noise_seed": 1,
}
SHARED = {**CLIENT, "trust": "secure-aggregation"}
COIN = {**SHARED, "local_steps": None, "schedule": "coin", "p": 0.25}
RECORD = {**CLIENT, "clients": 5, "unit": "record", "clip": 0.4, "iterations": 16}
RECORD |= {"weights": "equal"}
SCAFFNEW = {"algorithm": "dp-scaffnew"}
TABLES = {
    "task": "csv",
    "data": ("a.csv", "b.csv"),
    "label": "outcome",
    "bounds": "bounds.toml",
    "test": ("test.csv",),
    "epsilon": 5,
    "clip": 0.5,
    "iterations": 8,
    "local_steps": 2,
    "simulate_noise_seed": 2,
}
OWN = {**TABLES, "task": "own.py", "data": (), "test": (), "label": None, "bounds": None}
RUNS = {
    "local": CLIENT,
    "secure aggregation": {**SHARED, **SCAFFNEW},
    "zero-out, server step": {**CLIENT, "neighbours": "zero-out", "gamma": 0.5},
    "coin": {**COIN, **SCAFFNEW},
    "clipped h": {**CLIENT, **SCAFFNEW, "h_update": "clipped", "clip": 0.1},
    "released h": {**CLIENT, **SCAFFNEW, "h_update": "released"},
    "fedprox": {**SHARED, "algorithm": "dp-fedprox", "prox": 0.3},
    "skew, minibatches": {**SHARED, "split": "dirichlet:0.3", "batch": 8, "seed": 3, "clients": 7},
    "average": {**SHARED, **SCAFFNEW, "returns": "average"},
    "warm start": {**SHARED, "warm_start": True, "public_records": 40},
    "lemma 1": {**CLIENT, "noise_rule": "lemma1", "v": "record-style"},
    "no noise": {**CLIENT, "epsilon": math.inf, **SCAFFNEW},
    "quadratic": {**SHARED, "task": "quadratic", "clip": 0.3},
    "digits": {**SHARED, "task": "digits", "clients": 20, "iterations": 8},
    "record": RECORD,
    "record, sampled": {**RECORD, "sampling_rate": 0.3, **SCAFFNEW},
    "record, message": {**RECORD, "noise_in": "message", "clip": 1.0},
    "record, message, sums": {**RECORD, "noise_in": "message", "trust": "secure-aggregation"},
    "record, hidden": {**RECORD, "noise_in": "hidden-gradient"},
    "tables": TABLES,
    "tables, record": {**TABLES, "unit": "record"},
    "own": {**OWN, **SCAFFNEW, "batch": 10},
    "own, record": {**OWN, "unit": "record", "batch": 10},
    "network": {**OWN, "task": "digits-mlp", "clients": 10, "batch": 10},
}


def write_files(folder):
    (folder / "bounds.toml").write_text(BOUNDS)
    (folder / "a.csv").write_text(HEADER + "30,f,0.1,no\n70,m,0.9,yes\n65,m,,yes\n")
    (folder / "b.csv").write_text(HEADER + "80,f,0.5,yes\n20,m,-0.5,no\n33,f,0,maybe\n")
    (folder / "test.csv").write_text(HEADER + "30,f,0.1,no\n70,m,0.9,yes\n90,f,0.9,yes\n")
    (folder / "own.py").write_text(TASK_FILE)


def of_run(settings):
    result = equipoise.train(**settings)
    model = np.asarray(result.x, dtype=np.float64)
    return {
        "model": [*model[:3].tolist(), float(np.linalg.norm(model))],
        "errors": [point.test_error for point in result.curve[-3:]],
        "losses": [point.test_loss for point in result.curve[-3:]],
        "sigma": result.account.sigma,
        "sensitivity": min(result.account.sensitivity, 1e300),
        "epsilon": min(result.account.epsilon, 1e300),
        "releases": result.account.releases,
    }


def of_sweep(folder):
    equipoise.sweep(SMALL, store=folder / "store.sqlite")
    with Store(folder / "store.sqlite", read_only=True) as store:
        rows = store.table("algorithm, epsilon, clip_norm, local_steps, seed, test_error")
    cells = {}
    for row in rows:
        error = row.pop("test_error")
        cells[" ".join(str(value) for value in row.values())] = error
    return dict(sorted(cells.items()))


def numbers(folder):
    """Everything, computed in `folder`, which must be the current one."""
    write_files(folder)
    return {
        "numbers": NUMBERS,
        "runs": {name: of_run(settings) for name, settings in RUNS.items()},
        "sweep": of_sweep(folder),
    }


if __name__ == "__main__":
    import contextlib

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        document = numbers(Path(folder))
    PLACE.write_text(json.dumps(document, indent=1) + "\n")
