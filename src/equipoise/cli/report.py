"""The command `equipoise report`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equipoise.cli.console import errors

STORE = Path("sweep.sqlite")


def report(
    store: Annotated[Path, Parameter(help="the file that `equipoise sweep` filled")] = STORE,
    /,
    *,
    out: Annotated[Path, Parameter(help="the folder to write")] = Path("report"),
) -> None:
    """Make figures, tables and an interactive page from a store, and check the paper's observations
    on it."""
    from equipoise.paper.report import report as write

    with errors.status("drawing"):
        summary = write(store, out)
    print(summary)
