"""The paper's experiments, reduced to about twelve core-hours: all five tasks, in every figure.

    make reproduction-all                            # resumable at any moment
    python benchmarks/reproduction.py --task femnist-narrow --workers 2
    python benchmarks/reproduction.py --hours        # what is done, and what is left

Stores go to `reproduction/`, one for each task. First the grid over local steps, budgets and clips;
then, at the best local steps of that grid, fewer and more iterations; then, for FEMNIST, Table 1's
own numbers. Conventions are kept apart: Lemma 1 with its constant read record-style throughout, and
an exact epsilon for one client, and for one record, beside it.
"""

import argparse
import json
import math
import os
import sqlite3
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from equipoise import sweep
from equipoise.algorithms.schedule import divisors_of
from equipoise.sweeps.grid import grid
from equipoise.sweeps.stacks import key_of, resolved
from equipoise.sweeps.sweep import Progress

ROOT = Path(__file__).parent.parent
os.environ.setdefault("EQUIPOISE_DATA", str(ROOT.parent / "shared" / "data"))
STORES = ROOT / "reproduction"
BOTH = ["dp-fedavg", "dp-scaffnew"]
EPSILONS = [3.3, 2.0, 1.0, 0.5]
LEMMA = {"noise_rule": "lemma1", "v": "record-style"}

FIRST: dict[str, dict[str, Any]] = {
    "femnist-narrow": {
        "eta": 0.1,
        "iterations": 1000,
        "local_steps": [1, 8, 25, 100, 250, 1000],
        "clips": [1.0, 3.0, 10.0, 50.0, 100.0],
        "seeds": [0, 1, 2, 3, 4],
        "record": {"sampling_rate": 0.03, "eta": 1.0, "iterations": 200, "local_steps": 10},
    },
    "cifar10-narrow": {
        "eta": 0.1,
        "batch": 16,
        "iterations": 500,
        "local_steps": [1, 10, 50, 125, 500],
        "clips": [1.0, 3.0, 10.0, 50.0, 100.0],
        "seeds": [0, 1, 2, 3, 4],
        "record": {
            "sampling_rate": 0.02,
            "batch": None,
            "eta": 0.5,
            "iterations": 100,
            "local_steps": 10,
        },
    },
    "reddit-narrow": {
        "eta": 10.0,
        "iterations": 300,
        "local_steps": [1, 10, 30, 100, 300],
        "clips": [3.0, 10.0, 50.0],
        "seeds": [0, 1, 2],
        "record": {"sampling_rate": 0.01, "eta": 10.0, "iterations": 60, "local_steps": 10},
    },
    "hippocampus-narrow": {
        "eta": 0.1,
        "iterations": 60,
        "local_steps": [1, 5, 15, 60],
        "clips": [1.0, 10.0, 50.0],
        "seeds": [0, 1, 2],
        "record": {"sampling_rate": 0.1, "eta": 0.1, "iterations": 30, "local_steps": 5},
    },
    "deepdrid-narrow": {
        "eta": 0.03,
        "iterations": 60,
        "local_steps": [1, 5, 15, 60],
        "clips": [10.0, 50.0],
        "seeds": [0, 1, 2],
        "record": {"sampling_rate": 0.02, "eta": 0.03, "iterations": 30, "local_steps": 5},
    },
}
CONVEX: dict[str, dict[str, Any]] = {  # the theorem's own ground, at an exact epsilon
    "quadratic": {"clients": 20},
    "breast-cancer": {"clients": 20, "split": "dirichlet:0.5"},
}
EVERYWHERE = {
    "algorithm": BOTH,
    "trust": "secure-aggregation",
    "iterations": [24, 60, 120, 240, 480],
    "local_steps": "divisors",
    "epsilon": [10.0, 3.3, 2.0, 1.0, 0.5, math.inf],
    "clip": [0.03, 0.1, 0.3, 1.0, 3.0],
    "seeds": list(range(8)),
}
TABLE_1 = {  # FEMNIST at the paper's own numbers: T, step size, batch and a clip of Table 1
    "task": "femnist-narrow",
    "algorithm": "dp-fedavg",
    "eta": 0.01,
    "iterations": 10_000,
    "local_steps": [1, 10, 100, 500, 2500, 10_000],
    "clip": 10.0,
    "seeds": [0, 1, 2],
    "epsilon": [3.3, 2.0, 1.0, 0.5, math.inf],
    **LEMMA,
}


def convex(task: str) -> dict[str, Any]:
    return {"name": f"{task}-exact", "task": task, **EVERYWHERE, **CONVEX[task]}


def store_of(task: str) -> Path:
    return STORES / f"{task}.sqlite"


def first(task: str) -> dict[str, Any]:
    """Local steps x budgets x clips, and the conventions beside it."""
    given = dict(FIRST[task])
    clips, record = given.pop("clips"), given.pop("record")
    few = {"seeds": given["seeds"][:3]}
    some = given["local_steps"][1::2]
    return {
        "name": task,
        "task": task,
        "algorithm": BOTH,
        **given,
        "variant": [
            {"epsilon": math.inf},
            {"epsilon": EPSILONS, "clip": clips, **LEMMA},
            {"epsilon": 3.3, "clip": clips[:2], "local_steps": some, **few},
            {"epsilon": EPSILONS, "clip": 1.0, "unit": "record", **record, **few},
        ],
    }


def best_steps(task: str) -> dict[tuple[str, float, float], int]:
    """By algorithm, epsilon and clip the local steps with the least mean error in the first grid;
    of runs that diverged the error is 1."""
    T, errors = FIRST[task]["iterations"], defaultdict(lambda: defaultdict(list))
    with sqlite3.connect(store_of(task)) as db:
        rows = db.execute(
            "SELECT algorithm, epsilon, clip_norm, local_steps, test_error, result FROM runs "
            "WHERE iterations = ? AND unit = 'client'",
            (T,),
        )
        for algorithm, epsilon, clip, steps, error, result in rows:
            rule = json.loads(result)["run"]["noise_rule"]
            if rule == "lemma1" or epsilon == math.inf:
                where = algorithm, float(epsilon), float(clip)
                errors[where][steps].append(1.0 if error is None else error)
    return {
        where: min(cells, key=lambda steps: statistics.fmean(cells[steps]))
        for where, cells in errors.items()
    }


def second(task: str) -> dict[str, Any] | None:
    """Other numbers of iterations at about the best local steps of the first grid: the paper's
    figures of the error against T. The whole of the first grid must be there."""
    if left(first(task), store_of(task)):
        return None
    given = dict(FIRST[task])
    T, clips = given["iterations"], given["clips"]
    clip = clips[len(clips) // 2]
    variants = []
    for (algorithm, epsilon, C), steps in sorted(best_steps(task).items()):
        if epsilon < math.inf and clip != C:
            continue
        for iterations in (T // 10, T // 4, T // 2, 2 * T):
            near = min(divisors_of(iterations), key=lambda n: abs(math.log(n / steps)))
            variant = {
                "algorithm": algorithm,
                "epsilon": epsilon,
                "iterations": iterations,
                "local_steps": near,
            }
            variants.append(variant | ({"clip": C, **LEMMA} if epsilon < math.inf else {}))
    common = {key: given[key] for key in ("eta", "batch") if key in given}
    return {
        "name": f"{task}-iterations",
        "task": task,
        **common,
        "seeds": given["seeds"][:3],
        "variant": variants,
    }


def left(document: dict[str, Any], store: Path) -> int:
    """How many runs of a grid are not in the store."""
    keys = {key_of(resolved(settings)) for settings in grid(document).settings}
    if not store.exists():
        return len(keys)
    with sqlite3.connect(store) as db:
        return len(keys - {key for (key,) in db.execute("SELECT key FROM runs")})


def shown(steps: Any) -> Any:
    """Progress, a line every so often."""
    said = 0
    for step in steps:
        if not isinstance(step, Progress):
            continue
        if step.done - said >= 50 or step.done == step.total:
            said = step.done
            hours = "?" if step.left is None else f"{step.left / 3600:.1f}"
            print(
                f"  {step.done} of {step.total}, {step.failed} failed, {hours} h left", flush=True
            )
        yield step


def run(document: dict[str, Any] | None, store: Path, workers: int) -> None:
    if document is None:
        print(f"{store.stem}: the first grid is not finished")
        return
    print(f"{document['name']}: {left(document, store)} runs to go", flush=True)
    sweep(document, store=store, workers=workers, watch=shown)


def hours() -> None:
    for store in sorted(STORES.glob("*.sqlite")):
        with sqlite3.connect(store) as db:
            runs, spent = db.execute("SELECT count(*), sum(seconds) FROM runs").fetchone()
        print(f"{store.stem}: {runs} runs, {(spent or 0) / 3600:.2f} core-hours")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [*CONVEX, *FIRST]
    parser.add_argument("--task", nargs="+", choices=known, default=known)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first", action="store_true", help="the first grid alone")
    parser.add_argument("--hours", action="store_true", help="say what is done, and stop")
    arguments = parser.parse_args()
    if arguments.hours:
        hours()
        sys.exit()
    torch.set_num_threads(1)
    for task in [task for task in arguments.task if task in CONVEX]:
        run(convex(task), store_of(task), arguments.workers)
    for task in [task for task in arguments.task if task in FIRST]:
        run(first(task), store_of(task), arguments.workers)
        if not arguments.first:
            run(second(task), store_of(task), arguments.workers)
    if "femnist-narrow" in arguments.task and not arguments.first:
        run({"name": "table-1", **TABLE_1}, store_of("femnist-table-1"), arguments.workers)


if __name__ == "__main__":
    main()
