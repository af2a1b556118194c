"""Kill a training, then a sweep and its workers, at random moments, start it again, and compare
with one that nobody disturbed.

    make crash-test               # twenty kills of each; about ten minutes

What must hold: a training goes back behind no round that it kept, and ends with the same model; of
a sweep no finished run is lost or doubled, and the results of both stores are equal, bit for bit.
"""

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import equipoise
from equipoise.journal import kept as journalled

GRID = """
name = "crash"
task = "breast-cancer"
algorithm = ["dp-fedavg", "dp-scaffnew"]
iterations = 720
local_steps = "divisors"
epsilon = [3.3, 2.0, 1.0, 0.5, inf]
clip = [0.1, 1.0, 10.0]
seeds = [0, 1, 2]
"""
COLUMNS = (
    "key, sweep, task, algorithm, epsilon_spent, rounds, test_error, train_error, failed, result"
)
TRAIN = (
    "train --task breast-cancer --algorithm dp-scaffnew --epsilon 2 --clip 1 --iterations 60000 "
    "--local-steps 3 --simulate-noise-seed 1 --out"
)


def training(folder: Path, out: str) -> subprocess.Popen:
    command = [Path(sys.executable).with_name("equipoise"), *TRAIN.split(), out]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def kill_trainings(kills: int, chance: random.Random, folder: Path) -> None:
    start = time.monotonic()
    undisturbed = training(folder, "whole")
    assert undisturbed.wait() == 0, undisturbed.stderr.read()
    seconds = time.monotonic() - start
    print(f"undisturbed: trained in {seconds:.0f} s", flush=True)
    whole, done, ends, stand, going_on = equipoise.load(folder / "whole"), 0, 0, 0, 0
    while done < kills:
        out = folder / f"killed-run-{ends}"
        process = training(folder, out.name)
        try:
            process.wait(chance.uniform(0, 0.5) * seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            done += 1
            if (out / "result.json").exists():  # it was killed when all was written
                _same(out, whole)
                ends, stand = ends + 1, 0
                continue
            entry = journalled(out / "journal") if out.exists() else None
            number = entry.head["stand"]["number"] if entry else 0
            assert number >= stand, "it went back behind a round that was kept"
            going_on += 0 < stand
            stand = number
            print(f"kill {done}: the training stands after round {stand}", flush=True)
            continue
        assert process.returncode == 0, process.stderr.read()
        _same(out, whole)
        ends, stand = ends + 1, 0
    process = training(folder, f"killed-run-{ends}")
    _, said = process.communicate()
    assert process.returncode == 0, said
    _same(folder / f"killed-run-{ends}", whole)
    print(
        f"{done} kills, {going_on} of runs that went on, {ends + 1} runs: the same model each "
        "time, bit for bit"
    )


def _same(out: Path, whole: equipoise.Result) -> None:
    result = equipoise.load(out)
    assert result == whole, "the results differ"
    assert np.array_equal(result.x, whole.x), "the models differ"
    assert not (out / "journal").exists()


def started(folder: Path, store: str) -> subprocess.Popen:
    command = [
        Path(sys.executable).with_name("equipoise"),
        "sweep",
        "crash.toml",
        "--store",
        store,
        "--workers",
        "2",
    ]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def workers_of(process: subprocess.Popen) -> list[int]:
    """The processes that compute for a sweep."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    found = []
    for pid in children.read_text().split() if children.exists() else []:
        try:
            if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes().decode():
                found.append(int(pid))
        except OSError:
            pass
    return found


def contents(store: Path) -> tuple[list, list]:
    with sqlite3.connect(store) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        runs = db.execute(f"SELECT {COLUMNS} FROM runs ORDER BY key").fetchall()
        return runs, db.execute("SELECT * FROM curves ORDER BY key, round").fetchall()


def kept(store: Path) -> set[tuple]:
    if not store.exists():
        return set()
    try:
        with sqlite3.connect(store) as db:
            return {*db.execute("SELECT key, result FROM runs")}
    except sqlite3.OperationalError:  # killed before the first table
        return set()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kill_trainings(arguments.kills, chance, folder)
        (folder / "crash.toml").write_text(GRID)
        start = time.monotonic()
        undisturbed = started(folder, "whole.sqlite")
        out, _ = undisturbed.communicate()
        assert undisturbed.returncode == 0, out
        whole, seconds = contents(folder / "whole.sqlite"), time.monotonic() - start
        print(f"undisturbed: {len(whole[0])} runs in {seconds:.0f} s", flush=True)
        kills, number, inside, before = 0, 0, 0, set()
        while kills < arguments.kills:
            store = folder / f"killed-{number}.sqlite"
            process = started(folder, store.name)
            while process.poll() is None and not workers_of(process):
                time.sleep(0.05)
            time.sleep(chance.uniform(0, 0.7) * seconds)
            computing = workers_of(process)
            if (
                process.poll() is not None or not computing
            ):  # it came to its end: begin anew, or nothing would be killed
                process.wait()
                assert contents(store) == whole, "the stores differ"
                number, before = number + 1, set()
                continue
            whom = chance.choice(["the sweep", "a worker"])
            os.kill(
                process.pid if whom == "the sweep" else chance.choice(computing), signal.SIGKILL
            )
            if whom == "a worker":
                time.sleep(chance.uniform(0.5, 3.0))
                process.kill()
            process.wait()
            after = kept(store)
            assert before <= after, "a finished run was lost or changed"
            kills, inside, before = kills + 1, inside + (0 < len(after) < len(whole[0])), after
            print(f"kill {kills}: {whom}; {len(after)} runs are kept", flush=True)
        process = started(folder, store.name)
        out, _ = process.communicate()
        assert process.returncode == 0, out
        assert contents(store) == whole, "the stores differ"
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and _computes(pid, folder)]
        assert not left, f"processes are left: {left}"
        print(
            f"{kills} kills, {inside} with part of the runs kept, {number + 1} stores: "
            f"{len(whole[0])} runs equal, bit for bit"
        )


def _computes(pid: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd") == str(folder)
    except OSError:
        return False


if __name__ == "__main__":
    main()
