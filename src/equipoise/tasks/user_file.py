"""A Python file of the user's: the names that it defines."""

import runpy
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from equipoise.errors import DataError, EquipoiseError


def run_file(path: str, seed: int) -> dict[str, Any]:
    """The names that the file defines; of an error only its kind and place: its words may hold
    records."""
    with torch.random.fork_rng(devices=[]), redirect_stdout(sys.stderr):
        torch.manual_seed(seed)
        sys.path.insert(0, str(Path(path).resolve().parent))
        try:
            return runpy.run_path(path)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, EquipoiseError) and _is_ours(error):
                raise
            kind_and_line = (
                f"line {_line(error, path)}: {type(error).__name__}{_about(error, path)}"
            )
        finally:
            sys.path.pop(0)
    raise DataError(f"{path}, {kind_and_line}")


def _is_ours(error: EquipoiseError) -> bool:
    """Whether this package raised it: others may use our errors too, with words of their own."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return Path(last.filename).is_relative_to(Path(__file__).parents[1])


def _about(error: BaseException, path: str) -> str:
    """What an error says of the file's own text: its syntax, or a name that stands in it."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f": {_first_line(error)}"
    name = error.name if isinstance(error, ImportError | NameError) else None
    source = Path(path).read_text(encoding="utf-8", errors="replace")
    return f": {name} is not there" if name and name in source else ""


def _line(error: BaseException, path: str) -> str:
    if isinstance(error, SyntaxError) and error.filename == path:
        return str(error.lineno)
    lines = [
        str(frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    return lines[-1] if lines else "?"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200]
