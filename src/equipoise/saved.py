"""A run in a folder: result.json, model.safetensors, guarantee.md, .json and .html, model-card.md,
curve.png, and bounds.toml where there was one. A model that was tuned at home has
not-to-be-released.md instead of a guarantee, and no curve.

The folder is claimed before training, so that no budget is spent on a result that cannot be kept,
nor by two runs for one folder; and it must have room. While it trains a journal stands there, from
which a run whose process died goes on. Every file appears whole or not at all. What was spent comes
first and the picture last: a disk that fills up costs the picture, not the account.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from pydantic import ValidationError

from equipoise.card import model_card
from equipoise.errors import DataError, EquipoiseError, InvalidValue
from equipoise.journal import wipe
from equipoise.privacy.statement import guarantee_of, page_of, statement
from equipoise.refusals import first_sentence
from equipoise.result import Result

GUARANTEES, WARNING = ("guarantee.md", "guarantee.json", "guarantee.html"), "not-to-be-released.md"
FILES = (
    *("result.json", "model.safetensors", *GUARANTEES, WARNING, "bounds.toml"),
    *("model-card.md", "curve.png"),
)
MARK = "unfinished"  # a file that stands here until everything but the picture does
JOURNAL = "journal"  # what an unfinished run needs to go on
ROOM = 10**6  # bytes for all files but the model; some 50,000 are usual


@dataclass
class Claim:
    """A folder that one process has to itself, until it closes it.

    made     the folders that were made for it, the innermost first
    lock     the mark, which the operating system unlocks when the process dies
    keep     whether something is there that must not be lost: a journal with rounds, or files
    begun    the round after which the run goes on
    """

    folder: Path
    made: list[Path]
    lock: IO[str]
    keep: bool
    begun: int = 0

    @property
    def journal(self) -> Path:
        return self.folder / JOURNAL

    def save(self, result: Result, log: str | None = None) -> str | None:
        """Write the run, and wipe its journal; returns why the picture or the log is not there, if
        it is not."""
        folder, self.keep = self.folder, True
        try:
            _write(folder, result)
            (folder / MARK).unlink(missing_ok=True)  # from here on it is finished
            wipe(self.journal)
            missing = [_draw(result, folder), log and _log(result, folder, log)]
            return "; ".join(filter(None, missing)) or None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"out={folder}: {self._written(result)}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise EquipoiseError(f"out={folder}: {reason}; {self._written(result)}") from None

    def _written(self, result: Result) -> str:
        """Which files are there, and which are not."""
        needless = {*GUARANTEES, "curve.png"} if result.adapted else {WARNING}
        if not result.reading.get("bounds"):
            needless.add("bounds.toml")
        wanted = [name for name in FILES if name not in needless]
        kept = [name for name in wanted if (self.folder / name).exists()]
        lost = [name for name in wanted if name not in kept]
        text = (
            f"written: {', '.join(kept) or 'nothing'}; not written: {', '.join(lost) or 'nothing'}"
        )
        if self.journal.exists():
            text += "; start the same again to write it all: nothing is spent twice"
        return text

    def close(self) -> None:
        """Give the folder back, as it was if nothing came of it."""
        if not self.keep:
            with suppress(OSError):
                wipe(self.journal)
            (self.folder / MARK).unlink(missing_ok=True)
            with suppress(OSError):  # somebody else has put something there
                for folder in self.made:
                    folder.rmdir()
        self.lock.close()


@contextmanager
def claimed(out: "str | os.PathLike[str]", *, go_on: bool = True) -> Iterator[Claim]:
    """The folder, made if need be. Refused are one that holds a run, and one that another process
    has claimed; with `go_on` not one that holds what a dead process left unfinished."""
    claim = _claim(Path(out), go_on)
    try:
        yield claim
    finally:
        claim.close()


def _claim(out: Path, go_on: bool) -> Claim:
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        if _finished(out):
            wipe(out / JOURNAL)  # its process died in between
        check_free(out, go_on)
        lock = open(out / MARK, "a+", encoding="utf-8")  # noqa: SIM115
        claim = Claim(out, made, lock, keep=True)
        if not _locked(lock, out / MARK):
            lock.close()
            raise InvalidValue(
                f"out={out} is where another process trains now: wait for it, or choose another "
                "folder"
            )
        claim.keep = claim.journal.exists()
        try:
            check_free(out)  # nobody has finished here in between
            lock.truncate(0)
            lock.write("a run was started here, and has not ended; its journal is private\n")
            lock.flush()
        except (OSError, InvalidValue):
            claim.close()
            raise
    except OSError as error:
        raise InvalidValue(f"out={out} cannot be written: {error.strerror}") from None
    return claim


def check_free(out: Path, go_on: bool = True) -> None:
    """Refuse a folder that holds a run, or with `go_on` one that holds a finished run."""
    held = [name for name in (*FILES, JOURNAL, MARK) if (out / name).exists()]
    unfinished = held == [MARK] or (JOURNAL in held and not _finished(out))
    if held and not (go_on and unfinished):
        raise InvalidValue(f"out={out} already holds {', '.join(held)}: choose another folder")


def _finished(out: Path) -> bool:
    return not (out / MARK).exists() and any((out / name).exists() for name in FILES)


def _locked(file: IO[str], path: Path) -> bool:
    """Whether nobody else had locked it, and it is still there. Where there are no locks, nobody
    has."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def check_room(out: Path, parameters: int = 0) -> None:
    """Refuse a folder on a disk that has no room for a model with so many parameters."""
    free, needed = shutil.disk_usage(out).free, 8 * parameters + ROOM
    if free < needed:
        raise InvalidValue(
            f"out={out} has {free:,} bytes free where the model and its account need {needed:,}: "
            "make room, or choose another folder; no budget is spent"
        )


def save(result: Result, out: "str | os.PathLike[str]", *, log: str | None = None) -> str | None:
    """Write the run into a new folder; returns why the picture or the log is not there, if it is
    not.

    result   the run
    out      the folder, which must not hold a run
    log      what else the curve is written for: csv, tensorboard or mlflow

    >>> result = equipoise.train(task="quadratic", epsilon=2, clip=0.1, iterations=2)
    >>> equipoise.save(result, "run-1")
    >>> sorted(path.name for path in pathlib.Path("run-1").iterdir())[:3]
    ['curve.png', 'guarantee.html', 'guarantee.json']
    >>> equipoise.load("run-1") == result
    True
    """
    check_log(log)
    with claimed(out, go_on=False) as claim:
        return claim.save(result, log)


def check_log(log: str | None) -> None:
    """Refuse a log that cannot be written, before a budget is spent."""
    from equipoise.reports import curve_log

    if log:
        curve_log.check_log(log)


def _write(folder: Path, result: Result) -> None:
    from safetensors.numpy import save as model_file

    _write_text(folder / "result.json", result.to_json() + "\n")
    model = model_file(_named(result), metadata={"format": "pt"})
    write_whole(folder / "model.safetensors", lambda path: path.write_bytes(model))
    for name, text in statements(result, hashlib.sha256(model).hexdigest()).items():
        _write_text(folder / name, text)
    if bounds := result.reading.get("bounds"):
        _write_text(folder / "bounds.toml", bounds)
    _write_text(folder / "model-card.md", model_card(result))


def statements(result: Result, model_sha256: str | None = None) -> dict[str, str]:
    """What is said of a run, by the name of the file it is said in."""
    words = statement(result, model_sha256)
    if result.adapted:
        return {WARNING: words}
    guarantee = guarantee_of(result, model_sha256)
    return dict(
        zip(GUARANTEES, (words, guarantee.to_json() + "\n", page_of(guarantee)), strict=True)
    )


def load(out: "str | os.PathLike[str]", *, model: bool = True) -> Result:
    """Read a run back: ``load("run-1")``.

    out     the folder that it was saved in
    model   whether with its model: a full disk may have cost that
    """
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


def _log(result: Result, folder: Path, log: str) -> str | None:
    """Nor is a log worth a model."""
    from equipoise.reports.curve_log import LOGS

    try:
        LOGS[log](result, folder)
    except Exception as error:
        return f"the log for {log} was left out: {getattr(error, 'strerror', None) or error}"
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
