"""model-card.md: what a model is, on what it was trained, for what, how good it is and how to use
it. From its result alone; figures are those of public records."""

import math
from typing import TYPE_CHECKING

from equipoise.describe import adapted_facts, measure_lines
from equipoise.result import Result

if TYPE_CHECKING:
    from equipoise.tasks.reader import Reader

SHOWN = 200  # inputs whose coding is listed


def model_card(result: Result) -> str:
    """Markdown, after Mitchell et al. (2019), Model Cards for Model Reporting."""
    reader = _reader(result)
    sections = [
        f"# Model card: {result.run.task}",
        *(["**NOT TO BE RELEASED.**"] if result.adapted else []),
        "## What it is",
        _what(result, reader),
        "## How good it is",
        _quality(result),
        "## Privacy",
        _privacy(result),
        "## How to use it",
        _use(result, reader),
        *(["## What stands for which input", _coding(reader)] if reader else []),
        "## Limits",
        "\n".join(f"- {limit}" for limit in _limits(result, reader)),
    ]
    return "\n\n".join(sections) + "\n"


def _reader(result: Result) -> "Reader | None":
    """How its task reads files, if it does."""
    from equipoise.tasks.catalogue import is_named, load_reader, task_spec  # torch

    name = result.run.task
    if not is_named(name) or task_spec(name).reader is None:
        return None
    return load_reader(name, result.reading)


def _what(result: Result, reader: "Reader | None") -> str:
    run = result.run
    kind = f"A model with {result.dimension:,} parameters"
    if reader:
        kind = f"A linear model with {result.dimension:,} parameters"
        kind += f" for {', '.join(reader.answers)}"
    return (
        f"{kind}. Trained by {run.algorithm} on the records of {run.clients} clients, in "
        f"{result.rounds} rounds with {run.iterations} local steps in all (Equipoise "
        f"{result.version}). {_public(result)}"
    )


def _public(result: Result) -> str:
    return f"Taken as public: {'; '.join(result.public)}." if result.public else ""


def _quality(result: Result) -> str:
    if result.adapted:
        facts = dict(adapted_facts(result.adapted))
        return "\n".join(f"- {name}: {text}" for name, text in facts.items())
    if result.test_error is None or result.baseline_error is None:
        return "Not known: no record was public. `equipoise evaluate RUN --data FILE` measures it."
    text = (
        f"On public test records: {result.test_error:.4f} ({result.error_name}); without training "
        f"{result.baseline_error:.4f}."
    )
    if alone := result.public_only:
        text += f" Of {alone.records} public records alone: {alone.test_error:.4f}."
    if result.measures:
        text += "\n\n```\n" + "\n".join(measure_lines(result.measures)) + "\n```"
    return text


def _privacy(result: Result) -> str:
    run, epsilon = result.run, result.account.epsilon
    if result.adapted:
        return (
            "None: tuned on one client's own records without noise. It stays where they are; see "
            "`not-to-be-released.md`."
        )
    spent = "none: epsilon = inf" if epsilon == math.inf else f"epsilon = {epsilon:.6g}"
    whom = f"for one {run.unit} ({run.neighbours}; trust: {run.trust})"
    verdict = "" if result.private else "**NOT PRIVATE.** "
    delta = "" if epsilon == math.inf else f" at delta = {run.delta:g} {whom}"
    return f"{verdict}{spent}{delta}. `guarantee.md` is the complete statement."


def _use(result: Result, reader: "Reader | None") -> str:
    shapes = [f"`{name}` {[*shape]}" for name, shape in result.parameters.items()]
    lines = [f"- `model.safetensors` holds the parameters: {', '.join(shapes)}."]
    if reader:
        lines = [
            "- `equipoise predict RUN new.csv --out predictions.csv`, RUN being this folder, or in "
            "Python `equipoise.load(RUN).predict(frame)`. No label is needed.",
            "- `equipoise.load(RUN).model` is a torch module on coded inputs.",
            f"{lines[0]} Its last column is the bias; inputs are in the order below.",
        ]
    else:
        lines.insert(0, "- `equipoise.load(RUN).model` in Python is the torch module.")
    return "\n".join(lines)


def _coding(reader: "Reader") -> str:
    names = reader.coding()
    more = [f"- and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    lines = [f"- input {i}: {name}" for i, name in enumerate(names[:SHOWN])]
    return "\n".join([*lines, *more])


def _limits(result: Result, reader: "Reader | None") -> list[str]:
    limits = [
        "It knows what its clients' records had in common, and is no better elsewhere: measure it "
        "on records of the place where it is to be used.",
        "Noise that protects the records may weigh on small groups most: measure it on each of "
        "them.",
    ]
    if reader:
        limits.append(
            "A cell that is missing, out of bounds or of no declared category is filled or "
            "clipped, and a prediction is made all the same: `equipoise predict` counts them."
        )
    return limits
