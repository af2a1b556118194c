"""What a round between three silos costs: seconds, processor time, processes.

    make bench-federation          # --large: a million parameters, too; --stock: Flower's own ways

Link, lead and silos are processes of their own, with TLS and secret noise, on this machine. A round
begins when the lead has the model of the one before. Processor time of a silo is that of its whole
process, from the first round to the last; seconds depend on what else the machine does.

`stock` is the same model with Flower's own means, without clip, noise, ledger or TLS: its
SuperNodes begin a process for every message, which imports torch; its simulation runs on Ray, with
all data in one place.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

import equipoise
from equipoise.federation.agreement import write_agreement
from equipoise.federation.lead import propose
from members import HERE, TOOLS, wait, world

NAMES = ("clinic-a", "clinic-b", "clinic-c")
SIZES = {"d = 1,000": (99, 10), "d = 1,000,000": (999, 1000)}  # inputs, outputs
ROUNDS = 20
TASK = """
import numpy
import torch
from torch import nn
from equipoise import accuracy as metric


def client(path):
    held = numpy.load(path)
    return torch.from_numpy(held["x"]), torch.from_numpy(held["y"])


model = nn.Linear({inputs}, {outputs})
loss = nn.functional.cross_entropy
example = torch.zeros({inputs}), torch.tensor(0)
learning_rate = 0.1
"""
STOCK_CLIENT = """
import numpy
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()


@app.train()
def train(message, context):
    held = numpy.load({folder!r} + "/clinic-a.npz")
    x, y = torch.from_numpy(held["x"]), torch.from_numpy(held["y"])
    model = nn.Linear({inputs}, {outputs})
    model.load_state_dict(message.content["model"].to_torch_state_dict())
    before = [p.detach().clone() for p in model.parameters()]
    nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    record = ArrayRecord(model.state_dict())
    return Message(RecordDict({{"model": record}}), reply_to=message)
"""
STOCK_SERVER = """
import time

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from torch import nn

app = ServerApp()


@app.main()
def main(grid, context):
    model = nn.Linear({inputs}, {outputs})
    while len(nodes := [*grid.get_node_ids()]) < 3:
        time.sleep(0.5)
    for round in range({rounds}):
        start = time.monotonic()
        content = RecordDict({{"model": ArrayRecord(model.state_dict())}})
        asked = [Message(content, node, "train") for node in nodes]
        replies = [*grid.send_and_receive(asked, timeout=600)]
        states = [reply.content["model"].to_torch_state_dict() for reply in replies]
        assert len(states) == 3
        mean = {{name: sum(state[name] for state in states) / 3 for name in states[0]}}
        model.load_state_dict(mean)
        with open({folder!r} + "/rounds.txt", "a") as log:
            print(time.monotonic() - start, file=log)
"""
STOCK_PROJECT = """
[project]
name = "stock"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "stock.server:app"
clientapp = "stock.client:app"
"""


def make_files(folder: Path, inputs: int, outputs: int) -> None:
    rng = np.random.default_rng(0)
    for name in NAMES:
        x = rng.normal(size=(64, inputs)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=rng.integers(0, outputs, 64))
    (folder / "task.py").write_text(TASK.format(inputs=inputs, outputs=outputs))


def ours(what: str, trust: str, rounds: int) -> str:
    """A row of the table."""
    inputs, outputs = SIZES[what]
    with (
        tempfile.TemporaryDirectory() as place,
        world(Path(place) / "world", *NAMES) as here,
    ):
        folder = here.folder
        make_files(folder, inputs, outputs)
        settings = equipoise.Settings.of(
            task=str(folder / "task.py"),
            algorithm="dp-scaffnew",
            epsilon=3,
            clip=1,
            iterations=rounds,
            local_steps=1,
            trust=trust,
        )
        agreement = propose(settings, [key.public() for key in here.keys.values()])
        write_agreement(agreement, folder / "agreement.json")
        here.link()
        fellows = [f"{name}.pub" for name in NAMES]
        silos = []
        for name in NAMES:
            words = ["agreement.json", "--key", f"{name}.key", "--data", f"{name}.npz"]
            words += ["--task-file", "task.py", "--fellows", *fellows, "--link", here.address]
            words += ["--ca", "hub/ca.pem", "--ledger", f"{name}.db"]
            caps = ["--cap-epsilon", "4", "--cap-delta", "1e-5"]
            silos.append(here.start(name, "-m", "equipoise", "silo", "run", *words, *caps))
        for silo in silos:
            wait(lambda silo=silo: "connected" in silo.said(), silo)
        lead = here.start(
            "lead", str(HERE / "lead_process.py"), "agreement.json", "hub", "x.npy", "task.py"
        )
        times, used, children, threads = [], [], set(), set()
        for number in range(1, rounds + 1):
            words = f"round {number} of {rounds}"
            wait(lambda words=words: words in lead.said(), lead if number < rounds else silos[0])
            times.append(time.monotonic())
            used.append([silo.cpu() for silo in silos])
            children |= {len(silo.children()) for silo in silos}
            threads |= {threads_of(silo) for silo in silos}
        each = np.diff(np.array(used), axis=0)
        median = statistics.median(np.diff(times))
        wait(lambda: lead.process.poll() is not None)
        return (
            f"| Equipoise, {trust} | {what} | {median:.2f} | {each.mean():.3f} | "
            f"3 silos with {max(children)} children, at most {max(threads)} threads |"
        )


def threads_of(member) -> int:
    return len([*Path(f"/proc/{member.process.pid}/task").iterdir()])


def stock(what: str, how: str, rounds: int) -> str:
    """The same with Flower's own means."""
    inputs, outputs = SIZES[what]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_files(folder, inputs, outputs)
        app, package = folder / "app", folder / "app" / "stock"
        package.mkdir(parents=True)
        (app / "pyproject.toml").write_text(STOCK_PROJECT)
        (package / "__init__.py").touch()
        values = {"inputs": inputs, "outputs": outputs, "folder": place, "rounds": rounds}
        (package / "client.py").write_text(STOCK_CLIENT.format(**values))
        (package / "server.py").write_text(STOCK_SERVER.format(**values))
        before = children_cpu()
        run = {"simulation": simulation, "SuperNodes": supernodes}[how]
        run(app, folder)
        times = [float(line) for line in (folder / "rounds.txt").read_text().split()]
        each = (children_cpu() - before) / 3 / rounds
        assert len(times) == rounds
        return (
            f"| Flower {how} | {what} | {statistics.median(times):.2f} | at least {each:.2f}, with "
            "what is done once | |"
        )


def children_cpu() -> float:
    """Of processes that have ended, and of theirs."""
    spent = os.times()
    return spent.children_user + spent.children_system


def environment(folder: Path) -> dict[str, str]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    path = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
    home = {"HOME": str(folder), "FLWR_HOME": str(folder / "flwr"), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **quiet, **home, "PATH": path, "RAY_DISABLE_DASHBOARD": "1"}


def simulation(app: Path, folder: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from flwr.simulation import run_simulation\n"
        "from stock.client import app as client; from stock.server import app as server\n"
        "run_simulation(server, client, 3)\n"
    )
    with open(folder / "simulation.out", "wb") as log:
        subprocess.run(
            [sys.executable, "-c", program, str(app)],
            env={**environment(folder), "PYTHONPATH": str(app)},
            cwd=folder,
            stdout=log,
            stderr=log,
            check=False,
            timeout=900,
        )


def supernodes(app: Path, folder: Path) -> None:
    """A SuperLink and three SuperNodes, without TLS, until the app has made its rounds."""
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.fab_pb2 import Fab
    from flwr.supercore.control import ControlHttpClient

    link, *own = (free_port() for _ in range(4))
    quick = {"env": environment(folder), "cwd": folder}
    subprocess.run(
        [TOOLS / "flwr", "build", "--app", app], check=True, capture_output=True, **quick
    )
    (bundle,) = folder.rglob("*.fab")
    there = ["--insecure", "--host", "127.0.0.1", "--disable-runtime-dependency-installation"]
    commands = [["flower-superlink", *there, "--port", link, "--database", folder / "link.db"]]
    for port in own:
        to = ["--superlink", f"127.0.0.1:{link}", "--port", port]
        commands.append(["flower-supernode", "--insecure", *to])
    running = []
    try:
        for number, (name, *words) in enumerate(commands):
            with open(folder / f"{number}.out", "wb") as log:
                command = [TOOLS / name, *map(str, words)]
                process = subprocess.Popen(command, stdout=log, stderr=log, **quick)
            running.append(process)
            until(lambda: answers(link))
        with ControlHttpClient.from_server_address(f"127.0.0.1:{link}", True, None, []) as control:
            control.StartRun(StartRunRequest(fab=Fab(content=bundle.read_bytes())))
        rounds = int((app / "stock" / "server.py").read_text().split("range(")[1].split(")")[0])
        log = folder / "rounds.txt"
        until(lambda: log.exists() and len(log.read_text().split()) == rounds)
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(30)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as here:
        port: int = here.getsockname()[1]
        return port


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def until(true: Callable[[], bool], seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--stock", action="store_true")
    chosen = parser.parse_args()
    print("| | model | seconds a round (median) | processor seconds of a silo a round | |")
    print("|---|---|---|---|---|")
    small, large = SIZES
    for trust in ("local", "secure-aggregation"):
        print(ours(small, trust, chosen.rounds), flush=True)
        if chosen.large:
            print(ours(large, trust, max(chosen.rounds // 2, 3)), flush=True)
    if chosen.stock:
        for how in ("simulation", "SuperNodes"):
            print(stock(small, how, max(chosen.rounds // 4, 3)), flush=True)
    loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"\n{os.cpu_count()} cores; load averages {loads}")


if __name__ == "__main__":
    main()
