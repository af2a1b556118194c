"""Three hospitals, a lead and a link as separate processes on this machine, over TLS.

    python examples/federation.py [FOLDER]        # make federation: a folder named federation

Every hospital gets keys, a ledger and one file, in a folder of its own. Two runs: one hides a
record of one hospital and is seen message by message; the other hides a whole hospital, and only
masked sums can be read: with three hospitals such noise leaves nothing to learn, with hundreds it
would. At the end the ledgers are shown, and everything that was started is ended.
What is printed after `$` is what people on separate machines would type.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import hospitals

NAMES = {"clinic-a": 2, "clinic-b": 3, "clinic-c": 4}  # and which of the five hospitals they are
TABLE = "--task csv --label readmitted --bounds lead/bounds.toml --ignore patient"
RECORD = (
    "--unit record --records {sizes} --epsilon 2 --clip 1 --eta 4 --iterations 64 --local-steps 4"
)
CLIENT = "--epsilon 3 --clip 0.1 --iterations 16 --local-steps 8 --trust secure-aggregation"
RUNS = {
    "one record is hidden": f"{TABLE} {RECORD}",
    "a whole hospital is hidden, which three are too few to learn from": f"{TABLE} {CLIENT}",
}
CAPS = "--cap-epsilon 6 --cap-delta 2e-5"
EQUIPOISE = [sys.executable, "-m", "equipoise"]


class Started:
    """Processes that go on by themselves, each writing to a log of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: str) -> subprocess.Popen[bytes]:
        print(f"{name:<9}$ equipoise {command} &", flush=True)
        with open(self.folder / f"{name}.log", "ab") as log:
            words = [*EQUIPOISE, *shlex.split(command)]
            process = subprocess.Popen(
                words, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)
        return process

    def wait_for(self, name: str, words: str, process: subprocess.Popen[bytes]) -> None:
        """Until its log has these words."""
        while words not in (text := (self.folder / f"{name}.log").read_text()):
            if process.poll() is not None:
                sys.exit(f"{name} ended:\n{text}")
            time.sleep(0.1)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def run(folder: Path, who: str, command: str, *, shown: bool = True, worst: int = 0) -> None:
    """A command that ends by itself; one that ends worse ends this program too."""
    print(f"{who:<9}$ equipoise {command}", flush=True)
    words = [*EQUIPOISE, *shlex.split(command)]
    done = subprocess.run(words, cwd=folder, stdout=None if shown else subprocess.DEVNULL)
    if done.returncode > worst:
        sys.exit(done.returncode)


def make_files(folder: Path) -> dict[str, int]:
    """Each silo's own folder with its file, and the lead's with what is public; how many records
    each silo has."""
    hospitals.make(folder / "made")
    sizes = {}
    for name, number in NAMES.items():
        (folder / name).mkdir()
        mine = folder / name / "mine.csv"
        shutil.move(folder / "made" / f"hospital-{number}.csv", mine)
        sizes[name] = len(mine.read_text().splitlines()) - 1
    (folder / "lead").mkdir()
    for public in ("test.csv", "bounds.toml"):
        shutil.move(folder / "made" / public, folder / "lead" / public)
    shutil.rmtree(folder / "made")
    return sizes


def main(folder: Path) -> None:
    if folder.exists():
        sys.exit(f"{folder} is there already: remove it, or name another")
    folder.mkdir(parents=True)
    sizes = make_files(folder)
    started = Started(folder)
    publics = " ".join(f"{name}/{name}.pub" for name in NAMES)
    try:
        for name in NAMES:
            run(folder, name, f"keys new {name} --folder {name}", shown=False)
        link = started.start("link", f"federation link lead/hub --silos {publics} --port 0")
        started.wait_for("link", " is up for ", link)
        text = (folder / "link.log").read_text()
        address = text.partition("link ")[2].partition(" is up")[0]
        for number, (what, settings) in enumerate(RUNS.items(), 1):
            print(f"\n== run {number}: {what}")
            one_run(folder, started, number, settings, publics, address, sizes)
        print("\n== what it cost: every silo's own ledger")
        for name in NAMES:
            run(folder, name, f"ledger show {name}/ledger.db")
    finally:
        started.end()
    print(f"\neverything that was started has ended; results, statements and logs: {folder}")


def one_run(
    folder: Path,
    started: Started,
    number: int,
    settings: str,
    publics: str,
    address: str,
    sizes: dict[str, int],
) -> None:
    """From the agreement to the statement."""
    agreement = f"lead/agreement-{number}.json"
    settings = settings.format(sizes=" ".join(str(size) for size in sizes.values()))
    run(folder, "lead", f"federation propose {settings} --silos {publics} --out {agreement}")
    silos = []
    for name in NAMES:
        others = " ".join(f"{other}/{other}.pub" for other in NAMES if other != name)
        own = f"{agreement} --key {name}/{name}.key --data {name}/mine.csv --fellows {others}"
        own += f" --ledger {name}/ledger.db {CAPS if number == 1 else ''}"
        if name == "clinic-a" and number == 1:
            # 1: there are cells that a person should look at, as in real files
            run(folder, name, f"silo check {own}", worst=1)
        to = f"--link {address} --ca lead/hub/ca.pem"
        silos.append(started.start(name, f"silo run {own} {to}"))
    lead = f"federation lead {agreement} --link lead/hub --out lead/run-{number}"
    run(folder, "lead", f"{lead} --test lead/test.csv --groups hospital")
    for silo in silos:
        silo.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "federation"))
