"""Stage one: many plans at once on a quadratic model of the surrogate.

On a quadratic the local steps of a round are one linear map per client, so a round costs the same
whatever tau is, and all plans that share eta and tau are one batched computation. The clip is
exact; the noise is drawn as its average over clients.
"""

import math
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.algorithms import Hyper, algorithm_spec
from equipoise.algorithms.algorithm import Options
from equipoise.fleets import SimulatedFleet, server_rounds
from equipoise.planning.candidates import Candidate
from equipoise.planning.surrogate import Surrogate
from equipoise.planning.trial import TrialNoise
from equipoise.privacy.clip import own_lattice
from equipoise.privacy.mechanisms.mechanism import Mechanism
from equipoise.seeds import stream


class Screen(NamedTuple):
    """What is screened: every combination of eta, (tau, numbers of rounds), clip and gamma.

    `noise_per_clip` is the standard deviation per coordinate of the averaged noise of a run with
    one release and C = 1; it grows with C and with the square root of the number of releases.
    """

    algorithm: str
    options: Options
    etas: list[float]
    paces: list[tuple[int, list[int]]]
    clips: list[float]
    gammas: list[float]
    noise_per_clip: float
    seeds: int


class Setting(NamedTuple):
    """What plans that share eta and tau differ in."""

    rounds: int
    clip: float
    gamma: float


def screen(surrogate: Surrogate, what: Screen, place: Mechanism) -> list[Candidate]:
    """All combinations, each with its mean excess loss over the seeds."""
    most = max(max(rounds) for _, rounds in what.paces)
    d = surrogate.x0.shape[-1]
    draws = [stream(seed, "screening").standard_normal((most, d)) for seed in range(what.seeds)]
    normals = torch.tensor(np.stack(draws)).to(surrogate.x0.dtype)
    closed_form = algorithm_spec(what.algorithm).gradient_steps
    candidates = []
    for eta in what.etas:
        for tau, rounds in what.paces:
            settings = [
                Setting(K, C, gamma)
                for K in sorted(rounds, reverse=True)
                for C in what.clips
                for gamma in what.gammas
            ]
            if closed_form:
                x = _simulate(surrogate, what, eta, tau, settings, normals)
            else:
                x = _run(surrogate, what, eta, tau, settings, place)
            candidates += _candidates(what, eta, tau, settings, surrogate.excess(x))
    return candidates


def _candidates(
    what: Screen, eta: float, tau: int, settings: list[Setting], excess: Tensor
) -> list[Candidate]:
    means = excess.mean(-1).tolist()
    errors = (excess.std(-1) / math.sqrt(what.seeds)).tolist()
    return [
        Candidate(
            what.algorithm,
            eta,
            tau,
            K,
            C,
            gamma,
            options=what.options,
            excess=mean,
            standard_error=error,
        )
        for (K, C, gamma), mean, error in zip(settings, means, errors, strict=True)
    ]


def _run(
    surrogate: Surrogate,
    what: Screen,
    eta: float,
    tau: int,
    settings: list[Setting],
    place: Mechanism,
) -> Tensor:
    """The final models [plans, seeds, d] of an algorithm without a closed form: it is run itself,
    plans with as many rounds in one computation."""
    N, noise, ended = surrogate.number, TrialNoise(range(what.seeds)), []
    for K, alike in groupby(settings, key=attrgetter("rounds")):
        _, clips, gammas = zip(*alike, strict=True)
        C, gamma = (
            torch.tensor(column, dtype=torch.float64).reshape(-1, 1, 1)
            for column in (clips, gammas)
        )
        clip = C.unsqueeze(-1)
        sigma = what.noise_per_clip * clip * math.sqrt(K * N)
        algorithm = algorithm_spec(what.algorithm).make(Hyper(eta, 1 / tau, clip, what.options))
        lattice = own_lattice(clip, sigma)
        gradient = place.gradient(surrogate.clients, clip, sigma, lattice, (1.0,) * N, noise)
        releaser = place.releaser(clip, sigma, lattice)
        fleet = SimulatedFleet(N, gradient, algorithm, releaser, noise)
        start = surrogate.x0.expand(len(clips), what.seeds, -1)
        *_, last = server_rounds(start, (tau,) * K, fleet, gamma)
        ended.append(last.x)
    return torch.cat(ended)


def shortlist(candidates: list[Candidate], most: int = 24, alike: int = 3) -> list[Candidate]:
    """The best of a screening, no more than `alike` with the same step size and local steps."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: c.excess):
        pace = candidate.eta, candidate.local_steps
        if sum((c.eta, c.local_steps) == pace for c in kept) < alike:
            kept.append(candidate)
        if len(kept) == most:
            break
    return kept


def _simulate(
    surrogate: Surrogate,
    what: Screen,
    eta: float,
    tau: int,
    settings: list[Setting],
    normals: Tensor,
) -> Tensor:
    """The final models [plans, seeds, d]; plans come with K falling, and drop out as they end."""
    spec = algorithm_spec(what.algorithm)
    drift, pulls = _drift(surrogate, eta, tau, spec.proximal(what.options))
    pull = pulls.transpose(0, 1).flatten(1)
    push = torch.einsum("nij,nj->ni", drift, surrogate.slopes)
    (N, d), seeds, plans = surrogate.slopes.shape, len(normals), len(settings)
    K, C, gamma = (
        torch.tensor(column, dtype=normals.dtype).reshape(-1, 1, 1)
        for column in zip(*settings, strict=True)
    )
    noise = what.noise_per_clip * C * K.sqrt()
    y = (surrogate.x0 - surrogate.best).expand(plans, seeds, d)  # x - x*
    h = torch.zeros(plans, seeds, N, d, dtype=normals.dtype) if spec.variate else None
    ended: list[Tensor] = []
    for k in range(1, int(K.max()) + 1):
        update = -(y @ pull).reshape(*y.shape[:-1], N, d) - push
        if h is not None:
            update += torch.einsum("rsni,nij->rsnj", h, drift) - eta * tau * h
        shrink = (C / torch.linalg.vector_norm(update, dim=-1)).clamp(max=1.0)
        sent = torch.einsum("rsn,rsnd->rsd", shrink, update) / N + noise * normals[:, k - 1]
        if h is not None:
            h = ((gamma * sent).unsqueeze(-2) - update) / (eta * tau)
        y = y + gamma * sent
        alive = int((K > k).sum())
        ended.append(y[alive:])
        y, C, K, gamma, noise = y[:alive], C[:alive], K[:alive], gamma[:alive], noise[:alive]
        h = None if h is None else h[:alive]
    return surrogate.best + torch.cat(ended[::-1])


def _drift(surrogate: Surrogate, eta: float, tau: int, proximal: float) -> tuple[Tensor, Tensor]:
    """B_i = eta sum_{j < tau} (1 - eta (A_i + proximal))^j of every client, and A_i B_i, both
    [clients, d, d].

    tau local steps from x with control variate h make the progress -B_i (A_i (x - x*) + g_i - h),
    g_i the slope at x*.
    """
    curvatures, axes = surrogate.spectra  # A = Q diag(a) Q', a > 0
    bent = curvatures + proximal
    shrunk = 1 - (1 - eta * bent) ** tau  # of (A + proximal) B
    drift = (axes * (shrunk / bent).unsqueeze(-2)) @ axes.mT
    return drift, (axes * (shrunk * (curvatures / bent)).unsqueeze(-2)) @ axes.mT
