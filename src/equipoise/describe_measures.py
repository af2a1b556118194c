"""Measures in words."""

from collections.abc import Sequence
from statistics import median

from equipoise.measures import MEASURES, SHORT, Estimate, Measures, Part


def measure_facts(measures: Measures, parts: bool = True) -> list[tuple[str, str]]:
    """Every measure with its interval; each group by those that it is shown by; and how clients
    differ."""
    if why := measures.unknown or _too_few(measures):
        return [("measures", f"not known: {why}")]
    facts = [(heading, text) for heading, names in HEADINGS if (text := _told(measures, names))]
    if measures.threshold is not None:
        facts.append((f"at p >= {measures.threshold:g}", _at_threshold(measures)))
    facts.append(("", _of_which(measures)))
    heading = f"by {measures.grouped_by}"
    for part in measures.groups if parts else ():
        facts.append((heading, f"{part.name} ({number_of(part.records, 'record')}): {_part(part)}"))
        heading = ""
    return facts + _clients(measures)


def _too_few(measures: Measures) -> str:
    few = all(estimate.value is None for estimate in measures.estimates.values())
    return f"{number_of(measures.records, 'test record')} are too few" if few else ""


HEADINGS = (
    ("ranking", ("auroc", "average_precision")),
    ("classes", ("accuracy", "balanced_accuracy")),
    ("calibration", ("brier", "calibration_error", "calibration_slope", "calibration_intercept")),
    ("distance", ("rmse", "mae", "r2")),
)


def _told(measures: Measures, names: Sequence[str]) -> str:
    return ", ".join(
        f"{MEASURES[name].words.removeprefix('calibration ')} {estimate_text(measures[name])}"
        for name in names
        if name in measures.estimates
    )


def _at_threshold(measures: Measures) -> str:
    what = f" to {measures.positive}" if measures.positive else ""
    return (
        f"sensitivity{what} {estimate_text(measures['sensitivity'])}, "
        f"specificity {estimate_text(measures['specificity'])}, "
        f"{estimate_text(measures['specificity_at_90'])} at sensitivity 0.9"
    )


def _of_which(measures: Measures) -> str:
    records = number_of(measures.records, "test record")
    if measures.positives is not None:
        records = f"{measures.positives} of {records} positive"
    return f"{records}; in brackets 95 % intervals" if measures.resamples else records


def _part(part: Part) -> str:
    if all(estimate.value is None for estimate in part.estimates.values()):
        return TOO_FEW
    return ", ".join(
        f"{MEASURES[name].words} {estimate_text(part.estimates[name])}"
        for name in SHORT
        if name in part.estimates
    )


def _clients(measures: Measures) -> list[tuple[str, str]]:
    """The median client, and the one that fares worst."""
    name = measures.leading
    if not name:
        return []
    known = [
        (value, part)
        for part in measures.clients
        if (value := part.estimates[name].value) is not None
    ]
    if not known:
        return []
    middle, spec = median(value for value, _ in known), MEASURES[name]
    worst, whose = max(known, key=lambda each: spec.as_error(each[0]))
    return [
        (
            "clients",
            f"{spec.words} {middle:.3f} in the median of {number_of(len(known), 'client')}, "
            f"{worst:.3f} at the worst (client {whose.name}, {number_of(whose.records, 'record')})",
        )
    ]


TOO_FEW = "too few"


def estimate_text(estimate: Estimate, digits: int = 3) -> str:
    """A value, and in brackets its 95 % interval."""
    if estimate.value is None:
        return TOO_FEW
    text = _decimal(estimate.value, digits)
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{_decimal(estimate.low, digits)}, {_decimal(estimate.high, digits)}]"


def _decimal(value: float, digits: int) -> str:
    """So many decimals; of numbers that are large, or too small for these, significant digits."""
    fits = value == 0 or 10**-digits <= abs(value) < 100
    return f"{value:.{digits}f}" if fits else f"{value:.{digits}g}"


def number_of(count: float, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
