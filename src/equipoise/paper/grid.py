"""The grid of the paper's experiments."""

import math
from typing import Any

from equipoise.errors import require
from equipoise.paper.tasks.rows import ROWS
from equipoise.refusals import shown

MOST_TRIALS = 1000
PAPER = {
    "algorithm": ["dp-fedavg", "dp-scaffnew"],
    "local_steps": "divisors",
    "epsilon": [3.3, 2.0, 1.0, 0.5, math.inf],
}


def paper_grid(task: str, iterations: int | None = None, seeds: int = 3) -> dict[str, Any]:
    """The grid of the paper's experiments on one of its five tasks (or on their stand-ins)."""
    require(
        task in ROWS,
        f"task{shown(task)} is not one of the paper's: there are {', '.join(sorted(ROWS))}",
    )
    require(1 <= seeds <= MOST_TRIALS, f"seeds={seeds} is not between 1 and {MOST_TRIALS:,}")
    row = ROWS[task]
    return {
        "name": f"paper-{task}",
        "task": task,
        **PAPER,
        "seeds": list(range(seeds)),
        "iterations": row.iterations if iterations is None else iterations,
        "clip": list(row.clips),
    }
