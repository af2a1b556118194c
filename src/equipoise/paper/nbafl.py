"""The noise of NbAFL as printed, as a mechanism: it reproduces figures and guarantees nothing.

Wei et al., "Federated learning with differential privacy: algorithms and performance analysis",
2020: sigma = c L D / epsilon with c = sqrt(2 ln(1.25 / delta)), D = 2 C / m for the m records of
the smallest client, and L the times that a client sends. Of the L releases the epsilons are added,
and D is claimed of models that many local steps made. The server adds noise of its own only if
there are more than L sqrt(N) aggregations; here all clients send in each, so there never are.
Whatever the rule claims, the account beside it is exact: a run says what it really spends.
"""

import math
from typing import TYPE_CHECKING

from equipoise.errors import require
from equipoise.facts import Facts
from equipoise.privacy.mechanisms.client_message import ClientMessage
from equipoise.privacy.mechanisms.mechanism import Mechanism
from equipoise.privacy.promise import check_budget

if TYPE_CHECKING:
    from equipoise.settings import Run


def nbafl_sigma(epsilon: float, delta: float, releases: int, clip: float, records: int) -> float:
    check_budget(epsilon, delta)
    if epsilon == math.inf:
        return 0.0
    c, D = math.sqrt(2 * math.log(1.25 / delta)), 2 * clip / records
    return c * releases * D / epsilon


class NbaflMessage(ClientMessage):
    """A client's message under the noise of NbAFL."""

    rule = "nbafl"
    at_label = False

    def sigma(self, run: "Run", facts: Facts, releases: int) -> float:
        require(
            facts.sizes is not None,
            "noise_rule=nbafl needs the clients' numbers of records, which are private here: use "
            "exact",
        )
        smallest = max(min(facts.sizes or (1,)), 1)
        return nbafl_sigma(run.epsilon, run.delta, releases, run.clip, smallest)


SPEC: Mechanism = NbaflMessage()
