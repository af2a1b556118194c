"""A data set: which files of it are read, by which reader, and how to get it."""

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from equipoise.cache import Arrays, checksums, keep, load
from equipoise.errors import DataError
from equipoise.paper.data.files import File, read_files, sources
from equipoise.places import cache_folder, data_folder

Reader = Callable[[Iterator[File]], Arrays]
"""Makes inputs, targets and owners of train and test records (`train_inputs` ...) of files."""


@dataclass(frozen=True)
class Download:
    """A file that can be fetched: its address, its size in bytes and its checksum, as sha256:..."""

    url: str
    size: int
    checksum: str

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DataSet:
    """A data set in its official layout, in `folder` under the data folder.

    read        makes arrays of its files
    wanted      which paths are read; searched for in a path, plain or inside an archive
    archives    which archives are opened; searched for in their names, whatever their case
    most        bytes: no file of it is larger
    records     train and test records of the whole set, as the paper uses it
    table_1     clients and records per client, as the paper's Table 1 has them
    how         the way to get it, as a request
    libraries   packages whose version decides what is made of it
    extra       which of Equipoise's extras has these packages
    version     of the reader: raise it when code outside the module of `read` changes its arrays
    """

    name: str
    folder: str
    read: Reader
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
    version: int = 1

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
        """Its files, each by itself; if there is none, a DataError with the way to get them."""
        empty = True
        for file in read_files(self.place, self.sources, self._pattern, self.most):
            empty = False
            yield file
        if empty:
            raise DataError(self.missing)

    @property
    def get(self) -> str:
        """The way to get it, as a request."""
        return f"run `equipoise data fetch {self.name}`" if self.downloads else self.how

    @property
    def missing(self) -> str:
        return (
            f"the data of task={self.name} is not in {self.place}: {self.get} (the environment "
            f"variable EQUIPOISE_DATA moves the data folder)"
        )

    def prepared(self) -> Arrays:
        """What the reader makes of the files: from the cache, or made now and kept there."""
        if not self.sources:
            raise DataError(self.missing)
        if lacking := [library for library in self.libraries if _version(library) == "none"]:
            raise DataError(
                f"task={self.name} needs {' and '.join(lacking)}: pip install "
                f"'equipoise[{self.extra}]'"
            )
        place = self._kept_in
        arrays = load(place)
        if arrays is None:
            made = self.read(self.files())
            keep(made, place)
            arrays = load(place) or made
        return arrays

    def kept(self) -> Arrays | None:
        """What is in the cache already."""
        return load(self._kept_in) if self.sources else None

    @property
    def _kept_in(self) -> Path:
        """A folder named after all that decides what the arrays are: the contents of the files, the
        reader's own module and version, and the libraries it uses."""
        try:
            digests = checksums(self.sources)
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}") from None
        parts = [f"{path.relative_to(self.place).as_posix()} {digests[path]}" for path in digests]
        module = Path(inspect.getfile(self.read)).read_bytes()
        parts += [self.read.__qualname__, hashlib.sha256(module).hexdigest(), str(self.version)]
        parts += [f"{library} {_version(library)}" for library in (*self.libraries, "numpy")]
        key = hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]
        return cache_folder() / f"{self.name}-{key}"


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"
