"""The commands `equipoise data ...`."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.progress import Progress

from equipoise.cli.console import Json, errors, output, say
from equipoise.cli.text import stock_lines
from equipoise.errors import require

data = App(name="data", help="See which data sets there are, fetch them, and describe your own.")


@data.default
def data_list(*, json: Json = False) -> None:
    """List the data sets: where each belongs, whether it is there and complete, its licence, and
    how to get it."""
    from equipoise.paper.data.inventory import DATA_SETS

    _tell_stock(list(DATA_SETS), False, json)


@data.command(name="check")
def data_check(*names: str, json: Json = False) -> None:
    """Read data sets in full (all of them, or those named), keep them prepared, and say whether
    they are complete."""
    from equipoise.paper.data.inventory import DATA_SETS

    _tell_stock(list(names) or list(DATA_SETS), True, json)


@data.command(name="fetch")
def data_fetch(name: str, /) -> None:
    """Download a data set from its official address, check it, and put it where its task looks for
    it."""
    from equipoise.paper.data.downloads import fetch
    from equipoise.paper.data.inventory import data_set

    chosen = data_set(name)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        bar = progress.add_task(f"fetching {name}")
        paths = fetch(chosen, lambda done, size: progress.update(bar, completed=done, total=size))
    print("\n".join(str(path) for path in paths))


def _tell_stock(names: list[str], read: bool, json: bool) -> None:
    from equipoise.paper.data.inventory import take_stock

    stocks = []
    for name in names:
        with errors.status(f"reading {name}"):
            stocks.append(take_stock(name, read))
    if json:
        print(dumps([stock._asdict() for stock in stocks], indent=2))
    else:
        output().print(stock_lines(stocks))
    if any(stock.state.startswith("unreadable") for stock in stocks):
        sys.exit(1)


@data.command(name="bounds")
def data_bounds(
    *,
    columns: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True, negative=(), help="names of the columns, including the label"
        ),
    ] = (),
    header: Annotated[
        Path | None,
        Parameter(
            name="--from",
            help="take the names from the header of this CSV or Parquet file, of which nothing "
            "else is read",
        ),
    ] = None,
) -> None:
    """Print a template of the bounds file, to fill in by hand: ... --columns age sex outcome >
    bounds.toml"""
    from equipoise.tasks.bounds import bounds_template, template_from

    require(
        bool(columns) != bool(header),
        "columns and from: name the columns (--columns age sex outcome), or give one file that "
        "has them in its header (--from FILE)",
    )
    if header:
        print(template_from(str(header)), end="")
        say(f"the names are the first line of {header}: see that they are no record's")
    else:
        print(bounds_template(columns), end="")


@data.command(name="try")
def data_try(
    *files: Annotated[str, Parameter(help="your own CSV or Parquet files, or LIBSVM texts")],
    bounds: Annotated[
        Path, Parameter(help="TOML file with public bounds of every column, or of index and label")
    ],
    label: Annotated[str | None, Parameter(help="the column to predict (task csv)")] = None,
    task: Annotated[
        str | None, Parameter(help="the task that reads them: csv, the default, or libsvm")
    ] = None,
    person: Annotated[
        str | None,
        Parameter(
            help="the column that says whose a row is, or the file that does, with a name on each "
            "line (task libsvm): counts the rows of each"
        ),
    ] = None,
    ignore: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True, negative=(), help="columns of the files that are left aside"
        ),
    ] = (),
    json: Json = False,
) -> None:
    """Read your own files as training would, and say what becomes of them: rows that are left out,
    cells that are clipped or filled, categories that were not declared.

    For the owner's eyes only. Nothing is sent or saved. The exit code is 0 if all is fine, 1 if
    there is something that a person should look at, 2 if a file cannot be used.

    Example: equipoise data try hospital.csv --bounds bounds.toml --label readmitted
    """
    from equipoise.tasks.try_data import try_data

    tried = try_data(files, bounds=bounds, label=label, task=task, person=person, ignore=ignore)
    print(tried.to_json() if json else tried)
    if tried.code:
        sys.exit(tried.code)
