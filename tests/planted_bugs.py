"""Plant privacy bugs one by one in a copy of the source, run the tests, and print which test caught which bug.

`make planted-bugs`. Fails if a bug goes unnoticed, or if its place in the source has moved.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = [
    f"tests/test_{name}.py" for name in ("accounting", "noise", "mechanism", "algorithms", "training", "tables", "own_models")
]

BUGS = [  # what is wrong, file, old text, new text
    (
        "sigma x 0.9 in the calculus",
        "privacy/accounting.py",
        "sigma, step = sensitivity * math.sqrt(releases) / mu, 2.0**-52",
        "return 0.9 * sensitivity * math.sqrt(releases) / mu",
    ),
    (
        "sigma x 0.9 in the mechanism",
        "privacy/mechanism.py",
        "(self.client_sigma * normals)",
        "(0.9 * self.client_sigma * normals)",
    ),
    ("Delta = C for replace-one", "privacy/budget.py", '"replace-one": 2.0', '"replace-one": 1.0'),
    (
        "noise before the clip",
        "privacy/mechanism.py",
        "return sent + (self.client_sigma * normals).to(sent.dtype)",
        "return clip(zero_unless_finite(update) + (self.client_sigma * normals).to(sent.dtype), self.clip_norm)",
    ),
    (
        "noise for the expected instead of the realised releases",
        "training.py",
        "noise_sigma(run.epsilon, run.delta, releases,",
        "noise_sigma(run.epsilon, run.delta, max(1, round(run.p * run.iterations)),",
    ),
    (
        "epsilon told for the expected releases too",
        "training.py",
        "    account = account_of(run, task, len(schedule))",
        "    account = account_of(run, task, max(1, round(run.p * run.iterations)))",
    ),
    (
        "one coordinate without noise",
        "privacy/mechanism.py",
        "normals = torch.tensor(noise.normals(round, tuple(update.shape)))",
        "normals = torch.tensor(noise.normals(round, tuple(update.shape))); normals[..., 3] = 0",
    ),
    (
        "secret noise reused in two rounds",
        "privacy/noise.py",
        "standard_normals(os.urandom(32), os.urandom(16), math.prod(shape)).reshape(shape)",
        "standard_normals(*self.__dict__.setdefault('k', (os.urandom(32), os.urandom(16))), math.prod(shape)).reshape(shape)",
    ),
    ("simulated noise reused in two rounds", "privacy/noise.py", "start = round.to_bytes(8)", "start = bytes(8)"),
    (
        "all clients share one noise vector",
        "privacy/mechanism.py",
        "noise.normals(round, tuple(update.shape))",
        "noise.normals(round, tuple(update.shape))[..., :1, :].repeat(update.shape[-2], -2)",
    ),
    (
        "the honest share forgets the colluders",
        "privacy/budget.py",
        "honest = self.clients - (self.colluding or 0)",
        "honest = self.clients",
    ),
    (
        "no clip",
        "privacy/mechanism.py",
        "sent = clip(zero_unless_finite(update), self.clip_norm)",
        "sent = zero_unless_finite(update)",
    ),
    (
        "overflow is sent as it is",
        "privacy/mechanism.py",
        "clip(zero_unless_finite(update), self.clip_norm)",
        "clip(update, self.clip_norm)",
    ),
    (
        "no noise for float32 models",
        "privacy/mechanism.py",
        "if not _double(self.client_sigma).any():",
        "if sent.dtype == torch.float32 or not _double(self.client_sigma).any():",
    ),
    (
        "noise from a seeded generator instead of the cipher",
        "privacy/noise.py",
        "return standard_normals(os.urandom(32), os.urandom(16), math.prod(shape)).reshape(shape)",
        "return np.random.RandomState(int.from_bytes(os.urandom(4), 'big')).standard_normal(shape)",
    ),
    (
        "the clip is let past C by a hair",
        "privacy/mechanism.py",
        "threshold = clip_norm * (1 - torch",
        "threshold = clip_norm * (1 + torch",
    ),
    (
        "a table with many records is refused",
        "tasks/tables.py",
        "    if not rows:\n",
        "    if len(rows) > 100:\n        raise DataError(f'{path} has {len(rows)} records')\n    if not rows:\n",
    ),
    (
        "a client's failure stops the run",
        "tasks/own.py",
        "            return torch.full_like(x, torch.nan)",
        "            raise",
    ),
    (
        "an un-noised local iterate is returned",
        "fleets/server.py",
        "        yield Round(number, iteration, x)",
        "        yield Round(number, iteration, x + fleet.memory.update.mean(-2))",
    ),
]


def failures(file: str = "", old: str = "", new: str = "") -> list[str]:
    """The tests that fail when `old` in `file` is replaced by `new` in a copy of the source."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        if file:
            path = Path(folder) / "src" / "equipoise" / file
            source = path.read_text()
            if source.count(old) != 1:
                sys.exit(f"expected once in {file}: {old}")
            path.write_text(source.replace(old, new))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--tb=no", *TESTS],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(Path(folder) / "src")},
            capture_output=True,
            text=True,
        )
    return re.findall(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)


def main() -> None:
    if broken := failures():
        sys.exit(f"the tests fail without any bug: {broken}")
    missed = 0
    for name, *bug in BUGS:
        caught = list(dict.fromkeys(test.split("[")[0] for test in failures(*bug)))
        missed += not caught
        others = f" and {len(caught) - 1} more" if len(caught) > 1 else ""
        print(f"{'caught' if caught else 'MISSED'}  {name}: {caught[0] if caught else 'no test failed'}{others}", flush=True)
    print(f"{len(BUGS) - missed} of {len(BUGS)} planted bugs were caught")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
