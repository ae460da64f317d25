"""Products, eigenvalues, trace and density against the dense Hessian in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from known_surfaces import convolutional, perceptron, quadratic

from fedflat.errors import UserError
from fedflat.flatness import hessian
from fedflat.flatness.hessian import (
    Eigenpairs,
    Hessian,
    hessian_trace,
    lanczos_tridiagonal,
    largest_eigenpairs,
    power_iteration,
    spectral_density,
)

SPREAD = [9.0, 5.0, 4.0, 2.0, 1.0, *np.linspace(-0.5, 0.5, 27)]
PROBLEMS = {
    "quadratic": lambda: quadratic(SPREAD),
    "perceptron": perceptron,
    "convolutional": convolutional,
    "small": lambda: quadratic([3.0, 1.0, -2.0]),
}


@pytest.fixture(params=PROBLEMS)
def known(request):
    return PROBLEMS[request.param]()


def test_products_are_those_of_the_dense_matrix(known):
    h = Hessian(known.task, known.w, known.data)
    v = torch.from_numpy(np.random.default_rng(1).normal(size=h.size))
    assert torch.allclose(h.apply(v), known.hessian @ v, atol=1e-10)
    assert torch.allclose(h.matrix(), known.hessian, atol=1e-10)
    assert np.allclose(h.operator() @ v.numpy(), known.hessian @ v, atol=1e-10)


def test_largest_eigenvalues_and_vectors(known):
    found = largest_eigenpairs(Hessian(known.task, known.w, known.data), 3, tolerance=1e-12)
    expected = torch.linalg.eigvalsh(known.hessian).flip(0)[:3]
    assert torch.allclose(found.values, expected, atol=1e-6)
    residual = found.vectors @ known.hessian - found.values[:, None] * found.vectors
    assert residual.abs().max() < 1e-6
    assert torch.allclose(found.vectors @ found.vectors.T, torch.eye(3, dtype=torch.float64), atol=1e-8)


def test_largest_means_largest_not_largest_in_size():
    known = quadratic([-10.0, *np.linspace(0, 2, 25)])
    assert float(largest_eigenpairs(Hessian(known.task, known.w, known.data), 1).values[0]) == pytest.approx(
        2.0, rel=1e-3
    )
    assert float(power_iteration(Hessian(known.task, known.w, known.data), 1).values[0]) == pytest.approx(
        -10.0, rel=1e-3
    )


def test_ratio():
    vectors = torch.zeros(5, 1)
    assert Eigenpairs(torch.tensor([9.0, 5.0, 4.0, 3.0, 2.0]), vectors).ratio() == 4.5
    assert Eigenpairs(torch.tensor([9.0, 5.0, 4.0, 3.0, 2.0, 1.0]), vectors).ratio() == 4.5, "λ5, not the last"
    assert Eigenpairs(torch.tensor([9.0, 5.0, 4.0, 3.0, 2.0, -1.0]), vectors).ratio() == 4.5
    assert Eigenpairs(torch.tensor([9.0, 5.0, 4.0, 3.0, -2.0]), vectors).ratio() is None
    assert Eigenpairs(torch.tensor([9.0]), vectors).ratio() is None


def test_lanczos_that_does_not_converge_says_so(monkeypatch):
    monkeypatch.setattr(hessian, "LANCZOS_RESTARTS", 1)
    known = quadratic(list(np.linspace(1.0, 1.001, 300)))
    with pytest.raises(UserError, match=r"eigenvalues: \d of 5 found after 1 restarts"):
        largest_eigenpairs(Hessian(known.task, known.w, known.data), 5, tolerance=1e-14)


def test_power_iteration_converges_to_lanczos():
    known = quadratic(SPREAD)
    h = Hessian(known.task, known.w, known.data)
    found = power_iteration(h, 4, steps=2000, tolerance=1e-15)
    assert torch.allclose(found.values, torch.tensor(SPREAD[:4], dtype=torch.float64), atol=1e-6)
    assert torch.allclose(
        (found.vectors @ largest_eigenpairs(h, 4, 1e-12).vectors.T).abs().diag(), torch.ones(4).double(), atol=1e-6
    )


def test_power_iteration_stops_after_20_steps_or_when_the_value_settles():
    calls = []

    class Counted(Hessian):
        def apply(self, v):
            calls.append(v)
            return super().apply(v)

    slow, quick = quadratic(list(np.linspace(0.9, 1.0, 30))), quadratic([100.0] + [0.01] * 20)
    assert len(power_iteration(Counted(slow.task, slow.w, slow.data), 2, tolerance=0.0).values) == 2
    assert len(calls) == 40
    assert all(calls[0] > 0), "the first start is uniform on [0, 1]"
    calls.clear()
    power_iteration(Counted(quick.task, quick.w, quick.data), 1)
    assert len(calls) < 6


def test_trace_is_exact_where_that_is_no_dearer(known):
    h = Hessian(known.task, known.w, known.data)
    value, error = hessian_trace(h, probes=h.size)
    assert value == pytest.approx(float(known.hessian.trace()), abs=1e-6)
    assert error == 0


def test_hutchinson_is_honest_about_its_error():
    known = perceptron()
    h, exact = Hessian(known.task, known.w, known.data), float(known.hessian.trace())
    few, many = hessian_trace(h, probes=20), hessian_trace(h, probes=50, seed=1)
    assert abs(few.value - exact) < 4 * few.error
    off = known.hessian - torch.diag(known.hessian.diag())
    assert many.error == pytest.approx(float((2 * (off**2).sum() / 50).sqrt()), rel=0.3)


def test_lanczos_quadrature_integrates_polynomials_of_the_spectrum():
    known = quadratic(SPREAD)
    h = Hessian(known.task, known.w, known.data)
    start = torch.from_numpy(np.random.default_rng(3).normal(size=h.size))
    diagonal, beside = lanczos_tridiagonal(h, start, 4)
    matrix = torch.diag(diagonal) + torch.diag(beside, 1) + torch.diag(beside, -1)
    unit = start / start.norm()
    for degree in range(8):
        moment = unit @ torch.linalg.matrix_power(known.hessian, degree) @ unit
        assert float(torch.linalg.matrix_power(matrix, degree)[0, 0]) == pytest.approx(float(moment), rel=1e-9)


def test_spectrum_is_that_of_the_matrix():
    known = quadratic(SPREAD)
    h = Hessian(known.task, known.w, known.data)
    found = spectral_density(h, probes=8, steps=len(SPREAD))
    assert float(found.weights.sum()) == pytest.approx(1.0)
    assert float(found.nodes.max()) == pytest.approx(9.0, abs=1e-6)
    assert float(found.nodes.min()) == pytest.approx(-0.5, abs=1e-6)
    bulk = abs(found.nodes) < 0.75
    assert float(found.weights[bulk].sum()) == pytest.approx(27 / 32, abs=0.1)
    assert abs(found.trace.value - sum(SPREAD)) < 4 * found.trace.error
    grid, density = found.density()
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1.0, abs=1e-3)


def test_an_invariant_space_ends_lanczos():
    known = quadratic([2.0] * 12, linear=0.0)
    found = spectral_density(Hessian(known.task, known.w, known.data), probes=2, steps=10)
    assert torch.allclose(found.nodes, torch.tensor([2.0, 2.0], dtype=torch.float64), atol=1e-9)
    assert found.trace.value == pytest.approx(24.0)
