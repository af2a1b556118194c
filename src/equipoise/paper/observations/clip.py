"""Observation 4 of the paper and its remark on clipping: what the clip threshold does."""

import math
from itertools import combinations

from equipoise.paper.observations.claims import CLOSE, SELDOM, Finding, Findings
from equipoise.paper.observations.local_steps import swept
from equipoise.reports.evidence import (
    FAILS,
    FEWEST,
    HOLDS,
    UNKNOWN,
    Difference,
    all_of,
    averaged,
    best,
    chosen,
    difference,
    paired,
)
from equipoise.reports.optima import Law, r2
from equipoise.reports.study import Case

FITS, APART = (
    0.9,
    6.0,
)  # R² that counts as a fit; difference of Akaike's criterion that counts as strong


def follows(law: Law) -> Finding:
    """Optimal local steps against C: which fit is better, and on how little that rests."""
    is_root = law.algorithm.startswith("dp-fedavg")
    claimed, other = (law.root, law.linear) if is_root else (law.linear, law.root)
    verdict = UNKNOWN
    if law.freedom >= 2 and not math.isnan(claimed.r2) and law.trials >= FEWEST and not law.at_edge:
        left = [
            max(1 - fit.r2, 1e-9) for fit in (claimed, other)
        ]  # of the variance; both have two parameters
        ahead = len(law.clips) * math.log(left[1] / left[0])
        if max(claimed.r2, other.r2) >= FITS and (claimed.slope < 0 or ahead <= -APART):
            verdict = FAILS
        elif claimed.r2 >= FITS and ahead >= APART:
            verdict = HOLDS
    return Finding(
        "7a",
        f"The optimal τ of {law.algorithm} follows "
        f"{'the square root of C' if is_root else 'C in a line'}",
        "",
        f"R² of the claimed fit at least {FITS:g}, and {APART:g} ahead of the other by Akaike's "
        f"criterion; two residual "
        "degrees of freedom or more, and no optimum at an end of what was tried",
        f"R² linear {r2(law.linear)}, square root {r2(law.root)}; {len(law.clips)} points, means "
        f"of "
        f"{sum(map(len, law.optima))} optima ({law.at_edge} at an end of what was tried); "
        f"residual degrees of freedom: "
        f"{law.freedom}" + (", too few for any evidence" if law.freedom < 2 else ""),
        law.trials,
        verdict,
    )


def matters(case: Case, algorithm: str) -> Findings:
    curves = {key: cells for key, cells in swept(case, algorithm).items() if key[0] < math.inf}
    found = {key: chosen(cells) for key, cells in curves.items()}
    clips = sorted({clip for _, clip in found})
    budgets = [
        epsilon
        for epsilon in sorted({epsilon for epsilon, _ in found})
        if all(found.get((epsilon, c)) for c in clips)
    ]
    if len(clips) < 2 or not budgets:
        return
    errors = {clip: averaged([found[epsilon, clip] for epsilon in budgets]) for clip in clips}
    hindsight = {
        clip: averaged([best(curves[epsilon, clip]) for epsilon in budgets]) for clip in clips
    }
    pairs = {(a, b): paired(errors[b], errors[a]) for a, b in combinations(clips, 2)}
    (a, b), widest = max(pairs.items(), key=lambda item: abs(item[1].mean))
    verdicts = [_within(pair, paired(hindsight[b], hindsight[a])) for (a, b), pair in pairs.items()]
    yield Finding(
        "7b",
        f"With its best τ, no two clip thresholds differ by more than {CLOSE:g} in error, on "
        f"average over common budgets",
        "",
        f"differences of all pairs of C, against the margin ±{CLOSE:g}",
        f"largest: C = {b:g} minus C = {a:g}: {widest}",
        widest.n,
        all_of(verdicts),
    )


def _within(apart: Difference, in_hindsight: Difference) -> str:
    """Whether a difference lies within the margin; refuted only if the best in hindsight does so
    too."""
    verdict, other = (
        all_of([one.below(CLOSE), one.above(-CLOSE)]) for one in (apart, in_hindsight)
    )
    return UNKNOWN if verdict == FAILS and other != FAILS else verdict


def acts_early(case: Case, algorithm: str) -> Findings:
    cells = [cell for cell in case.cells if cell.private and cell.algorithm == algorithm]
    shares: dict[int, list[tuple[float, float]]] = {}
    for trial in (trial for cell in cells for trial in cell.trials):
        if trial.clipped_early is not None and trial.clipped_late is not None:
            shares.setdefault(trial.seed, []).append((trial.clipped_early, trial.clipped_late))
    if not shares:
        return
    early, late = (
        difference([sum(share[i] for share in of) / len(of) for of in shares.values()])
        for i in (0, 1)
    )
    yield Finding(
        "8",
        f"Clipping acts only early: some messages are clipped in the first third of the rounds, "
        f"under {SELDOM:g} in the last",
        "",
        f"mean share clipped over all private runs of three rounds or more, by trial; the last "
        f"third against {SELDOM:g}",
        f"first third {early.mean:.2f}, last third {late.mean:.2f} [{late.low:.2f}, "
        f"{late.high:.2f}]",
        late.n,
        late.below(SELDOM) if early.mean > SELDOM else UNKNOWN,
    )
