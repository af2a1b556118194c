"""Where the command speaks: results on standard output, everything else on standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from time import monotonic
from typing import Annotated, NoReturn

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

errors = Console(stderr=True)
SECONDS_BETWEEN_LINES = 10
Json = Annotated[bool, Parameter(negative=(), help="print one JSON document")]


def output() -> Console:
    return Console(soft_wrap=True, highlight=False, markup=False)


def say(sentence: str) -> None:
    errors.print(sentence, soft_wrap=True, highlight=False, markup=False)


def fail(sentence: str, code: int = 2) -> NoReturn:
    errors.print(Text.assemble(("error: ", "bold red"), sentence), soft_wrap=True)
    sys.exit(code)


def json_number(value: float) -> float | str:
    """A number that JSON can hold."""
    return value if isfinite(value) else str(value)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float], None]]:
    """Shows the share that is done, and how long the rest will take; where there is no terminal, a
    line now and then."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
    last = monotonic()

    def show(share: float) -> None:
        nonlocal last
        bar.update(task, completed=share)
        if not errors.is_terminal and monotonic() - last > SECONDS_BETWEEN_LINES:
            last = monotonic()
            say(f"{what}: {share:.0%}")

    with bar:
        task = bar.add_task(what, total=1.0)
        yield show


def one_thread() -> None:
    """Small problems only lose time on several threads, and much of it on a busy machine."""
    import torch

    torch.set_num_threads(1)
