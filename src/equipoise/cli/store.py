"""The commands `equipoise store ...`."""

import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from equipoise.cli.console import Json, say

if TYPE_CHECKING:
    from equipoise.sweeps.merge import Inside

store = App(name="store", help="See what is in a store, and join the stores of shards.")


@store.command(name="show")
def store_show(file: Path, /, *, json: Json = False) -> None:
    """Say what is in a store: sweeps, tasks, runs, and the version of the arithmetic."""
    from equipoise.sweeps.merge import inside

    _tell(inside(file), {}, json)


@store.command(name="merge")
def store_merge(
    *stores: Annotated[Path, Parameter(help="the stores to join")],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="the store to write")],
    grid: Annotated[
        Path | None, Parameter(help="the sweep's TOML file, to say whether runs are missing")
    ] = None,
    json: Json = False,
) -> None:
    """Join stores, of shards for instance, into a new one. A run may be in several of them, if its
    results are equal there.

    Example: equipoise store merge part-1.sqlite part-2.sqlite -o all.sqlite --grid grid.toml
    """
    from equipoise.sweeps.grid import grid as runs_of
    from equipoise.sweeps.grid import read_grid
    from equipoise.sweeps.merge import merge
    from equipoise.sweeps.run import failures_of, missing_of

    runs = None if grid is None else runs_of(read_grid(grid))
    merged = merge(stores, out)
    missing = 0 if runs is None else missing_of(runs, out)
    _tell(merged, {} if runs is None else {"missing": missing}, json)
    if runs is not None and missing:
        _tell_missing(missing, len(failures_of(runs, out)), f"{grid}", f"{grid} --store {out}")
        sys.exit(1)


def _tell_missing(missing: int, failed: int, grid: str, sweep: str) -> None:
    """What is not in a store, and what brings it there: a sweep leaves failed runs alone."""
    if missing > failed:
        say(
            f"{missing - failed} runs of {grid} are missing: merge the other shards too, or let "
            f"`equipoise sweep {sweep}` run them"
        )
    if failed:
        say(f"{failed} runs of {grid} failed: `equipoise sweep {sweep} --retry` runs them again")


def _tell(inside: "Inside", more: dict[str, Any], json: bool) -> None:
    if json:
        print(dumps({**inside._asdict(), **more}, indent=2))
        return
    versions = ", ".join("not noted" if n is None else str(n) for n in inside.arithmetic)
    print(
        f"{inside.store}: {inside.runs} runs, {inside.failed} failed, {inside.bytes:,} bytes\n"
        f"sweeps              {', '.join(inside.sweeps)}\n"
        f"tasks               {', '.join(inside.tasks)}\n"
        f"arithmetic version  {versions}"
    )
