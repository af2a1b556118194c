"""A run in a folder: model.safetensors, result.json, guarantee.md, curve.png, and bounds.toml where
there was one.

The folder is reserved before training, so that no budget is spent on a result that cannot be kept,
nor by two runs for one folder. Every file appears whole or not at all; result.json comes last and
says that the folder is complete.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from equipoise.errors import DataError, EquipoiseError, InvalidValue
from equipoise.privacy.statement import statement
from equipoise.result import Result

FILES = ("model.safetensors", "guarantee.md", "bounds.toml", "curve.png", "result.json")
MARK = "unfinished"  # a file that stands here until result.json does


def reserve(out: Path) -> None:
    """Make the folder and claim it; refuse one that holds a run, or that another run has
    claimed.
    """
    try:
        held = [name for name in (*FILES, MARK) if (out / name).exists()]
        if held:
            raise InvalidValue(f"out={out} already holds {', '.join(held)}: choose another folder")
        out.mkdir(parents=True, exist_ok=True)
        with open(out / MARK, "x") as mark:
            mark.write("a run was started here, and has not ended\n")
    except OSError as error:
        raise InvalidValue(f"out={out} cannot be written: {error.strerror}") from None


def release_claim(out: Path) -> None:
    """Give a reserved folder back, when nothing came of it."""
    (out / MARK).unlink(missing_ok=True)


def save(result: Result, out: Path) -> str | None:
    """Write the run into a reserved folder; returns why there is no picture, if there is none."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        write_whole(
            out / "model.safetensors",
            lambda path: save_file(_named(result), path, metadata={"format": "pt"}),
        )
        model = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
        write_whole(out / "guarantee.md", lambda path: _write_text(path, statement(result, model)))
        if "bounds" in result.reading:
            write_whole(
                out / "bounds.toml", lambda path: _write_text(path, result.reading["bounds"])
            )
        no_picture = _draw(result, out)
        write_whole(out / "result.json", lambda path: _write_text(path, result.to_json() + "\n"))
        (out / MARK).unlink(missing_ok=True)
    except (OSError, ValueError, SafetensorError) as error:
        said = getattr(error, "strerror", None) or error
        raise EquipoiseError(f"out={out}: {said}; the files that are there are whole") from None
    return no_picture


def load(out: Path) -> Result:
    """Read a run back, its model included."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    for name in ("result.json", "model.safetensors"):
        if not (out / name).is_file():
            raise DataError(f"{out} holds no finished run: {name} is missing")
    try:
        result = Result.model_validate_json((out / "result.json").read_text(encoding="utf-8"))
        tensors = load_file(out / "model.safetensors")
        x = np.concatenate([tensors[name].reshape(-1) for name in result.parameters])
    except (OSError, UnicodeDecodeError, ValidationError, SafetensorError, KeyError) as error:
        said = str(error).splitlines()[0]
        raise DataError(f"{out} does not hold a run that this version can read: {said}") from None
    if len(x) != result.dimension:
        raise DataError(
            f"{out}: the model has {len(x)} parameters where the result says {result.dimension}"
        )
    return result.model_copy(update={"x": x})


def _named(result: Result) -> dict[str, Any]:
    """The model as named tensors, as a torch module's state_dict would have them."""
    ends = np.cumsum([int(np.prod(shape)) for shape in result.parameters.values()])
    pieces = np.split(result.x, ends[:-1])
    return {
        name: piece.reshape(shape)
        for (name, shape), piece in zip(result.parameters.items(), pieces, strict=True)
    }


def _draw(result: Result, out: Path) -> str | None:
    from equipoise.reports.curve import draw_curve

    if not result.curve:
        return None
    try:
        write_whole(out / "curve.png", lambda path: draw_curve(result, path))
    except OSError:
        raise
    except Exception as error:  # a picture is not worth a model
        return f"curve.png was left out: {error}"
    return None


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` make a file beside `path`, on the disk, and only then put it in its place."""
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        write(part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
