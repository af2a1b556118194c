"""Is a federated model that was tuned at home as good as the better of its two ends?

    python benchmarks/at_home.py            # resumable; a line for every case goes to
    benchmarks/results/at_home.jsonl python benchmarks/at_home.py --table

Three problems, few large silos or many small ones, two budgets: twelve cases. Then twelve more,
HELD_OUT, of other problems, sizes and splits, which did not decide
by which rule `adapt` chooses; its settings are given, not planned. Unit record, local trust,
replace-one, delta = 1e-5, noise in the gradients, from the model of 60 public records (hospitals:
100). Every silo (at most ten of a case; of a9a three) tunes every federated model (5 noise seeds;
a9a: 3) with `equipoise.adapt`. "Alone" is each of them by itself, its l2 by cross-validation;
"federated" the model as it is. Told are test errors in per cent, means over silos and noise seeds,
and how far the tuned model is behind the better of the two, with half of a 95 % interval over seeds
(Student's t).
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from scipy.stats import t

import equipoise
from equipoise.adapting import EXACT
from equipoise.planning.at_home import cross_validated, tuned
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.task import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))
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
FOLDER = TemporaryDirectory()
HOSPITALS = Path(FOLDER.name)
GIVEN = {"iterations": 24, "clip": 1.0}
HELD_OUT = {  # settings, silos
    "breast-cancer, split 7": ({**TASKS["breast-cancer"], **GIVEN, "eta": 4.0, "seed": 7}, (16,)),
    "digits, split 7": ({**TASKS["digits"], **GIVEN, "eta": 3.17, "seed": 7}, (30,)),
    "phishing": (
        {
            "task": "libsvm",
            "data": (str(DATA / "libsvm/phishing.bz2"),),
            "test_share": 0.25,
            **GIVEN,
            "eta": 4.0,
            "l2": 1e-4,
        },
        (20, 200),
    ),
    "w8a": (
        {
            "task": "libsvm",
            "data": (str(DATA / "libsvm/w8a.bz2"),),
            "test_share": 0.25,
            **GIVEN,
            "eta": 4.0,
            "l2": 1e-4,
        },
        (300,),
    ),
    "hospitals": (
        {
            "task": "csv",
            "data": tuple(str(HOSPITALS / f"hospital-{i}.csv") for i in range(1, 6)),
            "test": (str(HOSPITALS / "test.csv"),),
            "proxy": (str(HOSPITALS / "proxy.csv"),),
            "bounds": str(HOSPITALS / "bounds.toml"),
            "label": "readmitted",
            "ignore": ("patient", "hospital"),
            "public_records": 0,
            "iterations": 96,
            "clip": 1.0,
            "eta": 4.0,
            "l2": 1e-3,
        },
        (5,),
    ),
}
HELD_EPSILONS = (1.0, 4.0)
SEEDS = {"breast-cancer": 5, "digits": 5, "a9a": 3}
MOST_SILOS = {"breast-cancer": 10, "digits": 10, "a9a": 3}  # that tune the model


def settings_of(name: str, silos: int, epsilon: float) -> dict:
    if name in HELD_OUT:
        return {**WARM, "clients": silos, **HELD_OUT[name][0]}
    return {**TASKS[name], **PLANS[name, epsilon], **WARM, "clients": silos}


def case(name: str, silos: int, epsilon: float) -> dict:
    settings = settings_of(name, silos, epsilon)
    asked = {key: value for key, value in settings.items() if hasattr(TaskOptions, key)}
    task = load_task(asked.pop("task", settings["task"]), TaskOptions(**asked))
    chosen = range(min(silos, MOST_SILOS.get(name, 10)))

    def error(x: torch.Tensor) -> float:
        return float(task.measure(x).error)

    alone, clients = [], task.clients
    for i in chosen:
        size, zero = clients.sizes[i], torch.zeros_like(task.x0)
        own = Table(clients.features[i, :size].numpy(), clients.targets[i, :size].numpy())
        own = own.rows(own.features[:, -1] != 0)  # a record without a label is all zero
        pull = cross_validated(own, clients.link, zero).pull
        alone.append(error(tuned(own, clients.link, zero, pull, EXACT)))
    federated, at_home, rhos = [], [], []
    for seed in range(SEEDS.get(name, 5)):
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


def table(keys: list[tuple]) -> str:
    found = done()
    lines = [
        "| problem | silos | records a silo | ε | alone | federated | tuned at home | behind the "
        "better |",
        "|---" * 8 + "|",
    ]
    for key in [key for key in keys if key in found]:
        (name, silos, epsilon), line = key, found[key]
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
    cases = [(name, silos, eps) for name in TASKS for silos in SILOS[name] for eps in EPSILONS]
    held = [(name, n, eps) for name in HELD_OUT for n in HELD_OUT[name][1] for eps in HELD_EPSILONS]
    if not arguments.table:
        import hospitals  # of examples/

        RESULTS.parent.mkdir(exist_ok=True)
        hospitals.make(HOSPITALS)
        for key in [key for key in (*cases, *held) if key not in done()]:
            line = json.dumps({"case": key, **case(*key)})
            with RESULTS.open("a") as file:
                file.write(line + "\n")
            print(line, flush=True)
    print(table(cases), table(held), sep="\n\n")


if __name__ == "__main__":
    main()
