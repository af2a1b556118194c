"""The reference: every public name, from its docstring, its signature and its fields.

A docstring is sentences; lines of a name, two spaces or more and its meaning, for parameters and
fields; and examples after >>>, which `tests/test_reference.py` runs. A parameter or field without a
meaning is refused.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

from pydantic import BaseModel

import equipoise
from signatures import arguments, default_of, said_below, signature, type_of, value_of, written

PAGES = {
    "planning": ("Planning", "plan Plan Question"),
    "training": ("Training", "train rounds dry_run adapt save load"),
    "results": ("Results, and what is said of them", "Result evaluate DryRun About guarantee"),
    "tasks": (
        "Tasks, settings, data",
        "Settings Run own_task encoded_task fix Fixed Task accuracy try_data Tried",
    ),
    "sweeps": ("Sweeps", "sweep report"),
    "guarantees": (
        "What a guarantee costs",
        "Promise Event Account noise_sigma epsilon_spent gdp_mu compare_accountants account "
        "JobAccount",
    ),
    "auditing": ("Audits", "audit Audit BrokenClaim"),
    "errors": ("Errors", "EquipoiseError InvalidValue DataError UnsafeModel"),
}
PAGE_OF = {name: page for page, (_, names) in PAGES.items() for name in names.split()}
BESIDE = {
    "Plan": "planning.plan.Option planning.plan.Prediction planning.plan.Way",
    "Result": "result.Point result.PublicOnly result.Adapted",
    "evaluate": "training.Evaluation",
    "rounds": "fleets.server.Round",
    "sweep": "sweeps.run.Swept",
    "report": "reports.writing.Summary",
    "compare_accountants": "privacy.accountants.Comparison",
    "Tried": "tasks.try_data.TriedFile tasks.try_data.TriedColumn",
}
"""What public functions return and public values hold, and nobody need import."""

MEANING = re.compile(r"([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*)  +(\S.*)")


class Doc(NamedTuple):
    """A docstring: its sentences in paragraphs, what names mean, and its examples."""

    sentences: list[str]
    meanings: dict[str, str]
    examples: list[str]


class Row(NamedTuple):
    """A parameter or a field. The default is source; empty where a value must be given."""

    name: str
    type: str
    default: str
    meaning: str


def pages() -> dict[str, str]:
    """Every page of the reference by its place on the site."""
    missing = {*equipoise.__all__} ^ PAGE_OF.keys()
    if missing:
        raise SystemExit(f"names of equipoise and of the reference differ: {sorted(missing)}")
    texts = {
        f"reference/{page}.md": "\n\n".join(
            [f"# {title}", *(entry(name) for name in names.split())]
        )
        for page, (title, names) in PAGES.items()
    }
    return {"reference/index.md": index(), **texts}


def index() -> str:
    parts = [
        "# Reference",
        "All public names: `import equipoise`, then `equipoise.train` and so on. Keywords are the "
        "flags of the command of the same name: `--local-steps 4` is `local_steps=4`.",
    ]
    for page, (title, names) in PAGES.items():
        rows = [
            f"| {linked(name)} | {cell(first_sentence(getattr(equipoise, name)))} |"
            for name in names.split()
        ]
        parts.append(
            "\n".join([f"## [{title}]({page}.md)", "", "| name | what it is |", "|---|---|", *rows])
        )
    return "\n\n".join(parts)


def entry(name: str) -> str:
    """A public name, and what belongs to it."""
    sections = [section(f"`{name}`", name, getattr(equipoise, name))]
    for path in BESIDE.get(name, "").split():
        module, _, beside = path.rpartition(".")
        value = getattr(importlib.import_module(f"equipoise.{module}"), beside)
        sections.append(section(f"`{beside}`, of `equipoise.{module}`", beside, value))
    return "\n\n".join(sections)


def section(title: str, name: str, value: Any) -> str:
    doc = read(inspect.getdoc(value) or "")
    parts = [f"## {title} {{ #{name} }}"]
    if not inspect.isclass(value):
        parts += [f"```python\n{signature(name, value)}\n```", *doc.sentences]
        rows = [*parameters(value, doc)] if inspect.isfunction(inspect.unwrap(value)) else []
    else:
        parts += doc.sentences
        rows = [*fields(value, doc)]
    if name in PAGE_OF:
        check(name, rows, doc)
    if rows:
        parts.append(table(rows, "field" if inspect.isclass(value) else "parameter"))
    if inspect.isclass(value):
        parts += members(name, value)
    parts += [f"```pycon\n{example}\n```" for example in doc.examples]
    return "\n\n".join(parts)


def check(name: str, rows: list[Row], doc: Doc) -> None:
    silent = [row.name for row in rows if not row.meaning]
    unknown = sorted(doc.meanings.keys() - {row.name for row in rows})
    if silent or unknown:
        raise SystemExit(
            f"docstring of {name}: no meaning of {silent}; meanings of {unknown}, which it has not"
        )


def read(doc: str) -> Doc:
    sentences, meanings, examples = [], {}, []
    for paragraph in doc.split("\n\n"):
        if paragraph.startswith(">>>"):
            examples.append(paragraph)
            continue
        plain, name = [], ""
        for line in paragraph.splitlines():
            if match := MEANING.fullmatch(line):
                name = match[1]
                meanings[name] = match[2]
            elif name:
                meanings[name] += " " + line.strip()
            else:
                plain.append(line)
        if plain:
            sentences.append(markdown("\n".join(plain)))
    alone = {one: markdown(text) for names, text in meanings.items() for one in names.split(", ")}
    return Doc(sentences, alone, examples)


def markdown(text: str) -> str:
    """Sentences of a docstring, in which only backticks mean something; public names are links."""
    parts = re.split(r"(``.+?``|`.+?`)", text)
    for number, part in enumerate(parts):
        if number % 2 == 0:
            parts[number] = re.sub(r"[*_<\[\]|]", lambda sign: f"&#{ord(sign[0])};", part)
        elif part.strip("`") in PAGE_OF:
            parts[number] = linked(part.strip("`"))
    return "".join(parts)


def linked(name: str) -> str:
    return f"[`{name}`]({PAGE_OF[name]}.md#{name})"


def cell(text: str) -> str:
    """In one line of a table."""
    return " ".join(text.split())


def first_sentence(value: Any) -> str:
    text = " ".join(read(inspect.getdoc(value) or "").sentences[:1]).replace("\n", " ")
    return re.split(r"(?<=\.) (?=[A-Z`])|: ``", text)[0].rstrip(".:")


def table(rows: list[Row], head: str) -> str:
    """Neighbours with one meaning share a line."""
    lines = [f"| {head} | type, default | meaning |", "|---|---|---|"]
    for meaning, alike in groupby(rows, lambda row: row.meaning or row.name):
        those = [*alike]
        kinds = dict.fromkeys(" = ".join(filter(None, (row.type, row.default))) for row in those)
        names = ", ".join(code(row.name) for row in those)
        says = cell(meaning) if those[0].meaning else ""
        lines.append(f"| {names} | {', '.join(map(code, kinds))} | {says} |")
    return "\n".join(lines)


def code(text: str) -> str:
    return f"`{cell(text)}`" if text else ""


def parameters(value: Any, doc: Doc) -> Iterator[Row]:
    module = inspect.unwrap(value).__module__
    for one, default, _ in arguments(value):
        kind, given = type_of(one.annotation, module), value_of(default, module)
        yield Row(one.arg, kind, given, doc.meanings.get(one.arg, ""))
    if rest := written(value).args.kwarg:
        yield Row(rest.arg, "", "", doc.meanings.get(rest.arg, ""))


def fields(value: Any, doc: Doc) -> Iterator[Row]:
    """The fields of a value in the order in which they are written, those of its parents first.
    What a field means stands in the docstring, below the field, or in its description; or it means
    what it does in a parent."""
    rows: dict[str, Row] = {}
    for part in reversed(value.__mro__):
        if not part.__module__.startswith("equipoise"):
            continue
        body = written(part).body
        for number, statement in enumerate(body):
            if not isinstance(statement, ast.AnnAssign):
                continue
            name, field = ast.unparse(statement.target), None
            if issubclass(part, BaseModel):
                field = part.model_fields[name]
            meaning = (
                doc.meanings.get(name)
                or markdown(said_below(body[number + 1 :]))
                or markdown((field and field.description) or "")
                or (rows[name].meaning if name in rows else "")
            )
            kind = type_of(statement.annotation, part.__module__)
            rows[name] = Row(name, kind, default_of(statement, field, part.__module__), meaning)
    yield from rows.values()


def members(name: str, value: Any) -> Iterator[str]:
    """What can be asked of a value: its properties and methods that say what they do."""
    rows = []
    for part in reversed(value.__mro__):
        for member, held in vars(part).items() if part.__module__.startswith("equipoise") else ():
            function = getattr(held, "fget", None) or getattr(held, "__func__", None) or held
            function = getattr(function, "wrapped_property", function)
            function = getattr(function, "fget", function)
            if member.startswith("_") or not inspect.isfunction(function):
                continue
            says = first_paragraph(function)
            if says:
                rows.append(f"| {code(asked(member, held, function))} | {cell(says)} |")
    if rows:
        yield "\n".join([f"| of `{name}` | what it is |", "|---|---|", *rows])


def first_paragraph(function: Any) -> str:
    return "".join(read(inspect.getdoc(function) or "").sentences[:1])


def asked(member: str, held: Any, function: Any) -> str:
    if not (inspect.isfunction(held) or isinstance(held, classmethod | staticmethod)):
        return member
    return (
        signature(member, function).replace("self, ", "").replace("self", "").replace("cls, ", "")
    )
