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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from equipoise.errors import DataError

SWELLING = 300  # an archive may hold this many times its own size (LEAF's JSON: 30) ...
MOST_TUPLES = 100  # in a pickle
SLACK = 2**28  # ... and so many bytes more
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
    """One file of a data set: what the pattern matched of its path, where it is in words, and its
    bytes."""

    name: str
    place: str
    content: bytes


def is_archive(path: Path) -> bool:
    return ARCHIVES.search(path.name) is not None


def sources(folder: Path, wanted: re.Pattern[str], archives: re.Pattern[str]) -> list[Path]:
    """The plain files in `folder` whose path `wanted` matches, then the archives whose name
    `archives` matches."""
    paths = sorted(
        Path(root) / name for root, _, names in os.walk(folder, followlinks=True) for name in names
    )
    plain = [
        path
        for path in paths
        if not is_archive(path) and wanted.search(path.relative_to(folder).as_posix())
    ]
    return plain + [path for path in paths if is_archive(path) and archives.search(path.name)]


def read_files(
    folder: Path, paths: list[Path], wanted: re.Pattern[str], most: int
) -> Iterator[File]:
    """Every file among `paths`, or in an archive among them, whose path `wanted` matches; a name
    once, the first.

    `most`: no file of the data set has more bytes.
    """
    seen: set[str] = set()
    for path in paths:
        for file in (
            _in_archive(path, wanted, most)
            if is_archive(path)
            else _plain(path, folder, wanted, most)
        ):
            if file.name not in seen:
                seen.add(file.name)
                yield file


def _plain(path: Path, folder: Path, wanted: re.Pattern[str], most: int) -> Iterator[File]:
    match = wanted.search(path.relative_to(folder).as_posix())
    assert match
    if path.stat().st_size > most:
        raise DataError(
            f"{path} has {path.stat().st_size:,} bytes: no file of this data set has more than "
            f"{most:,}"
        )
    yield File(match[0], str(path), path.read_bytes())


def _in_archive(path: Path, wanted: re.Pattern[str], most: int) -> Iterator[File]:
    members = _of_zip if path.suffix.lower() == ".zip" else _of_tar
    last = "its beginning"
    try:
        for name, size, read in members(path):
            last = name
            if (
                PurePosixPath(name).is_absolute()
                or ".." in PurePosixPath(name).parts
                or "\\" in name
            ):
                raise DataError(f"{path}: member {name!r} leads out of the archive; it is not read")
            match = wanted.search(name)
            if not match:
                continue
            if read is None:
                raise DataError(f"{path}: member {name} is a link or a device, not a file")
            if size > most:
                raise DataError(
                    f"{path}: member {name} has {size:,} bytes: no file of this data set has more "
                    f"than {most:,}"
                )
            content = read()
            if len(content) != size:
                raise DataError(
                    f"{path}: member {name} is cut short: {len(content):,} of {size:,} bytes"
                )
            yield File(match[0], f"{path}: {name}", content)
    except BROKEN as error:
        raise DataError(
            f"{path} is broken or cut short (after {last}): {str(error) or type(error).__name__}"
        ) from None


Member = tuple[str, int, Callable[[], bytes] | None]


def _of_zip(path: Path) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        _check_swelling(path, sum(info.file_size for info in infos))
        for info in infos:
            link = info.external_attr >> 16 & 0o170000 == 0o120000

            def read(info: zipfile.ZipInfo = info) -> bytes:
                with archive.open(info) as file:
                    return file.read(info.file_size + 1)

            yield info.filename, info.file_size, None if link else read


def _of_tar(path: Path) -> Iterator[Member]:
    with path.open("rb") as raw:
        start = raw.read(6)
        raw.seek(0)
        reader = next(
            (reader for magic, reader in READERS.items() if start.startswith(magic)), None
        )
        stream: Any = _Counted(reader(raw) if reader else raw, path)
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Strict) as archive:
            for member in archive:
                if member.isdir():
                    continue

                def read(member: tarfile.TarInfo = member) -> bytes:
                    file = archive.extractfile(member)
                    assert file
                    return file.read()

                yield (
                    member.name,
                    member.size,
                    read if member.isreg() and not member.issparse() else None,
                )


class _Strict(tarfile.TarInfo):
    """A header that does not take a damaged one, or a missing end, for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Strict":
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end, as it should be
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error) or "it ends without an end") from None


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
            f"{path} swells to more than {SWELLING} times its size: that is no data set, and it "
            f"is not read on"
        )


def unpickled(
    content: bytes, place: str, stand_ins: Mapping[tuple[str, str], Any] = MappingProxyType({})
) -> Any:
    """What a pickle of plain values holds. Where it names (module, name), the stand-in is used: no
    code of others ever runs.

    Stand-ins are ours to the last: numpy's own ways to rebuild an array would follow pointers that
    a pickle made up.
    """

    class Restricted(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in stand_ins:
                raise DataError(
                    f"{place} asks for {module}.{name}: a data file has no business with it, "
                    f"nothing of it was run"
                )
            return stand_ins[module, name]

    try:
        tuples = sum(
            opcode.name.startswith("TUPLE") for opcode, _, _ in pickletools.genops(content)
        )
        if tuples > MOST_TUPLES:
            raise DataError(
                f"{place} has {tuples:,} tuples: no data file has so many, and nested ones could "
                f"crash the reader"
            )
        return Restricted(io.BytesIO(content), encoding="latin1").load()
    except DataError:
        raise
    except Exception as error:  # a broken pickle can raise anything
        raise DataError(
            f"{place} is not a readable pickle: {type(error).__name__}: {error}"
        ) from None
