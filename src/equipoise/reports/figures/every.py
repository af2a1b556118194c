"""Every figure of a report, or what it would need."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from equipoise.reports.figures.budgets import nominal_and_exact, units
from equipoise.reports.figures.by_task import (
    common_clips,
    iterations_by_task,
    steps_by_schedule,
    steps_by_task,
)
from equipoise.reports.figures.laws import steps_by_clip
from equipoise.reports.figures.lines import error_by_clip, error_by_iterations, error_by_steps
from equipoise.reports.figures.progress import progress
from equipoise.reports.figures.surface import surface
from equipoise.reports.optima import Law, reference_iterations
from equipoise.reports.study import Case, Study, task_name


class Drawn(NamedTuple):
    """A figure, or None where the store does not hold what it needs."""

    kind: str
    about: str
    """The task or convention that it shows."""
    needs: str
    figure: Any | None


def every_figure(study: Study, laws: Sequence[Law]) -> Iterator[Drawn]:
    for case in study.cases:
        yield from _of_case(case)
    by_convention: dict[str, list[Law]] = {case.convention: [] for case in study.cases}
    for law in laws:
        by_convention[law.convention].append(law)
    for convention, alike in by_convention.items():
        yield from _of_laws(convention, alike)
    by_meaning: dict[tuple[str, str | None], list[Case]] = {}
    for case in study.cases:
        by_meaning.setdefault((case.convention, case.privacy), []).append(case)
    for cases in by_meaning.values():
        yield from _of_tasks(cases)
    for task in study.tasks:
        yield from _of_task(task_name(task), [case for case in study.cases if case.task == task])


def _of_case(case: Case) -> Iterator[Drawn]:
    yield from _by_steps(case)
    about, several = case.title, "several clip thresholds and local steps"
    yield Drawn("clip", about, several, error_by_clip(case))
    yield Drawn("iterations", about, "several numbers of iterations", error_by_iterations(case))
    yield Drawn("surface", about, "several budgets and local steps", surface(case))
    yield Drawn("progress", about, "runs of several rounds", progress(case))


def _by_steps(case: Case) -> Iterator[Drawn]:
    """One for every number of iterations that has several local steps."""
    totals, reference = case.values("iterations"), reference_iterations(case)
    for iterations in totals:
        figure = error_by_steps(case, iterations)
        kind = f"local-steps-T{iterations}" if len(totals) > 1 else "local-steps"
        if figure or iterations == reference:
            yield Drawn(kind, case.title, "several local steps", figure)


def _of_tasks(cases: Sequence[Case]) -> Iterator[Drawn]:
    """For every clip threshold that several tasks have in common; the cases mean the same by
    epsilon."""
    for clip in common_clips(cases):
        about, at = cases[0].convention, f"C{clip:g}"
        yield Drawn(f"tasks-{at}", about, "several local steps", steps_by_task(cases, clip))
        figure = iterations_by_task(cases, clip)
        if figure is not None:
            yield Drawn(f"tasks-iterations-{at}", about, "", figure)


def _of_laws(convention: str, laws: Sequence[Law]) -> Iterator[Drawn]:
    """One for every meaning of epsilon."""
    for privacy in dict.fromkeys(law.privacy for law in laws) or [""]:
        alike = [law for law in laws if law.privacy == privacy]
        needs = "several clip thresholds and local steps"
        yield Drawn("optimal-steps-by-clip", convention, needs, steps_by_clip(alike))


def _of_task(name: str, cases: Sequence[Case]) -> Iterator[Drawn]:
    yield from _of_schedules(name, cases)
    if any(case.nominal for case in cases):
        needs = "private runs with Lemma 1"
        yield Drawn("nominal-and-exact", name, needs, nominal_and_exact(cases))
    if any(case.unit == "record" for case in cases):
        yield Drawn("units", name, "both units", units(cases))


def _of_schedules(name: str, cases: Sequence[Case]) -> Iterator[Drawn]:
    """Where one meaning of epsilon was run with several schedules, each in one way."""
    for privacy in dict.fromkeys(case.privacy for case in cases if case.private):
        alike = [case for case in cases if case.privacy == privacy]
        if len(alike) > 1 and len({case.schedule for case in alike}) == len(alike):
            for clip in common_clips(alike):
                figure = steps_by_schedule(alike, clip)
                yield Drawn(f"schedules-C{clip:g}", name, "several local steps", figure)
