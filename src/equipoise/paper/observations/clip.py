"""Observation 4 of the paper and its remark on clipping: what the clip threshold does."""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import fmean
from typing import NamedTuple

from equipoise.paper.observations.interior import CLOSE, SELDOM, Findings, beyond_best
from equipoise.paper.observations.local_steps import Setting, private, swept
from equipoise.paper.observations.trends import Claimed, trend
from equipoise.reports.evidence import (
    FAILS,
    FEWEST,
    HOLDS,
    LEVEL,
    UNKNOWN,
    Difference,
    Errors,
    all_of,
    best,
    chosen,
    paired,
    share,
)
from equipoise.reports.findings import Finding
from equipoise.reports.optima import NO_FIT, Fit, Law
from equipoise.reports.study import Case, Cell, Moment

RISES = Claimed("4c", "τ", "C rises", "clip threshold")


class Thirds(NamedTuple):
    """Shares of clipped messages in the first and in the last third of the rounds, by trial."""

    early: tuple[float, ...]
    late: tuple[float, ...]


FITS = 0.9  # R² that counts as a fit
APART = 6.0  # difference of Akaike's criterion that counts as strong


def follows(law: Law) -> Finding:
    """Optimal local steps against C: which fit is better, and on how little that rests."""
    is_root = _claims_root(law)
    shape = "the square root of C" if is_root else "C linearly"
    return Finding(
        "4a",
        f"The optimal τ of {law.algorithm} follows {shape}",
        "",
        f"R² of the claimed fit at least {FITS:g}, and {APART:g} ahead of the other by Akaike's "
        "criterion; two residual degrees of freedom or more, and no optimum at an end of the range "
        "tried",
        f"{_fit_words(law)}; means of {law.count} optima ({law.at_edge} at an end of the range "
        "tried)",
        law.trials,
        _law_verdict(law),
    )


def rises_with_clip(case: Case, algorithm: str) -> Findings:
    """The first half of Observation 4: the optimal local steps tend to rise with C."""
    by_budget: dict[float, dict[float, list[Cell]]] = defaultdict(dict)
    for setting, cells in private(swept(case, algorithm)).items():
        by_budget[setting.epsilon][setting.clip] = cells
    for epsilon, of_clips in sorted(by_budget.items()):
        rising = [of_clips[clip] for clip in sorted(of_clips)]
        yield trend(RISES, case.budget(epsilon), rising, lambda cell: cell.local_steps)


def _claims_root(law: Law) -> bool:
    """The paper claims a square root of DP-FedAvg, and a line of DP-ScaffNew."""
    return law.algorithm.startswith("dp-fedavg")


def _fit_words(law: Law) -> str:
    if law.fits is None:
        return NO_FIT
    few = ", too few for any evidence" if law.freedom < 2 else ""
    return (
        f"R² linear {law.fits.linear}, square root {law.fits.root}; {len(law.clips)} points, "
        f"residual degrees of freedom: {law.freedom}{few}"
    )


def _law_verdict(law: Law) -> str:
    if law.fits is None or law.freedom < 2 or law.trials < FEWEST or law.at_edge:
        return UNKNOWN
    linear, root = law.fits
    claimed, other = (root, linear) if _claims_root(law) else (linear, root)
    return _better_fit(claimed, other, len(law.clips))


def _better_fit(claimed: Fit, other: Fit, points: int) -> str:
    """Whether the claimed fit is good, and clearly better than the other; refuted if one of them is
    good, and the claimed one falls or is clearly worse."""
    if math.isnan(claimed.r2) or max(claimed.r2, other.r2) < FITS:
        return UNKNOWN
    ahead = points * math.log(_unexplained(other) / _unexplained(claimed))
    if claimed.slope < 0 or ahead <= -APART:
        return FAILS
    return HOLDS if claimed.r2 >= FITS and ahead >= APART else UNKNOWN


def _unexplained(line: Fit) -> float:
    """The share of the variance that a fit leaves. Both have two parameters, so that Akaike's
    criterion compares these alone."""
    return max(1 - line.r2, 1e-9)


def matters(case: Case, algorithm: str) -> Findings:
    """Errors at the best local steps, of all pairs of clips, averaged over the budgets that
    have all of them."""
    curves = private(swept(case, algorithm))
    errors = {setting: chosen(cells) for setting, cells in curves.items()}
    clips = sorted({setting.clip for setting in errors})
    budgets = _complete(errors, clips)
    if len(clips) < 2 or not budgets:
        return
    hindsight = {setting: best(cells) for setting, cells in curves.items()}
    places = [(a, b, epsilon) for a, b in combinations(clips, 2) for epsilon in budgets]
    pairs = {place: _apart(errors, *place) for place in places}
    beyond = {clip: _beyond(case, curves, clip, budgets) for clip in clips}
    strict = {
        place: _within(*(_apart(each, *place, LEVEL / len(places)) for each in (errors, hindsight)))
        for place in places
    }
    refuted = [place for place in places if strict[place] == FAILS]
    doubts = [_doubt(pairs[place], place[:2], beyond) for place in refuted]
    near = all(_within(pair, pair) == HOLDS for pair in pairs.values())
    verdict, doubt = UNKNOWN, ""
    if refuted:
        verdict, doubt = FAILS, doubts[0] if all(doubts) else ""
    elif near:
        verdict, doubt = HOLDS, next(filter(None, beyond.values()), "")
    (small, large, epsilon), widest = max(pairs.items(), key=lambda item: abs(item[1].mean))
    yield Finding(
        "4b",
        f"With its best τ, no two clip thresholds differ by more than {CLOSE:g} in error, at any "
        "budget",
        "",
        f"differences of all pairs of C at every ε, against the margin ±{CLOSE:g}; does not hold "
        "if one of them is larger, at the 5 % level divided by their number",
        f"largest: C = {large:g} minus C = {small:g} at {case.budget(epsilon)}: {widest}"
        + (f"; {doubt}" if doubt else ""),
        widest.n,
        UNKNOWN if doubt else verdict,
    )


def _apart(
    errors: dict[Setting, Errors], small: float, large: float, epsilon: float, level: float = LEVEL
) -> Difference:
    """The larger clip's error minus the smaller's, at a budget."""
    return paired(errors[Setting(epsilon, large)], errors[Setting(epsilon, small)], level)


def _beyond(
    case: Case, curves: dict[Setting, list[Cell]], clip: float, budgets: list[float]
) -> str:
    """Why, at some of these budgets, a τ that was not tried might be better at this clip."""
    reasons = [beyond_best(case, curves[Setting(epsilon, clip)]) for epsilon in budgets]
    return next((f"C = {clip:g}: {reason}" for reason in reasons if reason), "")


def _doubt(apart: Difference, pair: tuple[float, float], beyond: dict[float, str]) -> str:
    """Why two clips may be closer than they look: the worse of them, the larger where the
    difference is positive, may have a better τ."""
    small, large = pair
    return beyond[large if apart.mean > 0 else small]


def _complete(errors: dict[Setting, Errors], clips: list[float]) -> list[float]:
    """The budgets with errors at every clip."""
    budgets = sorted({setting.epsilon for setting in errors})
    return [
        epsilon for epsilon in budgets if all(errors.get(Setting(epsilon, clip)) for clip in clips)
    ]


def _within(apart: Difference, in_hindsight: Difference) -> str:
    """Whether a difference lies within the margin; refuted only if the best in hindsight does so
    too."""
    verdict, other = (
        all_of([pair.below(CLOSE), pair.above(-CLOSE)]) for pair in (apart, in_hindsight)
    )
    return UNKNOWN if verdict == FAILS and other != FAILS else verdict


def acts_early(case: Case, algorithm: str) -> Findings:
    """Shares of clipped messages in the first and last third of the rounds, for every clip: in all
    of its runs that clip at all."""
    for clip in sorted({cell.clip for cell in case.private if cell.algorithm == algorithm}):
        cells = [cell for cell in case.private if (cell.algorithm, cell.clip) == (algorithm, clip)]
        known = [(cell, thirds) for cell in cells if (thirds := _thirds(cell))]
        if not known:
            continue
        active = [(cell, thirds) for cell, thirds in known if max(map(fmean, thirds)) > SELDOM]
        late = [(cell, share(thirds.late)) for cell, thirds in active]
        strict = [share(thirds.late, LEVEL / len(active)).below(SELDOM) for _, thirds in active]
        verdict = all_of([shares.below(SELDOM) for _, shares in late])
        yield Finding(
            "remark",
            "Clipping acts only early: wherever messages are clipped, under "
            f"{SELDOM:g} of them are in the last third of the rounds",
            f"C = {clip:g}",
            f"share clipped in the last third, by trial, against {SELDOM:g}, for every ε, τ and T "
            "of which more is clipped in the first third or in the last; does not hold if one of "
            "them does not, at the 5 % level divided by their number",
            f"{len(late)} of {len(known)} settings clip{_most(late)}",
            min((shares.n for _, shares in late), default=0),
            UNKNOWN if verdict == FAILS and FAILS not in strict else verdict,
        )


def _most(late: Sequence[tuple[Cell, Difference]]) -> str:
    """Where most is clipped in the last third."""
    if not late:
        return ""
    cell, most = max(late, key=lambda item: item[1].mean)
    return (
        f"; most in the last third: {most.mean:.2f} [{most.low:.2f}, {most.high:.2f}] at "
        f"ε = {cell.epsilon:g}, τ = {cell.local_steps}"
    )


def _thirds(cell: Cell) -> Thirds | None:
    """By trial the shares clipped early and late, where both are known."""
    shares = []
    for trial in cell.trials:
        rounds = trial.curve[-1].round if trial.curve else 0
        early = share_clipped(trial.curve, 0, math.ceil(rounds / 3))
        late = share_clipped(trial.curve, 2 * rounds // 3, rounds)
        if early is not None and late is not None and rounds >= 3:
            shares.append((early, late))
    return Thirds(*zip(*shares, strict=True)) if shares else None


def share_clipped(curve: Sequence[Moment], after: int, until: int) -> float | None:
    """The share of messages clipped in the rounds after one and until another. A moment stands for
    the rounds since the one before, and counts as many times; it counts only if all of them lie
    in between. None if there is no such moment."""
    inside = [
        (moment.clipped, moment.round - before.round)
        for before, moment in pairwise(curve)
        if moment.clipped is not None and after <= before.round and moment.round <= until
    ]
    shares, rounds = zip(*inside, strict=True) if inside else ((), ())
    return fmean(shares, rounds) if inside else None
