"""The command `equipoise audit`."""

import sys
from typing import Annotated

from cyclopts import Parameter

from equipoise.auditing.audit import CONFIDENCE, Audit, BrokenClaim
from equipoise.cli.console import Json, one_thread, output, say
from equipoise.cli.flags import plain
from equipoise.cli.train import ConfigFile, PlanFile, SettingsFlags, chosen_settings
from equipoise.settings import Settings


def audit(
    *,
    settings: Annotated[SettingsFlags | None, Parameter(name="*")] = None,  # type: ignore[valid-type]
    config: ConfigFile = None,
    plan: PlanFile = None,
    anyway: Annotated[
        bool, Parameter(negative=(), help="audit although the plan says not to train")
    ] = False,
    runs: Annotated[
        int | None,
        Parameter(help="runs of a small made-up case (default: 100000, of which 3/4 count)"),
    ] = None,
    canaries: Annotated[
        int | None,
        Parameter(
            help="instead of many runs: one run of the task itself, with so many canaries among "
            "its public records, or its clients"
        ),
    ] = None,
    confidence: Annotated[
        float, Parameter(help="with which the bound holds, whatever the truth")
    ] = CONFIDENCE,
    json: Json = False,
) -> None:
    """A lower bound of epsilon by experiment: an attack on what these settings release, held
    against the account. Nothing is saved, and no private record is read.

    The exit code is 1 if the account is contradicted with overwhelming confidence.

    Example: equipoise audit --task breast-cancer --epsilon 2 --clip 1 --local-steps 4
    """
    chosen = chosen_settings(plain(Settings, settings), plan, anyway)
    one_thread()
    from equipoise.auditing.audit import audit as audited

    try:
        proved = audited(chosen, runs=runs, canaries=canaries, confidence=confidence)
    except BrokenClaim as broken:
        _tell(broken.audit, json)
        say(str(broken))
        sys.exit(1)
    _tell(proved, json)


def _tell(found: Audit, json: bool) -> None:
    if json:
        print(found.to_json())
        return
    console = output()
    for line in found.lines():
        style = "bold red" if line.startswith("verdict") and found.verdict == "broken" else None
        console.print(line, style=style)
