"""Methods compared with rounds that by_hand.py computes in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from by_hand import (
    Array,
    Numbers,
    controlled,
    fedacg,
    fedavgm,
    feddyn,
    fedexp,
    fedgf,
    fedgloss,
    fedlesam,
    fednova,
    fedopt,
    fedsmoo,
    fedspeed,
    mofedsam,
)
from quadratics import N, train

import fedflat as ff
from fedflat.core.method import Method
from fedflat.core.state import pack_state


def _adam(m: Array, d: Array) -> Array:
    return 0.9 * m + 0.1 * d


CASES: dict[str, tuple[Method, Callable[[], Numbers]]] = {
    "fednova": (ff.FedNova(), fednova),
    "fednova-released": (ff.FedNova(gradient="released"), lambda: fednova(released=True)),
    "scaffold": (ff.SCAFFOLD(), lambda: controlled(0.0)),
    "fedgamma": (ff.FedGAMMA(rho=0.2), lambda: controlled(0.2)),
    "feddyn": (ff.FedDyn(dyn_alpha=0.3), lambda: feddyn(0.3, 0.0)),
    "feddyn+sam": (ff.FedDyn(dyn_alpha=0.3, rho=0.2), lambda: feddyn(0.3, 0.2)),
    "feddyn-released": (ff.FedDyn(dyn_alpha=0.3, dual="released"), lambda: feddyn(0.3, 0.0, released=True)),
    "mofedsam": (ff.MoFedSAM(rho=0.2, beta=0.3), lambda: mofedsam(0.2, 0.3)),
    "mofedsam-each": (ff.MoFedSAM(rho=0.2, beta=0.3, direction="each"), lambda: mofedsam(0.2, 0.3, each=True)),
    "fedcm": (ff.FedCM(cm_alpha=0.3), lambda: mofedsam(0.0, 0.3)),
    "fedcm-each": (ff.FedCM(cm_alpha=0.3, direction="each"), lambda: mofedsam(0.0, 0.3, each=True)),
    "fedlesam": (ff.FedLESAM(rho=0.2), lambda: fedlesam(0.2)),
    "fedlesam-s": (ff.FedLESAM(rho=0.2, base="scaffold"), lambda: fedlesam(0.2, controls=True)),
    "fedlesam-d": (ff.FedLESAM(rho=0.2, base="feddyn", dyn_alpha=0.3), lambda: fedlesam(0.2, alpha=0.3)),
    "fedlesam-round": (ff.FedLESAM(rho=0.2, reference="round"), lambda: fedlesam(0.2, round_before=True)),
    "fedacg": (ff.FedACG(lam=0.7, beta=0.3), lambda: fedacg(0.7, 0.3)),
    "fedacg-whole": (ff.FedACG(lam=0.7, beta=0.3, penalty="whole"), lambda: fedacg(0.7, 0.6)),
    "fedexp": (ff.FedExP(epsilon=1e-3), lambda: fedexp(1e-3)),
    "fedspeed-raw": (
        ff.FedSpeed(rho=0.2, mix=0.7, lam=3.0, ascent="raw"),
        lambda: fedspeed(0.2, 0.7, 3.0, raw=True),
    ),
    "fedsmoo-released": (
        ff.FedSMOO(rho=0.2, beta=3.0, dual="released"),
        lambda: fedsmoo(0.2, 3.0, True, released=True),
    ),
    "fedspeed": (ff.FedSpeed(rho=0.2, mix=0.7, lam=3.0), lambda: fedspeed(0.2, 0.7, 3.0)),
    "fedspeed-released": (
        ff.FedSpeed(rho=0.2, mix=0.7, lam=3.0, dual="released"),
        lambda: fedspeed(0.2, 0.7, 3.0, released=True),
    ),
    "fedsmoo": (ff.FedSMOO(rho=0.2, beta=3.0), lambda: fedsmoo(0.2, 3.0, True)),
    "fedsmoo-warm": (ff.FedSMOO(rho=0.2, beta=3.0, warmup=2), lambda: fedsmoo(0.2, 3.0, True, warmup=2)),
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
    "naivefedgloss-released": (
        ff.NaiveFedGloSS(rho=0.3, rho_local=0.2, beta=3.0, dual="released"),
        lambda: fedgloss(0.3, 0.2, 3.0, released=True, naive=True),
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
    states = {f"clients.{name}": value for name, value in pack_state(trial.clients.gather(range(N))).items()}
    ours: dict[str, Any] = states | {f"server.{name}": value for name, value in pack_state(trial.server).items()}
    for name, value in by_hand().items():
        np.testing.assert_allclose(ours[name].numpy(), value, rtol=0, atol=1e-12, err_msg=name)


def test_fedgf_by_hand_meets_both_sides_of_the_threshold() -> None:
    assert 0 < fedgf(0.2, 0.75, 3)["server.c"] < 1
