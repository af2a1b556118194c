"""Figs. 3 and 10: other numbers of iterations, with the local steps that a first sweep cases best
for each budget."""

import json
import math
from pathlib import Path
from typing import Any

from equipoise.errors import InvalidValue
from equipoise.reports.optima import curves, optimum, reference_iterations
from equipoise.reports.reading import read_study
from equipoise.reports.stored import PRIVACY
from equipoise.reports.study import Case

CLIP = 10.0  # of both figures
TOTALS = (0.1, 0.25, 0.5, 1.0, 2.0)  # iterations, as parts of those of the first sweep


def other_iterations(case: Case, clip: float) -> list[dict[str, Any]]:
    """Variants of a grid: by algorithm and budget the local steps that are best at this clip
    threshold, and iterations that are multiples of them."""
    T = reference_iterations(case)
    variants = []
    for curve, cells in curves(case, T).items():
        private, steps = curve.epsilon < math.inf, optimum(cells).best.local_steps
        if curve.clip == (clip if private else math.inf):
            variant = {"algorithm": curve.algorithm, "epsilon": curve.epsilon}
            tried = {"iterations": _totals(T, steps), "local_steps": steps}
            variants.append(variant | ({"clip": clip} if private else {}) | tried)
    return variants


def _totals(T: int, steps: int) -> list[int]:
    """About the parts of T, and multiples of the local steps."""
    return sorted({steps * max(1, round(part * T / steps)) for part in TOTALS})


def swept_case(store: Path, task: str, unit: str, v: float | str | None) -> Case:
    """What a store holds of this task, at an exact epsilon or with this constant of Lemma 1."""
    wanted = {"unit": unit, "v": v, "noise_rule": "exact" if v is None else "lemma1"}
    cases = [
        case
        for case in (read_study(store).cases if store.exists() else ())
        if case.task == task and case.privacy and wanted.items() <= _privacy(case).items()
    ]
    if len(cases) == 1:
        return cases[0]
    words = ", ".join(f"{name}={value}" for name, value in wanted.items() if value is not None)
    how_many = f"runs in {len(cases)} conventions" if cases else "no runs"
    raise InvalidValue(
        f"store={store} has {how_many} of task={task} with {words}: let `equipoise sweep paper "
        f"--task {task} --figure 2` fill one first, which finds the best local steps"
    )


def _privacy(case: Case) -> dict[str, Any]:
    return dict(zip(PRIVACY, json.loads(case.privacy or "[]"), strict=True))
