"""The command `equipoise`. What is heavy is imported inside the commands, so that help is
instant.
"""

import logging
import os
import sys
from collections.abc import Iterable
from importlib.metadata import version
from json import dumps, loads
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import App, CycloptsError, Parameter
from pydantic import ValidationError
from rich.console import Console
from rich.progress import track
from rich.text import Text

from equipoise.cli.data import Json, data
from equipoise.cli.sweep import report, sweep
from equipoise.cli.text import (
    comparison,
    diagnostics,
    noise_table,
    plan_lines,
    run_facts,
    trade_off,
)
from equipoise.errors import EquipoiseError, InvalidValue, require
from equipoise.planning.plan import Plan, Question
from equipoise.result import Result
from equipoise.settings import Settings, first_sentence

if TYPE_CHECKING:
    from equipoise.fleets import Round

app = App(
    name="equipoise",
    help="Train one model between organisations that do not share data, and get the most out of a "
    "privacy budget.",
    version=version("equipoise"),
)
app.command(data)
app.command(report)
app.command(sweep)
_errors = Console(stderr=True)


@app.command
def plan(
    *,
    question: Annotated[Question, Parameter(name="*")],
    json: Json = False,
    save_plot: Annotated[
        Path | None,
        Parameter(help="picture of the trade-off over the budgets: .png, .svg or .html"),
    ] = None,
) -> None:
    """Find the best local steps, rounds, step size, clip and noise for a privacy budget, and
    whether to train at all.

    Nothing of the budget is spent: plans are tried on stand-ins made of public records. With --json
    and one budget the output is what `equipoise train --plan FILE` reads.

    Example: equipoise plan --task breast-cancer --epsilon 2 --clip 1 --trust secure-aggregation
    """
    from equipoise.reports.trade_off import check_picture, draw_trade_off

    if save_plot:
        check_picture(save_plot)
    if question.task is None:
        from equipoise.planning.without_data import plan_constants

        plans = [plan_constants(question, epsilon) for epsilon in question.epsilon]
    else:
        _one_thread()
        from equipoise.planning.planner import plan as make_plans

        with _errors.status("planning on public stand-ins"):
            plans = make_plans(question)
    if save_plot:
        draw_trade_off(plans, save_plot)
    if json:
        print(
            plans[0].to_json()
            if len(plans) == 1
            else dumps({"plans": [loads(plan.to_json()) for plan in plans]}, indent=2)
        )
    else:
        _tell_plans(plans)


@app.command
def train(
    *,
    settings: Annotated[Settings | None, Parameter(name="*")] = None,
    plan: Annotated[
        Path | None,
        Parameter(help="a plan that `equipoise plan --json` wrote, instead of the settings"),
    ] = None,
    anyway: Annotated[
        bool, Parameter(negative=(), help="train although the plan says: do not train")
    ] = False,
    json: Json = False,
    out: Annotated[
        Path | None, Parameter(help="new folder for model, result, guarantee.md and curve")
    ] = None,
    client_log: Annotated[
        Path | None,
        Parameter(
            help="file for what clients notice about their own data; private, it stays with them"
        ),
    ] = None,
) -> None:
    """Train privately in this process, and say what was spent.

    Example: equipoise train --task breast-cancer --epsilon 2 --clip 1 --local-steps 4 --trust
    secure-aggregation
    """
    if plan:
        require(
            settings is None,
            "plan and settings: a plan says everything; leave the other settings out",
        )
        settings = _read_plan(plan).to_train(anyway)
    require(settings is not None, "task is missing: give --task and --epsilon, or --plan FILE")
    assert settings
    _one_thread()
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


def _read_plan(path: Path) -> Plan:
    try:
        return Plan.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValue(f"plan={path}: {error.strerror}") from None
    except (ValidationError, UnicodeDecodeError):
        raise InvalidValue(
            f"plan={path} is not a plan for one budget, as `equipoise plan --json` writes it"
        ) from None


def _one_thread() -> None:
    """Small problems only lose time on several threads, and much of it when the machine has other
    work."""
    import torch

    torch.set_num_threads(1)


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
        tuple[str, ...],
        Parameter(
            consume_multiple=True, negative=(), help="files to evaluate on (tasks csv and libsvm)"
        ),
    ] = (),
    json: Json = False,
) -> None:
    """Measure a saved model, on the public test records of its task or on files of one's own.

    The figures are not noised: on private records they are outside every guarantee.
    """
    from equipoise.saved import load
    from equipoise.training import measure_again

    result = load(folder)
    measured = measure_again(result, data)
    error, loss = float(measured.error), float(measured.loss)
    if json:
        print(
            dumps(
                {
                    "error": _json(error),
                    "loss": _json(loss),
                    "error_name": result.error_name,
                    "data": data,
                    "covered": False,
                }
            )
        )
    else:
        on = ", ".join(data) if data else "the public test records of its task"
        print(
            f"error {error:.4f} ({result.error_name}), loss {loss:.4f}, on {on}: not noised, "
            f"outside the guarantee"
        )


def _json(value: float) -> float | str:
    return value if isfinite(value) else str(value)


def _keep_client_log(path: Path) -> None:
    """Into a file that only its owner may read. A log that cannot be written is lost in silence: an
    error would tell of it."""
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
    for name, text in run_facts(result):
        console.print(f"{name:<12}{text}" if name else text)
    if result.per_round:
        console.print(diagnostics(result))


def _tell_plans(plans: list[Plan]) -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for plan in plans if len(plans) == 1 else []:
        for line in plan_lines(plan):
            console.print(line)
        for table in (comparison(plan), noise_table(plan)):
            if table:
                console.print(table)
    if len(plans) > 1:
        console.print(trade_off(plans))


def _progress(rounds: "Iterable[Round]", total: int) -> "Iterable[Round]":
    return track(
        rounds, "training", total, console=_errors, transient=True, disable=not _errors.is_terminal
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user's mistake is one sentence on standard error and a non-zero exit,
    never a traceback."""
    try:
        app(
            sys.argv[1:] if arguments is None else arguments, exit_on_error=False, print_error=False
        )
    except CycloptsError as error:
        cause = error.__cause__
        _fail(first_sentence(cause) if isinstance(cause, ValidationError) else str(error))
    except EquipoiseError as error:
        _fail(str(error))
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # whoever read our output has gone: nothing more to say
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
