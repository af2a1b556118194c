"""README and docs against the product: Python blocks and commands are run, what they print is
compared, and every flag, call, file, target and test that a page names is there."""

import ast
import importlib
import inspect
import math
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from cyclopts import MissingArgumentError, ValidationError
from rich.console import Console

import equipoise
from equipoise.cli.main import app
from equipoise.reports.reading import read_study
from equipoise.reports.tables import cells_table, write_csv
from equipoise.sweeps.grid import grid
from planted_bugs import BUGS
from problems import ROOT, run_command

SOURCE = Path(equipoise.__file__).parent
PAGES = {path.name: path.read_text() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))}
OTHER_PROGRAMS = ("pip", "ray ", "python", "pytest", "pre-commit", "make", "mypy", ".venv/bin/")
PLACEHOLDERS = {"...", "…"}
ALWAYS = {"--help", "--version", "--install-completion"}
PROMPT = re.compile(
    r"(?:(?:[\w-]+ +)?\$ (?:cd \S+ && )?|ExecStart=/\S+/)?(equipoise .*?)(?: +# .*)?$"
)
LANGUAGES = {"", "bash", "console", "ini", "python", "sh", "text", "toml"}
"""Of blocks that are run, parsed or compared: see below, and the tests of the pages themselves."""


class Code(NamedTuple):
    page: str
    language: str
    text: str


def blocks(language):
    """Fenced blocks of this language ("" where none is named), in the order of their pages."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    codes = [Code(page, *parts) for page, text in PAGES.items() for parts in fence.findall(text)]
    return [code for code in codes if code.language == language]


def inline():
    """What stands between backticks in the sentences of a page, on one line."""
    for page, text in PAGES.items():
        sentences = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        for words in re.findall(r"`([^`]+)`", sentences):
            yield Code(page, "", " ".join(words.split()))


PYTHON_PAGES = sorted({code.page for code in blocks("python")})
CONSOLE = [code.text for code in blocks("") if code.text.startswith("$ equipoise")]
SLOW = {"$ equipoise plan": [pytest.mark.slow]}


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_python_blocks_run(page, tmp_path, monkeypatch, capsys):
    """In one namespace for a page, as a reader would paste them one after the other."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in blocks("python"):
        if code.page == page:
            exec(compile(code.text, page, "exec"), names)
    assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    [pytest.param(text, marks=SLOW.get(text[:16], []), id=text[12:40]) for text in CONSOLE],
)
def test_commands_print_what_the_readme_shows(block, tmp_path, monkeypatch, capsys):
    """Digit for digit; of a private run all but the test error and the measures beside it, which
    depend on secret noise, and a line that is there if the noise was so unlucky that nothing was
    learnt. Of a plan the words and the verdict: it is computed in single precision, which no two
    processors round alike."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    command, _, shown = block.replace("\\\n", " ").partition("\n")
    code, out, _ = run_command(capsys, *shlex.split(command)[2:])
    assert code == 0
    secret = re.compile(r"(?<=^test error  )\d\.\d{4}", re.MULTILINE)
    lines = [line.rstrip() for line in out.splitlines()]
    printed = "\n".join(
        line for line in lines if "no better than not training" not in line
    ).rstrip()
    measured = re.compile(r"^(ranking|classes|calibration|at p >=) .*", re.MULTILINE)
    printed, shown = (
        measured.sub(lambda line: re.sub(r"-?\d+\.[\de-]+( \[.*?\])?", "#", line[0]), text)
        for text in (printed, shown)
    )
    if " plan " in command:
        leading = r"federated, [a-z ]+(?=: error)"  # of ways that are hardly apart
        secret = re.compile(rf"-?\d[\d.e+]*| {{2,}}|─+|{leading}")
    assert secret.sub("#", printed) == secret.sub("#", shown.rstrip())


@pytest.mark.slow
def test_the_day_of_five_hospitals(tmp_path):
    """The README's walk-through, word for word, in one folder. Before the plan what is printed is
    equal digit for digit; a plan is computed in single precision, and noise is secret, so after it
    the words are."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    there = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "160"}
    loose = False
    for block in blocks("console"):
        assert block.page == "README.md"
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.replace("\\\n", " ").partition("\n")
            done = subprocess.run(
                ["bash", "-euc", command],
                cwd=tmp_path,
                env=os.environ | there,
                capture_output=True,
                text=True,
                timeout=600,
            )
            assert done.returncode == 0, (command, done.stderr)
            loose = loose or " plan " in command
            printed = "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n")
            if loose:
                printed, shown = in_words(printed), in_words(shown)
            assert printed.split("\n") == shown.strip("\n").split("\n"), command
    result, mine = equipoise.load(tmp_path / "run-1"), equipoise.load(tmp_path / "mine")
    assert result.private
    assert not mine.private
    assert result.sizes == (9000, 2600, 1400, 3800, 420)
    assert result.test_error < result.public_only.test_error < result.baseline_error
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 101


@pytest.mark.slow
def test_make_run_prints_what_the_readme_shows(tmp_path, monkeypatch, capsys):
    """The rows of two of the five budgets, digit for digit, and all that is said below but the
    plan, which no two processors round alike."""
    (shown,) = [code.text for code in blocks("") if "how many rounds?" in code.text]
    study = runpy.run_path(str(ROOT / "examples" / "study.py"))
    some = [2.0, math.inf]
    study["GRID"]["epsilon"] = some  # which best_table reads
    equipoise.sweep(study["GRID"], store=tmp_path / "study.sqlite")
    write_csv(tmp_path / "cells.csv", cells_table(read_study(tmp_path / "study.sqlite")))
    capsys.readouterr()
    console = Console(width=80)
    console.print(study["best_table"](tmp_path / "cells.csv"))
    title, *lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert title == shown.splitlines()[0].strip()
    assert len([line for line in lines if "dp-" in line]) == 2 * len(some)
    assert {*lines} <= {line.strip() for line in shown.splitlines()}
    assert study["CONCLUSION"] in " ".join(shown.split())


def in_words(text):
    """Without numbers, the width of columns, and names of ways that are hardly apart."""
    text = re.sub(r"federated(, [a-z ]+)?(?=: error .* against)", "#", text)
    text = re.sub(r"(about )\S+ (s|min)\b", r"\1# s", text)
    text = re.sub(r"^tuned .*", "tuned #", text, flags=re.MULTILINE)
    return re.sub(r"-?\b(\d[\d.e+]*|inf)\b| {2,}|─+", "#", text)


def commands():
    """Every command line of ours: in sentences, in blocks, and in the examples of our own help."""
    for code in inline():
        if code.text.startswith("equipoise "):
            yield code.page, code.text
    for code in (*blocks(""), *blocks("sh"), *blocks("bash"), *blocks("console"), *blocks("ini")):
        for line in code.text.replace("\\\n", " ").splitlines():
            if match := PROMPT.match(line):
                yield code.page, filled(" ".join(match[1].split()))
    example = re.compile(r"Example: (equipoise .*?)\n\s*(?:\n|\"\"\")", re.DOTALL)
    for path in (SOURCE / "cli").glob("*.py"):
        for command in example.findall(path.read_text()):
            yield path.name, " ".join(command.split())


def filled(command):
    """With the numbers that a batch system would put there."""
    return re.sub(r"\$SLURM_\w+", "2", command)


def test_every_command_in_a_block_is_parsed():
    """Whatever stands before it: a prompt, the machine that it is typed on, another command."""
    parsed = [command for _, command in commands()]
    for code in (*blocks(""), *blocks("sh"), *blocks("bash"), *blocks("console"), *blocks("ini")):
        for line in code.text.replace("\\\n", " ").splitlines():
            for start in re.finditer(r"(?:^|[/ ])(equipoise [a-z]+ -?\S*)", line):
                assert any(filled(start[1]) in command for command in parsed), (code.page, line)


def test_blocks_are_of_languages_that_are_tested():
    found = {
        (code, page)
        for page, text in PAGES.items()
        for code in re.findall(r"^ *```(\w+)$", text, re.MULTILINE)
    }
    assert {language for language, _ in found} <= LANGUAGES, found


def test_extras_in_blocks_and_sentences_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {
        name
        for text in PAGES.values()
        for names in re.findall(r"'equipoise\[([\w,-]+)\]'", text)
        for name in names.split(",")
    }
    assert {"record", "flower"} <= named <= extras.keys()


@pytest.mark.parametrize(("page", "command"), sorted({*commands()}))
def test_commands_are_understood(page, command):
    """Parsed as the command would, values checked, nothing run. What a sentence mentions may leave
    out what a run needs, but names no flag that is not there."""
    written = shlex.split(re.split(r" [>|] ", command)[0])[1:]
    words = [word for word in written if word not in PLACEHOLDERS | ALWAYS]
    names, apps, rest = app.parse_commands(words)
    assert names or ALWAYS & {*written}, f"{command!r} names no command of ours"
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= flags_of(apps[-1])
    if rest and words == written:
        try:
            app.parse_args(words, exit_on_error=False, print_error=False)
        except (MissingArgumentError, ValidationError) as error:
            # A budget is no argument that is missing: a bound on attacks may stand for it.
            if isinstance(error, ValidationError) and "epsilon is missing" not in str(error):
                raise


def flags_of(part):
    """The flags of a command; one that only has commands has those that are always there."""
    if part.default_command is None or part is app:
        return ALWAYS
    names = [name for argument in part.assemble_argument_collection() for name in argument.names]
    return {name for name in names if name.startswith("--")} | ALWAYS


def test_flags_in_sentences_exist():
    parts = [app[name] for name in app if not name.startswith("-")]
    parts += [app["data"][name] for name in ("check", "fetch", "bounds", "try")]
    parts += [app["store"][name] for name in ("merge", "show")]
    parts += [app["ledger"][name] for name in ("show", "verify", "close", "receipt", "cap")]
    parts += [app["federation"][name] for name in ("propose", "lead", "link")]
    parts += [app["silo"][name] for name in ("check", "run")]
    known = set().union(*map(flags_of, parts))
    assert {"--trust", "--simulate", "--columns", "--h-update"} <= known
    for code in inline():
        if not code.text.startswith(OTHER_PROGRAMS):
            flags = {*re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", code.text)}
            assert flags <= known, code


@pytest.fixture(scope="module")
def folder_with_a_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calls")
    result = equipoise.train(task="quadratic", epsilon=2, clip=0.1, iterations=2)
    equipoise.save(result, folder / "run-1")
    return folder


def test_calls_and_names_in_sentences_work(folder_with_a_run, monkeypatch):
    """`equipoise.load("run-1")` is run, `equipoise.train(plan)` fits the signature, and a dotted
    name means something."""
    monkeypatch.chdir(folder_with_a_run)
    called = []
    for code in inline():
        if not re.match(r"equipoise\.\w", code.text):
            continue
        node = ast.parse(code.text, mode="eval").body
        function = node.func if isinstance(node, ast.Call) else node
        value = resolved(ast.unparse(function))
        if isinstance(node, ast.Call):
            called.append(ast.unparse(function))
            run_or_bind(value, node, code.text)
    assert "equipoise.load" in called


def resolved(name):
    """What a dotted name means, modules imported on the way."""
    value, parts = equipoise, name.split(".")
    for depth, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            importlib.import_module(".".join(parts[:depth]))
        value = getattr(value, part)
    return value


def run_or_bind(function, call, text):
    """Run a call whose arguments are all literal; of another, see that it fits the signature."""
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    if all(is_literal(value) for value in values):
        eval(text, {"equipoise": equipoise})
    else:
        keywords = {keyword.arg: None for keyword in call.keywords}
        inspect.signature(function).bind(*call.args, **keywords)


def is_literal(node):
    return not any(
        isinstance(part, ast.Name) or getattr(part, "value", None) is ... for part in ast.walk(node)
    )


def test_one_liners_run(capsys):
    lines = [code.text for code in inline() if code.text.startswith("python -c ")]
    assert lines
    for line in lines:
        exec(shlex.split(line)[2], {})
    assert len(capsys.readouterr().out.splitlines()) == len(lines)


@pytest.mark.parametrize("code", blocks("toml"), ids=lambda code: code.page)
def test_grids_are_accepted(code):
    assert len([*grid(tomllib.loads(code.text)).settings]) > 10


def test_anchors_of_links_are_headings():
    """As a code host makes anchors: small letters, no signs, a dash for a space."""
    pages = {path.resolve(): path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))}
    headings = {
        place: {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
        }
        for place, path in pages.items()
    }
    tried = 0
    for place, path in pages.items():
        for link, anchor in re.findall(r"\]\(([\w./-]*)#([^)\s]+)\)", path.read_text()):
            there = (place.parent / link).resolve() if link else place
            assert anchor in headings[there], (path.name, link, anchor)
            tried += 1
    assert tried > 50


def test_links_lead_somewhere():
    for page, text in PAGES.items():
        folder = ROOT / "docs" if (ROOT / "docs" / page).exists() else ROOT
        for target in re.findall(r"\]\((https?://[^)]+|[\w./-]*[./][\w./-]*)\)", text):
            assert target.startswith("https://") or (folder / target).exists(), (page, target)


def test_files_that_are_named_exist():
    """From the root, from the source, or by name alone anywhere in the source or the tests."""
    from_root = ("src/", "tests/", "examples/", "benchmarks/", "docs/")
    for code in inline():
        path = re.fullmatch(r"(?:python )?([\w./-]+(?:\.py|\.toml|/))( --\w+)?", code.text)
        if not path or path[1].startswith("path/to/"):
            continue
        name = path[1]
        if name.startswith(from_root):
            assert (ROOT / name).exists(), code
        elif name.endswith(".py"):
            assert [*SOURCE.rglob(name), *(ROOT / "tests").glob(name)], code


def test_targets_and_tests_that_are_named_exist():
    makefile = (ROOT / "Makefile").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("*.py"))
    for code in (*inline(), *blocks(""), *blocks("sh")):
        for target in re.findall(r"^make ([a-z][a-z-]*)", code.text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), code
        if re.fullmatch(r"test_\w+", code.text):
            assert f"def {code.text}(" in tests, code


def test_planted_bugs_are_on_the_page_of_correctness():
    """Each beside the claim that it would break, and no other; so are tests, as on every page."""
    claims, _, _ = PAGES["correctness.md"].partition("\n## Changes that nobody chose")
    assert len(re.findall(r"^\*\*\d+\. ", claims, re.MULTILINE)) > 30
    planted = [part.partition("Planted:")[2] for part in claims.split("\n\n")]
    quoted = {" ".join(name.split()) for part in planted for name in re.findall('"([^"]+)"', part)}
    names = {name for name, *_ in BUGS}
    assert quoted == names, (sorted(names - quoted), sorted(quoted - names))


def test_every_pitfall_is_in_the_table_with_a_severity_and_an_owner():
    page = PAGES["pitfalls.md"]
    rows = re.findall(r"^\| \[(.+?)\]\(#(.+?)\) \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    titles = re.findall(r"^### (.+)$", page, re.MULTILINE)
    assert sorted(name for name, *_ in rows) == sorted(titles)
    for name, anchor, severity, owners in rows:
        assert anchor == re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-"), name
        assert severity in ("total", "high", "limited"), name
        assert {*owners.split(", ")} <= {"us", "operator", "analyst"}, name
