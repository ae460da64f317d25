"""FedSOL's Propositions 1 and 2 hold to first order on a convex problem: the error shrinks as ρ² and as γ²."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import grad, hessian

from fedflat.core.method import Message
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import norm, unit
from fedflat.methods.fedsol import FedSOL, kl_loss

SMALL = np.geomspace(1e-3, 1e-2, 5)


class Problem:
    """Softmax regression, whose cross entropy is convex; L_p is the KL divergence from the model at w."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.task = Task(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 4).double()))
        x, y = torch.randn(20, 6, dtype=torch.float64), torch.randint(4, (20,))
        self.batch = Batch(x, y, torch.ones(20, dtype=torch.bool), None)
        self.start = 0.5 * torch.randn(self.task.size, dtype=torch.float64)
        self.here = self.start - 1.0 * self.task.grad(self.start, self.batch)  # after a step: the losses conflict
        self.local = lambda v: self.task.loss(v, self.batch)
        teacher = self.task.logits(self.start, self.batch)
        self.proximal = lambda v: kl_loss(self.task, self.task.logits(v, self.batch), teacher, self.batch, 3.0)
        self.g_l, self.g_p = grad(self.local)(self.here), grad(self.proximal)(self.here)
        self.curvature = hessian(self.local)(self.here)

    def fedsol(self, rho: float) -> torch.Tensor:
        """The update direction of the method itself, with a fixed ρ on all parameters as in the propositions."""
        method = FedSOL(rho=float(rho), lam="fixed", perturb="all")
        return method.step(self.task, self.here, self.batch, Message(self.start), ())[0]


@pytest.fixture(scope="module")
def convex():
    return Problem()


def slope(sizes, errors):
    """The power with which errors shrink."""
    return np.polyfit(np.log(sizes), np.log(np.abs(errors)), 1)[0]


def test_the_losses_conflict_and_the_local_one_is_convex(convex):
    assert convex.g_l @ convex.g_p < 0
    assert torch.linalg.eigvalsh(convex.curvature).min() > -1e-12


def test_proposition_1_error_shrinks_as_rho_squared(convex):
    """⟨g_p, g_u⟩ = ⟨g_l, g_p⟩ + ρ ĝ_pᵀ ∇²f g_p + O(ρ²)."""
    conflict, relief = convex.g_l @ convex.g_p, unit(convex.g_p) @ convex.curvature @ convex.g_p
    assert relief > 0
    errors = [float(convex.g_p @ convex.fedsol(rho) - (conflict + rho * relief)) for rho in SMALL]
    assert slope(SMALL, errors) == pytest.approx(2, abs=0.05)
    without = [float(convex.g_p @ convex.fedsol(rho) - conflict) for rho in SMALL]
    assert slope(SMALL, without) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("loss", ["local", "proximal"])
def test_changes_of_loss_are_first_order_in_the_learning_rate(convex, loss):
    """ΔL = −γ ⟨∇L, g_u⟩ + O(γ²), the step both propositions share (eq. 9)."""
    function, g_u = getattr(convex, loss), convex.fedsol(0.1)
    first = grad(function)(convex.here) @ g_u
    errors = [float(function(convex.here - g * g_u) - function(convex.here) + g * first) for g in SMALL]
    assert slope(SMALL, errors) == pytest.approx(2, abs=0.05)


def test_proposition_1_raising_rho_lowers_the_proximal_loss(convex):
    changes = [float(convex.proximal(convex.here - 0.01 * convex.fedsol(rho))) for rho in (0.0, 0.1, 0.3, 1.0)]
    assert changes == sorted(changes, reverse=True)
    assert changes[0] > float(convex.proximal(convex.here))


def test_proposition_2_error_shrinks_as_rho_squared(convex):
    """⟨g_l, g_u⟩ = ‖∇f(w + ρ/2 ĝ_p)‖² + O(ρ²): the step of FedAvg at half the perturbation."""
    halfway = [norm(grad(convex.local)(convex.here + rho / 2 * unit(convex.g_p))) ** 2 for rho in SMALL]
    inner = [convex.g_l @ convex.fedsol(rho) for rho in SMALL]
    errors = [float(a - b) for a, b in zip(inner, halfway, strict=True)]
    assert slope(SMALL, errors) == pytest.approx(2, abs=0.05)
    unmoved = [float(a - norm(convex.g_l) ** 2) for a in inner]
    assert slope(SMALL, unmoved) == pytest.approx(1, abs=0.05)


def test_proposition_2_as_printed(convex):
    """Δ_FedSOL f(w) − Δ_FedAvg f(w + ρ/2 ĝ_p) is of order γρ² + γ²ρ: third order where γ = ρ."""
    errors = []
    for size in SMALL:
        there = convex.here + size / 2 * unit(convex.g_p)
        ours = convex.local(convex.here - size * convex.fedsol(size)) - convex.local(convex.here)
        theirs = convex.local(there - size * grad(convex.local)(there)) - convex.local(there)
        errors.append(float(ours - theirs))
    assert slope(SMALL, errors) == pytest.approx(3, abs=0.1)
