"""A run in a folder: result.json, model.safetensors, guarantee.md, model-card.md, curve.png, and
bounds.toml where there was one. A model that was tuned at home has not-to-be-released.md instead of
guarantee.md, and no curve.

The folder is reserved before training, so that no budget is spent on a result that cannot be kept,
nor by two runs for one folder; and it must have room. Every file appears whole or not at all. What
was spent comes first and the picture last: a disk that fills up costs the picture, not the account.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from equipoise.card import model_card
from equipoise.errors import DataError, EquipoiseError, InvalidValue
from equipoise.privacy.statement import statement
from equipoise.refusals import first_sentence
from equipoise.result import Result

GUARANTEE, WARNING = "guarantee.md", "not-to-be-released.md"
FILES = (
    *("result.json", "model.safetensors", GUARANTEE, WARNING, "bounds.toml"),
    *("model-card.md", "curve.png"),
)
MARK = "unfinished"  # a file that stands here until everything but the picture does
ROOM = 10**6  # bytes for all files but the model; some 50,000 are usual


def reserve(out: Path) -> list[Path]:
    """Make the folder and claim it; refuse one that holds a run, or that another run has claimed.

    Returns the folders that were made, the innermost first.
    """
    try:
        made = [folder for folder in (out, *out.parents) if not folder.exists()]
        held = [name for name in (*FILES, MARK) if (out / name).exists()]
        if held:
            raise InvalidValue(f"out={out} already holds {', '.join(held)}: choose another folder")
        out.mkdir(parents=True, exist_ok=True)
        (out / MARK).touch(exist_ok=False)
        try:
            (out / MARK).write_text("a run was started here, and has not ended\n")
        except OSError:
            release_claim(out, made)
            raise
    except OSError as error:
        raise InvalidValue(f"out={out} cannot be written: {error.strerror}") from None
    return made


def release_claim(out: Path, made: Iterable[Path]) -> None:
    """Give a reserved folder back, when nothing came of it."""
    (out / MARK).unlink(missing_ok=True)
    with suppress(OSError):  # somebody else has put something there
        for folder in made:
            folder.rmdir()


def check_room(out: Path, parameters: int = 0) -> None:
    """Refuse a folder on a disk that has no room for a model with so many parameters."""
    free, needed = shutil.disk_usage(out).free, 8 * parameters + ROOM
    if free < needed:
        raise InvalidValue(
            f"out={out} has {free:,} bytes free where the model and its account need {needed:,}: "
            "make room, or choose another folder; no budget is spent"
        )


def save(result: Result, out: "str | os.PathLike[str]") -> str | None:
    """Write the run into a new folder, or one that was reserved; returns why there is no picture,
    if there is none."""
    folder = Path(out)
    if not (folder / MARK).exists():
        reserve(folder)
    try:
        _write(folder, result)
        return _draw(result, folder)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"out={folder}: {_written(folder, result)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EquipoiseError(f"out={folder}: {reason}; {_written(folder, result)}") from None


def _written(folder: Path, result: Result) -> str:
    """Which files are there, and which are not."""
    needless = {GUARANTEE, "curve.png"} if result.adapted else {WARNING}
    if not result.reading.get("bounds"):
        needless.add("bounds.toml")
    wanted = [name for name in FILES if name not in needless]
    kept = [name for name in wanted if (folder / name).exists()]
    lost = [name for name in wanted if name not in kept]
    return f"written: {', '.join(kept) or 'nothing'}; not written: {', '.join(lost) or 'nothing'}"


def _write(folder: Path, result: Result) -> None:
    from safetensors.numpy import save as model_file

    _write_text(folder / "result.json", result.to_json() + "\n")
    model = model_file(_named(result), metadata={"format": "pt"})
    write_whole(folder / "model.safetensors", lambda path: path.write_bytes(model))
    words = statement(result, hashlib.sha256(model).hexdigest())
    _write_text(folder / (WARNING if result.adapted else GUARANTEE), words)
    if bounds := result.reading.get("bounds"):
        _write_text(folder / "bounds.toml", bounds)
    _write_text(folder / "model-card.md", model_card(result))
    (folder / MARK).unlink(missing_ok=True)


def load(out: "str | os.PathLike[str]", *, model: bool = True) -> Result:
    """Read a run back, with its model unless `model` is False: a full disk may have cost that."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    folder = Path(out)
    for name in ("result.json", "model.safetensors")[: 1 + model]:
        if not (folder / name).is_file():
            raise DataError(f"{folder} holds no finished run: {name} is missing")
    try:
        text = (folder / "result.json").read_text(encoding="utf-8")
        result = Result.model_validate_json(text)
        if not model:
            return result
        tensors = load_file(folder / "model.safetensors")
        x = np.concatenate([tensors[name].reshape(-1) for name in result.parameters])
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise DataError(
            f"{folder} does not hold a run that this version can read: {_reason(error)}"
        ) from None
    if len(x) != result.dimension:
        raise DataError(
            f"{folder}: the model has {len(x)} parameters where the result says {result.dimension}"
        )
    return result.model_copy(update={"x": x})


def _reason(error: Exception) -> str:
    """Why a file could not be read, in a few words."""
    if isinstance(error, ValidationError):
        return first_sentence(error)
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return str(error).splitlines()[0]


def _named(result: Result) -> dict[str, Any]:
    """The model as named tensors, as a torch module's state_dict would have them."""
    ends = np.cumsum([int(np.prod(shape)) for shape in result.parameters.values()])
    pieces = np.split(result.x, ends[:-1])
    return {
        name: piece.reshape(shape)
        for (name, shape), piece in zip(result.parameters.items(), pieces, strict=True)
    }


def _draw(result: Result, folder: Path) -> str | None:
    """A picture is not worth a model: whatever goes wrong with it is said, and no more."""
    from equipoise.reports.curve import draw_curve

    if not result.curve:
        return None
    try:
        write_whole(folder / "curve.png", lambda path: draw_curve(result, path))
    except Exception as error:
        return f"curve.png was left out: {getattr(error, 'strerror', None) or error}"
    return None


def _write_text(path: Path, text: str) -> None:
    write_whole(
        path, lambda part: part.write_text(text, encoding="utf-8", errors="backslashreplace")
    )


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
