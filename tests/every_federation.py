"""Every combination of algorithm, schedule, unit and trust between real processes: `make
test-federation`. The two that stand for all are in test_silos.py."""

from itertools import product

import pytest

from real_silos import RUN, check_same, federation

__all__ = ["federation"]  # a fixture

COMBINATIONS = [
    combination
    for combination in product(
        ("dp-fedavg", "dp-scaffnew"),
        ("periodic", "coin"),
        ("client", "record"),
        ("local", "secure-aggregation"),
    )
    if combination[2:] != ("record", "secure-aggregation")  # noised gradients share no noise
]


@pytest.mark.parametrize(("algorithm", "schedule", "unit", "trust"), COMBINATIONS)
def test_every_combination_is_the_same(federation, algorithm, schedule, unit, trust):
    pace = {"p": 0.4} if schedule == "coin" else {"local_steps": 5}
    rate = {"sampling_rate": 0.4} if unit == "record" else {}
    names = {"algorithm": algorithm, "schedule": schedule, "unit": unit, "trust": trust}
    check_same(federation, **RUN, **names, **pace, **rate)


def test_bounded_messages_of_a_record_are_the_same_masked(federation):
    message = {"unit": "record", "noise_in": "message", "trust": "secure-aggregation"}
    check_same(federation, **RUN, **message, local_steps=5)
