"""The paper's observations as hypotheses, each with a test on the store's own numbers and a verdict
that does not overreach. Their numbers are the paper's, 1 to 4, with a letter where one observation
makes several claims; `remark` is the remark on clipping beside its assumption (B).

Differences are taken over common trials. Wherever a best value is compared, it was chosen on the
other trials, which makes it look worse than it is; so what speaks against a hypothesis must do so
with the best in hindsight too. A verdict needs three trials and a 95 % interval wholly on one side.
What was not tried may be better than what was: an end of τ refutes nothing unless it is τ = 1 or
τ = T and its neighbour was tried, and only a T as large as the paper's refutes a claim about T.
A hypothesis about data that the store does not hold is inconclusive.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from equipoise.paper.observations.budgets import falls, rises
from equipoise.paper.observations.clip import acts_early, follows, matters, rises_with_clip
from equipoise.paper.observations.interior import Findings
from equipoise.paper.observations.iterations import best_iterations, degrades
from equipoise.paper.observations.local_steps import interior, interior_without_noise, near
from equipoise.paper.tasks.rows import FED_IXI, MESSIDOR, ROWS
from equipoise.reports.findings import Claims, Observation
from equipoise.reports.optima import laws
from equipoise.reports.study import NOT_PRIVATE, Case, Study

Claim = Callable[[Case, str], Findings]
"""What is claimed of an algorithm in a case."""

WITHOUT_NOISE: tuple[Claim, ...] = (interior_without_noise, degrades)
CLAIMS: tuple[Claim, ...] = (
    interior,
    near,
    interior_without_noise,
    best_iterations,
    degrades,
    rises,
    falls,
    matters,
    rises_with_clip,
    acts_early,
)
GROUPS = {
    task: "group 2" if row in (FED_IXI, MESSIDOR) else "group 1" for task, row in ROWS.items()
}
"""The paper's groups of data sets, their smaller models and stand-ins included."""


def observe(study: Study) -> list[Observation]:
    """Every hypothesis for every case and algorithm of the study. What is about runs without noise
    is reported once, though several cases have them for reference."""
    observations = [
        observation
        for case, algorithm, claim in _different(study)
        for observation in _observe(case, algorithm, claim)
    ]
    observations += [
        Observation(law.tasks, law.convention, law.algorithm, follows(law))
        for law in laws(study, GROUPS)
    ]
    return sorted(observations, key=lambda observation: observation.finding.number)


def _different(study: Study) -> Iterator[tuple[Case, str, Claim]]:
    """Every case, algorithm and claim that do not repeat what another case has shown already."""
    seen = set()
    for case in study.cases:
        for algorithm, claim in product(case.values("algorithm"), CLAIMS):
            about = (claim, algorithm, _subject(case, claim))
            if about not in seen:
                seen.add(about)
                yield case, algorithm, claim


def _subject(case: Case, claim: Claim) -> Any:
    """What a claim is about: the case, or its runs without noise, which others may share."""
    reference = tuple(id(cell) for cell in case.reference)
    return (case.task, reference) if claim in WITHOUT_NOISE and reference else id(case)


def _observe(case: Case, algorithm: str, claim: Claim) -> Iterator[Observation]:
    convention = NOT_PRIVATE if claim in WITHOUT_NOISE else case.convention
    for finding in claim(case, algorithm):
        yield Observation((case.task,), convention, algorithm, finding)


PAPER = Claims("The paper's observations on these data", observe, GROUPS)
