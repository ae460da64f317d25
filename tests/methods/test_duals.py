"""Duals of ADMM and control variates: the server's is the mean of the clients', and ADMM makes clients agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import quadratics
import tiny_problem as tiny
import torch
from torch import Tensor

import fedflat as ff
from fedflat.core.method import Cohort, Message, Method
from fedflat.core.state import pack_state
from fedflat.core.vectors import norm, unit
from fedflat.engine.rounds import Trial


@pytest.mark.parametrize(
    ("method", "mean", "each"),
    [
        (ff.FedGloSS(), "sigma", "sigma"),
        (ff.NaiveFedGloSS(), "sigma", "sigma"),
        (ff.FedDyn(), "h", "lam"),
        (ff.FedSMOO(), "lam", "lam"),
        (ff.FedSpeed(dual="released"), "ghat", "ghat"),
        (ff.SCAFFOLD(), "c", "c"),
        (ff.FedGAMMA(), "c", "c"),
        (ff.FedLESAM(base="scaffold"), "inner.c", "inner.c"),
        (ff.FedLESAM(base="feddyn"), "inner.h", "inner.lam"),
        (ff.FedGMT(), "u", "u"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else value,
)
def test_the_server_holds_the_mean_over_all_clients(method: Method, mean: str, each: str) -> None:
    for trial in tiny.played(method, 3):
        server, clients = pack_state(trial.server), pack_state(trial.clients.gather(range(4)))
        everyone = clients[each]
        assert float(norm(everyone).max()) > 1e-4
        torch.testing.assert_close(server[mean], everyone.mean(0), rtol=0, atol=1e-12)


def test_the_released_dual_is_weaker_by_the_cohort() -> None:
    weak, paper = (quadratics.train(ff.FedGloSS(dual=dual), [[0, 1]]) for dual in ("released", "paper"))
    torch.testing.assert_close(2 * weak.server.sigma, paper.server.sigma, rtol=0, atol=1e-15)


class Server(NamedTuple):
    params: Tensor
    pseudo_grad: Tensor


@dataclass(frozen=True)
class WithoutDuals(Method):
    """FedGloSS without ADMM: the server's SAM alone."""

    rho: float = 0.05

    def init_server(self, params: Tensor) -> Server:
        return Server(params, torch.zeros_like(params))

    def broadcast(self, server: Server) -> Message:
        return Message(server.params + self.rho * unit(server.pseudo_grad))

    def update(self, server: Server, cohort: Cohort) -> Server:
        return Server(server.params + cohort.mean.delta, -cohort.mean.delta)


ADMM, ALONE = ff.FedGloSS(rho=0.05, rho_local=0.0, beta=20.0), WithoutDuals()


def delta_epsilon(method: Any, cohort: int, seed: int, rounds: int) -> np.ndarray:
    """‖u(Δ̃ of the last round) − u(Δ of this one, from w)‖ in every round but the first (eq. 6 for ρ = 1)."""
    rng = np.random.default_rng(seed)
    problem: dict[str, Any] = {"a": rng.uniform(0.5, 2, (6, 6)), "b": rng.normal(size=(6, 6)) + 1, "steps": [2] * 6}
    start = torch.from_numpy(5 * rng.normal(size=6))
    trial, gaps = Trial(0, method, start), []
    for _ in range(rounds):
        who = [[int(client) for client in rng.permutation(6)[:cohort]]]
        last, exact = trial.server.pseudo_grad, Trial(0, method, start)
        exact.unpack({name: tensor.clone() for name, tensor in trial.pack().items()})
        exact.server = exact.server._replace(pseudo_grad=torch.zeros_like(last))
        quadratics.train(method, who, trial=exact, **problem)
        gaps.append(float(norm(unit(last) - unit(exact.server.pseudo_grad))))
        quadratics.train(method, who, trial=trial, **problem)
    return np.array(gaps[1:])


@pytest.mark.parametrize("seed", range(3))
def test_admm_makes_the_last_perturbation_a_better_guess(seed: int) -> None:
    assert delta_epsilon(ADMM, 2, seed, 31).mean() < 0.97 * delta_epsilon(ALONE, 2, seed, 31).mean()


def test_admm_makes_the_guess_better_over_rounds() -> None:
    with_admm, alone = (np.mean([delta_epsilon(m, 6, s, 41) for s in range(3)], 0) for m in (ADMM, ALONE))
    assert with_admm[20:].mean() < with_admm[:20].mean()
    assert alone[20:].mean() > alone[:20].mean()
