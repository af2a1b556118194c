"""Do optimisers help, at the same budget? Momentum, Adam and falling step sizes beside plain steps.

    make bench-optimisers       # resumable; a line for every case goes to
    benchmarks/results/optimisers.jsonl python benchmarks/optimisers.py --table

A case is a problem, a budget and a choice of steps. Every choice begins from the plan that `plan`
makes for plain dp-fedavg from public information, the network from settings that are written here.
Then the step size is tuned by what comes out with a few noise seeds: of the server, or of local
steps, where those are chosen, and both for plain steps; by factors of three, until a smaller and a
larger one are worse. What was best is trained with other noise seeds. All choices see the same
tuning, on the private clients, which nobody could do for free: what is compared is the best that
each can do in as many rounds. Of the network, which takes longer, seeds are fewer.

Told is the excess loss on the private clients (of the network: the test error) over that of plain
steps, and half of the 95 % interval of that ratio (Student's t over seeds; noise of a seed is that
of the same seed, so differences are taken seed by seed).
"""

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import t

from equipoise import plan, train
from equipoise.engine import can_be_stacked
from equipoise.errors import InvalidValue
from equipoise.settings import Settings
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.public import minimiser
from equipoise.training import train_together

ROOT = Path(__file__).parent.parent
os.environ.setdefault("EQUIPOISE_DATA", str(ROOT.parent / "shared" / "data"))
RESULTS = Path(__file__).parent / "results" / "optimisers.jsonl"
CLIENT = {"trust": "secure-aggregation", "l2": 1e-3}
RECORD = {"unit": "record", "noise_in": "gradient"}
MUSHROOMS = str(Path(os.environ["EQUIPOISE_DATA"]) / "libsvm" / "mushrooms.bz2")
PROBLEMS: dict[str, dict[str, Any]] = {
    "breast-cancer, 20 clients": {"task": "breast-cancer", "clients": 20, **CLIENT},
    "digits, 100 clients": {"task": "digits", "clients": 100, **CLIENT},
    "mushrooms, 100 clients": {"task": "libsvm", "data": MUSHROOMS, "clients": 100, **CLIENT},
    "breast-cancer, 5 clients, record": {
        "task": "breast-cancer",
        "clients": 5,
        "l2": 1e-3,
        **RECORD,
    },
    "digits-mlp, 5 clients, record": {
        "task": "digits-mlp",
        "clients": 5,
        "eta": 0.5,
        "iterations": 32,
        "local_steps": 4,
        "batch": 16,
        "clip": 0.5,
        **RECORD,
    },
}
BUDGETS = (1.0, 3.3, 10.0)
TUNING, SEEDS = 3, 10  # noise seeds
OF_NETWORK = 2, 5
EXTENSIONS = 5  # of the three values that a search begins with
PLAIN = "plain"


class Choice(NamedTuple):
    """Steps as chosen, and which step sizes are tuned, one after the other, from where."""

    steps: dict[str, Any]
    tuned: dict[str, float]


def choices(gamma: float, eta: float) -> dict[str, Choice]:
    """Momentum makes steps ten times as long."""
    return {
        PLAIN: Choice({}, {"eta": eta, "gamma": gamma}),
        "server momentum": Choice({"server_optimiser": "momentum"}, {"gamma": 0.1 * gamma}),
        "server Adam": Choice({"server_optimiser": "adam"}, {"gamma": 0.03}),
        "eta linear": Choice({"eta_schedule": "linear"}, {"eta": eta}),
        "eta cosine": Choice({"eta_schedule": "cosine"}, {"eta": eta}),
        "local momentum": Choice({"local_optimiser": "momentum"}, {"eta": 0.1 * eta}),
        "local Adam": Choice({"local_optimiser": "adam"}, {"eta": 0.03}),
    }


NAMES = (*choices(1.0, 1.0),)


class Problem:
    """A problem and a budget: where all choices begin, and what runs on it leave."""

    def __init__(self, name: str, epsilon: float) -> None:
        given = {**PROBLEMS[name], "epsilon": epsilon}
        self.network = given["task"] == "digits-mlp"
        settings = Settings.of(**given) if self.network else None
        planned = settings or plan(**given, algorithm="dp-fedavg").settings
        assert planned
        assert planned.eta
        self.planned, self.choices = planned, choices(planned.gamma, planned.eta)
        self.task = load_task(planned.task, TaskOptions.of(planned))
        if not self.network:
            best = minimiser(self.task.clients, self.task.x0, 1e-8)
            self.least = self.task.clients.loss(best)

    def left(self, changes: dict[str, Any], seeds: range) -> list[float]:
        """By runs with these noise seeds, in one computation where that is possible."""
        given = {**self.planned.model_dump(), **changes}
        settings = [Settings.of(**{**given, "simulate_noise_seed": seed}) for seed in seeds]
        runs = [each.resolve(self.task.facts(each.unit)) for each in settings]
        if can_be_stacked(self.task, runs[0]):
            rows = train_together([self.task] * len(runs), [[run] for run in runs], points=1)
            results = [result for (result,) in rows]
        else:
            results = [train(each) for each in settings]
        if self.network:
            return [float(result.test_error or math.nan) for result in results]
        models = [torch.from_numpy(result.x) for result in results]
        return [float(self.task.clients.loss(x) - self.least) for x in models]

    def measured(self, name: str) -> dict[str, Any]:
        tuning, seeds = OF_NETWORK if self.network else (TUNING, SEEDS)
        steps, tuned = self.choices[name]
        best = {**steps, **tuned}
        for size, start in tuned.items():
            best |= {size: self._searched(best, size, start, range(1000, 1000 + tuning))}
        return {"chosen": best, "left": self.left(best, range(seeds))}

    def _searched(self, changes: dict[str, Any], size: str, start: float, seeds: range) -> float:
        """The best step size by factors of three; worse ones are on both sides, if there are."""
        worth: dict[int, float] = {}

        def tried(power: int) -> float:
            try:
                left = np.mean(self.left({**changes, size: start * 3.0**power}, seeds))
            except InvalidValue:  # too long for Adam
                return math.inf
            return float(left) if math.isfinite(left) else math.inf

        powers = [-1, 0, 1]
        while len(worth) < 3 + EXTENSIONS:
            worth |= {power: tried(power) for power in powers if power not in worth}
            best = min(worth, key=lambda power: worth[power])
            if min(worth) < best < max(worth):
                break
            powers = [best - 1, best + 1]
        return start * 3.0**best


def done() -> dict[tuple[str, float, str], dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {tuple(line["case"]): line for line in map(json.loads, lines)}


def table() -> str:
    finished, lines = done(), []
    for problem in PROBLEMS:
        lines += [
            f"\n**{problem}**\n",
            f"| ε | plain leaves | {' | '.join(NAMES[1:])} |",
            "|---" * (len(NAMES) + 1) + "|",
        ]
        for epsilon in BUDGETS:
            values = {
                name: np.array(line["left"])
                for name in NAMES
                if (line := finished.get((problem, epsilon, name)))
            }
            if PLAIN in values:
                cells = [cell(values.get(name), values[PLAIN]) for name in NAMES[1:]]
                lines.append(f"| {epsilon:g} | {values[PLAIN].mean():.3g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(values: np.ndarray | None, plain: np.ndarray) -> str:
    """The ratio of means with its interval; bold where that excludes 1."""
    if values is None:
        return ""
    ratio = values.mean() / plain.mean()
    apart = (values - ratio * plain) / plain.mean()  # of the ratio, to first order
    half = float(t.ppf(0.975, len(plain) - 1) * apart.std(ddof=1) / math.sqrt(len(plain)))
    text = f"{ratio:.2f} ± {half:.2f}"
    return f"**{text}**" if abs(ratio - 1) > half else text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="print what is done, and stop")
    parser.add_argument("--only", default="", help="words in the names of problems")
    parser.add_argument("--budgets", nargs="*", type=float, default=BUDGETS, help="some of them")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    finished = done()
    for name in () if arguments.table else PROBLEMS:
        for epsilon in arguments.budgets if arguments.only in name else ():
            missing = [choice for choice in NAMES if (name, epsilon, choice) not in finished]
            problem = Problem(name, epsilon) if missing else None
            for choice in missing:
                assert problem
                line = {"case": [name, epsilon, choice], **problem.measured(choice)}
                with RESULTS.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(name, epsilon, choice, f"{np.mean(line['left']):.4g}", flush=True)
    print(table())


if __name__ == "__main__":
    main()
