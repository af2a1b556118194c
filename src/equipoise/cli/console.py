"""Where the command speaks: results on standard output, everything else on standard error."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING, Annotated, NoReturn, Protocol

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from equipoise.describe import duration

if TYPE_CHECKING:
    from equipoise.fleets import Round

errors = Console(stderr=True)
FIRST_LINE, NEXT_LINE = 10.0, 60.0  # seconds until a line is said where there is no terminal
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


class Show(Protocol):
    def __call__(self, share: float, text: str = "") -> None:
        """Show the share that is done, or what `text` says of it."""
        ...


@contextmanager
def progress_bar(what: str) -> Iterator[Show]:
    """Shows the share that is done, and how long the rest will take; where there is no terminal, a
    line a minute, the last of them at the end. What is done in seconds needs no line."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
    start = last = monotonic()
    begun, lines = None, 0

    def show(share: float, text: str = "") -> None:
        nonlocal last, lines, begun
        now, begun = monotonic(), share if begun is None else begun
        bar.update(task, completed=share)
        ended = share >= 1 and lines > 0
        if errors.is_terminal or not (ended or now - last > (NEXT_LINE if lines else FIRST_LINE)):
            return
        last, lines = now, lines + 1
        left = (now - start) * (1 - share) / (share - begun) if share > begun else 0
        about = f", about {duration(left)} left" if left else ""
        say(f"{what}: {text or f'{share:.0%}'}{about}")

    with bar:
        task = bar.add_task(what, total=1.0)
        yield show


def watched(rounds: "Iterable[Round]", total: int) -> "Iterator[Round]":
    """The rounds of a training, shown while they are made."""
    with progress_bar("training") as show:
        for round in rounds:
            show(round.number / total, f"round {round.number} of {total}")
            yield round


def one_thread() -> None:
    """Small problems only lose time on several threads, and much of it on a busy machine."""
    import torch

    torch.set_num_threads(1)
