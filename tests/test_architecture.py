"""Who may import whom, read from the syntax trees; and the public names."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise

SOURCE = Path(equipoise.__file__).parent
LEAVES = {"errors", "seeds", "_lazy"}  # anybody may use these
ALLOWED = {
    "errors": set(),
    "seeds": set(),
    "_lazy": set(),
    "privacy": {"privacy"},
    "algorithms": {"algorithms", "privacy.mechanism"},
    "data_sets": {"data_sets"},
    "tasks": {"data_sets", "tasks", "privacy.per_example"},
    "fleets": {"fleets", "algorithms", "privacy"},
    "run": {"privacy.budget", "rules"},
    "rules": {"run"},
    "result": {"run"},
    "accounts": {"algorithms", "privacy", "result", "run", "tasks"},
    "statement": {"result"},
    "saved": {"result", "statement", "report"},
    "report": {"report", "result", "plans", "store"},
    "plans": {"run", "privacy.budget"},
    "plans_without_data": {"plans", "planning", "privacy", "tasks.task"},
    "plans_for_records": {"plans", "planning", "privacy", "run", "tasks"},
    "planner": {
        "plans",
        "plans_for_records",
        "plans_without_data",
        "planning",
        "privacy",
        "run",
        "tasks",
    },
    "shown": {"plans", "result", "run"},
    "training": {"accounts", "fleets", "performance", "privacy", "result", "run", "tasks"},
    "planning": {"planning", "privacy", "algorithms", "tasks", "fleets"},
    "performance": {"accounts", "algorithms", "fleets", "privacy", "result", "run", "tasks"},
    "store": {"result"},
    "grids": {"run", "tasks.rows"},
    "sweep": {"performance", "run", "store", "tasks", "training"},
    "search": {"grids", "run", "store", "sweep"},
    "cli": {
        "cli_data",
        "cli_sweep",
        "fleets",
        "planner",
        "plans",
        "plans_without_data",
        "report",
        "result",
        "run",
        "saved",
        "shown",
        "training",
    },
    "cli_data": {"data_sets", "shown", "tasks.bounds", "tasks.inventory"},
    "cli_sweep": {"cli_data", "grids", "report", "search", "shown", "store", "sweep"},
    "__main__": {"cli"},
    "__init__": {"planner", "plans", "privacy", "result", "run", "saved", "tasks", "training"},
}
TORCH_FREE = """errors seeds rules run result saved statement plans plans_without_data shown store grids search
report.curve report.trade_off report.study report.reading report.optima report.evidence report.observations report.page
planning.closed_forms planning.answers privacy.accounting privacy.budget privacy.noise
privacy.sampled privacy.stability""".split()


def modules():
    return sorted(SOURCE.rglob("*.py"))


def imported(path):
    """The modules that a file imports, wherever in it, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_who_may_import_whom(path):
    room = path.relative_to(SOURCE).with_suffix("").parts[0]
    for name in imported(path):
        if not name.startswith("equipoise."):
            continue
        target = name.removeprefix("equipoise.")
        allowed = ALLOWED[room] | LEAVES
        assert any(target == a or target.startswith(a + ".") for a in allowed), (
            f"{room} imports {target}"
        )


def test_torch_stays_where_it_belongs():
    for name in TORCH_FREE:
        path = SOURCE / (name.replace(".", "/") + ".py")
        assert not any(module.split(".")[0] == "torch" for module in imported(path)), name
    script = (
        "import sys; from equipoise.privacy import gdp_mu, noise_sigma; gdp_mu(1, 1e-5); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["equipoise", "equipoise.privacy"])
def test_public_names_are_sorted_and_there(name):
    package = importlib.import_module(name)
    assert package.__all__ == sorted(package.__all__)
    assert all(getattr(package, public) is not None for public in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = package.nonsense


def test_files_stay_readable():
    for path in modules():
        assert len(path.read_text().splitlines()) <= 300, path
