"""What training together is worth to five unlike hospitals: the data of `examples/hospitals.py`.

    make bench-hospitals                      # resumable: benchmarks/results/hospitals.jsonl
    python benchmarks/hospitals.py --table    # prints what is there

Unit record, local trust, replace-one, delta = 1e-5, weights by records. `plan` chooses the settings
once, for epsilon = 2 on the public files of seed 0; then 20 seeds draw patients and noise. Every
model is judged on the test stays of each hospital (400) and of all (2,000). "Alone" is each
hospital by itself, "tuned at home" what `adapt` makes of the federated model, "pooled" one model of
all records without privacy, "public" one of proxy.csv; their l2 are found by cross-validation. Told
are means over seeds and half of a 95 % interval (Student's t).
"""

import argparse
import json
import math
import runpy
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t
from sklearn.metrics import roc_auc_score
from torch import Tensor

import equipoise
from equipoise import Settings, Task
from equipoise.adapting import EXACT
from equipoise.planning.at_home import cross_validated, tuned
from equipoise.tasks import TaskOptions, load_reader, load_task
from equipoise.tasks.task import Table

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "hospitals.jsonl"
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "hospitals.py"))
SIZES = tuple(hospital.admissions for hospital in EXAMPLE["HOSPITALS"])
SMALL = SIZES.index(min(SIZES))
EPSILONS = (0.5, 1.0, 2.0, 4.0)
SEEDS = range(20)
PLANNED, WEIGHED = 2.0, 1.0  # the epsilons of the plan, and at which weights are compared
ASKED = {  # as the README asks; the rest is planned
    "unit": "record",
    "algorithm": "dp-fedavg",
    "noise_in": "gradient",
    "iterations": 512,
    "l2": 1e-4,
    "skew": "mild",
}
WHERE = ("own patients", "own patients of the smallest", "patients of all")


def files(folder: Path, hospitals: range = range(len(SIZES))) -> dict:
    """What task csv is told of this folder and these hospitals, counted from 0."""
    return {
        "data": tuple(str(folder / f"hospital-{i + 1}.csv") for i in hospitals),
        "label": "readmitted",
        "bounds": str(folder / "bounds.toml"),
        "test": (str(folder / "test.csv"),),
        "proxy": (str(folder / "proxy.csv"),),
        "ignore": ("patient", "hospital"),
    }


def planned() -> dict:
    """The settings of the plan, which knows the public files, the sizes and what is in ASKED."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        EXAMPLE["make"](folder, 0)
        plan = equipoise.plan(task="csv", **files(folder), **ASKED, epsilon=PLANNED, records=SIZES)
    chosen = ("clip", "eta", "gamma", "iterations", "local_steps", "returns", "warm_start")
    return {
        "verdict": plan.verdict,
        "settings": {name: getattr(plan.settings, name) for name in chosen},
    }


class Judge:
    """Judges models on the test stays, which lie hospital by hospital in the file."""

    def __init__(self, task: Task, folder: Path) -> None:
        test = load_reader("csv", task.reading).records(str(folder / "test.csv"))
        self.features, self.truth = test.features, test.targets[:, 0]
        self.parts = np.array_split(np.arange(len(self.truth)), len(SIZES))

    def of(self, x: Tensor) -> list[list[float]]:
        """AUROC and error, of each hospital and then of all."""
        return self._of(self.features @ x.double().numpy())

    def constant(self) -> list[list[float]]:
        answer = 1.0 if self.truth.mean() > 0.5 else -1.0
        return self._of(np.full(len(self.truth), answer))

    def at_home(self, models: list[Tensor]) -> list[list[float]]:
        """Every hospital's own model on its own stays, and the mean of all models on all."""
        judged = np.array([self.of(x) for x in models])  # [model, measure, part]
        own = judged[np.arange(len(models)), :, np.arange(len(models))].T
        return np.column_stack([own, judged[:, :, -1].mean(0)]).tolist()

    def _of(self, scores: NDArray[np.float64]) -> list[list[float]]:
        parts = [*self.parts, np.arange(len(self.truth))]
        return [
            [float(roc_auc_score(self.truth[part], scores[part])) for part in parts],
            [float(np.mean((scores[part] > 0) != (self.truth[part] > 0.5))) for part in parts],
        ]


def best(records: Table, task: Task) -> Tensor:
    """The linear model of these records, its l2 by cross-validation."""
    link, zero = task.clients.link, torch.zeros_like(task.x0, dtype=torch.float64)
    return tuned(records, link, zero, cross_validated(records, link, zero).pull, EXACT)


def one_seed(seed: int, settings: dict) -> dict:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        EXAMPLE["make"](folder, seed)
        return judged(folder, seed, settings)


def judged(folder: Path, seed: int, settings: dict) -> dict:
    def loaded(hospitals: range) -> Task:
        said = {"unit": "record", "l2": ASKED["l2"], **files(folder, hospitals)}
        return load_task("csv", TaskOptions(**said))

    def trained(task: Task, epsilon: float, weights: str) -> equipoise.Result:
        how = {"unit": "record", "noise_in": "gradient", "weights": weights, **settings}
        return equipoise.train(task=task, epsilon=epsilon, simulate_noise_seed=seed, **how)

    def x_of(result: equipoise.Result) -> Tensor:
        return torch.from_numpy(result.x)

    task = loaded(range(len(SIZES)))
    judge, reader = Judge(task, folder), load_reader("csv", task.reading)
    own = [reader.records(path) for path in files(folder)["data"]]
    every = Table(*(np.concatenate(parts) for parts in zip(*own, strict=True)))
    found = {
        "constant": judge.constant(),
        "public": judge.of(best(reader.records(str(folder / "proxy.csv")), task)),
        "alone": judge.at_home([best(records, task) for records in own]),
        "pooled": judge.of(best(every, task)),
    }
    for epsilon in EPSILONS:
        result = trained(task, epsilon, "records")
        at_home = [equipoise.adapt(result, client=i, task=task) for i in range(len(SIZES))]
        found[f"federated {epsilon:g}"] = judge.of(x_of(result))
        found[f"tuned {epsilon:g}"] = judge.at_home([x_of(each) for each in at_home])
    without = loaded(range(SMALL))
    found["equal"] = judge.of(x_of(trained(task, WEIGHED, "equal")))
    for weights in ("records", "equal"):
        found[f"{weights} without"] = judge.of(x_of(trained(without, WEIGHED, weights)))
    return found


def done() -> dict[tuple, dict]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    read = [json.loads(line) for line in lines]
    return {tuple(line["key"]): line for line in read}


def written(key: tuple, found: dict) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps({"key": key, **found}) + "\n")
    print(key, "done", flush=True)


def told(values: NDArray[np.float64], sign: str = "") -> str:
    """Mean ± half of a 95 % interval of values over seeds, in per cent."""
    n = len(values)
    half = t.ppf(0.975, n - 1) * 100 * np.std(values, ddof=1) / math.sqrt(n)
    return f"{100 * np.mean(values):{sign}.1f} ± {half:.1f}"


def table() -> str:
    lines = done()
    seeds = [line for key, line in lines.items() if key[0] == "seed"]

    def of(name: str, measure: int, where: str) -> NDArray[np.float64]:
        values = np.array([line[name][measure] for line in seeds])
        if where == WHERE[2]:
            return values[:, -1]
        return values[:, SMALL] if where == WHERE[1] else values[:, :-1].mean(1)

    columns = ["constant", "public", "alone", "federated", "tuned", "pooled"]
    names = ["constant answer", "public alone", "alone", "federated", "tuned at home", "pooled"]
    text = [f"{len(seeds)} seeds"]
    for measure, word in enumerate(("AUROC", "error")):
        text += ["", f"| {word}, per cent | ε | {' | '.join(names)} |", "|---" * 8 + "|"]
        for where in WHERE:
            for epsilon in EPSILONS:
                keys = [
                    f"{name} {epsilon:g}" if name in ("federated", "tuned") else name
                    for name in columns
                ]
                cells = [told(of(key, measure, where)) for key in keys]
                if measure == 0:
                    cells[0] = "50.0"
                text.append(f"| {where} | {epsilon:g} | {' | '.join(cells)} |")
    text += [
        "",
        "| weights | all five | without the smallest | what it adds |",
        "|---" * 4 + "|",
    ]
    five = {"records": f"federated {WEIGHED:g}", "equal": "equal"}
    for weights, name in five.items():
        both, less = (of(key, 0, WHERE[2]) for key in (name, f"{weights} without"))
        text.append(f"| {weights} | {told(both)} | {told(less)} | {told(both - less, '+')} |")
    plan = lines["plan", PLANNED]
    how = Settings.of(task="csv", epsilon=PLANNED, **plan["settings"])
    text += [
        "",
        f"planned for ε = {PLANNED:g} ({plan['verdict']}): "
        f"{how.iterations // how.local_steps} x {how.local_steps}, C = {how.clip:.3g}, "
        f"η = {how.eta:.3g}, returns {how.returns}{', warm' if how.warm_start else ''}",
    ]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="print what is done, and stop")
    parser.add_argument("--seeds", type=int, nargs="+", default=[*SEEDS], help="of these alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.table:
        RESULTS.parent.mkdir(exist_ok=True)
        if ("plan", PLANNED) not in done():
            written(("plan", PLANNED), planned())
        settings = done()["plan", PLANNED]["settings"]
        for seed in arguments.seeds:
            if ("seed", seed) not in done():
                written(("seed", seed), one_seed(seed, settings))
    print(table())


if __name__ == "__main__":
    main()
