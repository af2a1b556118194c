"""An algorithm whose step size, clients and server do as a schedule or an optimiser says.

Its own file knows nothing of that. Where nothing is chosen, it is the algorithm itself.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from equipoise.algorithms.algorithm import Algorithm, Gradient, Hyper
from equipoise.algorithms.optimisers.catalogue import optimiser_spec, options_at
from equipoise.algorithms.optimisers.eta_schedules import ETA_SCHEDULES
from equipoise.algorithms.optimisers.optimiser import Optimiser, Place

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.settings import Run

Make = Callable[[Hyper], Algorithm]


def optimised(make: Make, hyper: Hyper, run: "Run") -> Algorithm:
    """The algorithm with these numbers, with steps as the run wants them."""
    algorithm, chosen = make(hyper), run.chosen_steps
    if name := chosen.get("eta_schedule"):
        algorithm = scheduled(make, hyper, ETA_SCHEDULES[name], run.iterations)
    if name := chosen.get("local_optimiser"):
        algorithm = with_local(algorithm, _made("local", name, hyper))
    if name := chosen.get("server_optimiser"):
        algorithm = with_server(algorithm, _made("server", name, hyper))
    return algorithm


def _made(place: Place, name: str, hyper: Hyper) -> Optimiser:
    spec = optimiser_spec(place, name)
    return spec.make(options_at(place, spec, hyper.options))


def scheduled(
    make: Make, hyper: Hyper, share: Callable[[float], float], iterations: int
) -> Algorithm:
    """Every round with the eta of its place in a run of so many local steps."""

    def local_round(
        x: "Tensor", state: Any, steps: range, gradient: Gradient
    ) -> "tuple[Tensor, Any]":
        eta = hyper.eta * share(steps.start / iterations)
        return make(hyper._replace(eta=eta)).local_round(x, state, steps, gradient)

    return make(hyper)._replace(local_round=local_round)


def with_local(algorithm: Algorithm, optimiser: Optimiser) -> Algorithm:
    """Local steps along what the optimiser makes of gradients as the mechanism gives them: where
    that noises them, all of it is post-processing. It begins anew in every round."""

    def local_round(
        x: "Tensor", state: Any, steps: range, gradient: Gradient
    ) -> "tuple[Tensor, Any]":
        memory = optimiser.begin(x)

        def direction(x_i: "Tensor", t: int) -> "Tensor":
            nonlocal memory
            step, memory = optimiser.step(memory, gradient(x_i, t))
            return step

        return algorithm.local_round(x, state, steps, direction)

    return algorithm._replace(local_round=local_round)


def with_server(algorithm: Algorithm, optimiser: Optimiser) -> Algorithm:
    """The server steps along what the optimiser makes of mean releases. What it remembers lies
    behind the model, in what the server knows; clients are told the model alone."""

    def begin(x: "Tensor") -> "Tensor":
        return _joined(algorithm.begin(x), optimiser.begin(x))

    def told(known: "Tensor") -> "Tensor":
        return known.chunk(1 + optimiser.vectors, -1)[0]

    def server(known: "Tensor", mean: "Tensor", gamma: Any) -> "Tensor":
        x, *memory = known.chunk(1 + optimiser.vectors, -1)
        step, after = optimiser.step(tuple(memory), mean)
        return _joined(algorithm.server(x, step, gamma), after)

    return algorithm._replace(begin=begin, told=told, server=server)


def _joined(x: "Tensor", memory: "tuple[Tensor, ...]") -> "Tensor":
    import torch

    return torch.cat([x, *memory], -1)
