"""Which data sets there are, where they must lie, and how much of them is present."""

from typing import NamedTuple

from equipoise.cache import Arrays
from equipoise.errors import DataError, require
from equipoise.paper.data.brain_mri import FED_IXI, HIPPOCAMPUS
from equipoise.paper.data.cifar10 import CIFAR10
from equipoise.paper.data.data_set import DataSet
from equipoise.paper.data.femnist import FEMNIST
from equipoise.paper.data.fundus import DEEPDRID, MESSIDOR
from equipoise.paper.data.reddit import REDDIT
from equipoise.places import cache_folder

DATA_SETS: dict[str, DataSet] = {
    data_set.name: data_set
    for data_set in (CIFAR10, FEMNIST, REDDIT, FED_IXI, MESSIDOR, HIPPOCAMPUS, DEEPDRID)
}
"""The paper's five in its order, and two more for the last two tasks."""


class Stock(NamedTuple):
    """A data set as it lies here. `state` is a sentence; the numbers of train and test records are
    known once it was read."""

    name: str
    state: str
    complete: bool
    train: int | None
    test: int | None
    records: tuple[int, int]
    table_1: str
    place: str
    licence: str
    get: str


def data_set(name: str) -> DataSet:
    require(name in DATA_SETS, f"{name!r} is no data set: there are {', '.join(sorted(DATA_SETS))}")
    return DATA_SETS[name]


def take_stock(name: str, read: bool = False) -> Stock:
    """What is here of a data set; with `read` all of it is read, and kept prepared."""
    chosen = data_set(name)
    cache_folder()  # if there can be none, that is nothing against the data set
    if not chosen.sources:
        return _stock(chosen, "missing")
    try:
        arrays = chosen.prepared() if read else chosen.kept()
    except DataError as error:
        return _stock(chosen, f"unreadable: {error}")
    if arrays is None:
        return _stock(chosen, f"present, not read yet: `equipoise data check {name}`")
    return _counted(chosen, arrays)


def _counted(data_set: DataSet, arrays: Arrays) -> Stock:
    train, test = len(arrays["train_targets"]), len(arrays["test_targets"])
    repeats = int(arrays["left_out"].sum()) if "left_out" in arrays else 0
    complete = train + test + repeats >= sum(data_set.records)
    return _stock(data_set, "complete" if complete else "incomplete", complete, train, test)


def _stock(
    data_set: DataSet,
    state: str,
    complete: bool = False,
    train: int | None = None,
    test: int | None = None,
) -> Stock:
    return Stock(
        data_set.name,
        state,
        complete,
        train,
        test,
        records=data_set.records,
        table_1=data_set.table_1,
        place=str(data_set.place),
        licence=data_set.licence,
        get=data_set.get,
    )
