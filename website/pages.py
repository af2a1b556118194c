"""The pages of the site: those of docs, those of the root, the notebook, the reference. In the
repository their links are read by a code host; here they become links of the site."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import notebook
import reference

ROOT = Path(__file__).parent.parent
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "examples/hospitals.ipynb": "hospitals.md",
}
OWN = {"style.css": "style.css", "icon.svg": "figures/icon.svg"}
LINK = re.compile(r"\[([^\]\n]*(?:\n[^\]\n]*)?)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def write(folder: Path, run: bool) -> None:
    """All that the site is made of. Without `run` the notebook shows no outputs."""
    shutil.copytree(ROOT / "docs", folder)
    for name, place in OWN.items():
        shutil.copy(ROOT / "website" / name, folder / place)
    for place, text in reference.pages().items():
        put(folder / place, text)
    for path in [*ELSEWHERE, *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]:
        if path.endswith(".ipynb"):
            text, pictures = notebook.page(ROOT / path, run)
            for name, picture in pictures.items():
                (folder / name).write_bytes(picture)
        else:
            text = (ROOT / path).read_text()
        for copied in copies(path, text):
            (folder / copied).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / copied, folder / copied)
        put(folder / place_of(path), for_site(path, text))


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def place_of(path: str) -> str:
    """Where a file of the repository is on the site: a page, or a copy under its own path."""
    return ELSEWHERE.get(path) or path.removeprefix("docs/")


def target(page: str, link: str) -> str | None:
    """The file of the repository that a link on a page means; None if there is none."""
    path = os.path.normpath(PurePosixPath(page).parent / link)
    return path if (ROOT / path).is_file() else None


def copies(page: str, text: str) -> Iterator[str]:
    """Files outside docs that a page links to and that are no pages."""
    for _, link, _ in LINK.findall(text):
        path = target(page, link)
        if path and not path.startswith("docs/") and path not in ELSEWHERE:
            yield path


def for_site(page: str, text: str) -> str:
    """The text of a page, with links of the site. A link that is called by its file gets the title
    of the page."""
    here = PurePosixPath(place_of(page)).parent

    def turned(match: re.Match[str]) -> str:
        words, link, anchor = match.groups()
        path = target(page, link)
        if path is None:
            return match[0]  # which the build refuses
        if words == link and path.endswith(".md"):
            words = (ROOT / path).read_text().partition("\n")[0].removeprefix("# ")
        return f"[{words}]({os.path.relpath(place_of(path), here)}{anchor or ''})"

    parts = CODE.split(text)
    parts[::2] = [LINK.sub(turned, part) for part in parts[::2]]
    return "".join(parts)
