"""What a sweep runs: a grid of settings, from a TOML file or the paper's own.

A grid has a task, trials (public seeds, which also seed the simulated noise) and any of the settings of `train`, each one value
or a list. Its runs are all combinations. `local_steps = "divisors"` stands for all divisors of the iterations. A budget of inf
is run once, with neither noise nor clip. [[variant]] tables change some settings: then the runs are those of every variant.
"""

import math
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.errors import DataError, InvalidValue, require
from equipoise.run import Settings

ALGORITHMS = ("dp-fedavg", "dp-scaffnew")
PAPER = {
    "algorithm": list(ALGORITHMS),
    "local_steps": "divisors",
    "epsilon": [3.3, 2.0, 1.0, 0.5, math.inf],
    "seeds": [0, 1, 2],
}
SET_BY_SWEEPS = {"seed", "simulate_noise_seed", "diagnostics", "p", "schedule"}
KNOWN = {"name", "seeds", "clip", *Settings.model_fields} - SET_BY_SWEEPS
MOST_RUNS = 1_000_000


class Grid(NamedTuple):
    """A sweep's name, and its runs in order: for every combination of the other settings a tuple of trials."""

    name: str
    cells: tuple[tuple[Settings, ...], ...]

    @property
    def settings(self) -> Iterator[Settings]:
        return (trial for cell in self.cells for trial in cell)


def paper_grid(task: str, iterations: int | None = None, seeds: int = 3) -> dict[str, Any]:
    """The grid of the paper's experiments on one of its five tasks (or on their stand-ins)."""
    from equipoise.tasks.rows import ROWS

    require(task in ROWS, f"task={task!r} is not one of the paper's: there are {', '.join(sorted(ROWS))}")
    row = ROWS[task]
    return {
        "name": f"paper-{task}",
        "task": task,
        **PAPER,
        "seeds": list(range(seeds)),
        "iterations": iterations or row.iterations,
        "clip": list(row.clips),
    }


def read_grid(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValue(f"sweep={path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not TOML: {error}") from None
    return {"name": path.stem, **document}


def grid(document: dict[str, Any]) -> Grid:
    """The runs of a grid. Every one is checked before the first is run."""
    variants = document.get("variant", [{}])
    require(
        isinstance(variants, list) and all(isinstance(v, dict) for v in variants), "variant is not a list of [[variant]] tables"
    )
    common = {key: value for key, value in document.items() if key != "variant"}
    cells: dict[tuple[Settings, ...], None] = {}
    for variant in variants:
        for cell in _cells({**common, **variant}):
            cells[cell] = None
            require(len(cells) <= MOST_RUNS, f"the grid has more than {MOST_RUNS:,} runs: nobody would wait for it")
    return Grid(str(document.get("name", "sweep")), tuple(cells))


def _cells(document: dict[str, Any]) -> Iterator[tuple[Settings, ...]]:
    for key in document:
        if key not in KNOWN:
            near = get_close_matches(key, KNOWN, n=1)
            hint = (
                "a sweep sets it by itself" if key in SET_BY_SWEEPS else f"did you mean {near[0]}?" if near else "leave it out"
            )
            raise InvalidValue(f"{key} is no key of a sweep: {hint}")
    if "clip_norm" in document:
        document["clip"] = document.pop("clip_norm")
    require("task" in document, "task is missing: a sweep needs one")
    seeds = _values(document, "seeds", [0, 1, 2])
    require(all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds), f"seeds={seeds}: seeds are whole numbers from 0")
    axes = {key: _values(document, key) for key in document if key not in ("name", "seeds", "local_steps")}
    for values in product(*axes.values()):
        said = dict(zip(axes, values, strict=True))
        if said.get("epsilon") == math.inf:
            said.pop("clip", None)
        for local_steps in _local_steps(document, said.get("iterations")):
            yield tuple(
                Settings.of(**said, local_steps=local_steps, seed=seed, simulate_noise_seed=seed, diagnostics=True)
                for seed in seeds
            )


def _values(document: dict[str, Any], key: str, default: Any = None) -> list[Any]:
    value = document.get(key, default)
    values = value if isinstance(value, list) and key not in ("data", "test", "proxy") else [value]
    require(len(values) > 0, f"{key}=[] leaves nothing to run: give it a value")
    return [tuple(v) if isinstance(v, list) else v for v in values]


def _local_steps(document: dict[str, Any], iterations: int | None) -> list[int]:
    value = document.get("local_steps", 1)
    if value != "divisors":
        steps = _values(document, "local_steps", 1)
        wrong = [step for step in steps if type(step) is not int or step < 1 or (iterations and iterations % step)]
        require(not wrong, f"local_steps={wrong[0] if wrong else ''} does not divide iterations={iterations}")
        return steps
    require(iterations is not None, 'local_steps = "divisors" needs iterations, whose divisors they are')
    assert iterations
    return divisors(iterations)


def divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
