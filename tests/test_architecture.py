"""Who may import whom, and where names may stand, read from the syntax trees; and the public
names.
"""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise
from equipoise.algorithms.catalogue import ALGORITHMS
from equipoise.privacy.mechanisms.catalogue import MECHANISMS
from equipoise.tasks.catalogue import TASKS
from planted_bugs import BUGS
from problems import ROOT

SOURCE = Path(equipoise.__file__).parent
LEAVES = {
    "device",
    "errors",
    "seeds",
    "_lazy",
    "facts",
    "fields",
    "measures",
    "places",
}  # anybody may use these
CORE = {"algorithms", "fleets", "privacy", "result", "settings", "tasks"}
ALLOWED = {
    **{leaf: set() for leaf in LEAVES},
    "privacy": {"privacy"},
    "privacy.statement": {"result", "describe", "describe_measures", "origin", "settings"},
    "privacy.ledger": {"journal"},
    "privacy.mechanisms.catalogue": {"privacy", "paper.lemma1", "paper.nbafl"},
    "algorithms": {"algorithms", "privacy.clip"},
    "settings": {"algorithms", "refusals", "privacy.promise", "privacy.mechanisms"}
    | {"privacy.trade_off", "steps"},
    "steps": {"algorithms"},
    "refusals": {"algorithms.catalogue"},
    "config": {"algorithms.catalogue", "refusals", "settings"},
    "origin": set(),
    "result": {"privacy.events", "settings", "describe", "origin", "prediction"},
    "tasks": {"cache", "tasks", "privacy.per_example", "privacy.promise"},
    "tasks.catalogue": {"tasks", "paper.tasks"},
    "fleets": {"fleets", "algorithms", "privacy"},
    "journal": set(),
    "cache": set(),
    "resume": {*CORE, "journal"},
    "engine": {*CORE, "resume"},
    "charging": CORE,
    "training": {
        *CORE,
        "charging",
        "config",
        "engine",
        "measuring",
        "origin",
        "resume",
        "saved",
        "planning.plan",
    },
    "federation": {*CORE, "engine", "federation", "origin", "refusals", "training"},
    "auditing": {*CORE, "auditing", "engine", "steps", "training"},
    "estimate": {*CORE, "charging", "engine", "training", "describe"},
    "measuring": {"tasks.task"},
    "prediction": {"result", "tasks"},
    "adapting": {"planning.at_home", "result", "saved", "tasks"},
    "saved": {
        "card",
        "journal",
        "refusals",
        "result",
        "settings",
        "privacy.statement",
        "reports.curve",
        "reports.curve_log",
    },
    "stating": {"origin", "privacy.statement", "result", "saved"},
    "card": {"describe", "result", "tasks"},
    "describe": {"describe_measures", "result", "settings", "planning.plan"},
    "describe_measures": set(),
    "planning": {*CORE, "planning", "describe"},
    "planning.formulas": {*CORE, "planning", "paper.corollary"},
    "planning.constants": {*CORE, "planning", "paper.corollary", "paper.lemma1"},
    "sweeps": {*CORE, "refusals", "sweeps", "engine", "training"},
    "sweeps.run": {"sweeps", "tasks", "paper.grid"},
    "sweeps.merge": {"sweeps", "saved"},
    "reports": {"reports", "result", "settings", "planning.plan", "sweeps.store", "privacy"},
    "paper": {*CORE, "cache", "refusals", "paper", "planning.bounds", "reports"},
    "cli": {
        "adapting",
        "auditing",
        "charging",
        "cli",
        "config",
        "prediction",
        "refusals",
        "describe",
        "describe_measures",
        "estimate",
        "fleets",
        "paper",
        "planning",
        "reports",
        "result",
        "saved",
    }
    | {"settings", "steps", "sweeps", "tasks", "training", "algorithms"},
    "cli.silo": {"charging", "federation", "privacy.ledger"},
    "cli.federation": {"federation"},
    "cli.guarantee": {"privacy.statement", "stating"},
    "cli.train": {"origin"},
    "cli.account": {"privacy.accountants", "privacy.foreign.report", "privacy.groups"}
    | {"privacy.job", "privacy.promise"},
    "cli.ledger": {"privacy.ledger", "privacy.ledger_books", "privacy.ledger_costs"}
    | {"privacy.promise"},
    "__main__": {"cli"},
    "__init__": {
        *CORE,
        "adapting",
        "auditing.audit",
        "estimate",
        "origin",
        "stating",
        "paper.report",
        "planning",
        "saved",
        "sweeps.run",
        "training",
    },
}
TORCH_FREE = [
    *(
        "__init__",
        "card",
        "cli.predict",
        "describe",
        "describe_measures",
        "device",
        "errors",
        "facts",
        "fields",
        "journal",
        "measures",
        "origin",
        "result",
        "saved",
        "seeds",
        "settings",
        "stating",
        "steps",
    ),
    "algorithms.optimisers.optimised",
    *("algorithms.algorithm", "algorithms.catalogue", "algorithms.dp_fedavg"),
    *("algorithms.dp_fedprox", "algorithms.dp_scaffnew", "algorithms.schedule"),
    *("fleets.certificates", "fleets.keys", "fleets.link", "cli.federation", "cli.keys"),
    *("fleets.flower.lead", "fleets.flower.silo", "fleets.flower.superlink"),
    *("privacy.accountants", "privacy.events", "privacy.gaussian", "privacy.job"),
    "privacy.trade_off",
    *("privacy.mechanisms.catalogue", "cli.account", "privacy.composed", "privacy.foreign.report"),
    *(
        "auditing.audit",
        "cli.audit",
        "charging",
        "cli.ledger",
        "privacy.ledger",
        "privacy.ledger_books",
    ),
    *("privacy.promise", "privacy.sampled", "privacy.stability", "privacy.statement"),
    *("planning.bounds", "planning.candidates", "planning.constants", "planning.plan"),
    *("planning.question", "paper.corollary", "paper.lemma1", "paper.nbafl", "paper.report"),
    *("sweeps.grid", "sweeps.keys", "sweeps.store", "cli.main"),
]
OTHER_LIBRARIES = {  # which libraries stay in which rooms
    "cyclopts": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"reports"},
    "plotly": {"reports"},
    "jinja2": {"reports"},
    "pooch": {"paper.data"},
    "tensorboard": {"reports.curve_log"},
    "mlflow": {"reports.curve_log"},
    "dp_accounting": {"privacy.accountants", "privacy.foreign.opacus", "privacy.job"}
    | {"privacy.sampled"},
    "opacus": set(),
    "ray": {"sweeps.ray"},
    **{key: {"fleets.flower"} for key in ("fastapi", "flwr", "httpx", "starlette", "uvicorn")},
}
FILES = sorted(SOURCE.rglob("*.py"))


def dotted(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def within(name, rooms):
    return any(name == room or name.startswith(room + ".") for room in rooms)


def imported(path):
    """The modules that a file imports when it runs, wherever in it, as dotted names."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not is_for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_who_may_import_whom(path):
    """The rule of a file's own name, if it has one, is added to that of its room."""
    name = dotted(path)
    rules = [ALLOWED[key] for key in ALLOWED if within(name, {key})]
    assert rules, f"no rule for {name}"
    allowed = set().union(*rules) | LEAVES
    for target in imported(path):
        if target.startswith("equipoise."):
            assert within(target.removeprefix("equipoise."), allowed), f"{name} imports {target}"
        library = target.partition(".")[0]
        if library in OTHER_LIBRARIES:
            assert within(name, OTHER_LIBRARIES[library]), f"{name} imports {library}"


def test_only_commands_choose_a_transport():
    """Another adapter can stand beside Flower: what is asked over a link knows none of them."""
    for path in FILES:
        if not within(dotted(path), {"cli", "fleets.flower"}):
            targets = {target.removeprefix("equipoise.") for target in imported(path)}
            assert not any(within(target, {"fleets.flower"}) for target in targets), dotted(path)


def test_every_rule_is_about_something():
    for key in ALLOWED:
        assert any(within(dotted(path), {key}) for path in FILES), key


@pytest.mark.parametrize("name", TORCH_FREE)
def test_torch_stays_away_from_help_accounts_and_statements(name):
    module = "equipoise" if name == "__init__" else f"equipoise.{name}"
    script = f"import sys; import {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.slow
def test_a_name_stands_in_its_own_file_and_in_its_dict_alone():
    """A new algorithm, mechanism or task is one file and one line: nothing else compares names."""
    homes = {name: {"algorithms.catalogue"} for name in ALGORITHMS}
    homes |= {name: {"tasks.catalogue"} for name in TASKS}
    catalogue = {"privacy.mechanisms.catalogue"}
    homes |= {mechanism.noise_in: catalogue for mechanism in MECHANISMS.values()}
    homes |= {mechanism.rule: catalogue for mechanism in MECHANISMS.values()}
    del homes["exact"]  # an English word, used as one
    for name, home in homes.items():
        own = {name.replace("-", "_"), name.partition("-")[0], f"record_{name.partition('-')[0]}"}
        for path in FILES:
            where = dotted(path)
            if within(where, {"paper"}) or where in home or path.stem in own:
                continue
            if within(where, {"privacy.mechanisms"}) and name in path.stem:
                continue
            constants = [n for n in ast.walk(ast.parse(path.read_text())) if is_text(n)]
            assert name not in [node.value for node in constants], f"{where} says {name!r}"


def test_nobody_compares_a_rule_with_its_name():
    """`exact` is an English word besides, so it may stand in texts, but in no comparison."""
    for path in FILES:
        if within(dotted(path), {"paper"}):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                texts = [part.value for part in ast.walk(node) if is_text(part)]
                assert "exact" not in texts, f"{dotted(path)}, line {node.lineno}"


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize("spec", ALGORITHMS.values(), ids=lambda spec: spec.name)
def test_an_algorithm_is_one_file_that_ends_in_its_spec(spec):
    path = SOURCE / "algorithms" / (spec.name.replace("-", "_") + ".py")
    assert isinstance(ast.parse(path.read_text()).body[-1], ast.Assign | ast.AnnAssign)
    assert importlib.import_module(f"equipoise.algorithms.{path.stem}").SPEC is spec
    oracle = (ROOT / "tests" / "paper.py").read_text()
    assert f"def {path.stem}(" in oracle, "its transcription belongs into tests/paper.py"


@pytest.mark.parametrize(
    "mechanism", MECHANISMS.values(), ids=lambda m: f"{type(m).__name__}-{m.unit}"
)
def test_a_mechanism_ends_in_its_spec(mechanism):
    module = importlib.import_module(type(mechanism).__module__)
    assert mechanism in (module.SPEC, getattr(module, "OF_PERSONS", None))
    assert MECHANISMS[mechanism.unit, mechanism.noise_in, mechanism.rule] is mechanism


def test_tasks_are_called_what_they_are_called():
    assert all(spec.name == name for name, spec in TASKS.items())
    help_text = equipoise.Settings.model_fields["task"].description
    listed = {name for name in TASKS if not name.endswith("-narrow")}
    assert listed == {*re.findall(r"[a-z0-9]+(?:-[a-z]+)*", help_text)} & {*TASKS}


@pytest.mark.parametrize("name", ["equipoise", "equipoise.privacy"])
def test_public_names_are_sorted_and_there(name):
    package = importlib.import_module(name)
    assert package.__all__ == sorted(package.__all__)
    assert all(getattr(package, public) is not None for public in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = package.nonsense


def test_rooms_of_the_architecture_page_exist():
    """Every file that docs/architecture.md shows is there, and every room of the source is
    shown.
    """
    page = (ROOT / "docs" / "architecture.md").read_text()
    layout = page.split("## Layout")[1].split("```")[1]
    shown = {*re.findall(r"[a-z_0-9]+\.py", layout)}
    names = {path.name for path in FILES}
    assert shown <= names, shown - names
    rooms = {path.parent.name for path in FILES} - {"equipoise"}
    assert rooms <= {*re.findall(r"([a-z_0-9]+)/", layout)}, rooms


def test_locals_have_names_that_say_what_they_are():
    vague = {"found", "said", "told", "of", "there", "one"}
    for path in FILES:
        tree = ast.parse(path.read_text())
        fields = {n.target for n in ast.walk(tree) if isinstance(n, ast.AnnAssign)}
        names = {n.id for n in ast.walk(tree) if is_local(n) and n not in fields}
        assert not names & vague, f"{dotted(path)}: {names & vague}"


def is_local(node):
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def test_files_stay_readable():
    for path in FILES:
        assert len(path.read_text().splitlines()) <= 500, path


def test_planted_bugs_have_their_place_in_the_source():
    """`make planted-bugs` takes an hour; that a line has moved is seen here."""
    for name, file, old, new in BUGS:
        assert (SOURCE / file).read_text().count(old) == 1, name
        assert old != new, name
