"""What the code of a Flower app does around a mechanism: rounds, mods, seeds."""

import ast
from collections.abc import Callable

from equipoise.privacy.foreign.python_code import Call, Code, last_name
from equipoise.privacy.foreign.reading import Given, Reading, is_number

SEEDING = ("set_random_seed", "seed_everything", "set_seed", "fix_random_seed", "seed_all")
"""Functions of other libraries, such as keras and lightning, that seed NumPy among others."""


def is_used(call: Call, codes: list[Code]) -> bool:
    """Whether it stands, itself or by its name, wherever an app trains."""
    names = {name for name, values in call.code.bound.items() if call.node in values}
    return in_mods(
        codes,
        lambda code, item: item is call.node or (isinstance(item, ast.Name) and item.id in names),
    )


def in_mods(codes: list[Code], is_it: Callable[[Code, ast.expr], bool]) -> bool:
    """Whether it is in the mods of every ClientApp, or of every training function."""

    def among(code: Code, made: ast.AST) -> bool:
        given = (k.value for k in getattr(made, "keywords", ()) if k.arg == "mods")
        lists = [kept for value in given for kept in _lists(code, value)]
        return any(is_it(code, item) for kept in lists for item in kept.elts)

    apps = [(code, c.node) for code in codes for c in code.calls(frozenset({"ClientApp"}))]
    trained = [(code, node) for code in codes for node in _training(code)]
    return any(made and all(among(*each) for each in made) for made in (apps, trained))


def _training(code: Code) -> list[ast.expr]:
    """The decorators of functions that train."""
    return [
        decorator
        for node in code.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in node.decorator_list
        if last_name(decorator.func if isinstance(decorator, ast.Call) else decorator) == "train"
    ]


def mods(code: Code) -> list[ast.List]:
    """Lists that are given as `mods`."""
    keywords = (n for n in code.nodes if isinstance(n, ast.keyword) and n.arg == "mods")
    return [kept for keyword in keywords for kept in _lists(code, keyword.value)]


def _lists(code: Code, value: ast.expr | None) -> list[ast.List]:
    """The list that it is, itself or by a name that is bound once."""
    if isinstance(value, ast.Name) and len(code.bound.get(value.id, [])) == 1:
        value = code.bound[value.id][0]
    return [value] if isinstance(value, ast.List) else []


def rounds_of(codes: list[Code], given: Given, asks: list[str]) -> int | None:
    """How many rounds: what the only `num_rounds` says, outside of loops, or what is given. Two of
    them may be two trainings on the same data."""
    written = [
        code.value(None if id(node) in looped else node.value)
        for code in codes
        for looped in [code.looped()]
        for node in code.nodes
        if isinstance(node, ast.keyword) and node.arg == "num_rounds"
    ]
    rounds = given.whole("rounds")
    if rounds is not None:
        return rounds
    if len(written) == 1 and isinstance(written[0], int) and written[0] >= 1:
        return int(written[0])
    trouble = (
        "rounds are said more than once in" if len(written) > 1 else "rounds cannot be read from"
    )
    asks.append(f"{trouble} {', '.join(code.path.name for code in codes)}: give --rounds")
    return None


def seeded(codes: list[Code]) -> Reading:
    """Where NumPy's generator, which makes the noise, is given a seed, or may be."""
    void, beside = [], []
    for code in codes:
        for node in code.nodes:
            if not isinstance(node, ast.Call) or not (node.args or node.keywords):
                continue
            where = f"{code.path.name}, line {node.lineno}"
            name = code.full_name(node.func, "numpy")
            if name == "numpy.random.seed":
                void.append(
                    f"NumPy's generator, which makes the noise, is seeded ({where}): where that "
                    "runs, whoever knows the seed takes the noise off"
                )
            elif last_name(node.func) in SEEDING:
                beside.append(
                    f"{last_name(node.func)} ({where}) may seed NumPy's generator, which makes "
                    "the noise: then whoever knows the seed takes the noise off"
                )
    return Reading("Flower", "client", void=tuple(void[:1]), beside=tuple(beside[:1]))


def fewer(codes: list[Code], clients: float) -> list[str]:
    """Strategies that may do with fewer replies than the noise is made for."""
    lines = []
    for code in codes:
        for node in code.nodes:
            if isinstance(node, ast.keyword) and node.arg in ("min_fit_clients", "min_train_nodes"):
                least = code.value(node.value)
                if is_number(least) and least < clients:
                    lines.append(
                        f"{node.arg}={least:g} ({code.path.name}, line {node.value.lineno}) lets a "
                        f"round have fewer replies than num_sampled_clients={clients:g}, which the "
                        "noise is divided by: then one reply weighs more than 1/num_sampled_clients"
                    )
    return lines
