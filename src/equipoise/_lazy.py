"""Names that load their module on first use, so that `equipoise --help` waits neither for torch nor
for scipy."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: dict[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562), given which of its modules defines each public
    name."""
    where = {name: module for module, names in modules.items() for name in names.split()}

    def getattr_(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{where[name]}"), name)

    return getattr_
