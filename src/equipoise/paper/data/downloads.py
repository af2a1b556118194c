"""Fetching data sets from their official addresses: a file is there whole and checked, or not."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from equipoise.errors import DataError
from equipoise.paper.data.data_set import DataSet, Download

CHUNK = 2**18  # bytes
TIMEOUT = 60  # seconds without a byte
Watch = Callable[[int, int], Any]
"""Is given how many bytes have arrived, and how many there will be."""


def fetch(data_set: DataSet, watch: Watch = lambda received, size: None) -> list[Path]:
    """The files of a data set, downloaded into its folder unless they are there already."""
    if not data_set.downloads:
        raise DataError(
            f"{data_set.name} cannot be fetched by a command: {data_set.how} ({data_set.place})"
        )
    return [_fetch(download, data_set, watch) for download in data_set.downloads]


def _fetch(download: Download, data_set: DataSet, watch: Watch) -> Path:
    """pooch downloads to a file beside, checks it, and then renames it. A file that has the name
    already but not the checksum is replaced."""
    try:
        import pooch  # of an extra: nothing else needs it
    except ImportError:
        raise DataError("fetching data needs pooch: pip install 'equipoise[data]'") from None

    def save(url: str, path: str, _: object) -> None:
        http = pooch.HTTPDownloader(chunk_size=CHUNK, timeout=TIMEOUT)
        with Path(path).open("wb") as file:
            http(url, _Watched(file, download.size, watch), None)
            file.flush()
            os.fsync(file.fileno())

    pooch.get_logger().setLevel(logging.WARNING)
    try:
        path = pooch.retrieve(
            download.url, download.checksum, download.file, data_set.place, downloader=save
        )
    except (OSError, ValueError) as error:
        raise DataError(_sentence(error, download, data_set)) from None
    watch(download.size, download.size)
    return Path(path)


class _Watched:
    """A file that reports how much was written to it, and takes no more than `size` bytes."""

    def __init__(self, file: BinaryIO, size: int, watch: Watch) -> None:
        self._file, self._size, self._watch = file, size, watch
        self._received = 0

    def write(self, content: bytes) -> None:
        self._received += len(content)
        if self._received > self._size:
            raise ValueError("more bytes than expected")
        self._file.write(content)
        self._watch(self._received, self._size)

    def flush(self) -> None:
        """pooch asks for it after every piece; once, at the end, is enough."""


def _sentence(error: Exception, download: Download, data_set: DataSet) -> str:
    from requests.exceptions import HTTPError, RequestException  # loaded by pooch

    again = f"run `equipoise data fetch {data_set.name}` again"
    if isinstance(error, HTTPError) and error.response is not None:
        return (
            f"{download.url} answered {error.response.status_code} {error.response.reason}: "
            f"{again} later, or put the file into {data_set.place} by hand"
        )
    if isinstance(error, RequestException):
        return (
            f"{download.url} could not be downloaded ({type(error).__name__}): check the network "
            f"connection, and {again}"
        )
    if isinstance(error, ValueError):
        return (
            f"{download.url} sent something else than the {download.size:,} bytes with "
            f"{download.checksum}, which was not kept: {again} later"
        )
    cause = error.__cause__ or error
    return f"{data_set.place} cannot be written to: {getattr(cause, 'strerror', None) or cause}"
