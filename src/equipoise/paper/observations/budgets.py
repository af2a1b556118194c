"""Observation 3 of the paper: as ε falls, the best number of local steps rises and the best number
of iterations falls."""

from equipoise.paper.observations.interior import Findings
from equipoise.paper.observations.iterations import over_iterations, short_of_table
from equipoise.paper.observations.local_steps import by_clip, private, swept
from equipoise.paper.observations.trends import Claimed, too_few, trend
from equipoise.reports.evidence import FAILS, UNKNOWN
from equipoise.reports.optima import along_iterations
from equipoise.reports.study import Case

RISES = Claimed("3a", "τ", "ε falls", "budget")
FALLS = Claimed("3b", "T", "ε falls", "budget", rising=False)


def rises(case: Case, algorithm: str) -> Findings:
    for clip, by_budget in by_clip(private(swept(case, algorithm))).items():
        falling = [by_budget[epsilon] for epsilon in sorted(by_budget)[::-1]]
        yield trend(RISES, f"C = {clip:g}", falling, lambda cell: cell.local_steps)


def falls(case: Case, algorithm: str) -> Findings:
    curves = by_clip(private(over_iterations(case, algorithm)))
    if not curves:
        yield too_few(FALLS, "", 0)
    for clip, by_budget in curves.items():
        falling = [by_budget[epsilon] for epsilon in sorted(by_budget)[::-1]]
        finding = trend(FALLS, f"C = {clip:g}", falling, lambda cell: cell.iterations)
        finding = finding._replace(test=f"{finding.test}; {along_iterations(case)[1]}")
        short = short_of_table(case, [cell for cells in falling for cell in cells])
        if finding.verdict == FAILS and short:
            finding = finding._replace(effect=f"{finding.effect}; {short}", verdict=UNKNOWN)
        yield finding
