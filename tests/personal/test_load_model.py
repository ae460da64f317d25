"""The trained model of a run, taken out of its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.runs.build import load_run_dataset

SMALL: dict[str, Any] = {"rounds": 2, "clients": 4, "cohort": 2, "local_epochs": 1, "seeds": (3, 5)}


@pytest.mark.parametrize("method", [ff.FedSOL(), ff.Averaged(inner=ff.FedGF())], ids=["fedsol", "fedswa+fedgf"])
def test_it_has_the_accuracy_of_the_run(method: ff.Method, tmp_path: Path) -> None:
    experiment = ff.Experiment(method=method, **SMALL)
    result = ff.run(experiment, out=tmp_path / "run")
    data = load_run_dataset(experiment)
    x = (data.x_test / 255 if data.x_test.dtype == torch.uint8 else data.x_test) - torch.tensor(data.mean).view(
        -1, 1, 1
    )
    for seed in (3, 5):
        model = ff.load_model(tmp_path / "run", seed)
        hits = model(x / torch.tensor(data.std).view(-1, 1, 1)).argmax(1) == data.y_test
        last = [row["accuracy"] for row in result.history if row["seed"] == seed][-1]
        assert hits.float().mean().item() == pytest.approx(last)
    first = ff.load_model(str(tmp_path / "run")).state_dict()
    assert all(torch.equal(first[name], t) for name, t in ff.load_model(tmp_path / "run", 3).state_dict().items())
    with pytest.raises(ff.UserError, match=r"seed=4: run .* has models of seeds 3, 5"):
        ff.load_model(tmp_path / "run", 4)


def test_a_model_of_ones_own_is_given_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)).astype("float32"), np.arange(60) % 3
    data = ff.Dataset.from_arrays(x[:40], y[:40], x[40:], y[40:])
    experiment = ff.Experiment(dataset=data, model=nn.Linear(5, 3), **SMALL)
    ff.run(experiment, out=tmp_path / "run")
    assert isinstance(ff.load_model(tmp_path / "run", experiment=experiment), nn.Linear)
    with pytest.raises(ff.UserError, match=r"in Python: fedflat\.load_model\('.*run', experiment=\.\.\.\)"):
        ff.load_model(tmp_path / "run")
