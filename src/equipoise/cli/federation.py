"""The commands `equipoise federation ...`."""

from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from equipoise.cli.console import Json, one_thread, output, say, watched
from equipoise.cli.flags import plain, with_flags
from equipoise.cli.train import chosen_settings, tell
from equipoise.errors import DataError, require
from equipoise.settings import Settings

if TYPE_CHECKING:
    from equipoise.federation.agreement import Agreement
    from equipoise.fleets.flower.lead import FlowerLink
    from equipoise.result import Result

SettingsFlags = with_flags(Settings)

federation = App(
    name="federation",
    help="Train across separate machines: the link between them, and the lead's commands.",
)


@federation.command(name="propose")
def federation_propose(
    *,
    silos: Annotated[
        tuple[Path, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            help="the .pub files of the silos, which are the clients in this order",
        ),
    ],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="the agreement, a new file")],
    records: Annotated[
        tuple[int, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            help="for unit record or person: how many each silo has, in the order of the silos; "
            "these numbers become public",
        ),
    ] = (),
    settings: Annotated[SettingsFlags | None, Parameter(name="*")] = None,  # type: ignore[valid-type]
    plan: Annotated[
        Path | None,
        Parameter(help="a plan that `equipoise plan --json` wrote, instead of the settings"),
    ] = None,
    anyway: Annotated[
        bool, Parameter(negative=(), help="propose although the plan says not to train")
    ] = False,
) -> None:
    """Write an agreement: everything that a run between silos is, without a path of any machine.

    Send it to every silo, whose operator looks at it with `equipoise silo check`, and agrees by
    starting `equipoise silo run` with it. It holds the bounds file's text, and the hash of a task
    file, which silos need a copy of. Settings are those of `equipoise train`; of files only the
    bounds are read.

    Example: equipoise federation propose --plan plan.json --silos a.pub b.pub c.pub --out
    agreement.json
    """
    one_thread()
    from equipoise.describe import agreed_lines
    from equipoise.federation.agreement import write_agreement
    from equipoise.federation.lead import beforehand, propose
    from equipoise.federation.part import lead_part
    from equipoise.fleets.keys import read_public

    chosen = chosen_settings(plain(Settings, settings), plan, anyway)
    keys = [read_public(path) for path in silos]
    agreement = propose(chosen, keys, records or None)
    file = chosen.task if agreement.task_file else None
    features = chosen.features
    part = lead_part(agreement, task_file=file, proxy=chosen.proxy, features=features)
    result = beforehand(agreement, part)
    write_agreement(agreement, out)
    for line in agreed_lines(result):
        output().print(line)
    say(f"written to {out}: send it to every silo")


@federation.command(name="lead")
def federation_lead(
    agreement: Path,
    /,
    *,
    link: Annotated[
        Path, Parameter(help="the folder of the link, which `equipoise federation link` runs here")
    ],
    out: Annotated[
        Path, Parameter(help="new folder for the result, the model, guarantee.md and the curve")
    ],
    test: Annotated[
        tuple[str, ...],
        Parameter(consume_multiple=True, negative=(), help="files with public test records"),
    ] = (),
    proxy: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True, negative=(), help="files with public records, for a warm start"
        ),
    ] = (),
    groups: Annotated[
        str | None, Parameter(help="a column of the test records: measures are told by its groups")
    ] = None,
    task_file: Annotated[
        str | None, Parameter(help="the task file, where the agreement is about one")
    ] = None,
    features: Annotated[
        str | None, Parameter(help="the encoder's file, where the agreement is about one")
    ] = None,
    patience: Annotated[
        float, Parameter(help="seconds that a silo may be away before the run stops and names it")
    ] = 60.0,
    json: Json = False,
) -> None:
    """Lead the run of an agreement: ask the silos round by round, average, and write the result.

    If anything dies (this process, the link, a silo), start the same command again: the silos
    answer what they were asked before with the same bytes, and nothing is spent twice.

    Example: equipoise federation lead agreement.json --link hub --out run-1 --test public.csv
    """
    one_thread()
    from equipoise.federation.agreement import read_agreement
    from equipoise.federation.lead import lead
    from equipoise.federation.part import lead_part
    from equipoise.fleets.flower.lead import FlowerLink
    from equipoise.saved import claimed

    agreed = read_agreement(agreement)
    nodes = {member.name: member.node for member in agreed.silos}
    with FlowerLink(link, nodes, say, patience) as way:
        if _is_done(out, agreed):
            say(f"{out} holds the result of this agreement: the silos are told that it is over")
            _dismiss(agreed, way)
            return
        task = lead_part(agreed, test, proxy, groups, task_file, features)
        with claimed(out) as claim:
            result = _led(lambda: lead(agreed, task, way, watched))
            try:
                missing = claim.save(result)
                say(f"saved in {out}" + (f"; {missing}" if missing else ""))
            finally:
                tell(result, json)
        _dismiss(agreed, way)


def _led(train: "Callable[[], Result]") -> "Result":
    try:
        return train()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "start the same command again to go on: nothing is spent twice"
        ) from None


def _is_done(out: Path, agreement: "Agreement") -> bool:
    """Whether the folder holds the result of this agreement."""
    from equipoise.saved import load

    with suppress(DataError):
        federated = load(out, model=False).federated
        return federated is not None and federated.agreement == agreement.name
    return False


def _dismiss(agreement: "Agreement", link: "FlowerLink") -> None:
    from equipoise.federation.lead import dismiss

    if trouble := dismiss(agreement, link):
        say(f"{trouble}; what it keeps for the run is wiped by `equipoise ledger close` there")


@federation.command(name="link")
def federation_link(
    folder: Path,
    /,
    *,
    silos: Annotated[
        tuple[Path, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            help="the .pub files of all silos; the link knows these and no others",
        ),
    ],
    name: Annotated[
        str, Parameter(help="the name or address by which silos reach this machine")
    ] = "localhost",
    port: Annotated[
        int, Parameter(help="the one port that silos need; 0: any that is free")
    ] = 9092,
    bind: Annotated[
        str | None,
        Parameter(
            help="the address to listen at (default: all of this machine, or the loopback address "
            "alone if the name is localhost)"
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        Parameter(help="a TLS certificate of your own: the authority's file, which silos need too"),
    ] = None,
    certificate: Annotated[
        Path | None, Parameter(help="... the certificate for the name, with its chain")
    ] = None,
    key: Annotated[Path | None, Parameter(help="... and its private key")] = None,
    json: Json = False,
) -> None:
    """Run the link between a lead and its silos until Ctrl-C or SIGTERM: Flower's SuperLink, with
    TLS, which admits the silos whose keys it is given, and runs no app.

    Run it on the lead's machine. FOLDER keeps all it needs: its database, so that it may be
    stopped and started again; the secret by which the lead is known, which makes whoever can read
    this folder the lead; its certificate, made on the first start unless you bring your own; and
    link.log. Silos connect from their side, so only the link's port must be open. Give every silo
    the file FOLDER/ca.pem and the address NAME:PORT.

    From other machines the port takes signed requests of these silos alone. Flower's other
    interfaces answer this machine only: put no proxy on it before the port.

    Example: equipoise federation link hub --name lead.example.org --silos a.pub b.pub c.pub
    """
    from equipoise.fleets.certificates import Tls
    from equipoise.fleets.flower.superlink import run_link
    from equipoise.fleets.keys import read_public

    own = (ca, certificate, key)
    require(
        all(own) or not any(own),
        "ca, certificate and key: give all three files, or none, and the link makes its own",
    )
    tls = Tls(ca, certificate, key) if ca and certificate and key else None
    if bind is None:
        bind = "127.0.0.1" if _is_here(name) else "0.0.0.0"

    def ready(link: str) -> None:
        document = {
            "link": link,
            "ca": str(folder / "ca.pem"),
            "silos": [silo.name for silo in known],
        }
        print(dumps(document), flush=True)

    known = [read_public(path) for path in silos]
    run_link(
        folder,
        known,
        name=name,
        port=port,
        bind=bind,
        tls=tls,
        say=say,
        ready=ready if json else None,
    )


def _is_here(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
