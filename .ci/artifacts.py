"""Are an sdist and a wheel fit to be released? artifacts.py DIST AGAIN: the folder that holds them,
and that of the wheel that was built again from the sdist."""

import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from packaging.metadata import Metadata
from readme_renderer.markdown import render

ROOT = Path(__file__).parent.parent
SHOWN = ("h1", "h2", "pre", "table", "tr", "li", "img")


class Tags(HTMLParser):
    """How many of each tag a page has, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.number: Counter[str] = Counter()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.number[tag] += 1
        self.links |= {value for name, value in attrs if name in ("href", "src") and value}


def refuse(wrong: bool, sentence: str) -> None:
    if wrong:
        sys.exit(sentence)


def files_of_wheel(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def files_of_sdist(path: Path) -> dict[str, bytes]:
    """Without the folder that all are in."""
    with tarfile.open(path) as sdist:
        files = [member for member in sdist.getmembers() if member.isfile()]
        return {file.name.partition("/")[2]: sdist.extractfile(file).read() for file in files}


def check_contents(sdist: dict[str, bytes], wheel: dict[str, bytes]) -> None:
    """What git has, as it is, and nothing that lies about here."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    refuse(listed.returncode != 0, "this is no clone: what belongs into a release is not known")
    tracked = {*listed.stdout.split("\0")} - {""}
    strange = sorted(sdist.keys() - tracked - {"PKG-INFO"})
    refuse(bool(strange), f"the sdist holds what git does not: {strange}; commit or remove it")
    lacking = sorted(name for name in tracked - sdist.keys() if name.startswith("src/"))
    refuse(bool(lacking), f"the sdist lacks {lacking}")
    source = {name.removeprefix("src/") for name in tracked if name.startswith("src/")}
    packed = {name for name in wheel if ".dist-info/" not in name}
    refuse(packed != source, f"wheel and source differ: {sorted(packed ^ source)}")
    for place in (ROOT, Path(sys.prefix), Path.home()):
        for name, content in [*sdist.items(), *wheel.items()]:
            found = len(place.parts) > 2 and f"{place}/".encode() in content
            refuse(found, f"{name} names {place}, a folder of this machine")


def check_metadata(sdist: dict[str, bytes], wheel: dict[str, bytes]) -> Metadata:
    """Valid by the standard, the same in both, with the licence, and installable from an index."""
    (name,) = [name for name in wheel if name.endswith(".dist-info/METADATA")]
    refuse(wheel[name] != sdist["PKG-INFO"], "sdist and wheel have unlike metadata")
    metadata = Metadata.from_email(wheel[name], validate=True)
    direct = [str(one) for one in metadata.requires_dist or () if one.url]
    refuse(bool(direct), f"an index refuses requirements by address: {direct}")
    refuse(metadata.license_files != ["LICENSE"], "the licence is not among the metadata")
    return metadata


def check_readme(metadata: Metadata) -> set[str]:
    """It shows as much on an index as here. Returns links that lead somewhere only here."""
    refuse(metadata.description_content_type != "text/markdown", "README.md is no Markdown there")
    text = (ROOT / "README.md").read_text()
    refuse(metadata.description.strip() != text.strip(), "the description is not README.md")
    page = render(metadata.description)
    refuse(page is None, "an index cannot show README.md")
    fences = text.count("\n```") // 2
    shown = Tags(page or "")
    refuse(shown.number["pre"] != fences, f"{shown.number['pre']} of {fences} blocks are shown")
    print("README.md as an index shows it:", ", ".join(f"{shown.number[t]} {t}" for t in SHOWN))
    return {link for link in shown.links if ":" not in link and not link.startswith("#")}


def main(dist: Path, again: Path) -> None:
    (built,), (source,), (rebuilt,) = dist.glob("*.whl"), dist.glob("*.tar.gz"), again.glob("*.whl")
    wheel, sdist = files_of_wheel(built), files_of_sdist(source)
    refuse(
        built.name != rebuilt.name or wheel != files_of_wheel(rebuilt),
        "the sdist builds another wheel than the clone",
    )
    check_contents(sdist, wheel)
    only_here = check_readme(check_metadata(sdist, wheel))
    for path, files in ((source, sdist), (built, wheel)):
        print(f"{path.name}: {len(files)} files, {path.stat().st_size / 1e6:.1f} MB")
    if only_here:
        print(f"{len(only_here)} links of README.md lead to files beside it, which an index lacks")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
