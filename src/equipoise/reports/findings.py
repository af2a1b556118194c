"""What a report checks beside what it shows: hypotheses in, findings with a verdict out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from equipoise.reports.evidence import UNKNOWN
from equipoise.reports.study import Study


class Finding(NamedTuple):
    """A hypothesis, where it was tested, how, the effect with its size, the number of trials, and
    the verdict."""

    number: str
    hypothesis: str
    where: str
    test: str
    effect: str
    trials: int
    verdict: str


class Observation(NamedTuple):
    """A finding about one task (or several together), under one convention, for one algorithm."""

    tasks: tuple[str, ...]
    convention: str
    algorithm: str
    finding: Finding


def nothing(study: Study) -> list[Observation]:
    """For a report without hypotheses."""
    return []


@dataclass(frozen=True)
class Claims:
    """The hypotheses that a report tests on a study."""

    title: str = ""
    observe: Callable[[Study], list[Observation]] = nothing
    groups: Mapping[str, str] = field(default_factory=dict)
    """Tasks whose optimal local steps are taken together, with the name of their group. Any other
    task is a group of its own."""


def how_many(observations: list[Observation]) -> str:
    """What a reader must know about so many tests at once."""
    decided = sum(observation.finding.verdict != UNKNOWN for observation in observations)
    return (
        f"{len(observations)} hypotheses were tested; {decided} have a verdict, and "
        f"{len(observations) - decided} are {UNKNOWN}. Each is tested on its own at the 5 % level "
        "(trends: 5 % on either side), so that among many verdicts some will be wrong by chance. "
        "With three trials a test has little power: "
        f"“{UNKNOWN}” is then the usual answer, and no evidence against a hypothesis."
    )
