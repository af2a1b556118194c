"""The paper's pseudo-code, one file per algorithm, and the schedules they run on."""

from equipoise.algorithms.algorithm import Algorithm, Gradient
from equipoise.algorithms.dp_fedavg import dp_fedavg
from equipoise.algorithms.dp_scaffnew import dp_scaffnew
from equipoise.algorithms.schedule import Schedule, coin, periodic

__all__ = ["Algorithm", "Gradient", "Schedule", "coin", "dp_fedavg", "dp_scaffnew", "periodic"]
