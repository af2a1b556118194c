"""`equipoise silo run`, watched: python silo_process.py NOISE WORDS...

NOISE is `secret`, or a client's number, whose noise in a simulation is given then: nothing in the
product can do this, the name of the noise is replaced from outside. Whatever starts a process is
said on standard error, and to which ports it connects; and at the end ALONE, if the operating
system knows of no child.
"""

import resource
import sys

ALONE = "it never had a child process"
STARTS = ("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system")


connected = set()


def watched(event, arguments):
    if event in STARTS or event == "subprocess.Popen":
        print(f"a process is started: {event}", file=sys.stderr, flush=True)
    if event == "socket.connect" and arguments[1][1] not in connected:
        connected.add(arguments[1][1])
        print(f"it connects to port {arguments[1][1]}", file=sys.stderr, flush=True)


def main():
    sys.addaudithook(watched)
    from equipoise.cli.main import main as command
    from equipoise.federation import silo
    from equipoise.privacy.noise import SimulatedNoise
    from federations import SEED

    client, *words = sys.argv[1:]
    if client != "secret":
        silo.SecretNoise = lambda: SimulatedNoise(SEED, first_client=int(client))
    try:
        command(["silo", "run", *words])
    finally:
        # pages that children touched, counted when they ended
        faults = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not faults.ru_maxrss and not faults.ru_minflt:
            print(ALONE, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
