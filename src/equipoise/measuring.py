"""The measures of `measures`, of predictions on public test records, and their intervals.

Every formula takes weights [resamples, records] and gives one number for each resample, so that a
thousand resamples cost little more than one; with weights of one it is scikit-learn's
(`tests/test_measures.py`). docs/measures.md has formulas and sources.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from equipoise.measures import Estimate, Estimates, Measures, Part
from equipoise.seeds import stream
from equipoise.tasks.task import Predictions

THRESHOLD = 0.5
RESAMPLES = 1000
FEWEST_RESAMPLES = 200  # where there are very many records
WORK = 20_000_000  # weights times classes, beyond which there are fewer resamples
AT_ONCE = 100_000  # weights, which a processor's cache holds
FEWEST = 10  # records, below which nothing is said
FEWEST_OF_A_CLASS = 5  # below which nothing is said that is about this class
COMPARING = (  # both classes
    *("auroc", "average_precision", "specificity_at_90"),
    *("calibration_slope", "calibration_intercept"),
)
SENSITIVITY = 0.9  # of specificity_at_90
BINS = 10  # of the calibration error
Z = 1.959963984540054  # of a 95 % interval
ENDS = (0.025, 0.975)
NEWTON_STEPS = 50

Array = NDArray[np.float64]
Values = dict[str, Array]
Formulas = Callable[[Array], Values]
"""Weights [resamples, n] in, each measure's values [resamples] out; NaN where it is not defined."""


def measures_of(
    seen: Predictions, threshold: float = THRESHOLD, resamples: int = RESAMPLES
) -> Measures:
    """All that can be measured on these records: of all, by group, and by client."""
    two = seen.classes == 2

    def parts(keys: Sequence[str | int]) -> Iterator[Part]:
        for key in sorted(set(keys)):
            part = seen.rows(np.array([other == key for other in keys]))
            yield Part(str(key), len(part.truth), _estimates(part, threshold, resamples))

    return Measures(
        records=len(seen.truth),
        estimates=_estimates(seen, threshold, resamples),
        positives=int(seen.truth.sum()) if two else None,
        positive=seen.names[1] if two and seen.names else "",
        threshold=threshold if two else None,
        resamples=_affordable(seen, resamples),
        unknown="" if np.isfinite(seen.output).all() else "the model's answers are not finite",
        grouped_by=seen.grouped_by,
        groups=tuple(parts(seen.groups)),
        clients=tuple(parts(seen.clients)),
    )


def _affordable(seen: Predictions, resamples: int) -> int:
    most = WORK // max(1, seen.output.size)
    return min(resamples, max(FEWEST_RESAMPLES, most))


def _estimates(seen: Predictions, threshold: float, resamples: int) -> Estimates:
    """Values, and intervals where resamples are asked for. What too few records, or answers that
    are not finite, leave unknown has no value: then formulas may divide by zero, or overflow."""
    with np.errstate(all="ignore"):
        return _known_estimates(seen, threshold, resamples)


def _known_estimates(seen: Predictions, threshold: float, resamples: int) -> Estimates:
    if not np.isfinite(seen.output).all():
        return {}
    formulas = _formulas(seen, threshold)
    whole = {name: float(value[0]) for name, value in formulas(_ones(seen)).items()}
    unknown = {name for name, value in whole.items() if not math.isfinite(value)}
    unknown |= _too_few(seen, whole)
    known = {name: value for name, value in whole.items() if name not in unknown}
    ends: dict[str, tuple[float, float] | None] = {}
    if resamples and known:
        drawn = _drawn(formulas, seen, _affordable(seen, resamples))
        ends = {name: _percentiles(value, drawn[name]) for name, value in known.items()}
        ends |= _intervals_of_shares(seen, known)
        if "calibration_error" in known:
            error = known["calibration_error"]
            ends["calibration_error"] = _calibration_interval(seen, error, drawn)
    return {
        name: Estimate(known[name], *(ends.get(name) or ())) if name in known else Estimate(None)
        for name in whole
    }


def _ones(seen: Predictions) -> Array:
    return np.ones((1, len(seen.truth)))


def _too_few(seen: Predictions, names: dict[str, float]) -> set[str]:
    """The measures for which there are too few records."""
    if len(seen.truth) < FEWEST:
        return {*names}
    if seen.classes != 2:
        return set()
    positives = int(seen.truth.sum())
    few_positive = positives < FEWEST_OF_A_CLASS
    few_negative = len(seen.truth) - positives < FEWEST_OF_A_CLASS
    return {
        *(COMPARING if few_positive or few_negative else ()),
        *(["sensitivity"] if few_positive else ()),
        *(["specificity"] if few_negative else ()),
    }


# intervals


def _drawn(formulas: Formulas, seen: Predictions, resamples: int) -> Values:
    """The measures on resamples of the records, drawn with replacement (Efron 1979)."""
    number = len(seen.truth)
    generator = stream(0, "resamples of test records", number)
    at_once = max(1, AT_ONCE // number)
    parts = [
        formulas(_weights(generator, number, min(at_once, resamples - start)))
        for start in range(0, resamples, at_once)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _weights(generator: np.random.Generator, number: int, resamples: int) -> Array:
    """How often each record is drawn, [resamples, records]."""
    drawn = generator.integers(number, size=(resamples, number))
    drawn += np.arange(resamples)[:, None] * number
    times = np.bincount(drawn.ravel(), minlength=resamples * number)
    return times.reshape(resamples, number).astype(np.float64)


def _percentiles(value: float, drawn: Array) -> tuple[float, float] | None:
    """None where resampling cannot tell: it is not defined on most resamples, or a best possible
    value is the same on all of them."""
    defined = drawn[np.isfinite(drawn)]
    if 2 * len(defined) < len(drawn):
        return None
    low, high = (float(end) for end in np.quantile(defined, ENDS))
    return None if low == high and value in (0, 1) else (low, high)


def _intervals_of_shares(
    seen: Predictions, known: dict[str, float]
) -> dict[str, tuple[float, float]]:
    """Of shares of records: Wilson's (1927), which holds where all or none of a few are right."""
    number = len(seen.truth)
    positives = int(seen.truth.sum()) if seen.classes == 2 else 0
    among = {"accuracy": number, "sensitivity": positives, "specificity": number - positives}
    return {name: wilson(known[name], among[name]) for name in among if name in known}


def wilson(share: float, number: int) -> tuple[float, float]:
    """The 95 % interval of a share of so many records."""
    middle = share + Z**2 / (2 * number)
    reach = Z * math.sqrt(share * (1 - share) / number + Z**2 / (4 * number**2))
    scale = 1 + Z**2 / number
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)


def _calibration_interval(seen: Predictions, error: float, drawn: Values) -> tuple[float, float]:
    """Chance makes this error larger, in resamples once more: the interval is turned about the
    value (Davison and Hinkley 1997, 5.2.1). It begins at zero if a model whose probabilities are
    right would have as large an error on these records (Bröcker and Smith 2007)."""
    sure, _ = _sure(seen)
    draws = min(FEWEST_RESAMPLES, len(drawn["calibration_error"]))
    generator, bins = stream(0, "outcomes of a calibrated model", len(sure)), _bins(sure)
    ones = np.ones((1, len(sure)))
    by_chance = np.quantile(
        [
            _calibration_error(sure - (generator.random(len(sure)) < sure), bins, ones)
            for _ in range(draws)
        ],
        ENDS[1],
    )
    low, high = np.quantile(drawn["calibration_error"], ENDS)
    begin = 0.0 if error <= by_chance else max(0.0, 2 * error - float(high))
    return begin, max(error, 2 * error - float(low))


# formulas


def _formulas(seen: Predictions, threshold: float) -> Formulas:
    if not seen.classes:
        return _of_values(seen)
    return _of_two(seen, threshold) if seen.classes == 2 else _of_many(seen)


def _of_two(seen: Predictions, threshold: float) -> Formulas:
    """`output` is the probability of the second class."""
    p, yes = seen.output, seen.truth == 1
    recalibration, ranking, bins = Recalibration(p, yes), Ranking(p, yes), _bins(p)
    square, right = (p - yes) ** 2, (p >= 0.5) == yes
    caught, spared = yes & (p >= threshold), ~yes & (p < threshold)

    def values(weights: Array) -> Values:
        curve = ranking.curve(weights)
        return {
            "auroc": curve.area,
            "average_precision": curve.average_precision,
            "brier": _mean(square, weights),
            "calibration_error": _calibration_error(p - yes, bins, weights),
            "calibration_slope": recalibration.slope(weights),
            "calibration_intercept": recalibration.intercept(weights),
            "accuracy": _mean(right, weights),
            "sensitivity": weights @ caught / (weights @ yes),
            "specificity": weights @ spared / (weights @ ~yes),
            "specificity_at_90": curve.specificity_at(SENSITIVITY),
        }

    return values


def _of_many(seen: Predictions) -> Formulas:
    """`output` is [n, classes]. Of ranks the mean over those classes, against all others, that the
    records have; of accuracies over classes the same."""
    is_class = seen.truth[:, None] == np.arange(seen.classes)
    known = np.flatnonzero(is_class.any(0))
    rankings = [Ranking(seen.output[:, k], is_class[:, k]) for k in known]
    sure, right = _sure(seen)
    bins, square = _bins(sure), ((seen.output - is_class) ** 2).sum(1)
    each = is_class[:, known].astype(np.float64)
    hits = each * right[:, None]

    def values(weights: Array) -> Values:
        curves = [ranking.curve(weights) for ranking in rankings]
        recall = weights @ hits / (weights @ each)
        return {
            "auroc": _mean_defined([curve.area for curve in curves]),
            "average_precision": _mean_defined([curve.average_precision for curve in curves]),
            "brier": _mean(square, weights),
            "calibration_error": _calibration_error(sure - right, bins, weights),
            "accuracy": _mean(right, weights),
            "balanced_accuracy": _mean_defined(recall.T),
        }

    return values


def _of_values(seen: Predictions) -> Formulas:
    gap, truth = seen.output - seen.truth, seen.truth - seen.truth.mean()
    least = (1e-12 * np.abs(seen.truth).max()) ** 2  # of a spread that is not rounding alone

    def values(weights: Array) -> Values:
        square = _mean(gap**2, weights)
        spread = _mean(truth**2, weights) - _mean(truth, weights) ** 2
        explained = np.where(spread > least, 1 - square / spread, np.nan)
        return {"rmse": np.sqrt(square), "mae": _mean(np.abs(gap), weights), "r2": explained}

    return values


def _mean(values: NDArray[Any], weights: Array) -> Array:
    mean: Array = weights @ values.astype(np.float64) / weights.sum(1)
    return mean


def _mean_defined(rows: Sequence[Array] | Array) -> Array:
    """The mean of those rows that are defined, for each resample."""
    each = np.array(rows)
    defined = np.isfinite(each)
    mean: Array = np.where(defined, each, 0).sum(0) / defined.sum(0)
    return mean


class Ranking:
    """Records by falling score, those with equal scores together."""

    def __init__(self, scores: Array, positive: NDArray[np.bool_]) -> None:
        self._order = np.argsort(-scores, kind="stable")
        self._positive = positive[self._order].astype(np.float64)
        self._falls = np.flatnonzero(np.diff(scores[self._order], prepend=np.inf))

    def curve(self, weights: Array) -> "Curve":
        ordered = weights[:, self._order]
        hits = ordered * self._positive
        if len(self._falls) == len(self._order):
            return Curve(hits, ordered - hits)
        together = (np.add.reduceat(part, self._falls, axis=1) for part in (hits, ordered - hits))
        return Curve(*together)


class Curve:
    """What a ranking finds at every score, `hits` and `misses` [resamples, scores], and down to
    it."""

    def __init__(self, hits: Array, misses: Array) -> None:
        self._hits, self._misses = hits, misses
        self._true, self._false = hits.cumsum(1), misses.cumsum(1)
        self._positives, self._negatives = self._true[:, -1], self._false[:, -1]

    @property
    def area(self) -> Array:
        """How often a positive record's score is above a negative one's; ties count half."""
        above = (self._misses * (self._true - self._hits / 2)).sum(1)
        area: Array = above / (self._positives * self._negatives)
        return area

    @property
    def average_precision(self) -> Array:
        """The mean of the precision at each positive record; with no negative one it would be 1,
        whatever the scores."""
        precision = self._true / np.maximum(self._true + self._false, 1e-300)
        mean = (self._hits * precision).sum(1) / self._positives
        share: Array = np.where(self._negatives > 0, mean, np.nan)
        return share

    def specificity_at(self, sensitivity: float) -> Array:
        """The largest of any threshold that finds this share of the positive records."""
        first = (self._true >= sensitivity * self._positives[:, None] - 1e-9).argmax(1)
        wrongly = self._false[np.arange(len(first)), first]
        share: Array = np.where(self._positives > 0, 1 - wrongly / self._negatives, np.nan)
        return share


def _sure(seen: Predictions) -> tuple[Array, NDArray[np.bool_]]:
    """What is held to be calibrated, and whether it came true: of two classes the probability of
    the second, of more the largest one."""
    if seen.classes == 2:
        return seen.output, seen.truth == 1
    return seen.output.max(1), seen.output.argmax(1) == seen.truth


def _bins(sure: Array) -> Array:
    """Which of the bins of equal width each probability is in, [n, bins]."""
    number = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    inside: Array = (number[:, None] == np.arange(BINS)).astype(np.float64)
    return inside


def _calibration_error(gaps: Array, bins: Array, weights: Array) -> Array:
    """The mean over bins of |mean probability - share that came true|, weighted by records (Naeini
    et al. 2015); the gaps are probability - outcome."""
    error: Array = np.abs((weights * gaps) @ bins).sum(1) / weights.sum(1)
    return error


class Recalibration:
    """How probabilities must be changed to be right: slope and intercept of a logistic regression
    of the outcome on their logit (Cox 1958), and the intercept beside a slope of 1 (calibration in
    the large). NaN where there is no such fit.

    On resamples it takes one of Newton's steps from the fit on all records, which is as good as the
    fit itself (Davidson and MacKinnon 1999).
    """

    def __init__(self, p: Array, yes: NDArray[np.bool_]) -> None:
        logits = logit(np.clip(p, 1e-12, 1 - 1e-12))
        self._scale = float(logits.std()) or 1.0
        ones = np.ones((len(p), 1))
        self._tilted = Logistic(np.hstack([ones, logits[:, None] / self._scale]), 0 * logits, yes)
        self._shifted = Logistic(ones, logits, yes)

    def slope(self, weights: Array) -> Array:
        """1 if the probabilities spread as far as they should; below, they spread too far."""
        slope: Array = self._tilted.on(weights)[1] / self._scale
        return slope

    def intercept(self, weights: Array) -> Array:
        """0 if the mean probability is right; above, it is too low."""
        intercept: Array = self._shifted.on(weights)[0]
        return intercept


class Logistic:
    """Logistic regression of outcomes on one or two features [n, features] beside an offset."""

    def __init__(self, features: Array, offset: Array, yes: NDArray[np.bool_]) -> None:
        self._features, self._offset, self._yes = features, offset, yes
        self._fit = self._fitted()
        self._slopes = self._derivatives(self._fit)

    def on(self, weights: Array) -> Array:
        """Coefficients [features, resamples] on records of these weights, by one step from those on
        all records."""
        return self._fit[:, None] + _newton(self._slopes, weights)

    def _fitted(self) -> Array:
        now, ones = np.zeros(self._features.shape[1]), np.ones((1, len(self._offset)))
        for _ in range(NEWTON_STEPS):
            step = _newton(self._derivatives(now), ones)[:, 0]
            if not np.isfinite(step).all():
                break
            now = now + np.clip(step, -2, 2)
            if np.abs(step).max() < 1e-10:
                return now
        return np.full(len(now), np.nan)

    def _derivatives(self, now: Array) -> tuple[Array, list[Array]]:
        """Of each record's log likelihood at these coefficients: the first [n, features], and for
        each feature the second by it [n, features], less their sign."""
        expected = expit(self._offset + self._features @ now)
        bent = self._features * (expected * (1 - expected))[:, None]
        columns = self._features.T
        return self._features * (self._yes - expected)[:, None], [
            bent * column[:, None] for column in columns
        ]


def _newton(derivatives: tuple[Array, list[Array]], weights: Array) -> Array:
    """The step [features, resamples] for records of these weights."""
    first, second = derivatives
    gradient = (weights @ first).T
    curvature = [(weights @ part).T for part in second]
    if len(gradient) == 1:
        return gradient / curvature[0]
    (u, v), ((a, b), (_, c)) = gradient, curvature
    step: Array = np.array([c * u - b * v, a * v - b * u]) / (a * c - b * b)
    return step
