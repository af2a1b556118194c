"""Which data sets there are, where they must lie, and how much of them is there."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from equipoise.errors import DataError, require
from equipoise.paper.data.files import File
from equipoise.paper.data.prepared import Arrays, DataSet
from equipoise.paper.tasks import cifar10, fed_ixi, femnist, messidor, reddit

DATA_SETS: dict[str, tuple[DataSet, Callable[[Iterator[File]], Arrays]]] = {
    "cifar10": (cifar10.CIFAR10, cifar10.prepare),
    "femnist": (femnist.FEMNIST, femnist.prepare),
    "reddit": (reddit.REDDIT, reddit.prepare),
    "fed-ixi": (fed_ixi.FED_IXI, fed_ixi.prepare),
    "messidor": (messidor.MESSIDOR, messidor.prepare_messidor),
    "hippocampus": (fed_ixi.HIPPOCAMPUS, fed_ixi.prepare_hippocampus),
    "deepdrid": (messidor.DEEPDRID, messidor.prepare_deepdrid),
}
"""The paper's five in its order, and two more for the last two tasks."""


class Stock(NamedTuple):
    """A data set as it is found here. `state` is a sentence; train and test records are known once
    it was read."""

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


def data_set(name: str) -> tuple[DataSet, Callable[[Iterator[File]], Arrays]]:
    require(name in DATA_SETS, f"{name!r} is no data set: there are {', '.join(sorted(DATA_SETS))}")
    return DATA_SETS[name]


def take_stock(name: str, read: bool = False) -> Stock:
    """What is here of a data set; with `read` all of it is read, and kept prepared."""
    found, make = data_set(name)
    train, test, repeats, said = None, None, 0, None
    try:
        arrays: dict[str, Any] | None = found.prepared(make) if read else found.kept(make)
        if arrays is not None:
            train, test = len(arrays["train_targets"]), len(arrays["test_targets"])
            repeats = int(arrays["left_out"].sum()) if "left_out" in arrays else 0
    except DataError as error:
        said = str(error)
    complete = (
        train is not None and test is not None and train + test + repeats >= sum(found.records)
    )
    if not found.sources:
        state = "not there"
    elif said:
        state = f"unreadable: {said}"
    elif train is None:
        state = f"there, not read yet: `equipoise data check {name}`"
    else:
        state = "complete" if complete else "a part of it"
    get = f"equipoise data fetch {name}" if found.downloads else found.how
    return Stock(
        name,
        state,
        complete,
        train,
        test,
        found.records,
        found.table_1,
        str(found.place),
        found.licence,
        get,
    )
