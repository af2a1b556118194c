"""The site: built, every page in its navigation, no dead link, and the same as on a code host."""

import importlib
import re
import sys
from collections import Counter
from html.parser import HTMLParser

import markdown
import pytest
from markdown_it import MarkdownIt

from problems import ROOT

WEBSITE = ROOT / "website"
sys.path.append(str(WEBSITE))
build, links, notebook, pages = map(
    importlib.import_module, ("build", "links", "notebook", "pages")
)
SOURCES = [
    *(path for path in pages.ELSEWHERE if path.endswith(".md")),
    *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
HOST = MarkdownIt("commonmark").enable("table")


class Tags(HTMLParser):
    """How often each tag is there. Paragraphs are left out: whether the items of a list are some
    depends on blank lines, and shows as space alone."""

    def __init__(self, text):
        super().__init__()
        self.number = Counter()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag in {"li", "ul", "ol", "pre", "table", "tr", "td", "em", "strong", "img", "h2", "h3"}:
            self.number[tag] += 1


@pytest.mark.parametrize("path", SOURCES)
def test_a_page_reads_alike_on_a_code_host_and_on_the_site(path):
    """Lists, tables, code and emphasis: two dialects of Markdown, one meaning."""
    text = (ROOT / path).read_text()
    extensions = ["attr_list", "tables", "toc", "pymdownx.superfences"]
    for name in extensions:
        assert re.search(rf"^  - {name}\b", (WEBSITE / "mkdocs.yml").read_text(), re.MULTILINE)
    site = Tags(markdown.markdown(text, extensions=extensions)).number
    assert site == Tags(HOST.render(text)).number


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as by `make docs`, but that the notebook is not run. A dead link would end it."""
    folder = tmp_path_factory.mktemp("site") / "built"
    build.build(folder, run=False)
    return folder


@pytest.mark.slow
def test_the_site_is_built(site):
    for path in SOURCES:
        assert (site / pages.place_of(path)).with_suffix(".html").exists(), path
    assert "try_data" in (site / "hospitals.html").read_text()
    assert 'id="noise_sigma"' in (site / "reference" / "guarantees.html").read_text()
    assert (site / "search.json").exists() or (site / "search").exists()


@pytest.mark.slow
def test_every_page_is_in_the_navigation_once(site):
    told = re.findall(r"- (\S+)\.md$", (WEBSITE / "mkdocs.yml").read_text(), re.MULTILINE)
    there = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    assert sorted(told) == sorted(there - {"404"})


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ('<a href="nowhere.html">x</a>', "nowhere.html"),
        ('<a href="privacy.html#no-such-heading">x</a>', "no-such-heading"),
        ('<a href="#no-such-heading">x</a>', "no-such-heading"),
        ('<script src="https://example.org/x.js"></script>', "example.org"),
        ('<img src="figures/none.png">', "none.png"),
    ],
)
def test_a_dead_link_and_what_is_loaded_from_elsewhere_are_refused(tmp_path, planted, found):
    """Links to the web are fine: nobody can tell without a network whether they are dead."""
    (tmp_path / "privacy.html").write_text('<h2 id="clip">Clip</h2>')
    page = '<a href="privacy.html#clip">x</a> <a href="https://example.org">y</a>'
    (tmp_path / "index.html").write_text(page)
    links.check(tmp_path)
    (tmp_path / "index.html").write_text(page + planted)
    with pytest.raises(SystemExit, match=found):
        links.check(tmp_path)


def test_links_of_the_repository_become_links_of_the_site():
    text = "[docs/use.md](docs/use.md#tuned-at-home), [way](docs/privacy.md), [x](gone.md)"
    assert pages.for_site("README.md", text) == (
        "[Using a model](use.md#tuned-at-home), [way](privacy.md), [x](gone.md)"
    )
    assert pages.for_site("docs/audit.md", "[safe](../SECURITY.md)") == "[safe](security.md)"
    code = "```\n[docs/use.md](docs/use.md)\n```"
    assert pages.for_site("README.md", code) == code


def test_a_notebook_shows_what_its_cells_print_and_draw(tmp_path):
    path = tmp_path / "small.ipynb"
    path.write_text(
        '{"cells": [{"cell_type": "markdown", "source": ["# Small"]},'
        '{"cell_type": "code", "source": ["print(1 + 1)\\n", "x = 3\\n", "x * 7"]},'
        '{"cell_type": "code", "source": ["import matplotlib.pyplot as p\\n", "p.plot([x]);"]}]}'
    )
    text, pictures = notebook.page(path, run=True)
    assert text.startswith("# Small\n")
    assert "```text\n2\n21\n```" in text
    assert [*pictures] == ["figures/small-1.png"]
    assert "Line2D" not in text
    assert notebook.page(path, run=False)[1] == {}
