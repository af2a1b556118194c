"""Numbers in sentences: what is said to be at most is at most that, in every digit."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def at_most(value: float, digits: int = 6) -> str:
    """So many digits, rounded up."""
    return _rounded(value, digits, ROUND_CEILING)


def at_least(value: float, digits: int = 6) -> str:
    """So many digits, rounded down."""
    return _rounded(value, digits, ROUND_FLOOR)


def percent(share: float) -> str:
    """Three digits, rounded up; a share beyond rounding errors of 0 to 1 is cut."""
    return f"{at_most(100 * min(1.0, max(0.0, share * (1 - 1e-12))), 3)} %"


def as_given(share: float) -> str:
    """All digits of a share that somebody chose."""
    return f"{100 * share:.12g} %"


def _rounded(value: float, digits: int, how: str) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exact = Decimal(repr(float(value)))
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float((exact / step).to_integral_value(how) * step):.{digits}g}"
