"""How a task reads records for a model that is there already: to predict, and to tune it at home.

All that a reader knows comes from the result of the run (`Result.reading`), so a saved folder is
enough. It codes cells as training did; a label that is in a file to predict is not looked at.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.tasks.linear import Link
from equipoise.tasks.task import Table


class Inputs(NamedTuple):
    """Records without labels, in the order of their source.

    features   as the model sees them [n, features]; the last is 1
    kept       columns that are carried over to the predictions, as text
    changed    how many cells were clipped or filled, for each column where there are some
    odd        how many records were cut, filled up or are none at all
    """

    features: NDArray[np.float64]
    kept: dict[str, list[str]]
    changed: dict[str, int]
    odd: int

    def __repr__(self) -> str:
        return f"Inputs({len(self.features)} records)"


class Reader(Protocol):
    """What `predict` and `adapt` need of a linear task; `source` is a path or, for tables, columns
    by name."""

    @property
    def link(self) -> Link: ...

    @property
    def answers(self) -> tuple[str, ...]:
        """What is predicted, as the heading of a column: one for each class, or the value."""
        ...

    def inputs(self, source: Any, keep: Sequence[str] | None = None) -> Inputs:
        """The records of a source, whatever they hold. `keep` names the columns that are carried
        over; None: those that the model does not know."""
        ...

    def records(self, source: Any) -> Table:
        """The records of a source that have a label."""
        ...

    def answer(self, outputs: Tensor) -> NDArray[np.float64]:
        """What the outputs [n, outputs] of the model say, in the order of `answers`."""
        ...

    def coding(self) -> list[str]:
        """What stands for which input of the model, in sentences."""
        ...


def named_classes(label: str, classes: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"P({label}={name})" for name in classes)


def of_each_class(answers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probabilities of all classes [n, classes]; of two a link tells that of the second."""
    return np.stack([1 - answers, answers], -1) if answers.ndim == 1 else answers
