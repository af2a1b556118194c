"""The report as one HTML page that needs nothing else: no network, no other file."""

import json
import math
import re
from collections.abc import Collection, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from equipoise.paper.observations.check import Observation, how_many
from equipoise.reports.drawing import colours
from equipoise.reports.optima import along_iterations, curves, optimum, reference_iterations
from equipoise.reports.study import Case, Cell, Study, error_text, number


def page(
    study: Study, observations: list[Observation], figures: Sequence[str], left_out: Sequence[str]
) -> str:
    """The page; `figures` are paths beside it, to be linked."""
    from plotly.offline import get_plotlyjs

    here = files("equipoise.reports")
    parts = {
        "title": "Local steps, rounds and a privacy budget",
        "subtitle": escape(_subtitle(study)),
        "notes": _list([*study.notes, *left_out]),
        "contents": contents(study),
        "optima": optima_table(study),
        "how_many": escape(how_many(observations)),
        "observations": observations_table(study, observations),
        "figures": _links(figures),
        "footer": "Written by <code>equipoise report</code>. The numbers are in "
        "<code>tables/</code>, as CSV.",
        "data": as_json({"cases": [case_data(case) for case in study.cases]}),
        "plotly": get_plotlyjs(),
        "script": here.joinpath("page.js").read_text(encoding="utf-8"),
    }
    template = here.joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def as_json(document: Any) -> str:
    """JSON that may stand in a script element: without any character that could end it."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def case_data(case: Case) -> dict[str, Any]:
    """What the page's figures need of a case. Budgets and clip norms are strings: JSON has no
    infinity."""
    from matplotlib.colors import to_hex

    budgets = case.values("epsilon")
    colour = colours(budgets)
    every = curves(case)
    found = {key: cells for key, cells in every.items() if key[3] in case.values("iterations")}
    reference = reference_iterations(case)
    ways = {key: optimum(cells).best for key, cells in found.items() if key[3] == reference}
    along, rule = along_iterations(case)
    return {
        "task": case.task,
        "convention": case.convention,
        "meaning": case.meaning,
        "error": case.error_name,
        "baseline": case.baseline,
        "budgets": [
            {"epsilon": _name(e), "label": case.budget(e), "colour": to_hex(colour[e])}
            for e in budgets
        ],
        "algorithms": case.values("algorithm"),
        "clips": [_name(clip) for clip in case.values("clip_norm")],
        "iterations": case.values("iterations"),
        "reference": reference,
        "cells": [_cell_data(cell) for cells in every.values() for cell in cells],
        "optima": [_optimum_data(cells) for cells in found.values()],
        "rule": rule,
        "along": [
            {**_key(key), "cells": [(cell.iterations, cell.local_steps) for cell in cells]}
            for key, cells in along.items()
            if len(cells) > 1
        ],
        "curves": [
            {
                **_key(key),
                "local_steps": best.local_steps,
                "points": [
                    (m.iteration, m.test_error, m.train_error, m.clipped if best.private else None)
                    for m in best.curve
                ],
            }
            for key, best in ways.items()
            if len(best.curve) > 1
        ],
    }


def _key(key: Sequence[Any]) -> dict[str, Any]:
    return {"algorithm": key[0], "epsilon": _name(key[1]), "clip": _name(key[2])}


def _cell_data(cell: Cell) -> dict[str, Any]:
    return {
        **_key((cell.algorithm, cell.epsilon, cell.clip_norm)),
        "spent": "inf" if cell.epsilon_spent == math.inf else number(cell.epsilon_spent),
        "iterations": cell.iterations,
        "local_steps": cell.local_steps,
        "rounds": cell.rounds,
        "mean": cell.mean,
        "std": None if math.isnan(cell.std) else cell.std,
        "train": cell.train_mean,
        "trials": len(cell.trials),
    }


def _optimum_data(cells: Sequence[Cell]) -> dict[str, Any]:
    found = optimum(cells)
    return {
        **_key((found.best.algorithm, found.best.epsilon, found.best.clip_norm)),
        "iterations": found.best.iterations,
        "local_steps": found.best.local_steps,
        "low": found.plausible[0],
        "high": found.plausible[-1],
        "plausible": ", ".join(map(str, found.plausible)),
    }


def _name(value: float) -> str:
    if value == math.inf:
        return "inf"
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _subtitle(study: Study) -> str:
    tasks = len(study.tasks)
    conventions = len({case.convention for case in study.cases})
    words = [
        f"{study.runs:,} runs",
        f"{tasks} task{'s' if tasks > 1 else ''}",
        f"ε means {conventions} different things",
    ]
    return ", ".join(words if conventions > 1 else words[:2])


def contents(study: Study) -> str:
    rows = []
    for case in study.cases:
        trials = sorted({len(cell.trials) for cell in case.cells})
        rows.append(
            (
                case.task,
                case.convention,
                case.meaning,
                ", ".join(case.values("algorithm")),
                ", ".join(
                    case.budget(epsilon).removeprefix("ε = ") for epsilon in case.values("epsilon")
                ),
                ", ".join(number(clip) for clip in case.values("clip_norm")),
                ", ".join(map(str, case.values("iterations"))),
                f"{trials[0]}" if len(trials) == 1 else f"{trials[0]} to {trials[-1]}",
            )
        )
    return _table(
        ("task", "convention", "what ε means", "algorithms", "budgets ε", "clip C", "T", "trials"),
        rows,
    )


def optima_table(study: Study) -> str:
    rows, cases = [], []
    for i, case in enumerate(study.cases):
        for key, cells in curves(case).items():
            if key[3] not in case.values("iterations"):
                continue
            found = optimum(cells)
            best = found.best
            plausible = ", ".join(map(str, found.plausible))
            error = error_text(best.mean) + (
                "" if math.isnan(best.std) else f" ± {error_text(best.std)}"
            )
            end = {"fewest": "fewest tried", "most": "most tried"}.get(found.edge, found.edge)
            row = (
                best.algorithm,
                case.budget(best.epsilon),
                number(best.clip_norm),
                f"{best.iterations}",
            )
            rows.append((*row, f"{best.local_steps}", plausible, end, error, f"{len(best.trials)}"))
            cases.append(str(i))
    head = (
        "algorithm",
        "budget",
        "clip C",
        "T",
        "best τ",
        "plausible τ",
        "at an end",
        "test error",
        "trials",
    )
    return _table(head, rows, cases, CHOSEN, numbers={2, 3, 4, 7, 8})


def observations_table(study: Study, observations: list[Observation]) -> str:
    """Findings under their hypotheses; the rows are about the cases whose numbers they name."""
    groups: dict[tuple[str, str, str], list[tuple[Observation, set[int]]]] = {}
    for seen in observations:
        of = {seen.task, *seen.task.split(" + ")}
        about = {
            i
            for i, case in enumerate(study.cases)
            if case.convention == seen.convention and case.task in of
        }
        groups.setdefault((*seen.finding[:2], seen.finding.test), []).append((seen, about))
    lines = []
    for (label, hypothesis, test), found in groups.items():
        every = " ".join(map(str, sorted(set.union(*(about for _, about in found)))))
        said = (
            f"<strong>{escape(label)}. {escape(hypothesis)}</strong><br><span "
            f'class="soft">{escape(test)}</span>'
        )
        lines.append(
            f'<tr class="hypothesis" data-cases="{every}"><td colspan="5">{said}</td></tr>'
        )
        for seen, about in found:
            f = seen.finding
            verdict = (
                f'<span class="verdict {f.verdict.replace(" ", "-")}">{escape(f.verdict)}</span>'
            )
            cells = (
                escape(seen.algorithm),
                escape(f.where),
                verdict,
                escape(f.effect),
                f"{f.trials or ''}",
            )
            row = "".join(f"<td>{cell}</td>" for cell in cells)
            lines.append(
                f'<tr class="finding" data-cases="{" ".join(map(str, sorted(about)))}">{row}</tr>'
            )
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("algorithm", "where", "verdict", "effect", "trials")
    )
    return f"<table><caption>{CHOSEN}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


CHOSEN = "The task and convention are those chosen above."


def _table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    cases: Sequence[str] = (),
    caption: str = "",
    numbers: Collection[int] = (),
) -> str:
    """A table in which everything is escaped; `cases` says of every row which of the cases it is
    about."""
    kind = [' class="number"' if i in numbers else "" for i in range(len(head))]
    lines = [
        f"<table><caption>{escape(caption)}</caption><thead><tr>"
        if caption
        else "<table><thead><tr>"
    ]
    lines += [f'<th scope="col"{kind[i]}>{escape(name)}</th>' for i, name in enumerate(head)]
    lines.append("</tr></thead><tbody>")
    for i, row in enumerate(rows):
        about = f' data-cases="{escape(cases[i])}"' if cases else ""
        lines.append(
            f"<tr{about}>{''.join(f'<td{kind[j]}>{escape(value)}</td>' for j, value in enumerate(row))}</tr>"
        )
    return "\n".join([*lines, "</tbody></table>"])


def _list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def _links(paths: Sequence[str]) -> str:
    items = "".join(f'<li><a href="{escape(path)}">{escape(path)}</a></li>' for path in paths)
    return f"<ul>{items}</ul>" if items else "<p>None could be drawn.</p>"
