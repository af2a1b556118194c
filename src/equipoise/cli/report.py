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
    measure: Annotated[
        str | None,
        Parameter(
            help="what takes the place of the error everywhere: auroc (as 1 - AUROC), brier, "
            "accuracy, rmse, ... (default: the error of the task, the paper's)"
        ),
    ] = None,
) -> None:
    """Make figures, tables and an interactive page from a store, and check the paper's observations
    on it."""
    from equipoise.paper.report import report as write

    with errors.status("drawing"):
        summary = write(store, out, measure=measure)
    print(summary)
