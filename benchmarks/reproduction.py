"""The paper's experiments, reduced to what a desktop machine can do: five tasks, every figure.

    make reproduction-all                            # resumable at any moment
    python benchmarks/reproduction.py --task femnist-narrow --workers 2
    python benchmarks/reproduction.py --hours        # what is done
    python benchmarks/reproduction.py --report       # figures and tables, from what is done
    python benchmarks/reproduction.py --keep         # what is done, into benchmarks/results

Stores go to `reproduction/`, one for each task; `--report` takes those of `benchmarks/results`
where there are none. First the grid over local steps, budgets and clips; then, at the best local
steps of that grid, fewer and more iterations; then, for FEMNIST, Table 1's own numbers. Conventions
are kept apart: Lemma 1 with its constant read record-style throughout, and an exact epsilon for one
client, and for one record, beside it.
"""

import argparse
import csv
import lzma
import math
import os
import shutil
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from equipoise import report, sweep
from equipoise.paper.second_stage import CLIP, other_iterations, swept_case
from equipoise.reports.study import NOT_PRIVATE
from equipoise.settings import Run
from equipoise.sweeps.grid import grid
from equipoise.sweeps.merge import merge
from equipoise.sweeps.stacks import key_of, resolved
from equipoise.sweeps.sweep import Progress

ROOT = Path(__file__).parent.parent
os.environ.setdefault("EQUIPOISE_DATA", str(ROOT.parent / "shared" / "data"))
STORES = ROOT / "reproduction"
KEPT = ROOT / "benchmarks" / "results" / "reproduction"
BOTH = ["dp-fedavg", "dp-scaffnew"]
EPSILONS = [3.3, 2.0, 1.0, 0.5]
AT_OTHER_CLIPS = [3.3]  # budgets at clips other than that of the figures by budget
LEMMA = {"noise_rule": "lemma1", "v": "record-style"}

FIRST: dict[str, dict[str, Any]] = {
    "femnist-narrow": {
        "eta": 0.1,
        "iterations": 1000,
        "local_steps": [1, 8, 25, 100, 250, 1000],
        "clips": [1.0, 3.0, 10.0, 50.0, 100.0],
        "seeds": [0, 1, 2],
        "record": {"sampling_rate": 0.03, "eta": 1.0, "iterations": 200, "local_steps": 10},
    },
    "cifar10-narrow": {
        "eta": 0.1,
        "batch": 16,
        "iterations": 500,
        "local_steps": [1, 10, 50, 125, 500],
        "clips": [1.0, 3.0, 10.0, 50.0, 100.0],
        "seeds": [0, 1, 2],
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
        "local_steps": [1, 10, 100, 300],
        "clips": [1.0, 3.0, 10.0, 50.0, 100.0],
        "seeds": [0, 1, 2],
        "record": {"sampling_rate": 0.01, "eta": 10.0, "iterations": 60, "local_steps": 10},
    },
    "hippocampus-narrow": {
        "eta": 0.1,
        "batch": 2,  # the paper has 1, of which a step takes three times as long
        "iterations": 60,
        "local_steps": [1, 5, 15, 60],
        "clips": [0.1, 0.3, 1.0, 10.0, 50.0],
        "seeds": [0, 1, 2],
        "record": {
            "sampling_rate": 0.1,
            "batch": None,
            "eta": 0.1,
            "iterations": 30,
            "local_steps": 5,
        },
    },
    "deepdrid-narrow": {
        "eta": 0.03,
        "iterations": 120,
        "local_steps": [1, 4, 12, 40, 120],
        "clips": [0.1, 0.3, 1.0, 10.0, 50.0],
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
    "variant": [{}, {"iterations": 480, "seeds": list(range(8, 32))}],
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
SHOWN = ("lemma1 v=record-style", "exact")  # of networks, and of convex tasks
EVERYWHERE_WORDS = "every ε and C"
TABLE_1_NAME = "femnist-table-1"
COIN_NAME = "femnist-coin"
COIN = {  # Algorithm 2's coin, beside the periodic runs of the first grid
    "task": "femnist-narrow",
    "algorithm": BOTH,
    "schedule": "coin",
    "eta": 0.1,
    "iterations": 1000,
    "local_steps": [1, 8, 25, 100, 250],
    "seeds": [0, 1, 2],
    "variant": [{"epsilon": math.inf}, {"epsilon": [3.3, 1.0], "clip": 10.0, **LEMMA}],
}
NETWORKS = [*FIRST, TABLE_1_NAME, COIN_NAME]
REPORTED = ["networks", "schedules", TABLE_1_NAME, *CONVEX]


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
            {"epsilon": EPSILONS, "clip": CLIP, **LEMMA},
            {"epsilon": AT_OTHER_CLIPS, "clip": [C for C in clips if C != CLIP], **LEMMA, **few},
            {"epsilon": 3.3, "clip": clips[:2], "local_steps": some, **few},
            {
                "epsilon": EPSILONS,
                "clip": 1.0,
                "unit": "record",
                "weights": "equal",
                **record,
                **few,
            },
        ],
    }


def second(task: str) -> dict[str, Any] | None:
    """Other numbers of iterations at the best local steps of the first grid: the paper's figures of
    the error against T. The whole of the first grid must be there."""
    if left(first(task), store_of(task)):
        return None
    given = FIRST[task]
    case = swept_case(store_of(task), task, "client", LEMMA["v"])
    variants = other_iterations(case, CLIP)
    return {
        "name": f"{task}-iterations",
        "task": task,
        **{key: given[key] for key in ("eta", "batch") if key in given},
        "seeds": given["seeds"][:3],
        "variant": [v | (LEMMA if v["epsilon"] < math.inf else {}) for v in variants],
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
    """What is done, and how long it took."""
    for store in sorted(STORES.glob("*.sqlite")):
        with sqlite3.connect(store) as db:
            runs, spent = db.execute("SELECT count(*), sum(seconds) FROM runs").fetchone()
        print(f"{store.stem}: {runs} runs, {(spent or 0) / 3600:.2f} core-hours")


def keep() -> None:
    """Small copies of the stores of networks; the others are made again in minutes."""
    KEPT.mkdir(exist_ok=True)
    for store in [store_of(name) for name in NETWORKS if store_of(name).exists()]:
        copy = store.with_suffix(".copy")
        copy.unlink(missing_ok=True)
        with sqlite3.connect(store) as db:
            db.execute("VACUUM INTO ?", (str(copy),))
        packed = KEPT / f"{store.name}.xz"
        packed.write_bytes(lzma.compress(copy.read_bytes(), preset=9))
        copy.unlink()
        print(f"{packed.relative_to(ROOT)}: {packed.stat().st_size:,} bytes")


def unpack() -> None:
    """The kept stores, where no newer one is."""
    STORES.mkdir(exist_ok=True)
    for packed in KEPT.glob("*.sqlite.xz"):
        store = STORES / packed.stem
        if not store.exists():
            store.write_bytes(lzma.decompress(packed.read_bytes()))
            known_here(store)


def known_here(store: Path) -> None:
    """Give every run the key that it has on this machine. Keys hash the records as a task prepares
    them, and the last digits of a picture that was made smaller differ between processors."""
    with closing(sqlite3.connect(store)) as db, db:
        rows = db.execute("SELECT key, json_extract(result, '$.run') FROM runs").fetchall()
        keys = [(key_of(Run.model_validate_json(run)), key) for key, run in rows]
        for table in ("runs", "curves"):
            db.executemany(f"UPDATE {table} SET key = ? WHERE key = ?", keys)


def merged(name: str, stores: list[str]) -> None:
    """One store of several, made anew."""
    for path in (store_of(name), f"{store_of(name)}-wal", f"{store_of(name)}-shm"):
        Path(path).unlink(missing_ok=True)
    if done := [path for path in map(store_of, stores) if path.exists()]:
        merge(done, store_of(name))


def write_reports() -> None:
    """One of all networks side by side, one of both schedules, and one of every other store."""
    unpack()
    merged("networks", list(FIRST))
    merged("schedules", ["femnist-narrow", COIN_NAME])
    for store in filter(Path.exists, map(store_of, REPORTED)):
        shutil.rmtree(STORES / store.stem, ignore_errors=True)
        print(f"{report(store, STORES / store.stem)}\n")


def verdicts() -> None:
    """How often each of the paper's observations holds, from the reports."""
    cells: dict[str, dict[str, list[str]]] = {}
    for name in [name for name in REPORTED if name != "schedules"]:
        path = STORES / name / "tables" / "observations.csv"
        for line in csv.DictReader(path.open(encoding="utf-8")) if path.exists() else ():
            column = line["task"] if name != TABLE_1_NAME else name
            if line["convention"] in (*SHOWN, NOT_PRIVATE) and line["where"] != EVERYWHERE_WORDS:
                row = f"{line['number']} {line['algorithm']}"
                cells.setdefault(row, {}).setdefault(column, []).append(line["verdict"])
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    print(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for row in sorted(cells):
        counts = [Counter(cells[row].get(column, [])) for column in columns]
        print(f"| {row} | {' | '.join(counted(count) for count in counts)} |")


def counted(verdicts: Counter[str]) -> str:
    """Holds, does not hold, inconclusive."""
    named = [("holds", "+"), ("does not hold", "−"), ("inconclusive", "?")]
    return " ".join(f"{verdicts[name]}{sign}" for name, sign in named if verdicts[name]) or "–"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [*CONVEX, *FIRST]
    parser.add_argument("--task", nargs="+", choices=known, default=known)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first", action="store_true", help="the first grid alone")
    instead = {"hours": hours, "report": write_reports, "verdicts": verdicts, "keep": keep}
    for name, act in instead.items():
        parser.add_argument(f"--{name}", action="store_true", help=act.__doc__)
    arguments = parser.parse_args()
    for name, act in instead.items():
        if getattr(arguments, name):
            act()
            sys.exit()
    torch.set_num_threads(1)
    unpack()
    for task in [task for task in arguments.task if task in CONVEX]:
        run(convex(task), store_of(task), arguments.workers)
    networks = [task for task in arguments.task if task in FIRST]
    for task in networks:
        run(first(task), store_of(task), arguments.workers)
    for task in networks if not arguments.first else []:
        run(second(task), store_of(task), arguments.workers)
    if "femnist-narrow" in arguments.task and not arguments.first:
        run({"name": "coin", **COIN}, store_of(COIN_NAME), arguments.workers)
        run({"name": "table-1", **TABLE_1}, store_of(TABLE_1_NAME), arguments.workers)


if __name__ == "__main__":
    main()
