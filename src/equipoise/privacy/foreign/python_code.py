"""Python files as far as they can be read without running them: calls, and values that follow from
constants, from names bound once, and from a configuration that is known."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.errors import DataError
from equipoise.privacy.foreign.reading import is_number, read_text

_DEEP = 20  # names that stand for names
_CHANGING = ("update", "setdefault", "pop", "popitem", "clear")  # a dict


class Unknown(NamedTuple):
    """A value that cannot be read, as it is written."""

    written: str


class Call(NamedTuple):
    """A call of something that is imported from a library, with its arguments as written."""

    name: str
    node: ast.Call
    code: "Code"

    @property
    def where(self) -> str:
        return f"{self.code.path.name}, line {self.node.lineno}"


class Code:
    """One file. `config` is what `context.run_config` holds when it runs."""

    def __init__(self, path: Path, library: str, config: Mapping[str, Any]) -> None:
        self.path, self.config = path, config
        try:
            self.tree = ast.parse(read_text(path))
            self.nodes = [*ast.walk(self.tree)]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise DataError(f"{path} is not Python that can be read") from None
        self.imported = dict(_imported(self.nodes, library))
        self.bound = _bound(self.nodes)
        self._changed = {*self._changes()}

    def calls(self, names: Mapping[str, Any] | frozenset[str]) -> Iterator[Call]:
        """Calls of these names of the library, in the order of the file."""
        every = [node for node in self.nodes if isinstance(node, ast.Call)]
        for node in sorted(every, key=lambda node: (node.lineno, node.col_offset)):
            name = self.name_of(node.func)
            if name is not None and name in names:
                yield Call(name, node, self)

    def extended(self, names: Mapping[str, Any]) -> list[str]:
        """Classes of the file that change one of these."""
        classes = (node for node in self.nodes if isinstance(node, ast.ClassDef))
        return [c.name for c in classes if any(self.name_of(base) in names for base in c.bases)]

    def mentioned(self, names: Mapping[str, Any]) -> set[str]:
        """Which of these names of the library it does something with."""
        used = (node for node in self.nodes if isinstance(node, ast.Name | ast.Attribute))
        return {name for node in used if (name := self.name_of(node)) and name in names}

    def looped(self) -> set[int]:
        """The identities of nodes that may run more than once: those in loops."""
        loops = (
            node for node in self.nodes if isinstance(node, ast.For | ast.AsyncFor | ast.While)
        )
        return {id(node) for loop in loops for node in ast.walk(loop)}

    def full_name(self, node: ast.expr, library: str) -> str | None:
        """What it is called in this library, with its modules; None where it is nothing of it."""
        words = []
        while isinstance(node, ast.Attribute):
            words.append(node.attr)
            node = node.value
        first = (
            dict(_imported(self.nodes, library)).get(node.id)
            if isinstance(node, ast.Name)
            else None
        )
        return ".".join([first, *reversed(words)]) if first else None

    def uses(self, library: str) -> bool:
        """Whether it is imported, or anything of it."""
        return any(_imported(self.nodes, library))

    def name_of(self, node: ast.expr) -> str | None:
        """What it is called in the library; None where it is something else."""
        if isinstance(node, ast.Name):
            name = self.imported.get(node.id)
            return name.rpartition(".")[2] if name else None
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(node, ast.Attribute) and isinstance(root, ast.Name):
            return node.attr if root.id in self.imported else None
        return None

    def value(self, node: ast.expr | None, depth: int = 0) -> Any:
        """Its value, or Unknown."""
        if node is None:
            return None
        unknown = Unknown(ast.unparse(node)[:60])
        if depth > _DEEP:
            return unknown
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand, depth + 1)
            return -inner if is_number(inner) else unknown
        if isinstance(node, ast.BinOp):
            both = self.value(node.left, depth + 1), self.value(node.right, depth + 1)
            return _computed(node.op, *both, unknown)
        if isinstance(node, ast.Name):
            values = [
                unknown if bound is None else self.value(bound, depth + 1)
                for bound in [*self.bound.get(node.id, [None]), *self.bound.get("*", [])]
            ]
            alike = all(value == values[0] for value in values)
            return values[0] if alike and not isinstance(values[0], Unknown) else unknown
        if isinstance(node, ast.Call):
            return self._converted(node, unknown, depth)
        if isinstance(node, ast.Subscript) and self._is_config(node.value, depth):
            return self._configured(self.value(node.slice, depth + 1), None, unknown)
        return unknown

    def _converted(self, node: ast.Call, unknown: Unknown, depth: int) -> Any:
        """float(x), int(x), str(x), and config.get(name, default)."""
        arguments = node.args
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name in ("float", "int") and len(arguments) == 1 and not node.keywords:
            inner = self.value(arguments[0], depth + 1)
            if is_number(inner):
                return float(inner) if name == "float" else int(inner)
        get = isinstance(node.func, ast.Attribute) and node.func.attr == "get"
        if get and 1 <= len(arguments) <= 2 and not node.keywords:
            assert isinstance(node.func, ast.Attribute)
            if self._is_config(node.func.value, depth):
                default = self.value(arguments[1], depth + 1) if len(arguments) == 2 else unknown
                return self._configured(self.value(arguments[0], depth + 1), default, unknown)
        return unknown

    def _configured(self, key: Any, default: Any, unknown: Unknown) -> Any:
        if not isinstance(key, str) or self._changed & {key, None}:
            return unknown
        return self.config.get(key, unknown if default is None else default)

    def _changes(self) -> Iterator[str | None]:
        """Keys of the configuration that the file itself sets; None: any of them."""
        for node in self.nodes:
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                if self._is_config(node.value, 0):
                    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
                    yield key if isinstance(key, str) else None
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                changing = node.func.attr in _CHANGING
                if changing and self._is_config(node.func.value, 0):
                    yield None

    def _is_config(self, node: ast.expr, depth: int) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr == "run_config"
        bound = self.bound.get(node.id, []) if isinstance(node, ast.Name) else []
        if len(bound) != 1 or bound[0] is None or depth > _DEEP:
            return False
        return self._is_config(bound[0], depth + 1)


def last_name(node: ast.expr) -> str:
    """The last word of what is called."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _computed(operator: ast.operator, left: Any, right: Any, unknown: Unknown) -> Any:
    """Sums, products and quotients of numbers."""
    if not (is_number(left) and is_number(right)):
        return unknown
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    return left / right if isinstance(operator, ast.Div) and right else unknown


def _imported(nodes: list[ast.AST], library: str) -> Iterator[tuple[str, str]]:
    """Names of the file that stand for modules, classes and functions of the library."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == library:
                    yield alias.asname or library, alias.name if alias.asname else library
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = node.names if node.module.partition(".")[0] == library else []
            for alias in names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _bound(nodes: list[ast.AST]) -> dict[str, list[ast.expr | None]]:
    """What every name of the file is bound to, wherever; None where that is not an expression that
    stands there (a parameter, a loop)."""
    bound: dict[str, list[ast.expr | None]] = {}
    simple: set[int] = set()
    for node in nodes:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                simple.add(id(target))
                bound.setdefault(target.id, []).append(node.value)  # type: ignore[attr-defined]
    for node in nodes:
        for name in [] if id(node) in simple else _named(node):
            bound.setdefault(name, []).append(None)
    return bound


def _named(node: ast.AST) -> list[str]:
    """Names that it binds to what does not stand there."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.arg(arg=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [alias.asname or alias.name.partition(".")[0] for alias in names]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return [name] if name else []
        case ast.MatchMapping(rest=name):
            return [name] if name else []
    return []
