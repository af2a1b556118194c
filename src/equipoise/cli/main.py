"""The command `equipoise`. What is heavy is imported inside the commands, so that help is
instant.
"""

import os
import re
import sys
from importlib.metadata import version
from typing import Any

from cyclopts import App, CycloptsError, MissingArgumentError, UnusedCliTokensError
from pydantic import ValidationError

from equipoise.cli.account import account
from equipoise.cli.audit import audit
from equipoise.cli.config import flag_of, with_config
from equipoise.cli.console import fail, say
from equipoise.cli.data import data
from equipoise.cli.federation import federation
from equipoise.cli.guarantee import guarantee
from equipoise.cli.keys import keys
from equipoise.cli.ledger import ledger
from equipoise.cli.plan import plan
from equipoise.cli.predict import adapt, predict
from equipoise.cli.report import report
from equipoise.cli.silo import silo
from equipoise.cli.store import store
from equipoise.cli.sweep import sweep
from equipoise.cli.train import evaluate, show, train
from equipoise.errors import EquipoiseError
from equipoise.refusals import first_sentence, hint

app = App(
    name="equipoise",
    help="Train one model across organisations that do not share data, and get the most out of a "
    "privacy budget.",
    version=version("equipoise"),
    suppress_keyboard_interrupt=False,  # main says what an interrupt cost
)
for command in (
    plan,
    train,
    show,
    guarantee,
    evaluate,
    predict,
    adapt,
    sweep,
    report,
    account,
    audit,
):
    app.command(command)
app.command(data)
app.command(ledger)
app.command(store)
app.command(silo)
app.command(federation)
app.command(keys)
app.register_install_completion_command(help="Complete commands and flags in this shell.")


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user's mistake is one sentence on standard error and a non-zero exit,
    never a traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        words = with_config(words)
        app(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        fail(_unknown_flag(words) or _sentence(error, words))
    except EquipoiseError as error:
        fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has gone: nothing more to say.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        sys.exit(1)
    except OSError as error:
        fail(f"{error.filename or 'output'}: {error.strerror}", 1)
    except RuntimeError:
        if words[:1] != ["--install-completion"]:
            raise
        fail("this user has no home folder: set the environment variable HOME to one", 1)
    except KeyboardInterrupt as stop:
        say(f"interrupted: {stop}" if str(stop) else "interrupted")
        sys.exit(130)


def _sentence(error: CycloptsError, words: list[str]) -> str:
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        return first_sentence(cause)
    if isinstance(error, UnusedCliTokensError):
        return _unused((error.unused_tokens or [""])[0], words)
    if isinstance(error, MissingArgumentError) and (argument := error.argument):
        about = argument.parameter.help or f"see {_command(words)} --help"
        return f"{error.keyword or argument.name} needs a value: {about}"
    return str(error)


def _unused(word: str, words: list[str]) -> str:
    """A word that is neither a command nor the value of a flag."""
    command = _command(words)
    known = [name for name in app.parse_commands(words)[1][-1] if not name.startswith("-")]
    if known:
        return f"unknown command {word} for {command}{hint(word, known)}"
    return f"unexpected word {word} for {command}: give its flag too (see {command} --help)"


def _unknown_flag(words: list[str]) -> str | None:
    """The first flag that the command does not have, and the one that may be meant: a mistyped flag
    must not be told as a missing one."""
    _, apps, rest = app.parse_commands(words)
    if apps[-1].default_command is None:  # no such command: that is said instead
        return None
    known = _flags(apps[-1])
    for word in rest:
        flag = flag_of(word)
        if re.match("--?[a-z]", flag, re.I) and flag not in (*known, "--help", "-h", "--version"):
            meant = hint(flag.lstrip("-"), [name.lstrip("-") for name in known], "--")
            return f"unknown option {flag} for {_command(words)}{meant}"
    return None


def _command(words: list[str]) -> str:
    return " ".join(("equipoise", *app.parse_commands(words)[0]))


def _flags(subcommand: Any) -> list[str]:
    arguments = subcommand.assemble_argument_collection()
    return [name for argument in arguments for name in argument.names if name.startswith("-")]
