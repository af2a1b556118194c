"""A notebook as a page: its words, its code, and what the code prints and draws when it is run."""

import ast
import io
import json
import re
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def page(path: Path, run: bool) -> tuple[str, dict[str, bytes]]:
    """The page, and its pictures by name. Cells run one after the other in one namespace, as a
    kernel started in the folder of the notebook would run them."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    names: dict[str, Any] = {}
    if run:
        import matplotlib

        matplotlib.use("agg")
        sys.path.insert(0, str(path.parent))
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        for cell in json.loads(path.read_text())["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                parts.append(source)
                continue
            parts.append(f"```python\n{source}\n```")
            if run:
                printed = re.sub(rf"{re.escape(folder)}/\w+/", "", executed(source, names))
                if printed.strip():
                    parts.append(f"```text\n{printed.rstrip()}\n```")
                for picture in drawn():
                    name = f"figures/{path.stem}-{len(pictures) + 1}.png"
                    pictures[name] = picture
                    parts.append(f"![what this cell draws]({name})")
        tempfile.tempdir = None
    return "\n\n".join(parts), pictures


def executed(source: str, names: dict[str, Any]) -> str:
    """What a cell prints, and the value of its last line, if it has one and no semicolon."""
    tree, last = ast.parse(source), None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(last, "cell", "eval"), names) if last else None
        if value is not None:
            print(value)
    return out.getvalue()


def drawn() -> list[bytes]:
    """The open figures, which are closed."""
    import matplotlib.pyplot as plt

    pictures = []
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=110, bbox_inches="tight")
        pictures.append(picture.getvalue())
    plt.close("all")
    return pictures
