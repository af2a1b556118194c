"""DP-SCAFFOLD of Noble, Bellet and Dieuleveut, "Differentially private federated learning on
heterogeneous data", 2022 (Algorithm 1), with all clients in every round.

SCAFFOLD's option II with noise in every local gradient: c_i is then the mean of noised gradients,
so messages and variates are post-processing. With gamma = 1 and without the warm start of the
variates it is DP-ScaffNew with a periodic schedule and the same noise.
"""

from equipoise.algorithms.algorithm import Algorithm, AlgorithmSpec, Hyper, Option
from equipoise.algorithms.scaffold import check, memory, scaffold

WARM_UP = Option(
    "no",
    "whether the first round of DP-SCAFFOLD finds control variates only, and the model stays where "
    "it is",
    choices=("no", "yes"),
)


def make(hyper: Hyper) -> Algorithm:
    return scaffold(hyper.eta, hyper.p, warm_up=hyper.options.get("warm_up") == "yes")


SPEC = AlgorithmSpec(
    "dp-scaffold",
    "local steps corrected by control variates, which are made of noised gradients",
    make,
    memory,
    gradient_steps=True,
    options={"warm_up": WARM_UP},
    check=check,
    units=("record",),
    why="its variates are made of noised gradients: use dp-scaffnew, which sends one clipped "
    "message, or unit=record",
)
