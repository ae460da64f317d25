"""Appendix L: FedSOL rests on the line to the local optimum at distance ρ from it, FedProx does not."""

from __future__ import annotations

import pytest
import torch

from fedflat.core.vectors import norm
from fedflat.errors import UserError
from fedflat.toy import Bowl, fedprox, fedprox_rest, fedsol, fedsol_rest, off_line, path, toy_command

OPTIMA = [(1.0, 1.0), (2.0, -0.5)]


@pytest.mark.parametrize("optimum", OPTIMA)
@pytest.mark.parametrize("delta", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("rho", [0.2, 0.8])
def test_fedsol_rests_on_the_line_at_distance_rho(optimum, delta, rho):
    task = Bowl(torch.tensor(optimum, dtype=torch.float64), delta)
    end = path(fedsol(rho), task, lr=0.3, steps=800)[-1]
    assert torch.allclose(end, fedsol_rest(task, rho), atol=1e-9)
    assert off_line(end, task) < 1e-9
    assert float(norm(end - task.optimum)) == pytest.approx(rho, abs=1e-9)


@pytest.mark.parametrize("mu", [0.2, 1.0])
def test_fedprox_rests_off_the_line_unless_the_bowl_is_round(mu):
    task = Bowl(delta=0.1)
    end = path(fedprox(mu), task, lr=0.3, steps=800)[-1]
    assert torch.allclose(end, fedprox_rest(task, mu), atol=1e-9)
    assert off_line(end, task) > 0.1
    assert end[0] > end[1]  # towards the axis of greater curvature
    assert off_line(fedprox_rest(Bowl(delta=1.0), mu), Bowl(delta=1.0)) < 1e-12


def test_a_path_begins_at_the_global_model():
    seen = path(fedsol(0.5), Bowl(), steps=3)
    assert seen.shape == (4, 2)
    assert torch.equal(seen[0], torch.zeros(2, dtype=torch.float64))
    assert torch.allclose(seen[1], 0.01 * torch.tensor([1.0, 0.1], dtype=torch.float64))  # at w_k = w: plain


def test_the_command_prints_the_rests_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedflat.toy.STEPS", 20)
    monkeypatch.setattr("fedflat.toy.path", lambda method, task: path(method, task, steps=20))
    toy_command(tmp_path / "toy.png")
    text = capsys.readouterr().out
    assert "FedSOL ρ = 0.3" in text
    assert "(0.7879, 0.7879)" in text
    assert str(tmp_path / "toy.png") in text
    assert (tmp_path / "toy.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["toy.pdf", "nowhere/toy.png"])
def test_bad_files_are_refused(tmp_path, name):
    with pytest.raises(UserError, match="--out"):
        toy_command(tmp_path / name)
