"""A machine in the middle that a silo takes for its link: it ends TLS, hears everything in the
clear, and passes it on to the link, again over TLS.

Only for tests: the silo is given the listener's certificate instead of the link's.
"""

import asyncio
import ssl
from contextlib import suppress
from threading import Event, Thread
from typing import NamedTuple

from equipoise.fleets.certificates import make_certificate


class Request(NamedTuple):
    """What a silo sent: one HTTP request."""

    path: str
    headers: dict[str, str]
    body: bytes


class Listener:
    """`address` is what the silo is given as its link, `ca` as the link's certificate."""

    def __init__(self, folder, link, link_ca):
        folder.mkdir()
        files = make_certificate(folder, "localhost")
        self.ca, self._link = files.ca, link
        self._inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._inside.load_cert_chain(files.certificate, files.key)
        self._outside = ssl.create_default_context(cafile=link_ca)
        self._streams, self._loop = [], asyncio.new_event_loop()

    def __enter__(self):
        ready = Event()

        async def serve():
            server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0, ssl=self._inside)
            self.address = f"localhost:{server.sockets[0].getsockname()[1]}"
            ready.set()

        def run():
            self._loop.create_task(serve())
            self._loop.run_forever()

        self._thread = Thread(target=run, daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_):
        def end():
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_soon(self._loop.stop)

        self._loop.call_soon_threadsafe(end)
        self._thread.join()

    async def _pass_on(self, from_silo, to_silo):
        host, port = self._link.rsplit(":", 1)
        heard = bytearray()
        self._streams.append(heard)
        from_link, to_link = await asyncio.open_connection(host, int(port), ssl=self._outside)
        await asyncio.gather(
            self._copy(from_silo, to_link, heard), self._copy(from_link, to_silo, bytearray())
        )

    @staticmethod
    async def _copy(source, target, heard):
        with suppress(OSError):
            while data := await source.read(65536):
                heard += data
                target.write(data)
                await target.drain()
        target.close()

    def bytes(self):
        """All that the silo sent, by connection."""
        return [bytes(heard) for heard in self._streams]

    def requests(self):
        """The same as HTTP requests; a body whose length is not said is none that we know."""
        return [request for heard in self.bytes() for request in parsed(heard)]


def parsed(heard):
    while heard:
        head, _, heard = heard.partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        method, path, version = first.split(" ")
        assert (method, version) == ("POST", "HTTP/1.1")
        length = int(headers["content-length"])
        yield Request(path, headers, heard[:length])
        heard = heard[length:]
