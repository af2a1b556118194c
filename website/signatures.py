"""Signatures, types and defaults, as they are written in the source, in the words of a reader."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin


def written(function: Any) -> ast.FunctionDef:
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    return ast.parse(source).body[0]


class Plain(ast.NodeTransformer):
    """An annotation in the words of a reader: aliases of this package, validators and the modules
    of names are taken away."""

    def __init__(self, module: str) -> None:
        self.known = vars(sys.modules[module])

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Name(node.attr)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if ast.unparse(node.value) == "Annotated":
            return self.visit(node.slice.elts[0])
        if ast.unparse(node.value) == "Literal":
            return choices(ast.literal_eval(node.slice))
        node.slice = self.visit(node.slice)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        meant = self.known.get(node.id)
        if get_origin(meant) is Literal:
            return choices(get_args(meant))
        if get_origin(meant) is Annotated:
            return ast.Name(words_of(meant.__origin__))
        if get_origin(meant) in (Union, UnionType):
            return ast.Name(" | ".join(map(words_of, get_args(meant))))
        if get_origin(meant) is Callable or meant is str:
            return ast.Name(words_of(get_origin(meant) or meant))
        return node


def choices(values: Any) -> ast.expr:
    return ast.Name(" | ".join(map(repr, values if isinstance(values, tuple) else (values,))))


def words_of(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " | ".join(map(repr, get_args(kind)))
    name = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return {"NoneType": "None"}.get(name, name)


def value_of(default: ast.expr | None, module: str) -> str:
    """A default as it is written; of a constant its value."""
    if isinstance(default, ast.Name) and default.id in vars(sys.modules[module]):
        return repr(vars(sys.modules[module])[default.id])
    return "" if default is None else ast.unparse(default)


def type_of(annotation: ast.expr | None, module: str) -> str:
    """An annotation as it is written, in plain words."""
    if annotation is None:
        return ""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    return ast.unparse(Plain(module).visit(annotation))


def arguments(function: Any) -> Iterator[tuple[ast.arg, ast.expr | None, bool]]:
    """The arguments of a function but **values, with their defaults, and whether each needs its
    name."""
    given = written(function).args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + given.defaults
    for one, default in zip(plain, defaults, strict=True):
        yield one, default, False
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield one, default, True


def signature(name: str, value: Any) -> str:
    """How a function is called, on one line if it fits."""
    if not inspect.isfunction(inspect.unwrap(value)):
        return f"{name}{inspect.signature(value)}"
    node, module = written(value), inspect.unwrap(value).__module__
    words: list[str] = []
    for one, default, by_name in arguments(value):
        if by_name and "*" not in words:
            words.append("*")
        words.append(one.arg if default is None else f"{one.arg}={value_of(default, module)}")
    words += [f"**{node.args.kwarg.arg}"] if node.args.kwarg else []
    result = f" -> {type_of(node.returns, module)}" if node.returns else ""
    line = f"{name}({', '.join(words)}){result}"
    inner = "".join(f"    {word},\n" for word in words)
    return line if len(line) <= 100 else f"{name}(\n{inner}){result}"


def said_below(statements: list[ast.stmt]) -> str:
    """The string that follows a field, if one does."""
    match statements[:1]:
        case [ast.Expr(ast.Constant(str(text)))]:
            return inspect.cleandoc(text)
    return ""


def default_of(statement: ast.AnnAssign, field: Any, module: str) -> str:
    """The default of a field; empty where a value must be given."""
    if field is not None:
        return "" if field.is_required() or field.default_factory else repr(field.default)
    if isinstance(statement.value, ast.Call):
        return ""  # a factory
    return value_of(statement.value, module)
