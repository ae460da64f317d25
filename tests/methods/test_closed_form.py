"""Rounds on quadratics computed by hand: plain numpy loops, written from the formulas and not from the methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from quadratics import COHORTS, LR, SIZES, STEPS, W0, A, B, N, train

import fedflat as ff
from fedflat.engine.state import pack
from fedflat.method import Method

Array = np.ndarray
Numbers = dict[str, Array]


def g(k: int, w: Array) -> Array:
    return A[k] * (w - B[k])


def u(v: Array) -> Array:
    return v / np.linalg.norm(v) if v.any() else v


def sam(k: int, w: Array, rho: float) -> Array:
    return g(k, w + rho * u(g(k, w)))


def end(k: int, w: Array, direction: Callable[[Array], Array]) -> Array:
    """Where client k's steps lead from w."""
    for _ in range(STEPS[k]):
        w = w - LR * direction(w)
    return w


def rounds() -> Iterator[tuple[list[int], dict[int, float]]]:
    """Who takes part, and the averaging weights."""
    for who in COHORTS:
        yield who, {k: SIZES[k] / sum(SIZES[j] for j in who) for k in who}


def fednova() -> Numbers:
    w = W0
    for who, p in rounds():
        ends = {k: end(k, w, lambda v: g(k, v)) for k in who}
        tau = sum(p[k] * STEPS[k] for k in who)
        w = w - tau * sum(p[k] * (w - ends[k]) / STEPS[k] for k in who)
    return {"server.params": w}


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


def feddyn(alpha: float, rho: float) -> Numbers:
    w, h, lam = W0, np.zeros(4), np.zeros((N, 4))
    for who, p in rounds():
        ends = {k: end(k, w, lambda v: sam(k, v, rho) - lam[k] + alpha * (v - w)) for k in who}
        h = h - alpha / N * sum(ends[k] - w for k in who)
        for k in who:
            lam[k] -= alpha * (ends[k] - w)
        w = sum(p[k] * ends[k] for k in who) - h / alpha
    return {"server.params": w, "server.h": h, "clients.lam": lam}


def mofedsam(rho: float, beta: float) -> Numbers:
    w, delta = W0, np.zeros(4)
    for who, p in rounds():
        ends = {k: end(k, w, lambda v: beta * sam(k, v, rho) + (1 - beta) * delta) for k in who}
        delta = sum(w - ends[k] for k in who) / sum(LR * STEPS[k] for k in who)
        w = sum(p[k] * ends[k] for k in who)
    return {"server.params": w, "server.delta": delta}


def fedspeed(rho: float, alpha: float, lam: float) -> Numbers:
    w, ghat = W0, np.zeros((N, 4))
    for who, p in rounds():
        ends = {}
        for k in who:
            ends[k] = end(k, w, lambda v: (1 - alpha) * g(k, v) + alpha * sam(k, v, rho) - ghat[k] + (v - w) / lam)
            ghat[k] -= (ends[k] - w) / lam
        w = sum(p[k] * (ends[k] - lam * ghat[k]) for k in who)
    return {"server.params": w, "clients.ghat": ghat}


def fedsmoo(rho: float, beta: float, regularise: bool) -> Numbers:
    w, s, lam, mu, lamk = W0, np.zeros(4), np.zeros(4), np.zeros((N, 4)), np.zeros((N, 4))
    for who, p in rounds():
        ends, sent = {}, {}
        for k in who:
            v = w
            for _ in range(STEPS[k]):
                s_hat = rho * u(g(k, v) - mu[k] - s)
                mu[k] += s_hat - s
                v = v - LR * (g(k, v + s_hat) + regularise * ((v - w) / beta - lamk[k]))
            ends[k], sent[k] = v, mu[k] - s_hat
            lamk[k] -= regularise * (v - w) / beta
        lam = lam - regularise * sum(ends[k] - w for k in who) / (beta * N)
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
    return {"server.params": w, "server.perturbed": tilde, "server.c": np.array(c)}


def fedopt(
    server_lr: float, first: Callable[[Array, Array], Array], second: Callable[[Array, Array], Array]
) -> Numbers:
    """Reddi's Algorithm 2 with τ = 0.01: `first` and `second` give the next moments from the last and the change."""
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


def _adam(m: Array, d: Array) -> Array:
    return 0.9 * m + 0.1 * d


CASES: dict[str, tuple[Method, Callable[[], Numbers]]] = {
    "fednova": (ff.FedNova(), fednova),
    "scaffold": (ff.SCAFFOLD(), lambda: controlled(0.0)),
    "fedgamma": (ff.FedGAMMA(rho=0.2), lambda: controlled(0.2)),
    "feddyn": (ff.FedDyn(dyn_alpha=0.3), lambda: feddyn(0.3, 0.0)),
    "feddyn+sam": (ff.FedDyn(dyn_alpha=0.3, rho=0.2), lambda: feddyn(0.3, 0.2)),
    "mofedsam": (ff.MoFedSAM(rho=0.2, beta=0.3), lambda: mofedsam(0.2, 0.3)),
    "fedspeed": (ff.FedSpeed(rho=0.2, mix=0.7, lam=3.0), lambda: fedspeed(0.2, 0.7, 3.0)),
    "fedsmoo": (ff.FedSMOO(rho=0.2, beta=3.0), lambda: fedsmoo(0.2, 3.0, True)),
    "fedsmoo-": (ff.FedSMOO(rho=0.2, regularise=False), lambda: fedsmoo(0.2, 1.0, False)),
    "fedgloss": (ff.FedGloSS(rho=0.3, rho_local=0.2, beta=3.0), lambda: fedgloss(0.3, 0.2, 3.0)),
    "fedgloss-released": (
        ff.FedGloSS(rho=0.3, rho_local=0.0, beta=3.0, dual="released"),
        lambda: fedgloss(0.3, 0.0, 3.0, released=True),
    ),
    "naivefedgloss": (
        ff.NaiveFedGloSS(rho=0.3, rho_local=0.2, beta=3.0),
        lambda: fedgloss(0.3, 0.2, 3.0, naive=True),
    ),
    "fedgf": (ff.FedGF(rho=0.2, threshold=0.75, window=3), lambda: fedgf(0.2, 0.75, 3)),
    "fedavgm": (ff.ServerMomentum(beta=0.8, server_lr=0.5), lambda: fedavgm(0.8, 0.5)),
    "fedadam": (
        ff.ServerAdam(server_lr=0.1, tau=0.01),
        lambda: fedopt(0.1, _adam, lambda v, d: 0.99 * v + 0.01 * d**2),
    ),
    "fedyogi": (
        ff.ServerYogi(server_lr=0.1, tau=0.01),
        lambda: fedopt(0.1, _adam, lambda v, d: v - 0.01 * d**2 * np.sign(v - d**2)),
    ),
    "fedadagrad": (
        ff.ServerAdagrad(server_lr=0.1, tau=0.01),
        lambda: fedopt(0.1, lambda m, d: d, lambda v, d: v + d**2),
    ),
}


@pytest.mark.parametrize(("method", "by_hand"), CASES.values(), ids=CASES)
def test_rounds_by_hand(method: Method, by_hand: Callable[[], Numbers]) -> None:
    trial = train(method)
    states = {f"clients.{name}": value for name, value in pack(trial.clients.gather(range(N))).items()}
    ours: dict[str, Any] = states | {f"server.{name}": value for name, value in pack(trial.server).items()}
    for name, value in by_hand().items():
        np.testing.assert_allclose(ours[name].numpy(), value, rtol=0, atol=1e-12, err_msg=name)


def test_fedgf_by_hand_meets_both_sides_of_the_threshold() -> None:
    assert 0 < fedgf(0.2, 0.75, 3)["server.c"] < 1
