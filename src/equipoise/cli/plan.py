"""The command `equipoise plan`."""

from json import dumps, loads
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equipoise.cli.console import Json, errors, one_thread, output
from equipoise.cli.flags import plain, with_flags
from equipoise.cli.text import comparison, noise_table, trade_off
from equipoise.describe import plan_lines
from equipoise.errors import EquipoiseError, require
from equipoise.planning.plan import Plan, Question

QuestionFlags = with_flags(Question)


def plan(
    *,
    question: Annotated[QuestionFlags, Parameter(name="*")],  # type: ignore[valid-type]
    json: Json = False,
    save_plot: Annotated[
        Path | None,
        Parameter(help="picture of the trade-off over the budgets: .png, .svg or .html"),
    ] = None,
) -> None:
    """Find the best local steps, rounds, step size, clip and noise for a privacy budget, and
    whether to train at all.

    Nothing of the budget is spent: plans are tried on stand-ins made of public records. With --json
    and one budget the output is what `equipoise train --plan FILE` reads.

    Example: equipoise plan --task breast-cancer --epsilon 2 --clip 1 --trust secure-aggregation
    """
    from equipoise.reports.trade_off import check_picture

    if save_plot:
        check_picture(save_plot)
        folder = save_plot.parent
        require(folder.is_dir(), f"save_plot={save_plot}: there is no folder {folder}; make it")
    asked = plain(Question, question)
    require(asked is not None, "epsilon is missing: give a budget")
    assert asked
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
    if save_plot:
        _draw(plans, save_plot)


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

    with errors.status("planning on public stand-ins"):
        return plan_all(question)


def _show(plans: list[Plan]) -> None:
    console = output()
    if len(plans) > 1:
        console.print(trade_off(plans))
        return
    for line in plan_lines(plans[0]):
        console.print(line)
    for table in (comparison(plans[0]), noise_table(plans[0])):
        if table:
            console.print(table)
