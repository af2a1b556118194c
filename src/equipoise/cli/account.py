"""The command `equipoise account`."""

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from equipoise.cli.console import Json, fail, json_number, output
from equipoise.cli.text import accountants_table, accounts_table, spending_table
from equipoise.describe import number
from equipoise.errors import EquipoiseError, InvalidValue, require
from equipoise.privacy.groups import together
from equipoise.privacy.job import Job
from equipoise.privacy.promise import NEIGHBOURS_OF, Neighbours, Promise, Unit

if TYPE_CHECKING:
    from equipoise.privacy.accountants import Comparison
    from equipoise.privacy.events import Account
    from equipoise.privacy.foreign.report import JobAccount


def account(
    file: Annotated[
        Path | None,
        Parameter(
            help="a job's own file: pyproject.toml of a Flower app (or its folder, or one Python "
            "file), NVFlare's config_fed_client.json, the state of an Opacus accountant or a "
            "dp-accounting event as JSON, [[phase]] in TOML; read, never run"
        ),
    ] = None,
    /,
    *,
    rounds: Annotated[
        float | None,
        Parameter(help="how many noised releases there are, of the same kind; rounds of a file"),
    ] = None,
    epsilon: Annotated[
        float | None, Parameter(help="the budget of all rounds; sigma follows")
    ] = None,
    sigma: Annotated[
        float | None,
        Parameter(
            help="standard deviation of the noise per coordinate of what the adversary sees in one "
            "round; epsilon follows"
        ),
    ] = None,
    delta: Annotated[
        float | None, Parameter(help="delta of all rounds; default: the file's own, or 1e-5")
    ] = None,
    clip: Annotated[
        float | None,
        Parameter(help="C, the largest L2 norm of what one unit adds to a release; default: 1"),
    ] = None,
    rate: Annotated[
        float | None,
        Parameter(
            help="for unit record: probability with which a record is in the secret (Poisson) "
            "sample of a round; default: 1"
        ),
    ] = None,
    unit: Annotated[
        Unit | None,
        Parameter(
            help="what is hidden: all that one client holds (default), one person, or one record"
        ),
    ] = None,
    neighbours: Annotated[
        Neighbours | None,
        Parameter(
            help="what a unit's data are compared with: any other data (replace-one: sensitivity "
            "2C), a message of zero (zero-out, unit client: C), the data without the record "
            "(add-remove, unit record: C); default: both of the unit, with --compare replace-one"
        ),
    ] = None,
    phase: Annotated[
        list[str] | None,
        Parameter(
            negative=(),
            help='one kind of release of several, as "rounds=100 sigma=20 clip=1 rate=1"; repeat '
            "it for each",
        ),
    ] = None,
    runs: Annotated[
        int, Parameter(help="how often all of it was done on the same data, with new noise")
    ] = 1,
    rows: Annotated[
        list[int] | None,
        Parameter(
            negative=(),
            consume_multiple=True,
            help="for so many units of one person together, as well: --rows 4 10",
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        Parameter(
            negative=(),
            help="a fact that a file does not have, as name=value; repeat it for each. What is "
            "missing is asked for by name",
        ),
    ] = None,
    compare: Annotated[
        bool,
        Parameter(negative=(), help="what other accountants ask for, and claim, side by side"),
    ] = False,
    figure: Annotated[
        Path | None,
        Parameter(help="with --compare: picture of epsilon against rounds, .png or .svg"),
    ] = None,
    json: Json = False,
) -> None:
    """The epsilon that a job really spends: from numbers, or from the files of the program that
    runs it.

    Nothing is trained, no data is read, and no foreign code is run. Numbers may be those of any
    program that adds Gaussian noise to clipped sums; of files it is said what they claim, what is
    spent, and what in them is no differential privacy. What a file does not say is asked for, never
    guessed.

    For instance:

    equipoise account --sigma 25.6 --rounds 100 --clip 1

    equipoise account --epsilon 3.3 --delta 1e-5 --rounds 100 --clip 1 --compare

    equipoise account --unit record --phase "rounds=900 sigma=1.1 rate=0.01" --phase "rounds=10
    sigma=30" --rows 4 10

    equipoise account my-flower-app --rounds 50

    equipoise account config_fed_client.json --rounds 20 --given version=2.8 --given
    parameters=7000000
    """
    if file or phase:
        numbers = {"epsilon": epsilon, "sigma": sigma, "clip": clip, "rate": rate}
        extra = [f"{name}={value:g}" for name, value in numbers.items() if value is not None]
        if file:
            extra += [f"unit={unit}"] * (unit is not None)
        require(
            not extra and not compare and not figure,
            f"{', '.join([*extra, '--compare'][:1])} is for one kind of release in numbers: give "
            "neither FILE nor --phase with it",
        )
        _foreign(file, rounds, delta, unit, neighbours, phase, runs, rows, given, json)
        return
    if rounds is None:
        what = "how many noised releases there are, or give a FILE, or --phase"
        raise InvalidValue(f"--rounds needs a value: {what}")
    require(not given, f"given={(given or [''])[0]} is a fact about a file: give the FILE")
    kind: Unit = unit or "client"
    related = (neighbours,) if neighbours else NEIGHBOURS_OF[kind]
    require(
        runs == 1 or sigma is not None, f"runs={runs} needs sigma: epsilon is the budget of all"
    )
    require(runs >= 1, f"runs={runs} is not a number of runs")
    require(all(k >= 1 for k in rows or ()), f"rows={rows}: give whole numbers >= 1")
    count = _whole(rounds) * runs
    jobs = [
        Job(
            count,
            epsilon,
            sigma,
            1e-5 if delta is None else delta,
            1.0 if clip is None else clip,
            1.0 if rate is None else rate,
            kind,
            way,
        )
        for way in related
    ]
    if compare:
        _compare(jobs[0], json, figure)
    else:
        require(figure is None, f"figure={figure} shows a comparison: give --compare too")
        _spent(jobs, json, rows or [])


def _foreign(
    file: Path | None,
    rounds: float | None,
    delta: float | None,
    unit: Unit | None,
    neighbours: Neighbours | None,
    phase: list[str] | None,
    runs: int,
    rows: list[int] | None,
    given: list[str] | None,
    json: bool,
) -> None:
    """What a file, or phases, say; what is missing is asked for at the end."""
    from equipoise.privacy.foreign.report import account as account_of

    report = account_of(
        file,
        phases=phase or (),
        unit=unit or "client",
        runs=runs,
        delta=delta,
        rows=rows or (),
        rounds=None if rounds is None else _whole(rounds),
        given=given or (),
    )
    if neighbours:
        kept = tuple(spent for spent in report.spends if spent.neighbours == neighbours)
        require(
            bool(kept) or not report.spends,
            f"neighbours={neighbours} has no meaning for unit={report.unit}",
        )
        report = report.model_copy(update={"spends": kept})
    if json:
        print(report.model_dump_json(indent=2))
    else:
        _print(report)
    if report.asks:
        fail("; ".join(report.asks))


def _print(report: "JobAccount") -> None:
    console = output()
    for spent in report.spends:
        promise = Promise(1.0, spent.delta, report.unit, spent.neighbours)
        for caution in promise.cautions(1, spent.epsilon):
            console.print(f"{spent.neighbours}: {caution}", style="bold red")
    runs = f", {report.runs} runs" if report.runs > 1 else ""
    console.print(f"{report.engine}{runs}; delta = {report.delta:g}; unit: {report.unit}")
    lines = [("claims", claim) for claim in report.claims]
    lines += [("FALSE", verdict) for verdict in report.verdicts]
    lines += [("NO DP", reason) for reason in report.void]
    lines += [("released", line) for line in _released(report)]
    for label, sentence in lines:
        style = "bold red" if label in ("FALSE", "NO DP") else None
        console.print(f"{label:<12}{sentence}", style=style)
    if report.spends:
        if report.void:
            console.print(f"{'spends':<12}infinity; what the noise alone would be:")
        console.print(spending_table(report.spends))
    for spent in report.spends:
        for more in spent.several:
            at = f"epsilon = {number(more.epsilon)} at delta = {more.delta:.4g}"
            console.print(f"{spent.neighbours}, {more.units} units together: {at}")
    for sentence in report.beside:
        console.print(f"{'besides':<12}{sentence}")


def _released(report: "JobAccount") -> list[str]:
    """What was read: once, where both relations have the same."""
    ways = [*report.parts]
    alike = len({*report.parts.values()}) == 1
    lines = []
    for way in ways[:1] if alike else ways:
        for part in report.parts[way]:
            times = f"{part.rounds * report.runs:,} times"
            if part.noise is None:
                line = f"{times}, each epsilon = {number(part.epsilon)}"
            else:
                sample = "" if part.rate == 1 else f", of samples with rate {part.rate:g}"
                line = f"{times}, noise = {number(part.noise)} C{sample}"
            lines.append(line if alike else f"{line} ({way})")
    return lines


def _whole(rounds: float) -> int:
    """As a float it is seen to be whole: what is read as an int would be rounded in silence."""
    require(
        rounds.is_integer(), f"rounds={rounds:g} is not a number of rounds: give a whole number"
    )
    return int(rounds)


def _spent(jobs: list[Job], json: bool, rows: list[int]) -> None:
    """One account for each neighbouring relation."""
    job, accounts = jobs[0], [job.account() for job in jobs]
    if json:
        lines = [
            {
                "neighbours": job.neighbours,
                "sensitivity": account.sensitivity,
                "sigma": account.sigma,
                "mu": account.mu,
                "epsilon": json_number(account.epsilon),
                "epsilon_lower": account.epsilon_lower and json_number(account.epsilon_lower),
                "exact": account.exact,
                **_several(account, job.delta, rows),
            }
            for job, account in zip(jobs, accounts, strict=True)
        ]
        print(dumps({**_numbers(job), "accounts": lines}, indent=2))
        return
    console = output()
    for job, account in zip(jobs, accounts, strict=True):
        for caution in job.promise.cautions(1, account.epsilon):
            console.print(f"{job.neighbours}: {caution}", style="bold red")
    console.print(_headline(job))
    console.print(accounts_table(accounts))
    for job, account in zip(jobs, accounts, strict=True):
        for count in rows:
            more = together(account, job.delta, count)
            at = f"epsilon = {number(more.epsilon)} at delta = {more.delta:.4g}"
            console.print(f"{job.neighbours}, {count} units together: {at}")


def _several(account: "Account", delta: float, rows: list[int]) -> dict[str, Any]:
    if not rows:
        return {}
    shown = [together(account, delta, count) for count in rows]
    return {
        "several": [
            {"units": t.units, "epsilon": json_number(t.epsilon), "delta": t.delta} for t in shown
        ]
    }


def _compare(job: Job, json: bool, path: Path | None) -> None:
    from equipoise.privacy.accountants import compare

    if path:
        from equipoise.reports.figures.accountants import check_figure

        check_figure(path)
    comparison = compare(job)
    if json:
        print(comparison.model_dump_json(indent=2))
    else:
        console = output()
        relation = f"neighbours: {job.neighbours}, sensitivity {job.sensitivity:g}"
        console.print(f"{_headline(job)}; {relation}")
        console.print(accountants_table(comparison))
        for row in comparison.rows:
            if row.no_claim:
                silent = f"{row.accountant} at sigma = {comparison.sigma:.4g}"
                console.print(f"no claim by {silent}: {row.no_claim}")
    if path:
        _draw(comparison, path)


def _draw(comparison: "Comparison", path: Path) -> None:
    from equipoise.reports.figures.accountants import draw_accountants
    from equipoise.saved import write_whole

    try:
        write_whole(path, lambda part: draw_accountants(comparison, part))
    except OSError as error:
        raise EquipoiseError(f"figure={path} was not drawn: {error.strerror}") from None


def _numbers(job: Job) -> dict[str, Any]:
    return {
        "rounds": job.rounds,
        "delta": job.delta,
        "clip": job.clip,
        "rate": job.rate,
        "unit": job.unit,
    }


def _headline(job: Job) -> str:
    sample = "" if job.rate == 1 else f" of samples with rate {job.rate:g}"
    releases = "1 release" if job.rounds == 1 else f"{job.rounds} releases"
    return f"{releases}{sample}, C = {job.clip:g}, delta = {job.delta:g}; unit: {job.unit}"
