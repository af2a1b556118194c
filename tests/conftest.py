"""Settings of the test tools: no time limits (machines differ), no memory of earlier failures (runs repeat)."""

import logging

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # small problems
settings.register_profile("equipoise", deadline=None, database=None)
settings.load_profile("equipoise")


@pytest.fixture
def client_log():
    """What clients say to themselves during the test, as a list of sentences."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    log = logging.getLogger("equipoise.client")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield said
    log.removeHandler(handler)
    log.setLevel(level)
