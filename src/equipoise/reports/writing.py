"""`equipoise report`: a store in, a folder of figures, tables and one interactive page out."""

import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.errors import EquipoiseError, InvalidValue
from equipoise.reports.drawing import check_libraries, save, styled
from equipoise.reports.figures.every import every_figure
from equipoise.reports.findings import Claims
from equipoise.reports.optima import (
    Law,
    Optimum,
    by_error,
    curves,
    laws,
    optimum,
    reference_iterations,
)
from equipoise.reports.page import page
from equipoise.reports.reading import read_study
from equipoise.reports.study import Case, Study, mean_and_std, number
from equipoise.reports.tables import tables, write_csv

MARK = "report.json"
NO_CLAIMS = Claims()


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


def write_report(
    store: Path, out: Path, claims: Claims = NO_CLAIMS, measure: str | None = None
) -> Summary:
    """Write the report of a store into a folder, new or that of an earlier report; and test claims
    on it. A measure takes the place of the error."""
    check_libraries()
    _check_folder(out)
    study = read_study(store, measure)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as part:
            left_out = _write(study, claims, Path(part))
            names = _put(Path(part), out)
    except OSError as error:
        raise EquipoiseError(f"out={out}: {error.strerror or error}") from None
    files = tuple(out / name for name in names)
    return Summary(out, files, _summary(study), (*study.notes, *left_out))


def _write(study: Study, claims: Claims, folder: Path) -> list[str]:
    """Write figures, tables and the page; in sentences, which figures cannot be drawn and why."""
    observations, fitted = claims.observe(study), laws(study, claims.groups)
    figures, left_out = _draw(study, fitted, folder / "figures")
    (folder / "tables").mkdir()
    for name, table in tables(study, fitted, observations).items():
        write_csv(folder / "tables" / name, table)
    links = [f"figures/{path.name}" for path in figures]
    html = page(study, claims.title, observations, links, left_out)
    (folder / "index.html").write_text(html, encoding="utf-8")
    return left_out


def _draw(study: Study, laws: Sequence[Law], folder: Path) -> tuple[list[Path], list[str]]:
    """Every figure that can be drawn; and, in sentences, which cannot and why."""
    folder.mkdir()
    drawn: list[Path] = []
    left_out: dict[str, list[str]] = {}
    with styled():
        for kind, about, needs, figure in every_figure(study, laws):
            if figure is None:
                left_out.setdefault(f"{kind} (needs {needs})", []).append(about)
            else:
                drawn += save(figure, folder / _free_name(f"{about}-{kind}", drawn))
    return drawn, [
        f"No figure of {kind} for {', '.join(about)}" for kind, about in left_out.items()
    ]


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


def _put(new: Path, out: Path) -> list[str]:
    """Put a finished report in its place, with a list of its files; these. Of an earlier report the
    files go; what else lies there stays."""
    names = sorted(path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file())
    mark = json.dumps({"equipoise": "report", "files": names}, indent=1)
    (new / MARK).write_text(mark + "\n", encoding="utf-8")
    _remove([name for name in _earlier(out) or [] if name not in names], out)
    for name in [*names, MARK]:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(new / name, out / name)
    return names


def _remove(names: Sequence[str], out: Path) -> None:
    """The files of an earlier report, and never one that lies elsewhere."""
    inside = re.compile(r"(figures/|tables/)?[A-Za-z0-9.-]+")
    for name in names:
        if name != MARK and inside.fullmatch(name):
            (out / name).unlink(missing_ok=True)


def _summary(study: Study) -> str:
    """The best local steps of every budget: over clip thresholds, at the reference number of
    iterations."""
    return "\n".join(line for case in study.cases for line in _case_summary(case))


def _case_summary(case: Case) -> list[str]:
    iterations = reference_iterations(case)
    head = ("algorithm", "budget", "best τ", "plausible τ", "clip", "test error")
    rows = [head, *(_summary_row(case, best) for best in _best_of_clips(case, iterations))]
    heading = f"{case.title}, T = {iterations}: the best local steps of each budget"
    return [heading, *_aligned(rows), ""]


def _best_of_clips(case: Case, iterations: int) -> list[Optimum]:
    """By algorithm and budget, sorted."""
    optima: dict[tuple[str, float], list[Optimum]] = {}
    for curve, cells in curves(case, iterations).items():
        optima.setdefault((curve.algorithm, curve.epsilon), []).append(optimum(cells))
    return [min(of_clips, key=lambda o: by_error(o.best)) for of_clips in optima.values()]


def _summary_row(case: Case, shown: Optimum) -> tuple[str, ...]:
    best = shown.best
    return (
        best.algorithm,
        case.budget(best.epsilon),
        f"{best.local_steps}",
        _span(shown.plausible, shown.tried),
        number(best.clip),
        mean_and_std(best),
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        texts = (f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
        lines.append(("  " + "  ".join(texts)).rstrip())
    return lines


def _span(plausible: tuple[int, ...], tried: tuple[int, ...]) -> str:
    """Local steps in words: from where to where, if all in between belong to them."""
    first, last = tried.index(plausible[0]), tried.index(plausible[-1])
    if len(plausible) > 1 and tried[first : last + 1] == plausible:
        return f"{plausible[0]} to {plausible[-1]}"
    return ", ".join(map(str, plausible))
