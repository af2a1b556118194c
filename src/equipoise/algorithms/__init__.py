"""One file per algorithm, in the order of its pseudo-code, and the schedules they run on."""

from equipoise.algorithms.algorithm import Algorithm, AlgorithmSpec, Gradient, Hyper
from equipoise.algorithms.catalogue import ALGORITHMS, algorithm_options, algorithm_spec

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AlgorithmSpec",
    "Gradient",
    "Hyper",
    "algorithm_options",
    "algorithm_spec",
]
