"""A run in a folder: model.safetensors, result.json, guarantee.md, and bounds.toml where there was one.

The folder is reserved before training, so that no budget is spent on a result that cannot be kept. Every file appears whole
or not at all; result.json comes last and says that the folder is complete.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from equipoise.errors import DataError, EquipoiseError, InvalidValue
from equipoise.run import Result
from equipoise.statement import statement

FILES = ("model.safetensors", "guarantee.md", "bounds.toml", "curve.png", "result.json")


def reserve(out: Path) -> None:
    """Make the folder and see that it can be written; refuse one that holds a run."""
    held = [name for name in FILES if (out / name).exists()]
    if held:
        raise InvalidValue(f"out={out} already holds a run ({', '.join(held)}): choose another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / ".probe", lambda path: path.write_bytes(b"\0"))
        (out / ".probe").unlink()
    except OSError as error:
        raise InvalidValue(f"out={out} cannot be written: {error.strerror}") from None


def save(result: Result, out: Path) -> None:
    """Write the run into a reserved folder."""
    from safetensors.numpy import save_file

    try:
        write_whole(out / "model.safetensors", lambda path: save_file(_named(result), path, metadata={"format": "pt"}))
        write_whole(out / "guarantee.md", lambda path: path.write_text(statement(result), encoding="utf-8"))
        if result.bounds:
            write_whole(out / "bounds.toml", lambda path: shutil.copyfile(str(result.bounds), path))
        write_whole(out / "result.json", lambda path: path.write_text(result.to_json() + "\n", encoding="utf-8"))
    except OSError as error:
        raise EquipoiseError(f"out={out}: {error.strerror or error}; the files that are there are whole") from None


def load(out: Path) -> Result:
    """Read a run back, its model included."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        result = Result.model_validate_json((out / "result.json").read_text(encoding="utf-8"))
        tensors = load_file(out / "model.safetensors")
        x = np.concatenate([tensors[name].reshape(-1) for name in result.parameters])
    except FileNotFoundError as error:
        raise DataError(f"{out} holds no finished run: {Path(error.filename).name} is missing") from None
    except (OSError, UnicodeDecodeError, ValidationError, SafetensorError, KeyError) as error:
        said = str(error).splitlines()[0]
        raise DataError(f"{out} does not hold a run that this version can read: {said}") from None
    return result.model_copy(update={"x": x})


def _named(result: Result) -> dict[str, Any]:
    """The model as named tensors, as a torch module's state_dict would have them."""
    ends = np.cumsum([int(np.prod(shape)) for shape in result.parameters.values()])
    pieces = np.split(result.x, ends[:-1])
    return {name: piece.reshape(shape) for (name, shape), piece in zip(result.parameters.items(), pieces, strict=True)}


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` make a file beside `path`, on the disk, and only then put it in its place."""
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        write(part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
