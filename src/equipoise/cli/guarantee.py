"""The command `equipoise guarantee`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equipoise.cli.console import Json, say
from equipoise.errors import InvalidValue, require


def guarantee(
    run: Annotated[Path, Parameter(help="the folder that `train --out` wrote")],
    /,
    *,
    about: Annotated[
        Path | None,
        Parameter(
            help="TOML file with what only you can say: purpose, controller, contact, retention; "
            "for a registry also name, description, region, sector, published, sources, authors"
        ),
    ] = None,
    registry: Annotated[
        bool,
        Parameter(
            negative=(),
            help="print the entry for OpenDP's Differential Privacy Deployments Registry, as YAML",
        ),
    ] = False,
    html: Annotated[
        Path | None, Parameter(help="write the page to print, with its picture, into this new file")
    ] = None,
    json: Json = False,
) -> None:
    """State anew what a finished run guarantees, to whom, against whom, and what an attacker gains:
    in Markdown, or with --json as the document that guarantee.schema.json describes.

    Example: equipoise guarantee run-1 --about about.toml --html guarantee.html
    """
    from equipoise.privacy.statement import guarantee_of, page_of, registry_entry, statement
    from equipoise.saved import write_whole
    from equipoise.stating import described

    require(not (registry and json), "registry and json: the entry is YAML; give one of the two")
    result, digest = described(run, about)
    if html:
        require(not html.exists(), f"html={html} is there already: give the name of a new file")
        require(html.parent.is_dir(), f"html={html}: there is no folder {html.parent}; make it")
        page = page_of(guarantee_of(result, digest))
        try:
            write_whole(html, lambda part: part.write_text(page, encoding="utf-8"))
        except OSError as error:
            raise InvalidValue(f"html={html} cannot be written: {error.strerror}") from None
        say(f"written: {html}")
    if registry:
        print(registry_entry(guarantee_of(result, digest)), end="")
    elif json:
        print(guarantee_of(result, digest).to_json())
    elif not html:
        print(statement(result, digest), end="")
