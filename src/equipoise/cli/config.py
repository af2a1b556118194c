"""`--config FILE` of train and audit: settings from a TOML file, as flags that stand behind those
of the user.
"""

from typing import Any

from equipoise.config import read_config
from equipoise.errors import InvalidValue


def with_config(words: list[str]) -> list[str]:
    """The words of the command, with the file's settings added where no flag says otherwise."""
    if words[:1] not in (["train"], ["audit"]):
        return words
    path = _value(words, "--config")
    if path is None:
        return words
    given = {flag_of(word) for word in words}
    added: list[str] = []
    for name, value in read_config(path).items():
        flag = "--" + name.replace("_", "-")
        if flag not in given:
            added += _words(flag, value)
    return [*words, *added]


def flag_of(word: str) -> str:
    """The flag that a word of the command is, by its one spelling: --local_steps=4 is
    --local-steps."""
    return word.partition("=")[0].replace("_", "-")


def _value(words: list[str], flag: str) -> str | None:
    for place, word in enumerate(words):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag:
            if place + 1 == len(words):
                raise InvalidValue(f"{flag} needs a file: {flag} run.toml")
            return words[place + 1]
    return None


def _words(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag] if value else []
    return [flag, *(str(part) for part in (value if isinstance(value, tuple) else (value,)))]
