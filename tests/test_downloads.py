"""Fetching data sets: whole and checked, or not at all."""

import hashlib
import http.server
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from data_files import cifar_archive, put
from equipoise import DataError
from equipoise.paper.data import downloads, inventory
from equipoise.paper.data.cifar10 import CIFAR10
from equipoise.paper.data.data_set import Download
from equipoise.paper.data.downloads import fetch
from problems import run_command

FILE = "cifar-10-binary.tar.gz"


class Server(http.server.BaseHTTPRequestHandler):
    """Sends `content` up to byte `sent`, but promises all of it."""

    content, sent, requests = b"", None, []

    def do_GET(self):
        self.requests.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[: self.sent])

    def log_message(self, *_):
        pass


@pytest.fixture
def served(place, monkeypatch):
    """CIFAR-10 from a server of our own; returns its handler and the data set."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    cifar_archive(place)
    archive = place / "cifar10" / FILE
    handler = type("Handler", (Server,), {"content": archive.read_bytes(), "requests": []})
    archive.unlink()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_: None  # that we hung up is no news
    threading.Thread(target=server.serve_forever, daemon=True).start()
    checksum = "sha256:" + hashlib.sha256(handler.content).hexdigest()
    url = f"http://127.0.0.1:{server.server_port}/{FILE}"
    yield handler, replace(CIFAR10, downloads=(Download(url, len(handler.content), checksum),))
    server.shutdown()
    server.server_close()


def names(data_set):
    return sorted(path.name for path in data_set.place.iterdir())


def test_fetch_once(served, monkeypatch):
    handler, data_set = served
    monkeypatch.setattr(downloads, "CHUNK", 1000)
    progress = []
    (path,) = fetch(data_set, lambda received, size: progress.append((received, size)))
    assert path.read_bytes() == handler.content
    assert names(data_set) == [FILE]
    size = len(handler.content)
    assert progress[0] == (1000, size)
    assert progress[-1] == (size, size)
    assert progress == sorted(progress)
    assert len(data_set.prepared()["train_targets"]) == 20
    fetch(data_set, lambda received, size: progress.append((received, size)))
    assert progress[-1] == (size, size)
    assert len(handler.requests) == 1  # nothing was asked for again


def test_a_connection_that_breaks_leaves_nothing(served):
    handler, data_set = served
    handler.sent = 10_000
    with pytest.raises(DataError, match=r"could not be downloaded .*run `equipoise data fetch"):
        fetch(data_set)
    assert names(data_set) == []
    handler.sent = None
    fetch(data_set)
    assert names(data_set) == [FILE]


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]
)
def test_fetch_from_a_server_that_talks_nonsense(served, answer):
    handler, data_set = served
    handler.do_GET = lambda self: self.wfile.write(answer)
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch(data_set)
    assert names(data_set) == []


def test_an_error_of_the_server_is_repeated(served):
    handler, data_set = served
    handler.do_GET = lambda self: self.send_error(503)
    with pytest.raises(DataError, match=r"answered 503 Service Unavailable: run .* by hand"):
        fetch(data_set)
    assert names(data_set) == []


def test_a_wrong_file_is_not_kept(served):
    handler, data_set = served
    right = handler.content
    handler.content = right[:-1] + b"x"
    with pytest.raises(DataError, match=r"sent something else than the .* bytes with sha256:"):
        fetch(data_set)
    assert names(data_set) == []
    put(data_set.place / FILE, b"an older version")
    with pytest.raises(DataError, match="sent something else"):
        fetch(data_set)
    assert (data_set.place / FILE).read_bytes() == b"an older version"
    handler.content = right
    fetch(data_set)
    assert (data_set.place / FILE).read_bytes() == right


def test_more_bytes_than_expected_are_not_written(served, monkeypatch):
    """A server that never ends does not fill the disk."""
    handler, data_set = served
    monkeypatch.setattr(downloads, "CHUNK", 1000)
    written = []
    watched = downloads._Watched.write
    monkeypatch.setattr(
        downloads._Watched, "write", lambda self, part: [watched(self, part), written.append(part)]
    )
    size = len(handler.content)
    handler.content *= 100
    with pytest.raises(DataError, match="sent something else"):
        fetch(data_set)
    assert sum(map(len, written)) <= size
    assert names(data_set) == []


def test_no_server(place, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    data_set = replace(CIFAR10, downloads=(Download("http://127.0.0.1:9/a.tar.gz", 1, "md5:0"),))
    with pytest.raises(DataError, match=r"http://127.0.0.1:9/a.tar.gz could not be downloaded"):
        fetch(data_set)


def test_a_folder_that_cannot_be_made(served, place):
    _, data_set = served
    (place / "cifar10").rmdir()
    put(place / "cifar10", b"a file")
    with pytest.raises(DataError, match=r"cifar10 cannot be written to: Not a directory"):
        fetch(data_set)


def test_the_command_prints_where_it_is(served, capsys, monkeypatch):
    handler, data_set = served
    monkeypatch.setitem(inventory.DATA_SETS, "cifar10", data_set)
    code, out, error = run_command(capsys, "data", "fetch", "cifar10")
    assert (code, error) == (0, "")
    assert out.strip() == str((data_set.place / FILE).resolve())
    (data_set.place / FILE).unlink()
    handler.do_GET = lambda self: self.send_error(404)
    code, _, error = run_command(capsys, "data", "fetch", "cifar10")
    assert code == 2
    assert "answered 404" in error
    assert len(error.strip().splitlines()) == 1


def test_without_pooch_there_is_a_sentence(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"needs pooch: pip install 'equipoise\[data\]'"):
        fetch(CIFAR10)


def test_pooch_is_loaded_only_to_fetch():
    code = (
        "import sys, equipoise.cli.main, equipoise.paper.data.downloads;"
        "assert not {'pooch', 'requests'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
