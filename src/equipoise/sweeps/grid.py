"""What a sweep runs: a grid of settings, from a TOML file or the paper's own.

A grid has a task, trials (public seeds, which also seed the simulated noise) and any of the
settings of `train`, each one value or a list. Its runs are all combinations. `local_steps =
"divisors"` stands for all divisors of the iterations. With `schedule = "coin"` as many local steps
are expected in a round: p = 1 / local_steps. A budget of inf is run once, with neither
noise nor clip. [[variant]] tables change some settings: then the runs are those of every variant.
"""

import math
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.algorithms.catalogue import known_options
from equipoise.algorithms.schedule import divisors_of
from equipoise.errors import DataError, InvalidValue, require
from equipoise.refusals import near_setting, shown
from equipoise.settings import LISTS, MOST_ITERATIONS, SAME_CLIP, Settings

SET_BY_SWEEPS = {"seed", "simulate_noise_seed", "diagnostics", "p", "options"}
KNOWN = {"name", "seeds", "clip_norm", *Settings.model_fields, *known_options()} - SET_BY_SWEEPS
MOST_RUNS = 1_000_000
ONLY_WITH_NOISE = ("clip", "noise_rule", "v", "trust", "colluding", "neighbours", "delta")


class Grid(NamedTuple):
    """A sweep's name, and its runs in order: for every combination of the other settings a tuple of
    trials."""

    name: str
    cells: tuple[tuple[Settings, ...], ...]

    @property
    def settings(self) -> Iterator[Settings]:
        return (trial for cell in self.cells for trial in cell)


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
    tables = isinstance(variants, list) and all(isinstance(v, dict) for v in variants)
    require(tables and variants, "variant is not a list of [[variant]] tables")
    common = _known({key: value for key, value in document.items() if key != "variant"})
    cells: dict[
        Settings, dict[int, Settings]
    ] = {}  # variants may share a cell, and add trials to it
    runs = 0
    for variant in variants:
        for cell in _cells({**common, **_known(variant)}):
            alike = cell[0].model_copy(update={"seed": 0, "simulate_noise_seed": 0})
            cells.setdefault(alike, {}).update({trial.seed: trial for trial in cell})
            runs += len(cell)
            require(
                runs <= MOST_RUNS,
                f"the grid has more than {MOST_RUNS:,} runs: make it smaller, or several of it",
            )
    return Grid(
        str(document.get("name", "sweep")),
        tuple(tuple(trials.values()) for trials in cells.values()),
    )


def _known(document: dict[str, Any]) -> dict[str, Any]:
    """A part of a grid with its keys checked; clip_norm is clip by its old name."""
    for key in document:
        require(key not in SET_BY_SWEEPS, f"{key} cannot be given to a sweep, which sets it itself")
        if key not in KNOWN:
            near = near_setting(key, sorted(KNOWN))
            hint = f"did you mean {near}?" if near else "leave it out"
            raise InvalidValue(f"unknown key {key} of a sweep: {hint}")
    require(not {"clip", "clip_norm"} <= {*document}, SAME_CLIP)
    return {"clip" if key == "clip_norm" else key: value for key, value in document.items()}


def _cells(document: dict[str, Any]) -> Iterator[tuple[Settings, ...]]:
    require("task" in document, "task is missing: a sweep needs one")
    one_seed = document.get("seeds")
    require(
        not isinstance(one_seed, int),
        f"seeds={one_seed} is one number: give a list, [{one_seed}] for this seed alone, or [0, 1] "
        "for two trials",
    )
    seeds = _values(document, "seeds", [0, 1, 2])
    require(
        all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds),
        "seeds are not whole numbers from 0",
    )
    require(len({*seeds}) == len(seeds), f"seeds={seeds}: a trial is there twice")
    axes = {
        key: _values(document, key)
        for key in document
        if key not in ("name", "seeds", "local_steps")
    }
    for values in product(*axes.values()):
        given = dict(zip(axes, values, strict=True))
        for local_steps in _local_steps(document, given.get("iterations")):
            yield tuple(_trial(seed, **given, local_steps=local_steps) for seed in seeds)


def _trial(seed: int, local_steps: int, **given: Any) -> Settings:
    pace: dict[str, Any] = {"local_steps": local_steps}
    if given.get("schedule") == "coin":
        pace = {"p": 1 / local_steps}
    settings = Settings.of(**given, **pace, seed=seed, simulate_noise_seed=seed, diagnostics=True)
    if settings.epsilon < math.inf:
        return settings
    return settings.model_copy(
        update={name: Settings.model_fields[name].default for name in ONLY_WITH_NOISE}
    )


def _values(document: dict[str, Any], key: str, default: Any = None) -> list[Any]:
    value = document.get(key, default)
    value = value.tolist() if hasattr(value, "tolist") else value  # a NumPy array
    several = isinstance(value, list | tuple | range) and key not in LISTS
    values = list(value) if several else [value]
    require(len(values) > 0, f"{key}=[] leaves nothing to run: give it a value")
    return [tuple(v) if isinstance(v, list) else v for v in values]


def _local_steps(document: dict[str, Any], iterations: Any) -> list[int]:
    """Local steps in a round; those that do not fit the task's own iterations are refused when the
    task is known."""
    count = iterations is None or (type(iterations) is int and 1 <= iterations <= MOST_ITERATIONS)
    require(
        count, f"iterations{shown(iterations)} is not a whole number from 1 to {MOST_ITERATIONS:,}"
    )
    if document.get("local_steps") != "divisors":
        steps = _values(document, "local_steps", 1)
        wrong = [
            step
            for step in steps
            if type(step) is not int or step < 1 or (iterations and iterations % step)
        ]
        require(
            not wrong,
            f"local_steps{shown(wrong[0]) if wrong else ''} does not divide "
            f"iterations={iterations}",
        )
        return steps
    require(
        iterations is not None, 'local_steps = "divisors" needs iterations, whose divisors they are'
    )
    return divisors_of(iterations)
