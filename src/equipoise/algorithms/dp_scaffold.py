"""DP-SCAFFOLD of Noble, Bellet and Dieuleveut, "Differentially private federated learning on
heterogeneous data", 2022 (Algorithm 1), with all clients in every round.

SCAFFOLD's option II with noise in every local gradient: c_i is then the mean of noised gradients,
so messages and variates are post-processing. With gamma = 1 and without the warm start of the
variates it is DP-ScaffNew with a periodic schedule and the same noise.

The warm start is that of the authors' code: the variates begin as means of noised gradients at x_0,
as many as a round has local steps. They are releases, and are paid for like those of a round.
"""

from typing import Any

from equipoise.algorithms.algorithm import Algorithm, AlgorithmSpec, Hyper, Option
from equipoise.algorithms.scaffold import WHY_ITS_STEPS, memory, scaffold
from equipoise.algorithms.scaffold import check as check_schedule
from equipoise.errors import require

WARM_UP = Option(
    "no",
    "whether the first round of DP-SCAFFOLD finds control variates only, from gradients at the "
    "initial model, which stays where it is",
    choices=("no", "yes"),
)


def make(hyper: Hyper) -> Algorithm:
    return scaffold(hyper.eta, hyper.p, warm_up=hyper.options.get("warm_up") == "yes")


def check(settings: Any) -> None:
    check_schedule(settings)
    if settings.options.get("warm_up") != "yes":
        return
    T, steps = settings.iterations, settings.local_steps
    require(
        T is None or T != (steps or 1),
        f"warm_up=yes with iterations={T} and local_steps={steps or 1}: the only round would find "
        "control variates, and the model would stay; give more iterations, or fewer local steps",
    )
    require(
        not settings.mechanism.by_stability,
        f"warm_up=yes with noise_in={settings.noise_in}: all gradients of the first round are at "
        "one model, so its steps hide nothing; use noise_in=gradient",
    )


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
    why_its_steps=WHY_ITS_STEPS,
)
