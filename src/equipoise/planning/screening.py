"""Stage one: many plans at once on a quadratic model of the surrogate.

On a quadratic the local steps of a round are one linear map per client, so a round costs the same
whatever tau is, and all plans that share eta and tau are one batched computation. The clip is
exact; the noise is drawn as its average over clients.
"""

import math

import numpy as np
import torch
from torch import Tensor

from equipoise.planning.candidates import Candidate
from equipoise.planning.surrogate import Surrogate
from equipoise.seeds import stream


def screen(
    surrogate: Surrogate,
    algorithm: str,
    etas: list[float],
    paces: list[tuple[int, list[int]]],
    clips: list[float],
    gammas: list[float],
    noise_per_clip: float,
    seeds: int,
) -> list[Candidate]:
    """Every combination of eta, (tau, numbers of rounds), clip and gamma, with its mean excess loss
    over `seeds`.

    `noise_per_clip` is the standard deviation per coordinate of the averaged noise of a run with
    one release and C = 1; it grows with C and with the square root of the number of releases.
    """
    most = max(max(rounds) for _, rounds in paces)
    d = surrogate.x0.shape[-1]
    normals = torch.tensor(
        np.stack([stream(seed, "screening").standard_normal((most, d)) for seed in range(seeds)])
    )
    normals = normals.to(surrogate.x0.dtype)
    found = []
    for eta in etas:
        for tau, rounds in paces:
            plans = [
                (K, C, gamma)
                for K in sorted(rounds, reverse=True)
                for C in clips
                for gamma in gammas
            ]
            excess = surrogate.excess(
                _simulate(surrogate, algorithm, eta, tau, plans, noise_per_clip, normals)
            )
            means, errors = excess.mean(-1).tolist(), (excess.std(-1) / math.sqrt(seeds)).tolist()
            for (K, C, gamma), mean, error in zip(plans, means, errors, strict=True):
                found.append(
                    Candidate(algorithm, eta, tau, K, C, gamma, excess=mean, standard_error=error)
                )
    return found


def _simulate(
    surrogate: Surrogate,
    algorithm: str,
    eta: float,
    tau: int,
    plans: list[tuple[int, float, float]],
    noise_per_clip: float,
    normals: Tensor,
) -> Tensor:
    """The final models [plans, seeds, d] of plans (K, C, gamma); they come with K falling, and drop
    out as they end."""
    drift, pulls = _drift(surrogate, eta, tau)
    pull = pulls.transpose(0, 1).flatten(1)
    push = torch.einsum("nij,nj->ni", drift, surrogate.slopes)
    (N, d), seeds = surrogate.slopes.shape, len(normals)
    K, C, gamma = (
        torch.tensor(column, dtype=normals.dtype).reshape(-1, 1, 1)
        for column in zip(*plans, strict=True)
    )
    noise = noise_per_clip * C * K.sqrt()
    y = (surrogate.x0 - surrogate.best).expand(len(plans), seeds, d)  # x - x*
    h = (
        torch.zeros(len(plans), seeds, N, d, dtype=normals.dtype)
        if algorithm == "dp-scaffnew"
        else None
    )
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


def _drift(surrogate: Surrogate, eta: float, tau: int) -> tuple[Tensor, Tensor]:
    """B_i = eta sum_{j < tau} (1 - eta A_i)^j of every client, and A_i B_i, both [clients, d, d].

    tau local steps from x with control variate h make the progress -B_i (A_i (x - x*) + g_i - h),
    g_i the slope at x*.
    """
    curvatures, axes = surrogate.spectra  # A = Q diag(a) Q', a > 0
    shrunk = 1 - (1 - eta * curvatures) ** tau  # of A B; a B = 1 - (1 - eta a)^tau
    return (axes * (shrunk / curvatures).unsqueeze(-2)) @ axes.mT, (
        axes * shrunk.unsqueeze(-2)
    ) @ axes.mT
