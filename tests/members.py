"""The members of a federation as processes of their own on the loopback address: a link, silos,
and a hostile lead.

Every member is its own process group, writes to a log of its own, and dies with the test process.
"""

import ctypes
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from equipoise.fleets.keys import PrivateKeys, write_keys

HERE = Path(__file__).parent
SILO = str(HERE / "echo_silo.py")
TOOLS = Path(sys.executable).parent


def with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class Member:
    """One process, the head of its own group."""

    def __init__(self, folder: Path, name: str, command: list[str]) -> None:
        self.name, self.log = name, folder / f"{name}.out"
        self._before = self.log.stat().st_size if self.log.exists() else 0
        ours = ("PATH", "PYTHONPATH", "LANG")
        environment = {key: os.environ[key] for key in ours if key in os.environ}
        if paths := environment.get("PYTHONPATH"):  # of this process, whose folder is another one
            absolute = [str(Path(path).absolute()) for path in paths.split(os.pathsep)]
            environment["PYTHONPATH"] = os.pathsep.join(absolute)
        environment |= {"HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        environment |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=with_parent,  # noqa: PLW1509
            )

    def said(self) -> str:
        """What this process has said; its log goes on where an earlier one of the name ended."""
        return self.log.read_bytes()[self._before :].decode()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self, seconds: float = 10) -> int:
        """SIGTERM, then SIGKILL of the whole group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.wait()

    def children(self) -> list[str]:
        return (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        )

    def listens(self) -> bool:
        """Whether it waits for connections on a port (state 0A)."""
        process = Path(f"/proc/{self.process.pid}")
        mine = {os.readlink(place) for place in (process / "fd").iterdir()}
        lines = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in (process / "net" / table).read_text().splitlines()[1:]
        ]
        return any(line[3] == "0A" and f"socket:[{line[9]}]" in mine for line in lines)

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class World:
    """A folder with keys and a link, and the members that were started."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder, self.names, self.members = folder, names, []
        (folder / "home").mkdir(parents=True)
        self.keys = {name: PrivateKeys.new(name) for name in names}
        for key in self.keys.values():
            write_keys(key, folder)
        self.public = {name: key.public().node for name, key in self.keys.items()}
        self.port = 0

    def start(self, name: str, *command: str) -> Member:
        member = Member(self.folder, name, [sys.executable, *command])
        self.members.append(member)
        return member

    def link(self) -> Member:
        """A link for all silos; started again, it is on the same port."""
        files = [f"{name}.pub" for name in self.names]
        flags = ["--port", str(self.port), "--silos", *files]
        member = self.start("link", "-m", "equipoise", "federation", "link", "hub", *flags)
        wait(lambda: " is up for " in member.said(), member)
        self.port = int(member.said().rpartition(" is up for ")[0].rpartition(":")[2])
        health = f"https://localhost:{self.port}/health"
        trusted = ssl.create_default_context(cafile=self.folder / "hub" / "ca.pem")
        assert httpx.get(health, verify=trusted).status_code == 200
        return member

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def silo(self, name: str, *more: str, key: str = "", ready: bool = True) -> Member:
        words = [f"{key or name}.key", self.address, "hub/ca.pem", *more]
        member = self.start(name, SILO, *words)
        if ready:
            wait(lambda: "connected to link" in member.said(), member)
        return member


def wait(true, *members: Member, seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert all(member.process.poll() is None for member in members), "a member ended"
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


@contextmanager
def world(folder: Path, *names: str) -> Iterator[World]:
    """Whatever happens, nothing is left running; a failure shows what the members said."""
    made = World(folder, names)
    try:
        yield made
    except BaseException:
        for path in (*folder.glob("*.out"), *folder.glob("hub/*.log")):
            print(f"== {path.name}\n{path.read_text()[-3000:]}")
        raise
    finally:
        for member in made.members:
            member.end()
