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

from equipoise.errors import DataError, InvalidValue, require


class Kind(NamedTuple):
    """Shapes and types of one example."""

    input_shape: torch.Size
    input_type: torch.dtype
    target_shape: torch.Size
    target_type: torch.dtype


class Examples(NamedTuple):
    """Inputs [n, ...], targets [n, ...], and which of the records could not be read [n]."""

    inputs: Tensor
    targets: Tensor
    unreadable: Tensor


Part = Tensor | list[Tensor | None]
"""The inputs, or the targets, of all records: an array, or one by one, None where unreadable."""


class DataSet(NamedTuple):
    """A data set as it was read; `trouble` is the kind of the first error that a record raised."""

    inputs: Part
    targets: Part
    trouble: str = ""


def read_data_set(data: Any, whose: str, precision: torch.dtype) -> DataSet:
    """All records of a data set, a pair of arrays, or a function that returns one of these."""
    with warnings.catch_warnings(record=True):  # a warning may hold records, too
        try:
            while callable(data) and not hasattr(data, "__getitem__"):
                data = data()
            loader = isinstance(data, DataLoader)
            read = None if loader else _read(data, precision)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a user's data set raises, SystemExit too
            raise _unusable(whose, type(error).__name__) from None
    if read is None:
        raise InvalidValue(
            f"{whose} is a DataLoader, whose order of records is its own: no sample of it is a "
            "secret Poisson sample; give its data set"
        )
    require(
        len(read.inputs) == len(read.targets), f"{whose} does not have as many inputs as targets"
    )
    return read


def _unusable(whose: str, trouble: str) -> DataError:
    return DataError(
        f"{whose} is neither a data set of (input, target) examples nor a pair of arrays "
        f"({trouble} when it was read)"
    )


def _read(data: Any, precision: torch.dtype) -> DataSet:
    if isinstance(data, tuple | list) and len(data) == 2 and all(map(_is_array, data)):
        inputs, targets = (_array(part, precision) for part in data)
        return DataSet(inputs, targets)
    examples = [_example(data, j) for j in range(len(data))]
    return DataSet(
        [example.input for example in examples],
        [example.target for example in examples],
        next((example.trouble for example in examples if example.trouble), ""),
    )


class Example(NamedTuple):
    """One record; or nothing, and the kind of what was raised when it was read."""

    input: Tensor | None = None
    target: Tensor | None = None
    trouble: str = ""


def _example(data: Any, j: int) -> Example:
    try:
        given, wanted = data[j]
        return Example(torch.as_tensor(given), torch.as_tensor(wanted))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a user's data set raises
        return Example(trouble=type(error).__name__)


def _is_array(part: Any) -> bool:
    return isinstance(part, Tensor) or hasattr(part, "__array__")


def _array(part: Any, precision: torch.dtype) -> Part:
    """A tensor as it is; of an array or a frame, real numbers in the model's precision, whole
    numbers as torch's losses want labels; bytes, such as pixels, stay bytes."""
    if isinstance(part, Tensor):
        return part
    array = np.array(part)
    if array.dtype.kind not in "biuf":  # objects: one odd cell is enough to make them
        return [_row(row) for row in array]
    tensor = torch.from_numpy(array)
    if tensor.dtype == torch.uint8:
        return tensor
    return tensor.to(precision if tensor.is_floating_point() else torch.int64)


def _row(row: Any) -> Tensor | None:
    """A row of objects as numbers, if it is that."""
    try:
        return torch.from_numpy(np.asarray(np.asarray(row, dtype=object), dtype=np.float64))
    except Exception:
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
        for i, data in clients.items():
            if data.trouble:
                raise _unusable(f"client {i}", data.trouble)
        raise InvalidValue(
            "the clients' examples differ in shape or type, or there are none: they must be alike"
        )
    types = product(_types(inputs, precision), _types(targets, precision))
    return [Kind(input_shape, first, target_shape, second) for first, second in types]


def _shape(parts: Sequence[Part]) -> torch.Size | None:
    """The shape that arrays have in common; without arrays, the one that most clients have most of.
    None if there is none."""
    arrays = {part.shape[1:] for part in parts if isinstance(part, Tensor) and len(part)}
    if arrays:
        return arrays.pop() if len(arrays) == 1 else None
    usual = [
        Counter(row.shape for row in part if row is not None).most_common(1)
        for part in parts
        if not isinstance(part, Tensor)
    ]
    votes = Counter(shape for (shape, _), *_ in filter(None, usual)).most_common(1)
    return votes[0][0] if votes else None


def _types(parts: Sequence[Part], precision: torch.dtype) -> list[torch.dtype]:
    types = {
        row.dtype
        for part in parts
        for row in ([part] if isinstance(part, Tensor) else part)
        if row is not None and len(part)
    }
    if not any(kind.is_floating_point for kind in types):
        return list(types) if len(types) == 1 else [torch.int64]
    alike = list(types) if len(types) == 1 else []
    return list(dict.fromkeys([*alike, precision, torch.int64]))


def as_examples(data: DataSet, kind: Kind) -> Examples:
    """The records as tensors of this kind; those that cannot be that are marked."""
    inputs, odd_inputs = _fitted(data.inputs, kind.input_shape, kind.input_type)
    targets, odd_targets = _fitted(data.targets, kind.target_shape, kind.target_type)
    return Examples(inputs, targets, odd_inputs | odd_targets)


def _fitted(part: Part, shape: torch.Size, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """All rows in one tensor, and which of them do not fit."""
    if isinstance(part, Tensor) and part.dtype == kind and part.shape[1:] == shape:
        return part, torch.zeros(len(part), dtype=torch.bool)
    fitted = torch.zeros(len(part), *shape, dtype=kind)
    odd = torch.ones(len(part), dtype=torch.bool)
    for j, row in enumerate(part):
        if row is not None and row.shape == shape and row.is_complex() == kind.is_complex:
            fitted[j] = row
            whole = row.is_floating_point() and not kind.is_floating_point
            odd[j] = whole and bool((fitted[j] != row).any())
    return fitted, odd


def kind_of(inputs: Tensor, targets: Tensor) -> Kind:
    """What kind of examples these are."""
    return Kind(inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype)


def nobody(examples: Examples) -> Examples:
    """The same kind of data set, without a record."""
    return Examples(*(part[:0] for part in examples))


def read_public(data: Any, whose: str, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    """A public data set, all of whose records must be readable."""
    read = read_data_set(data, whose, precision)
    if not len(read.inputs):
        raise DataError(f"{whose} is empty")
    inputs, targets, odd = as_examples(read, possible_kinds({0: read}, precision)[0])
    if odd.any():
        raise _unusable(whose, read.trouble or "examples that are not alike")
    return inputs, targets
