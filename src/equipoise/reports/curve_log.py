"""The learning curve of one run, where other programs look for it: figures on public records, and
nothing else that a run may have found."""

import logging
import os
import sys
import time
from collections.abc import Callable
from csv import DictWriter
from dataclasses import asdict, fields
from importlib.util import find_spec
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


def write_mlflow(result: Result, folder: Path) -> None:
    """A run of the experiment `equipoise` with a metric for each figure, in the database mlflow.db;
    or where the environment variable MLFLOW_TRACKING_URI says."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    for library in ("mlflow", "alembic"):  # which say that they make tables
        logging.getLogger(library).setLevel(logging.WARNING)
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    now = int(time.time() * 1000)
    metrics = [
        Metric(name, value, now, point.round)
        for point in result.curve
        for name, value in asdict(point).items()
        if value is not None and name != "round"
    ]
    own = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", own))
    known = client.get_experiment_by_name("equipoise")
    experiment = known.experiment_id if known else client.create_experiment("equipoise")
    run = client.create_run(experiment, run_name=folder.name).info.run_id
    for start in range(0, len(metrics), 1000):  # the most that one call takes
        client.log_batch(run, metrics[start : start + 1000])
    client.set_terminated(run)


WRITERS: tuple[Callable[[Result, Path], None], ...] = (write_csv, write_tensorboard, write_mlflow)
EXTRAS = ("tensorboard", "mlflow")  # packages, and extras of the same name
LOGS = {writer.__name__.removeprefix("write_"): writer for writer in WRITERS}


def check_log(log: str) -> None:
    """Refuse what there is no log of, before a budget is spent."""
    if log not in LOGS:
        raise InvalidValue(f"log={log} is not one of {', '.join(LOGS)}")
    if log in EXTRAS and (sys.modules.get(log, log) is None or find_spec(log) is None):
        raise InvalidValue(f"log={log} needs {log}: pip install 'equipoise[{log}]'")
