"""What clients that correct themselves remember of a message: that it was clipped, or all that
happened to it."""

from typing import TYPE_CHECKING, Any

from equipoise.algorithms.algorithm import Option, Options
from equipoise.errors import require

if TYPE_CHECKING:
    from torch import Tensor

FEEDBACK = Option(
    "clipped",
    "what clients of FedSplit, Clip21-SGD2M and Fed-alpha-NormEC remember of a message: it as "
    "clipped, or as released, so that noise is corrected in later rounds, too (trust local)",
    choices=("clipped", "released"),
)


def remembered(update: "Tensor", release: "Tensor", clip: Any, options: Options) -> "Tensor":
    """The message as its client remembers it."""
    from equipoise.privacy.clip import clip as clipped

    return release if hears_release(options) else clipped(update, clip)


def hears_release(options: Options) -> bool:
    return options.get("feedback") == "released"


def check_feedback(settings: Any) -> None:
    require(
        not hears_release(settings.options) or settings.trust == "local",
        "feedback=released under trust=secure-aggregation, where no message is released by itself: "
        "use clipped",
    )
