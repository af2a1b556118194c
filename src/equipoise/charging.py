"""A run in this process that a ledger is charged for: admitted whole before its first step, and its
rounds written down before anybody sees them.

A row for every round would cost more time than many a round does. So a row says how many rounds may
be seen from then on: the next round, and as many more as there were before it. The last row is for
all of them, and a run that dies may have been charged for twice the rounds that were seen.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.errors import EquipoiseError, InvalidValue, require
from equipoise.privacy.ledger import Ledger
from equipoise.privacy.ledger_books import Books, Caps, Standing
from equipoise.privacy.ledger_costs import Cap, Cost

if TYPE_CHECKING:
    from equipoise.fleets import Round
    from equipoise.settings import Run
    from equipoise.training import Prepared

ABOUT = ("task", "algorithm", "epsilon", "delta", "neighbours", "trust", "clients")
"""What a ledger says of a run, besides what it costs."""


class Budget:
    """A ledger by the name of its file, which need not be there yet; and the cap that its first run
    brings, for the unit of that run."""

    def __init__(
        self, file: "str | os.PathLike[str]", epsilon: float | None, delta: float | None
    ) -> None:
        self.file = Path(file)
        require(
            (epsilon is None) == (delta is None),
            f"cap_epsilon={epsilon} and cap_delta={delta}: a cap has both; give the other one too",
        )
        self._cap = None if epsilon is None or delta is None else Cap(epsilon, delta)

    def caps(self, run: "Run") -> Caps:
        """What a new ledger is given."""
        return {run.unit: self._cap} if self._cap else {}

    def after(self, ready: "Prepared", name: str = "this") -> list[Standing]:
        """How the caps would stand after this run; refused if the ledger would refuse it."""
        new = name, cost_of(ready), self.caps(ready.run)
        if not self.file.exists():
            return Books().after(*new)
        with Ledger(self.file, read_only=True) as ledger:
            return ledger.after(*new)

    def standings(self) -> list[Standing]:
        with Ledger(self.file, read_only=True) as ledger:
            return ledger.standings()

    def noted(self, name: str) -> tuple[int | None, tuple[str, ...]]:
        """How many runs the ledger held before this one, and how its caps stand now; nothing where
        it cannot be read any more, which is no reason to lose a result."""
        with suppress(EquipoiseError), Ledger(self.file, read_only=True) as ledger:
            names = [run.name for run in ledger.runs()]
            return names.index(name), tuple(map(str, ledger.standings()))
        return None, ()

    @contextmanager
    def charged(
        self, ready: "Prepared", name: str, goes_on: Callable[[], bool]
    ) -> "Iterator[Callable[[Iterable[Round]], Iterator[Round]]]":
        """What passes on rounds, each of them when the ledger has it. The run is admitted before
        the first is made, and closed when all is done, or when it fails and does not go on."""
        cost, caps = cost_of(ready), self.caps(ready.run)
        about = ready.run.model_dump(mode="json", include={*ABOUT})
        admitted = False

        def noted(rounds: "Iterable[Round]") -> "Iterator[Round]":
            nonlocal admitted
            ledger.admit(name, cost, caps, **about)
            admitted, last = True, ledger.rounds(name)
            for round in rounds:
                if round.number > last:
                    last = min(2 * round.number, cost.rounds)
                    ledger.release(name, last)
                yield round

        with Ledger(self.file) as ledger:
            ended = True
            try:
                yield noted
            except BaseException:
                ended = not goes_on()
                raise
            finally:
                if admitted and ended:
                    with suppress(EquipoiseError):  # an open run is charged whole
                        ledger.close(name)


def budget_of(
    ledger: "str | os.PathLike[str] | None", epsilon: float | None, delta: float | None
) -> Budget | None:
    """None without a ledger."""
    if ledger is not None:
        return Budget(ledger, epsilon, delta)
    require(
        epsilon is None and delta is None,
        "cap_epsilon and cap_delta without a ledger: give the ledger's file too",
    )
    return None


def cost_of(ready: "Prepared") -> Cost:
    """What a run in this process costs: the dearest of its clients decides."""
    run = ready.run
    if run.simulation:
        why = "epsilon=inf" if run.epsilon == math.inf else "seeded noise or diagnostics"
        raise InvalidValue(
            f"ledger with {why}: such a run protects nobody, so it has no cost to write down; "
            "leave the ledger out, or train privately"
        )
    by_round = run.mechanism.paid_per == "round"
    steps = (1,) * len(ready.schedule) if by_round else ready.schedule
    return Cost.of(ready.account.events, steps)
