"""FedProx of Li et al., "Federated optimization in heterogeneous networks", 2020 (Algorithm 2),
with all clients in every round: DP-FedProx without clip and noise."""

from dataclasses import replace

from equipoise.algorithms import dp_fedprox

SPEC = replace(
    dp_fedprox.SPEC,
    name="fedprox",
    summary="local steps with a proximal term, sent as they are; not private",
    options={"prox": dp_fedprox.PROX},
    units=(),
    why="use dp-fedprox",
)
