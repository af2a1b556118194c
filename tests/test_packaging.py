"""What the files around the source say of it: versions, pins, names of tests, commands."""

import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import chain

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from problems import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    canonicalize_name(name): pinned
    for name, pinned in (
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()
    )
}


def wanted(lines, extras):
    """The requirements among `lines` for any of the extras. Those of one platform alone are left
    out: builds of torch for a GPU bring libraries in the versions that they need."""
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if "platform" in str(marker):
            continue
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def all_that_is_needed():
    """Every requirement of the project, of all its extras, and of what they bring."""
    lines = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    waiting, seen = list(wanted(lines, {""})), set()
    while waiting:
        requirement = waiting.pop()
        if requirement.name == PROJECT["name"] or str(requirement) in seen:
            continue
        seen.add(str(requirement))
        yield requirement
        waiting += wanted(requires(requirement.name) or [], requirement.extras | {""})


def test_everything_needed_is_pinned_as_it_is_installed():
    for requirement in all_that_is_needed():
        name = canonicalize_name(requirement.name)
        assert name in PINS, f"constraints.txt does not pin {requirement}"
        assert PINS[name] in requirement.specifier, f"{name}=={PINS[name]}, but {requirement}"
        try:
            installed = version(name)
        except PackageNotFoundError:
            raise AssertionError(f"{requirement} is not installed: make install-dev") from None
        assert Version(installed).public == PINS[name], name


def test_one_version_everywhere():
    changes = re.findall(r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert PROJECT["version"] == changes[0] == cited[1]
    assert changes == sorted(changes, key=Version, reverse=True)


def test_wheels_are_tried_on_every_python_that_is_promised():
    workflow = (ROOT / ".github" / "workflows" / "wheel.yml").read_text()
    tried = re.findall(r'"(3\.\d+)"', workflow)
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert tried == promised
    assert PROJECT["requires-python"] == f">={tried[0]}"


def test_tests_that_contributors_are_told_of_exist():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    files = {path.name: path.read_text() for path in (ROOT / "tests").glob("test_*.py")}
    rows = re.findall(r"\| `(test_\w+\.py)`: (.+) \|", guide)
    assert len(rows) >= 5
    for file, names in rows:
        for name in re.findall(r"`(test_\w+)`", names):
            assert f"def {name}(" in files[file], f"{file}: {name}"
    listed = {file for file, names in rows}
    skipping = {name for name, text in files.items() if re.search(r"\bskip(if)?\(", text)}
    assert skipping - {"test_packaging.py"} <= listed


def test_targets_that_contributors_are_told_of_exist():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    told = set(re.findall(r"`(?:make )?((?:bench|crash|planted|wheel)-[\w-]+)`", guide))
    told |= set(re.findall(r"\bmake (\w+) ", guide.split("```")[1]))
    assert {"run", "test", "bench-tasks"} <= told
    for target in told:
        done = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
