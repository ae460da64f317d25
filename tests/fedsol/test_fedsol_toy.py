"""Appendix L: FedSOL rests on the line to the local optimum at distance ρ from it, FedProx does not."""

from __future__ import annotations

import pytest
import torch

from fedflat.cli.toy import (
    ToyTask,
    distance_from_line,
    fedprox_fixed_point,
    fedsol_fixed_point,
    print_toy,
    toy_fedprox,
    toy_fedsol,
    toy_path,
)
from fedflat.core.vectors import norm
from fedflat.errors import UserError

OPTIMA = [(1.0, 1.0), (2.0, -0.5)]


@pytest.mark.parametrize("optimum", OPTIMA)
@pytest.mark.parametrize("delta", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("rho", [0.2, 0.8])
def test_fedsol_rests_on_the_line_at_distance_rho(optimum, delta, rho):
    task = ToyTask(torch.tensor(optimum, dtype=torch.float64), delta)
    end = toy_path(toy_fedsol(rho), task, lr=0.3, steps=800)[-1]
    assert torch.allclose(end, fedsol_fixed_point(task, rho), atol=1e-9)
    assert distance_from_line(end, task) < 1e-9
    assert float(norm(end - task.optimum)) == pytest.approx(rho, abs=1e-9)


@pytest.mark.parametrize("mu", [0.2, 1.0])
def test_fedprox_rests_off_the_line_unless_the_bowl_is_round(mu):
    task = ToyTask(delta=0.1)
    end = toy_path(toy_fedprox(mu), task, lr=0.3, steps=800)[-1]
    assert torch.allclose(end, fedprox_fixed_point(task, mu), atol=1e-9)
    assert distance_from_line(end, task) > 0.1
    assert end[0] > end[1]  # towards the axis of greater curvature
    assert distance_from_line(fedprox_fixed_point(ToyTask(delta=1.0), mu), ToyTask(delta=1.0)) < 1e-12


def test_a_path_begins_at_the_global_model():
    seen = toy_path(toy_fedsol(0.5), ToyTask(), steps=3)
    assert seen.shape == (4, 2)
    assert torch.equal(seen[0], torch.zeros(2, dtype=torch.float64))
    assert torch.allclose(seen[1], 0.01 * torch.tensor([1.0, 0.1], dtype=torch.float64))  # at w_k = w: plain


def test_the_command_prints_the_rests_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedflat.cli.toy.STEPS", 20)
    monkeypatch.setattr("fedflat.cli.toy.toy_path", lambda method, task: toy_path(method, task, steps=20))
    print_toy(tmp_path / "toy.png")
    text = capsys.readouterr().out
    assert "FedSOL ρ = 0.3" in text
    assert "(0.7879, 0.7879)" in text
    assert str(tmp_path / "toy.png") in text
    assert (tmp_path / "toy.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["toy.pdf", "nowhere/toy.png"])
def test_bad_files_are_refused(tmp_path, name):
    with pytest.raises(UserError, match="out="):
        print_toy(tmp_path / name)
