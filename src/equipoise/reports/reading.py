"""A store, read for a report: which runs are trials of the same cell, and which cells may share an
axis."""

import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from equipoise.errors import DataError
from equipoise.reports.study import NOT_PRIVATE, Case, Cell, Moment, Study, Trial
from equipoise.result import Result
from equipoise.sweeps.store import Store

AXES = {
    "algorithm",
    "epsilon",
    "clip_norm",
    "iterations",
    "local_steps",
    "p",
    "seed",
    "simulate_noise_seed",
    "h_update",
}
PRIVACY = ("noise_rule", "v", "unit", "neighbours", "trust", "colluding", "delta", "noise_in")
TRAINING = tuple(
    name
    for name in Result.model_fields
    if name not in {*Result.__annotations__, *AXES, *PRIVACY, "task", "diagnostics"}
)


def read_study(path: Path) -> Study:
    """Read all finished runs of a store."""
    notes = []
    with Store(path, read_only=True) as store:
        rows = store.table()
        if failures := store.failures():
            notes.append(
                f"{len(failures)} runs could not be run at all, for example: "
                f"{next(iter(failures.values()))}"
            )
        if not rows:
            why = notes[0] if failures else "let `equipoise sweep` finish some first"
            raise DataError(f"store={path} holds no finished run: {why}")
        usable = [
            row
            for row in rows
            if row["local_steps"] is not None and (row["test_error"] is not None or row["failed"])
        ]
        if len(usable) < len(rows):
            notes.append(
                f"{len(rows) - len(usable)} runs have no test error, or no fixed number of local "
                f"steps: left out"
            )
        groups: dict[Any, dict[Any, dict[int, dict[str, Any]]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        repeated = 0
        for row in usable:
            row["said"] = json.loads(row.pop("result"))
            trials = groups[_case_key(row)][_cell_key(row)]
            repeated += (
                row["seed"] in trials and row["epsilon"] < math.inf
            )  # what has no noise, conventions may each have run
            trials[row["seed"]] = row
        if repeated:
            notes.append(
                f"{repeated} runs repeat a trial, on other data or by another version: the newest "
                f"of each was taken"
            )
        cells = {
            key: [
                cell for trials in group.values() if (cell := _cell(list(trials.values()), store))
            ]
            for key, group in groups.items()
        }
    if diverged := sum(row["failed"] is not None for row in usable):
        notes.append(
            f"{diverged} runs diverged: a cell with such a trial is never taken for the best"
        )
    samples = {
        key: next(iter(next(iter(group.values())).values())) for key, group in groups.items()
    }
    lost = {(_case_key(row), _cell_key(row)) for row in usable if row["failed"] is not None}
    cases = _cases(cells, samples, lost)
    if not cases:
        raise DataError(f"store={path} holds no run with a test error: nothing can be drawn")
    together = [
        {tuple(c.errors) for c in case.cells if c.private is private}
        for case in cases
        for private in (True, False)
    ]
    if any(len(seeds) > 1 for seeds in together) and not diverged:
        notes.append(
            "cells do not have the same trials (a search, or a sweep that still runs): their "
            "means are not on a par"
        )
    return Study(tuple(cases), len(rows), tuple(notes))


def _case_key(row: dict[str, Any]) -> tuple[str, str | None, str]:
    """Task, privacy (None if there is none), and everything else about the training that is no
    axis."""
    said = row["said"]
    privacy = (
        None if row["epsilon"] == math.inf else json.dumps([said.get(name) for name in PRIVACY])
    )
    return row["task"], privacy, json.dumps([said.get(name) for name in TRAINING])


def _cell_key(row: dict[str, Any]) -> tuple[Any, ...]:
    return _algorithm(row), row["epsilon"], row["clip_norm"], row["iterations"], row["local_steps"]


def _algorithm(row: dict[str, Any]) -> str:
    """The algorithm, with its rule for h where that is not the paper's."""
    rule = row["said"].get("h_update")
    return str(row["algorithm"]) + (f" (h: {rule})" if rule not in (None, "paper") else "")


def _cell(rows: list[dict[str, Any]], store: Store) -> Cell | None:
    well = [row for row in rows if row["failed"] is None]
    if not well:
        return None
    curves = [store.curve(row["key"]) for row in well]
    trials = tuple(
        Trial(row["seed"], row["test_error"], row["train_error"], *_clipped(curve))
        for row, curve in zip(well, curves, strict=True)
    )
    algorithm, epsilon, clip, iterations, local_steps = _cell_key(well[0])
    return Cell(
        algorithm,
        epsilon,
        max(row["epsilon_spent"] for row in well),
        clip,
        iterations,
        local_steps,
        well[0]["rounds"],
        tuple(sorted(trials, key=lambda trial: trial.seed)),
        len(rows) - len(well),
        _mean_curve(curves),
        _v(well[0]),
    )


def _v(row: dict[str, Any]) -> float | None:
    """Lemma 1 solved for its constant: sigma^2 = v C^2 pT ln(1/delta) / epsilon^2."""
    said = row["said"]
    if said["noise_rule"] != "lemma1" or row["epsilon"] == math.inf:
        return None
    releases = said["p"] * row["iterations"]
    return float(
        (said["sigma"] * row["epsilon"] / row["clip_norm"]) ** 2
        / (releases * math.log(1 / said["delta"]))
    )


def _clipped(curve: list[dict[str, Any]]) -> tuple[float | None, float | None]:
    """The mean share of clipped messages in the first and in the last third of the rounds, as far
    as they were measured."""
    points = [(point["round"], point["clipped"]) for point in curve if point["clipped"] is not None]
    last = max((round for round, _ in points), default=0)
    thirds = (
        [share for r, share in points if 3 * r <= last],
        [share for r, share in points if 3 * r > 2 * last],
    )
    return (
        (statistics.fmean(thirds[0]), statistics.fmean(thirds[1])) if all(thirds) else (None, None)
    )


def _mean_curve(curves: list[list[dict[str, Any]]]) -> tuple[Moment, ...]:
    moments: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for curve in curves:
        for point in curve:
            moments[point["round"], point["iteration"]].append(point)

    def mean(points: list[dict[str, Any]], name: str) -> float | None:
        values = [point[name] for point in points if point[name] is not None]
        return statistics.fmean(values) if values else None

    names = ("test_error", "train_error", "clipped", "update_norm")
    return tuple(
        Moment(*at, *(mean(points, name) for name in names))
        for at, points in sorted(moments.items())
    )


def _cases(
    cells: dict[Any, list[Cell]], samples: dict[Any, dict[str, Any]], lost: set[tuple[Any, Any]]
) -> list[Case]:
    """Private cells with the reference of the same training beside them; a reference that has no
    such company is a case too."""
    private = [key for key in cells if key[1] is not None and cells[key]]
    alone = [
        key
        for key in cells
        if key[1] is None
        and cells[key]
        and not any((k[0], k[2]) == (key[0], key[2]) for k in private)
    ]
    labels = {key: _label(samples[key]["said"], key[1] is not None) for key in [*private, *alone]}
    cases = []
    for key, label in labels.items():
        alike = [
            samples[k]["said"] for k, other in labels.items() if k[0] == key[0] and other == label
        ]
        names = [
            name
            for name in (*PRIVACY, *TRAINING)
            if len({json.dumps(said.get(name)) for said in alike}) > 1
        ]
        said = samples[key]["said"]
        unlike = "".join(f", {name}={said.get(name)}" for name in names)
        free = (key[0], None, key[2])
        reference = cells.get(free, []) if key[1] else []
        case = Case(
            key[0],
            label + unlike,
            said["unit"],
            said["noise_rule"] == "lemma1",
            _meaning(said, key[1] is not None),
            said["error_name"],
            said["baseline_error"],
            (*cells[key], *reference),
            key[1],
            (said["mu"], said["L"]) if said.get("mu") and said.get("L") else None,
            frozenset(cell for of, cell in lost if of in (key, free)),
        )
        cases.append(case)
    tasks = list(dict.fromkeys(case.task for case in cases))
    return sorted(
        cases,
        key=lambda case: (
            tasks.index(case.task),
            case.unit == "record",
            case.nominal,
            case.convention,
        ),
    )


def _label(said: dict[str, Any], private: bool) -> str:
    if not private:
        return NOT_PRIVATE
    if said["unit"] == "record":
        return "record unit"
    return "exact" if said["noise_rule"] == "exact" else f"lemma1 v={said['v']}"


def _meaning(said: dict[str, Any], private: bool) -> str:
    """What epsilon means here, in words."""
    clients = f"{said['clients']} clients"
    if not private:
        return f"no noise, no clip; {clients}"
    rule = (
        "ε is exact or an upper bound"
        if said["noise_rule"] == "exact"
        else f"ε is a label: Lemma 1 with v = {said['v']}"
    )
    noise = f", noise in the {said['noise_in']}" if said["unit"] == "record" else ""
    protects = f"unit: one {said['unit']} ({said['neighbours']})"
    return f"{rule}; {protects}{noise}; trust: {said['trust']}; δ = {said['delta']:g}; {clients}"
