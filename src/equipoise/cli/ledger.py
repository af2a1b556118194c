"""The commands `equipoise ledger ...`."""

import json as documents
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from equipoise.cli.console import Json, output
from equipoise.cli.text import ledger_table
from equipoise.errors import DataError
from equipoise.privacy.promise import Unit

ledger = App(
    name="ledger",
    help="See what all runs on your records told together, and hold it under caps. A ledger is a "
    "file with a key and a head beside it, FILE.key and FILE.head: keep copies of all three "
    "together, and receipts elsewhere.",
)


@ledger.command(name="show")
def ledger_show(file: Path, /, *, json: Json = False) -> None:
    """Every run: when it was admitted, what it protects, how many of its rounds were released, and
    what it costs; and what remains of the caps. An open run is charged whole, a closed one what it
    released.

    Example: equipoise ledger show ledger.db
    """
    from equipoise.privacy.ledger import Ledger

    with Ledger(file, read_only=True) as opened:
        runs, standings = opened.runs(), opened.standings()
    if json:
        shown = [run.as_json() for run in runs]
        caps = [standing.as_json() for standing in standings]
        print(documents.dumps({"runs": shown, "caps": caps}, indent=2))
        return
    output().print(ledger_table(runs, standings))
    for standing in standings:
        print(standing)


@ledger.command(name="verify")
def ledger_verify(
    file: Path,
    /,
    *,
    receipt: Annotated[
        Path | None,
        Parameter(help="a receipt of this ledger: see also that it still contains that"),
    ] = None,
    json: Json = False,
) -> None:
    """Read all of a ledger again, and say whether it is what was written. That database, key and
    head were put back together to what they were before shows against a receipt alone.

    Example: equipoise ledger verify ledger.db --receipt receipt.json
    """
    from equipoise.privacy.ledger import Ledger

    paper = None if receipt is None else _paper(receipt)
    with Ledger(file, read_only=True) as opened:
        rows = opened.verify(paper)
    if json:
        print(documents.dumps({"rows": rows, "receipt": receipt is not None}))
        return
    print(
        f"{file}: {rows} rows, all as they were written"
        + ("" if receipt is None else ", and what the receipt says is among them")
    )


@ledger.command(name="close")
def ledger_close(file: Path, run: str, /) -> None:
    """Say that a run is over, such as one that died for good: what it did not release is given
    back, and its answers and its state are wiped. It releases nothing more.

    Example: equipoise ledger close ledger.db 5f2c9a1be0d34478
    """
    from equipoise.privacy.ledger import Ledger

    _check_there(file)
    with Ledger(file) as opened:
        opened.close(run)
        for standing in opened.standings():
            print(standing)


@ledger.command(name="receipt")
def ledger_receipt(file: Path, run: str | None = None, /) -> None:
    """Print how the ledger stands, and a run in it, as JSON: to be kept elsewhere, on paper or with
    somebody else. It tells nothing of records, and cannot be made for another ledger.

    Example: equipoise ledger receipt ledger.db > receipt.json
    """
    from equipoise.privacy.ledger import Ledger

    with Ledger(file, read_only=True) as opened:
        print(documents.dumps(opened.receipt(run), indent=2))


@ledger.command(name="cap")
def ledger_cap(
    file: Path,
    /,
    *,
    unit: Annotated[Unit, Parameter(help="what the cap is for")],
    epsilon: Annotated[float, Parameter(help="the most that all runs together may spend")],
    delta: Annotated[float, Parameter(help="delta of all runs together")],
) -> None:
    """Give a ledger another cap for a unit, or a first one. The chain keeps every cap there was: a
    cap that is raised in the light of what runs found holds as if it had been as large from the
    beginning.

    Example: equipoise ledger cap ledger.db --unit record --epsilon 4 --delta 1e-5
    """
    from equipoise.privacy.ledger import Ledger
    from equipoise.privacy.ledger_costs import Cap

    cap = Cap(epsilon, delta)
    _check_there(file)
    with Ledger(file) as opened:
        opened.set_cap(unit, cap)
        for standing in opened.standings():
            print(standing)


def _check_there(file: Path) -> None:
    """Only a run makes a ledger: a name that was mistyped does not."""
    if not file.is_file():
        raise DataError(f"ledger={file}: there is no such file; a run with a ledger makes one")


def _paper(path: Path) -> dict[str, Any]:
    try:
        paper = documents.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no JSON"
        raise DataError(f"receipt={path} cannot be read: {reason}") from None
    if not isinstance(paper, dict):
        raise DataError(f"receipt={path} is none: it is no object of JSON")
    return paper
