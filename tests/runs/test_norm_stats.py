"""The option norm_stats: what is trained, sent, stored and evaluated with each choice."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat.flatness import AnalysisSettings
from fedflat.runs.checkpoint import load_tensors
from fedflat.runs.metrics import read_metrics
from fedflat.runs.read import read_trained_run
from fedflat.runs.train_together import run_together

rng = np.random.default_rng(0)
Y = rng.integers(0, 3, 160)
X = 2 * rng.normal(size=(160, 3, 8, 8)) + np.eye(3)[Y][:, :, None, None] + 4
DATA = ff.Dataset.from_arrays(X[:100], Y[:100], X[100:], Y[100:])


class Block(nn.Module):
    """A block of a ResNet as torchvision writes it; its layers have these names there."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inputs != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """A ResNet of two blocks, built as torchvision builds its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2 = Block(4, 4, 1), Block(4, 8, 2)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(x, 1))


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


BASE = ff.Experiment(
    dataset=DATA,
    model=ResNet,
    partition="iid",
    clients=5,
    cohort=3,
    rounds=2,
    local_epochs=1,
    batch_size=8,
    lr=0.1,
    engine="sequential",  # starts faster than the batched engine, which the contract suite holds to the same numbers
)


def with_option(norm_stats: str, **options: Any) -> ff.Experiment:
    return dataclasses.replace(BASE, norm_stats=norm_stats, **options)  # type: ignore[arg-type]


def last_rows(folder: Path) -> list[dict[str, Any]]:
    """The last evaluation of both seeds."""
    return read_metrics(folder / "metrics.jsonl")[-2:]


def tensors(out: Path) -> dict[str, Tensor]:
    found = load_tensors(out / "checkpoint" / "state.safetensors")
    assert found is not None
    return {name: tensor for name, tensor in found.items() if name != "counters"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with each choice; all train the same parameters."""
    out = {choice: tmp_path_factory.mktemp(choice) / "run" for choice in ("batch", "server", "local")}
    for choice, folder in out.items():
        ff.run(with_option(choice, seeds=(0, 1)), folder)
    return out


def test_the_choice_does_not_change_what_is_trained(folders: dict[str, Path]) -> None:
    first, *others = ([t for n, t in tensors(f).items() if n.endswith("params")] for f in folders.values())
    assert len(first) == 2
    for other in others:
        for ours, theirs in zip(other, first, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_loaded_module_has_the_reported_accuracy(folders: dict[str, Path]) -> None:
    experiment = with_option("server", seeds=(0, 1))
    rows = read_trained_run(folders["server"], experiment).built.client_data.test()
    for row in last_rows(folders["server"]):
        model = ff.load_model(folders["server"], row["seed"], experiment)
        with torch.no_grad():
            found = (model(rows.x).argmax(-1) == rows.y).double().mean()
            one_by_one = torch.cat([model(x[None]) for x in rows.x]).argmax(-1)
        assert float(found) == pytest.approx(row["accuracy"])
        assert torch.equal(one_by_one, model(rows.x).argmax(-1)), "no sample depends on the others"
        assert ResNet().load_state_dict(model.state_dict())


def test_only_server_changes_the_evaluation_of_the_global_model(folders: dict[str, Path]) -> None:
    loss = {choice: last_rows(folder)[0]["loss"] for choice, folder in folders.items()}
    assert loss["local"] == pytest.approx(loss["batch"], rel=1e-4)
    assert loss["server"] != pytest.approx(loss["batch"], rel=1e-2)
    model = ff.load_model(folders["local"], 0, with_option("local", seeds=(0, 1)))
    assert not any("running" in name for name in model.state_dict())


def test_the_server_takes_the_weighted_mean(tmp_path: Path) -> None:
    sizes = [40, 30, 20, 10]
    rows = np.split(np.arange(100), np.cumsum(sizes)[:-1])
    data = ff.Dataset.from_arrays(X[:100], Y[:100], X[100:], Y[100:], rows)
    ff.run(with_option("server", dataset=data, partition="natural", cohort=4, rounds=1), tmp_path / "run")
    state = tensors(tmp_path / "run")
    means = state["trial.0.clients.table.statistics.running_mean"][1:]
    expected = sum(mean * sizes[k] / 100 for k, mean in zip(state["trial.0.clients.clients"], means, strict=True))
    torch.testing.assert_close(state["trial.0.server.statistics.running_mean"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("choice", ["server", "local"])
def test_stopping_and_resuming_changes_no_bit(choice: str, folders: dict[str, Path], tmp_path: Path) -> None:
    experiment = with_option(choice, seeds=(0, 1))
    ff.run(dataclasses.replace(experiment, rounds=1), tmp_path / "run")
    ff.run(experiment, tmp_path / "run", resume=True)
    whole = tensors(folders[choice])
    assert all(torch.equal(tensor, whole[name]) for name, tensor in tensors(tmp_path / "run").items())


def test_points_of_a_sweep_learn_what_each_learns_alone(tmp_path: Path) -> None:
    small = {"model": small_net, "rounds": 2, "engine": "batched"}
    points = [
        with_option("server", method=ff.FedSAM(rho=rho), lr=lr, **small) for rho, lr in ((0.05, 0.1), (0.2, 0.05))
    ]
    for together, point in zip(run_together(points), points, strict=True):
        alone = ff.run(dataclasses.replace(point, engine="sequential")).history
        assert [row["loss"] for row in together.history] == pytest.approx([row["loss"] for row in alone], rel=1e-4)


def test_averages_are_sent_with_the_model(folders: dict[str, Path]) -> None:
    sent = {c: json.loads((f / "result.json").read_text())["bytes_up_per_client_round"] for c, f in folders.items()}
    channels = 4 + 2 * 4 + 3 * 8
    assert sent["server"] - sent["batch"] == 4 * 2 * channels
    assert sent["local"] == sent["batch"]


@pytest.mark.parametrize("choice", ["server", "local"])
def test_a_clients_model_is_evaluated_with_its_averages(choice: str, folders: dict[str, Path]) -> None:
    experiment = with_option(choice, seeds=(0, 1))
    trained = read_trained_run(folders[choice], experiment)
    trial = trained.trials[0]
    here, other = (trained.personal_statistics(trial, client) for client in list(trial.clients.rows)[:2])
    assert torch.equal(here.running_mean, other.running_mean) == (choice == "server")
    rows = ff.personalise(folders[choice], (1,), experiment=experiment)
    assert [(row.scheme, row.epochs) for row in rows] == [("FedAvg-FT", 0), ("FedAvg-FT", 1), ("local-only", 1)]


def test_a_client_that_never_took_part_gets_the_mean_of_the_others(tmp_path: Path) -> None:
    experiment = with_option("local", rounds=1)
    ff.run(experiment, tmp_path / "run")
    trained = read_trained_run(tmp_path / "run", experiment)
    (trial,) = trained.trials
    stranger = next(client for client in range(5) if client not in trial.clients.rows)
    own = torch.stack([trained.personal_statistics(trial, client).running_var for client in trial.clients.rows])
    torch.testing.assert_close(trained.personal_statistics(trial, stranger).running_var, own.mean(0))


def test_given_averages_are_where_clients_start(tmp_path: Path) -> None:
    model = ResNet()
    model.bn1.running_mean.fill_(7.0)
    ff.run(with_option("server", model=model, rounds=1, lr=1e-6), tmp_path / "run")
    mean = tensors(tmp_path / "run")["trial.0.server.statistics.running_mean"]
    assert (mean[:4] > 1).all()
    assert (mean[4:].abs() < 7).all()


def test_analyses_and_probes_use_the_servers_averages(tmp_path: Path) -> None:
    experiment = with_option("server", rounds=2, probes=("forgetting", "sharpness", "classes", "class-forgetting"))
    ff.run(experiment, tmp_path / "run")
    row = last_rows(tmp_path / "run")[-1]
    settings = AnalysisSettings(what=("lpf",), draws=4, batch_size=7)
    measured = ff.analyse(tmp_path / "run", settings, dataset=DATA, model=ResNet).documents
    assert row["probes"]["sharpness.lambda1"] is not None
    assert len(row["probes"]["classes.accuracy"]) == 3
    assert measured["run"]["lpf"]["seeds"]["0"]["model_loss"] == pytest.approx(row["loss"], rel=1e-4), (
        "whatever the size of the batches"
    )


REFUSED = [
    ({"model": "mlp", "norm_stats": "server"}, 'norm_stats="server": the model has no batch normalisation'),
    ({"norm_stats": "running"}, 'norm_stats="running": must be one of batch, server, local'),
    ({"norm_stats": "server", "method": ff.Private()}, 'norm_stats="server": running averages depend on samples'),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_cannot_be_trained_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ff.UserError, match=message):
        ff.run(dataclasses.replace(BASE, **options))
