"""Go or no-go, and what is predicted: from a plan that was tried on stand-ins."""

import math
from typing import Any, Literal

from equipoise.planning.trial import Rehearsal
from equipoise.tasks.task import Task

WORTH_WHILE = 0.9  # a plan must leave less than this share of the loss of not training
Verdict = Literal["train", "do not train", "public data alone is as good"]


def judge(
    best: Rehearsal, untrained: float, alone: dict[str, Any] | None, task: Task
) -> tuple[Verdict, str]:
    left = best.mean / untrained
    error = best.standard_error / untrained
    said = f"the best plan leaves {left:.0%} ± {error:.0%} of the excess loss of not training"
    if left + 2 * error >= WORTH_WHILE:
        return "do not train", f"{said}: not clearly below {WORTH_WHILE:.0%}"
    if alone and task.measure:
        loss = float(task.measure(best.x).loss.mean())
        if alone["test_loss"] <= loss:
            return (
                "public data alone is as good",
                f"{said}, but a model trained on the {alone['records']} public records alone has "
                f"test loss "
                f"{alone['test_loss']:.3g} against {loss:.3g}",
            )
    return "train", said


def predict(tried: Rehearsal, task: Task) -> dict[str, Any]:
    predicted: dict[str, Any] = {
        "excess_loss": tried.mean,
        "excess_loss_se": tried.standard_error,
        "test_error": None,
        "test_error_se": None,
        "clipped": tried.clipped,
    }
    if task.measure:
        error = task.measure(tried.x).error
        predicted |= {
            "test_error": float(error.mean()),
            "test_error_se": float(error.std() / math.sqrt(len(error))),
        }
    return predicted
