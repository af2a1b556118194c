"""A user's own data sets as tensors.

A record that cannot be read, or is not of the kind of the others, is marked and counts for nothing:
no record decides whether a run stops. The kind, shapes and types, is that of public examples;
without any, each client's is that of its own arrays, or else that of most of its records, which is
outside the guarantee: then a record may decide how the others of its client are read. What reading
raises may hold records, so no word of it leaves; only what is wrong with a data set as a whole is
an error.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from equipoise.errors import DataError, EquipoiseError, InvalidValue, UserCode, require
from equipoise.tasks.made_up import Kind
from equipoise.tasks.several import LABELS, Part, Parts, is_several, row_type, rows_of

PLAIN_RULES = Tensor.__torch_dispatch__
NUMBERS = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
}


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


Column = Array | Singles


class DataSet(NamedTuple):
    """A data set as it was read; `trouble` is the kind of the first error that a record raised."""

    inputs: Column
    targets: Column
    trouble: str = ""


def read_data_set(data: Any, whose: str, precision: torch.dtype, parts: Parts = ()) -> DataSet:
    """All records of a data set, a pair of arrays, or a function that returns one of these; where
    inputs have several parts, as rows in which these stand side by side."""
    with UserCode() as tried, warnings.catch_warnings(record=True):  # which may hold records, too
        data = _opened(data)
        loader = isinstance(data, DataLoader)
        read = None if loader else _read(data, precision, parts)
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
        f"({trouble} when it was read); records with several inputs need a public one, example="
    )


def _opened(data: Any) -> Any:
    while callable(data) and not hasattr(data, "__getitem__"):
        data = data()
    return data


def _read(data: Any, precision: torch.dtype, parts: Parts) -> DataSet:
    if parts and _is_whole(data):
        several, wanted = _input_and_target(data)
        columns = [_array(several[part.key], precision) for part in parts]
        return DataSet(_side_by_side(columns, parts), _array(wanted, precision))
    if _is_pair(data):
        inputs, targets = (_array(part, precision) for part in data)
        return DataSet(inputs, targets)
    examples = [_example(data, j, parts) for j in range(len(data))]
    return DataSet(
        Singles([example.input for example in examples]),
        Singles([example.target for example in examples]),
        next((example.trouble for example in examples if example.trouble), ""),
    )


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and all(map(_is_array, data))


def _is_whole(data: Any) -> bool:
    """Whether these are the several inputs of all records, with all targets."""
    if isinstance(data, Mapping):
        return True
    return (
        isinstance(data, tuple | list)
        and len(data) == 2
        and is_several(data[0])
        and _is_array(data[1])
    )


def _input_and_target(record: Any) -> tuple[Any, Any]:
    """Of a pair; a dict may hold its target itself."""
    if isinstance(record, Mapping):
        return {key: record[key] for key in record if key != LABELS}, record[LABELS]
    given, wanted = record
    return given, wanted


def _side_by_side(columns: Sequence[Column], parts: Parts) -> Column:
    fitted = [
        column.fitted(part.shape, part.dtype) for column, part in zip(columns, parts, strict=True)
    ]
    rows = rows_of([values for values, _ in fitted], parts)
    odd = torch.stack([marks for _, marks in fitted]).any(0)
    if not odd.any():
        return Array(rows)
    return Singles([None if bad else row for row, bad in zip(rows, odd, strict=True)])


def _row_of(given: Any, parts: Parts) -> Tensor:
    """The several inputs of one record, side by side."""
    values = []
    for part in parts:
        value = _plain(given[part.key])
        if not _fits(value, part.shape, part.dtype):
            raise TypeError
        values.append(value.to(part.dtype).unsqueeze(0))
    return rows_of(values, parts)[0]


def parts_of(data: Any, precision: torch.dtype) -> Parts:
    """The parts of the inputs of a public data set's first record; none if they are one tensor, or
    cannot be read."""
    with UserCode():
        data = _opened(data)
        whole = _is_whole(data)
        given, _ = _input_and_target(data if whole else data[0])
        if not is_several(given):
            return ()
        pairs = given.items() if isinstance(given, Mapping) else enumerate(given)
        firsts = {key: _plain(_first(value, precision) if whole else value) for key, value in pairs}
        return tuple(Part(key, value.shape, value.dtype) for key, value in firsts.items())
    return ()


def _first(values: Any, precision: torch.dtype) -> Tensor | None:
    column = _array(values, precision)
    return column.values[0] if isinstance(column, Array) else column.rows[0]


class Example(NamedTuple):
    """One record; or nothing, and the kind of what was raised when it was read."""

    input: Tensor | None = None
    target: Tensor | None = None
    trouble: str = ""


def _example(data: Any, j: int, parts: Parts) -> Example:
    with UserCode() as tried:
        given, wanted = _input_and_target(data[j]) if parts else data[j]
        return Example(_row_of(given, parts) if parts else _plain(given), _plain(wanted))
    return Example(trouble=tried.kind)


def _plain(value: Any) -> Tensor:
    """Numbers as an ordinary tensor without a history; an error where they are none. Tensors that
    are sparse, nested, quantized, without values, or compute by rules of their own are none."""
    with torch._C.DisableTorchFunctionSubclass():
        tensor = torch.as_tensor(value).detach().as_subclass(Tensor)
        own_rules = getattr(type(value), "__torch_dispatch__", PLAIN_RULES) != PLAIN_RULES
        if own_rules or tensor.is_nested or tensor.layout != torch.strided:
            raise TypeError
        if tensor.dtype not in NUMBERS:
            raise TypeError
        return tensor.cpu()


def _is_array(part: Any) -> bool:
    return isinstance(part, Tensor) or hasattr(part, "__array__")


def _array(part: Any, precision: torch.dtype) -> Column:
    """A tensor as it is; of an array or a frame, real numbers in the model's precision, whole
    numbers as torch's losses want labels; bytes, such as pixels, stay bytes."""
    if isinstance(part, Tensor):
        return Array(_plain(part))
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
    clients: Sequence[Any], only: int | None, precision: torch.dtype, parts: Parts = ()
) -> dict[int, DataSet]:
    """The data sets of all clients, or of one alone: the others' are not looked at."""
    number = len(clients)
    require(
        only is None or 0 <= only < number,
        f"client={only} is not one of the {number} clients, from 0",
    )
    return {
        i: read_data_set(partial(clients.__getitem__, i), f"client {i}", precision, parts)
        for i in (range(number) if only is None else [only])
    }


def possible_kinds(data: DataSet, precision: torch.dtype) -> list[Kind]:
    """What the examples of one client may be taken for, the likeliest first; nothing if none can be
    read. Of arrays the type is in doubt: one missing label makes a column of whole numbers real."""
    shape, target_shape = data.inputs.shape(), data.targets.shape()
    if shape is None or target_shape is None:
        return []
    types = product(_types(data.inputs, precision), _types(data.targets, precision))
    return [Kind(shape, first, target_shape, second) for first, second in types]


def _types(part: Column, precision: torch.dtype) -> list[torch.dtype]:
    """What a part may be taken for; real numbers may be whole ones."""
    types = part.types()
    alike = list(types) if len(types) == 1 else []
    if any(kind.is_floating_point for kind in types):
        return list(dict.fromkeys([*alike, precision, torch.int64]))
    return alike or [torch.int64]


def kinds_of_example(example: Any, precision: torch.dtype, parts: Parts) -> list[Kind]:
    """What a public (input, target) pair may be taken for."""
    kinds = possible_kinds(_read([example], precision, parts), precision)
    require(bool(kinds), "example is not an (input, target) pair of numbers")
    if parts:
        kinds = [kind._replace(parts=parts) for kind in kinds if kind.dtype == row_type(parts)]
    return kinds


def check_arrays(clients: dict[int, DataSet], declared: Sequence[Kind] = ()) -> None:
    """Refuse clients whose arrays differ in shape from each other, or from what is declared: that
    is no matter of a record."""
    for parts, shapes in (
        ([data.inputs for data in clients.values()], {kind.shape for kind in declared}),
        ([data.targets for data in clients.values()], {kind.target_shape for kind in declared}),
    ):
        shapes |= {part.values.shape[1:] for part in parts if isinstance(part, Array) and part.size}
        require(
            len(shapes) <= 1, "the clients' examples differ in shape or type: they must be alike"
        )


def no_kind(clients: dict[int, DataSet]) -> EquipoiseError:
    """Why there is nothing that the examples could be taken for."""
    for i, data in clients.items():
        if data.trouble:
            return _unusable(f"client {i}", data.trouble)
    return InvalidValue(
        "the clients' examples differ in shape or type from what is declared, or there are none"
    )


def kind_is_of_records(clients: dict[int, DataSet]) -> bool:
    """Whether some client's records come one by one: no array has their shape and type."""
    return any(isinstance(part, Singles) for data in clients.values() for part in data[:2])


def fitted_clients(
    clients: dict[int, DataSet], kinds: dict[int, Kind], number: int
) -> tuple[Examples, ...]:
    """The examples of all clients, each of its kind; those whose data were not looked at have
    none."""
    private = {i: as_examples(data, kinds[i]) for i, data in clients.items()}
    empty = Examples(*(part[:0] for part in next(iter(private.values()))))
    return tuple(private.get(i, empty) for i in range(number))


def as_examples(data: DataSet, kind: Kind) -> Examples:
    """The records as tensors of this kind; those that cannot be that are marked."""
    inputs, odd_inputs = data.inputs.fitted(kind.shape, kind.dtype)
    targets, odd_targets = data.targets.fitted(kind.target_shape, kind.target_dtype)
    return Examples(inputs, targets, odd_inputs | odd_targets)


def read_public(
    data: Any, whose: str, precision: torch.dtype, parts: Parts = ()
) -> tuple[Tensor, Tensor]:
    """A public data set, all of whose records must be readable."""
    read = read_data_set(data, whose, precision, parts)
    if not read.inputs.size:
        raise DataError(f"{whose} is empty")
    kinds = possible_kinds(read, precision)
    examples = as_examples(read, kinds[0]) if kinds else None
    if examples is None or examples.unreadable.any():
        raise _unusable(whose, read.trouble or "examples that are not alike")
    return examples.inputs, examples.targets
