"""Is a federated model that was tuned at home as good as the better of its two ends?

    python benchmarks/at_home.py            # resumable; a line for every case goes to
    benchmarks/results/at_home.jsonl python benchmarks/at_home.py --table

Three problems, few large silos or many small ones, two budgets: twelve cases. Unit record, local
trust, replace-one, delta = 1e-5, noise in the gradients, from the model of 60 public records. Every
silo (at most ten of a case; of a9a three) tunes every federated model (5 noise seeds; a9a: 3) with
`equipoise.adapt`. "Alone" is each of them by itself, its l2 by cross-validation; "federated" the
model as it is. Told are test errors in per cent, means over silos and noise seeds, and how far the
tuned model is behind the better of the two, with half of a 95 % interval over seeds (Student's t).
"""

import argparse
import json
import math
import os
from pathlib import Path

import numpy as np
import torch
from scipy.stats import t

import equipoise
from equipoise.adapting import EXACT
from equipoise.planning.at_home import cross_validated, tuned
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.task import Table

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("EQUIPOISE_DATA", ROOT.parent / "shared" / "data"))
RESULTS = Path(__file__).parent / "results" / "at_home.jsonl"
WARM = {"unit": "record", "warm_start": True, "public_records": 60}
A9A = {
    "task": "libsvm",
    "data": (str(DATA / "libsvm/a9a.bz2"),),
    "test": (str(DATA / "libsvm/a9a.t.bz2"),),
    "l2": 1e-4,
}
PLANS = {  # as plans of benchmarks/records.py chose them for five silos
    ("breast-cancer", 1.0): {"iterations": 12, "local_steps": 12, "clip": 0.5, "eta": 0.96},
    ("breast-cancer", 8.0): {"iterations": 8, "local_steps": 8, "clip": 1.41, "eta": 4.0},
    ("digits", 1.0): {"iterations": 16, "local_steps": 2, "clip": 0.56, "eta": 3.17}
    | {"l2": 1e-3, "returns": "average"},
    ("digits", 8.0): {"iterations": 24, "clip": 2.24, "eta": 3.17},
    ("a9a", 1.0): {"iterations": 192, "clip": 1.0, "eta": 4.0},
    ("a9a", 8.0): {"iterations": 192, "clip": 1.41, "eta": 4.0},
}
TASKS = {
    "breast-cancer": {"task": "breast-cancer", "l2": 1e-4},
    "digits": {"task": "digits", "l2": 1e-4},
    "a9a": A9A,
}
SILOS = {"breast-cancer": (5, 20), "digits": (5, 60), "a9a": (5, 200)}
EPSILONS = (1.0, 8.0)
SEEDS = {"breast-cancer": 5, "digits": 5, "a9a": 3}
MOST_SILOS = {"breast-cancer": 10, "digits": 10, "a9a": 3}  # that tune the model


def case(name: str, silos: int, epsilon: float) -> dict:
    settings = {**TASKS[name], **PLANS[name, epsilon], **WARM, "clients": silos}
    asked = {key: value for key, value in settings.items() if hasattr(TaskOptions, key)}
    task = load_task(asked.pop("task", settings["task"]), TaskOptions(**asked))
    chosen = range(min(silos, MOST_SILOS[name]))

    def error(x: torch.Tensor) -> float:
        return float(task.measure(x).error)

    alone, clients = [], task.clients
    for i in chosen:
        size, zero = clients.sizes[i], torch.zeros_like(task.x0)
        own = Table(clients.features[i, :size].numpy(), clients.targets[i, :size].numpy())
        pull = cross_validated(own, clients.link, zero).pull
        alone.append(error(tuned(own, clients.link, zero, pull, EXACT)))
    federated, at_home, rhos = [], [], []
    for seed in range(SEEDS[name]):
        result = equipoise.train(**settings, epsilon=epsilon, simulate_noise_seed=seed)
        adapted = [equipoise.adapt(result, client=i, task=task) for i in chosen]
        federated.append(result.test_error)
        at_home.append([error(torch.from_numpy(each.x)) for each in adapted])
        rhos += [str(each.adapted.rho) for each in adapted]
    return {
        "records": int(np.mean(clients.sizes)),
        "alone": alone,
        "federated": federated,
        "at home": at_home,
        "rho": {rho: rhos.count(rho) for rho in sorted(set(rhos), key=float)},
    }


def done() -> dict[tuple, dict]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    read = [json.loads(line) for line in lines]
    return {tuple(line["case"]): line for line in read}


def table() -> str:
    lines = [
        "| problem | silos | records a silo | ε | alone | federated | tuned at home | behind the "
        "better |",
        "|---" * 8 + "|",
    ]
    for (name, silos, epsilon), line in done().items():
        alone = 100 * np.mean(line["alone"])
        federated = 100 * np.array(line["federated"])
        at_home = 100 * np.mean(line["at home"], axis=1)
        behind = at_home - min(alone, federated.mean())
        spread = np.std(behind, ddof=1) / math.sqrt(len(behind))
        half = t.ppf(0.975, len(behind) - 1) * spread
        lines.append(
            f"| {name} | {silos} | {line['records']:,} | {epsilon:g} | {alone:.1f} | "
            f"{federated.mean():.1f} | {at_home.mean():.1f} | {behind.mean():+.2f} ± {half:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="print what is done, and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.table:
        RESULTS.parent.mkdir(exist_ok=True)
        for name in TASKS:
            for key in [(name, silos, epsilon) for silos in SILOS[name] for epsilon in EPSILONS]:
                if key in done():
                    continue
                line = json.dumps({"case": key, **case(*key)})
                with RESULTS.open("a") as file:
                    file.write(line + "\n")
                print(line, flush=True)
    print(table())


if __name__ == "__main__":
    main()
