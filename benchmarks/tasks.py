"""Do the paper's tasks learn? Test error before and after training without privacy, on the data
that is at hand.

    make bench-tasks              # resumable; a line for every run goes to
    benchmarks/results/tasks.jsonl python benchmarks/tasks.py --table

One thread. Iterations and step sizes are what reaches something in minutes on such a machine; the
paper's own are in Table 1.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

import torch

from equipoise import train

ROOT = Path(__file__).parent.parent
os.environ.setdefault("EQUIPOISE_DATA", str(ROOT.parent / "shared" / "data"))
RESULTS = Path(__file__).parent / "results" / "tasks.jsonl"
ALGORITHMS = ("dp-fedavg", "dp-scaffnew")
RUNS = {
    "femnist": {"iterations": 1000, "local_steps": 20, "eta": 0.1},
    "cifar10": {"iterations": 1000, "local_steps": 20, "eta": 0.1},
    "reddit": {"iterations": 160, "local_steps": 20, "eta": 5.0},
    "hippocampus": {"iterations": 100, "local_steps": 10, "eta": 0.1},
    "deepdrid": {"iterations": 100, "local_steps": 10, "eta": 0.03},
    "femnist-narrow": {"iterations": 1000, "local_steps": 25, "eta": 0.1},
    "cifar10-narrow": {"iterations": 500, "local_steps": 10, "eta": 0.1, "batch": 16},
    "reddit-narrow": {"iterations": 300, "local_steps": 10, "eta": 10.0},
    "hippocampus-narrow": {"iterations": 60, "local_steps": 5, "eta": 0.1},
    "deepdrid-narrow": {"iterations": 120, "local_steps": 4, "eta": 0.03},
}


def measured(task: str, algorithm: str) -> dict:
    start = time.process_time()
    result = train(task=task, algorithm=algorithm, epsilon=math.inf, **RUNS[task])
    return {
        "task": task,
        "algorithm": algorithm,
        **RUNS[task],
        "error_name": result.error_name,
        "parameters": result.dimension,
        "constant": result.baseline_error,
        "before": result.curve[0].test_error,
        "after": result.test_error,
        "mean over clients": result.client_error,
        "minutes": (time.process_time() - start) / 60,
    }


def done() -> dict[tuple, dict]:
    lines = (
        [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    )
    return {(line["task"], line["algorithm"]): line for line in lines}


def table() -> str:
    lines = [
        "| task | parameters | algorithm | iterations (local steps) | step size | error before | "
        "after | mean over clients | "
        "without training, at best | minutes |",
        "|" + " --- |" * 10,
    ]
    for line in done().values():
        errors = (line[key] for key in ("before", "after", "mean over clients", "constant"))
        lines.append(
            f"| {line['task']} | {line['parameters']:,} | {line['algorithm']} | "
            f"{line['iterations']} ({line['local_steps']}) | "
            f"{line['eta']:g} | {' | '.join(f'{error:.3f}' for error in errors)} | "
            f"{line['minutes']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--table", action="store_true", help="print the table of what is done, and stop"
    )
    parser.add_argument("--tasks", nargs="+", choices=list(RUNS), default=list(RUNS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for task in () if arguments.table else arguments.tasks:
        for algorithm in ALGORITHMS:
            if (task, algorithm) not in done():
                line = measured(task, algorithm)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(line, flush=True)
    print(table())


if __name__ == "__main__":
    main()
