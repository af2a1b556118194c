"""What stacking gains: the breast-cancer grid in stacks, and the same engine running one run at a
time.

    make bench-stacking

tau x 5 epsilon x 3 clips x 3 seeds x 2 algorithms at T = 64, every result into a store. Told are
processor seconds of both, their ratio, and by how much the results differ.
"""

import math
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from equipoise.sweeps.grid import grid
from equipoise.sweeps.stacks import Stack, run_stack, stacks_of
from equipoise.sweeps.store import Store

GRID = {
    "task": "breast-cancer",
    "algorithm": ["dp-fedavg", "dp-scaffnew"],
    "iterations": 64,
    "local_steps": "divisors",
    "epsilon": [3.3, 2.0, 1.0, 0.5, math.inf],
    "clip": [0.1, 1.0, 10.0],
}
AGAIN = 5  # times everything is run, the quickest counts: other work on the machine only slows down


def quickest(stack: Stack, folder: Path, name: str) -> float:
    """Processor seconds for this stack, kept in `name`-0, `name`-1, ..."""
    seconds = []
    for again in range(AGAIN):
        start = time.process_time()
        run_stack(stack, folder / f"{name}-{again}.sqlite", name)
        seconds.append(time.process_time() - start)
    return min(seconds)


def errors(store: Path) -> dict[str, float]:
    with Store(store) as kept:
        return {row["key"]: row["test_error"] for row in kept.table("key, test_error")}


def main() -> None:
    torch.set_num_threads(1)
    stacks = stacks_of(grid(GRID).cells)
    seconds = {"stacked": 0.0, "one by one": 0.0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for (
            stack
        ) in stacks:  # calibrated noise is remembered: whoever comes first would pay for it alone
            run_stack(stack, folder / "warm-up.sqlite", "warm-up")
        for stack in stacks:
            seconds["stacked"] += quickest(stack, folder, "together")
            seconds["one by one"] += sum(
                quickest(((run,),), folder, "alone") for row in stack for run in row
            )
        together, alone = folder / "together-0.sqlite", folder / "alone-0.sqlite"
        stacked, single = errors(together), errors(alone)
        with Store(together) as one, Store(alone) as other:
            losses = [
                [point["test_loss"] for key in stacked for point in kept.curve(key)]
                for kept in (one, other)
            ]
    assert stacked.keys() == single.keys()
    told = ", ".join(f"{name} {taken:.2f} s" for name, taken in seconds.items())
    ratio = seconds["one by one"] / seconds["stacked"]
    print(f"{len(stacked)} runs in {len(stacks)} stacks: {told} of processor time, 1/{ratio:.1f}")
    apart = sum(not math.isclose(stacked[key], single[key], rel_tol=1e-12) for key in stacked)
    print(f"runs whose test error differs by more than rounding: {apart}")
    print(
        f"test losses differ by at most "
        f"{np.max(np.abs(1 - np.array(losses[0]) / np.array(losses[1]))):.1e} of themselves"
    )


if __name__ == "__main__":
    main()
