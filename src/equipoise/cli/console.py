"""Where the command speaks: results on standard output, everything else on standard error."""

import sys
from math import isfinite
from typing import Annotated, NoReturn

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

errors = Console(stderr=True)
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


def one_thread() -> None:
    """Small problems only lose time on several threads, and much of it on a busy machine."""
    import torch

    torch.set_num_threads(1)
