"""The command `equipoise`. What is heavy is imported inside the commands, so that help is instant."""

import logging
import os
import sys
from collections.abc import Iterable
from importlib.metadata import version
from json import dumps
from math import inf, isfinite
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
    from equipoise.fleets import Round

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
    from equipoise.saved import release_claim, reserve, save
    from equipoise.training import train as run_training

    if client_log:
        _keep_client_log(client_log)
    if out:
        reserve(out)
    try:
        result = run_training(settings, watch=_progress)
    except BaseException:
        if out:
            release_claim(out)
        raise
    if out:
        no_picture = save(result, out)
        _say(f"saved in {out}" + (f"; {no_picture}" if no_picture else ""))
    _tell(result, json)
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
    error, loss = (float(value) for value in measure_again(result, data))
    if json:
        print(
            dumps({"error": _json(error), "loss": _json(loss), "error_name": result.error_name, "data": data, "covered": False})
        )
    else:
        on = ", ".join(data) if data else "the public test records of its task"
        print(f"error {error:.4f} ({result.error_name}), loss {loss:.4f}, on {on}: not noised, outside the guarantee")


def _json(value: float) -> float | str:
    return value if isfinite(value) else str(value)


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
    """Into a file that only its owner may read. A log that cannot be written is lost in silence: an error would tell of it."""
    try:
        path.touch(0o600)
        handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InvalidValue(f"client_log={path} cannot be written: {error.strerror}") from None
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    log = logging.getLogger("equipoise.client")
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def _tell(result: Result, json: bool) -> None:
    if json:
        print(result.to_json())
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for notice in result.notices:
        console.print(notice, style="bold red")
    for name, text in _facts(result):
        console.print(f"{name:<12}{text}" if name else text)
    if result.per_round:
        console.print(_diagnostics(result))


def _facts(result: Result) -> list[tuple[str, str]]:
    """What came out, what was spent, and what was promised to whom: one fact a line."""
    pace = f"{result.local_steps} local steps" if result.local_steps else f"about {1 / result.p:g} local steps (coin)"
    facts = [
        (
            "",
            f"{result.task}, {result.algorithm}: {_number_of(result.rounds, 'round')} of {pace}, "
            f"{_number_of(result.clients, 'client')}, d = {result.dimension}, eta = {result.eta:.4g}",
        ),
    ]
    if result.test_error is None or result.baseline_error is None:
        facts.append(("test error", "no public test records were given (--test FILE)"))
    else:
        facts += [
            ("test error", f"{result.test_error:.4f}   without training: {result.baseline_error:.4f}"),
            ("", f"            {result.error_name}, on records declared public, outside the guarantee"),
        ]
        if result.test_error >= result.baseline_error:
            facts.append(
                ("", "            no better than not training: fewer rounds, a smaller clip or more clients lessen the noise")
            )
    if result.epsilon_spent == inf:
        facts.append(("spent", "everything: epsilon = inf"))
    else:
        would = "would spend" if result.simulation else "spent"
        releases, delta = _number_of(result.releases, "release"), result.delta
        facts.append(
            (
                would,
                f"epsilon = {result.epsilon_spent:.6g} of {result.epsilon:g} at delta = {delta:g}: exact, for {releases}",
            )
        )
    if result.simulation:
        facts.append(("protects", "nobody: see the first line"))
    else:
        facts.append(("protects", f"one {result.unit} and all it holds; neighbours: {result.neighbours}"))
    seen = "every message" if result.trust == "local" else "only the sum of a round"
    colluding = "" if result.colluding is None else f", while {_number_of(result.colluding, 'client')} may collude"
    facts += [
        ("against", f"an adversary who sees {seen}{colluding} (trust: {result.trust})"),
        (
            "noise",
            f"sigma = {result.sigma:.4g} per coordinate of {'a message' if result.trust == 'local' else 'the sum of a round'}; "
            f"each client adds {result.client_sigma:.4g}",
        ),
        ("clip", f"C = {result.clip_norm:g}; noise rule: {result.noise_rule}; noise source: {result.noise_source}"),
    ]
    return facts


def _number_of(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


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
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # whoever read our output has gone: nothing more to say
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename or 'output'}: {error.strerror}", 1)
    except KeyboardInterrupt:
        sys.exit("interrupted")


def _say(sentence: str) -> None:
    _errors.print(sentence, soft_wrap=True, highlight=False, markup=False)


def _fail(sentence: str, code: int = 2) -> NoReturn:
    _errors.print(Text.assemble(("error: ", "bold red"), sentence), soft_wrap=True)
    sys.exit(code)
