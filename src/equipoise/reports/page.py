"""The report as one HTML page that needs nothing else: no network, no other file."""

from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from equipoise.reports.findings import Observation, how_many
from equipoise.reports.optima import Optimum, curves, optimum
from equipoise.reports.page_data import case_data
from equipoise.reports.study import NOT_PRIVATE, Case, Study, mean_and_std, number

TITLE = "Local steps, rounds and a privacy budget"
CHOSEN = "For the task and the meaning of ε selected above."


class Row(NamedTuple):
    """A line of a table, and the numbers of the cases that it is about ("" for all)."""

    values: tuple[str, ...]
    cases: str = ""


class Table(NamedTuple):
    head: tuple[str, ...]
    rows: list[Row]


class Seen(NamedTuple):
    """An observation, and the numbers of the cases that it is about."""

    observation: Observation
    cases: str


class Hypothesis(NamedTuple):
    """A hypothesis with its test, the numbers of the cases that it was tested on, and what came
    out."""

    number: str
    hypothesis: str
    test: str
    cases: str
    rows: list[Seen]


def page(
    study: Study,
    claims: str,
    observations: list[Observation],
    figures: Sequence[str],
    left_out: Sequence[str],
) -> str:
    """The page; `claims` is the heading of the observations, `figures` are paths beside it, to be
    linked."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    here = files("equipoise.reports")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    template = environment.from_string(here.joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        title=TITLE,
        subtitle=_subtitle(study),
        notes=[*study.notes, *left_out],
        contents=contents(study),
        optima=optima_table(study),
        chosen=CHOSEN,
        claims=claims,
        how_many=how_many(observations),
        hypotheses=hypotheses(study, observations),
        figures=figures,
        data={"cases": [case_data(case) for case in study.cases]},
        plotly=Markup(get_plotlyjs()),
        script=Markup(here.joinpath("page.js").read_text(encoding="utf-8")),
    )


def _subtitle(study: Study) -> str:
    tasks = len(study.tasks)
    conventions = len({case.convention for case in study.cases})
    words = [f"{study.runs:,} runs", f"{tasks} task{'s' if tasks > 1 else ''}"]
    if conventions > 1:
        words.append(f"{conventions} different meanings of ε")
    return ", ".join(words)


def contents(study: Study) -> Table:
    """What the store holds, a line for each case."""
    head = (
        "task",
        "convention",
        "what ε means",
        "algorithms",
        "budgets ε",
        "clip C",
        "T",
        "trials",
    )
    return Table(head, [_contents_row(case) for case in study.cases])


def _contents_row(case: Case) -> Row:
    trials = sorted({len(cell.trials) for cell in case.cells})
    budgets = [case.budget(epsilon).removeprefix("ε = ") for epsilon in case.values("epsilon")]
    return Row(
        (
            case.task,
            case.convention,
            case.meaning,
            ", ".join(case.values("algorithm")),
            ", ".join(budgets),
            ", ".join(number(clip) for clip in case.values("clip")),
            ", ".join(map(str, case.values("iterations"))),
            f"{trials[0]}" if len(trials) == 1 else f"{trials[0]} to {trials[-1]}",
        )
    )


def optima_table(study: Study) -> Table:
    """The best local steps of every curve."""
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
    rows = [
        _optimum_row(case, best, str(i))
        for i, case in enumerate(study.cases)
        for best in _optima(case)
    ]
    return Table(head, rows)


def _optima(case: Case) -> Iterator[Optimum]:
    for curve, cells in curves(case).items():
        if curve.iterations in case.values("iterations"):
            yield optimum(cells)


def _optimum_row(case: Case, shown: Optimum, cases: str) -> Row:
    best = shown.best
    end = {"fewest": "fewest tried", "most": "most tried"}.get(shown.edge, shown.edge)
    values = (
        best.algorithm,
        case.budget(best.epsilon),
        number(best.clip),
        f"{best.iterations}",
        f"{best.local_steps}",
        ", ".join(map(str, shown.plausible)),
        end,
        mean_and_std(best),
        f"{len(best.trials)}",
    )
    return Row(values, cases)


def hypotheses(study: Study, observations: Sequence[Observation]) -> list[Hypothesis]:
    """What was observed under each hypothesis."""
    groups: dict[tuple[str, str, str], list[Observation]] = {}
    for seen in observations:
        finding = seen.finding
        key = (finding.number, finding.hypothesis, finding.test)
        groups.setdefault(key, []).append(seen)
    return [Hypothesis(*key, *_about(study, together)) for key, together in groups.items()]


def _about(study: Study, observations: Sequence[Observation]) -> tuple[str, list[Seen]]:
    """The cases of all observations, and each with its own."""
    cases = [_cases_of(study, seen) for seen in observations]
    rows = [Seen(seen, _joined(own)) for seen, own in zip(observations, cases, strict=True)]
    return _joined(set[int]().union(*cases)), rows


def _cases_of(study: Study, seen: Observation) -> set[int]:
    """The numbers of the cases that an observation is about: what concerns runs without noise is
    about every case of its task that shows them."""
    return {
        i
        for i, case in enumerate(study.cases)
        if case.task in seen.tasks and seen.convention in _conventions(case)
    }


def _conventions(case: Case) -> set[str]:
    return {case.convention, NOT_PRIVATE} if case.reference else {case.convention}


def _joined(numbers: set[int]) -> str:
    return " ".join(map(str, sorted(numbers)))
