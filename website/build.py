"""Builds the site into the folder site, without a network: `make docs`.

--quick leaves the notebook's outputs out; --out names another folder.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import links
import pages


def build(out: Path, run: bool) -> None:
    """The site in the folder `out`, whole or not at all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pages.write(folder / "docs", run)
        shutil.copy(pages.ROOT / "website" / "mkdocs.yml", folder)
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        links.check(folder / "site")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folder / "site", out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without the notebook's outputs")
    parser.add_argument("--out", type=Path, default=pages.ROOT / "site")
    given = parser.parse_args()
    build(given.out, run=not given.quick)
    print(f"open {given.out / 'index.html'}")
