"""Settings of the test tools: no time limits (machines differ), no memory of earlier failures (runs repeat)."""

from hypothesis import settings

settings.register_profile("equipoise", deadline=None, database=None)
settings.load_profile("equipoise")
