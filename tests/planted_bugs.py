"""Plant privacy bugs one by one in a copy of the source, run the tests, and print which test caught
which bug.

`make planted-bugs`. Fails if a bug goes unnoticed, or if its place in the source has moved.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = [
    f"tests/test_{name}.py"
    for name in (
        "accounting",
        "noise",
        "mechanism",
        "algorithms",
        "training",
        "tables",
        "own_models",
        "passes",
        "one_client",
    )
]
RECORD_TESTS = [
    f"tests/test_{name}.py"
    for name in ("new_algorithm", "record_runs", "per_example", "passes", "tables", "records")
]

BUGS = [  # what is wrong, file, old text, new text
    (
        "sigma x 0.9 in the calculus",
        "privacy/gaussian.py",
        "sigma, step = sensitivity * math.sqrt(releases) / mu, 2.0**-52",
        "return 0.9 * sensitivity * math.sqrt(releases) / mu",
    ),
    (
        "sigma x 0.9 in the mechanism",
        "privacy/clip.py",
        "(sigma * normals)",
        "(0.9 * sigma * normals)",
    ),
    ("Delta = C for replace-one", "privacy/promise.py", '"replace-one": 2.0', '"replace-one": 1.0'),
    (
        "noise before the clip",
        "privacy/clip.py",
        "return _noised(clip(zero_unless_finite(update), self.clip), self.sigma, noise, round)",
        "return clip(_noised(zero_unless_finite(update), self.sigma, noise, round), self.clip)",
    ),
    (
        "noise for the expected instead of the realised releases",
        "privacy/mechanisms/client_message.py",
        "noise_sigma(run.epsilon, run.delta, releases, sensitivity)",
        "noise_sigma(run.epsilon, run.delta, max(1, round(run.p * run.iterations)), sensitivity)",
    ),
    (
        "epsilon told for the expected releases too",
        "privacy/mechanisms/client_message.py",
        "        sensitivity = run.promise.sensitivity(run.clip)\n        sigma = self.sigma(",
        "        sensitivity = run.promise.sensitivity(run.clip)\n"
        "        schedule = schedule[:1] * max(1, round(run.p * run.iterations))\n"
        "        sigma = self.sigma(",
    ),
    (
        "one coordinate without noise",
        "privacy/clip.py",
        "normals = torch.tensor(noise.normals(round, tuple(sent.shape)))",
        "normals = torch.tensor(noise.normals(round, tuple(sent.shape))); normals[..., 3] = 0",
    ),
    (
        "secret noise reused in two rounds",
        "privacy/noise.py",
        "standard_normals(os.urandom(32), os.urandom(16), math.prod(shape)).reshape(shape)",
        "standard_normals(*self.__dict__.setdefault('k', (os.urandom(32), os.urandom(16))), "
        "math.prod(shape)).reshape(shape)",
    ),
    (
        "simulated noise reused in two rounds",
        "privacy/noise.py",
        "start = number.to_bytes(8)",
        "start = bytes(8)",
    ),
    (
        "all clients share one noise vector",
        "privacy/clip.py",
        "noise.normals(round, tuple(sent.shape))",
        "noise.normals(round, tuple(sent.shape))[..., :1, :].repeat(sent.shape[-2], -2)",
    ),
    (
        "the honest share forgets the colluders",
        "privacy/promise.py",
        "honest = clients - (self.colluding or 0)",
        "honest = clients",
    ),
    (
        "no clip",
        "privacy/clip.py",
        "_noised(clip(zero_unless_finite(update), self.clip)",
        "_noised(zero_unless_finite(update)",
    ),
    (
        "overflow is sent as it is",
        "privacy/clip.py",
        "clip(zero_unless_finite(update), self.clip)",
        "clip(update, self.clip)",
    ),
    (
        "no noise for float32 models",
        "privacy/clip.py",
        "if not _double(sigma).any():",
        "if sent.dtype == torch.float32 or not _double(sigma).any():",
    ),
    (
        "noise from a seeded generator instead of the cipher",
        "privacy/noise.py",
        "return standard_normals(os.urandom(32), os.urandom(16), math.prod(shape)).reshape(shape)",
        "return np.random.RandomState(int.from_bytes(os.urandom(4), 'big')).standard_normal(shape)",
    ),
    (
        "the clip is let past C by a hair",
        "privacy/clip.py",
        "        1 - torch.finfo(wide).eps",
        "        1 + torch.finfo(wide).eps",
    ),
    (
        "a table with many records is refused",
        "tasks/csv.py",
        "    if not rows:\n",
        "    if len(rows) > 100:\n        raise DataError(f'{path} has {len(rows)} records')\n    "
        "if not rows:\n",
    ),
    (
        "a client's failure stops the run",
        "tasks/network.py",
        "            return torch.full_like(x, torch.nan)",
        "            raise",
    ),
    (
        "an un-noised local iterate is returned",
        "fleets/server.py",
        "        yield Round(number, iteration, x)",
        "        yield Round(number, iteration, x + fleet.memory.update.mean(-2))",
    ),
    (
        "one record: replace-one accounted for as add-remove",
        "privacy/sampled.py",
        '"replace-one": NeighboringRelation.REPLACE_ONE',
        '"replace-one": NeighboringRelation.ADD_OR_REMOVE_ONE',
    ),
    (
        "one record: sensitivity C for 2C",
        "privacy/sampled.py",
        "noise_sigma(epsilon, delta, steps, OVER_CLIP[neighbours])",
        "noise_sigma(epsilon, delta, steps, 1.0)",
    ),
    (
        "one record: half of the noise",
        "privacy/noisy_gradient.py",
        "total + self.sigma *",
        "total + 0.5 * self.sigma *",
    ),
    (
        "one record: linear gradients are not clipped",
        "tasks/linear.py",
        "clamp(max=1.0).nan_to_num(0.0)",
        "clamp(min=1.0, max=1.0)",
    ),
    (
        "one record: networks' gradients are not clipped",
        "privacy/per_example/clipped_sum.py",
        "weights = (threshold / squares.sqrt()).clamp(max=1.0)",
        "weights = torch.ones_like(squares)",
    ),
    (
        "one record: all records are always in the sample",
        "privacy/noisy_gradient.py",
        "return coins <",
        "return coins >= 0 *",
    ),
    (
        "one record: the sample comes from a public seed",
        "privacy/noisy_gradient.py",
        "coins = torch.tensor(self.noise.uniforms(t + 1, (*x.shape[:-1], "
        "max(self.clients.sizes))))",
        "coins = torch.rand(*x.shape[:-1], max(self.clients.sizes), "
        "generator=torch.Generator().manual_seed(t))",
    ),
    (
        "one record: half of S_tau",
        "privacy/stability.py",
        "return OVER_CLIP[self.neighbours] * self.eta",
        "return 1.0 * self.eta",
    ),
    (
        "one record: any step size with stability",
        "privacy/stability.py",
        "0 < self.eta <= most * (1 + 1e-12)",
        "0 < self.eta",
    ),
    (
        "one record: a hidden state that hides too much",
        "privacy/stability.py",
        "* (1 + c) / (1 + c**tau)",
        "/ (1 + c**tau)",
    ),
    (
        "one record: stability with the paper's control variate",
        "privacy/mechanisms/record_message.py",
        'memory == "released" and settings.trust == "local"',
        'settings.trust == "local"',
    ),
    (
        "one record: one that fails takes the others with it",
        "tasks/network.py",
        "        for j in range(len(inputs)):",
        "        for j in range(0):",
    ),
    (
        "one record: hidden noise of the mean used for the sum",
        "privacy/mechanisms/record_hidden.py",
        "sensitivity = size * stability(",
        "sensitivity = stability(",
    ),
    (
        "one record: the shortest round decides",
        "privacy/mechanisms/record_message.py",
        "        max(schedule),",
        "        min(schedule),",
    ),
    (
        "one record: features taken for half as long",
        "tasks/linear.py",
        "gradient_bound=link.steepest\n",
        "gradient_bound=0.5 * link.steepest\n",
    ),
    (
        "one record: a share of the share of the noise",
        "engine.py",
        "sigma: Any = added[0]",
        "added = [run.promise.client_sigma(sigma, run.clients) for sigma in added]\n"
        "    sigma: Any = added[0]",
    ),
    (
        "one record: dropout from a public number",
        "privacy/noisy_gradient.py",
        "draw = int(2**52 * self.noise.uniforms(_DRAWS + t, (1, 1)).flat[0])",
        "draw = t",
    ),
    (
        "one record: the loss of a batch",
        "privacy/per_example/clipped_sum.py",
        "        total = torch.stack([*single]).sum()",
        "        total = loss(outputs, targets) * len(inputs)",
    ),
    (
        "one record: models are tried at their initial weights only",
        "tasks/flat_model.py",
        "for size in (0.1, 0.3)\n",
        "for size in (0.0, 0.0)\n",
    ),
    (
        "one record: one dropout mask for all records after a failure",
        "tasks/network.py",
        "slice(j, j + 1), j\n",
        "slice(j, j + 1)\n",
    ),
    (
        "one record: one without a label changes the number of records",
        "tasks/csv.py",
        "if keep_all else",
        "if False else",
    ),
    (
        "one record: steps too long for a proximal term",
        "privacy/mechanisms/record_message.py",
        "facts.L + pull,",
        "facts.L,",
    ),
    (
        "runs of a stack are released by another's mechanism",
        "engine.py",
        "group, *functions, repr(",
        "group, repr(",
    ),
    (
        "one client alone opens the files of all",
        "tasks/csv.py",
        "    private = [_empty(model)] * number\n    private[client]",
        "    private = [_private(options, model, i) for i in range(number)]\n    private[client]",
    ),
    (
        "one client alone guesses a sampling rate",
        "tasks/task.py",
        "public = self.number is None and (",
        "public = (",
    ),
    (
        "one record: stability for any steps",
        "privacy/mechanisms/record_message.py",
        "        settings.gradient_steps,\n",
        "        True,\n",
    ),
    (
        "one record: what a round hid is remembered",
        "privacy/mechanisms/record_hidden.py",
        'settings.memory != "private"',
        "True",
    ),
    (
        "what a model keeps in its attributes reaches the next client",
        "privacy/per_example/one_pass.py",
        "    return copy.deepcopy(value, memo)\n",
        "    return value\n",
    ),
    (
        "what a model keeps in a frozen parameter reaches the next client",
        "privacy/per_example/one_pass.py",
        "else _copy(parameter)",
        "else parameter",
    ),
    (
        "a pass leaves new attributes in the model",
        "privacy/per_example/one_pass.py",
        "            vars(part).clear()\n",
        "",
    ),
    (
        "a model writes to the weights that the server holds",
        "tasks/flat_model.py",
        "        leaf = x.detach().clone().requires_grad_()\n"
        "        values = named_tensors(leaf, self.shapes)\n"
        "        with _seeded(*draw)",
        "        leaf = x.detach().requires_grad_()\n"
        "        values = named_tensors(leaf, self.shapes)\n"
        "        with _seeded(*draw)",
    ),
    (
        "a model that remembers is accepted",
        "tasks/own.py",
        "            if remembers:\n",
        "            if False:\n",
    ),
    (
        "one record: a model writes to the weights of the next pass",
        "privacy/per_example/clipped_sum.py",
        "name: value.detach().clone().requires_grad_()",
        "name: value.detach().requires_grad_()",
    ),
    (
        "one record: only outputs are tried, not gradients",
        "tasks/network.py",
        "if not self.one_by_one and self.model.mixes_gradients(",
        "if False and self.model.mixes_gradients(",
    ),
    (
        "one record: no strange examples are tried",
        "tasks/network.py",
        "self.loss, kind.examples(), kind.intruders(), layout",
        "self.loss, kind.examples(), (), layout",
    ),
    (
        "one record: isolate is ignored",
        "tasks/network.py",
        "        return replace(self, isolate=True)",
        "        return self",
    ),
    (
        "one record: a gradient that is a single number is not counted in the norm",
        "privacy/per_example/shares.py",
        "        [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in some]\n"
        "    ).square()\n",
        "        [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in some]\n"
        "    ).square() * (gradients.dim() > 1)\n",
    ),
    (
        "one mechanism for all that share its class",
        "engine.py",
        "repr(sorted(vars(mechanism).items()))",
        '""',
    ),
]


def first_failure(tests: list[str], file: str = "", old: str = "", new: str = "") -> str | None:
    """The first test that fails when `old` in `file` is replaced by `new` in a copy of the
    source.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        if file:
            path = Path(folder) / "src" / "equipoise" / file
            source = path.read_text()
            if source.count(old) != 1:
                sys.exit(f"expected once in {file}: {old}")
            path.write_text(source.replace(old, new))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--tb=no", "-x", *tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(Path(folder) / "src"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    failure = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)
    return failure and failure[1].split("[")[0]


def _caught(bug: tuple[str, str, str, str]) -> str | None:
    name, *change = bug
    return first_failure(RECORD_TESTS if name.startswith("one record") else TESTS, *change)


def main() -> None:
    """All bugs, or those whose name contains the first argument."""
    chosen = [bug for bug in BUGS if len(sys.argv) < 2 or sys.argv[1] in bug[0]]
    if broken := first_failure([*TESTS, *RECORD_TESTS]):
        sys.exit(f"a test fails without any bug: {broken}")
    missed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (name, *_), caught in zip(chosen, pool.map(_caught, chosen), strict=True):
            missed += not caught
            verdict = "caught" if caught else "MISSED"
            print(f"{verdict}  {name}: {caught or 'no test failed'}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs were caught")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
