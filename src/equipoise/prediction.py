"""What a trained model says of records that it has not seen: `Result.predict`, `Result.model` and
the command `equipoise predict`. A label is neither needed nor looked at."""

import csv
import os
from collections.abc import Sequence
from io import StringIO
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from equipoise.errors import DataError, require
from equipoise.result import Result
from equipoise.tasks import TaskOptions, load_encoder, load_network, load_reader
from equipoise.tasks.encoder import Encoder, Head, read_encoder
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.own import NOT_TO_BE_RELEASED


class Predictions(NamedTuple):
    """One row for each record of the source, in its order.

    kept      the columns that were carried over, as text
    names     what the columns of `values` are called: P(label=class), or the value
    values    probabilities [n, classes], or values [n, 1]
    changed   how many cells were clipped or filled as in training, for each column with some
    odd       how many records had too few or too many cells, or were none at all
    """

    kept: dict[str, list[str]]
    names: tuple[str, ...]
    values: NDArray[np.float64]
    changed: dict[str, int]
    odd: int

    @property
    def rows(self) -> int:
        return len(self.values)

    def columns(self) -> dict[str, list[Any]]:
        """All columns by name: what was carried over, or else the number of the row, from 1."""
        kept = self.kept or {"row": [*range(1, self.rows + 1)]}
        values = zip(self.names, self.values.T.tolist(), strict=True)
        return {**kept, **dict(values)}

    def as_csv(self) -> str:
        """Numbers are written so that they read back exactly."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = self.columns()
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        return text.getvalue()

    def summary(self) -> str:
        """What a reader must know of how the records were read, in a sentence."""
        cells = ", ".join(f"{name} {count}" for name, count in self.changed.items())
        sentence = f"{self.rows} rows; cells clipped or filled as in training: {cells or 'none'}"
        odd = f"; rows with too few or too many cells, or unreadable: {self.odd}"
        return sentence + (odd if self.odd else "")


def predictions(result: Result, source: Any, keep: Sequence[str] | None = None) -> Predictions:
    """What the model says of the records of a file, or of a table. `keep` names the columns that
    are carried over; None: those that the model does not know."""
    reader = load_reader(result.run.task, result.reading)
    inputs = reader.inputs(source, keep)
    weight = _matrix(result)
    if inputs.features.shape[1] != weight.shape[1]:
        raise DataError("the result does not fit its model: its columns are not those of the model")
    outputs = torch.from_numpy(inputs.features) @ weight.T
    values = reader.answer(outputs)
    return Predictions(inputs.kept, reader.answers, values, inputs.changed, inputs.odd)


def predict(result: Result, source: Any) -> Any:
    """Probabilities [n, classes] or values [n] as a NumPy array; of a pandas frame, a frame with
    its index."""
    made = predictions(result, source, ())
    if hasattr(source, "columns") and hasattr(source, "index"):
        return type(source)(made.values, index=source.index, columns=list(made.names))
    return made.values[:, 0] if len(made.names) == 1 else made.values


def with_features(result: Result, path: str) -> Result:
    """The result, with the encoder of this file for its model."""
    encoder = read_encoder(path)
    check_encoder(result, encoder)
    return result.model_copy(update={"module": encoder})


def model_of(result: Result) -> nn.Module:
    """The trained torch module, for use: of a linear model an nn.Linear on coded features, whose
    outputs are logits (of the second class, where there are two) or the scaled value; of a network
    the task's own module."""
    module = _encoded(result) or _network(result) or _linear(result)
    if result.adapted:
        setattr(module, NOT_TO_BE_RELEASED, True)
    return module


def _encoded(result: Result) -> nn.Module | None:
    """The encoder and the linear head that was trained on its features; None without an
    encoder."""
    if "encoder" not in result.reading:
        return None
    encoder: Encoder = result.module or load_encoder(result.run.task, TaskOptions.of(result.run))
    check_encoder(result, encoder)
    return Head(encoder, _linear(result))


def check_encoder(result: Result, encoder: Encoder) -> None:
    """Refuse another encoder than that of the run."""
    require(
        encoder.fingerprint == result.reading.get("encoder"),
        f"features={encoder.name} is not the encoder of this run: its code, weights or "
        "feature_norm differ; give the one that the run was trained with",
    )


def _network(result: Result) -> nn.Module | None:
    """The module of a network with the trained parameters; None if the model is linear."""
    if result.module is not None:
        flat: FlatModel | None = FlatModel(result.module)
    else:
        flat = load_network(result.run.task, TaskOptions.of(result.run))
    if flat is None:
        return None
    if flat.shapes != result.parameters:
        raise DataError(
            f"task={result.run.task} has another model now than the one that was trained: the "
            "shapes of its parameters differ"
        )
    return flat.trained(torch.from_numpy(_x(result)))


def _linear(result: Result) -> nn.Linear:
    weight = _matrix(result)
    module = nn.Linear(weight.shape[1] - 1, weight.shape[0], dtype=weight.dtype)
    with torch.no_grad():
        module.weight.copy_(weight[:, :-1])
        module.bias.copy_(weight[:, -1])
    return module.eval()


def _matrix(result: Result) -> torch.Tensor:
    """Of a linear model, [outputs, features]; the last column belongs to the feature 1."""
    return torch.from_numpy(_x(result)).reshape(result.parameters["weight"])


def _x(result: Result) -> NDArray[Any]:
    require(result.x is not None, "the result was read without its model: it has no parameters")
    x: NDArray[Any] = result.x
    return x


def check_out(out: "str | os.PathLike[str]", source: "str | os.PathLike[str]") -> None:
    """Refuse to write predictions where they cannot be, or over what they are of."""
    place = os.fspath(out)
    require(
        place.endswith(".csv"),
        f"out={place}: predictions are written as CSV; give the name of a .csv file",
    )
    both = os.path.exists(place) and os.path.exists(source)
    same = both and os.path.samefile(place, source)
    require(not same, f"out={place} is the file that is read: choose another name")
