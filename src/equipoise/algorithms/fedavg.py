"""FedAvg of McMahan et al., "Communication-efficient learning of deep networks from decentralized
data", 2017 (Algorithm 1), with all clients in every round: DP-FedAvg without clip and noise."""

from dataclasses import replace

from equipoise.algorithms import dp_fedavg

SPEC = replace(
    dp_fedavg.SPEC,
    name="fedavg",
    summary="plain local steps, sent as they are; not private",
    units=(),
    why="use dp-fedavg",
    paper=None,
)
