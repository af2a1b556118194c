"""The command `equipoise sweep`."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Group
from rich.live import Live

from equipoise.cli.console import Json, errors, say
from equipoise.cli.flags import Device
from equipoise.cli.report import STORE
from equipoise.cli.text import as_text, best_table, found_table, toml_text
from equipoise.describe import duration
from equipoise.device import HOST
from equipoise.errors import require

if TYPE_CHECKING:
    from equipoise.sweeps.grid import Grid
    from equipoise.sweeps.shard import Shard
    from equipoise.sweeps.workers import Workers

SHOWN_EVERY = 10.0  # seconds, where there is no terminal


def sweep(
    what: Annotated[str, Parameter(help="paper, or a TOML file with a grid of your own")],
    /,
    *,
    task: Annotated[
        str | None,
        Parameter(help="for the paper's grid: cifar10, femnist, reddit, fed-ixi, messidor, ..."),
    ] = None,
    iterations: Annotated[
        int | None, Parameter(help="for the paper's grid (default: Table 1's)")
    ] = None,
    seeds: Annotated[
        int | None, Parameter(help="for the paper's grid: number of trials (default: 3)")
    ] = None,
    figure: Annotated[
        int | None,
        Parameter(
            help="for the paper's grid: what this figure shows (2 to 10) and no more; 3 and 10 go "
            "on from the store of 2"
        ),
    ] = None,
    v: Annotated[
        str | None,
        Parameter(
            help="for the paper's grid: the noise of Lemma 1 with this constant, a number or a "
            "reading such as record-style (default: an exact epsilon)"
        ),
    ] = None,
    unit: Annotated[
        str | None, Parameter(help="for the paper's grid: protect a client (default) or a record")
    ] = None,
    store: Annotated[Path, Parameter(help="the file that keeps every finished run")] = STORE,
    workers: Annotated[
        int | None, Parameter(help="processes (default: one for each core, and one with --device)")
    ] = None,
    retry: Annotated[bool, Parameter(negative=(), help="run again the runs that failed")] = False,
    search: Annotated[
        bool,
        Parameter(
            negative=(),
            help="find the best local steps of every budget with about 15 % of the grid's runs",
        ),
    ] = False,
    ray: Annotated[
        str | None,
        Parameter(help="run on a Ray cluster: its address HOST:PORT, or auto for the one here"),
    ] = None,
    shard: Annotated[
        str | None, Parameter(help="run one part of the grid: 2/8 is the second of eight")
    ] = None,
    device: Device = None,
    simulate: Annotated[
        bool,
        Parameter(
            negative=(),
            help="sweep a task that reads files of your own: nothing in the store is protected",
        ),
    ] = False,
    show_grid: Annotated[
        bool, Parameter(negative=(), help="print the grid as TOML, to edit, and run nothing")
    ] = False,
    json: Json = False,
) -> None:
    """Run a grid of simulations; stop it at any moment and start it again: what is finished is
    never run twice.

    Noise is seeded, so no result of a sweep is private: it shows how a private run would do.

    Example: equipoise sweep paper --task femnist --iterations 1000 --store femnist.sqlite
    """
    from equipoise.sweeps.grid import grid as checked_grid
    from equipoise.sweeps.run import NOTICE, check_search, document_of, grid_of, workers_of
    from equipoise.sweeps.shard import read_shard

    values = {
        "task": task,
        "iterations": iterations,
        "seeds": seeds,
        "figure": figure,
        "v": _number(v),
        "unit": unit,
        "device": device,
    }
    given = {name: value for name, value in values.items() if value is not None}
    _check_given(what, given)
    require(
        ray is None or ray.strip() != "",
        "ray= is empty: give the address of a Ray cluster, HOST:PORT, or auto for the one here",
    )
    if show_grid:
        document = document_of(what, store, **given)
        checked_grid(document)
        print(toml_text(document), end="")
        return
    runs = grid_of(what, store, simulate=simulate, **given)
    part = read_shard(shard)
    check_search(search, shard)
    on_host = device in (None, HOST)
    cores = 1 if ray or not on_host else os.cpu_count() or 1
    try:
        with workers_of(cores if workers is None else workers, ray) as some:
            say(NOTICE)
            if what == "paper":
                _foretold(runs)
            if search:
                document, text = _searched(runs, store, some, retry)
            else:
                document, text = _swept(runs, store, some, retry, part)
    except KeyboardInterrupt:
        finished = f"what is finished is in {store}" if store.exists() else "nothing was finished"
        raise KeyboardInterrupt(f"{finished}; the same command goes on from there") from None
    print(dumps({"notice": NOTICE, **document}, indent=2) if json else text)
    if document["failed"]:
        raise SystemExit(1)


def _check_given(what: str, given: dict[str, Any]) -> None:
    """The paper's grid needs a task; a grid of one's own has neither figures nor a number of
    trials."""
    if what == "paper":
        require("task" in given, "the paper's grid needs a task: --task femnist, for instance")
        return
    require(
        "figure" not in given,
        f"figure={given.get('figure')} with {what}: figures are parts of the paper's grid alone; "
        "leave it out",
    )
    require(
        "seeds" not in given,
        f"seeds={given.get('seeds')} with {what}: a number of trials is for the paper's grid "
        f"alone; give a list in {what}, such as seeds = [0, 1, 2]",
    )


def _number(v: str | None) -> float | str | None:
    """The constant of Lemma 1, where it is a number; else the name of a reading, or a mistake that
    the settings tell."""
    try:
        return None if v is None else float(v)
    except ValueError:
        return v


def _foretold(runs: "Grid") -> None:
    from equipoise.sweeps.foreword import foreword

    for label, text in [*foreword(runs), *_planned(runs)]:
        say(f"{label:<8}{text}")


def _planned(runs: "Grid") -> Iterator[tuple[str, str]]:
    """What the planner says about the largest exact budget of each kind."""
    from equipoise.planning.planner import plan

    largest: dict[tuple[Any, ...], float] = {}
    for run in runs.settings:
        if run.epsilon < math.inf and run.mechanism.at_label:
            kind = (run.task, run.clients, run.unit, run.trust)
            largest[kind] = max(run.epsilon, largest.get(kind, 0.0))
    for (task, clients, unit, trust), epsilon in largest.items():
        planned = plan(task=task, clients=clients, unit=unit, trust=trust, epsilon=epsilon)
        loud = "" if planned.nu2 is None else f"; nu^2 = {planned.nu2:.3g}"
        yield "plan", f"at epsilon = {epsilon:g} for one {unit}: {planned.verdict}{loud}"


def _swept(
    runs: "Grid", store: Path, workers: "int | Workers", retry: bool, shard: "Shard"
) -> tuple[dict[str, Any], str]:
    from equipoise.sweeps.run import errors_of, failures_of
    from equipoise.sweeps.sweep import sweep as run_grid

    def best() -> Any:
        return best_table(list(errors_of(runs, store)))

    progress = _watched(run_grid(runs.name, runs.cells, store, workers, retry, shard), best)
    _tell_failures(failures_of(runs, store))
    document = {
        "done": progress.done,
        "failed": progress.failed,
        "total": progress.total,
        "store": str(store),
    }
    of_shard, then = "", f"`equipoise report {store}` makes figures of it"
    if shard.parts > 1:
        of_shard, then = f" of shard {shard}", "`equipoise store merge` joins it with the others"
    end = f"{progress.done} of {progress.total} runs{of_shard} are in {store}; {then}"
    if shard.parts > 1 and not progress.total:
        none = f"shard {shard} has no runs: there are fewer stacks of runs than shards; give fewer"
        return document, none
    return document, as_text(best()) + end


def _searched(
    runs: "Grid", store: Path, workers: "int | Workers", retry: bool
) -> tuple[dict[str, Any], str]:
    from equipoise.sweeps.search import search as run_search

    answers: list[Any] = []

    def steps() -> Iterator[Any]:
        for progress, answered in run_search(runs, store, workers, retry):
            answers[:] = answered
            yield progress

    _watched(steps())
    cells = {trials[0].model_copy(update={"local_steps": None}) for trials in runs.cells}
    used = sum(answer.runs for answer in answers)
    total = sum(len(trials) for trials in runs.cells)
    document = {
        "found": [
            {**answer._asdict(), "settings": answer.settings.model_dump(mode="json")}
            for answer in answers
        ],
        "failed": len(cells) - len(answers),
    }
    end = f"{used} of the grid's {total} runs ({used / max(total, 1):.0%}) are in {store}"
    if failed := document["failed"]:
        end = f"{failed} of {len(cells)} budgets have no answer: all their runs failed\n{end}"
    return document, as_text(found_table(answers)) + end


def _tell_failures(reasons: list[str]) -> None:
    for reason in sorted({*reasons}):
        say(f"{reasons.count(reason)} runs failed: {reason}; --retry runs them again")


def _watched(steps: Iterator[Any], best: Callable[[], Any] | None = None) -> Any:
    """Go through all steps of a sweep and show them: live where somebody looks, a line now and then
    where not."""
    progress, last = None, -math.inf
    with Live(console=errors, transient=True) if errors.is_terminal else nullcontext() as live:
        for progress in steps:
            if time.monotonic() - last < (1 if live else SHOWN_EVERY):
                continue
            if live:
                live.update(Group(_line(progress), *([best()] if best and progress.done else [])))
            else:
                errors.print(_line(progress), highlight=False)
            last = time.monotonic()
    return progress


def _line(progress: Any) -> str:
    left = "no estimate yet" if progress.left is None else f"about {duration(progress.left)} left"
    failed = f", {progress.failed} failed" if progress.failed else ""
    rest = progress.total - progress.done - progress.failed - progress.running
    return (
        f"{progress.done} of {progress.total} runs done{failed}, {progress.running} running, "
        f"{rest} waiting; {left}"
    )
