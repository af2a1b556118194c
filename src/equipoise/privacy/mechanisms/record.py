"""What the mechanisms that protect one record have in common; all that a client holds of one person
takes the place of a record where the unit is a person."""

import math
from typing import TYPE_CHECKING, Any

from equipoise.errors import DataError, InvalidValue, require
from equipoise.facts import Facts
from equipoise.privacy.mechanisms.mechanism import no_constant

if TYPE_CHECKING:
    from equipoise.settings import Run, Settings

FEW_RATES = 16  # that are accounted for one by one: each takes up to a second or two


def check_record(settings: "Settings") -> None:
    """What goes together when the unit is a record."""
    no_constant(settings)
    rate = settings.sampling_rate
    require(rate is None or 0 < rate <= 1, f"sampling_rate={rate} is not in (0, 1]")
    require(
        rate is None or settings.batch in (None, "full"),
        f"sampling_rate={rate} and batch={settings.batch}: give one of the two",
    )


def check_record_plan(question: Any) -> None:
    unit = question.unit
    require(question.task is not None, f"unit={unit} needs a task: no closed form plans for it")
    require(
        question.gamma is None, f"gamma with unit={unit}: only gamma=1 is planned; leave it out"
    )


def check_gradient_trust(settings: Any) -> None:
    """Noise that enters before the local steps cannot be shared by the clients."""
    require(
        settings.trust == "local",
        "trust=secure-aggregation with noise in gradients: every client adds all of its noise "
        "before its local steps, so there is nothing to share; use trust=local (or "
        "noise_in=message, where it saves noise)",
    )


def check_full_gradients(settings: "Settings") -> None:
    """Stability bounds hold for full local gradients."""
    require(
        settings.sampling_rate in (None, 1) and settings.batch in (None, "full"),
        f"noise_in={settings.noise_in} holds for full local gradients: leave batch and "
        "sampling_rate out, or use gradient",
    )


def public_sizes(facts: Facts) -> tuple[int, ...]:
    """The numbers of records, which are public where the unit is a record."""
    if facts.sizes is None:
        raise InvalidValue(
            f"unit=record with task={facts.task} needs the number of records of every client"
        )
    if any(size < 1 for size in facts.sizes):
        raise DataError("a client has no records: it cannot take part when the unit is a record")
    return facts.sizes


def rates_of(run: "Run", sizes: tuple[int, ...]) -> tuple[float, ...]:
    """Each client's sampling rate: the one that was said, or what makes `batch` records on average
    (all records of a client that has fewer)."""
    if run.sampling_rate is not None:
        return (run.sampling_rate,) * len(sizes)
    if run.batch == "full":
        return (1.0,) * len(sizes)
    rates = tuple(min(1.0, run.batch / size) for size in sizes)
    return rates if len(set(rates)) <= FEW_RATES else tuple(map(_rounded, rates))


def _rounded(rate: float) -> float:
    """To one of eight rates per doubling: within 4.5 %, far less than samples differ in size."""
    return math.exp2(round(8 * math.log2(rate)) / 8)
