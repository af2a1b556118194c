"""Which algorithm, when? Each planned by itself, by the same planner, and then trained.

    make bench-algorithms       # resumable; a line for every case goes to
    benchmarks/results/algorithms.jsonl python benchmarks/algorithms.py --table

A case is a problem, a unit, a budget and an algorithm. `plan` chooses all settings on public
information; `train` follows the plan with SEEDS noise seeds on the private clients. Told is the
excess loss on the private clients (of networks: the test error) over that of the best algorithm for
the same problem and budget, and how far its 95 % interval reaches (Student's t, over seeds).
"""

import argparse
import json
import math
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t

from equipoise import plan, train
from equipoise.algorithms import ALGORITHMS
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.public import minimiser

ROOT = Path(__file__).parent.parent
os.environ.setdefault("EQUIPOISE_DATA", str(ROOT.parent / "shared" / "data"))
RESULTS = Path(__file__).parent / "results" / "algorithms.jsonl"
SHARED = {"trust": "secure-aggregation"}
RECORD = {"unit": "record"}
BUDGETS = (0.5, 1.0, 3.3, 10.0)
PROBLEMS: dict[str, dict[str, Any]] = {
    "breast-cancer, 20 equal": {"task": "breast-cancer", "clients": 20, "l2": 1e-3, **SHARED},
    "breast-cancer, 20 skewed": {
        "task": "breast-cancer",
        "clients": 20,
        "split": "dirichlet:0.1",
        "l2": 1e-3,
        **SHARED,
    },
    "digits, 100 equal": {"task": "digits", "clients": 100, "l2": 1e-3, **SHARED},
    "digits, 20 skewed": {
        "task": "digits",
        "clients": 20,
        "split": "dirichlet:0.1",
        "l2": 1e-3,
        **SHARED,
    },
    "quadratic, 20 own truths": {"task": "quadratic", "clients": 20, **SHARED},
    "digits-mlp, 100 equal": {"task": "digits-mlp", "clients": 100, **SHARED},
    "digits-mlp, 20 skewed": {
        "task": "digits-mlp",
        "clients": 20,
        "split": "dirichlet:0.1",
        **SHARED,
    },
    "breast-cancer, 5 equal, record": {
        "task": "breast-cancer",
        "clients": 5,
        "l2": 1e-3,
        "noise_in": "gradient",
        **RECORD,
    },
    "digits, 5 skewed, record": {
        "task": "digits",
        "clients": 5,
        "split": "dirichlet:0.1",
        "l2": 1e-3,
        "noise_in": "gradient",
        **RECORD,
    },
    "digits-mlp, 5 equal, record": {"task": "digits-mlp", "clients": 5, **RECORD},
}
SEEDS, FEW_SEEDS = 24, 5  # few of networks


def algorithms(problem: str) -> list[str]:
    unit = PROBLEMS[problem].get("unit", "client")
    return [name for name, spec in ALGORITHMS.items() if unit in spec.units]


def measured(problem: str, epsilon: float, algorithm: str) -> dict[str, Any]:
    made = plan(**PROBLEMS[problem], epsilon=epsilon, algorithm=algorithm)
    assert made.settings
    settings = made.settings
    network = settings.task == "digits-mlp"
    runs = [
        train(settings.model_copy(update={"simulate_noise_seed": seed}))
        for seed in range(FEW_SEEDS if network else SEEDS)
    ]
    found = {
        "plan": made.chosen.model_dump(mode="json"),
        "errors": [run.test_error for run in runs],
    }
    if not network:
        task = load_task(settings.task, TaskOptions.of(settings))
        least = task.clients.loss(minimiser(task.clients, task.x0, 1e-8))
        left = [float(task.clients.loss(torch.from_numpy(run.x)) - least) for run in runs]
        found["excess"] = left
    return found


def done() -> dict[tuple, dict]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {tuple(line["case"]): line for line in map(json.loads, lines)}


def table() -> str:
    found, lines, ratios = done(), [], defaultdict(list)
    for problem in PROBLEMS:
        names = algorithms(problem)
        lines += [
            f"\n**{problem}**\n",
            f"| ε | best leaves | {' | '.join(names)} |",
            "|---" * (len(names) + 2) + "|",
        ]
        for epsilon in BUDGETS:
            values = {
                name: np.array(line.get("excess") or line["errors"])
                for name in names
                if (line := found.get((problem, epsilon, name)))
            }
            if not values:
                continue
            best = min(values, key=lambda name: values[name].mean())
            least = values[best].mean()
            cells = []
            for name in names:
                if name not in values:
                    cells.append("")
                    continue
                mean, half = values[name].mean() / least, _half(values[name]) / least
                ratios[name].append(mean)
                cells.append(f"{mean:.2f} ± {half:.2f}" + (" *" if name == best else ""))
            lines.append(f"| {epsilon:g} | {least:.3g} | {' | '.join(cells)} |")
    lines += [
        "\n**over the best of each row**\n",
        "| algorithm | rows | median | p90 | within 5 % of the best |",
        "|---|---|---|---|---|",
    ]
    for name, of_rows in ratios.items():
        near = np.mean(np.array(of_rows) <= 1.05)
        lines.append(
            f"| {name} | {len(of_rows)} | {np.median(of_rows):.2f} | "
            f"{np.quantile(of_rows, 0.9):.2f} | {near:.0%} |"
        )
    return "\n".join(lines)


def _half(values: np.ndarray) -> float:
    n = len(values)
    if n < 2 or not np.isfinite(values).all():
        return math.nan
    return float(t.ppf(0.975, n - 1) * values.std(ddof=1) / math.sqrt(n))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="print what is done, and stop")
    parser.add_argument("--only", default="", help="words in the names of problems")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    finished = done()
    for problem in () if arguments.table else PROBLEMS:
        if arguments.only not in problem:
            continue
        for epsilon in BUDGETS:
            for name in algorithms(problem):
                if (problem, epsilon, name) in finished:
                    continue
                line = {"case": [problem, epsilon, name], **measured(problem, epsilon, name)}
                with RESULTS.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                worth = np.mean(line.get("excess") or line["errors"])
                print(problem, epsilon, name, f"{worth:.4g}", flush=True)
    print(table())


if __name__ == "__main__":
    main()
