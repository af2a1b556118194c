"""`report`: a store in, figures, tables and a page out, with the paper's observations checked on
it."""

import os
from pathlib import Path

from equipoise.paper.observations.check import PAPER
from equipoise.reports.writing import Summary, write_report


def report(
    store: "str | os.PathLike[str]" = "sweep.sqlite",
    out: "str | os.PathLike[str]" = "report",
    *,
    measure: str | None = None,
) -> Summary:
    """Write the report of a store into a folder: figures, tables, a page. Returns its files, its
    table of best settings, its notes. ``report("sweep.sqlite", out="report")``.

    store     what `sweep` wrote
    out       the folder
    measure   what takes the place of the error, such as "auroc"
    """
    return write_report(Path(store), Path(out), PAPER, measure)
