"""Fetching data sets from their official addresses: resumed where it stopped, checked, and never
left half done."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from equipoise.errors import DataError
from equipoise.paper.data.prepared import DataSet, Download

CHUNK = 2**20
Watch = Callable[[int, int], Any]
"""Hears how many bytes are there, and of how many."""


def fetch(data_set: DataSet, watch: Watch = lambda there, of: None) -> list[Path]:
    """The files of a data set, downloaded into its folder if they are not there yet."""
    if not data_set.downloads:
        raise DataError(
            f"{data_set.name} cannot be fetched by a command: {data_set.how}, into {data_set.place}"
        )
    return [_fetch(download, data_set.place, watch) for download in data_set.downloads]


def _fetch(download: Download, folder: Path, watch: Watch) -> Path:
    """The file under its own name is whole and checked; what has come so far lies beside it under
    `.part`."""
    path = folder / download.file
    part = path.with_name(path.name + ".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _check(path, download)
            watch(download.size, download.size)
            return path
        if not part.exists() or part.stat().st_size < download.size:
            _continue(download, part, watch)
        try:
            _check(part, download)
        except DataError as error:
            part.unlink()
            raise DataError(f"{error}; what came was deleted, fetch it again") from None
        part.replace(path)
    except urllib.error.HTTPError as error:
        raise DataError(
            f"{download.url} answered {error.code} {error.reason}: try again later, or get it by "
            f"hand"
        ) from None
    except urllib.error.URLError as error:
        raise DataError(f"{download.url} cannot be reached: {error.reason}") from None
    except (http.client.HTTPException, ValueError) as error:
        raise DataError(
            f"{download.url} did not answer as it should: {type(error).__name__}: {error}"
        ) from None
    except OSError as error:
        there = part.stat().st_size if part.exists() else 0
        said = error.strerror or error
        raise DataError(
            f"{path}: {said}; {there:,} of {download.size:,} bytes are kept, run it again to go on"
        ) from None
    return path


def _continue(download: Download, part: Path, watch: Watch) -> None:
    """Ask for what is missing; a server that sends everything again is taken at its word."""
    there = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(
        download.url, headers={"Range": f"bytes={there}-"} if there else {}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        resumed = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(
            f"bytes {there}-"
        )
        with part.open("ab" if there and resumed else "wb") as file:
            there = there if resumed else 0
            while content := answer.read(CHUNK):
                there += len(content)
                if there > download.size:
                    break  # it is not the file; the check will say so
                file.write(content)
                watch(there, download.size)
            file.flush()
            os.fsync(file.fileno())
    if there < download.size:
        raise OSError(None, f"the connection ended after {there:,} of {download.size:,} bytes")


def _check(path: Path, download: Download) -> None:
    kind, _, wanted = download.checksum.partition(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != wanted:
        raise DataError(f"{path} is not {download.url}: its {kind} is {found}, not {wanted}")
