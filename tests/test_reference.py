"""The reference that the site shows: whole, and its examples run."""

import doctest
import importlib
import inspect
import pathlib
import sys

import pytest
import torch

import equipoise
from problems import ROOT

sys.path.append(str(ROOT / "website"))
reference = importlib.import_module("reference")
EXAMPLES = {name: inspect.getdoc(getattr(equipoise, name)) or "" for name in equipoise.__all__}
FUNCTIONS = {
    name
    for name in equipoise.__all__
    if inspect.isfunction(inspect.unwrap(getattr(equipoise, name)))
}


@pytest.mark.parametrize("name", [name for name, doc in EXAMPLES.items() if ">>>" in doc])
def test_examples_run(name, tmp_path, monkeypatch):
    """Each by itself, and what it prints is what stands there."""
    monkeypatch.chdir(tmp_path)
    names = {"equipoise": equipoise, "torch": torch, "pathlib": pathlib}
    example = doctest.DocTestParser().get_doctest(EXAMPLES[name], names, name, None, 0)
    report = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(example, out=report.append)
    assert not runner.failures, "".join(report)
    assert runner.tries


def test_every_function_has_an_example():
    """Or stands in that of another."""
    shown = " ".join(
        line for doc in EXAMPLES.values() for line in doc.splitlines() if ">>>" in line
    )
    assert {name for name in FUNCTIONS if f"equipoise.{name}(" not in shown} == set()


def test_every_public_name_parameter_and_field_has_a_meaning():
    """`pages` refuses what has none."""
    pages = reference.pages()
    for name in equipoise.__all__:
        assert any(f"{{ #{name} }}" in text for text in pages.values()), name


def one(clients: int, rate: float = 0.5) -> None:
    """A function.

    clients   how many
    """


def other(clients: int) -> None:
    """A function.

    client   how many
    """


@pytest.mark.parametrize("function", [one, other])
def test_a_parameter_without_a_meaning_is_refused(function, monkeypatch):
    monkeypatch.setitem(reference.PAGE_OF, function.__name__, "training")
    with pytest.raises(SystemExit, match=r"\['rate'\]|\['client'\]"):
        reference.section(function.__name__, function.__name__, function)
