"""`dry_run`: what a run would spend and take, and nothing of it spent.

Everything that a run does before its first round is done: files are read, settings resolved, the
account made. Then a round is tried on the clients' records, twice, and forgotten, noise and all: it
leaves this process as little as its records do. How long that took is told to one figure, 1, 2 or 5
and a power of ten, as is the memory: neither tells more of private records than roughly how many
there are.
"""

import json
import math
import os
import sys
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from equipoise.charging import budget_of
from equipoise.engine import Trained, points_of, single_fleet
from equipoise.fleets import Broadcast
from equipoise.result import Result
from equipoise.settings import Settings
from equipoise.training import Prepared, prepare, result_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from equipoise.planning.plan import Plan
    from equipoise.privacy.ledger_books import Standing

LEAST = 0.2  # seconds that are worth measuring: what takes less is repeated
MEASURED = ("test_error", "baseline_error", "client_error", "public_only", "curve", "per_round")
NOT_YET = {*MEASURED, "failed", "private", "parameters", "reading"}


@dataclass(frozen=True)
class DryRun:
    """A run that was not made.

    result    what can be said of it beforehand: its settings, account and notices; no model
    seconds   how long training would take here, roughly
    memory    bytes that this process needed so far, roughly; None where that is not known
    ledger    how the caps of a ledger would stand afterwards; None without one
    """

    result: Result
    seconds: float
    memory: int | None
    ledger: "list[Standing] | None" = None

    def __str__(self) -> str:
        from equipoise.describe import dry_run_lines

        return "\n".join(dry_run_lines(self))

    __repr__ = __str__

    def to_json(self) -> str:
        """One JSON document."""
        known = self.result.model_dump(mode="json", exclude=NOT_YET)
        if self.ledger is not None:
            known["ledger"] = [standing.as_json() for standing in self.ledger]
        return json.dumps({**known, "seconds": self.seconds, "memory": self.memory}, indent=2)


def dry_run(
    settings: "Settings | Plan | None" = None,
    *,
    ledger: "str | os.PathLike[str] | None" = None,
    cap_epsilon: float | None = None,
    cap_delta: float | None = None,
    **values: Any,
) -> DryRun:
    """What `train` would do with the same arguments: ``dry_run(task="breast-cancer", epsilon=2,
    clip=1)``. It reads, resolves and accounts; it spends nothing, and writes nothing. With a ledger
    that would refuse the run it refuses it.

    settings   Settings or a Plan; or else the fields of `Settings` as keywords
    ledger, cap_epsilon, cap_delta   as those of `train`
    values     as those of `train`

    >>> dry = equipoise.dry_run(task="quadratic", epsilon=2, clip=0.1, iterations=4)
    >>> dry.result.account.releases, dry.seconds < 60
    (4, True)
    """
    budget = budget_of(ledger, cap_epsilon, cap_delta)
    ready = prepare(settings, **values)
    standings = budget.after(ready) if budget else None
    seconds = _seconds(ready)
    nothing = Trained(ready.run, len(ready.schedule), ready.task.x0)
    return DryRun(result_of(ready, nothing), one_figure(seconds), _memory(), standings)


def _seconds(ready: Prepared) -> float:
    """Of all rounds: what one takes besides its local steps, and a step, both measured."""
    task, run, schedule = ready.task, ready.run, ready.schedule
    fleet, x = single_fleet(task, run, ready.account, ready.noise)
    known, steps = fleet.algorithm.first_broadcast(x), sum(schedule)

    def exchange(local_steps: int) -> None:
        fleet.exchange(Broadcast(1, range(local_steps), known))

    exchange(1)  # what is done once
    round = _timed(lambda: exchange(1))
    step = max(0.0, _timed(lambda: exchange(2)) - round) if max(schedule) > 1 else round
    seconds = len(schedule) * (round - step) + steps * step
    if task.measure:
        measure, points = task.measure, min(len(schedule), points_of(task, run))
        seconds += points * _timed(lambda: measure(x))
    return seconds


def _timed(what: "Callable[[], Any]") -> float:
    """Seconds, the median of as many times as are needed to know."""
    times: list[float] = []
    while not times or (sum(times) < LEAST and len(times) < 100):
        start = perf_counter()
        what()
        times.append(perf_counter() - start)
    return median(times)


def one_figure(value: float) -> float:
    """The nearest of 1, 2 and 5 times a power of ten, in logarithms."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    near = min((1, 2, 5, 10), key=lambda figure: abs(math.log(value / power / figure)))
    return float(f"{near * power:.0e}")


def _memory() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(one_figure(most * (1 if sys.platform == "darwin" else 1024)))
