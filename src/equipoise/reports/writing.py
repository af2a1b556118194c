"""`equipoise report`: a store in, a folder of figures, tables and one interactive page out."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError, InvalidValue
from equipoise.paper.observations.check import observe
from equipoise.reports.drawing import check_libraries, save, styled
from equipoise.reports.figures import error_by_clip, error_by_iterations, error_by_steps, surface
from equipoise.reports.more_figures import nominal_and_exact, progress, steps_by_clip, units
from equipoise.reports.optima import by_error, curves, laws, optimum, reference_iterations
from equipoise.reports.page import page
from equipoise.reports.reading import read_study
from equipoise.reports.study import Study, error_text, number
from equipoise.reports.tables import tables, write_csv

MARK = "report.json"


@dataclass(frozen=True)
class Summary:
    """A report that was written: its files, the best local steps of every budget, and what a reader
    must know."""

    out: Path
    files: tuple[Path, ...]
    best: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(
            [self.best, *self.notes, f"{len(self.files)} files; open {self.out / 'index.html'}"]
        )


def write_report(store: Path, out: Path) -> Summary:
    """Write the report of a store into a folder, new or that of an earlier report."""
    check_libraries()
    _check_folder(out)
    study = read_study(store)
    observations = observe(study)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as part:
            new = Path(part)
            figures, left_out = _draw(study, new / "figures")
            (new / "tables").mkdir()
            for name, table in tables(study, observations).items():
                write_csv(new / "tables" / name, table)
            links = [f"figures/{path.name}" for path in figures]
            (new / "index.html").write_text(
                page(study, observations, links, left_out), encoding="utf-8"
            )
            names = sorted(
                str(path.relative_to(new).as_posix()) for path in new.rglob("*") if path.is_file()
            )
            (new / MARK).write_text(
                json.dumps({"equipoise": "report", "files": names}, indent=1) + "\n",
                encoding="utf-8",
            )
            _put(new, out, [*names, MARK])
    except OSError as error:
        raise EquipoiseError(f"out={out}: {error.strerror or error}") from None
    return Summary(
        out, tuple(out / name for name in names), _summary(study), (*study.notes, *left_out)
    )


def _draw(study: Study, folder: Path) -> tuple[list[Path], list[str]]:
    """Every figure that can be drawn; and, in sentences, which cannot and why."""
    folder.mkdir()
    drawn: list[Path] = []
    left_out: dict[str, list[str]] = {}
    with styled():
        for what, about, why, figure in _figures(study):
            if figure is None:
                left_out.setdefault(f"{what} ({why})", []).append(about)
            else:
                drawn += save(figure, folder / _free_name(f"{about}-{what}", drawn))
    return drawn, [
        f"No figure of {what} for {', '.join(about)}" for what, about in left_out.items()
    ]


def _figures(study: Study) -> Iterator[tuple[str, str, str, Any]]:
    """What a figure shows, of what, what it needs, and the figure (None if that is not in the
    store)."""
    for case in study.cases:
        name = case.title
        for iterations in case.values("iterations"):
            figure = error_by_steps(case, iterations)
            several = len(case.values("iterations")) > 1
            if figure or iterations == reference_iterations(case):
                yield (
                    f"local-steps{f'-T{iterations}' if several else ''}",
                    name,
                    "needs several local steps",
                    figure,
                )
        yield "clip", name, "needs several clip thresholds and local steps", error_by_clip(case)
        yield "iterations", name, "needs several numbers of iterations", error_by_iterations(case)
        yield "surface", name, "needs several budgets and local steps", surface(case)
        yield "progress", name, "needs runs of several rounds", progress(case)
    found = laws(study)
    for convention in dict.fromkeys(case.convention for case in study.cases):
        of = [law for law in found if law.convention == convention]
        for meaning in dict.fromkeys(law.meaning for law in of) or [""]:
            alike = [law for law in of if law.meaning == meaning]
            yield (
                "optimal-steps-by-clip",
                convention,
                "needs several clip thresholds and local steps",
                steps_by_clip(alike),
            )
    for task in study.tasks:
        cases = [case for case in study.cases if case.task == task]
        if any(case.nominal for case in cases):
            yield "nominal-and-exact", Path(task).name, "needs Lemma 1", nominal_and_exact(cases)
        if any(case.unit == "record" for case in cases):
            yield "units", Path(task).name, "needs both units", units(cases)


def _free_name(text: str, taken: list[Path]) -> str:
    """A file's name without suffix: plain letters, and not there yet."""
    plain = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:100] or "figure"
    stems = {path.with_suffix("").name for path in taken}
    return next(
        name
        for name in [plain, *(f"{plain}-{i}" for i in range(2, len(stems) + 3))]
        if name not in stems
    )


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InvalidValue(f"out={out} is a file: give a folder")
    if out.is_dir() and any(out.iterdir()) and _earlier(out) is None:
        raise InvalidValue(f"out={out} holds other things than a report: give a new folder")


def _earlier(out: Path) -> list[str] | None:
    """The files of an earlier report in a folder, or None if there is none."""
    try:
        mark = json.loads((out / MARK).read_text(encoding="utf-8"))
        return [str(name) for name in mark["files"]] if mark["equipoise"] == "report" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _put(new: Path, out: Path, names: list[str]) -> None:
    """Put a finished report in its place. Of an earlier one the files go; what else lies there
    stays."""
    inside = re.compile(r"(figures/|tables/)?[A-Za-z0-9.-]+")
    for name in _earlier(out) or []:
        if inside.fullmatch(name) and name not in names:
            (out / name).unlink(missing_ok=True)
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(new / name, out / name)


def _summary(study: Study) -> str:
    """The best local steps of every budget: over clip thresholds, at the reference number of
    iterations."""
    lines = []
    for case in study.cases:
        iterations = reference_iterations(case)
        found = {key: optimum(cells) for key, cells in curves(case).items() if key[3] == iterations}
        rows = [("algorithm", "budget", "best τ", "plausible τ", "clip", "test error")]
        for algorithm, epsilon in sorted({key[:2] for key in found}):
            best = min(
                (o for key, o in found.items() if key[:2] == (algorithm, epsilon)),
                key=lambda o: by_error(o.best),
            )
            cell, plausible = best.best, best.plausible
            span = _span(plausible, best.tried)
            error = error_text(cell.mean) + (
                f" ± {error_text(cell.std)}" if len(cell.trials) > 1 else ""
            )
            rows.append(
                (
                    algorithm,
                    case.budget(epsilon),
                    f"{cell.local_steps}",
                    span,
                    number(cell.clip_norm),
                    error,
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines.append(f"{case.title}, T = {iterations}: the best local steps of each budget")
        lines += [
            "  "
            + "  ".join(
                f"{text:<{width}}" for text, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in rows
        ]
        lines.append("")
    return "\n".join(lines)


def _span(plausible: tuple[int, ...], tried: tuple[int, ...]) -> str:
    """Local steps in words: from where to where, if all in between belong to them."""
    first, last = tried.index(plausible[0]), tried.index(plausible[-1])
    if len(plausible) > 1 and tried[first : last + 1] == plausible:
        return f"{plausible[0]} to {plausible[-1]}"
    return ", ".join(map(str, plausible))
