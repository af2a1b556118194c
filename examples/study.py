"""A small study on scikit-learn's breast-cancer data: plan, sweep, report.

For epsilon = 2 the planner sees 40 public records and nothing else; the sweep tries every number of
local steps for five budgets on the private records, as nobody could who has one budget to spend.
Noise is seeded here so that everybody sees the same; a real run draws it in secret.
"""

import csv
import math
import os
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import equipoise

PLANNED = 2.0
SEEDS = list(range(20))
COMMON = {
    "task": "breast-cancer",
    "clients": 20,
    "trust": "secure-aggregation",
    "public_records": 40,
}
GRID = {
    "name": "study",
    **COMMON,
    "algorithm": ["dp-fedavg", "dp-scaffnew"],
    "iterations": 64,
    "local_steps": "divisors",
    "epsilon": [0.5, 1.0, PLANNED, 3.3, math.inf],
    "clip": [0.1, 0.3, 1.0, 3.0],
    "seeds": SEEDS,
}
CONCLUSION = (
    "Test errors on 190 public records, mean over 20 seeds of split and noise ± standard error. "
    "Protected: all data of one client (replace-one), secure aggregation, delta = 1e-5. Noise "
    "was seeded: a simulation. The best of a sweep is known only to one who has spent the budget "
    "hundreds of times; the plan costs nothing."
)


def main(out: Path) -> None:
    console = Console()
    store, report = out / "study.sqlite", out / "report"
    with console.status("planning on 40 public records"):
        made = equipoise.plan(**COMMON, epsilon=PLANNED)
    with Progress(console=console, transient=True) as bar:
        equipoise.sweep(GRID, store=store, workers=os.cpu_count() or 1, watch=Shown(bar))
    with console.status("drawing"):
        equipoise.report(store, report)
    console.print(best_table(report / "tables" / "cells.csv"))
    trials = [equipoise.train(planned_trial(made.settings, seed)) for seed in SEEDS]
    errors = [trial.test_error for trial in trials]
    spread = statistics.stdev(errors) / math.sqrt(len(errors))
    chosen = made.chosen
    console.print(
        f"The plan for epsilon = {PLANNED:g}, made on 40 public records: {chosen.algorithm}"
        f"{', from the model that these teach' if chosen.warm_start else ''}, "
        f"{chosen.rounds} x {chosen.local_steps}, C = {chosen.clip:.2g}; its test error "
        f"{statistics.mean(errors):.3f} ± {spread:.3f}; of the public records alone "
        f"{made.public_only.test_error:.3f}.\n{CONCLUSION}",
        highlight=False,
    )
    page = report / "index.html"
    console.print(f"figures and an interactive page: {page}", highlight=False, soft_wrap=True)


class Shown:
    """Shows how far a sweep is, as a bar."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.bar = progress, progress.add_task("sweeping")

    def __call__(self, steps: Iterable[Any]) -> Iterator[Any]:
        for step in steps:
            self.progress.update(self.bar, completed=step.done, total=step.total)
            yield step


def planned_trial(settings: equipoise.Settings, seed: int) -> equipoise.Settings:
    return settings.model_copy(update={"seed": seed, "simulate_noise_seed": seed})


class Cell(NamedTuple):
    """All trials of one algorithm, budget, clip and number of local steps."""

    algorithm: str
    epsilon: float
    clip: float
    local_steps: int
    rounds: int
    error: float
    standard_error: float

    def __str__(self) -> str:
        return f"{self.error:.3f} ± {self.standard_error:.3f}"

    @property
    def schedule(self) -> str:
        clip = "" if self.clip == math.inf else f", C = {self.clip:.2g}"
        return f"{self.rounds} x {self.local_steps}{clip}"


def read_cells(path: Path) -> list[Cell]:
    """What the report found, from its table of all cells."""
    with open(path, newline="", encoding="utf-8") as file:
        return [
            Cell(
                row["algorithm"],
                float(row["epsilon"]),
                float(row["clip"]),
                int(row["local_steps"]),
                int(row["rounds"]),
                float(row["test_error"]),
                float(row["test_error_std"]) / math.sqrt(int(row["trials"])),
            )
            for row in csv.DictReader(file)
        ]


def best_table(path: Path) -> Table:
    """For each budget and algorithm the best of all clips and local steps; and the worst local
    steps at that clip."""
    table = Table(title="breast-cancer, 20 clients, 64 local steps in all: how many rounds?")
    for heading in ("epsilon", "algorithm", "best rounds x steps", "test error", "at the worst"):
        left = heading.startswith(("algorithm", "best"))
        table.add_column(heading, justify="left" if left else "right")
    cells = read_cells(path)
    for epsilon in GRID["epsilon"]:
        for algorithm in GRID["algorithm"]:
            rivals = [
                cell for cell in cells if (cell.epsilon, cell.algorithm) == (epsilon, algorithm)
            ]
            best = min(rivals, key=lambda cell: (round(cell.error, 12), cell.local_steps))
            alike = [cell for cell in rivals if cell.clip == best.clip]
            worst = max(alike, key=lambda cell: cell.error)
            table.add_row(f"{epsilon:g}", algorithm, best.schedule, str(best), str(worst))
    return table


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "study"))
