"""Running averages of batch normalisation on Flower: the numbers of a simulation, and replies that are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, Message
from loopback import EXPERIMENT, Loopback, assert_same, federate, simulate
from test_flower_replies import CLIENT, ROUND, in_one_round, refused
from torch import nn

import fedflat as ff
from fedflat.flower.app import client_app


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


AVERAGED = dataclasses.replace(EXPERIMENT, model=build, norm_stats="server", rounds=2, checkpoint_every=1)


def nodes(experiment: ff.Experiment, change: Any = None) -> Loopback:
    """Return nodes that train the model of this file."""
    grid = Loopback(dataclasses.replace(experiment, model="mlp"), change)
    grid.app = client_app(build)
    return grid


CASES: dict[str, dict[str, Any]] = {
    "server": {"method": ff.FedSAM()},
    "server, stateful": {"method": ff.SCAFFOLD(), "weights": "uniform"},
    "server, median": {"aggregate": "median", "clip_replies": "1x"},
    "local": {"norm_stats": "local", "rounds": 3},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_equal_to_a_simulation(options: dict[str, Any], tmp_path: Path) -> None:
    experiment = dataclasses.replace(AVERAGED, **options)
    assert_same(federate(nodes(experiment), experiment, tmp_path / "run"), simulate(experiment))


def test_equal_to_a_simulation_under_secure_aggregation(tmp_path: Path) -> None:
    experiment = dataclasses.replace(AVERAGED, weights="uniform", cohort=4)
    assert_same(federate(nodes(experiment), experiment, tmp_path / "run", secure=True), simulate(experiment))


def test_own_averages_stay_on_the_node(tmp_path: Path) -> None:
    experiment = dataclasses.replace(AVERAGED, norm_stats="local")
    grid = nodes(experiment)
    state = federate(grid, experiment, tmp_path / "run")
    assert not any("running" in name for name in state)
    stored = [record for c in grid.contexts.values() for record in c.state.array_records.values()]
    assert stored
    assert all("statistics.running_mean" in record for record in stored)


def test_nodes_store_nothing_that_the_server_sends_anew(tmp_path: Path) -> None:
    grid = nodes(AVERAGED)
    federate(grid, AVERAGED, tmp_path / "run")
    assert not any(context.state.array_records for context in grid.contexts.values())
    model = ff.load_model(tmp_path / "run", experiment=AVERAGED)
    assert not torch.equal(model[2].running_mean, torch.zeros(16))


def test_a_negative_variance_is_refused(tmp_path: Path) -> None:
    def negative(reply: Message) -> Message:
        record = reply.content["reply"]
        record["statistics.running_var"] = Array(-record["statistics.running_var"].numpy())
        return reply

    federate(nodes(AVERAGED, in_one_round(negative)), AVERAGED, tmp_path / "run")
    why = "its reply is refused: statistics.running_var has values below 0, which no variance has"
    assert refused(tmp_path / "run") == [(ROUND + 1, CLIENT, why)]
