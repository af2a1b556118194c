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
    labels = _labels(result)
    _draw(top, result, "test_error", color="#0072B2", marker="o", label=labels["last"])
    _draw(bottom, result, "test_loss", color="#D55E00", marker="o", label=labels["last"])
    if "average" in labels:
        average = {"color": "#009E73", "marker": "s", "label": labels["average"]}
        _draw(top, result, "average_error", **average)
        _draw(bottom, result, "average_loss", **average)
        bottom.legend()
    if result.baseline_error is not None:
        top.axhline(
            result.baseline_error, color="#555555", linestyle="--", linewidth=1, label=BASELINE
        )
    top.set_ylabel(f"test error\n({result.error_name})")
    top.set_ylim(bottom=0)
    top.legend()
    bottom.set_ylabel("test loss\n(mean over records)")
    bottom.set_xlabel("communication round")
    bottom.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(_title(result), fontsize=11)
    return figure


def _draw(axes: Any, result: Result, name: str, **look: str) -> None:
    """A number of the curve against rounds, where it was measured."""
    known = [(p.round, value) for p in result.curve if (value := getattr(p, name)) is not None]
    axes.plot([round for round, _ in known], [value for _, value in known], **look)


def _labels(result: Result) -> dict[str, str]:
    """Of the lines that there are, and where there are two, which of them is returned."""
    if all(point.average_error is None for point in result.curve):
        return {"last": "after each round"}
    labels = {"last": "after each round", "average": "average of the rounds so far, weights k³"}
    labels[result.run.returns] += " (the last point is returned)"
    return labels


def _title(result: Result) -> str:
    run = result.run
    privacy = f"ε = {result.account.epsilon:.4g}, δ = {run.delta:g}, unit: one {run.unit}"
    return (
        f"{task_name(run.task)}, {run.algorithm}, {run.clients} clients: "
        f"{'not private' if run.simulation or result.vacuous else privacy}"
    )
