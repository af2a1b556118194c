"""The command `equipoise`. What is heavy is imported inside the commands, so that help is instant."""

import logging
import sys
from collections.abc import Iterable
from importlib.metadata import version
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import App, CycloptsError, Parameter
from pydantic import ValidationError
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from equipoise.errors import EquipoiseError, InvalidValue
from equipoise.run import Result, Settings, first_sentence

if TYPE_CHECKING:
    from equipoise.training import Round

app = App(
    name="equipoise",
    help="Train one model between organisations that do not share data, and get the most out of a privacy budget.",
    version=version("equipoise"),
)
data = app.command(App(name="data", help="Get data ready."))
_errors = Console(stderr=True)

Json = Annotated[bool, Parameter(negative=(), help="print one JSON document")]


@app.command
def train(
    *,
    settings: Annotated[Settings, Parameter(name="*")],
    json: Json = False,
    out: Annotated[Path | None, Parameter(help="new folder for model, result, guarantee.md and curve")] = None,
    client_log: Annotated[
        Path | None, Parameter(help="file for what clients notice about their own data; private, it stays with them")
    ] = None,
) -> None:
    """Train privately in this process, and say what was spent.

    Example: equipoise train --task breast-cancer --epsilon 2 --clip 1 --local-steps 4 --trust secure-aggregation
    """
    from equipoise.saved import reserve, save
    from equipoise.training import train as run_training

    if client_log:
        _keep_client_log(client_log)
    if out:
        reserve(out)
    result = run_training(settings, watch=_progress)
    _tell(result, json)
    if out:
        save(result, out)
        _draw(result, out)
        _errors.print(f"saved in {out}", soft_wrap=True, highlight=False)
    if result.failed:
        sys.exit(1)


@app.command
def show(folder: Path, /, *, json: Json = False) -> None:
    """Show a run that `train --out FOLDER` saved."""
    from equipoise.saved import load

    _tell(load(folder), json)


@app.command
def evaluate(
    folder: Path,
    /,
    *,
    data: Annotated[
        tuple[str, ...], Parameter(consume_multiple=True, negative=(), help="files to evaluate on (tasks csv and libsvm)")
    ] = (),
    json: Json = False,
) -> None:
    """Measure a saved model, on the public test records of its task or on files of one's own.

    The figures are not noised: on private records they are outside every guarantee.
    """
    from equipoise.saved import load
    from equipoise.training import measure_again

    result = load(folder)
    bounds = folder / "bounds.toml"
    error, loss = (float(value) for value in measure_again(result, data, str(bounds) if bounds.exists() else None))
    if json:
        print(dumps({"error": error, "loss": loss, "error_name": result.error_name, "data": data, "covered": False}))
    else:
        on = ", ".join(data) if data else "the public test records of its task"
        print(f"error {error:.4f} ({result.error_name}), loss {loss:.4f}, on {on}: not noised, outside the guarantee")


@data.command(name="bounds")
def data_bounds(
    *,
    columns: Annotated[
        tuple[str, ...], Parameter(consume_multiple=True, negative=(), help="names of the columns, the label too")
    ],
) -> None:
    """Print a template of the bounds file, to fill in by hand: ... --columns age sex outcome > bounds.toml"""
    from equipoise.tasks.bounds import bounds_template

    print(bounds_template(columns), end="")


def _keep_client_log(path: Path) -> None:
    try:
        handler = logging.FileHandler(path)
    except OSError as error:
        raise InvalidValue(f"client_log={path} cannot be written: {error.strerror}") from None
    log = logging.getLogger("equipoise.client")
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def _draw(result: Result, out: Path) -> None:
    from equipoise.report.curve import draw_curve
    from equipoise.saved import write_whole

    if not result.curve:
        return
    try:
        write_whole(out / "curve.png", lambda path: draw_curve(result, path))
    except EquipoiseError as error:
        _errors.print(f"curve.png was left out: {error}", soft_wrap=True, highlight=False)


def _tell(result: Result, json: bool) -> None:
    if json:
        print(result.to_json())
    else:
        _print_table(result)


def _print_table(result: Result) -> None:
    """The result for a reader: what must be known first, then what came out, then what was promised to whom."""
    console = Console(soft_wrap=True, highlight=False)
    for notice in result.notices:
        console.print(f"[bold red]{notice}[/]")
    pace = f"{result.local_steps} local steps" if result.local_steps else f"about {1 / result.p:g} local steps (coin)"
    console.print(
        f"[bold]{result.task}[/], {result.algorithm}: {result.rounds} rounds of {pace}, {result.clients} clients, "
        f"d = {result.dimension}, eta = {result.eta:.4g}"
    )
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    if result.test_error is None or result.baseline_error is None:
        table.add_row("test error", "no public test records were given (--test FILE)")
    else:
        table.add_row("test error", f"[bold]{result.test_error:.4f}[/]   not training: {result.baseline_error:.4f}")
        table.add_row("", f"[dim]{result.error_name}, on records declared public, outside the guarantee[/]")
    table.add_row("spent", _spent(result))
    table.add_row("protects", _protects(result))
    table.add_row("noise", _noise(result))
    console.print(table)
    if result.per_round:
        console.print(_diagnostics(result))


def _spent(result: Result) -> str:
    if result.epsilon_spent == float("inf"):
        return "everything: epsilon = inf"
    return (
        f"epsilon = [bold]{result.epsilon_spent:.6g}[/] at delta = {result.delta:g}, exact, for all {result.releases} releases "
        f"(budget: {result.epsilon:g})"
    )


def _protects(result: Result) -> str:
    seen = {
        "local": "the adversary sees every message",
        "secure-aggregation": f"the adversary sees only the sum of a round, {result.colluding} client(s) collude",
    }[result.trust]
    return "nobody: see the first line" if result.simulation else f"one {result.unit}, {result.neighbours}; {seen}"


def _noise(result: Result) -> str:
    where = "a message" if result.trust == "local" else "the sum of a round"
    return (
        f"sigma = {result.sigma:.4g} per coordinate of {where}; a client adds {result.client_sigma:.4g}; "
        f"clip C = {result.clip_norm:g}; rule {result.noise_rule}; source {result.noise_source}"
    )


def _diagnostics(result: Result) -> Table:
    table = Table(title="private values, for simulation only", title_justify="left")
    for heading in ("round", "clipped", "mean |update|", "mean |h|", "train error"):
        table.add_column(heading, justify="right")
    for row in result.per_round or []:
        h_norm = "" if row.h_norm is None else f"{row.h_norm:.4g}"
        table.add_row(str(row.round), f"{row.clipped:.0%}", f"{row.update_norm:.4g}", h_norm, f"{row.train_error:.4f}")
    return table


def _progress(rounds: "Iterable[Round]", total: int) -> "Iterable[Round]":
    return track(rounds, "training", total, console=_errors, transient=True, disable=not _errors.is_terminal)


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user's mistake is one sentence on standard error and a non-zero exit, never a traceback."""
    try:
        app(sys.argv[1:] if arguments is None else arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        cause = error.__cause__
        _fail(first_sentence(cause) if isinstance(cause, ValidationError) else str(error))
    except EquipoiseError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted")


def _fail(sentence: str) -> NoReturn:
    _errors.print(Text.assemble(("error: ", "bold red"), sentence), soft_wrap=True)
    sys.exit(2)
