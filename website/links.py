"""Is the built site whole? Every link leads to a page and an anchor that are there, and no page
loads anything from elsewhere."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("link", "href"), ("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src")}


class Page(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                (self.loads if (tag, name) in LOADS else self.links).add(value)


def check(site: Path) -> None:
    """Refuse a site with a dead link or a load from elsewhere, with all of them in one sentence."""
    pages = {
        path.resolve(): Page(path.read_text())
        for path in site.rglob("*.html")
        if path.name != "404.html"  # its links are absolute
    }
    wrong = [
        f"{path.relative_to(site.resolve())}: {link}"
        for path, page in pages.items()
        for link in sorted(page.links | page.loads)
        if dead(path, link, pages) or (link in page.loads and urlsplit(link).netloc)
    ]
    if wrong:
        raise SystemExit("links of the site that lead nowhere: " + "; ".join(wrong))


def dead(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if there.is_dir():
        there /= "index.html"
    if there not in pages:
        return not there.is_file()
    return bool(parts.fragment) and unquote(parts.fragment) not in pages[there].anchors
