"""A store, read for a report: which runs are trials of the same cell, and which cells may share an
axis."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from equipoise.errors import DataError
from equipoise.measures import MEASURES
from equipoise.reports.conventions import at_label, convention_names, meaning
from equipoise.reports.stored import Group, Row, Stored, check_measure, finished_runs
from equipoise.reports.study import Case, Cell, Moment, Place, Study, Trial
from equipoise.sweeps.store import Store

MOMENT = tuple(field.name for field in fields(Moment))
_Trials = dict[Place, dict[int, Row]]
"""By cell and seed."""
_CurveOf = Callable[[str], Sequence[dict[str, Any]]]
"""The curve of the run with this key."""


def read_study(path: Path, measure: str | None = None) -> Study:
    """Read all finished runs of a store; with a measure in the place of the test error, if one is
    given."""
    check_measure(measure)
    what = f"the measure {measure}" if measure else "a test error"
    with Store(path, read_only=True) as store:
        failures, rows = store.failures(), finished_runs(store, measure)
        if not rows:
            why = _failure_note(failures) or "let `equipoise sweep` finish some first"
            raise DataError(f"store={path} holds no finished run: {why}")
        runs = [row for row in rows if row]
        groups = _grouped(runs)
        curve = store.curve if measure is None else _no_curve
        cells = {group: _cells(trials, curve) for group, trials in groups.items()}
    diverged = [run for run in runs if run.failed is not None]
    cases = _cases(groups, cells)
    if not cases:
        raise DataError(f"store={path} holds no run with {what}: nothing can be drawn")
    notes = (
        _failure_note(failures),
        _unusable_note(len(rows) - len(runs), what),
        _repeated_note(runs),
        _diverged_note(len(diverged)) or _unequal_note(cases),
        _measure_note(measure),
    )
    return Study(tuple(cases), len(rows), tuple(filter(None, notes)))


def _grouped(runs: Sequence[Row]) -> dict[Group, _Trials]:
    """By case, cell and trial; of repeated trials the newest."""
    groups: dict[Group, _Trials] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        groups[run.group][run.place][run.seed] = run
    return groups


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _failure_note(failures: dict[str, str]) -> str:
    if not failures:
        return ""
    return f"{_runs(len(failures))} could not be run at all, for example: " + next(
        iter(failures.values())
    )


def _unusable_note(count: int, what: str) -> str:
    if not count:
        return ""
    return f"{_runs(count)} without {what} or a fixed number of local steps: left out"


def _repeated_note(runs: Sequence[Row]) -> str:
    """Runs without noise are not counted: each convention may have run its own."""
    private = [run for run in runs if run.epsilon < math.inf]
    repeated = len(private) - len({(run.group, run.place, run.seed) for run in private})
    if not repeated:
        return ""
    return (
        f"{_runs(repeated)} repeated a trial, on other data or by another version: the newest of "
        f"each was taken"
    )


def _diverged_note(count: int) -> str:
    if not count:
        return ""
    return f"{_runs(count)} diverged: a cell with such a trial is never taken for the best"


def _measure_note(measure: str | None) -> str:
    if not measure:
        return ""
    return (
        f"the error is {MEASURES[measure].error_name}: that along the rounds, on training records "
        f"and without training is another, and left out"
    )


def _unequal_note(cases: Sequence[Case]) -> str:
    if all(map(_equal_trials, cases)):
        return ""
    return (
        "cells do not have the same trials (after a search, or while a sweep still runs): their "
        "means cannot be compared directly"
    )


def _equal_trials(case: Case) -> bool:
    """Whether all private cells have the same trials, and all others."""
    return _same_seeds(case.private) and _same_seeds(case.reference)


def _same_seeds(cells: Sequence[Cell]) -> bool:
    return len({tuple(cell.errors) for cell in cells}) <= 1


def _no_curve(key: str) -> list[dict[str, Any]]:
    """Along the rounds only the error is measured."""
    return []


def _cells(trials: _Trials, curve: _CurveOf) -> list[Cell]:
    """Those cells that have a trial which did not diverge."""
    made = [_cell(place, list(by_seed.values()), curve) for place, by_seed in trials.items()]
    return [cell for cell in made if cell]


def _cell(place: Place, rows: Sequence[Row], curve: _CurveOf) -> Cell | None:
    good = [row for row in sorted(rows, key=lambda row: row.seed) if row.failed is None]
    if not good:
        return None
    return Cell(
        algorithm=place.algorithm,
        epsilon=place.epsilon,
        epsilon_spent=max(row.epsilon_spent for row in good),
        clip=place.clip,
        iterations=place.iterations,
        local_steps=place.local_steps,
        rounds=round(fmean(row.rounds for row in good)),
        trials=tuple(_trial(row, curve(row.key)) for row in good),
        diverged=len(rows) - len(good),
        v=_v(good[0]),
    )


def _trial(row: Row, curve: Sequence[dict[str, Any]]) -> Trial:
    moments = tuple(Moment(**{name: point[name] for name in MOMENT}) for point in curve)
    return Trial(row.seed, row.test_error, row.train_error, moments, row.stored.measures)


def _v(row: Row) -> float | None:
    """Lemma 1 solved for its constant: sigma^2 = v C^2 pT ln(1/delta) / epsilon^2."""
    settings = row.stored.settings
    if at_label(settings) or row.epsilon == math.inf:
        return None
    releases = settings["p"] * row.iterations
    scaled = (row.stored.sigma * row.epsilon / row.clip) ** 2
    return float(scaled / (releases * math.log(1 / settings["delta"])))


def _cases(groups: dict[Group, _Trials], cells: dict[Group, list[Cell]]) -> list[Case]:
    """Private cells with the reference of the same training beside them; a reference that has no
    such company is a case too."""
    samples = {group: _sample(groups[group]) for group in _shown(cells)}
    names = convention_names({group: sample.settings for group, sample in samples.items()})
    cases = []
    for group, sample in samples.items():
        reference = cells.get(group.reference, []) if group.privacy else []
        lost = _lost(groups.get(each, {}) for each in {group, group.reference})
        cases.append(_case(group, names[group], sample, (*cells[group], *reference), lost))
    tasks = list(dict.fromkeys(case.task for case in cases))
    return sorted(cases, key=lambda case: _order(tasks.index(case.task), case))


def _shown(cells: dict[Group, list[Cell]]) -> list[Group]:
    """The groups with cells that are a case; private ones come first."""
    filled = [group for group in cells if cells[group]]
    private = [group for group in filled if group.privacy is not None]
    accompanied = {group.reference for group in private}
    return [*private, *(group for group in filled if group not in {*private, *accompanied})]


def _lost(many: Iterable[_Trials]) -> dict[Place, int]:
    """Of every cell with trials that diverged, how many."""
    by_seed = chain.from_iterable(trials.values() for trials in many)
    rows = chain.from_iterable(trials.values() for trials in by_seed)
    return Counter(row.place for row in rows if row.failed is not None)


def _order(task: int, case: Case) -> tuple[int, bool, bool, str]:
    return task, case.unit != "client", case.nominal, case.convention


def _sample(trials: _Trials) -> Stored:
    return next(iter(next(iter(trials.values())).values())).stored


def _case(
    group: Group, convention: str, sample: Stored, cells: tuple[Cell, ...], lost: dict[Place, int]
) -> Case:
    return Case(
        task=group.task,
        convention=convention,
        unit=sample.settings["unit"],
        schedule=sample.settings["schedule"],
        nominal=not at_label(sample.settings),
        meaning=meaning(sample.settings, group.privacy is not None)
        + (f"; {sample.part}" if sample.part else ""),
        error_name=sample.error_name,
        baseline=sample.baseline_error,
        cells=cells,
        privacy=group.privacy,
        constants=sample.constants,
        diverged=lost,
    )
