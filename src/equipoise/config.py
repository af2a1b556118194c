"""The settings of one run in a TOML file, like a sweep's but without lists."""

import os
import tomllib
from typing import Any

from equipoise.algorithms.catalogue import known_options
from equipoise.errors import DataError, InvalidValue, require
from equipoise.refusals import unknown_setting
from equipoise.settings import LISTS, SAME_CLIP, Settings


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings that the file gives, by name."""
    place = os.fspath(path)
    try:
        with open(place, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise InvalidValue(f"config={place}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{place} is not TOML: {error}") from None
    known = {*Settings.model_fields, *known_options(), "clip_norm", "name"} - {"options"}
    for name, value in document.items():
        if name not in known:
            raise InvalidValue(f"{place}: {unknown_setting(name, Settings)}")
        if isinstance(value, list) and name not in LISTS:
            raise InvalidValue(
                f"{place}: {name} is a list, but a run has one value; `equipoise sweep` takes lists"
            )
    document.pop("name", None)
    if "clip_norm" in document:
        require("clip" not in document, f"{place}: {SAME_CLIP}")
        document["clip"] = document.pop("clip_norm")
    return {name: tuple(v) if isinstance(v, list) else v for name, v in document.items()}
