"""A method with special hyper-parameters equals another: finds wrong signs and factors that accuracy does not show.

Four rounds, ragged clients, partial cohorts, client momentum and weighted averages unless a case needs less.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny_problem as tiny
import torch

import fedflat as ff
from fedflat.core.method import Cohort, Method

EVERYONE = {"cohorts": ([0, 1, 2, 3],), "weights": "uniform"}
FULL_BATCH = {"source": tiny.client_data(batch_size=9)}
EQUAL_STEPS = {"source": tiny.client_data(tiny.EQUAL)}
UNMOVED = {"beta1": 0.0, "beta2": 1.0, "tau": 0.5, "v0": 0.25, "server_lr": 1.0}  # √v + τ stays 1

CASES: list[tuple[Method, Method, dict[str, Any]]] = [
    (ff.FedAvg(), Method(), {}),
    (ff.FedProx(mu=0.0), ff.FedAvg(), {}),
    (ff.FedNTD(beta=0.0), ff.FedAvg(), {}),
    (ff.MOON(mu=0.0), ff.FedAvg(), {}),
    (ff.FedNova(), ff.FedAvg(), EQUAL_STEPS),
    (ff.FedSAM(rho=0.0), ff.FedAvg(), {}),
    (ff.FedASAM(rho=0.0), ff.FedAvg(), {}),
    (ff.FedSOL(rho=0.0), ff.FedAvg(), {}),
    (ff.FedSOL(rho=0.0, perturb="all", lam="dim0"), ff.FedAvg(), {}),
    (ff.FedSMOO(rho=0.0, regularise=False), ff.FedAvg(), {}),
    (ff.FedGF(rho=0.1, threshold=math.inf), ff.FedSAM(rho=0.1), {}),
    (ff.FedGF(rho=0.1, threshold=0.0, static_c=0.0), ff.FedSAM(rho=0.1), {}),
    (ff.MoFedSAM(rho=0.1, beta=1.0), ff.FedSAM(rho=0.1), {}),
    (ff.FedCM(cm_alpha=0.3), ff.MoFedSAM(rho=0.0, beta=0.3), {}),
    (ff.FedCM(cm_alpha=0.3, direction="each"), ff.MoFedSAM(rho=0.0, beta=0.3, direction="each"), {}),
    (ff.FedCM(direction="each"), ff.FedCM(), EQUAL_STEPS),
    (ff.FedCM(cm_alpha=1.0), ff.FedAvg(), {}),
    (ff.FedACG(lam=0.0, beta=0.0), ff.FedAvg(), {}),
    (ff.FedACG(lam=0.0, beta=0.3), ff.FedProx(mu=0.3), {}),
    (ff.FedACG(beta=0.3), ff.FedACG(beta=0.15, penalty="whole"), {}),
    (ff.FedDecorr(beta=0.0), ff.FedAvg(), {}),
    (ff.FedLESAM(rho=0.0), ff.FedAvg(), {}),
    (ff.FedLESAM(rho=0.0, base="scaffold"), ff.SCAFFOLD(), {}),
    (ff.FedLESAM(rho=0.0, base="feddyn", dyn_alpha=0.2), ff.FedDyn(dyn_alpha=0.2), {}),
    (ff.FedLESAM(rho=0.1), ff.FedLESAM(rho=0.1, reference="round"), EVERYONE),
    (ff.Compressed(inner=ff.FedGloSS(), compressor="topk", keep=1.0), ff.FedGloSS(), {}),
    (ff.Compressed(inner=ff.SCAFFOLD(), compressor="randomk", keep=1.0, error_feedback=False), ff.SCAFFOLD(), {}),
    (ff.FedExP(inner=ff.FedSAM(), epsilon=1e9, evaluate="last"), ff.FedSAM(), {}),
    (ff.FedExP(inner=ff.NaiveFedGloSS(), epsilon=1e9, evaluate="last"), ff.NaiveFedGloSS(), {}),
    (ff.SCAFFOLD(steps="plain"), ff.SCAFFOLD(steps="momentum"), {"momentum": 0.0}),
    (ff.FedGAMMA(rho=0.0), ff.SCAFFOLD(), {}),
    (ff.FedGAMMA(rho=0.0, steps="plain"), ff.SCAFFOLD(steps="plain"), {}),
    (ff.FedGloSS(rho=0.0, rho_local=0.0, beta=5.0), ff.FedDyn(dyn_alpha=0.2), {}),
    (ff.FedGloSS(rho=0.0, rho_local=0.1, beta=5.0), ff.FedDyn(dyn_alpha=0.2, rho=0.1), {}),
    (ff.FedSMOO(rho=0.0, beta=5.0), ff.FedDyn(dyn_alpha=0.2), {}),
    (ff.FedSpeed(mix=0.0, lam=5.0), ff.FedDyn(dyn_alpha=0.2), EVERYONE),
    (ff.FedSpeed(mix=1.0, lam=5.0, rho=0.1), ff.FedDyn(dyn_alpha=0.2, rho=0.1), EVERYONE),
    (ff.FedSpeed(mix=1.0, lam=5.0, rho=0.1, dual="released"), ff.FedDyn(dyn_alpha=0.2, rho=0.1), {}),
    (ff.NaiveFedGloSS(rho=0.0, rho_local=0.0, beta=5.0), ff.FedDyn(dyn_alpha=0.2), FULL_BATCH),
    (ff.ServerMomentum(inner=ff.FedGloSS(), beta=0.0), ff.FedGloSS(), {}),
    (ff.ServerMomentum(inner=ff.NaiveFedGloSS(), beta=0.0), ff.NaiveFedGloSS(), {}),
    (ff.ServerAdam(inner=ff.FedDyn(), **UNMOVED), ff.FedDyn(), {}),
    (ff.ServerYogi(inner=ff.SCAFFOLD(), **UNMOVED), ff.SCAFFOLD(), {}),
    (ff.Averaged(inner=ff.FedSOL(), start_round=5), ff.FedSOL(), {}),
]


@pytest.mark.parametrize(
    ("special", "plain", "setting"), CASES, ids=[f"{type(a).__name__}={type(b).__name__}" for a, b, _ in CASES]
)
def test_reduction(special: Method, plain: Method, setting: dict[str, Any]) -> None:
    torch.testing.assert_close(tiny.models(special, **setting), tiny.models(plain, **setting), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("method", "plain"),
    [
        (ff.FedProx(), ff.FedAvg()),
        (ff.FedNTD(), ff.FedAvg()),
        (ff.MOON(), ff.FedAvg()),
        (ff.FedNova(), ff.FedAvg()),
        (ff.FedNova(gradient="released"), ff.FedNova()),
        (ff.SCAFFOLD(), ff.FedAvg()),
        (ff.SCAFFOLD(steps="plain"), ff.SCAFFOLD(steps="momentum")),
        (ff.FedSAM(), ff.FedAvg()),
        (ff.FedASAM(), ff.FedASAM(biases=True)),
        (ff.MoFedSAM(), ff.FedSAM()),
        (ff.FedGAMMA(), ff.SCAFFOLD()),
        (ff.FedDyn(rho=0.1), ff.FedDyn()),
        (ff.FedSpeed(mix=0.5), ff.FedSpeed(mix=0.4)),
        (ff.FedSpeed(dual="released"), ff.FedSpeed()),
        (ff.FedSMOO(), ff.FedSMOO(regularise=False)),
        (ff.FedGF(threshold=0.0), ff.FedSAM()),
        (ff.FedGloSS(), ff.NaiveFedGloSS()),
        (ff.FedGloSS(dual="released"), ff.FedGloSS()),
        (ff.FedGloSS(warmup=3), ff.FedGloSS()),
        (ff.NaiveFedGloSS(warmup=3), ff.NaiveFedGloSS()),
        (ff.ServerYogi(), ff.ServerAdam()),
        (ff.FedDyn(dual="released"), ff.FedDyn()),
        (ff.FedSMOO(dual="released"), ff.FedSMOO()),
        (ff.FedSMOO(warmup=3), ff.FedSMOO()),
        (ff.FedSpeed(ascent="raw"), ff.FedSpeed()),
        (ff.MoFedSAM(direction="each"), ff.MoFedSAM()),
        (ff.FedCM(), ff.FedAvg()),
        (ff.FedACG(), ff.FedAvg()),
        (ff.FedLESAM(), ff.FedAvg()),
        (ff.FedLESAM(reference="round"), ff.FedLESAM()),
        (ff.FedGMT(gamma=0.0), ff.FedGMT()),
        (ff.FedGMT(dual="cohort"), ff.FedGMT()),
        (ff.FedDecorr(), ff.FedAvg()),
        (ff.FedDecorr(scale="paper"), ff.FedDecorr()),
        (ff.FedExP(epsilon=1e-6), ff.FedAvg()),
        (ff.Compressed(), ff.FedAvg()),
        (ff.Compressed(bits=1), ff.Compressed(bits=1, error_feedback=False)),
    ],
    ids=lambda method: type(method).__name__,
)
def test_what_makes_a_method_does_something(method: Method, plain: Method) -> None:
    assert float((tiny.models(method) - tiny.models(plain))[-1].abs().max()) > 1e-6


def test_averaged_is_the_mean_of_the_inner_models() -> None:
    inner = tiny.models(ff.FedGloSS())
    averaged = tiny.models(ff.Averaged(inner=ff.FedGloSS(), start_round=2, every=2))
    expected = [inner[0], inner[1], inner[1], (inner[1] + inner[3]) / 2]
    torch.testing.assert_close(averaged, torch.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("start", "every"), [(1, 1), (1, 2), (2, 2), (3, 2), (2, 3), (9, 1)])
def test_averaged_begins_with_round_start_and_takes_every_kth_from_there(start: int, every: int) -> None:
    """The model after round t is t, so that the mean says which rounds are in it."""
    method, ones = ff.Averaged(start_round=start, every=every), ff.Reply(torch.ones(1).double())
    server = method.init_server(torch.zeros(1).double())
    for t in range(1, 9):
        server = method.update(server, Cohort(ones, ones, 1, 1))
        chosen = list(range(start, t + 1, every)) or [t]
        assert float(server.params) == pytest.approx(sum(chosen) / len(chosen), abs=1e-12)


def test_a_wrapper_counts_rounds_not_exchanges() -> None:
    inner = tiny.models(ff.NaiveFedGloSS())
    averaged = tiny.models(ff.Averaged(inner=ff.NaiveFedGloSS(), start_round=1))
    torch.testing.assert_close(averaged[-1], inner.mean(0), rtol=0, atol=1e-12)


def test_scaffold_and_fedavg_begin_alike() -> None:
    torch.testing.assert_close(tiny.models(ff.SCAFFOLD())[0], tiny.models(ff.FedAvg())[0], rtol=0, atol=1e-12)
