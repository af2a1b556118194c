"""The grids of the paper's experiments, by figure."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.errors import InvalidValue, require
from equipoise.paper.second_stage import CLIP, other_iterations, swept_case
from equipoise.paper.tasks.rows import ROWS
from equipoise.refusals import shown

MOST_TRIALS = 1000
PAPER = {
    "algorithm": ["dp-fedavg", "dp-scaffnew"],
    "local_steps": "divisors",
    "epsilon": [3.3, 2.0, 1.0, 0.5, math.inf],
}
RECORD_CLIP = 1.0  # of one record's gradient: Table 1's thresholds are for messages


class Figure(NamedTuple):
    """What a figure shows, and with which of Table 1's clip thresholds."""

    shows: str
    clips: Callable[[Sequence[float]], Sequence[float]]
    tasks: str = ""
    """Part of the names of the only tasks that it has."""


def _every(clips: Sequence[float]) -> Sequence[float]:
    return clips


FIGURES = {
    2: Figure("error against local steps, C = 10", lambda clips: clips[:1]),
    4: Figure("error against local steps for every clip threshold", _every, "femnist"),
    5: Figure("best local steps against the clip threshold", _every),
    6: Figure("error against local steps, C = 50", lambda clips: [50.0]),
    7: Figure(
        "error against local steps, C = 100", lambda clips: clips[2:] if 100 in clips else []
    ),
    8: Figure("error against local steps at fixed iterations", _every, "ixi hippocampus"),
    9: Figure("error against local steps at fixed iterations", _every, "messidor deepdrid"),
}
AT_THE_BEST = (3, 10)  # figures of errors against iterations, at local steps that a sweep finds


def paper_grid(
    task: str,
    iterations: int | None = None,
    seeds: int = 3,
    figure: int | None = None,
    v: float | str | None = None,
    unit: str = "client",
    store: Path | None = None,
) -> dict[str, Any]:
    """The grid of the paper's experiments on one of its five tasks (or on their stand-ins): of one
    of its figures, or of all that vary local steps; with the noise of Lemma 1 if its constant v is
    given, else at an exact epsilon. Figures 3 and 10 go on from the store that a sweep of figure 2
    filled: their local steps are the best ones there."""
    require(
        task in ROWS,
        f"task{shown(task)} is not one of the paper's: there are {', '.join(sorted(ROWS))}",
    )
    require(1 <= seeds <= MOST_TRIALS, f"seeds={seeds} is not between 1 and {MOST_TRIALS:,}")
    require(
        v is None or unit == "client",
        f"v={v} with unit={unit}: Lemma 1 is about clients; leave one of them out",
    )
    common = {
        "name": f"paper-{task}" + (f"-figure-{figure}" if figure else ""),
        "task": task,
        "seeds": list(range(seeds)),
        **({} if v is None else {"noise_rule": "lemma1", "v": v}),
        **({} if unit == "client" else {"unit": unit}),
    }
    if figure in AT_THE_BEST:
        return {**common, "variant": _at_the_best(figure, task, iterations, v, unit, store)}
    row = ROWS[task]
    clips = list(row.clips if figure is None else _clips_of(figure, task, row.clips))
    return {
        **common,
        **PAPER,
        "iterations": row.iterations if iterations is None else iterations,
        "clip": clips if unit == "client" else RECORD_CLIP,
    }


def _at_the_best(
    figure: int,
    task: str,
    iterations: int | None,
    v: float | str | None,
    unit: str,
    store: Path | None,
) -> list[dict[str, Any]]:
    require(
        iterations is None,
        f"iterations={iterations} with figure={figure}, which has those of the store and others: "
        "leave one of them out",
    )
    if store is None:
        raise InvalidValue(
            f"figure={figure} shows errors at the best local steps of each budget: give the store "
            "that a sweep of figure 2 filled"
        )
    clip = CLIP if unit == "client" else RECORD_CLIP
    return other_iterations(swept_case(store, task, unit, v), clip)


def _named(parts: Sequence[str]) -> str:
    """The tasks whose names have one of these parts."""
    return ", ".join(task for task in ROWS if any(part in task for part in parts))


def _clips_of(number: int, task: str, clips: Sequence[float]) -> Sequence[float]:
    require(
        number in FIGURES,
        f"figure={number} is not one that a sweep can make: these are "
        f"{', '.join(map(str, sorted([*FIGURES, *AT_THE_BEST])))}",
    )
    figure = FIGURES[number]
    only = figure.tasks.split()
    require(
        not only or any(part in task for part in only),
        f"figure={number} with task={task}: it is about {_named(only)} alone; choose one of them",
    )
    chosen = figure.clips(clips)
    require(
        len(chosen) > 0,
        f"figure={number} with task={task}, for which Table 1 has no such clip threshold",
    )
    return chosen
