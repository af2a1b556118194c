"""The commands `equipoise silo check` and `equipoise silo run`: for whoever operates a silo."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from equipoise.cli.console import one_thread, output, say
from equipoise.cli.flags import Device
from equipoise.device import HOST, check_device
from equipoise.errors import InvalidValue, require

if TYPE_CHECKING:
    from equipoise.federation.agreement import Agreement
    from equipoise.tasks import Task

silo = App(
    name="silo",
    help="Take part in a run with one's own records, on one's own machine: look at an agreement, "
    "and agree to it.",
)

Data = Annotated[
    str | None,
    Parameter(help="your own records: the file or folder that is this client's, and no other's"),
]
Person = Annotated[
    str | None,
    Parameter(
        help="for unit person and task libsvm: your file of names, which says for each line of "
        "your data whose it is"
    ),
]
TaskFile = Annotated[
    str | None, Parameter(help="your copy of the task file, where the agreement is about one")
]
Features = Annotated[
    str | None, Parameter(help="your copy of the encoder's file, where the agreement is about one")
]
LedgerFile = Annotated[
    Path | None, Parameter(help="your ledger: what all runs on your records may cost together")
]
CapEpsilon = Annotated[
    float | None,
    Parameter(help="for a ledger that is new: the most that all runs together may spend, ever"),
]
CapDelta = Annotated[float | None, Parameter(help="... and at which delta that is")]
Fellows = Annotated[
    tuple[Path, ...],
    Parameter(
        consume_multiple=True,
        negative=(),
        help=".pub files of other silos that you got from them and not from the lead: those of the "
        "agreement must be the same. Needed under trust=secure-aggregation",
    ),
]


@silo.command(name="check")
def silo_check(
    agreement: Path,
    /,
    *,
    data: Data = None,
    person: Person = None,
    key: Annotated[Path | None, Parameter(help="your .key file: which silo you are")] = None,
    name: Annotated[
        str | None, Parameter(name="--silo", help="or its name in the agreement")
    ] = None,
    task_file: TaskFile = None,
    features: Features = None,
    fellows: Fellows = (),
    ledger: LedgerFile = None,
    cap_epsilon: CapEpsilon = None,
    cap_delta: CapDelta = None,
) -> None:
    """Look at an agreement before agreeing to it: what would be trained, what it would spend, what
    becomes of your own file, and what would remain of your cap. Sends nothing, writes nothing.

    The exit code is 0 if all is fine, 1 if there is something that a person should look at, in your
    file or among the keys, 2 if you cannot take part like this.

    Example: equipoise silo check agreement.json --key clinic-a.key --data mine.csv --ledger
    ledger.db
    """
    one_thread()
    from equipoise.charging import budget_of
    from equipoise.federation.agreement import read_agreement
    from equipoise.federation.part import silo_part
    from equipoise.federation.silo import prepared_for

    agreed = read_agreement(agreement)
    # of a table all else is said below
    _show_log(logging.WARNING if agreed.run.label else logging.INFO)
    index = _index(agreed, key, name)
    _check_fellows(agreed, fellows)
    part = silo_part(agreed, index, data, task_file, person, features)
    ready, budget = prepared_for(agreed, index, part), budget_of(ledger, cap_epsilon, cap_delta)
    _show(agreed, index, part)
    if budget:
        for standing in budget.after(ready, agreed.name):
            output().print(f"ledger then {standing}")
    code = _look_at_file(agreed, data, person)
    if lacking := _lacks_fellows(agreed, index, fellows):
        say(lacking)
        code = max(code, 1)
    say("nothing was sent or written; `equipoise silo run` with the same agreement agrees to it")
    sys.exit(code)


@silo.command(name="run")
def silo_run(
    agreement: Path,
    /,
    *,
    key: Annotated[Path, Parameter(help="your .key file, from `equipoise keys new`")],
    link: Annotated[str, Parameter(help="HOST:PORT of the link")],
    ledger: Annotated[
        Path,
        Parameter(
            help="your ledger, made if it is not there; every release is in it before it leaves"
        ),
    ],
    data: Data = None,
    person: Person = None,
    ca: Annotated[
        Path | None,
        Parameter(help="the link's ca.pem (default: the authorities that this machine trusts)"),
    ] = None,
    task_file: TaskFile = None,
    features: Features = None,
    fellows: Fellows = (),
    cap_epsilon: CapEpsilon = None,
    cap_delta: CapDelta = None,
    hold: Annotated[
        float,
        Parameter(
            help="seconds: answers leave at multiples of this time after a question came, so that "
            "they do not show how long the work took, which depends on how many records you have"
        ),
    ] = 0.0,
    device: Device = None,
) -> None:
    """Agree to exactly this agreement, and answer the lead's questions until the run is over.

    One process; it connects from here to the link, and opens no port. Noise is made here, as much
    as follows from the agreement; the lead is told a round's number and a vector, or that you
    refuse. Your ledger reserves the whole run before the first round, and a run that does not fit
    under its cap is refused. If this process dies, start it again: nothing is spent twice.

    Example: equipoise silo run agreement.json --key clinic-a.key --data mine.csv --ledger ledger.db
    --cap-epsilon 3.3 --cap-delta 1e-5 --link lead.example.org:9092 --ca ca.pem
    """
    one_thread()
    _show_log(logging.INFO)
    from equipoise.charging import ABOUT, Budget, cost_of
    from equipoise.federation.agreement import read_agreement
    from equipoise.federation.part import silo_part
    from equipoise.federation.silo import Silo, prepared_for
    from equipoise.fleets.flower.silo import serve
    from equipoise.fleets.keys import read_private
    from equipoise.privacy.ledger import Ledger
    from equipoise.tasks.placing import chosen_device, placed

    check_device(device or HOST)
    agreed, keys = read_agreement(agreement), read_private(key)
    index = agreed.index(keys.public())
    _check_fellows(agreed, fellows)
    lacking = _lacks_fellows(agreed, index, fellows)
    require(not lacking, lacking)
    unit = agreed.run.unit
    part = silo_part(agreed, index, data, task_file, person, features)
    part = placed(part, chosen_device(device or HOST, part, unit), unit)
    ready, budget = prepared_for(agreed, index, part), Budget(ledger, cap_epsilon, cap_delta)
    with Ledger(ledger) as books:
        here = Silo(agreed, index, ready, books, keys.mask)
        about = agreed.run.model_dump(mode="json", include={*ABOUT})
        books.admit(agreed.name, cost_of(ready), budget.caps(agreed.run), **about)
        _show(agreed, index, part)
        say(f"waiting for the lead at {link}")
        serve(here.answer, link, ca, keys.node, hold=hold, say=say)


def _index(agreement: "Agreement", key: Path | None, name: str | None) -> int:
    """Which silo is here."""
    from equipoise.fleets.keys import read_private

    names = [member.name for member in agreement.silos]
    require(key is None or name is None, "key and silo: give one of the two")
    if key:
        return agreement.index(read_private(key).public())
    if name is None:
        raise InvalidValue(
            f"silo is missing: give your key (--key FILE), or your name (--silo {names[0]})"
        )
    require(name in names, f"silo={name} is not in the agreement: it names {', '.join(names)}")
    return names.index(name)


def _check_fellows(agreement: "Agreement", fellows: tuple[Path, ...]) -> None:
    from equipoise.fleets.keys import read_public

    agreed = {(member.node, member.mask) for member in agreement.silos}
    for path in fellows:
        keys = read_public(path)
        require(
            (keys.node, keys.mask) in agreed,
            f"fellows: the keys in {path} are none of the agreement: somebody else may take the "
            f"place of {keys.name}; do not agree before you know why",
        )


def _lacks_fellows(agreement: "Agreement", index: int, fellows: tuple[Path, ...]) -> str:
    """Masks hide a message from whoever wrote the agreement only if enough of its keys are not the
    writer's own: of N silos c may collude, so N - c must be honest, oneself among them."""
    from equipoise.fleets.keys import read_public

    run = agreement.run
    if run.trust == "local":
        return ""
    others = {member.mask for place, member in enumerate(agreement.silos) if place != index}
    needed = len(agreement.silos) - (run.colluding or 0) - 1
    known = len({read_public(path).mask for path in fellows} & others)
    if known >= needed:
        return ""
    return (
        f"fellows: {known} of {needed} known: under trust={run.trust} whoever wrote the agreement "
        "could have put keys of its own in the place of other silos', and would read your "
        f"message; get the .pub files of {needed} of {', '.join(_others(agreement, index))} from "
        "themselves, and give them (--fellows FILES)"
    )


def _others(agreement: "Agreement", index: int) -> list[str]:
    return [member.name for place, member in enumerate(agreement.silos) if place != index]


def _show(agreement: "Agreement", index: int, part: "Task") -> None:
    from equipoise.describe import agreed_lines
    from equipoise.federation.lead import beforehand

    console = output()
    for line in agreed_lines(beforehand(agreement, part)):
        console.print(line)
    console.print(f"you are     {agreement.silos[index].name}")


def _look_at_file(agreement: "Agreement", data: str | None, person: str | None) -> int:
    """What training makes of one's own file, and the exit code for that."""
    from equipoise.federation.part import tried

    look = tried(agreement, data, person) if data else None
    if look is None:
        return 0
    output().print(str(look))
    return look.code


def _show_log(level: int) -> None:
    """What this silo notices about its own records is said here, and nowhere else."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for name in ("equipoise.client", "equipoise.silo"):
        log = logging.getLogger(name)
        log.addHandler(handler)
        log.setLevel(level)
