"""Sweeps on Ray without a cluster: what travels, what is kept when a worker dies, what is refused.
A real cluster is in `ray_cluster.py`."""

import subprocess
import sys
from itertools import count
from pathlib import Path
from pickle import loads

import numpy as np
import pytest
import torch

from equipoise import InvalidValue
from equipoise import sweep as sweep_for_users
from equipoise.errors import EquipoiseError
from equipoise.sweeps.grid import grid
from equipoise.sweeps.stacks import key_of, resolved, stacks_of, task_of
from equipoise.sweeps.sweep import sweep
from equipoise.tasks import TaskOptions, load_task
from problems import SMALL, TASK_FILE, contents

pytest.importorskip("ray")
from ray.exceptions import WorkerCrashedError

from equipoise.sweeps import ray as on_ray
from equipoise.sweeps.ray import Cluster, packed

ROW = {
    "name": "row",
    "task": "digits-mlp",
    "clients": 5,
    "algorithm": "dp-fedavg",
    "iterations": 2,
    "local_steps": [1, 2],
    "epsilon": 3.0,
    "clip": [0.3, 3.0],
    "seeds": [0],
}


class Objects:
    """An object store that is a dict."""

    def __init__(self):
        self.kept, self.numbers = {}, count()

    def put(self, value):
        number = next(self.numbers)
        self.kept[number] = value
        return number

    def get(self, number):
        if isinstance(number, list):
            return [self.get(one) for one in number]
        return self.kept[number] if isinstance(number, int) else number


class Node:
    """Trains in this process; `dies(n)` says whether it dies before its n-th answer."""

    def __init__(self, dies=lambda n: False):
        self.dies, self.answers = dies, count()

    def remote(self, *work):
        for answer in on_ray._there()(*work):
            if self.dies(next(self.answers)):
                raise WorkerCrashedError
            yield answer


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of two processors, with a node to be set."""
    objects = Objects()
    monkeypatch.setattr(on_ray.ray, "put", objects.put)
    monkeypatch.setattr(on_ray.ray, "get", objects.get)
    monkeypatch.setattr(Cluster, "number", 2)
    on_ray._task.cache_clear()
    some = Cluster("here:1")
    some._train, some.objects = Node(), objects
    yield some
    some._threads.shutdown()  # before the real Ray is back


def finished(document, store, workers=1):
    *_, last = sweep(document["name"], grid(document).cells, store, workers)
    return last


@pytest.mark.parametrize("document", [SMALL, ROW], ids=["stacks", "a row"])
@pytest.mark.parametrize("death", [None, 0, 1, 3])
def test_the_same_store_whoever_dies(document, death, cluster, tmp_path, monkeypatch):
    """A worker dies before it said a word, before its first result, or later: what came back is
    kept, and comes back once."""
    times, keep = [], on_ray.keep

    def counted(outcome, *rest):
        times.extend(run.key for run in outcome.finished)
        return keep(outcome, *rest)

    monkeypatch.setattr(on_ray, "keep", counted)
    cluster._train = Node(lambda n: n == death)
    last = finished(document, tmp_path / "ray.sqlite", cluster)
    assert (last.done, last.failed, last.left) == (last.total, 0, 0.0)
    assert len(times) == len({*times}) == last.total
    finished(document, tmp_path / "here.sqlite")
    assert contents(tmp_path / "ray.sqlite") == contents(tmp_path / "here.sqlite")


def test_a_task_that_only_the_driver_can_read(cluster, tmp_path, monkeypatch):
    """Its code, a module beside it and its data travel by value: the files may be gone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("layers_beside.py").write_text("from torch import nn\nclass Mine(nn.Linear):\n    pass\n")
    Path("mine.py").write_text(
        "from layers_beside import Mine\n" + TASK_FILE.replace("nn.Linear(4, 2)", "Mine(4, 2)")
    )
    document = {"name": "own", "task": "mine.py", "iterations": 2, "epsilon": "inf", "seeds": [0]}
    finished(document, tmp_path / "here.sqlite")
    for path in ("mine.py", "layers_beside.py"):
        Path(path).unlink()
    finished(document, tmp_path / "ray.sqlite", cluster)
    assert contents(tmp_path / "ray.sqlite") == contents(tmp_path / "here.sqlite")
    (parcel,) = (one for one in cluster.objects.kept.values() if isinstance(one, on_ray.Parcel))
    (tmp_path / "parcel").write_bytes(parcel.content)
    elsewhere = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')))"
    command = [sys.executable, "-c", elsewhere, str(tmp_path / "parcel")]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert done.stdout.startswith("Task('mine.py'"), done.stderr
    task_of.cache_clear()


def test_large_arrays_are_shared_and_views_stay_views(monkeypatch):
    """Between tasks of different seeds, too; strides stay as they are."""
    monkeypatch.setattr(on_ray, "LARGE", 2**10)
    objects, whole = {}, torch.arange(4000.0).reshape(100, 40)

    def shared(array):
        objects[bytes(array)] = np.frombuffer(bytes(array), dtype=np.uint8)
        return objects[bytes(array)]

    task = load_task("quadratic", TaskOptions(clients=3))
    reading = {"rows": whole[10:20], "columns": whole.T[3:5], "again": whole}
    for seed in (0, 1):
        content, arrays = packed(task.__class__(**{**vars(task), "reading": reading}), shared)
        copy = loads(content, buffers=arrays)
        assert copy.fingerprint == task.fingerprint, seed
        for name, tensor in reading.items():
            assert torch.equal(copy.reading[name], tensor)
            assert copy.reading[name].stride() == tensor.stride()
        pointers = {t.untyped_storage().data_ptr() for t in copy.reading.values()}
        assert len(pointers) == 1
    assert len([one for one in objects if len(one) == 16_000]) == 1
    assert len(content) < 16_000


def test_nodes_with_another_version_are_refused(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "version", lambda name: "9.9")
    with pytest.raises(InvalidValue, match=r"ray=here:1: a node has equipoise 0\..*, where 9.9 is"):
        finished(SMALL, tmp_path / "s.sqlite", cluster)
    assert contents(tmp_path / "s.sqlite") == ([], [])


def test_what_a_node_lacks_is_told_without_records(cluster, tmp_path):
    from ray.exceptions import RayTaskError

    for cause, words in (
        (ModuleNotFoundError("No module named 'x'"), "ModuleNotFoundError: No module named 'x'"),
        (ValueError("a record"), "ValueError"),
    ):

        def fails(*_, cause=cause):
            yield on_ray._versions()
            raise RayTaskError("train", "traceback", cause)

        cluster._train.remote = fails
        with pytest.raises(EquipoiseError) as caught:
            finished(SMALL, tmp_path / "s.sqlite", cluster)
        assert str(caught.value) == f"ray=here:1: a node cannot run the task: {words}"


def test_what_cannot_be_a_cluster(tmp_path, monkeypatch):
    for address in ("here", "ray://here:10001", "local"):
        with pytest.raises(InvalidValue, match=f"ray={address} is not HOST:PORT"):
            sweep_for_users(SMALL, store=tmp_path / "s.sqlite", ray=address)
    with pytest.raises(InvalidValue, match="workers=2 with ray=auto"):
        sweep_for_users(SMALL, store=tmp_path / "s.sqlite", ray="auto", workers=2)
    monkeypatch.setitem(sys.modules, "equipoise.sweeps.ray", None)
    with pytest.raises(InvalidValue, match=r"needs Ray: pip install 'equipoise\[ray\]'"):
        sweep_for_users(SMALL, store=tmp_path / "s.sqlite", ray="auto")
    assert not (tmp_path / "s.sqlite").exists()


def test_only_what_is_missing_is_sent(cluster, tmp_path):
    """A stack of which some runs are finished goes out with their keys."""
    store = tmp_path / "s.sqlite"
    finished({**SMALL, "clip": 0.1}, store)
    sent = []
    remote = cluster._train.remote
    cluster._train.remote = lambda versions, work, parcels: (
        sent.append(loads(work)[1]) or remote(versions, work, parcels)
    )
    assert finished(SMALL, store, cluster).done == 48
    assert len(sent) == len(stacks_of(grid(SMALL).cells))
    known = {key_of(resolved(run)) for run in grid({**SMALL, "clip": 0.1}).settings}
    assert set().union(*sent) == known
