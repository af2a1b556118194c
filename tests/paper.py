"""Algorithms 1 and 2 of the paper, and their relatives, transcribed line by line from their own
sources. The oracle: it imports nothing of the product.

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


def of_copies(counts, g, noise):
    """How clients that count unequally come into these algorithms, which average over all alike:
    client i of counts[i] / N is counts[i] clients with its gradients and its noise. Returns what
    `g` and `noise` become, and N. Not of the paper."""
    original = [i for i, count in enumerate(counts) for _ in range(count)]
    copied = [[of_round[i] for i in original] for of_round in noise]
    return lambda i, x, k: g(original[i], x, k), copied, len(original)


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


def fedavgm(x0, T, tau, eta, eta_s, beta, C, noise, g, N):
    """FedAvgM (Hsu et al. 2019, Section 4.3) with the messages of Algorithm 1 above, a server's
    learning rate, and clients of equal size."""
    w, v = x0, np.zeros_like(x0)
    for t in range(T):
        Delta_w = 0
        for k in range(N):
            w_k = w
            for j in range(tau):
                w_k = w_k - eta * g(k, w_k, t * tau + j)
            Delta_w = Delta_w - (clip(w_k - w, C) + noise[t][k]) / N  # sum_k n_k/n Delta w_k
        v = beta * v + Delta_w  # v <- beta v + Delta w
        w = w - eta_s * v  # w <- w - v
    return w


def fedadam(x0, T, K, eta_l, eta, beta_1, beta_2, tau, C, noise, g, N):
    """FedAdam (Reddi et al. 2021, Algorithm 2) with S = all clients, v_{-1} = tau^2, and messages
    clipped and noised as in Algorithm 1 above."""
    x, m, v = x0, np.zeros_like(x0), tau**2 * np.ones_like(x0)  #                1
    for t in range(T):  #                                                        2
        Delta = []
        for i in range(N):  #                                                    5
            x_i = x  #                                                           4
            for k in range(K):  #                                                6
                x_i = x_i - eta_l * g(i, x_i, t * K + k)  #                    7-8
            Delta.append(clip(x_i - x, C) + noise[t][i])  #                      9
        Delta_t = sum(Delta) / N  #                                             10
        m = beta_1 * m + (1 - beta_1) * Delta_t  #                              11
        v = beta_2 * v + (1 - beta_2) * Delta_t**2  #                           14
        x = x + eta * m / (np.sqrt(v) + tau)  #                                 15
    return x


def dp_fedavg_by_steps(x0, T, tau, etas, rule, C, noise, g, N):
    """Algorithm 1 with another eta in every round and other local steps, which begin anew in it:
    `rule(gradients, x, eta)` is where x gets by the newest of the round's gradients."""
    x = x0
    for t in range(T):
        Delta = []
        for i in range(N):
            x_i, seen = x, []
            for j in range(tau):
                seen.append(g(i, x_i, t * tau + j))
                x_i = rule(seen, x_i, etas[t])
            Delta.append(clip(x_i - x, C) + noise[t][i])
        x = x + sum(Delta) / N
    return x


def plain_step(gradients, theta, eta):
    return theta - eta * gradients[-1]


def momentum_step(mu):
    """Sutskever et al. 2013, equations 1 and 2, from v_0 = 0."""

    def step(gradients, theta, epsilon):
        v = np.zeros_like(theta)
        for gradient in gradients:
            v = mu * v - epsilon * gradient  #                                  (1)
        return theta + v  #                                                     (2)

    return step


def adam_step(beta_1, beta_2, tau):
    """The server's formulas of Reddi et al. 2021, Algorithm 2, with a gradient for -Delta."""

    def step(gradients, x, eta):
        m, v = np.zeros_like(x), tau**2 * np.ones_like(x)
        for gradient in gradients:
            m = beta_1 * m + (1 - beta_1) * gradient
            v = beta_2 * v + (1 - beta_2) * gradient**2
        return x - eta * m / (np.sqrt(v) + tau)

    return step


def fedavg(x0, rounds, E, eta, gradient, K):
    """FederatedAveraging (McMahan et al. 2017, Algorithm 1) with C = 1, E steps of full batches,
    and clients of equal size."""
    w = x0  # initialize w_0
    for t in range(rounds):  # for each round t = 1, 2, ...
        received = []
        for k in range(K):  # for each client k in S_t, in parallel
            w_k = w  # ClientUpdate(k, w)
            for i in range(E):
                w_k = w_k - eta * gradient(k, w_k, t * E + i)
            received.append(w_k)
        w = sum(w_k / K for w_k in received)  # sum_k n_k/n w_k
    return w


def fedprox(x0, T, tau, eta, mu, g, N):
    """FedProx (Li et al. 2020, Algorithm 2), K = N devices, tau gradient steps as the solver."""
    w = x0
    for t in range(T):
        received = []
        for k in range(N):
            w_k = w
            for j in range(tau):  # h_k(w; w^t) = F_k(w) + mu/2 |w - w^t|^2
                w_k = w_k - eta * (g(k, w_k, t * tau + j) + mu * (w_k - w))
            received.append(w_k)
        w = sum(received) / N
    return w


def nbafl(x0, T, tau, eta, mu, C, noise, g, N):
    """NbAFL (Wei et al. 2020, Algorithm 1), all clients in every aggregation, without noise on the
    way down: the model itself is clipped, noised and averaged."""
    w = x0
    for t in range(T):
        received = []
        for i in range(N):
            w_i = w
            for j in range(tau):  # w_i = argmin F_i(w_i) + mu/2 |w_i - w|^2
                w_i = w_i - eta * (g(i, w_i, t * tau + j) + mu * (w_i - w))
            w_i = w_i / max(1, np.linalg.norm(w_i) / C)  # clip the local parameters
            received.append(w_i + noise[t][i])  # add noise, and upload
        w = sum(received) / N
    return w


def scaffnew(x0, coins, p, gamma, g, N):
    """ProxSkip (Mishchenko et al. 2022, Algorithm 1) on N copies of the model, where psi says that
    all copies are equal: its prox is their average. That is ScaffNew (Algorithm 2)."""
    x = [x0] * N
    h = [np.zeros_like(x0)] * N
    for t in range(len(coins)):
        x_hat = [x[i] - gamma * (g(i, x[i], t) - h[i]) for i in range(N)]  # 5
        if coins[t] == 1:  # 6
            moved = [x_hat[i] - gamma / p * h[i] for i in range(N)]
            x = [sum(moved) / N] * N  # 8: prox of psi at x_hat - gamma/p h
        else:
            x = x_hat  # 10
        h = [h[i] + p / gamma * (x[i] - x_hat[i]) for i in range(N)]  # 12
    return x[0]


def scaffold(x0, rounds, K, eta_l, eta_g, option, g, N):
    """SCAFFOLD (Karimireddy et al. 2020, Algorithm 1) with S = all clients."""
    x, c = x0, np.zeros_like(x0)  #                                              2
    c_i = [np.zeros_like(x0) for _ in range(N)]
    for r in range(rounds):  #                                                   3
        dy, dc = [], []
        for i in range(N):  #                                                    6
            y = x  #                                                             7
            for k in range(K):  #                                                8
                gradient = g(i, y, r * K + k)  #                                 9
                y = y - eta_l * (gradient - c_i[i] + c)  #                       10
            c_plus = {
                "I": g(i, x, r * K),  #                                    12 (i)
                "II": c_i[i] - c + (x - y) / (K * eta_l),  #              12 (ii)
            }[option]
            dy.append(y - x)  #                                                 13
            dc.append(c_plus - c_i[i])
            c_i[i] = c_plus  #                                                  14
        x = x + eta_g * sum(dy) / N  #                                      16, 17
        c = c + sum(dc) / N  #                                                  17
    return x


def dp_scaffold(x0, rounds, K, eta_l, eta_g, noised, N, warm_up=False):
    """DP-SCAFFOLD (Noble et al. 2022, Algorithm 1) with all clients; `noised(i, y, k)` is the
    mean of clipped gradients plus noise. The warm start: before all else the variates are means of
    K noised gradients at x0, and the model stays."""
    x, c = x0, np.zeros_like(x0)
    c_i = [np.zeros_like(x0) for _ in range(N)]
    for t in range(rounds):
        dy, dc = [], []
        for i in range(N):
            y, seen = x, []
            for k in range(K):
                H = noised(i, x0 if warm_up and t == 0 else y, t * K + k)
                y = y - eta_l * (H - c_i[i] + c)
                seen.append(H)
            c_plus = sum(seen) / K
            dy.append(y - x)
            dc.append(c_plus - c_i[i])
            c_i[i] = c_plus
        if not (warm_up and t == 0):
            x = x + eta_g * sum(dy) / N
        c = c + sum(dc) / N
    return x


def dp_fedsplit(x0, T, e, s, alpha, C, noise, g, N):
    """FedSplit (Pathak and Wainwright 2020, Algorithm 1), the proximal step by e gradient steps of
    size alpha. The server hears clip(z_new - z) + noise; a client's z moves by what was clipped."""
    x = x0
    z = [x0] * N
    for t in range(T):
        heard = []
        for j in range(N):
            u = x  # z_half = prox_update_j(2 x - z_j)
            for k in range(e):  # minimise f_j(u) + 1/(2s) |u - (2 x - z_j)|^2
                u = u - alpha * (g(j, u, t * e + k) + (u - (2 * x - z[j])) / s)
            step = clip(2 * (u - x), C)  # z_j + 2 (z_half - x), clipped
            z[j] = z[j] + step
            heard.append(step + noise[t][j])
        x = x + sum(heard) / N  # the mean of all z, as the server knows them
    return x


def dp_fedpd(x0, rounds, solves, Q, eta, step, C, noise, g, N):
    """FedPD (Zhang et al. 2021, Algorithm 2), every local problem by Q gradient steps from x_{0,i};
    of every `solves` iterations the last communicates. The server hears clip(x_{0,i}^+ - x_0) plus
    noise."""
    x_0, lam, k = x0, [np.zeros_like(x0) for _ in range(N)], 0
    for r in range(rounds):
        heard = []
        for i in range(N):
            own, k = x_0, r * solves * Q
            for _ in range(solves):
                x_i = own
                for _ in range(Q):  # f_i(x) + <lam_i, x - x_{0,i}> + 1/(2 eta) |x - x_{0,i}|^2
                    x_i = x_i - step * (g(i, x_i, k) + lam[i] + (x_i - own) / eta)
                    k += 1
                lam[i] = lam[i] + (x_i - own) / eta
                own = x_i + eta * lam[i]  # x_{0,i}^+
            heard.append(clip(own - x_0, C) + noise[r][i])
        x_0 = x_0 + sum(heard) / N
    return x_0


def clip21_sgd2m(x0, T, gamma, beta, beta_hat, tau, omega, g, n):
    """Clip21-SGD2M (Islamov et al. 2025), the private version: omega[t][i] is the noise of a
    message."""
    x, g_server = x0, np.zeros_like(x0)
    v = [np.zeros_like(x0) for _ in range(n)]
    g_i = [np.zeros_like(x0) for _ in range(n)]
    for t in range(T):
        x = x - gamma * g_server
        c = []
        for i in range(n):
            v[i] = (1 - beta) * v[i] + beta * g(i, x, t)
            clipped = clip(v[i] - g_i[i], tau)
            c.append(clipped + omega[t][i])
            g_i[i] = g_i[i] + beta_hat * clipped
        g_server = g_server + beta_hat / n * sum(c)
    return x - gamma * g_server


def fed_norm_ec(x0, K, tau, gamma, eta, alpha, beta, z, g, n):
    """Fed-alpha-NormEC (arXiv 2512.21521), all clients in every round, tau local gradient steps of
    size gamma; z[k][i] is the noise of a message."""

    def normed(d):
        return d / (alpha + np.linalg.norm(d))

    x, v_server = x0, np.zeros_like(x0)
    v = [np.zeros_like(x0) for _ in range(n)]
    for k in range(K):
        heard = []
        for i in range(n):
            x_i = x
            for j in range(tau):
                x_i = x_i - gamma * g(i, x_i, k * tau + j)
            sent = normed((x - x_i) / gamma - v[i])
            v[i] = v[i] + beta * sent
            heard.append(sent + z[k][i])
        v_server = v_server + beta / n * sum(heard)
        x = x - eta * v_server / np.linalg.norm(v_server)
    return x


def scaffold_in_one_message(x0, rounds, tau, eta, C, noise, g, N):
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
