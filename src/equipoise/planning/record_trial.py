"""Plans that protect one record, tried on stand-ins: the noise follows from the records that a
client really has."""

import math
from dataclasses import dataclass
from typing import cast

from equipoise.planning.candidates import Candidate
from equipoise.planning.surrogate import Surrogate
from equipoise.planning.trial import Rehearsal, RehearsalNoise, performed
from equipoise.privacy.clip import GaussianMechanism, StableMechanism
from equipoise.privacy.gaussian import noise_sigma
from equipoise.privacy.noisy_gradient import NoisyGradient
from equipoise.privacy.promise import Budget, Guarantee
from equipoise.privacy.stability import Stability
from equipoise.tasks.linear import LinearClients


@dataclass(frozen=True)
class RecordProblem:
    """Stand-ins, what is promised, and how many records a real client has."""

    surrogate: Surrogate
    budget: Budget
    guarantee: Guarantee
    records: int

    @property
    def clients(self) -> LinearClients:
        return cast(LinearClients, self.surrogate.clients)

    @property
    def gradient_bound(self) -> float:
        """G, the longest gradient of one record: L = curvature B^2 + mu, B the bound on
        features.
        """
        link = self.clients.link
        return link.steepest * math.sqrt((self.surrogate.L - self.surrogate.mu) / link.curvature)

    def stability(self, candidate: Candidate) -> Stability:
        bound = min(candidate.clip_norm, self.gradient_bound)
        s, neighbours = self.surrogate, self.guarantee.neighbours
        return Stability(
            candidate.eta, candidate.local_steps, s.L, s.mu, bound, self.records, neighbours
        )

    def sigma(self, candidate: Candidate) -> float:
        """What protects one release: of the sum of a client's gradients, or of its message."""
        epsilon, delta = self.budget.epsilon, self.budget.delta
        if candidate.noise_in == "gradient":
            steps = candidate.rounds * candidate.local_steps
            return noise_sigma(
                epsilon, delta, steps, self.guarantee.sensitivity(candidate.clip_norm)
            )
        stability = self.stability(candidate)
        if candidate.noise_in == "message":
            return noise_sigma(epsilon, delta, candidate.rounds, stability.sensitivity)
        return self.records * noise_sigma(
            epsilon, delta, candidate.rounds, stability.hidden_state_mu(1.0)
        )

    def rehearse(self, candidate: Candidate, seeds: range) -> Rehearsal:
        """The plan on the stand-ins, whose mean gradients get the noise that those of real clients
        would have."""
        s, noise, sigma = self.surrogate, RehearsalNoise(seeds), self.sigma(candidate)
        fewer = math.sqrt(
            s.number / self.guarantee.clients
        )  # stand-ins than clients: the noise of the average counts
        full = (1.0,) * s.number
        if candidate.noise_in == "message":
            gradient = NoisyGradient(self.clients, candidate.clip_norm, 0.0, full, noise)
            sent = self.guarantee.client_sigma(sigma) * fewer
            return performed(
                s, candidate, gradient, StableMechanism(sent), noise, len(seeds), "released"
            )
        scaled = sigma * self.clients.sizes[0] / self.records * fewer
        gradient = NoisyGradient(self.clients, candidate.clip_norm, scaled, full, noise)
        return performed(
            s, candidate, gradient, GaussianMechanism(math.inf, 0.0), noise, len(seeds), "paper"
        )
