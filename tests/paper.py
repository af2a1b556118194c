"""Algorithms 1 and 2 of the paper, and their relatives, transcribed line by line. The oracle: it
imports nothing of the product.

Vectors are NumPy arrays; `g(i, x, k)` is client i's stochastic gradient at x in its k-th local step
of the whole run; `noise[r][i]` is the Gaussian vector that client i adds in its r-th message.
"""

import numpy as np


def clip(x, C):
    return min(1, C / np.linalg.norm(x)) * x if np.linalg.norm(x) > 0 else x


def dp_fedavg(x0, T, tau, eta, C, noise, g, N):
    """Algorithm 1. Here T is the number of communication rounds."""
    x = x0  #                                                                    1
    for t in range(T):  #                                                        2
        Delta = []
        for i in range(N):  #                                                    3
            x_i = x  #                                                           4
            for j in range(tau):  #                                              5
                gradient = g(i, x_i, t * tau + j)  #                             6
                x_i = x_i - eta * gradient  #                                    7
            clipped = clip(x_i - x, C)  #                                        9
            Delta.append(clipped + noise[t][i])  #                              10
        x = x + sum(Delta) / N  #                                               12
    return x  #                                                                 14


def dp_scaffnew(x0, coins, p, eta, C, noise, g, N):
    """Algorithm 2, with the coins theta_t given (one for all clients: line 9 needs everybody).

    Returns the communicated x, and the h_i.
    """
    x = x0  #                                                                    1
    x_i = [x0 for _ in range(N)]
    h = [np.zeros_like(x0) for _ in range(N)]
    messages = 0
    for t in range(len(coins)):  #                                               2
        x_hat, Delta = [None] * N, [None] * N
        for i in range(N):  #                                                    3
            gradient = g(i, x_i[i], t)  #                                        4
            x_hat[i] = x_i[i] - eta * (gradient - h[i])  #                       5
            theta = coins[t]  #                                                  6
            if theta == 1:  #                                                    7
                Delta[i] = clip(x_hat[i] - eta / p * h[i] - x, C) + noise[messages][i]  # 8
        if theta == 1:
            x = x + sum(Delta) / N  #                                            9
            messages += 1
        for i in range(N):
            x_i[i] = x if theta == 1 else x_hat[i]  #                        9, 11
            h[i] = h[i] + p / eta * (x_i[i] - x_hat[i])  #                      13
    return x, h


def average(models):
    """sum k^3 x_k / sum k^3 of the communicated models x_1 ... x_K. Not of the paper."""
    weights = [k**3 for k in range(1, len(models) + 1)]
    return sum(w * x for w, x in zip(weights, models, strict=True)) / sum(weights)


def dp_fedprox(x0, T, tau, eta, mu, C, noise, g, N):
    """FedProx (Li et al. 2020, Algorithm 2) where all clients take part (K = N), and tau gradient
    steps are the inexact minimisation of h_k. Sent is the progress, clipped and noised as above.
    """
    w = x0
    for t in range(T):  # for t = 0, ..., T - 1
        Delta = []
        for k in range(N):  # the server sends w^t to all chosen devices
            w_k = w
            for j in range(tau):  # w_k^{t+1} ~ argmin_w h_k(w; w^t) = F_k(w) + mu/2 |w - w^t|^2
                gradient_of_h = g(k, w_k, t * tau + j) + mu * (w_k - w)
                w_k = w_k - eta * gradient_of_h
            Delta.append(clip(w_k - w, C) + noise[t][k])  # each device sends w_k^{t+1} back
        w = w + sum(Delta) / N  # w^{t+1} = 1/K sum_k w_k^{t+1}
    return w


def scaffold(x0, rounds, tau, eta, C, noise, g, N):
    """SCAFFOLD, option II, full participation, server step 1 (Karimireddy et al. 2020), with one
    release per round.

    The released vector is clip((y_i - x) - eta tau (c_i - c)) + noise, and the server's variate c
    is post-processing.
    """
    x, c = x0, np.zeros_like(x0)
    c_i = [np.zeros_like(x0) for _ in range(N)]
    for r in range(rounds):
        released = []
        for i in range(N):
            y = x
            for j in range(tau):
                y = y - eta * (g(i, y, r * tau + j) - c_i[i] + c)
            released.append(clip((y - x) - eta * tau * (c_i[i] - c), C) + noise[r][i])
            c_i[i] = c_i[i] - c + (x - y) / (tau * eta)
        x_new = x + sum(released) / N
        c = -(x_new - x) / (eta * tau)
        x = x_new
    return x
