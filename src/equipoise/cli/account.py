"""The command `equipoise account`."""

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from equipoise.cli.console import Json, json_number, output
from equipoise.cli.text import accountants_table, accounts_table
from equipoise.errors import EquipoiseError, require
from equipoise.privacy.job import Job
from equipoise.privacy.promise import NEIGHBOURS_OF, Neighbours, Unit

if TYPE_CHECKING:
    from equipoise.privacy.accountants import Comparison


def account(
    *,
    rounds: Annotated[
        float, Parameter(help="how many noised releases there are, of the same kind")
    ],
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
    delta: Annotated[float, Parameter(help="delta of all rounds")] = 1e-5,
    clip: Annotated[
        float, Parameter(help="C, the largest L2 norm of what one unit adds to a release")
    ] = 1.0,
    rate: Annotated[
        float,
        Parameter(
            help="for unit record: probability with which a record is in the secret (Poisson) "
            "sample of a round"
        ),
    ] = 1.0,
    unit: Annotated[
        Unit, Parameter(help="what is hidden: all that one client holds, or one record")
    ] = "client",
    neighbours: Annotated[
        Neighbours | None,
        Parameter(
            help="what a unit's data are compared with: any other data (replace-one: sensitivity "
            "2C), a message of zero (zero-out, unit client: C), the data without the record "
            "(add-remove, unit record: C); default: both of the unit, with --compare replace-one"
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
    """The epsilon of a job that is given in numbers, or the noise that its budget needs.

    Nothing is trained and no data is read: the numbers may be those of any program that adds
    Gaussian noise to clipped sums.

    Example: equipoise account --epsilon 3.3 --delta 1e-5 --rounds 100 --clip 1 --compare
    """
    related = (neighbours,) if neighbours else NEIGHBOURS_OF[unit]
    count = _whole(rounds)
    jobs = [Job(count, epsilon, sigma, delta, clip, rate, unit, way) for way in related]
    if compare:
        _compare(jobs[0], json, figure)
    else:
        require(figure is None, f"figure={figure} shows a comparison: give --compare too")
        _spent(jobs, json)


def _whole(rounds: float) -> int:
    """As a float it is seen to be whole: what is read as an int would be rounded in silence."""
    require(
        rounds.is_integer(), f"rounds={rounds:g} is not a number of rounds: give a whole number"
    )
    return int(rounds)


def _spent(jobs: list[Job], json: bool) -> None:
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
