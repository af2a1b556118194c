"""A Ray cluster of two nodes on this machine; a sweep is interrupted, and a node is killed in the
middle of another. What comes out is compared with a sweep by this process alone.

    make ray-test                 # about four minutes

What must hold: the stores are equal, bit for bit; nothing that was finished is trained again; nodes
need none of the files that a task is made of; what goes wrong is told in one sentence; and no
process is left.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from equipoise.errors import EquipoiseError
from equipoise.sweeps import ray as on_ray
from equipoise.sweeps.grid import grid
from equipoise.sweeps.ray import Cluster
from equipoise.sweeps.search import search
from equipoise.sweeps.sweep import sweep
from problems import SMALL, contents

TASK = """
import numpy as np
import torch
from torch import nn
from equipoise import accuracy as metric
from layers import Small

x = torch.from_numpy(np.load("x.npy"))
y = (x[:, 0] > 0).long()
model = Small()
clients = list(zip(x[:40_000].split(8000), y[:40_000].split(8000)))
test = x[40_000:], y[40_000:]
loss = nn.functional.cross_entropy
learning_rate = 0.1
batch = 64
"""
LAYERS = """
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, x):
        return self.layers(x)
"""
GRID = {
    "name": "cluster",
    "algorithm": ["dp-fedavg", "dp-scaffnew"],
    "iterations": 120,
    "local_steps": [1, 2, 3, 4, 6, 12],
    "epsilon": [3.3, 1.0, "inf"],
    "clip": [0.1, 1.0],
    "seeds": [0, 1, 2],
    "variant": [{"task": "breast-cancer"}, {"task": "mine.py"}],
}

LONG = """
task = "digits-mlp"
iterations = 120
local_steps = [1, 2, 3]
epsilon = 3
clip = [0.1, 1.0]
seeds = [0, 1]
"""


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])


def descendants(pid: int) -> list[tuple[int, str]]:
    """All processes below this one: their numbers and commands."""
    parents = {}
    for entry in Path("/proc").iterdir():
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except (OSError, ValueError):
            continue
    below, todo = [], [pid]
    while todo:
        children = [child for child, parent in parents.items() if parent == todo[-1]]
        todo.pop()
        todo += children
        for child in children:
            try:
                below.append((child, Path(f"/proc/{child}/cmdline").read_bytes().decode()))
            except OSError:
                continue
    return below


@contextmanager
def node(folder: Path, *how: str) -> Iterator[subprocess.Popen]:
    """One node with one processor; when it goes, all its processes do."""
    folder.mkdir()
    command = [Path(sys.executable).with_name("ray"), "start", "--block", "--num-cpus=1", *how]
    command += ["--disable-usage-stats", "--object-store-memory=200000000"]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield process
    finally:
        left = descendants(process.pid)
        for pid in (process.pid, *(pid for pid, _ in left)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """The address of a cluster of two nodes, and the second of them."""
    port = free_port()
    head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}/ray"]
    with node(folder / "head", *head) as first:
        wait_until(lambda: is_up(first), 60)
        address = f"{host_of(folder / 'head' / 'log')}:{port}"
        with node(folder / "other", f"--address={address}") as second:
            wait_until(lambda: is_up(second), 60)
            yield address, second


def host_of(log: Path) -> str:
    wait_until(lambda: "Local node IP" in log.read_text(), 30)
    return log.read_text().partition("Local node IP: ")[2].split()[0]


def is_up(process: subprocess.Popen) -> bool:
    return any("raylet/raylet" in command for _, command in descendants(process.pid))


def wait_until(true, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.1)


@contextmanager
def counted() -> Iterator[Counter]:
    """How often each run came back from a node."""
    times, keep = Counter(), on_ray.keep

    def counting(outcome, kept, name):
        times.update(run.key for run in outcome.finished)
        return keep(outcome, kept, name)

    on_ray.keep = counting
    try:
        yield times
    finally:
        on_ray.keep = keep


def test_a_node_is_killed(address: str, second: subprocess.Popen) -> None:
    """Both nodes train; then one is not there any more."""
    cells = grid(GRID).cells
    *_, last = sweep("cluster", cells, Path("whole.sqlite"))
    assert (last.done, last.failed) == (last.total, 0)
    whole, start = contents(Path("whole.sqlite")), time.monotonic()
    raylet = next(pid for pid, what in descendants(second.pid) if "raylet/raylet" in what)
    with counted() as times, Cluster(address) as workers:
        wait_until(lambda: workers.number == 2, 30)
        killed = False
        for progress in sweep("cluster", cells, Path("ray.sqlite"), workers):
            if not progress.done:
                for name in ("mine.py", "layers.py", "x.npy"):
                    Path(name).rename(f"{name}.away")
            if not killed and progress.done > last.total / 8:
                os.kill(raylet, signal.SIGKILL)
                killed, before = True, progress.done
                print(f"one node killed after {before} of {last.total} runs", flush=True)
    seconds = time.monotonic() - start
    assert killed
    assert (progress.done, progress.failed) == (last.total, 0)
    assert contents(Path("ray.sqlite")) == whole, "the stores differ"
    assert {*times.values()} == {1}, "a finished run was trained again"
    for name in ("mine.py", "layers.py", "x.npy"):
        Path(f"{name}.away").rename(name)
    print(f"{last.total} runs equal, bit for bit, each finished once, in {seconds:.0f} s")


def test_an_interrupt(address: str) -> None:
    """What was finished is kept, what runs is stopped, and the next sweep goes on from there."""
    command = [Path(sys.executable).with_name("equipoise"), "sweep", "long.toml", "--ray", address]
    store = Path("interrupted.sqlite")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where it is ignored, so would theirs
    process = subprocess.Popen(
        [*command, "--store", store],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: store.exists() and contents_or_none(store), 60)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130, error
    assert error.endswith("; the same command goes on from there\n"), error
    kept = contents(store)[0]
    assert 0 < len(kept) < 12
    subprocess.run([*command, "--store", store], check=True, capture_output=True)
    subprocess.run([*command[:-2], "--store", "alone.sqlite"], check=True, capture_output=True)
    assert contents(store) == contents(Path("alone.sqlite"))
    print(f"interrupted after {len(kept)} of 12 runs, and finished")


def contents_or_none(store: Path) -> bool:
    try:
        return bool(contents(store)[0])
    except Exception:
        return False


def test_a_search(address: str) -> None:
    runs = grid({**SMALL, "iterations": 12})
    *_, (_, alone) = search(runs, Path("search.sqlite"))
    with Cluster(address) as workers:
        *_, (_, answers) = search(runs, Path("search-ray.sqlite"), workers)
    assert answers == alone
    assert contents(Path("search.sqlite")) == contents(Path("search-ray.sqlite"))
    print("a search finds the same")


SENTENCES = """
import sys
from equipoise.cli.main import main
{change}
main(["sweep", "long.toml", "--store", "none.sqlite", "--ray", sys.argv[1]])
"""


def said(address: str, change: str = "") -> str:
    """The one sentence that the command says, within 30 seconds."""
    script = [sys.executable, "-c", SENTENCES.format(change=change), address]
    done = subprocess.run(script, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2, done
    sentences = [line for line in done.stderr.splitlines() if "SIMULATION" not in line]
    sentences = [line for line in sentences if "runs done" not in line]
    assert len(sentences) == 1, done.stderr
    return sentences[0]


def test_what_is_wrong_is_one_sentence(address: str) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    assert "no Ray cluster answers there" in said(nobody)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "no Ray cluster answers there" in said(f"127.0.0.1:{silent.getsockname()[1]}")
    assert "is not HOST:PORT" in said("ray://here:10001")
    other_ray = "from equipoise.sweeps import ray as ours; ours.TRY = ours.TRY.replace("
    other_ray += (
        "'import logging, sys, ray', 'import logging, sys, ray; ray.__version__ = \"1.0\"')"
    )
    assert "another version of Ray or Python" in said(address, other_ray)
    other_version = "import equipoise.sweeps.ray as ours; whole = ours.version\n"
    other_version += "ours.version = lambda name: '9.9' if name == 'equipoise' else whole(name)"
    sentence = said(address, other_version)
    assert "a node has equipoise 0." in sentence, sentence
    assert "where 9.9 is here" in sentence, sentence
    print("dead, silent and other clusters are told in one sentence")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="eq") as name:  # Ray's sockets need short paths
        folder = Path(name)
        work = folder / "work"
        work.mkdir()
        os.chdir(work)
        Path("mine.py").write_text(TASK)
        Path("layers.py").write_text(LAYERS)
        np.save("x.npy", np.random.default_rng(0).random((44_000, 16), "f4") - 0.5)
        with cluster(folder) as (address, second):
            Path("long.toml").write_text(LONG)
            test_what_is_wrong_is_one_sentence(address)
            test_an_interrupt(address)
            test_a_search(address)
            test_a_node_is_killed(address, second)
        os.chdir("/")
        wait_until(lambda: not any(_is_below(pid, folder) for pid in os.listdir("/proc")), 30)


def _is_below(pid: str, folder: Path) -> bool:
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(folder)
    except OSError:
        return False


if __name__ == "__main__":
    try:
        main()
    except EquipoiseError as error:
        sys.exit(f"error: {error}")
