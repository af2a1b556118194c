"""The command `equipoise plan`."""

from json import dumps, loads
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equipoise.cli.console import Json, one_thread, output, progress_bar, say
from equipoise.cli.flags import plain, with_flags
from equipoise.cli.text import comparison, noise_table, trade_off, ways_table
from equipoise.describe import plan_lines
from equipoise.errors import EquipoiseError, require
from equipoise.planning.plan import Plan, Question

QuestionFlags = with_flags(Question)


def plan(
    *,
    question: Annotated[QuestionFlags | None, Parameter(name="*")] = None,  # type: ignore[valid-type]
    json: Json = False,
    alone: Annotated[
        Path | None,
        Parameter(
            help="a silo's own file, read here and nowhere else: what this silo would reach by "
            "itself (task csv); no part of the plan, and of no --json"
        ),
    ] = None,
    save_plot: Annotated[
        Path | None,
        Parameter(help="picture of the trade-off over the budgets: .png, .svg or .html"),
    ] = None,
) -> None:
    """Should we train, how, and what will it be worth: the best local steps, rounds, step size,
    clip and noise for a privacy budget, beside every way that needs no budget.

    Nothing of the budget is spent: plans are tried in worlds drawn from public information. With
    --json and one budget the output is what `equipoise train --plan FILE` reads.

    Example: equipoise plan --task breast-cancer --epsilon 2 --clip 1 --trust secure-aggregation
    """
    from equipoise.reports.trade_off import check_picture

    if save_plot:
        check_picture(save_plot)
        folder = save_plot.parent
        require(folder.is_dir(), f"save_plot={save_plot}: there is no folder {folder}; make it")
    asked = plain(Question, question)
    require(asked is not None, "epsilon is missing: give epsilon, or max_tpr and fpr")
    assert asked
    own = _at_home(asked, alone) if alone else None
    try:
        plans = _plans(asked)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("no plan was made, and planning spends no budget") from None
    if not json:
        _show(plans)
    elif len(plans) == 1:
        print(plans[0].to_json())
    else:
        print(dumps({"plans": [loads(plan.to_json()) for plan in plans]}, indent=2))
    if own:
        say(own)
    if save_plot:
        _draw(plans, save_plot)


def _at_home(question: Question, path: Path) -> str:
    """For standard error: what a silo learns of its own records is no part of a plan."""
    from equipoise.planning.at_home import alone

    reached = alone(question, str(path))
    return (
        f"alone       your own records, by cross-validation: error {reached.error:.3f} ± "
        f"{reached.standard_error:.3f} (l2 = {reached.pull:g}); nothing of this was sent or stored"
    )


def _draw(plans: list[Plan], path: Path) -> None:
    from equipoise.reports.trade_off import draw_trade_off
    from equipoise.saved import write_whole

    try:
        write_whole(path, lambda part: draw_trade_off(plans, part))
    except OSError as error:
        raise EquipoiseError(f"save_plot={path} was not drawn: {error.strerror}") from None


def _plans(question: Question) -> list[Plan]:
    if question.task is None:
        from equipoise.planning.constants import plan_constants

        return [plan_constants(question, epsilon) for epsilon in question.epsilon]
    one_thread()
    from equipoise.planning.planner import plan_all

    with progress_bar("planning in worlds drawn from public information") as progress:
        return plan_all(question, progress=progress)


def _show(plans: list[Plan]) -> None:
    console = output()
    if len(plans) > 1:
        console.print(trade_off(plans))
        return
    for line in plan_lines(plans[0], ways=False):
        console.print(line)
    for table in (ways_table(plans[0]), comparison(plans[0]), noise_table(plans[0])):
        if table:
            console.print(table)
