"""The mutator: what it changes, and that what is explained is still there."""

import ast

from mutants import EXPLAINED, Known, Mutant, files, of_file, probed, table, text_of
from problems import ROOT

STABILITY = "privacy/stability.py"


def test_explained_mutants_have_their_place_in_the_source():
    names = {mutant.name for file in {name[0] for name in EXPLAINED} for mutant, _ in of_file(file)}
    assert EXPLAINED.keys() <= names, EXPLAINED.keys() - names
    assert {kind for kind, _ in EXPLAINED.values()} <= {"equivalent", "safe"}


def test_the_page_shows_what_was_tried():
    page = (ROOT / "docs" / "correctness.md").read_text()
    assert table() in page
    assert "NOT EXPLAINED" not in page


def test_a_mutant_is_another_program_that_can_be_read():
    source = (ROOT / "src" / "equipoise" / STABILITY).read_text()
    texts = {mutant: ast.unparse(tree) for mutant, tree in of_file(STABILITY)}
    assert len({*texts.values()} - {ast.unparse(ast.parse(source))}) == len(texts) > 50
    for text in texts.values():
        compile(text, STABILITY, "exec")
    changed = {(mutant.old, mutant.new) for mutant in texts}
    assert ("0 < self.eta <= most * (1 + 1e-12)", "0 <= self.eta <= most * (1 + 1e-12)") in changed
    assert ("float(steps) if c == 1 else (1 - c ** steps) / (1 - c)", "pass") not in changed
    mutant = next(mutant for mutant in texts if mutant.kind == "statement")
    assert text_of(mutant) == texts[mutant] != ast.unparse(ast.parse(source))


def test_words_annotations_and_logs_are_left():
    kept = ("docstring", "TYPE_CHECKING", "Literal[", "log.")
    for file in ("privacy/events.py", "fleets/client.py", "federation/silo.py"):
        for mutant, _ in of_file(file):
            assert not any(word in mutant.old for word in kept), mutant


def test_probes_note_every_statement_of_functions():
    assert not any("statement" in file for file in files())
    text = probed("privacy/groups.py")
    compile(text, "groups", "exec")
    assert text.count("probes.at('privacy/groups.py'") == 11
    assert text.index("probes.at") > text.index("def together")


def test_the_quickest_tests_of_a_statement_come_first():
    mutant = Mutant("a.py", 7, 0, 5, "x = 1", "constant", "1", "2")
    seconds = {"t/one.py::slow": 4.0, "t/one.py::quick": 0.1, "t/two.py::other": 1.0, "n": 0.0}
    on = {name: {"a.py": [5]} for name in seconds if name != "n"} | {"n": {"a.py": [6]}}
    shown = Known(seconds, on)
    assert shown.tests_of(mutant) == [["t/two.py::other"], ["t/one.py::quick", "t/one.py::slow"]]
    assert shown.tests_of(mutant._replace(statement=9))[0] == ["n"]
    assert Known(seconds | {"t/one.py::slow": 99.0}, on).tests_of(mutant)[0] == ["t/one.py::quick"]
