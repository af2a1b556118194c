"""`sweep`: a grid in, a filled store out."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.errors import InvalidValue, require
from equipoise.paper.grid import paper_grid
from equipoise.sweeps.grid import Grid, grid, read_grid
from equipoise.sweeps.search import Found
from equipoise.sweeps.search import search as search_grid
from equipoise.sweeps.shard import read_shard
from equipoise.sweeps.stacks import key_of, resolved, task_of
from equipoise.sweeps.store import Store
from equipoise.sweeps.sweep import Progress
from equipoise.sweeps.sweep import sweep as run_grid
from equipoise.sweeps.workers import Workers
from equipoise.tasks import task_spec

NOTICE = (
    "SIMULATION, NOT PRIVATE: the noise of a sweep is seeded, and one process reads the records "
    "of all clients. If these records are private, nothing from its store may be published."
)
NAMED_GRIDS = {"paper": paper_grid}
"""Grids by name; others come from files."""

Watch = Callable[[Iterable[Progress]], Iterable[Progress]]


class Swept(NamedTuple):
    """How a sweep ended: runs finished, failed and in all, where they are, and what a reader must
    know first."""

    done: int
    failed: int
    total: int
    store: Path
    found: Sequence[Found] = ()
    """What a search found: the best local steps of every cell."""
    notice: str = NOTICE


def sweep(
    what: "str | os.PathLike[str] | dict[str, Any] | None" = None,
    *,
    store: "str | os.PathLike[str]" = "sweep.sqlite",
    workers: int = 1,
    retry: bool = False,
    simulate: bool = False,
    search: bool = False,
    ray: str | None = None,
    shard: str | None = None,
    watch: Watch = lambda steps: steps,
    **values: Any,
) -> Swept:
    """Run what is not in the store yet: ``sweep(task="breast-cancer", epsilon=[1, 2], clip=1,
    ...)``, or ``sweep("grid.toml")``, or ``sweep("paper", task="femnist")``, as the command does.

    Several workers are processes that import the calling script again: keep the call under
    ``if __name__ == "__main__":``.

    what       a grid: a TOML file, a dict, or the name of one; or else keywords
    store      the SQLite file that holds finished runs
    workers    how many processes train
    retry      whether runs that failed before are run again
    simulate   whether records of your own may be used, though seeded noise protects nobody
    search     whether only as much is run as finding the best local steps takes
    ray        the address of a Ray cluster, whose processors do the work instead of workers
    shard      one part of the grid: "2/8" is the second of eight
    watch      may wrap the iterator of progress, to show it
    values     the fields of `Settings`, each a value or a list of values; and `seeds`, the trials:
               three without it

    >>> swept = equipoise.sweep(task="quadratic", epsilon=[1, 4], clip=0.1, iterations=4,
    ...     local_steps=[1, 2], store="two.sqlite")
    >>> swept.done, swept.failed
    (12, 0)
    """
    task_of.cache_clear()  # files may have changed since the last sweep of this process
    runs = grid_of(what, Path(store), simulate=simulate, **values)
    part = read_shard(shard)
    check_search(search, shard)
    found: list[Found] = []
    with workers_of(workers, ray) as some:
        if search:
            steps = _searched(runs, Path(store), some, retry, found)
        else:
            steps = run_grid(runs.name, runs.cells, Path(store), some, retry, part)
        *_, progress = watch(steps)
    return Swept(progress.done, progress.failed, progress.total, Path(store), found)


def workers_of(number: int, ray: str | None) -> AbstractContextManager[int | Workers]:
    """Those who will work: so many processes, or a Ray cluster."""
    require(number >= 1, f"workers={number} is not >= 1")
    if ray is None:
        return nullcontext(number)
    require(
        number == 1,
        f"workers={number} with ray={ray}, whose processors do the work: leave one of them out",
    )
    try:
        from equipoise.sweeps.ray import Cluster
    except ModuleNotFoundError:
        raise InvalidValue(
            f"ray={ray} needs Ray: pip install 'equipoise[ray]', here and on all nodes"
        ) from None
    return Cluster(ray)


def check_search(search: bool, shard: str | None) -> None:
    require(
        not search or shard is None,
        f"shard={shard} with a search, which chooses its runs by the results of all: leave one of "
        "them out",
    )


def _searched(
    runs: Grid, store: Path, workers: int | Workers, retry: bool, found: list[Found]
) -> Iterator[Progress]:
    for progress, answers in search_grid(runs, store, workers, retry):
        found[:] = answers
        yield progress


def document_of(
    what: "str | os.PathLike[str] | dict[str, Any] | None", store: Path, **values: Any
) -> dict[str, Any]:
    """A grid as a document: from a file, by name (then it may depend on what is in the store), or
    as it was given."""
    if what is None:
        return values
    if isinstance(what, dict):
        return {**what, **values}
    name, here = os.fspath(what), {"device": values.pop("device")} if "device" in values else {}
    if name in NAMED_GRIDS:
        return {**NAMED_GRIDS[name](store=store, **values), **here}
    for key in values:
        raise InvalidValue(f"{key} with a grid of your own: give it in {name}")
    return {**read_grid(Path(name)), **here}


def grid_of(
    what: "str | os.PathLike[str] | dict[str, Any] | None",
    store: Path,
    *,
    simulate: bool,
    **values: Any,
) -> Grid:
    """The runs of a grid, once it is clear that nobody mistakes it for private training."""
    runs = grid(document_of(what, store, **values))
    for task in {settings.task for settings in runs.settings}:
        require(
            simulate or not task_spec(task).own_files,
            f"task={task} reads your own files, and a sweep is a simulation: its noise is seeded, "
            "and its store contains unprotected results from private records. If these records "
            "are public, or the store stays where they are, add --simulate",
        )
    return runs


def errors_of(runs: Grid, store: Path) -> Iterator[tuple[Any, float]]:
    """Every finished run of the grid with its test error."""
    wanted = {key_of(run): run for run in map(resolved, runs.settings)}
    with Store(store, read_only=True) as kept:
        rows = kept.table("key, test_error", "failed IS NULL AND test_error IS NOT NULL")
    return ((wanted[row["key"]], row["test_error"]) for row in rows if row["key"] in wanted)


def failures_of(runs: Grid, store: Path) -> list[str]:
    """Why runs of the grid could not be run."""
    wanted = {key_of(run) for run in map(resolved, runs.settings)}
    with Store(store, read_only=True) as kept:
        return [error for key, error in kept.failures().items() if key in wanted]


def missing_of(runs: Grid, store: Path) -> int:
    """How many runs of the grid are not in the store."""
    with Store(store, read_only=True) as kept:
        return len({key_of(run) for run in map(resolved, runs.settings)} - kept.keys())


__all__ = ["NOTICE", "Progress", "Swept", "errors_of", "failures_of", "grid_of", "sweep"]
