"""Privacy of one record from the stability of gradient descent (proofs in docs/privacy.md).

A client takes tau full gradient steps of size eta on a loss that is mu-strongly convex and
L-smooth, from a public model, and sends where it got. Replace one of its m records, whose gradients
have norm at most G: by how much can the message move?
"""

import math
from dataclasses import dataclass

from equipoise.errors import require
from equipoise.privacy.promise import OVER_CLIP, Neighbours

_ROUNDING = 1 + 1e-6  # more than what rounding adds to the distance of two runs
_MOST_ROUNDING = 0.01  # of the sensitivity: what it may add whatever model a lead makes up


@dataclass(frozen=True)
class Stability:
    """The local steps of one client: what bounds the influence of one record.

    gradient_bound   G, the largest norm of one record's gradient, wherever the model is
    records          m, what the mean over the records is divided by
    """

    eta: float
    local_steps: int
    L: float
    mu: float
    gradient_bound: float
    records: int
    neighbours: Neighbours

    def __post_init__(self) -> None:
        most = 2 / (self.L + self.mu)
        require(
            0 < self.eta <= most * (1 + 1e-12),
            f"eta={self.eta:g} is more than 2/(L + mu) = {most:g}, with L = {self.L:g} and mu = "
            f"{self.mu:g} of the local loss: beyond it local steps do not contract, and the bound "
            "on one record's influence does not hold; lower eta",
        )
        require(self.gradient_bound < math.inf, "one record's gradient has no bound: give a clip")
        require(
            self.records >= 1, f"records={self.records}: a client without records cannot take part"
        )

    @property
    def constants(self) -> dict[str, float]:
        """What the bound follows from, besides the number of records."""
        names = ("eta", "local_steps", "L", "mu", "gradient_bound")
        return {name: getattr(self, name) for name in names}

    @property
    def contraction(self) -> float:
        """c = 1 - eta mu: one gradient step brings two models at least this much closer."""
        return 1 - self.eta * self.mu

    @property
    def step_difference(self) -> float:
        """What one record changes in one step: 2 eta G / m, or eta G / m if added or removed."""
        return OVER_CLIP[self.neighbours] * self.eta * self.gradient_bound / self.records

    @property
    def sensitivity(self) -> float:
        """S_tau: D_{t+1} <= c D_t + step_difference, D_0 = 0."""
        return self.step_difference * _geometric(self.contraction, self.local_steps) * _ROUNDING

    @property
    def reach(self) -> float:
        """2 eta tau G: the longest message from a model within G / mu of zero, where all minimisers
        lie. Gradient steps that contract do not lengthen the gradient, which is G + mu |x| at most
        at the first."""
        return 2 * self.eta * self.local_steps * self.gradient_bound

    def farthest(self, dimension: int) -> float:
        """How long a model [d] may be from which a client takes its steps: beyond it rounding alone
        might move two runs apart by a hundredth of the sensitivity.

        In double precision, u = 2^-53, a record's output is wrong by d u |x| times the length of
        its features at most, so a mean gradient by L d u |x|; eta L <= 2; and the regulariser and
        the step itself round what is as long as x. Both runs together: (4d + 16) u |x| a step,
        where one record adds `step_difference`.
        """
        return _MOST_ROUNDING * self.step_difference / ((4 * dimension + 16) * 2.0**-53)

    def hidden_state_mu(self, step_noise: float) -> float:
        """mu of a round whose every local step adds eta N(0, step_noise^2) and which shows its last
        model only.

        Shifted interpolation (Bok, Su and Altschuler 2024): the least sum of squared shifts that
        bring two runs together, mu = (difference / (eta s)) sqrt((1 - c^tau)(1 + c) / ((1 +
        c^tau)(1 - c))); never above composition's sqrt(tau).
        """
        c, tau = self.contraction, self.local_steps
        saved = _geometric(c, tau) * (1 + c) / (1 + c**tau)
        return self.step_difference * _ROUNDING / (self.eta * step_noise) * math.sqrt(saved)


def _geometric(c: float, steps: int) -> float:
    """1 + c + ... + c^(steps - 1)."""
    return float(steps) if c == 1 else (1 - c**steps) / (1 - c)
