"""What is known of a model beyond its error: the measures that medicine uses, with intervals.

Names and values alone, which a result keeps and everybody may read; `measuring` has the formulas.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple


class MeasureSpec(NamedTuple):
    """A measure in words, and what is best: a number to be near where neither end is."""

    words: str
    best: Literal["large", "small", 0, 1]

    def as_error(self, value: float) -> float:
        """Smaller is better, as the paper has it: 1 - metric."""
        return 1 - value if self.best == "large" else value

    @property
    def error_name(self) -> str:
        return f"1 - {self.words}" if self.best == "large" else self.words


MEASURES: dict[str, MeasureSpec] = {
    "auroc": MeasureSpec("AUROC", "large"),
    "average_precision": MeasureSpec("average precision", "large"),
    "brier": MeasureSpec("Brier score", "small"),
    "calibration_error": MeasureSpec("calibration error", "small"),
    "calibration_slope": MeasureSpec("calibration slope", 1),
    "calibration_intercept": MeasureSpec("calibration intercept", 0),
    "accuracy": MeasureSpec("accuracy", "large"),
    "balanced_accuracy": MeasureSpec("balanced accuracy", "large"),
    "sensitivity": MeasureSpec("sensitivity", "large"),
    "specificity": MeasureSpec("specificity", "large"),
    "specificity_at_90": MeasureSpec("specificity at sensitivity 0.9", "large"),
    "rmse": MeasureSpec("RMSE", "small"),
    "mae": MeasureSpec("MAE", "small"),
    "r2": MeasureSpec("R2", "large"),
}
LEADING = ("auroc", "accuracy", "rmse")
"""Of these the first that is there stands for all, where there is room for one."""
SHORT = ("auroc", "sensitivity", "specificity", "balanced_accuracy", "rmse", "mae", "r2")
"""Those that a group is shown by."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure on the test records, and the 95 % interval of what it would be on others like
    them.

    Without a value there are too few records for one, or it is not defined; without ends the
    interval is not known, or was not asked for.
    """

    value: float | None
    low: float | None = None
    high: float | None = None


Estimates = dict[str, Estimate]


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the test records: a group, or those of one client."""

    name: str
    records: int
    estimates: Estimates


@dataclass(frozen=True, slots=True)
class Measures:
    """All that is measured on public test records, by name.

    positives   how many records have the second of two classes; None where there are not two
    positive    what that class is called, where it has a name
    threshold   the probability from which sensitivity and specificity take a record for positive
    resamples   of the bootstrap; 0: no intervals
    unknown     why there is nothing, where there is nothing
    grouped_by  the column of `groups`
    clients     by client, where the task's test records have one
    """

    records: int
    estimates: Estimates
    positives: int | None = None
    positive: str = ""
    threshold: float | None = None
    resamples: int = 0
    unknown: str = ""
    grouped_by: str = ""
    groups: tuple[Part, ...] = ()
    clients: tuple[Part, ...] = ()

    def __getitem__(self, name: str) -> Estimate:
        return self.estimates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    @property
    def leading(self) -> str | None:
        """The measure that stands for all."""
        return next((name for name in LEADING if name in self.estimates), None)
