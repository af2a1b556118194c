"""A run's name in a store: the hash of what decides its numbers, where that differs from defaults.

So a new setting, whose default means what was before, renames no run.
"""

import hashlib
import json
from functools import lru_cache
from typing import Any

from equipoise.algorithms.catalogue import algorithm_spec
from equipoise.device import kind_of_device
from equipoise.settings import Run, Settings

NUMBERS = 2  # the version of the arithmetic: raise it when the numbers change that a run gives


@lru_cache
def _defaults(model: type[Settings]) -> dict[str, Any]:
    unset = model.model_construct().model_dump(mode="json")
    return {**dict.fromkeys(model.model_fields), **unset}


@lru_cache(maxsize=2**14)
def run_key(run: Run, data: str, numbers: int | None = None) -> str:
    """The key of a run on data with this fingerprint, in this version of the arithmetic."""
    document = run.model_dump(mode="json")
    document["device"] = kind_of_device(run.device)
    defaults = _defaults(Run)
    given = {name: value for name, value in document.items() if value != defaults.get(name)}
    return _digest({"run": given, "data": data, "numbers": numbers or NUMBERS})


def older_keys(run: Run, data: str) -> list[str]:
    """The keys that the same run had in earlier versions of the arithmetic, whose numbers this one
    replaces."""
    first = key_of_version_0_1(run, data)
    return [*(run_key(run, data, n) for n in range(1, NUMBERS)), *([first] if first else [])]


@lru_cache(maxsize=2**14)
def key_of_version_0_1(run: Run, data: str) -> str | None:
    """The key that version 0.1 gave the same run: it hashed every field that it had. None where the
    run says something that version 0.1 could not."""
    document: dict[str, Any] = run.model_dump(mode="json")
    options = document.pop("options")
    newer = {name for name in document if name not in FIELDS_OF_VERSION_0_1} - {"clip"}
    unsaid = all(document[name] == _defaults(Run).get(name) for name in newer)
    if options.keys() - {"h_update"} or not unsaid:
        return None
    document["clip_norm"] = document.pop("clip")
    known = algorithm_spec(run.algorithm).options
    rule = known["h_update"].default if "h_update" in known else None
    document["h_update"] = options.get("h_update", rule)
    kept = {name: value for name, value in document.items() if name in FIELDS_OF_VERSION_0_1}
    return _digest({"run": kept, "data": data, "numbers": 1})


def _digest(document: dict[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


FIELDS_OF_VERSION_0_1 = frozenset(
    (
        "clients split l2 seed data test label bounds proxy public_records delta unit neighbours "
        "trust colluding task algorithm iterations local_steps schedule p eta gamma h_update batch "
        "warm_start epsilon clip_norm noise_in sampling_rate noise_rule v simulate_noise_seed "
        "diagnostics"
    ).split()
)
