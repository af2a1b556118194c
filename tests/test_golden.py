"""Numbers change only with the version of the arithmetic: otherwise stores of users would mix."""

import json

import pytest

from golden_numbers import PLACE, numbers

# Last digits differ between processors; a change of the arithmetic is larger.
PRECISION, IN_SINGLE_PRECISION = 1e-9, 1e-5
SINGLE = ("own", "own, record", "network")


def flat(document, place=""):
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for name, part in items:
            yield from flat(part, f"{place} / {name}")
    else:
        yield place, document


def precision(place):
    name = (place.split(" / ") + [""] * 3)[2]
    return IN_SINGLE_PRECISION if name in SINGLE else PRECISION


@pytest.mark.slow
def test_numbers_change_only_with_the_version_of_the_arithmetic(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept, now = json.loads(PLACE.read_text()), json.loads(json.dumps(numbers(tmp_path)))
    assert kept["numbers"] == now["numbers"], "run python tests/golden_numbers.py, and say why"
    before, after = dict(flat(kept)), dict(flat(now))
    assert before.keys() == after.keys()
    changed = [
        f"{place}: {value!r}, was {before[place]!r}"
        for place, value in after.items()
        if value != pytest.approx(before[place], rel=precision(place), abs=1e-12)
    ]
    assert not changed, "\n".join(["raise equipoise.sweeps.keys.NUMBERS, or mend:", *changed])
