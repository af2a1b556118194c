"""Change the source of what protects records in one small place at a time, and see whether a test
notices.

`make mutants`. Planted bugs are those that somebody thought of; these are drawn from all small
changes of `privacy/` and of the border. A mutant that no test notices must be explained in
EXPLAINED: it is the same program, or one that errs on the safe side. Fails if one is not.

One run of the tests without a mutant shows which statements each test executes, and how long it
takes. A mutant is then shown to the tests that execute its statement, the quickest first, until one
fails. What was tried is written down at once: started again, it goes on.
"""

import argparse
import ast
import compileall
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from planted_bugs import ROOT, copied_source

RESULTS = ROOT / "benchmarks" / "results" / "mutants.jsonl"
SOURCE = "src/equipoise"
PLACES = [  # of what is mutated; a folder stands for all in it
    "privacy",
    "fleets/client.py",
    "fleets/server.py",
    "fleets/simulated.py",
    "federation/agreement.py",
    "federation/masks.py",
    "federation/silo.py",
]
WORDS = "privacy/statement/"  # says what an account says; its tests read sentences
TESTS = [  # that exercise these
    f"tests/test_{name}.py"
    for name in (
        "accounting",
        "mechanism",
        "lattice",
        "samplers",
        "noise",
        "weights",
        "records",
        "sampled",
        "record_runs",
        "ledger",
        "federation",
        "persons",
        "training",
        "per_example",
        "passes",
        "accountants",
        "algorithms",
        "one_client",
        "new_algorithm",
        "sentences",
        "survival",
        "attack_curve",
        "foreign",
        "audit",
    )
]
MUTANTS, SEED = 120, 21
LOADED = [  # by tests, and slowly
    "torch",
    "pytest",
    "hypothesis",
    "scipy.stats",
    "sklearn.datasets",
    "cyclopts",
    "dp_accounting.pld",
    "dp_accounting.rdp",
    "safetensors.torch",
]
QUICK = ["-m", "not slow"]
SECONDS = 30  # of tests that one mutant is shown at most, on an idle processor
PATIENCE = 3  # times as long as the tests take without a mutant, and ten seconds
MEMORY = 8 << 30  # bytes, of one process
SHOWN = 80  # characters of a line

COMPARED = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.MatMult: ast.Mult,
}
NAMED = {"min": "max", "any": "all", "floor": "ceil", "amin": "amax", "inf": "nan"}
NAMED |= {new: old for old, new in NAMED.items() if new != "nan"}
CONVERSIONS = {"bool", "cast", "dict", "float", "int", "iter", "list", "set", "str", "tuple"}
LOGGED = {"debug", "info", "warning", "exception"}

EXPLAINED: dict[tuple[str, str, str, str], tuple[str, str]] = {
    (
        "privacy/noise.py",
        "bits = np.stack([stream.blocks(0, -(-count // 2)).reshape(-1)[:count] for stream",
        "0",
        "-1",
    ): ("equivalent", "other blocks of the same stream, each of them used once either way"),
    (
        "privacy/noise.py",
        "made = hashlib.blake2b(number, digest_size=48, key=self.key, person=b'equipoise ",
        "48",
        "47",
    ): ("equivalent", "a counter may begin anywhere: every draw has a key of its own"),
    (
        "privacy/samplers.py",
        "surely = 1 - (out / (scale * scale)) ** 2 / 24",
        "(out / (scale * scale)) ** 2 / 24",
        "(out / (scale * scale)) ** 2 / 23",
    ): ("equivalent", "more numbers are looked at closely, and decided as before"),
    (
        "privacy/samplers.py",
        "if abs(scaled - round(scaled)) > 0.5 - scale * float(error[0]):",
        "scaled - round(scaled)",
        "scaled + round(scaled)",
    ): ("equivalent", "more numbers are settled by interval arithmetic, which decides the same"),
    (
        "privacy/sampled.py",
        "middle = safe * (unsafe / safe) ** min(share, 0.95) * (1 + _APART / 4)",
        "(unsafe / safe) ** min(share, 0.95)",
        "(unsafe / safe) ** share",
    ): ("safe", "a search that takes other steps, and ends on noise that was seen to be enough"),
    (
        "privacy/ledger_costs.py",
        "require(len(self.events) > 0, 'a run without events releases nothing: no ledger ",
        "require(len(self.events) > 0, 'a run without events releases nothing: no ledger ",
        "pass",
    ): ("safe", "the next condition refuses it too, in another sentence"),
    (
        "privacy/accountants.py",
        "SHARES = (0.0, *(float(share) for share in 1 / (1 + np.exp(-np.linspace(-8, 8, 1",
        "129",
        "130",
    ): ("safe", "one more way to divide delta, each of which is a theorem"),
    (
        "privacy/per_example/clipped_sum.py",
        "of_one = layout.numbers + (dimension if layout.slow else 0)",
        "0",
        "1",
    ): ("equivalent", "how many examples run together, which changes no sum"),
    (
        "privacy/per_example/shares.py",
        "PIECE = 2 ** 18",
        "2 ** 18",
        "2 ** 19",
    ): ("equivalent", "how much memory is used at a time"),
    (
        "privacy/lattice.py",
        "if not 2.0 ** (-900) < value < 2.0 ** 900:",
        "2.0 ** 900",
        "2.0 ** 899",
    ): ("safe", "refuses steps of 2^899 and more, where the limit is 2^900"),
    (
        "privacy/clip.py",
        "sigmas = _double(sigma) + torch.zeros_like(_double(reach))",
        "_double(sigma) + torch.zeros_like(_double(reach))",
        "sigma + torch.zeros_like(_double(reach))",
    ): ("equivalent", "a number plus a tensor in float64 is one in float64"),
    (
        "privacy/per_example/clipped_sum.py",
        "return kept + sum((p.numel() for p in own if p.numel() <= 2 * kept * p.shape[2:]",
        "2 * kept * p.shape[2:].numel()",
        "2 * kept / p.shape[2:].numel()",
    ): ("equivalent", "an estimate of memory: how many examples run together changes no sum"),
}
"""(file, first line of the statement, old, new): ("equivalent" or "safe", why no test can, or need,
notice)."""


class Mutant(NamedTuple):
    """A change of one place of a file. `statement` is the line where its statement begins, `within`
    how that line reads."""

    file: str
    line: int
    column: int
    statement: int
    within: str
    kind: str
    old: str
    new: str

    @property
    def name(self) -> tuple[str, str, str, str]:
        return self.file, self.within, self.old, self.new


class Change(NamedTuple):
    """What a mutant does to a tree."""

    statement: ast.stmt
    kind: str
    parent: Any
    field: str
    index: int | None
    new: ast.AST


def mutants() -> list[Mutant]:
    """All of them, in the order of the source."""
    return [mutant for file in files() for mutant, _ in of_file(file)]


def files() -> list[str]:
    source, made = ROOT / SOURCE, []
    for place in PLACES:
        path = source / place
        paths = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        made += [str(path.relative_to(source)) for path in paths]
    return [file for file in made if not file.startswith(WORDS)]


def of_file(file: str) -> Iterator[tuple[Mutant, ast.AST]]:
    """Every mutant of a file, with the syntax tree of the file, which is that of the mutant until
    the next one is asked for."""
    tree = ast.parse((ROOT / SOURCE / file).read_text())
    for statement, kind, parent, field, index, new in [*changes(tree)]:
        held = getattr(parent, field)
        old = held if index is None else held[index]
        place = old if hasattr(old, "lineno") else parent
        whole = isinstance(parent, SHOWN_WHOLE)
        within = ast.unparse(statement).partition("\n")[0][:SHOWN]
        before = ast.unparse(parent if whole else old)[:SHOWN]
        _put(parent, field, index, ast.fix_missing_locations(new))
        after = ast.unparse(parent if whole else new)[:SHOWN]
        where = place.lineno, place.col_offset, statement.lineno, within
        yield Mutant(file, *where, kind, before, after), tree
        _put(parent, field, index, old)


def text_of(mutant: Mutant) -> str:
    """Its file."""
    for other, tree in of_file(mutant.file):
        if other == mutant:
            return ast.unparse(ast.fix_missing_locations(tree))
    raise ValueError(mutant)


SHOWN_WHOLE = (ast.Compare, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.AugAssign)


def _put(parent: Any, field: str, index: int | None, new: Any) -> None:
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new


def changes(node: ast.AST, statement: ast.stmt | None = None) -> Iterator[Change]:
    """Of everything that runs: annotations, decorators, protocols, sentences and logs are left."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _is_left(child, node, index):
                here = child if isinstance(child, ast.stmt) else statement
                if here:
                    yield from _of_place(here, node, field, index, child)
                yield from changes(child, here)


def _is_left(child: ast.AST, parent: ast.AST, index: int | None) -> bool:
    match child:
        case ast.ClassDef(bases=bases):
            return any(ast.unparse(base) == "Protocol" for base in bases)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.JoinedStr() | ast.Import():
            return True
        case ast.Expr(value=ast.Constant()) | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="log")))):
            return name in LOGGED
        case ast.Assign(value=ast.Subscript(value=ast.Name(id=name))):
            return name in ("Literal", "NDArray", "Callable")
    match parent:
        case ast.Raise():
            return True
        case ast.Call(func=ast.Name(id="require")):
            return index != 0  # but the condition, sentences
    return False


def _of_place(
    statement: ast.stmt, parent: ast.AST, field: str, index: int | None, node: ast.AST
) -> Iterator[Change]:
    """What one place may be instead."""

    def other(kind: str, new: ast.AST) -> Change:
        return Change(statement, kind, parent, field, index, new)

    match node:
        case ast.cmpop():
            for compared in COMPARED[type(node)]:
                yield other("comparison", compared())
        case ast.operator():
            yield other("operator", COMPUTED[type(node)]())
        case ast.And() | ast.Or():
            yield other("and, or", ast.Or() if isinstance(node, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield other("no sign", operand)
        case ast.Constant(value=bool() as value):
            yield other("constant", ast.Constant(not value))
        case ast.Constant(value=int() as value):
            yield other("constant", ast.Constant(value + 1))
            yield other("constant", ast.Constant(value - 1))
        case ast.Constant(value=float() as value):
            yield other("constant", ast.Constant(2 * value if value else 1.0))
            yield other("constant", ast.Constant(value / 2 if value else -1.0))
        case ast.Call(func=called, args=[ast.Starred(), *_]) | ast.Call(func=called, args=[]):
            pass
        case ast.Call(func=called, args=[first, *_]) if not _statement(parent):
            if ast.unparse(called).rpartition(".")[2] not in CONVERSIONS:
                yield other("first argument", first)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.UnaryOp):
                not_so = ast.UnaryOp(ast.Not(), test)
                yield Change(statement, "negation", node, "test", None, not_so)
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Break() | ast.Continue():
            yield other("statement", ast.Pass())
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield other("statement", ast.Pass())
        case ast.Name(id=name) if name in NAMED:
            yield other("name", ast.Name(NAMED[name]))
        case ast.Attribute(value=of, attr=name) if name in NAMED:
            yield other("name", ast.Attribute(of, NAMED[name]))


def _statement(parent: ast.AST) -> bool:
    return isinstance(parent, ast.Expr)


# running tests

PROBES = """seen = set()


def at(file, line):
    seen.add((file, line))
"""


def probed(file: str) -> str:
    """The file, in which every statement of a function notes that it is executed."""
    tree = ast.parse((ROOT / SOURCE / file).read_text())

    def visit(node: ast.AST, inside: bool) -> None:
        inside = inside or isinstance(node, ast.FunctionDef)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if inside and isinstance(statements, list):
                setattr(node, block, [new for old in statements for new in noted(old)])

    def noted(statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(getattr(statement, "value", None), ast.Constant):
            return [statement]  # a docstring stays first
        return [*ast.parse(f"probes.at({file!r}, {statement.lineno})").body, statement]

    visit(tree, inside=False)
    return "import probes\n" + ast.unparse(tree)


class Known(NamedTuple):
    """What the tests showed without a mutant: of each how many seconds of the processor it takes,
    and the statements of every file that it executes."""

    seconds: dict[str, float]
    statements: dict[str, dict[str, list[int]]]

    def tests_of(self, mutant: Mutant) -> list[list[str]]:
        """The tests that execute its statement, or, where no function does, anything of its file:
        one list for each file of tests, the quickest first; SECONDS in all."""
        on = {test: by_file.get(mutant.file, []) for test, by_file in self.statements.items()}
        able = [test for test, statements in on.items() if mutant.statement in statements]
        able = able or [test for test, statements in on.items() if statements]
        left, by_file = float(SECONDS), dict[str, list[str]]()
        for test in sorted(able, key=self.seconds.__getitem__):
            left -= self.seconds[test]
            if left > 0:
                by_file.setdefault(test.partition("::")[0], []).append(test)
        return sorted(by_file.values(), key=self.seconds_of)

    def seconds_of(self, tests: Iterable[str]) -> float:
        return sum(map(self.seconds.__getitem__, tests))


class Watch:
    """A plugin of pytest that notes of every test its time and what it executes of a source with
    probes, and the first test that fails."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self.seconds: dict[str, float] = {}
        self.statements: dict[str, dict[str, list[int]]] = {}
        self._seen = set[tuple[str, int]]()
        with suppress(ImportError):
            self._seen = importlib.import_module("probes").seen

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._seen.clear()
        self.seconds[nodeid] = -time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] += time.process_time()
        statements = self.statements[nodeid] = {}
        for file, line in sorted(self._seen):
            statements.setdefault(file, []).append(line)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    pytest_collectreport = pytest_runtest_logreport


class Task(NamedTuple):
    """What a process of its own does: pytest with these arguments, one after the other until a test
    fails, with these texts in the place of files."""

    name: Any
    arguments: list[list[str]]
    seconds: float
    texts: dict[str, str]


def reports(tasks: Iterable[Task], jobs: int) -> Iterator[tuple[Any, dict[str, Any] | None]]:
    """What pytest reported of each task, as they end, so many at a time; None of one that crashed
    or took too long. Every one runs in a fork of this process, which has loaded what tests load,
    and nothing of ours."""
    for module in LOADED:
        importlib.import_module(module)
    with ExitStack() as stack:
        free = [stack.enter_context(copied_source()) for _ in range(jobs)]
        for folder in free:
            (folder / "src" / "probes.py").write_text(PROBES)
            compileall.compile_dir(folder, quiet=1)
        running: dict[int, tuple[Task, Path]] = {}
        for task in [*tasks, None]:
            while running and (task is None or not free):
                child, _ = os.wait()
                done, folder = running.pop(child)
                for file in done.texts:
                    shutil.copy(ROOT / SOURCE / file, folder / SOURCE / file)
                report = folder / "report.json"
                yield done.name, json.loads(report.read_text()) if report.exists() else None
                report.unlink(missing_ok=True)
                free.append(folder)
            if task:
                folder = free.pop()
                child = os.fork()
                if not child:
                    _report(task, folder)
                running[child] = task, folder


def _report(task: Task, folder: Path) -> None:
    """In a fork, which ends here. Time is that of the processor, which others may use, too."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        limit = int(task.seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.alarm(40 * limit)  # should it wait for something
        report = _tested(task, folder)
        (folder / "begun.json").write_text(json.dumps(report))
        (folder / "begun.json").rename(folder / "report.json")  # whole, or not there
    finally:
        os._exit(0)


def _tested(task: Task, folder: Path) -> dict[str, Any]:
    import pytest

    sys.path.insert(0, str(folder / "src"))
    os.environ |= {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    for file, text in task.texts.items():
        path = folder / SOURCE / file
        path.write_text(text)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
    os.chdir(ROOT)
    watch = Watch()
    with tempfile.TemporaryDirectory(dir=folder) as own:
        for number, arguments in enumerate(task.arguments):
            if not watch.failed:
                place = f"--basetemp={own}/{number}"
                pytest.main(["-x", "--tb=no", place, *arguments], [watch])
    return {name: getattr(watch, name) for name in ("failed", "seconds", "statements")}


def known(jobs: int) -> Known:
    """From one run of all tests, file by file, without a mutant."""
    shown = Known({}, {})
    texts = {file: probed(file) for file in files()}
    tasks = [Task(test, [[test, *QUICK]], 1200, texts) for test in TESTS]
    for test, report in reports(tasks, jobs):
        if report is None or report["failed"]:
            sys.exit(f"a test fails without any mutant: {report['failed'] if report else test}")
        shown.seconds.update(report["seconds"])
        shown.statements.update(report["statements"])
    return shown


def tried(chosen: list[Mutant], shown: Known, jobs: int) -> Iterator[tuple[Mutant, str | None]]:
    """By what each mutant was caught; None if by nothing."""
    tests = {mutant: shown.tests_of(mutant) for mutant in chosen}
    tasks = []
    for mutant, parts in tests.items():
        most = 10 + PATIENCE * sum(map(shown.seconds_of, parts))
        tasks.append(Task(mutant, parts, most, {mutant.file: text_of(mutant)}))
    for mutant, report in reports(tasks, jobs):
        yield mutant, report["failed"] if report else "it crashed, or took too long"


def recorded() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def record(rows: list[dict[str, Any]]) -> None:
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _name(row: dict[str, Any]) -> tuple[str, str, str, str]:
    return row["file"], row["within"], row["old"], row["new"]


def explained(row: dict[str, Any]) -> tuple[str, str] | None:
    """Why a mutant that survived need not be caught, or what catches it since."""
    if row.get("since"):
        return "tested since", f"`{_test(row['since'])}`"
    return EXPLAINED.get(_name(row))


def _test(nodeid: str) -> str:
    return nodeid.partition("::")[2].partition("[")[0] or nodeid


def table() -> str:
    """What was tried, and every mutant that survived, in Markdown."""
    rows = recorded()
    titles = [
        "sample",
        "mutants",
        "caught",
        "the same program",
        "on the safe side",
        "tested since",
        "caught of those that differ",
        "caught now of those that could do harm",
    ]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for seed in sorted({row["seed"] for row in rows}):
        sample = [row for row in rows if row["seed"] == seed]
        whys = Counter((explained(row) or ("",))[0] for row in sample if not row["caught"])
        caught, since = len(sample) - whys.total(), whys["tested since"]
        differ = len(sample) - whys["equivalent"]
        harm = differ - whys["safe"]
        counts = [len(sample), caught, whys["equivalent"], whys["safe"], since]
        shares = [f"{caught / differ:.1%}", f"{(caught + since) / harm:.1%}"]
        lines.append(f"| {' | '.join(map(str, [seed, *counts, *shares]))} |")
    lines += ["", "| place | change | why |", "|---|---|---|"]
    for row in rows:
        if not row["caught"]:
            kind, why = explained(row) or ("NOT EXPLAINED", "")
            change = f"`{row['old']}` → `{row['new']}`".replace("|", "\\|")
            lines.append(f"| {row['file']}:{row['line']} | {change} | {kind}: {why} |")
    return "\n".join(lines)


def main() -> None:
    """Try a sample, or once more what survived; or print the table of what was tried."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=MUTANTS, help="how many")
    parser.add_argument("--seed", type=int, default=SEED, help="of the sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--again", action="store_true", help="only those that survived before")
    parser.add_argument("--table", action="store_true", help="print what was tried, in Markdown")
    options = parser.parse_args()
    if not options.table:
        shown = known(options.jobs)
        run(options, shown)
    print(table())
    sys.exit(any(not row["caught"] and not explained(row) for row in recorded()))


def run(options: argparse.Namespace, shown: Known) -> None:
    """Try what is left of the sample; or, of all that survived, what nothing explains."""
    rows, every = recorded(), mutants()
    if options.again:
        named = {mutant.name: mutant for mutant in every}
        left = [row for row in rows if not row["caught"] and not explained(row)]
        trying = {named[_name(row)]: row for row in left}
    else:
        sample = random.Random(options.seed).sample(every, options.mutants)
        tried_before = {_mutant(row): row for row in rows if row["seed"] == options.seed}
        trying = {mutant: {"seed": options.seed, **mutant._asdict()} for mutant in sample}
        rows = [row for row in rows if row["seed"] != options.seed]
        rows += [tried_before[mutant] for mutant in sample if mutant in tried_before]
        for mutant in tried_before:
            trying.pop(mutant, None)
    for mutant, caught in tried([*trying], shown, options.jobs):
        row = trying[mutant]
        if options.again:
            row["since"] = caught
        else:
            rows.append(row | {"caught": caught})
        record(rows)
        what = f"{mutant.file}:{mutant.line}  {mutant.old} -> {mutant.new}"
        print(f"{caught or 'SURVIVED'}  {what}", flush=True)


def _mutant(row: dict[str, Any]) -> Mutant:
    return Mutant(**{name: row[name] for name in Mutant._fields})


if __name__ == "__main__":
    main()
