"""The learning curve of one run."""

from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError
from equipoise.reports.study import task_name
from equipoise.result import Result

BASELINE = "without training: the initial model, or the best constant if that is better"


def draw_curve(result: Result, path: Path) -> None:
    """Test error and loss against rounds, as a picture."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise EquipoiseError("drawing needs matplotlib: pip install 'equipoise[report]'") from None
    from equipoise.reports.drawing import styled

    with styled():
        learning_curve(result).savefig(path, dpi=150)


def learning_curve(result: Result) -> Any:
    """A figure of matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure((7, 5.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    rounds = [point.round for point in result.curve]
    errors = [point.test_error for point in result.curve]
    losses = [point.test_loss for point in result.curve]
    top.plot(rounds, errors, color="#0072B2", marker="o", label="after each round")
    if result.baseline_error is not None:
        top.axhline(
            result.baseline_error, color="#555555", linestyle="--", linewidth=1, label=BASELINE
        )
    top.set_ylabel(f"test error\n({result.error_name})")
    top.set_ylim(bottom=0)
    top.legend()
    bottom.plot(rounds, losses, color="#D55E00", marker="o")
    bottom.set_ylabel("test loss\n(mean over records)")
    bottom.set_xlabel("communication round")
    bottom.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(_title(result), fontsize=11)
    return figure


def _title(result: Result) -> str:
    run = result.run
    privacy = f"ε = {result.account.epsilon:.4g}, δ = {run.delta:g}, unit: one {run.unit}"
    return (
        f"{task_name(run.task)}, {run.algorithm}, {run.clients} clients: "
        f"{'not private' if run.simulation or result.vacuous else privacy}"
    )
