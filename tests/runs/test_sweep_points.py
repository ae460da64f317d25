"""Whatever option the points of a sweep differ in, each learns what it would learn alone: whole runs in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import tiny_experiment
from torch import Tensor, nn

import fedflat as ff
from fedflat.runs.checkpoint import load_tensors

CLIENTS = "client,lr,local_epochs,local_steps\n0,0.3,,\n1,,2,\n2,0.02,,5\n"
CASES: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "learning rate, momentum, decay": ({}, {"lr": [0.1, 0.3], "momentum": [0.5, 0.9], "weight_decay": [0.0, 0.1]}),
    "momentum or none": ({"method": ff.FedSOL(perturb="all")}, {"momentum": [0.0, 0.9], "rho": [0.5, 2.0]}),
    "nesterov": ({"optimiser": "nesterov"}, {"momentum": [0.5, 0.9], "weight_decay": [1e-3, 0.1]}),
    "adamw": ({"optimiser": "adamw", "optimiser_state": "keep"}, {"lr": [0.01, 0.1], "weight_decay": [0.0, 0.1]}),
    "rates that fall in a round": ({"lr_in_round": "cosine", "local_epochs": 3}, {"lr": [0.1, 0.3]}),
    "clipped steps": ({"method": ff.SCAFFOLD(), "momentum": 0.5}, {"clip_grad": [0.1, 1.0], "lr": [0.1, 0.3]}),
    "schedules": ({"lr_decay": 0.5}, {"lr_schedule": ["exponential", "step"], "lr_warmup": [0, 1]}),
    "participation": (
        {"method": ff.FedGloSS(), "sampling": "poisson", "stragglers": 0.5, "dropout_rate": 0.2},
        {"lr": [0.1, 0.3], "beta": [1.0, 10.0]},
    ),
    "clients' own rates": ({"method": ff.FedProx()}, {"lr": [0.1, 0.3], "mu": [0.1, 1.0]}),
    "a wrapper and its method": (
        {"method": ff.ServerMomentum(inner=ff.FedGF())},
        {"rho": [0.05, 0.2], "threshold": [0.1, 0.9], "server_lr": [0.5, 1.0]},
    ),
    "clients and partitions": ({"partition": "dirichlet"}, {"clients": [4, 6], "alpha": [0.1, 10.0]}),
    "groups": ({}, {"local_epochs": [1, 2], "batch_size": [2, 3]}),
}


class DoubleNet(nn.Module):
    """4 → 5 (tanh) → 2 in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5).double(), nn.Linear(5, 2).double()

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x.double()))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def state(folder: Path | None) -> dict[str, Tensor]:
    """The checkpoint of a run folder without its clock."""
    tensors = load_tensors(folder / "checkpoint" / "state.safetensors") if folder else None
    assert tensors
    return {name: value for name, value in tensors.items() if name != "counters"}


@pytest.mark.parametrize(("options", "grid"), CASES.values(), ids=CASES)
def test_a_point_learns_what_it_would_learn_alone(
    options: dict[str, Any], grid: dict[str, list[Any]], tmp_path: Path
) -> None:
    (tmp_path / "clients.csv").write_text(CLIENTS)
    own = {"client_settings": str(tmp_path / "clients.csv")} if "mu" in grid else {}
    usual = {"model": DoubleNet, "validation": 0.25, "engine": "batched", "seeds": (0, 1), "checkpoint_every": 1}
    points = ff.sweep(tiny_experiment(**{**usual, **own, **options}), grid, tmp_path / "sweep")
    ends = []
    for n, point in enumerate(points):
        result = ff.run(replace(point.experiment, engine="sequential"), tmp_path / str(n))
        ours, alone = state(point.folder), state(tmp_path / str(n))
        assert ours.keys() == alone.keys()
        for name, value in ours.items():
            torch.testing.assert_close(value, alone[name], rtol=0, atol=1e-10, msg=name)
        assert point.result.final_per_seed == result.final_per_seed
        ends.append(next(value for value in ours.values() if value.dtype == torch.float64 and value.numel() > 30))
    assert not any(torch.equal(one, other) for one, other in combinations(ends, 2)), "no two points are the same"
