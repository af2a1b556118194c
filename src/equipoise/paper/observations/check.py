"""The paper's observations as hypotheses, each with a test on the store's own numbers and a verdict
that does not overreach.

Differences are taken over common trials. Wherever a best value is compared, it was chosen on the
other trials, which makes it look worse than it is; so what speaks against a hypothesis must do so
with the best in hindsight too. A verdict needs three trials and a 95 % interval wholly on one side.
What needs data that the store does not hold cannot be told.
"""

from dataclasses import dataclass
from itertools import product

from equipoise.paper.observations.claims import Finding
from equipoise.paper.observations.clip import acts_early, follows, matters
from equipoise.paper.observations.iterations import best_iterations, degrades, falls
from equipoise.paper.observations.local_steps import interior, interior_without_noise, near, rises
from equipoise.reports.evidence import UNKNOWN
from equipoise.reports.optima import laws
from equipoise.reports.study import NOT_PRIVATE, Study

WITHOUT_NOISE = (interior_without_noise, degrades)
CLAIMS = (
    interior,
    near,
    interior_without_noise,
    best_iterations,
    degrades,
    rises,
    falls,
    matters,
    acts_early,
)


@dataclass(frozen=True)
class Observation:
    """A finding about one task (or a group of them), under one convention, for one algorithm."""

    task: str
    convention: str
    algorithm: str
    finding: Finding


def observe(study: Study) -> list[Observation]:
    """Every hypothesis for every case and algorithm of the study. What is about runs without noise
    is told once, though several cases have them for reference."""
    found, told = [], set()
    for case in study.cases:
        reference = tuple(id(cell) for cell in case.cells if not cell.private)
        for algorithm, claim in product(case.values("algorithm"), CLAIMS):
            about = (
                (claim, case.task, algorithm, reference)
                if claim in WITHOUT_NOISE and reference
                else (claim, id(case), algorithm)
            )
            if about not in told:
                told.add(about)
                convention = NOT_PRIVATE if claim in WITHOUT_NOISE else case.convention
                found += [
                    Observation(case.task, convention, algorithm, finding)
                    for finding in claim(case, algorithm)
                ]
    found += [
        Observation(" + ".join(law.tasks), law.convention, law.algorithm, follows(law))
        for law in laws(study)
    ]
    return sorted(found, key=lambda observation: observation.finding.number)


def how_many(observations: list[Observation]) -> str:
    """What a reader must know about so many tests at once."""
    told = sum(observation.finding.verdict != UNKNOWN for observation in observations)
    return (
        f"{len(observations)} hypotheses were looked at, {told} could be told. Each is tested by "
        f"itself at the 5 % level "
        "(orders of budgets: 5 % on either side, since four budgets have no rarer order): with so "
        "many, some verdicts will be "
        "wrong by chance. With three trials a test over common trials has little power; "
        f"“{UNKNOWN}” is then the usual answer, and no evidence against a hypothesis."
    )
