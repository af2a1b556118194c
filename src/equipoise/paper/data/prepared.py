"""Data sets on disk: where they lie, and what was made of them, kept in a cache of memory-mapped
arrays.

The cache is keyed by the checksums of the source files and by the code that reads them. What is in
it is whole: it is written beside its place and then renamed, so several processes may start at once
and share one copy.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import DataError
from equipoise.paper.data.files import File, read_files, sources

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Download:
    """A file that can be fetched: its address, its size in bytes and a checksum, as md5:... or
    sha256:..."""

    url: str
    size: int
    checksum: str

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DataSet:
    """A data set in its official layout, in `folder` under the data folder: what is read of it, and
    how to get it.

    wanted      which paths are read; searched for in a path, plain or inside an archive
    archives    which archives are opened; searched for in their names, whatever their case
    most        bytes: no file of it is larger
    records     train and test records of the whole set, as the paper uses it
    table_1     clients and records per client, as the paper's Table 1 has them
    libraries   packages whose version decides what is made of it; extra: where Equipoise's own
    extras have them
    """

    name: str
    folder: str
    wanted: str
    most: int
    records: tuple[int, int]
    table_1: str
    licence: str
    how: str
    downloads: tuple[Download, ...] = ()
    archives: str = ""
    libraries: tuple[str, ...] = ()
    extra: str = ""

    @property
    def place(self) -> Path:
        return data_folder() / self.folder

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(f"(?:{self.wanted})$")

    @property
    def sources(self) -> list[Path]:
        return sources(self.place, self._pattern, re.compile(self.archives, re.IGNORECASE))

    def files(self) -> Iterator[File]:
        """Its files, one by one; nothing is a DataError with the way to get them."""
        found = False
        for file in read_files(self.place, self.sources, self._pattern, self.most):
            found = True
            yield file
        if not found:
            raise DataError(self.missing)

    @property
    def missing(self) -> str:
        get = f"run `equipoise data fetch {self.name}`" if self.downloads else self.how
        return (
            f"the data of task={self.name} is not in {self.place}: {get} (the environment "
            f"variable EQUIPOISE_DATA moves it)"
        )

    def prepared(self, make: Callable[[Iterator[File]], Arrays]) -> Arrays:
        """What `make` makes of the files: from the cache, or made now and put there."""
        if not self.sources:
            raise DataError(self.missing)
        if lacking := [library for library in self.libraries if _version(library) == "none"]:
            raise DataError(
                f"task={self.name} needs {' and '.join(lacking)}: pip install "
                f"'equipoise[{self.extra}]'"
            )
        place = cache_folder() / f"{self.name}-{self._key(make)}"
        if (arrays := _load(place)) is None:
            made = make(self.files())
            _keep(made, place)
            arrays = _load(place) or made
        return arrays

    def kept(self, make: Callable[[Iterator[File]], Arrays]) -> Arrays | None:
        """What is in the cache already."""
        return _load(cache_folder() / f"{self.name}-{self._key(make)}") if self.sources else None

    def _key(self, make: Callable[..., Any]) -> str:
        """Of the files' contents, the code that reads them, and the libraries it uses."""
        code = sorted(
            file
            for room in ("data_sets", "tasks")
            for file in (Path(__file__).parent.parent / room).glob("*.py")
        )
        parts = [
            f"{path.relative_to(self.place).as_posix()} {digest}"
            for path, digest in _checksums(self.sources).items()
        ]
        parts += [
            make.__qualname__,
            *(hashlib.sha256(file.read_bytes()).hexdigest() for file in code),
        ]
        parts += [f"{library} {_version(library)}" for library in (*self.libraries, "numpy")]
        return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


def data_folder() -> Path:
    """Where data sets lie: $EQUIPOISE_DATA, or ~/.local/share/equipoise."""
    return Path(os.environ.get("EQUIPOISE_DATA") or Path.home() / ".local" / "share" / "equipoise")


def cache_folder() -> Path:
    """Where prepared data is kept: $EQUIPOISE_CACHE, or ~/.cache/equipoise. It may be deleted at
    any time."""
    return Path(os.environ.get("EQUIPOISE_CACHE") or Path.home() / ".cache" / "equipoise")


def _load(place: Path) -> Arrays | None:
    """The arrays kept in `place`, mapped into memory; None if there are none, or if they are
    damaged."""
    try:
        forms = json.loads((place / "arrays.json").read_text())
        arrays = {name: np.load(place / f"{name}.npy", mmap_mode="c") for name in forms}
        return arrays if arrays and _forms(arrays) == forms else None
    except Exception:  # whatever damage does: it is made again
        return None


def _forms(arrays: Arrays) -> dict[str, Any]:
    return {name: [list(array.shape), str(array.dtype)] for name, array in arrays.items()}


def _keep(arrays: Arrays, place: Path) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        try:
            for name, array in arrays.items():
                _write(beside / f"{name}.npy", partial(np.save, arr=array))
            _write(
                beside / "arrays.json", lambda file: file.write(json.dumps(_forms(arrays)).encode())
            )
            if place.exists() and _load(place) is None:
                place.rename(away := Path(tempfile.mkdtemp(prefix=".damaged-", dir=place.parent)))
                shutil.rmtree(away, ignore_errors=True)
            place.exists() or beside.rename(place)
        except OSError:
            if _load(place) is None:  # not because another process was faster
                raise
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"prepared data cannot be kept in {place.parent}: {error.strerror}; EQUIPOISE_CACHE "
            f"moves the cache"
        ) from None


def _write(path: Path, write: Callable[[Any], Any]) -> None:
    with path.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _checksums(paths: list[Path]) -> dict[Path, str]:
    """SHA-256 of each file; remembered in the cache for as long as size and time of change stay the
    same."""
    memory = cache_folder() / "checksums.json"
    try:
        known = json.loads(memory.read_text())
        known = {key: value for key, value in known.items() if isinstance(value, str)}
    except (OSError, ValueError, AttributeError, RecursionError):
        known = {}
    found, new = {}, {}
    for path in paths:
        stat = path.stat()
        key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
        if key not in known:
            with path.open("rb") as file:
                new[key] = hashlib.file_digest(file, "sha256").hexdigest()
        found[path] = known.get(key) or new[key]
    if new:
        try:
            memory.parent.mkdir(parents=True, exist_ok=True)
            beside = memory.with_name(f".checksums-{os.getpid()}")
            beside.write_text(json.dumps(known | new))
            beside.replace(memory)
        except OSError:
            pass  # it will be computed again
    return found
