"""The engines whose files are read, each recognised by what a file holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.errors import DataError
from equipoise.privacy.foreign import dp_events, flower, numbers, nvflare, opacus
from equipoise.privacy.foreign.reading import Given, Reading, parse_json, parse_toml, read_text


class Engine(NamedTuple):
    """How its files are recognised, and read."""

    fits: Callable[[Any], bool]
    read: Callable[[Any, Path, Given], Reading]


ENGINES = {
    "Flower, pyproject.toml of an app": Engine(flower.fits, flower.read),
    "NVFlare, config_fed_client.json": Engine(nvflare.fits, nvflare.read),
    "Opacus, state of an accountant as JSON": Engine(opacus.fits, opacus.read),
    "dp-accounting, an event as JSON": Engine(dp_events.fits, dp_events.read),
    "numbers, [[phase]] in TOML or JSON": Engine(numbers.fits, numbers.read),
}


def read(path: Path, given: Given) -> Reading:
    """What the file says, whoever wrote it; a folder stands for the pyproject.toml in it."""
    if path.is_dir():
        path = path / "pyproject.toml"
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.suffix == ".py":
        return flower.read_code(path, given)
    text = read_text(path)
    document = parse_toml(text, path) if path.suffix == ".toml" else parse_json(text, path)
    for engine in ENGINES.values():
        if engine.fits(document):
            return engine.read(document, path, given)
    raise DataError(f"{path} is nothing that can be read: known are {'; '.join(ENGINES)}")
