"""The commands `equipoise train`, `show` and `evaluate`."""

import logging
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from equipoise.cli.console import Json, json_number, one_thread, output, say, watched
from equipoise.cli.flags import Device, plain, with_flags
from equipoise.cli.text import diagnostics, groups_table
from equipoise.describe import measure_lines, result_lines
from equipoise.errors import EquipoiseError, InvalidValue, require
from equipoise.measures import Measures
from equipoise.origin import Told, read_about
from equipoise.planning.plan import read_plan
from equipoise.result import Result
from equipoise.settings import Settings

if TYPE_CHECKING:
    from equipoise.charging import Budget
    from equipoise.fleets import Round
    from equipoise.saved import Claim

SettingsFlags = with_flags(Settings)
ConfigFile = Annotated[
    Path | None,
    Parameter(help="TOML file with settings, like a sweep's but without lists; flags override it"),
]
PlanFile = Annotated[
    Path | None,
    Parameter(help="a plan that `equipoise plan --json` wrote, instead of the settings"),
]


def train(
    *,
    settings: Annotated[SettingsFlags | None, Parameter(name="*")] = None,  # type: ignore[valid-type]
    config: ConfigFile = None,
    plan: PlanFile = None,
    anyway: Annotated[
        bool, Parameter(negative=(), help="train although the plan says not to")
    ] = False,
    device: Device = None,
    dry_run: Annotated[
        bool,
        Parameter(
            negative=(),
            help="say what would be spent and how long it would take, and spend and write nothing",
        ),
    ] = False,
    json: Json = False,
    out: Annotated[
        Path | None,
        Parameter(
            help="new folder for the result, the model, its guarantee and the curve; a run that "
            "was killed goes on from its last round when the same command is started again"
        ),
    ] = None,
    log: Annotated[
        str | None,
        Parameter(
            help="csv, tensorboard or mlflow: write the curve for other programs, too, into the "
            "folder of --out: figures on public records alone"
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        Parameter(
            help="file that counts what all runs on these records tell together, made if need be: "
            "this run is admitted whole before its first step, or refused"
        ),
    ] = None,
    cap_epsilon: Annotated[
        float | None,
        Parameter(
            help="the most that all runs of the ledger may spend on one unit, of the kind of this "
            "run; the first run needs it, later ones may leave it out"
        ),
    ] = None,
    cap_delta: Annotated[
        float | None, Parameter(help="delta of that cap, the same for all runs together")
    ] = None,
    about: Annotated[
        Path | None,
        Parameter(
            help="TOML file with what only you can say, for the statement: purpose, controller, "
            "contact, retention (all optional; docs/statement.md)"
        ),
    ] = None,
    salt: Annotated[
        Path | None,
        Parameter(
            help="file of 32 random bytes, made if need be: the result notes fingerprints of the "
            "data files under this salt, which you keep, and give to nobody"
        ),
    ] = None,
    client_log: Annotated[
        Path | None,
        Parameter(
            help="file for what clients notice about their own data; it is private, and theirs"
        ),
    ] = None,
) -> None:
    """Train privately, with all clients in this process, and state what was spent.

    Example: equipoise train --task breast-cancer --epsilon 2 --clip 1 --local-steps 4 --trust
    secure-aggregation
    """
    chosen = chosen_settings(plain(Settings, settings), plan, anyway)
    chosen = chosen.model_copy(update={"device": device}) if device else chosen
    if client_log:
        _keep_client_log(client_log)
    if dry_run:
        _tell_beforehand(chosen, out, (ledger, cap_epsilon, cap_delta), json)
        return
    from equipoise.charging import budget_of
    from equipoise.saved import check_log, claimed

    beforehand = Told(read_about(about) if about else None, salt=salt)
    if plan:
        beforehand = beforehand.planned(plan.read_bytes(), read_plan(plan).public)
    budget = budget_of(ledger, cap_epsilon, cap_delta)
    require(out is not None or log is None, f"log={log} needs a folder to write into: give --out")
    check_log(log)
    with claimed(out) if out else nullcontext() as claim:
        result = _trained(chosen, claim, budget, beforehand)
        try:
            if claim:
                missing = claim.save(result, log)
                say(f"saved in {out}" + (f"; {missing}" if missing else ""))
        finally:  # a disk may be full: what was spent is told all the same
            tell(result, json)
            for standing in budget.standings() if budget else ():
                say(f"ledger      {standing}")
    if result.failed:
        sys.exit(1)


def _tell_beforehand(
    settings: Settings,
    out: Path | None,
    budget: tuple[Path | None, float | None, float | None],
    json: bool,
) -> None:
    one_thread()
    from equipoise.estimate import dry_run
    from equipoise.saved import check_free

    if out:
        check_free(out)
    ledger, epsilon, delta = budget
    dry = dry_run(settings, ledger=ledger, cap_epsilon=epsilon, cap_delta=delta)
    console = output()
    if json:
        print(dry.to_json())
        return
    for number, line in enumerate(str(dry).splitlines()):
        console.print(line, style="bold red" if number < len(dry.result.notices) else None)


def _trained(
    settings: Settings, claim: "Claim | None", budget: "Budget | None", beforehand: Told
) -> Result:
    def watch(rounds: "Iterable[Round]", total: int) -> "Iterable[Round]":
        if claim and claim.begun:
            say(f"goes on after round {claim.begun} of {total}, nothing is spent twice")
        return watched(rounds, total)

    try:
        one_thread()
        from equipoise.training import train_within

        return train_within(claim, settings, watch, budget, beforehand)
    except KeyboardInterrupt as stop:
        cost = "nothing was saved, and nothing left this process: no budget is spent"
        if budget:
            cost += ", but what the ledger wrote down of the run stays there"
        if claim and claim.keep:
            cost = "the run stands where it stood; start the same again to go on from there"
        raise KeyboardInterrupt(str(stop) or cost) from None


def chosen_settings(settings: Settings | None, plan: Path | None, anyway: bool) -> Settings:
    if plan:
        require(
            settings is None,
            "plan and settings: a plan says everything; leave the other settings out",
        )
        return read_plan(plan).to_train(anyway)
    if settings is None:
        raise InvalidValue("task is missing: give --task and --epsilon, or --plan FILE")
    return settings


def show(folder: Path, /, *, json: Json = False) -> None:
    """Show a run that `train --out FOLDER` saved."""
    from equipoise.saved import load

    has_model = (folder / "model.safetensors").is_file()
    result = load(folder, model=has_model)
    if not has_model:
        say(f"{folder} holds the result of a run without its model, which was not written")
    tell(result, json)


def evaluate(
    folder: Path,
    /,
    *,
    data: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True, negative=(), help="files to evaluate on (tasks csv and libsvm)"
        ),
    ] = (),
    groups: Annotated[
        str | None,
        Parameter(
            help="a column of these records, such as ward or sex, which the bounds need not "
            "declare: measures are told for each of its groups too (task csv; default: that of the "
            "run, where the files have it)"
        ),
    ] = None,
    threshold: Annotated[
        float,
        Parameter(
            help="the probability from which sensitivity and specificity take a record for positive"
        ),
    ] = 0.5,
    json: Json = False,
) -> None:
    """Measure a saved model on the public test records of its task, or on files of your own: error
    and loss, and AUROC, calibration, sensitivity and the like with 95 % intervals, where the task
    says what the model's outputs mean.

    The figures are not noised: on private records, no guarantee covers them.
    """
    from equipoise.saved import load
    from equipoise.training import evaluate as measure

    result = load(folder)
    evaluation = measure(result, data, groups=groups, threshold=threshold)
    error, loss, measures = float(evaluation.error), float(evaluation.loss), evaluation.measures
    if json:
        document = {
            "error": json_number(error),
            "loss": json_number(loss),
            "error_name": result.error_name,
            "data": data,
            "covered": False,
            "measures": asdict(measures) if measures else None,
        }
        print(dumps(document))
        return
    on = ", ".join(data) if data else "the public test records of its task"
    print(
        f"error {error:.4f} ({result.error_name}), loss {loss:.4f}, on {on}: not noised, outside "
        "the guarantee"
    )
    if not measures:
        print("no other measures: the task does not say what the model's outputs mean")
        return
    for line in measure_lines(measures, parts=False):
        print(line)
    tell_groups(measures)


def tell(result: Result, json: bool) -> None:
    if json:
        print(result.to_json())
        return
    console, notices = output(), len(result.notices)
    for number, line in enumerate(result_lines(result, parts=False)):
        console.print(line, style="bold red" if number < notices else None)
    tell_groups(result.measures)
    if result.per_round:
        console.print(diagnostics(result))


def tell_groups(measures: Measures | None) -> None:
    if table := groups_table(measures):
        output().print(table)


def _keep_client_log(path: Path) -> None:
    """Into a file that only its owner may read. A log that cannot be written is lost in silence: an
    error would tell of it."""
    try:
        path.touch(0o600)
        handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InvalidValue(f"client_log={path} cannot be written: {error.strerror}") from None
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    log = logging.getLogger("equipoise.client")
    log.addHandler(handler)
    log.setLevel(logging.INFO)


__all__ = ["EquipoiseError", "evaluate", "show", "tell", "train"]
