"""The commands `equipoise sweep` and `equipoise report`."""

import math
import os
import time
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.live import Live

from equipoise.cli_data import Json
from equipoise.errors import require
from equipoise.grids import Grid, grid, paper_grid, read_grid
from equipoise.shown import best_table, found_table, toml_text

STORE = Path("sweep.sqlite")
SHOWN_EVERY = 10.0  # seconds, where there is no terminal
_errors = Console(stderr=True)


def sweep(
    what: Annotated[str, Parameter(help="paper, or a TOML file with a grid of one's own")],
    /,
    *,
    task: Annotated[str | None, Parameter(help="of the paper's grid: cifar10, femnist, reddit, fed-ixi, messidor, ...")] = None,
    iterations: Annotated[int | None, Parameter(help="of the paper's grid (default: Table 1's)")] = None,
    seeds: Annotated[int, Parameter(help="trials of the paper's grid")] = 3,
    store: Annotated[Path, Parameter(help="the file that keeps every finished run")] = STORE,
    workers: Annotated[int | None, Parameter(help="processes (default: one for each core)")] = None,
    retry: Annotated[bool, Parameter(negative=(), help="run again what failed")] = False,
    search: Annotated[
        bool, Parameter(negative=(), help="find the best local steps of every budget with about 15 % of the grid's runs")
    ] = False,
    show_grid: Annotated[bool, Parameter(negative=(), help="print the grid as TOML, to edit, and run nothing")] = False,
    json: Json = False,
) -> None:
    """Run a grid of simulations; stop it at any moment, and start it again: what is finished is never run twice.

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
    found = _searched(runs, store, number) if search else _swept(runs, store, number, retry)
    if json:
        print(dumps(found, indent=2))


def _document(what: str, task: str | None, iterations: int | None, seeds: int) -> dict[str, Any]:
    if what == "paper":
        require(task is not None, "the paper's grid needs a task: --task femnist, for instance")
        return paper_grid(str(task), iterations, seeds)
    for name, value, default in (("task", task, None), ("iterations", iterations, None), ("seeds", seeds, 3)):
        require(value == default, f"{name}={value} with a grid of one's own: say it in {what}")
    return read_grid(Path(what))


def _swept(runs: Grid, store: Path, workers: int, retry: bool) -> dict[str, Any]:
    from equipoise.store import Store
    from equipoise.sweep import key_of, resolved
    from equipoise.sweep import sweep as run_sweep

    def best() -> Any:
        with Store(store, create=False) as kept:
            return best_table(kept.table("task, algorithm, unit, epsilon, clip_norm, iterations, local_steps, test_error"))

    progress = _shown(run_sweep(runs.name, runs.cells, store, workers, retry), best)
    with Store(store, create=False) as kept:
        wanted = {key_of(resolved(settings)) for settings in runs.settings}
        failed = {key: error for key, error in kept.failures().items() if key in wanted}
    for error in sorted({*failed.values()}):
        number = sum(said == error for said in failed.values())
        _errors.print(f"{number} runs failed: {error}; --retry runs them again", soft_wrap=True, highlight=False, markup=False)
    print(f"{progress.done} of {progress.total} runs are in {store}; `equipoise report {store}` makes figures of it")
    return {"done": progress.done, "failed": progress.failed, "total": progress.total, "store": str(store)}


def _searched(runs: Grid, store: Path, workers: int) -> dict[str, Any]:
    from equipoise.search import search as run_search

    *_, (_, answers) = _told(run_search(runs, store, workers))
    Console(soft_wrap=True, highlight=False, markup=False).print(found_table(answers))
    used, of = sum(answer.runs for answer in answers), sum(answer.of for answer in answers)
    print(f"{used} of the grid's {of} runs ({used / max(of, 1):.0%}) are in {store}")
    return {"found": [{**answer._asdict(), "settings": answer.settings.model_dump(mode="json")} for answer in answers]}


def _told(steps: Any) -> Any:
    last = -math.inf
    for progress, answers in steps:
        if time.monotonic() - last > SHOWN_EVERY:
            last = time.monotonic()
            _errors.print(_line(progress), highlight=False)
        yield progress, answers


def _shown(steps: Any, best: Any) -> Any:
    """Every step of a sweep, shown: live where somebody looks, a line now and then where not."""
    progress, last = None, -math.inf
    if _errors.is_terminal:
        with Live(console=_errors, transient=True) as live:
            for progress in steps:
                if time.monotonic() - last > 1:
                    live.update(_line(progress) if not progress.done else _group(_line(progress), best()))
                    last = time.monotonic()
    else:
        for progress in steps:
            if time.monotonic() - last > SHOWN_EVERY:
                _errors.print(_line(progress), highlight=False)
                last = time.monotonic()
    if progress and progress.done:
        Console(soft_wrap=True, highlight=False, markup=False).print(best())
    return progress


def _group(*parts: Any) -> Any:
    from rich.console import Group

    return Group(*parts)


def _line(progress: Any) -> str:
    left = "no estimate yet" if progress.left is None else f"about {_duration(progress.left)} left"
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{progress.done} of {progress.total} runs done{failed}, {progress.running} stacks running; {left}"


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
    """Make figures, tables and an interactive page of a store; and check the paper's observations on it."""
    from equipoise.report.writing import write_report

    with _errors.status("drawing"):
        summary = write_report(store, out)
    print(summary)
