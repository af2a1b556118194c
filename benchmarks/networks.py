"""How good are plans for networks? Each against a grid on the private clients, which no planner
sees.

    python benchmarks/networks.py            # resumable; lines go to benchmarks/results/
    python benchmarks/networks.py --table

After a change of the planner delete the lines "plan" of results/networks.jsonl; brute force does
not depend on it. Told are test errors after training: of the plan (mean of 3 seeds of the noise),
of the best of the grid (its best three of one seed, again with two more: the best mean), and of the
public pool alone.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

import equipoise
from equipoise.tasks import Task, TaskOptions, load_task
from equipoise.tasks.public import public_only

ROOT = Path(__file__).parent.parent
os.environ.setdefault("EQUIPOISE_DATA", str(ROOT.parent / "shared" / "data"))
RESULTS = Path(__file__).parent / "results" / "networks.jsonl"
SEEDS = range(3)


class Case(NamedTuple):
    task: str
    unit: str
    epsilon: float
    public_records: int
    clients: int | None = None
    split: str | None = None

    @property
    def trust(self) -> str:
        return "secure-aggregation" if self.unit == "client" else "local"

    @property
    def asked(self) -> dict[str, Any]:
        names = ("task", "unit", "epsilon", "public_records", "clients", "split", "trust")
        return {name: getattr(self, name) for name in names}


CASES = [
    *(Case("digits-mlp", "client", epsilon, 40) for epsilon in (1.0, 3.3, 10.0)),
    *(Case("digits-mlp", "record", epsilon, 40, clients=5) for epsilon in (1.0, 3.3, 8.0)),
    *(Case("femnist-narrow", "record", epsilon, 2000) for epsilon in (2.0, 8.0)),
    *(Case("femnist-narrow", "client", epsilon, 2000, 105, "natural") for epsilon in (8.0,)),
]


@lru_cache(maxsize=1)
def loaded(name: str, unit: Any, records: int, clients: int | None, split: str | None) -> Task:
    options = TaskOptions(clients=clients, split=split, public_records=records, unit=unit)
    return load_task(name, options)


def task_of(case: Case) -> Task:
    return loaded(case.task, case.unit, case.public_records, case.clients, case.split)


def grid(case: Case) -> Iterator[dict[str, Any]]:
    """Settings to try: cold and warm."""
    digits = case.task == "digits-mlp"
    for warm in (False, True):
        if case.unit == "client":
            paces = [(16, 4), (4, 16), (16, 1)]
            paces += [(4, 4), (64, 1), (16, 2)] if digits else []
            etas = (0.5, 1.5, 4.0) if digits else (0.03,)
            clips = (0.3, 1.0, 3.0)
            for (tau, K), C, eta in product(paces, clips, etas):
                yield {"local_steps": tau, "iterations": tau * K, "clip": C, "eta": eta} | {
                    "warm_start": warm
                }
            continue
        steps, clips = ((8, 16, 32, 64), (0.3, 1.0, 3.0)) if digits else ((64, 256), (1.0,))
        distances = (
            (3.0, 9.0, 27.0, 81.0) if digits else (9.0, 27.0, 81.0) if warm else (81.0, 243.0)
        )
        for T, C, distance in product(steps, clips, distances):
            rate = {} if digits else {"sampling_rate": float(f"{10 / T:.3g}")}
            eta = distance / (T * C)
            yield {"iterations": T, "clip": C, "eta": eta, "warm_start": warm, **rate}


def trained(case: Case, settings: dict[str, Any], seed: int) -> dict[str, float]:
    """The test errors of what a run may return."""
    promise = {name: case.asked[name] for name in ("unit", "epsilon", "trust")}
    result = equipoise.train(
        task=task_of(case),
        **promise,
        **{**settings, "returns": "average"},
        simulate_noise_seed=seed,
    )
    point = result.curve[-1]
    found = {returns: point.of(returns)[0] for returns in ("last", "average")}
    return {name: 1.0 if error is None else float(error) for name, error in found.items()}


def key(case: Case, kind: str, settings: Any = None, seed: int = 0) -> str:
    return json.dumps([*case, kind, settings, seed])


def lines() -> dict[str, Any]:
    if not RESULTS.exists():
        return {}
    rows = map(json.loads, RESULTS.read_text().splitlines())
    return {row["key"]: row for row in rows}


def write(name: str, **values: Any) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps({"key": name, **values}) + "\n")


def tried(case: Case, settings: dict[str, Any], seed: int, known: dict[str, Any]) -> dict[str, Any]:
    name = key(case, "run", settings, seed)
    if name not in known:
        known[name] = {"key": name, **trained(case, settings, seed)}
        write(**{"name": name, **{k: v for k, v in known[name].items() if k != "key"}})
    return known[name]


def brute_force(case: Case, known: dict[str, Any]) -> dict[str, Any]:
    """The best of the grid: its settings, and its mean error."""
    once = [
        (tried(case, settings, 0, known)[returns], returns, settings)
        for settings in grid(case)
        for returns in ("last", "average")
    ]
    best = []
    for _, returns, settings in sorted(once, key=lambda each: each[0])[:3]:
        errors = [tried(case, settings, seed, known)[returns] for seed in SEEDS]
        best.append((sum(errors) / len(errors), {**settings, "returns": returns}))
    error, settings = min(best, key=lambda each: each[0])
    return {"error": error, "settings": settings, "runs": len(once) // 2}


FOLLOWED = ("local_steps", "iterations", "clip", "eta", "gamma", "warm_start", "sampling_rate")


def planned(case: Case, known: dict[str, Any]) -> dict[str, Any]:
    name = key(case, "plan")
    if name not in known:
        start = time.process_time()
        plan = equipoise.plan(**case.asked)
        seconds = time.process_time() - start
        assert plan.chosen
        assert plan.settings
        settings = {name: getattr(plan.settings, name) for name in (*FOLLOWED, "algorithm")}
        settings = {name: value for name, value in settings.items() if value is not None}
        errors = [trained(case, settings, seed)[plan.settings.returns] for seed in SEEDS]
        predicted = plan.chosen.predicted
        known[name] = {
            "error": sum(errors) / len(errors),
            "settings": {**settings, "returns": plan.settings.returns},
            "seconds": seconds,
            "predicted": [predicted.test_error, *(predicted.interval("test_error") or ())],
            "verdict": plan.verdict,
        }
        write(name, **known[name])
    return known[name]


def table(known: dict[str, Any]) -> None:
    print("| task | unit | ε | public alone | best of the grid | plan | predicted | verdict | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        alone, brute, plan = (known.get(key(case, kind)) for kind in ("alone", "brute", "plan"))
        if not (alone and brute and plan):
            continue
        mean, low, high = plan["predicted"]
        clients = f", {case.clients} clients" if case.clients else ""
        print(
            f"| {case.task}{clients} | {case.unit} | {case.epsilon:g} | {alone['error']:.3f} | "
            f"{brute['error']:.3f} | {plan['error']:.3f} | {mean:.2f} [{low:.2f}, {high:.2f}] | "
            f"{plan['verdict']} | {plan['seconds']:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--only", default="", help="cases whose line contains these words")
    parser.add_argument("--part", choices=("brute", "plan", "both"), default="both")
    arguments = parser.parse_args()
    known = lines()
    if arguments.table:
        table(known)
        return
    torch.set_num_threads(1)
    for case in CASES:
        if arguments.only not in json.dumps(case):
            continue
        start = time.process_time()
        if key(case, "alone") not in known:
            alone = public_only(task_of(case))
            write(key(case, "alone"), error=alone.test_error if alone else math.nan)
        if key(case, "brute") not in known and arguments.part != "plan":
            write(key(case, "brute"), **brute_force(case, known))
        if arguments.part != "brute":
            planned(case, known)
        print(*case, f"{time.process_time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
