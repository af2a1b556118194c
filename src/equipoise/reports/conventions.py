"""What epsilon means in a case, in words: a short name for it, and the whole sentence."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from equipoise.privacy.mechanisms.catalogue import mechanism
from equipoise.privacy.promise import too_large
from equipoise.reports.stored import PRIVACY, TRAINING, Group
from equipoise.reports.study import NOT_PRIVATE

Settings = dict[str, Any]
MOST_FILES = 3  # whose names stand in a title


def convention_names(groups: Mapping[Group, Settings]) -> dict[Group, str]:
    """A name for each case, with the settings in which it differs from others of its task that
    would be called the same."""
    labels = {group: _label(group, settings) for group, settings in groups.items()}
    names: dict[Group, str] = {}
    count: Counter[tuple[str, str]] = Counter()
    for group, label in labels.items():
        alike = [
            groups[other] for other in groups if (other.task, labels[other]) == (group.task, label)
        ]
        name = ", ".join([label, *_differences(groups[group], alike)])
        count[group.task, name] += 1
        again = count[group.task, name]
        names[group] = name if again == 1 else f"{name} ({again})"
    return names


def _label(group: Group, settings: Settings) -> str:
    if group.privacy is None:
        return NOT_PRIVATE
    if settings["unit"] != "client":
        return f"{settings['unit']} unit"
    return _rule(settings)


def _rule(settings: Settings) -> str:
    v = settings["v"]
    return str(settings["noise_rule"]) + ("" if v is None else f" v={v}")


def at_label(settings: Settings) -> bool:
    """Whether runs spend at most the epsilon that they are labelled with."""
    return mechanism(settings["unit"], settings["noise_in"], settings["noise_rule"]).at_label


def _differences(settings: Settings, alike: Sequence[Settings]) -> list[str]:
    """The settings in which these are not all alike."""
    return [
        _setting(name, settings[name])
        for name in (*PRIVACY, *TRAINING)
        if any(other[name] != settings[name] for other in alike)
    ]


def _setting(name: str, value: Any) -> str:
    """A setting for a title: of files their names, or where they are many the first and the
    last."""
    if not isinstance(value, list | tuple):
        return f"{name}={value}"
    files = [PurePath(str(file)).name for file in value]
    if len(files) > MOST_FILES:
        return f"{name}: {files[0]} to {files[-1]} ({len(files)} files)"
    return f"{name}: {' + '.join(files) or 'none'}"


def meaning(settings: Settings, private: bool) -> str:
    """What epsilon means here, in words."""
    clients = f"{settings['clients']} clients"
    if not private:
        return f"no noise, no clip; {clients}"
    rule = "ε is exact or an upper bound"
    if not at_label(settings):
        rule = f"ε is a label: noise rule {_rule(settings)}"
    noise = f", noise in the {settings['noise_in']}" if settings["unit"] != "client" else ""
    protects = f"unit: one {settings['unit']} ({settings['neighbours']}){noise}"
    trust = f"trust: {settings['trust']}; δ = {settings['delta']:g}"
    if settings["unit"] == "client" and too_large(settings["delta"], settings["clients"]):
        trust += " (not below 1 / number of clients: not private)"
    return f"{rule}; {protects}; {trust}; {clients}"
