"""The learning curve of one run, where other programs look for it: figures on public records, and
nothing else that a run may have found."""

from collections.abc import Callable
from csv import DictWriter
from dataclasses import asdict, fields
from pathlib import Path

from equipoise.errors import InvalidValue
from equipoise.result import Point, Result


def write_csv(result: Result, folder: Path) -> None:
    """curve.csv: a line for each round that was measured; what was not is left blank."""
    with open(folder / "curve.csv", "w", encoding="utf-8", newline="") as file:
        table = DictWriter(file, [field.name for field in fields(Point)])
        table.writeheader()
        table.writerows(asdict(point) for point in result.curve)


def write_tensorboard(result: Result, folder: Path) -> None:
    """A folder `tensorboard`, with a scalar for each figure, by rounds."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:
        for point in result.curve:
            for name, value in asdict(point).items():
                if value is not None and name != "round":
                    writer.add_scalar(name, value, point.round)


WRITERS: tuple[Callable[[Result, Path], None], ...] = (write_csv, write_tensorboard)
LOGS = {writer.__name__.removeprefix("write_"): writer for writer in WRITERS}


def check_log(log: str) -> None:
    """Refuse what there is no log of, before a budget is spent."""
    if log not in LOGS:
        raise InvalidValue(f"log={log} is not one of {', '.join(LOGS)}")
    if log == "tensorboard":
        try:
            import tensorboard  # noqa: F401
        except ImportError:
            raise InvalidValue(
                "log=tensorboard needs tensorboard: pip install 'equipoise[tensorboard]'"
            ) from None
