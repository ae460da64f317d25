"""Rounds on quadratic losses in plain numpy loops, written from the papers' formulas and not from the methods' code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from quadratics import COHORTS, LR, SIZES, STEPS, W0, A, B, N

Array = np.ndarray
Numbers = dict[str, Array]


def g(k: int, w: Array) -> Array:
    return A[k] * (w - B[k])


def u(v: Array) -> Array:
    return v / np.linalg.norm(v) if v.any() else v


def sam(k: int, w: Array, rho: float) -> Array:
    return g(k, w + rho * u(g(k, w)))


def end(k: int, w: Array, direction: Callable[[Array], Array]) -> Array:
    """Return client k's model after its steps from w."""
    for _ in range(STEPS[k]):
        w = w - LR * direction(w)
    return w


def rounds() -> Iterator[tuple[list[int], dict[int, float]]]:
    """Yield every round's cohort and averaging weights."""
    for who in COHORTS:
        yield who, {k: SIZES[k] / sum(SIZES[j] for j in who) for k in who}


def fednova(released: bool = False) -> Numbers:
    w, d = W0, np.zeros((N, 4))
    for who, p in rounds():
        ends = {k: end(k, w, lambda v: g(k, v) - d[k]) for k in who}
        for k in who if released else []:
            d[k] = (w - ends[k]) / (LR * STEPS[k])
        tau = sum(p[k] * STEPS[k] for k in who)
        w = w - tau * sum(p[k] * (w - ends[k]) / STEPS[k] for k in who)
    return {"server.params": w} | ({"clients.d": d} if released else {})


def controlled(rho: float) -> Numbers:
    w, c, ck = W0, np.zeros(4), np.zeros((N, 4))
    for who, p in rounds():
        ends = {k: end(k, w, lambda v: sam(k, v, rho) - ck[k] + c) for k in who}
        new = {k: ck[k] - c + (w - ends[k]) / (STEPS[k] * LR) for k in who}
        c = c + sum(new[k] - ck[k] for k in who) / N
        for k in who:
            ck[k] = new[k]
        w = sum(p[k] * ends[k] for k in who)
    return {"server.params": w, "server.c": c, "clients.c": ck}


def feddyn(alpha: float, rho: float, released: bool = False) -> Numbers:
    w, h, lam = W0, np.zeros(4), np.zeros((N, 4))
    for who, p in rounds():
        ends = {k: end(k, w, lambda v: sam(k, v, rho) - lam[k] + alpha * (v - w)) for k in who}
        h = h - alpha / (N * (len(who) if released else 1)) * sum(ends[k] - w for k in who)
        for k in who:
            lam[k] -= alpha * (ends[k] - w)
        w = sum(p[k] * ends[k] for k in who) - h / alpha
    return {"server.params": w, "server.h": h, "clients.lam": lam}


def mofedsam(rho: float, beta: float, each: bool = False) -> Numbers:
    w, delta = W0, np.zeros(4)
    for who, p in rounds():
        ends = {k: end(k, w, lambda v: beta * sam(k, v, rho) + (1 - beta) * delta) for k in who}
        delta = sum(w - ends[k] for k in who) / sum(LR * STEPS[k] for k in who)
        if each:
            delta = sum((w - ends[k]) / (LR * STEPS[k]) for k in who) / len(who)
        w = sum(p[k] * ends[k] for k in who)
    return {"server.params": w, "server.delta": delta}


def fedspeed(rho: float, alpha: float, lam: float, released: bool = False, raw: bool = False) -> Numbers:
    w, ghat = W0, np.zeros((N, 4))

    def climbed(k: int, v: Array) -> Array:
        return g(k, v + rho * g(k, v)) if raw else sam(k, v, rho)

    for who, p in rounds():
        ends = {}
        for k in who:
            ends[k] = end(k, w, lambda v: (1 - alpha) * g(k, v) + alpha * climbed(k, v) - ghat[k] + (v - w) / lam)
            ghat[k] -= (ends[k] - w) / lam
        corrections = [ghat.mean(0)] * N if released else ghat
        w = sum(p[k] * (ends[k] - lam * corrections[k]) for k in who)
    return {"server.params": w, "clients.ghat": ghat}


def fedsmoo(final: float, beta: float, regularise: bool, released: bool = False, warmup: int = 0) -> Numbers:
    w, s, lam, mu, lamk = W0, np.zeros(4), np.zeros(4), np.zeros((N, 4)), np.zeros((N, 4))
    for t, (who, p) in enumerate(rounds()):
        ends, sent = {}, {}
        rho = 0.001 + (final - 0.001) * t / warmup if t < warmup else final
        for k in who:
            v = w
            for _ in range(STEPS[k]):
                s_hat = rho * u(g(k, v) - mu[k] - s)
                mu[k] += s_hat - s
                v = v - LR * (g(k, v + s_hat) + regularise * ((v - w) / beta - lamk[k]))
            ends[k], sent[k] = v, mu[k] - s_hat
            lamk[k] -= regularise * (v - w) / beta
        lam = lam - regularise * sum(ends[k] - w for k in who) / (beta * N * (len(who) if released else 1))
        s, w = rho * u(sum(sent.values())), sum(p[k] * ends[k] for k in who) - beta * lam
    known = {"server.params": w, "server.s": s, "clients.mu": mu}
    return known | ({"server.lam": lam, "clients.lam": lamk} if regularise else {})


def fedgloss(rho: float, rho_local: float, beta: float, released: bool = False, naive: bool = False) -> Numbers:
    w, sigma, pseudo, sk = W0, np.zeros(4), np.zeros(4), np.zeros((N, 4))

    def ends(start: Array, who: list[int]) -> dict[int, Array]:
        return {k: end(k, start, lambda v: sam(k, v, rho_local) - sk[k] + (v - start) / beta) for k in who}

    for who, p in rounds():
        if naive:
            pseudo = w - sum(p[k] * e for k, e in ends(w, who).items())
        tilde = w + rho * u(pseudo)
        delta = {k: e - tilde for k, e in ends(tilde, who).items()}
        for k in who:
            sk[k] -= delta[k] / beta
        sigma = sigma - sum(delta.values()) / (beta * N * (len(who) if released else 1))
        pseudo = -sum(p[k] * delta[k] for k in who)
        w = w - pseudo - beta * sigma
    return {"server.params": w, "server.sigma": sigma, "clients.sigma": sk}


def fedgf(rho: float, threshold: float, window: int) -> Numbers:
    w, tilde, flags, c = W0, W0, [], 0.0
    for who, p in rounds():
        ends = {k: end(k, w, lambda v: g(k, c * tilde + (1 - c) * (v + rho * u(g(k, v))))) for k in who}
        flags.append(float(np.mean([np.linalg.norm(ends[k] - w) for k in who]) > threshold))
        c = float(np.mean(flags[-window:]))
        new = sum(p[k] * ends[k] for k in who)
        w, tilde = new, new + rho * u(w - new)
    return {"server.params": w, "server.climb": tilde - w, "server.c": np.array(c)}


def fedopt(
    server_lr: float, first: Callable[[Array, Array], Array], second: Callable[[Array, Array], Array]
) -> Numbers:
    """Return Reddi's Algorithm 2 with τ = 0.01; `first` and `second` map a moment and the change to the next moment."""
    w, m, v = W0, np.zeros(4), np.full(4, 1e-4)
    for who, p in rounds():
        d = sum(p[k] * end(k, w, lambda x: g(k, x)) for k in who) - w
        m, v = first(m, d), second(v, d)
        w = w + server_lr * m / (np.sqrt(v) + 0.01)
    return {"server.inner.params": w, "server.m": m, "server.v": v}


def fedavgm(beta: float, server_lr: float) -> Numbers:
    w, m = W0, np.zeros(4)
    for who, p in rounds():
        m = beta * m + w - sum(p[k] * end(k, w, lambda v: g(k, v)) for k in who)
        w = w - server_lr * m
    return {"server.inner.params": w, "server.momentum": m}


def fedlesam(rho: float, alpha: float | None = None, controls: bool = False, round_before: bool = False) -> Numbers:
    """Return FedLESAM, with FedDyn's duals if α is given, or with SCAFFOLD's control variates."""
    w, before, old, met = W0, W0, np.zeros((N, 4)), np.zeros(N)
    c, h, ck, lam = np.zeros(4), np.zeros(4), np.zeros((N, 4)), np.zeros((N, 4))
    for who, p in rounds():
        ends = {}
        for k in who:
            far = before if round_before else old[k] if met[k] else w
            climb, pull = rho * u(far - w), alpha or 0.0
            ends[k] = end(k, w, lambda v: g(k, v + climb) - ck[k] + c - lam[k] + pull * (v - w))
            old[k], met[k] = w, 1
        if controls:
            new = {k: ck[k] - c + (w - ends[k]) / (STEPS[k] * LR) for k in who}
            c = c + sum(new[k] - ck[k] for k in who) / N
            for k in who:
                ck[k] = new[k]
        if alpha:
            h = h - alpha / N * sum(ends[k] - w for k in who)
            for k in who:
                lam[k] -= alpha * (ends[k] - w)
        before, w = w, sum(p[k] * ends[k] for k in who) - (h / alpha if alpha else 0)
    known = {"server.inner.params": w} | ({} if round_before else {"clients.old": old, "clients.active": met})
    known |= {"server.inner.c": c, "clients.inner.c": ck} if controls else {}
    return known | ({"server.inner.h": h, "clients.inner.lam": lam} if alpha else {})


def fedacg(lam: float, beta: float) -> Numbers:
    w, m = W0, np.zeros(4)
    for who, p in rounds():
        s = w + lam * m
        m = lam * m + sum(p[k] * (end(k, s, lambda v: g(k, v) + beta * (v - s)) - s) for k in who)
        w = w + m
    return {"server.params": w, "server.momentum": m}


def fedexp(epsilon: float) -> Numbers:
    seen = [W0]
    for who, p in rounds():
        w = seen[-1]
        d = {k: end(k, w, lambda v: g(k, v)) - w for k in who}
        mean, spread = sum(p[k] * d[k] for k in who), sum(p[k] * d[k] @ d[k] for k in who)
        eta = max(1.0, spread / (2 * (mean @ mean + epsilon)))
        seen.append(w + eta * mean)
    return {"server.inner.params": seen[-1], "server.eta": np.array(eta), "server.evaluated": (seen[-2] + seen[-1]) / 2}
