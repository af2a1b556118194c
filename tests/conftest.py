"""Settings of the test tools: no time limits (machines differ), no memory of earlier failures (runs repeat)."""

import logging

import pytest
from hypothesis import settings

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
