"""What protecting one record costs: test errors on real data, every method planned on 60 public
records.

    make bench-records            # resumable; a line for every cell goes to
    benchmarks/results/records.jsonl python benchmarks/records.py --table

Five silos (FEMNIST: six), local trust, replace-one, delta = 1e-5. For every budget and method
`plan` chooses the settings on the pool, and `train` runs them with 20 noise seeds (a9a: 5); the
silos then tune what noise in the gradients gave at home, by cross-validation (5 seeds). "Alone" is
every silo by itself, "public, at home" every silo from the public model. FEMNIST's settings are
given, and there are 3 seeds. Told is the mean test error in per cent and half of its 95 % interval
(Student's t).
"""

import argparse
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import t
from torch import Tensor

from equipoise import plan, train
from equipoise.planning.at_home import cross_validated, tuned
from equipoise.tasks import Task, TaskOptions, load_task
from equipoise.tasks.public import minimiser, public_model
from equipoise.tasks.task import Table

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("EQUIPOISE_DATA", ROOT.parent / "shared" / "data"))
RESULTS = Path(__file__).parent / "results" / "records.jsonl"

A9A = {
    "task": "libsvm",
    "data": (str(DATA / "libsvm/a9a.bz2"),),
    "test": (str(DATA / "libsvm/a9a.t.bz2"),),
    "l2": 1e-4,
}
FEMNIST = {
    "task": "femnist-narrow"
}  # a network, which nobody plans: T, tau, C and q are given, the step size by budget
TASKS = {
    "breast-cancer": {"task": "breast-cancer"},
    "digits": {"task": "digits"},
    "a9a": A9A,
    "femnist": FEMNIST,
}
NETWORK = {"iterations": 200, "local_steps": 10, "clip": 1.0}
EPSILONS = (0.5, 1.0, 2.0, 3.3, 8.0)
METHODS = {
    "gradient": {"unit": "record", "noise_in": "gradient"},
    "message": {"unit": "record", "noise_in": "message"},
    "hidden-gradient": {"unit": "record", "noise_in": "hidden-gradient"},
    "client": {"unit": "client"},
}
POOL, SEEDS = 60, {"breast-cancer": 20, "digits": 20, "a9a": 5, "femnist": 3}
NETWORK_POOL = 600


def options(name: str) -> TaskOptions:
    said = {key: value for key, value in TASKS[name].items() if key != "task"}
    return TaskOptions(clients=5, public_records=POOL, **said)


def unprivate(name: str) -> dict:
    """The best regulariser's error without privacy, all private records together; and the public
    pool's alone."""
    task = load_task(TASKS[name]["task"], options(name))
    errors = {}
    for l2 in (1e-5, 1e-4, 1e-3, 1e-2):
        x = minimiser(replace(task.clients, l2=l2), task.x0, 1e-6)
        errors[l2] = float(task.measure(x).error)
    best = min(errors, key=errors.get)
    taught = public_model(task)
    return {
        "non-private": [errors[best]],
        "l2": best,
        "public only": [float(task.measure(taught).error)],
        "alone": [at_home(task, torch.zeros_like(task.x0))],
        "public, at home": [at_home(task, taught)],
        "constant": [task.constant_error],
    }


def at_home(task: Task, centre: Tensor) -> float:
    """The mean error of all silos' own models, each pulled from the centre towards its own records,
    as strongly as cross-validation at home says."""
    errors, clients = [], task.clients
    for i, size in enumerate(clients.sizes):
        own = Table(clients.features[i, :size].numpy(), clients.targets[i, :size].numpy())
        pull = cross_validated(own, clients.link, centre).pull
        errors.append(float(task.measure(tuned(own, clients.link, centre, pull)).error))
    return float(np.mean(errors))


def cell(name: str, epsilon: float, method: str) -> dict:
    common = {**TASKS[name], "clients": 5, "public_records": POOL}
    made = plan(**common, epsilon=epsilon, algorithm="dp-fedavg", **METHODS[method])
    runs = [
        train(made.settings.model_copy(update={"simulate_noise_seed": seed}))
        for seed in range(SEEDS[name])
    ]
    found = {
        "plan": made.chosen.model_dump(mode="json"),
        "verdict": made.verdict,
        "predicted": [made.predicted.test_error],
        method: [run.test_error for run in runs],
    }
    if method == "gradient":
        task = load_task(TASKS[name]["task"], options(name))
        found["tuned at home"] = [at_home(task, torch.from_numpy(run.x)) for run in runs[:5]]
    return found


def network(epsilon: float, method: str) -> dict:
    """FEMNIST with the narrow CNN. Without privacy: as many steps, five times as many, and what 600
    public pictures teach."""
    task = load_task("femnist-narrow", TaskOptions(public_records=NETWORK_POOL))
    if method == "none":
        result = train(task=task, epsilon=math.inf, eta=0.1, **{**NETWORK, "clip": None})
        longer = train(task=task, epsilon=math.inf, eta=0.1, iterations=1000, local_steps=10)
        return {
            "non-private": [longer.test_error],
            "as many steps": [result.test_error],
            "l2": None,
            "public only": [result.public_only.test_error],
            "constant": [task.constant_error],
        }
    record = {"unit": "record", "sampling_rate": 0.03, "eta": min(2.0, 0.6 * epsilon)}
    client = {"unit": "client", "local_steps": 200, "eta": 0.1}
    how = {**NETWORK, **(record if method == "gradient" else client)}
    found = {
        "plan": {
            "rounds": how["iterations"] // how["local_steps"],
            "local_steps": how["local_steps"],
            "clip": 1.0,
        }
    }
    for label, warm in (
        (method, False),
        *((("warm start", True),) if method == "gradient" else ()),
    ):
        how["eta"] = (
            record["eta"] / 10 if warm else how["eta"]
        )  # less noise is better where less is to be learnt
        runs = [
            train(task=task, epsilon=epsilon, simulate_noise_seed=seed, warm_start=warm, **how)
            for seed in range(SEEDS["femnist"])
        ]
        found[label] = [run.test_error for run in runs]
    return found


def done() -> dict[tuple, dict]:
    lines = (
        [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    )
    return {tuple(line["cell"]): line for line in lines}


def table() -> str:
    found = done()
    lines = []
    for name in TASKS:
        after = "warm start" if name == "femnist" else "tuned at home"
        columns = [*METHODS, after]
        if (base := found.get((name, math.inf, "none"))) is None:
            continue
        lines += [
            f"\n{name}: non-private {_percent(base.get('non-private'))} (l2 = {base.get('l2')}), "
            f"public only "
            f"{_percent(base.get('public only'))}, each silo alone {_percent(base.get('alone'))}, "
            f"from the public model {_percent(base.get('public, at home'))}, best constant answer "
            f"{_percent(base.get('constant'))}\n",
            f"| epsilon | {' | '.join(columns)} | gradient's plan | its verdict |",
            "|---" * (len(columns) + 3) + "|",
        ]
        for epsilon in EPSILONS:
            if (name, epsilon, "gradient") not in found:
                continue
            row = [
                found.get((name, epsilon, "gradient" if column == after else column), {})
                for column in columns
            ]
            values = [_percent(line.get(column)) for line, column in zip(row, columns, strict=True)]
            lines.append(
                f"| {epsilon:g} | {' | '.join(values)} | {_told(row[0])} | "
                f"{row[0].get('verdict', '')} |"
            )
    return "\n".join(lines)


def _percent(errors: list[float] | None) -> str:
    if not errors or errors[0] is None:
        return ""
    mean = 100 * np.mean(errors)
    if len(errors) == 1:
        return f"{mean:.1f}"
    spread = 100 * np.std(errors, ddof=1) / math.sqrt(len(errors))
    return f"{mean:.1f} ± {t.ppf(0.975, len(errors) - 1) * spread:.1f}"


def _told(line: dict) -> str:
    if not line:
        return ""
    plan = line["plan"]
    clip = plan.get("clip", plan.get("clip_norm"))  # as lines of version 0.1 call it
    start = ", warm" if plan.get("warm_start") else ""
    return f"{plan['rounds']} x {plan['local_steps']}, C = {clip:.2g}{start}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--table", action="store_true", help="print the table of what is done, and stop"
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.table:
        RESULTS.parent.mkdir(exist_ok=True)
        for name in arguments.tasks:
            methods = ("gradient", "client") if name == "femnist" else METHODS
            wanted = [
                (name, math.inf, "none"),
                *((name, epsilon, method) for epsilon in EPSILONS for method in methods),
            ]
            for key in wanted:
                if key in done():
                    continue
                result = (
                    network(*key[1:])
                    if name == "femnist"
                    else unprivate(name)
                    if key[2] == "none"
                    else cell(*key)
                )
                with RESULTS.open("a") as file:
                    file.write(json.dumps({"cell": key, **result}) + "\n")
                print(
                    key,
                    {
                        label: _percent(value)
                        for label, value in result.items()
                        if isinstance(value, list)
                    },
                    flush=True,
                )
    print(table())


if __name__ == "__main__":
    main()
