"""The learning curve of one run."""

from pathlib import Path

from equipoise.errors import EquipoiseError
from equipoise.result import Result


def draw_curve(result: Result, path: Path) -> None:
    """Test error and loss against rounds, as a picture."""
    try:
        import matplotlib
    except ImportError:
        raise EquipoiseError("drawing needs matplotlib: pip install 'equipoise[report]'") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    rounds = [point.round for point in result.curve]
    figure, (top, bottom) = pyplot.subplots(
        2, 1, sharex=True, figsize=(7, 5.5), layout="constrained"
    )
    top.plot(
        rounds,
        [point.test_error for point in result.curve],
        color="#0072B2",
        marker=".",
        label="after a round",
    )
    top.axhline(
        result.baseline_error,
        color="#555555",
        linestyle="--",
        linewidth=1,
        label="without training: initial model, or best constant answer",
    )
    top.set_ylabel(f"test error\n({result.error_name})")
    top.set_ylim(bottom=0)
    top.legend(frameon=False)
    bottom.plot(rounds, [point.test_loss for point in result.curve], color="#D55E00", marker=".")
    bottom.set_ylabel("test loss\n(mean over records)")
    bottom.set_xlabel("communication round")
    bottom.xaxis.get_major_locator().set_params(integer=True)
    spent = (
        "not private"
        if result.run.simulation
        else f"ε = {result.account.epsilon:.4g}, δ = {result.run.delta:g}, one {result.run.unit}"
    )
    figure.suptitle(
        f"{Path(result.run.task).name}, {result.run.algorithm}, {result.run.clients} clients: "
        f"{spent}",
        fontsize=11,
        parse_math=False,
    )
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
