"""The command `equipoise`. What is heavy is imported inside the commands, so that help is
instant.
"""

import os
import sys
from importlib.metadata import version
from typing import Any

from cyclopts import App, CycloptsError
from pydantic import ValidationError

from equipoise.cli.config import flag_of, with_config
from equipoise.cli.console import fail
from equipoise.cli.data import data
from equipoise.cli.plan import plan
from equipoise.cli.report import report
from equipoise.cli.sweep import sweep
from equipoise.cli.train import evaluate, show, train
from equipoise.errors import EquipoiseError
from equipoise.settings import first_sentence, near_setting

app = App(
    name="equipoise",
    help="Train one model across organisations that do not share data, and get the most out of a "
    "privacy budget.",
    version=version("equipoise"),
)
for command in (plan, train, show, evaluate, sweep, report):
    app.command(command)
app.command(data)
app.register_install_completion_command(help="Complete commands and flags in this shell.")


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user's mistake is one sentence on standard error and a non-zero exit,
    never a traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        words = with_config(words)
        app(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        fail(_unknown_flag(words) or _sentence(error))
    except EquipoiseError as error:
        fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has gone: nothing more to say.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        sys.exit(1)
    except OSError as error:
        fail(f"{error.filename or 'output'}: {error.strerror}", 1)
    except KeyboardInterrupt:
        sys.exit("interrupted")


def _sentence(error: CycloptsError) -> str:
    cause = error.__cause__
    return first_sentence(cause) if isinstance(cause, ValidationError) else str(error)


def _unknown_flag(words: list[str]) -> str | None:
    """The first flag that the command does not have, and the one that may be meant: a mistyped flag
    must not be told as a missing one."""
    names, apps, rest = app.parse_commands(words)
    if apps[-1].default_command is None:  # no such command: that is said instead
        return None
    known = _flags(apps[-1])
    for word in rest:
        flag = flag_of(word)
        if flag.startswith("--") and flag not in known:
            near = near_setting(flag[2:], [name[2:].replace("-", "_") for name in known])
            hint = f": did you mean --{near.replace('_', '-')}?" if near else ""
            return f"{flag} is no option of {' '.join(('equipoise', *names))}{hint}"
    return None


def _flags(subcommand: Any) -> list[str]:
    arguments = subcommand.assemble_argument_collection()
    names = [name for argument in arguments for name in argument.names]
    return [*(name for name in names if name.startswith("--")), "--help", "--version"]
