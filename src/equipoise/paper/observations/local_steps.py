"""Observation 1 of the paper: there is a best number of local steps."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from equipoise.paper.observations.interior import (
    CLOSE,
    Findings,
    Inside,
    beyond_best,
    beyond_steps,
    inside,
)
from equipoise.reports.evidence import (
    FAILS,
    HOLDS,
    LEVEL,
    UNKNOWN,
    best,
    chosen,
    judged,
    opposite,
    paired,
)
from equipoise.reports.findings import Finding
from equipoise.reports.optima import curves, optimum, reference_iterations
from equipoise.reports.study import Case, Cell

EVERYWHERE = "every ε and C"


class Setting(NamedTuple):
    """What is fixed along a curve of one algorithm."""

    epsilon: float
    clip: float


Value = TypeVar("Value")


def private(by_setting: dict[Setting, Value]) -> dict[Setting, Value]:
    return {at: value for at, value in by_setting.items() if at.epsilon < math.inf}


def swept(case: Case, algorithm: str) -> dict[Setting, list[Cell]]:
    """The curves over local steps at the reference number of iterations."""
    return {
        Setting(curve.epsilon, curve.clip): cells
        for curve, cells in curves(case, reference_iterations(case)).items()
        if curve.algorithm == algorithm
    }


def by_clip(by_setting: dict[Setting, Value]) -> dict[float, dict[float, Value]]:
    """By clip and budget, sorted."""
    values: dict[float, dict[float, Value]] = defaultdict(dict)
    for setting in sorted(by_setting):
        values[setting.clip][setting.epsilon] = by_setting[setting]
    return dict(sorted(values.items()))


def interior(case: Case, algorithm: str) -> Findings:
    long = {at: cells for at, cells in private(swept(case, algorithm)).items() if len(cells) > 2}

    def tested(cells: Sequence[Cell], level: float = LEVEL) -> Inside:
        steps = [cell.local_steps for cell in cells]
        return inside(cells, steps, beyond_steps(case, cells), level)

    hypothesis = "At fixed T some τ in between is better than the smallest and than the largest τ"
    yield from at_each("1a", hypothesis, case, "τ", long, tested)


def at_each(
    number: str,
    hypothesis: str,
    case: Case,
    axis: str,
    by_setting: dict[Setting, list[Cell]],
    tested: Callable[[Sequence[Cell], float], Inside],
) -> Findings:
    """An optimum in between, decided for every budget and clip, and for all of them at once.
    `tested` gives the test of a curve at a level."""
    results = {at: tested(cells, LEVEL) for at, cells in sorted(by_setting.items())}
    results = {at: result for at, result in results.items() if result.trials}
    for at, result in results.items():
        yield Finding(
            number,
            hypothesis,
            f"C = {at.clip:g}, {case.budget(at.epsilon)}",
            f"error at each end of {axis} minus error at the best {axis} in between",
            result.effect(axis),
            result.trials,
            result.verdict,
        )
    if len(results) > 1:
        strict = [tested(by_setting[at], LEVEL / len(results)).verdict for at in results]
        verdicts = [result.verdict for result in results.values()]
        yield Finding(
            number,
            hypothesis,
            EVERYWHERE,
            "holds if it does at every ε and C; does not hold if it does not at one of them, at "
            "the 5 % level divided by their number",
            _counted(verdicts),
            min(result.trials for result in results.values()),
            _everywhere(verdicts, strict),
        )


def _everywhere(verdicts: Sequence[str], strict: Sequence[str]) -> str:
    """Of a claim about all settings: it holds if all verdicts say so, and is refuted only by one of
    the strict verdicts, since among many tests some refute by chance."""
    if FAILS in strict:
        return FAILS
    return HOLDS if set(verdicts) == {HOLDS} else UNKNOWN


def _counted(verdicts: Sequence[str]) -> str:
    count = Counter(verdicts)
    words = [f"{verdict}: {count[verdict]}" for verdict in (HOLDS, FAILS, UNKNOWN)]
    return f"of {len(verdicts)} settings {', '.join(words)}"


def near(case: Case, algorithm: str) -> Findings:
    by_setting = swept(case, algorithm)
    free = _at_budget(by_setting, math.inf)
    if not free:
        return
    for epsilon in sorted({setting.epsilon for setting in private(by_setting)}):
        noisy = _at_budget(by_setting, epsilon)
        cost = paired(chosen(noisy), chosen(free))
        low, high = paired(best(noisy), chosen(free)), paired(chosen(noisy), best(free))
        verdict = opposite(judged(low, high, CLOSE))
        doubt = ""
        if verdict == FAILS:  # the private error might be lower with a τ that was not tried
            doubt = _best_beyond(case, by_setting, epsilon)
        elif verdict == HOLDS:  # and so might the other
            doubt = beyond_best(case, free) and f"without noise {beyond_best(case, free)}"
        yield Finding(
            "1b",
            f"With its best τ and C the private error is less than {CLOSE:g} above the "
            f"non-private one with its best τ",
            case.budget(epsilon),
            f"private minus non-private error, against the margin {CLOSE:g}",
            f"difference {cost}" + (f"; {doubt}" if doubt else ""),
            cost.n,
            UNKNOWN if doubt else verdict,
        )


def _at_budget(by_setting: dict[Setting, list[Cell]], epsilon: float) -> list[Cell]:
    return [cell for at, cells in by_setting.items() for cell in cells if at.epsilon == epsilon]


def _best_beyond(case: Case, by_setting: dict[Setting, list[Cell]], epsilon: float) -> str:
    """Why, at the best clip of a budget, local steps that were not tried might be better."""
    of_clips = [cells for at, cells in by_setting.items() if at.epsilon == epsilon]
    return beyond_best(case, min(of_clips, key=lambda cells: optimum(cells).best.mean))


def interior_without_noise(case: Case, algorithm: str) -> Findings:
    """Claimed of DP-ScaffNew alone."""
    cells = swept(case, algorithm).get(Setting(math.inf, math.inf), [])
    if len(cells) < 3 or not algorithm.startswith("dp-scaffnew"):
        return
    at_best = optimum(cells)
    steps = [cell.local_steps for cell in cells]
    tested = inside(cells, steps, beyond_steps(case, cells))
    plausible = ", ".join(map(str, at_best.plausible))
    words = f"best τ = {at_best.best.local_steps} (plausible: {plausible})"
    yield Finding(
        "1c",
        "Without noise and clip DP-ScaffNew has its best τ in between",
        case.budget(math.inf),
        "error at each end of τ minus error at the best τ in between",
        f"{tested.effect('τ')}; {words}; {_theory(case)}",
        tested.trials,
        tested.verdict,
    )


def _theory(case: Case) -> str:
    if not case.constants:
        return "μ and L of the task are not known, so that 1/p* = √(L/μ) is not compared"
    mu, L = case.constants
    return f"1/p* = √(L/μ) = {math.sqrt(L / mu):.3g}"
