"""Flower as transport: bytes between a lead and silos, over Flower's own connections.

Flower's app runtime is not used. No app is fetched, installed or run anywhere, since an app that a
lead submits would run where the data are.
"""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when flwr is imported
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

try:
    import flwr as flwr
except ImportError:
    from equipoise.errors import EquipoiseError

    raise EquipoiseError(
        "a federation over a network needs Flower: pip install 'equipoise[flower]'"
    ) from None
