"""Flags of the command from the fields of a value: one flag per field, under the field's
heading.
"""

from copy import copy
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Group, Parameter
from pydantic import BaseModel, Field, create_model

from equipoise.algorithms.algorithm import Option
from equipoise.algorithms.catalogue import algorithm_options, known_options
from equipoise.device import DEVICE
from equipoise.fields import LEARNING
from equipoise.steps import Steps

HEADINGS = (
    "What is planned",
    LEARNING,
    "Own data",
    "Privacy",
    "Constants instead of a task",
    "Simulation",
)
GROUPS = {heading: Group(heading, sort_key=order) for order, heading in enumerate(HEADINGS)}

Device = Annotated[str | None, Parameter(help=f"{DEVICE} (default: cpu)")]
NAMES = {"judge_by": "--for"}  # a word that Python keeps for itself

Value = TypeVar("Value", bound=BaseModel)


def with_flags(model: type[Value]) -> type[Value]:
    """The model with what cyclopts needs to know, and a flag for every option of an algorithm and,
    where they are settings, of an optimiser."""
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        heading = extra.get("group") if isinstance(extra, dict) else None
        parameter = Parameter(
            name=NAMES.get(name),
            group=GROUPS.get(str(heading), Group(str(heading))),
            consume_multiple=field.default == ()
            or (name in ("epsilon", "records") and model.__name__ == "Question"),
            negative=(),
        )
        if heading is None:
            parameter = Parameter(show=False, parse=False)
        annotation = Annotated[field.annotation, *field.metadata, parameter]  # type: ignore[name-defined]
        if name == "epsilon":  # which may follow from --max-tpr and --fpr
            optional = copy(field)
            optional.default = None
            fields[name] = (annotation | None, optional)
        else:
            fields[name] = (annotation, field)
    options = known_options() if issubclass(model, Steps) else algorithm_options()
    for name, option in options.items():
        shown = Field(None, description=_help(option))
        fields[name] = (Annotated[_kind(option) | None, Parameter(group=GROUPS[LEARNING])], shown)
    return create_model(model.__name__, __base__=model, **fields)


def _kind(option: Option) -> Any:
    return Literal[option.choices] if option.choices else float


def _help(option: Option) -> str:
    return f"{option.help} (default: {option.default})"


def plain(model: type[Value], parsed: BaseModel | None) -> Value | None:
    """The value itself, without the flags that only the command has."""
    return None if parsed is None else model.model_validate(parsed.model_dump())
