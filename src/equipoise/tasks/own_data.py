"""A user's own data sets as tensors.

A record that cannot be read, or has not the shape of the others, is marked and counts for nothing:
no record decides whether a run stops, nor how another is read. What reading raises may hold
records, so no word of it leaves; only what is wrong with a data set as a whole is an error.
"""

import warnings
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from equipoise.errors import DataError, EquipoiseError, InvalidValue, UserCode, require
from equipoise.tasks.made_up import Kind


class Examples(NamedTuple):
    """Inputs [n, ...], targets [n, ...], and which of the records could not be read [n]."""

    inputs: Tensor
    targets: Tensor
    unreadable: Tensor

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """What tells these records from others: the marks too, where there are any."""
        return self if self.unreadable.any() else self[:2]


class Array(NamedTuple):
    """The inputs, or the targets, of all records in one tensor [n, ...]."""

    values: Tensor

    @property
    def size(self) -> int:
        return len(self.values)

    def shape(self) -> torch.Size | None:
        """Of one record; None without records."""
        return self.values.shape[1:] if self.size else None

    def types(self) -> set[torch.dtype]:
        return {self.values.dtype} if self.size else set()

    def fitted(self, shape: torch.Size, kind: torch.dtype) -> tuple[Tensor, Tensor]:
        """In one tensor [n, *shape] of this type, and which records do not fit."""
        if (self.shape(), self.values.dtype) == (shape, kind):
            return self.values, torch.zeros(self.size, dtype=torch.bool)
        return Singles(list(self.values)).fitted(shape, kind)


class Singles(NamedTuple):
    """The same one by one, None where a record could not be read."""

    rows: list[Tensor | None]

    @property
    def size(self) -> int:
        return len(self.rows)

    def readable(self) -> list[Tensor]:
        return [row for row in self.rows if row is not None]

    def shape(self) -> torch.Size | None:
        """The one that most records have."""
        shapes = Counter(row.shape for row in self.readable())
        return max(shapes, key=lambda shape: shapes[shape], default=None)

    def types(self) -> set[torch.dtype]:
        return {row.dtype for row in self.readable()}

    def fitted(self, shape: torch.Size, kind: torch.dtype) -> tuple[Tensor, Tensor]:
        """In one tensor [n, *shape] of this type, and which records do not fit."""
        fitted = torch.zeros(self.size, *shape, dtype=kind)
        odd = torch.tensor([not _fits(row, shape, kind) for row in self.rows], dtype=torch.bool)
        for j in (~odd).nonzero().squeeze(-1).tolist():
            fitted[j] = self.rows[j]
        return fitted, odd


def _fits(row: Tensor | None, shape: torch.Size, kind: torch.dtype) -> bool:
    """Whether a record can become this without loss; real numbers may be rounded to real ones."""
    if row is None or row.shape != shape or row.is_complex() != kind.is_complex:
        return False
    return kind.is_floating_point or torch.equal(row.to(kind).to(row.dtype), row)


Part = Array | Singles


class DataSet(NamedTuple):
    """A data set as it was read; `trouble` is the kind of the first error that a record raised."""

    inputs: Part
    targets: Part
    trouble: str = ""


def read_data_set(data: Any, whose: str, precision: torch.dtype) -> DataSet:
    """All records of a data set, a pair of arrays, or a function that returns one of these."""
    with warnings.catch_warnings(record=True):  # a warning may hold records, too
        with UserCode() as tried:
            while callable(data) and not hasattr(data, "__getitem__"):
                data = data()
            loader = isinstance(data, DataLoader)
            read = None if loader else _read(data, precision)
    if tried.kind:
        raise _unusable(whose, tried.kind)
    if read is None:
        raise InvalidValue(
            f"{whose} is a DataLoader, whose order of records is its own: no sample of it is a "
            "secret Poisson sample; give its data set"
        )
    require(
        read.inputs.size == read.targets.size, f"{whose} does not have as many inputs as targets"
    )
    return read


def _unusable(whose: str, trouble: str) -> DataError:
    return DataError(
        f"{whose} is neither a data set of (input, target) examples nor a pair of arrays "
        f"({trouble} when it was read)"
    )


def _read(data: Any, precision: torch.dtype) -> DataSet:
    if _is_pair(data):
        inputs, targets = (_array(part, precision) for part in data)
        return DataSet(inputs, targets)
    examples = [_example(data, j) for j in range(len(data))]
    return DataSet(
        Singles([example.input for example in examples]),
        Singles([example.target for example in examples]),
        next((example.trouble for example in examples if example.trouble), ""),
    )


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and all(map(_is_array, data))


class Example(NamedTuple):
    """One record; or nothing, and the kind of what was raised when it was read."""

    input: Tensor | None = None
    target: Tensor | None = None
    trouble: str = ""


def _example(data: Any, j: int) -> Example:
    with UserCode() as tried:
        given, wanted = data[j]
        return Example(torch.as_tensor(given), torch.as_tensor(wanted))
    return Example(trouble=tried.kind)


def _is_array(part: Any) -> bool:
    return isinstance(part, Tensor) or hasattr(part, "__array__")


def _array(part: Any, precision: torch.dtype) -> Part:
    """A tensor as it is; of an array or a frame, real numbers in the model's precision, whole
    numbers as torch's losses want labels; bytes, such as pixels, stay bytes."""
    if isinstance(part, Tensor):
        return Array(part)
    array = np.array(part)
    if array.dtype.kind not in "biuf":  # objects: one odd cell is enough to make them
        return Singles([_row(row) for row in array])
    if array.dtype == np.uint8:
        return Array(torch.from_numpy(array))
    return Array(torch.from_numpy(array).to(precision if array.dtype.kind == "f" else torch.int64))


def _row(row: Any) -> Tensor | None:
    """A row of objects as numbers, if it is that."""
    with UserCode():
        return torch.from_numpy(np.asarray(np.asarray(row, dtype=object), dtype=np.float64))
    return None


def read_clients(
    clients: Sequence[Any], only: int | None, precision: torch.dtype
) -> dict[int, DataSet]:
    """The data sets of all clients, or of one alone: the others' are not looked at."""
    number = len(clients)
    require(
        only is None or 0 <= only < number,
        f"client={only} is not one of the {number} clients, from 0",
    )
    return {
        i: read_data_set(partial(clients.__getitem__, i), f"client {i}", precision)
        for i in (range(number) if only is None else [only])
    }


def possible_kinds(clients: dict[int, DataSet], precision: torch.dtype) -> list[Kind]:
    """What the examples may be taken for, the likeliest first. Of arrays the type is in doubt: one
    missing label makes a column of whole numbers real."""
    inputs = [data.inputs for data in clients.values()]
    targets = [data.targets for data in clients.values()]
    input_shape, target_shape = _shape(inputs), _shape(targets)
    if input_shape is None or target_shape is None:
        raise _no_kind(clients)
    types = product(_types(inputs, precision), _types(targets, precision))
    return [Kind(input_shape, first, target_shape, second) for first, second in types]


def _no_kind(clients: dict[int, DataSet]) -> EquipoiseError:
    """Why there is nothing that the examples could be taken for."""
    for i, data in clients.items():
        if data.trouble:
            return _unusable(f"client {i}", data.trouble)
    return InvalidValue(
        "the clients' examples differ in shape or type, or there are none: they must be alike"
    )


def _shape(parts: Sequence[Part]) -> torch.Size | None:
    """The shape that arrays have in common; without arrays, the one that most clients have most of.
    None if there is none."""
    arrays = [part for part in parts if isinstance(part, Array) and part.size]
    shapes = Counter(part.shape() for part in arrays or parts)
    del shapes[None]
    if arrays and len(shapes) > 1:
        return None
    return max(shapes, key=lambda shape: shapes[shape], default=None)


def _types(parts: Sequence[Part], precision: torch.dtype) -> list[torch.dtype]:
    """What the parts may be taken for; real numbers may be whole ones."""
    types = set[torch.dtype]().union(*(part.types() for part in parts))
    alike = list(types) if len(types) == 1 else []
    if any(kind.is_floating_point for kind in types):
        return list(dict.fromkeys([*alike, precision, torch.int64]))
    return alike or [torch.int64]


def fitted_clients(clients: dict[int, DataSet], kind: Kind, number: int) -> tuple[Examples, ...]:
    """The examples of all clients; those whose data were not looked at have none."""
    private = {i: as_examples(data, kind) for i, data in clients.items()}
    empty = Examples(*(part[:0] for part in next(iter(private.values()))))
    return tuple(private.get(i, empty) for i in range(number))


def as_examples(data: DataSet, kind: Kind) -> Examples:
    """The records as tensors of this kind; those that cannot be that are marked."""
    inputs, odd_inputs = data.inputs.fitted(kind.shape, kind.dtype)
    targets, odd_targets = data.targets.fitted(kind.target_shape, kind.target_dtype)
    return Examples(inputs, targets, odd_inputs | odd_targets)


def read_public(data: Any, whose: str, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    """A public data set, all of whose records must be readable."""
    read = read_data_set(data, whose, precision)
    if not read.inputs.size:
        raise DataError(f"{whose} is empty")
    inputs, targets, odd = as_examples(read, possible_kinds({0: read}, precision)[0])
    if odd.any():
        raise _unusable(whose, read.trouble or "examples that are not alike")
    return inputs, targets
