"""The files of a data set, plain or inside archives, read where they lie: nothing is unpacked,
nothing is executed.

Archives come from elsewhere. A name that leaves the archive, a link, a member or an archive that
swells beyond all measure, a broken stream: each is a DataError that names the archive and the
member.
"""

import bz2
import gzip
import io
import lzma
import os
import pickle
import pickletools
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from equipoise.errors import DataError

SWELLING = 300  # an archive may hold this many times its own size (LEAF's JSON: 30) ...
SLACK = 2**28  # ... and this many bytes more
MOST_TUPLES = 100  # in a pickle
BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error, EOFError),
    *(OSError, RuntimeError, ValueError, LookupError, OverflowError),
)
READERS: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}
ARCHIVES = re.compile(r"\.(tar(\.(gz|bz2|xz))?|tgz|zip)$", re.IGNORECASE)


class File(NamedTuple):
    """A file of a data set: what the pattern matched of its path, where it is in words, and its
    bytes."""

    name: str
    place: str
    content: bytes


class Member(NamedTuple):
    """A member of an archive, of `size` bytes; `read` is None for a link or a device."""

    name: str
    size: int
    read: Callable[[], bytes] | None


def is_archive(path: Path) -> bool:
    return ARCHIVES.search(path.name) is not None


def sources(folder: Path, wanted: re.Pattern[str], archives: re.Pattern[str]) -> list[Path]:
    """The plain files in `folder` whose path `wanted` matches, then the archives whose name
    `archives` matches."""
    plain, packed = [], []
    for path in sorted(_paths(folder)):
        if is_archive(path):
            packed += [path] if archives.search(path.name) else []
        elif wanted.search(path.relative_to(folder).as_posix()):
            plain.append(path)
    return plain + packed


def _paths(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder, followlinks=True):
        for name in names:
            yield Path(root) / name


def read_files(
    folder: Path, paths: list[Path], wanted: re.Pattern[str], most: int
) -> Iterator[File]:
    """Every file among `paths`, or in an archive among them, whose path `wanted` matches. Of files
    with the same name only the first is read.

    `most`: no file of the data set has more bytes.
    """
    seen: set[str] = set()
    for path in paths:
        packed = is_archive(path)
        for file in (
            _in_archive(path, wanted, most) if packed else _plain(path, folder, wanted, most)
        ):
            if file.name not in seen:
                seen.add(file.name)
                yield file


def _plain(path: Path, folder: Path, wanted: re.Pattern[str], most: int) -> Iterator[File]:
    match = wanted.search(path.relative_to(folder).as_posix())
    assert match
    _check_size(str(path), path.stat().st_size, most)
    yield File(match[0], str(path), path.read_bytes())


def _in_archive(path: Path, wanted: re.Pattern[str], most: int) -> Iterator[File]:
    members = _of_zip if path.suffix.lower() == ".zip" else _of_tar
    last = "its beginning"
    try:
        for member in members(path):
            last = member.name
            _check_name(path, member.name)
            if match := wanted.search(member.name):
                place = f"{path}: {member.name}"
                yield File(match[0], place, _content(member, place, most))
    except BROKEN as error:
        raise DataError(
            f"{path} is broken or cut short (after {last}): {str(error) or type(error).__name__}"
        ) from None


def _check_name(path: Path, name: str) -> None:
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts or "\\" in name:
        raise DataError(f"{path}: member {name!r} leads out of the archive; it is not read")


def _check_size(place: str, size: int, most: int) -> None:
    if size > most:
        raise DataError(
            f"{place} has {size:,} bytes: no file of this data set has more than {most:,}"
        )


def _content(member: Member, place: str, most: int) -> bytes:
    if member.read is None:
        raise DataError(f"{place} is a link or a device, not a file")
    _check_size(place, member.size, most)
    content = member.read()
    if len(content) != member.size:
        raise DataError(f"{place} is cut short: {len(content):,} of {member.size:,} bytes")
    return content


def _of_zip(path: Path) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        _check_swelling(path, sum(info.file_size for info in infos))
        for info in infos:
            link = info.external_attr >> 16 & 0o170000 == 0o120000
            read = None if link else partial(_read_zipped, archive, info)
            yield Member(info.filename, info.file_size, read)


def _read_zipped(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with archive.open(info) as file:
        return file.read(info.file_size + 1)


def _of_tar(path: Path) -> Iterator[Member]:
    with path.open("rb") as raw:
        stream: Any = _Counted(_unpacked(raw), path)
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Strict) as archive:
            for info in archive:
                if not info.isdir():
                    plain = info.isreg() and not info.issparse()
                    read = partial(_read_tarred, archive, info) if plain else None
                    yield Member(info.name, info.size, read)


def _unpacked(raw: BinaryIO) -> Any:
    """The stream inside a compressed one, known by its first bytes."""
    start = raw.read(6)
    raw.seek(0)
    for magic, reader in READERS.items():
        if start.startswith(magic):
            return reader(raw)
    return raw


def _read_tarred(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(info)
    assert file
    return file.read()


class _Strict(tarfile.TarInfo):
    """A header that does not take a damaged one, or a missing end, for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Strict":
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end, as it should be
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error) or "the end of the archive is missing") from None


class _Counted(io.RawIOBase):
    """A stream that refuses to give more bytes than an archive of this size may hold."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream, self._path, self._given = stream, path, 0

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._stream.read(size)
        self._given += len(content)
        _check_swelling(self._path, self._given)
        return content


def _check_swelling(path: Path, size: int) -> None:
    if size > SWELLING * path.stat().st_size + SLACK:
        raise DataError(
            f"{path} unpacks to more than {SWELLING} times its size: no data set does, and it is "
            f"read no further"
        )


def unpickled(content: bytes, place: str) -> Any:
    """What a pickle of plain values (dict, list, str, numbers ...) holds. One that names any class
    or function is refused: no code of others ever runs."""

    class Restricted(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise DataError(
                f"{place} asks for {module}.{name}: a data file needs no code, and none was run"
            )

    try:
        _check_tuples(content, place)
        return Restricted(io.BytesIO(content), encoding="latin1").load()
    except DataError:
        raise
    except Exception as error:  # a broken pickle can raise anything
        raise DataError(
            f"{place} is not a readable pickle: {type(error).__name__}: {error}"
        ) from None


def _check_tuples(content: bytes, place: str) -> None:
    """Hashing a tuple that is nested deep enough would crash the interpreter."""
    names = (opcode.name for opcode, _, _ in pickletools.genops(content))
    tuples = sum(name.startswith("TUPLE") for name in names)
    if tuples > MOST_TUPLES:
        raise DataError(
            f"{place} has {tuples:,} tuples: a data file needs none, and nested ones could crash "
            f"its reader"
        )
