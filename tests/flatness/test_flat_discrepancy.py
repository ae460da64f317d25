"""Flatness discrepancy of FedGF's Definition 1 against exact maxima of quadratics, and its bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from known_surfaces import Problem, convolutional, perceptron, quadratic
from scipy.optimize import brentq

from fedflat.core.vectors import unit
from fedflat.flatness.hessian import Hessian, largest_eigenpairs
from fedflat.flatness.objective import join_objectives, loss_and_gradient
from fedflat.flatness.sharpness import flatness_discrepancy, local_and_global_curvature, worst_case_sharpness

RHO = 0.7


def highest(gradient: torch.Tensor, hessian: torch.Tensor, rho: float = RHO) -> float:
    """max gᵀδ + ½ δᵀHδ over ‖δ‖ ≤ ρ: δ = (μI − H)⁻¹g with μ above H's spectrum such that ‖δ‖ = ρ."""
    values, basis = np.linalg.eigh(hessian.numpy())
    g = basis.T @ gradient.numpy()
    top = max(values[-1], 0.0)
    mu = brentq(lambda m: np.linalg.norm(g / (m - values)) - rho, top + 1e-9, top + np.linalg.norm(g) / rho + 1)
    delta = g / (mu - values)
    return float(g @ delta + 0.5 * delta @ (values * delta))


def clients() -> list[Problem]:
    spectra = ([4.0, 2.0, 1.0, 0.5], [1.0, 1.0, 0.5, 0.0], [3.0, 0.2, 0.1, 0.0])
    return [quadratic(values, seed) for seed, values in enumerate(spectra)]


def local_models(some: list[Problem]) -> torch.Tensor:
    rng = np.random.default_rng(7)
    return torch.stack([some[0].w + 0.3 * torch.from_numpy(rng.normal(size=len(some[0].w))) for _ in some])


@pytest.mark.parametrize("seed", range(3))
def test_sharpness_is_the_maximum_over_the_ball(seed):
    known = quadratic([5.0, 2.0, 1.0, 0.3, 0.0], seed)
    found = worst_case_sharpness(known.task, known.w, known.data, RHO, steps=80)
    assert float(found.rise) == pytest.approx(highest(known.gradient, known.hessian), abs=1e-6)
    sam = known.w + RHO * unit(known.gradient)
    start = known.task.loss(known.w, known.samples)
    assert float(found.one_step) == pytest.approx(float(known.task.loss(sam, known.samples) - start), abs=1e-9)
    assert found.one_step <= found.rise
    assert torch.allclose(found.gradient, known.gradient)


def test_sharpness_never_falls_below_the_centre():
    known = quadratic([-50.0, -40.0, -30.0])
    found = worst_case_sharpness(known.task, known.w, known.data, 20.0, steps=3)
    assert float(found.rise) == float(found.one_step) == 0.0


def test_discrepancy_of_quadratics():
    some, sizes = clients(), [10, 30, 20]
    w, local = some[0].w, local_models(some)
    found = flatness_discrepancy(some[0].task, w, local, [c.data for c in some], sizes, RHO, steps=80)
    p = torch.tensor(sizes).double() / 60
    at_w = torch.stack([c.task.grad(w, c.samples) for c in some])
    at_ends = torch.stack([c.task.grad(e, c.samples) for e, c in zip(local, some, strict=True)])
    dense = torch.stack([c.hessian for c in some])
    everywhere = highest(p @ at_w, torch.einsum("k,kij->ij", p, dense))
    rises = [highest(g, h) for g, h in zip(at_ends, dense, strict=True)]
    assert found.value == pytest.approx(abs(everywhere - float(p @ torch.tensor(rises).double())), abs=1e-6)
    assert found.global_rise == pytest.approx(everywhere, abs=1e-6)
    assert found.local_rises == pytest.approx(rises, abs=1e-6)
    slopes = float(p @ at_ends.norm(dim=1))
    assert found.first_order == pytest.approx(RHO * abs(float((p @ at_w).norm()) - slopes), abs=1e-9)


def test_bound_of_quadratics():
    some, sizes = clients(), [10, 30, 20]
    w, local = some[0].w, local_models(some)
    found = flatness_discrepancy(some[0].task, w, local, [c.data for c in some], sizes, RHO, steps=1)
    p = torch.tensor(sizes).double() / 60
    at_w = torch.stack([c.task.grad(w, c.samples) for c in some])
    sigma = float((at_w - p @ at_w).norm(dim=1).max())
    apart = (local - w).norm(dim=1)
    change = torch.stack([c.hessian @ (e - w) for e, c in zip(local, some, strict=True)])
    smooth = float((change.norm(dim=1) / apart).max())
    drift = RHO * smooth * float(p @ apart)
    assert (found.sigma_g, found.smoothness) == pytest.approx((sigma, smooth))
    assert found.distances == pytest.approx(apart.tolist())
    assert found.bound == pytest.approx(RHO * sigma + drift)
    assert found.printed_bound == pytest.approx(RHO * sigma**2 + drift)


@pytest.mark.parametrize("seed", range(10))
def test_the_first_order_discrepancy_is_within_its_bound(seed):
    make = (perceptron, convolutional)[seed % 2]
    some = [make(10 * seed + k) for k in range(3)]
    noise = np.random.default_rng(seed).normal(size=(3, len(some[0].w)))
    local = some[0].w + 0.1 * torch.from_numpy(noise)
    found = flatness_discrepancy(some[0].task, some[0].w, local, [c.data for c in some], [5, 1, 3], 0.05, steps=2)
    assert 0 < found.first_order <= found.bound


def test_the_bound_is_zero_for_equal_clients_that_did_not_move():
    known = perceptron()
    found = flatness_discrepancy(known.task, known.w, known.w.expand(2, -1), [known.data] * 2, [1, 1], 0.1)
    assert (found.value, found.bound) == pytest.approx((0, 0), abs=1e-12)


def test_local_and_global_eigenvalues():
    some = [perceptron(seed) for seed in range(2)]
    local = torch.stack([c.w for c in some])
    everything = join_objectives([c.data for c in some], [1, 1])
    found = local_and_global_curvature(some[0].task, local, [c.data for c in some], everything)
    for pair, c in zip(found, some, strict=True):
        dense = [torch.func.hessian(c.task.loss)(c.w, other.samples) for other in some]
        assert pair.own == pytest.approx(float(torch.linalg.eigvalsh(c.hessian)[-1]), rel=1e-5)
        assert pair.all == pytest.approx(float(torch.linalg.eigvalsh((dense[0] + dense[1]) / 2)[-1]), rel=1e-5)
        assert pair.own == pytest.approx(float(largest_eigenpairs(Hessian(c.task, c.w, c.data), 1).values[0]))


def test_one_pass_gives_value_and_gradient():
    known = convolutional()
    calls = []
    loss = known.task.loss
    known.task.loss = lambda w, batch: calls.append(1) or loss(w, batch)
    loss_and_gradient(known.task, known.w, known.data)
    assert len(calls) == len(known.data.batches)
