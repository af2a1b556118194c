"""What is wrong with a setting, in one sentence, and which one may be meant."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from equipoise.algorithms.catalogue import known_options
from equipoise.errors import InvalidValue


def first_sentence(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """What is wrong, in our own words where a rule of ours was broken.

    A value is repeated only if it is a short one that a user typed: never a task, nor its data.
    """
    errors = error.errors()
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValue):
        return str(cause)
    name = str(first["loc"][0]) if first["loc"] else "settings"
    if first["type"] == "missing":
        return f"{name} is missing"
    if first["type"] == "extra_forbidden":
        return unknown_setting(name, model)
    in_a_list = any(isinstance(place, int) for place in first["loc"])
    value = "" if in_a_list else shown(first["input"])
    return f"{name}{value}: {first['msg'][0].lower()}{first['msg'][1:]}"


def shown(value: Any) -> str:
    """A value behind its name, `=2`, if it is a short one that a user typed."""
    if isinstance(value, str | int | float | None) and len(str(value)) <= 200:
        return f"={value!r}"
    return "" if isinstance(value, Mapping) else f" (a {type(value).__name__})"


def unknown_setting(name: str, model: type[BaseModel] | None) -> str:
    """That there is no such setting, and which one may be meant."""
    fields = [field for field in (model.model_fields if model else ()) if field != "options"]
    return f"unknown setting {name}{hint(name, [*fields, *known_options()])}"


_OTHER_NAMES = {
    "eta": "lr learning_rate step_size",
    "local_steps": "tau steps local_iterations",
    "clients": "n_clients num_clients",
    "epsilon": "eps",
    "clip": "c max_grad_norm",
    "batch": "batch_size",
}
ALSO_CALLED = {other: name for name, others in _OTHER_NAMES.items() for other in others.split()}
NO_SETTING = {
    **dict.fromkeys(("sigma", "noise", "noise_multiplier"), "the noise follows from epsilon"),
    "rounds": "rounds are iterations / local steps",
    "options": "give each option by its own name",
}


def hint(name: str, known: list[str], before: str = "") -> str:
    """What a wrong name may mean, to be put behind it; `before` is "--" where names are flags."""
    if about := NO_SETTING.get(name.replace("-", "_")):
        return f": {about}"
    near = near_setting(name, [other.replace("-", "_") for other in known])
    return f": did you mean {before}{near.replace('_', '-') if before else near}?" if near else ""


def near_setting(name: str, known: list[str]) -> str | None:
    """The setting that a wrong name may mean: by another name that is in use, or by its letters."""
    from difflib import get_close_matches

    name = name.replace("-", "_").lower()
    if ALSO_CALLED.get(name) in known:
        return ALSO_CALLED[name]
    words = [*known, "version", "help"]  # which may be meant, and are no settings
    near = [] if name in NO_SETTING else get_close_matches(name, words, n=1, cutoff=0.75)
    return near[0] if near and near[0] in known else None
