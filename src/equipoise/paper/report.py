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
    table of best settings, its notes.

    store     what `sweep` wrote
    out       the folder
    measure   what takes the place of the error, such as "auroc"

    >>> swept = equipoise.sweep(task="quadratic", epsilon=[1, 4], clip=0.1, iterations=4,
    ...     local_steps=[1, 2], store="sweep.sqlite")
    >>> written = equipoise.report("sweep.sqlite", out="report")
    >>> (written.out / "index.html").exists()
    True
    """
    return write_report(Path(store), Path(out), PAPER, measure)
