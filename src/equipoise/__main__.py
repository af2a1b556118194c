"""The command `equipoise`, which is also `python -m equipoise`."""

import sys


def run() -> None:
    """Interrupted while libraries load, which takes a second, it says so without a traceback, as
    later."""
    try:
        from equipoise.cli.main import main

        main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    run()
