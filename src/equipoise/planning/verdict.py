"""Go or no-go, and what is predicted: from a plan that was tried on stand-ins."""

import math

from equipoise.planning.plan import Prediction, Verdict
from equipoise.planning.problems import WORTH_WHILE
from equipoise.planning.surrogate import Kind
from equipoise.planning.trial import Trial
from equipoise.tasks.public import PublicOnly
from equipoise.tasks.task import Task


def judge(
    best: Trial,
    predicted: Prediction,
    untrained: Prediction,
    alone: PublicOnly | None,
    task: Task,
    kind: Kind,
) -> tuple[Verdict, str]:
    """The verdict, and why."""
    start = untrained.excess_loss or math.nan
    left, error = best.mean / start, best.standard_error / start
    leaves = f"the best plan leaves {left:.0%} ± {error:.0%} of the excess loss of not training"
    if left + 2 * error >= WORTH_WHILE:
        return "do not train", f"{leaves}: not clearly below {WORTH_WHILE:.0%}"
    if alone and task.measure:
        loss = float(task.measure(best.x).loss.mean())
        if alone.test_loss <= loss:
            return (
                "public data alone is as good",
                f"{leaves}, but a model trained on the {alone.records} public records alone has "
                f"test loss {alone.test_loss:.3g} against {loss:.3g}",
            )
    if _no_better(predicted, untrained):
        return (
            "do not train",
            f"{leaves}, but its predicted test error {predicted.test_error:.3g} is not below the "
            f"{untrained.test_error:.3g} of not training",
        )
    if kind == "made up":
        return (
            "inconclusive",
            f"{leaves}, but on made-up labels: whether the real ones can be learnt, only real "
            "public records can show (--proxy FILE)",
        )
    return "train", leaves


def _no_better(predicted: Prediction, untrained: Prediction) -> bool:
    error, start = predicted.test_error, untrained.test_error
    return error is not None and start is not None and error >= start


def predict(trial: Trial, task: Task, kind: Kind) -> Prediction:
    """What the plan is expected to reach; only real records say anything about test records."""
    error = task.measure(trial.x).error if task.measure and kind == "real records" else None
    spread = None if error is None else float(error.std() / math.sqrt(len(error)))
    return Prediction(
        excess_loss=trial.mean,
        excess_loss_se=trial.standard_error,
        test_error=None if error is None else float(error.mean()),
        test_error_se=spread,
        clipped=trial.clipped,
    )


def untrained_error(task: Task) -> float | None:
    """The error without training: of the initial model, or of the best constant answer."""
    if task.measure is None:
        return None
    start = float(task.measure(task.x0).error)
    return start if task.constant_error is None else min(start, task.constant_error)
