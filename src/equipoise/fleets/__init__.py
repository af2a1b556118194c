"""Where clients run, and the one function through which their data may leave."""

from typing import TYPE_CHECKING

from equipoise._lazy import lazy_names

if TYPE_CHECKING:
    from equipoise.fleets.client import client_round
    from equipoise.fleets.fleet import Broadcast, Fleet, Release
    from equipoise.fleets.server import Round, averaged, server_rounds
    from equipoise.fleets.simulated import SimulatedFleet

__all__ = [
    "Broadcast",
    "Fleet",
    "Release",
    "Round",
    "SimulatedFleet",
    "averaged",
    "client_round",
    "server_rounds",
]

__getattr__ = lazy_names(
    __name__,
    {
        "client": "client_round",
        "fleet": "Broadcast Fleet Release",
        "server": "Round averaged server_rounds",
        "simulated": "SimulatedFleet",
    },
)
