"""Theorem 1 and Corollary 1 on their own ground: a strongly convex quadratic, at an exact epsilon.

    python benchmarks/reproduction.py --task quadratic   # 33,280 runs, about two minutes
    python benchmarks/theory.py                          # the tables of docs/paper.md

For every budget and clip: the iterations and local steps that the corollary names, those of the
corrected bound, those that were best when all were tried, and the error of each. A proposal's error
is that of the nearest cell of the grid; where it says that the bound grows from the first step on,
nothing is trained, and the error is 1.
"""

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from equipoise.paper.corollary import corollary_1
from equipoise.planning.bounds import Problem, Proposal, corrected_plan
from equipoise.privacy.promise import Promise
from equipoise.reports.optima import by_error
from equipoise.reports.reading import read_study
from equipoise.reports.study import Cell
from equipoise.tasks import TaskOptions, load_task

STORE = Path(__file__).parent.parent / "reproduction" / "quadratic.sqlite"
ALGORITHM, CLIENTS, SEEDS = "dp-scaffnew", 20, range(8)


class Row(NamedTuple):
    epsilon: float
    clip: float
    printed: Proposal
    corrected: Proposal
    cells: Sequence[Cell]

    @property
    def best(self) -> Cell:
        return min(self.cells, key=by_error)

    def nearest(self, proposal: Proposal) -> Cell | None:
        """The cell next to a proposal, by ratios; None where that is not to train."""
        if proposal.iterations < 1:
            return None
        T, steps = proposal.iterations, max(1.0, proposal.local_steps)

        def distance(cell: Cell) -> float:
            return abs(math.log(cell.iterations / T)) + abs(math.log(cell.local_steps / steps))

        return min(self.cells, key=distance)


def problem_of(epsilon: float, clip: float) -> Problem:
    """With the constants of the task, means over the trials."""
    starts, gradients = [], []
    for seed in SEEDS:
        task = load_task("quadratic", TaskOptions(clients=CLIENTS, seed=seed))
        optimum = task.clients.minimiser
        starts.append(float(optimum.norm()))
        at_optimum = task.clients.gradient(optimum.expand(CLIENTS, -1), 0)
        gradients.append(float(at_optimum.square().sum(1).mean().sqrt()))
    promise = Promise(
        epsilon, 1e-5, unit="client", neighbours="replace-one", trust="secure-aggregation"
    )
    return Problem(
        mu=task.mu,
        L=task.L,
        dimension=task.dimension,
        promise=promise,
        clients=CLIENTS,
        clip=clip,
        r0=statistics.fmean(starts),
        zeta=statistics.fmean(gradients),
    )


def rows() -> list[Row]:
    (case,) = [case for case in read_study(STORE).cases if case.private]
    private = [cell for cell in case.private if cell.algorithm == ALGORITHM and not cell.diverged]
    made = []
    for epsilon in sorted({cell.epsilon for cell in private}, reverse=True):
        for clip in sorted({cell.clip for cell in private}):
            problem = problem_of(epsilon, clip)
            cells = [c for c in private if (c.epsilon, c.clip) == (epsilon, clip)]
            made.append(Row(epsilon, clip, corollary_1(problem), corrected_plan(problem), cells))
    return made


def proposal_words(row: Row, proposal: Proposal) -> str:
    cell = row.nearest(proposal)
    if cell is None:
        return f"{proposal.iterations:.0f}: none" if proposal.iterations < 0 else "none"
    return f"{proposal.iterations:.0f}/{proposal.local_steps:.0f}: {cell.mean:.3f}"


def best_words(row: Row) -> str:
    return f"{row.best.iterations}/{row.best.local_steps}: {row.best.mean:.3f}"


def matrix(title: str, table: Sequence[Row], words: Sequence[str]) -> None:
    """A line for every budget, a column for every clip."""
    clips = sorted({row.clip for row in table})
    by_place = {(row.epsilon, row.clip): text for row, text in zip(table, words, strict=True)}
    print(f"| {title} | {' | '.join(f'C = {clip:g}' for clip in clips)} |")
    print(f"|---|{'---|' * len(clips)}")
    for epsilon in sorted({row.epsilon for row in table}, reverse=True):
        print(f"| ε = {epsilon:g} | {' | '.join(by_place[epsilon, clip] for clip in clips)} |")
    print()


def main() -> None:
    if not STORE.exists():
        sys.exit(f"{STORE} is not there: python benchmarks/reproduction.py --task quadratic")
    torch.set_num_threads(1)
    table = rows()
    matrix("best of all", table, [best_words(row) for row in table])
    matrix("Corollary 1 as printed", table, [proposal_words(row, row.printed) for row in table])
    matrix("corrected bound", table, [proposal_words(row, row.corrected) for row in table])
    matrix("rounds x C of the best", table, [f"{row.best.rounds * row.clip:.2f}" for row in table])
    print(f"Corollary 1 as printed: {summary(table, [row.printed for row in table])}")
    print(f"corrected bound: {summary(table, [row.corrected for row in table])}")


def summary(table: Sequence[Row], proposals: Sequence[Proposal]) -> str:
    cells = [row.nearest(proposal) for row, proposal in zip(table, proposals, strict=True)]
    ratios = [
        (1.0 if cell is None else cell.mean) / min(row.best.mean, 1.0)
        for row, cell in zip(table, cells, strict=True)
    ]
    worth = [row.best.mean < 1 for row in table]
    missed = sum(good and cell is None for good, cell in zip(worth, cells, strict=True))
    return (
        f"error over the best (or over 1, without training), median {statistics.median(ratios):.2f}"
        f", worst {max(ratios):.2f}; 'do not train' where training helps in {missed} of "
        f"{sum(worth)} cases"
    )


if __name__ == "__main__":
    main()
