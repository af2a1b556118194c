"""The notebooks of examples: their code runs from above to below in one namespace, and what is
stored of them is code and words alone."""

import json

import matplotlib
import pytest

from problems import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells_of(path, kind):
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def test_there_is_a_notebook():
    assert [path.name for path in NOTEBOOKS] == ["hospitals.ipynb"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_cells_run(path, tmp_path, monkeypatch, capsys):
    """As a kernel started in the folder of the notebook would run them, without its display."""
    matplotlib.use("agg")
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = {}
    for number, cell in enumerate(cells_of(path, "code"), 1):
        exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
    result, person, mine = (names[name] for name in ("result", "person", "mine"))
    assert result.private
    assert person.private
    assert not mine.private
    assert result.measures["auroc"].low > 0.6  # of guesses 0.5: the noise differs each time
    assert person.run.unit == "person"
    assert len(names["predictions"]) == len(names["new"]) == 100
    assert len(names["plt"].get_fignums()) == 2
    names["plt"].close("all")
    assert "epsilon = 2" in capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_no_outputs_are_stored(path):
    for cell in cells_of(path, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
