"""The commands `equipoise sweep` and `equipoise report`."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console, Group
from rich.live import Live

from equipoise.cli.data import Json
from equipoise.cli.text import as_text, best_table, found_table, toml_text
from equipoise.errors import require
from equipoise.sweeps.grid import Grid, grid, paper_grid, read_grid

STORE = Path("sweep.sqlite")
SHOWN_EVERY = 10.0  # seconds, where there is no terminal
_errors = Console(stderr=True)


def sweep(
    what: Annotated[str, Parameter(help="paper, or a TOML file with a grid of one's own")],
    /,
    *,
    task: Annotated[
        str | None,
        Parameter(help="of the paper's grid: cifar10, femnist, reddit, fed-ixi, messidor, ..."),
    ] = None,
    iterations: Annotated[
        int | None, Parameter(help="of the paper's grid (default: Table 1's)")
    ] = None,
    seeds: Annotated[int, Parameter(help="trials of the paper's grid")] = 3,
    store: Annotated[Path, Parameter(help="the file that keeps every finished run")] = STORE,
    workers: Annotated[int | None, Parameter(help="processes (default: one for each core)")] = None,
    retry: Annotated[bool, Parameter(negative=(), help="run again what failed")] = False,
    search: Annotated[
        bool,
        Parameter(
            negative=(),
            help="find the best local steps of every budget with about 15 % of the grid's runs",
        ),
    ] = False,
    show_grid: Annotated[
        bool, Parameter(negative=(), help="print the grid as TOML, to edit, and run nothing")
    ] = False,
    json: Json = False,
) -> None:
    """Run a grid of simulations; stop it at any moment, and start it again: what is finished is
    never run twice.

    Noise is seeded, so no result of a sweep is private: it tells how a private run would do.

    Example: equipoise sweep paper --task femnist --iterations 1000 --store femnist.sqlite
    """
    document = _document(what, task, iterations, seeds)
    if show_grid:
        print(toml_text(document), end="")
        return
    runs = grid(document)
    number = (os.cpu_count() or 1) if workers is None else workers
    require(number >= 1, f"workers={number} is not >= 1")
    try:
        found, text = (
            _searched(runs, store, number, retry) if search else _swept(runs, store, number, retry)
        )
    except KeyboardInterrupt:
        finished = f"what is finished is in {store}" if store.exists() else "nothing was finished"
        _errors.print(f"stopped: {finished}; the same command goes on from there", highlight=False)
        raise
    print(dumps(found, indent=2) if json else text)
    if found["failed"]:
        raise SystemExit(1)


def _document(what: str, task: str | None, iterations: int | None, seeds: int) -> dict[str, Any]:
    if what == "paper":
        require(task is not None, "the paper's grid needs a task: --task femnist, for instance")
        return paper_grid(str(task), iterations, seeds)
    for name, value, default in (
        ("task", task, None),
        ("iterations", iterations, None),
        ("seeds", seeds, 3),
    ):
        require(value == default, f"{name}={value} with a grid of one's own: say it in {what}")
    return read_grid(Path(what))


def _swept(runs: Grid, store: Path, workers: int, retry: bool) -> tuple[dict[str, Any], str]:
    from equipoise.sweeps.store import Store
    from equipoise.sweeps.sweep import key_of, resolved
    from equipoise.sweeps.sweep import sweep as run_sweep

    wanted = {key_of(run): run for run in map(resolved, runs.settings)}

    def best() -> Any:
        with Store(store, read_only=True) as kept:
            rows = kept.table("key, test_error", "failed IS NULL AND test_error IS NOT NULL")
        return best_table(
            [(wanted[row["key"]], row["test_error"]) for row in rows if row["key"] in wanted]
        )

    progress = _watched(run_sweep(runs.name, runs.cells, store, workers, retry), best)
    with Store(store, read_only=True) as kept:
        _tell_failures([error for key, error in kept.failures().items() if key in wanted])
    told = {
        "done": progress.done,
        "failed": progress.failed,
        "total": progress.total,
        "store": str(store),
    }
    end = (
        f"{progress.done} of {progress.total} runs are in {store}; `equipoise report {store}` "
        f"makes figures of it"
    )
    return told, as_text(best()) + end


def _searched(runs: Grid, store: Path, workers: int, retry: bool) -> tuple[dict[str, Any], str]:
    from equipoise.sweeps.search import search as run_search

    answers: list[Any] = []

    def steps() -> Iterator[Any]:
        for progress, found in run_search(runs, store, workers, retry):
            answers[:] = found
            yield progress

    _watched(steps())
    cells = {trials[0].model_copy(update={"local_steps": None}) for trials in runs.cells}
    used, of = sum(answer.runs for answer in answers), sum(len(trials) for trials in runs.cells)
    told = {
        "found": [
            {**answer._asdict(), "settings": answer.settings.model_dump(mode="json")}
            for answer in answers
        ],
        "failed": len(cells) - len(answers),
    }
    end = f"{used} of the grid's {of} runs ({used / max(of, 1):.0%}) are in {store}"
    if told["failed"]:
        end = (
            f"{told['failed']} of {len(cells)} budgets have no answer: all their runs failed\n{end}"
        )
    return told, as_text(found_table(answers)) + end


def _tell_failures(errors: list[str]) -> None:
    for error in sorted({*errors}):
        said = f"{errors.count(error)} runs failed: {error}; --retry runs them again"
        _errors.print(said, soft_wrap=True, highlight=False, markup=False)


def _watched(steps: Iterator[Any], best: Callable[[], Any] | None = None) -> Any:
    """Go through all steps of a sweep and show them: live where somebody looks, a line now and then
    where not."""
    progress, last = None, -math.inf
    with Live(console=_errors, transient=True) if _errors.is_terminal else nullcontext() as live:
        for progress in steps:
            if time.monotonic() - last < (1 if live else SHOWN_EVERY):
                continue
            if live:
                live.update(Group(_line(progress), *([best()] if best and progress.done else [])))
            else:
                _errors.print(_line(progress), highlight=False)
            last = time.monotonic()
    return progress


def _line(progress: Any) -> str:
    left = "no estimate yet" if progress.left is None else f"about {_duration(progress.left)} left"
    failed = f", {progress.failed} failed" if progress.failed else ""
    rest = progress.total - progress.done - progress.failed - progress.running
    return (
        f"{progress.done} of {progress.total} runs done{failed}, {progress.running} running, "
        f"{rest} waiting; {left}"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def report(
    store: Annotated[Path, Parameter(help="what `equipoise sweep` filled")] = STORE,
    /,
    *,
    out: Annotated[Path, Parameter(help="the folder to write")] = Path("report"),
) -> None:
    """Make figures, tables and an interactive page of a store; and check the paper's observations
    on it."""
    from equipoise.paper.observations.check import PAPER
    from equipoise.reports.writing import write_report

    with _errors.status("drawing"):
        summary = write_report(store, out, PAPER)
    print(summary)
