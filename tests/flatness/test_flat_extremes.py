"""Hessians that are 0, not finite, tiny or with equal eigenvalues, and models without a gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from finished_runs import SMALL, quick
from known_surfaces import Problem, Quadratic, batch_of, problem, quadratic

import fedflat as ff
from fedflat.errors import UserError
from fedflat.flatness import hessian as hessian_module
from fedflat.flatness import measures
from fedflat.flatness.analyse import analyse
from fedflat.flatness.hessian import Hessian, largest_eigenpairs, power_iteration, spectral_density
from fedflat.flatness.landscape import loss_along
from fedflat.flatness.objective import make_objective
from fedflat.flatness.sharpness import flatness_discrepancy, worst_case_sharpness


def hessian(known: Problem, dtype: torch.dtype = torch.float64) -> Hessian:
    data = make_objective(batch_of(known.samples.x.to(dtype)), 2)
    return Hessian(known.task, known.w.to(dtype), data)


def diagonal(values: list[float]) -> Problem:
    """½ Σ values_i w_i² at w = 0."""
    x = torch.cat([torch.diag(torch.tensor(values).double()), torch.zeros(len(values), 1).double()], 1)
    return problem(Quadratic(), torch.zeros(len(values)).double(), batch_of(x[None]), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [4, 60])
def test_a_hessian_of_zeros_has_eigenvalues_zero(size, dtype):
    found = largest_eigenpairs(hessian(diagonal([0.0] * size), dtype), 3)
    assert found.values.tolist() == [0.0] * 3
    assert torch.equal(found.vectors @ found.vectors.T, torch.eye(3, dtype=dtype))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("size", [4, 60])
@pytest.mark.parametrize("solve", [largest_eigenpairs, spectral_density])
def test_a_hessian_that_is_not_finite_is_refused(solve, size, value):
    with pytest.raises(UserError, match=r"not finite.*lower lr"):
        solve(hessian(diagonal([value] + [1.0] * (size - 1))))


def test_other_errors_of_the_solver_are_user_errors(monkeypatch):
    def fail(*args: object, **options: object) -> None:
        raise hessian_module.ArpackError(-8)

    monkeypatch.setattr(hessian_module, "eigsh", fail)
    with pytest.raises(UserError, match=r'eigenvalues: ARPACK error -8.*solver="power"'):
        largest_eigenpairs(hessian(diagonal([1.0] * 60)), 3)


def test_saturated_clients_are_measured(tmp_path):
    setting = {**SMALL, "alpha": 0.0, "lr": 1000.0}
    ff.run(ff.Experiment(rounds=1, **setting), out=tmp_path / "hot")
    found = analyse([tmp_path / "hot"], quick("local", "lpf"))
    assert found.problems == []
    assert 0.0 in found.documents["hot"]["local"]["seeds"]["0"]["lambda_local"]


def test_a_measurement_that_fails_does_not_stop_the_others(runs, monkeypatch):
    monkeypatch.setattr(Hessian, "apply", lambda self, v: v * torch.nan)
    found = analyse(runs[:1], quick("hessian", "spectrum", "lpf"))
    assert found.documents["avg"].keys() == {"lpf"}
    assert [str(problem).partition(": the")[0] for problem in found.problems] == ["avg: hessian", "avg: spectrum"]


SPECTRA = {
    "far from the rest": [5.0] * 5 + [*np.linspace(0, 1, 95)],
    "near the rest": [5.0] * 5 + [*np.linspace(0, 4.5, 300)],
    "pairs": [9.0, 9.0, 7.0, 7.0, 5.0, 5.0, *np.linspace(0, 1, 95)],
    "two and nothing": [5.0, 3.0] + [0.0] * 98,
    "all below zero": [*np.linspace(-2, -1, 100)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", SPECTRA)
def test_equal_eigenvalues_are_all_found(kind, dtype):
    for seed in range(2):
        known = quadratic(SPECTRA[kind], seed, samples=1)
        found = largest_eigenpairs(hessian(known, dtype), 5)
        expected = sorted(SPECTRA[kind])[::-1][:5]
        assert found.values.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-5)
        assert torch.allclose(found.vectors @ found.vectors.T, torch.eye(5, dtype=dtype), atol=1e-4)


@pytest.mark.parametrize("scale", [1e-8, 1e-25])
def test_power_iteration_finds_small_eigenvalues(scale):
    found = power_iteration(hessian(diagonal([5 * scale, *[scale] * 9]), torch.float32), 1)
    assert float(found.values[0]) == pytest.approx(5 * scale, rel=1e-3)
    assert float(found.vectors[0].norm()) == pytest.approx(1.0)


@pytest.mark.parametrize("steps", [1, 20])
def test_sharpness_where_there_is_no_gradient(steps):
    known = diagonal([4.0, 1.0, 0.5])
    found, other = (worst_case_sharpness(known.task, known.w, known.data, 0.5, steps, seed) for seed in (0, 1))
    assert float(found.one_step) == 0.0, "SAM does not move"
    assert 0 < float(found.rise) <= 0.5 * 4 * 0.5**2 + 1e-12
    assert found.rise == worst_case_sharpness(known.task, known.w, known.data, 0.5, steps).rise
    if steps > 1:
        assert float(found.rise) == pytest.approx(0.5, rel=1e-4)
    else:
        assert found.rise != other.rise


def test_discrepancy_uses_its_seed():
    known = diagonal([4.0, 1.0, 0.5])
    args = known.task, known.w, known.w[None], [known.data], [1], 0.5, 1
    rises = [flatness_discrepancy(*args, seed).global_rise for seed in (0, 1)]
    assert rises[0] != rises[1]


def test_seeds_share_no_directions(runs, monkeypatch):
    drawn: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    for seed, seen in drawn.items():
        monkeypatch.setattr(measures, "loss_along", lambda *args, seen=seen: seen.append(args[2]) or loss_along(*args))
        analyse(runs[:1], quick("path", seed=seed, run_seeds=(3,)))
    random = drawn[0][1:]
    assert len(random) == 10
    assert not any(torch.equal(one, other) for one in random for other in drawn[1])
