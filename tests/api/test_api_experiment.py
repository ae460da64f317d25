"""Experiments from Python: own models and data are trained and resumed, and mistakes are refused with the reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import fedflat as ff
from fedflat.core.task import Task
from fedflat.models import build_model
from fedflat.runs.build_engine import choose_engine
from fedflat.runs.config import dump_experiment

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 120)
X = RNG.normal(size=(120, 5)).astype(np.float32) + 2 * np.eye(3, 5, dtype=np.float32)[Y]
CLIENTS = [list(range(n, 90, 6)) for n in range(6)]


def data(**changes: Any) -> ff.Dataset:
    values = {"x": X[:90], "y": Y[:90], "x_test": X[90:], "y_test": Y[90:], "clients": CLIENTS, "name": "mine"}
    return ff.Dataset.from_arrays(**{**values, **changes})


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def experiment(**changes: Any) -> ff.Experiment:
    values = {"dataset": data(), "model": model(), "rounds": 6, "cohort": 3, "batch_size": 8, "local_epochs": 1}
    return ff.Experiment(**{**values, "engine": "sequential", "checkpoint_every": 2, **changes})


class Stop(Exception):
    """Ends a run from its watcher."""


def stop_at(round: int, rows: list[dict[str, Any]]) -> None:
    if round == 5:
        raise Stop


def test_own_data_and_model_resume(tmp_path: Path) -> None:
    whole = ff.run(experiment(method=ff.FedGloSS()))
    with pytest.raises(Stop):
        ff.run(experiment(method=ff.FedGloSS()), out=tmp_path / "run", watch=stop_at)
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["dataset"].startswith("own:mine-")
    assert config["model"].startswith("own:Sequential-")
    resumed = ff.run(experiment(method=ff.FedGloSS()), out=tmp_path / "run", resume=True)
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole.history]
    assert resumed.final == whole.final > 0.5


def test_resume_refuses_other_data_and_other_models(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        ff.run(experiment(), out=tmp_path / "run", watch=stop_at)
    changed = X[:90].copy()
    changed[3, 2] += 1
    other_buffer = model()
    other_buffer.register_buffer("more", torch.ones(1))
    for other in (
        experiment(dataset=data(x=changed)),
        experiment(model=nn.Linear(5, 3)),
        experiment(model=other_buffer),
    ):
        with pytest.raises(ff.UserError, match="belongs to another configuration"):
            ff.run(other, out=tmp_path / "run", resume=True)


def test_a_module_is_the_start_of_every_seed_and_is_not_changed() -> None:
    own = model()
    before = [p.clone() for p in own.parameters()]
    first = ff.run(experiment(model=own, rounds=1, seeds=(0, 1)))
    again = ff.run(experiment(model=own, rounds=1, seeds=(0, 1)))
    assert first.curve(0, "loss") == again.curve(0, "loss") != first.curve(1, "loss")
    assert all(torch.equal(p, old) for p, old in zip(own.parameters(), before, strict=True))


def test_a_function_builds_one_model_for_each_seed() -> None:
    built = ff.run(experiment(model=lambda: nn.Linear(5, 3), rounds=1, seeds=(0, 1)))
    again = ff.run(experiment(model=lambda: nn.Linear(5, 3), rounds=1, seeds=(0, 1)))
    assert built.curve(0, "loss") == again.curve(0, "loss") != built.curve(1, "loss")


def test_divergence_is_recorded() -> None:
    result = ff.run(experiment(model=nn.Linear(5, 3), lr=1e38, rounds=50))
    assert result.diverged
    assert result.diverged_seeds == [0]
    assert result.rounds < 50


class OwnBatchNorm(nn.BatchNorm1d):
    """May do anything, so that it is not replaced."""


class OwnNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 8), OwnBatchNorm(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))


def frozen() -> nn.Module:
    own = model()
    return own.requires_grad_(False)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(nn.functional.dropout(x, 0.5, self.training))


class RandomFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("features", torch.randn(5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear((x @ self.features).relu())


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x), x


NUMBERS = ff.Dataset.from_arrays(np.ones((60, 5)), np.ones(60), np.ones((6, 5)), np.ones(6))

REFUSED = [
    ({"model": nn.Linear(5, 2)}, r"model: gives \[2, 2\] for 2 samples of 3 classes, must be \[2, 3\]"),
    ({"model": nn.Linear(4, 3)}, "model: cannot take samples of shape 5 "),
    ({"model": TwoOutputs()}, "model: gives tuple for 2 samples"),
    ({"model": lambda: nn.Linear(4, 3)}, "model: cannot take samples of shape 5 "),
    ({"model": frozen()}, "model: all parameters of Sequential have requires_grad=False; there is nothing to train"),
    ({"model": nn.Flatten()}, "model: Flatten has no parameters"),
    ({"model": lambda: None}, "model: the function that builds it returned None, must return an nn.Module"),
    ({"model": nn.Linear}, "model=.*Linear.*: must be a name, an nn.Module or a function without arguments"),
    ({"model": OwnNorm()}, "'norm' .OwnBatchNorm. would take padding for samples; use fedflat.models.layers.BatchNorm"),
    ({"model": Noisy()}, "model: its forward draws from the global random state"),
    ({"model": RandomFeatures, "seeds": (0, 1)}, "model: 'features' is not trained, and another for every seed"),
    ({"model": nn.Sequential(nn.Linear(5, 3), nn.AlphaDropout(0.5))}, "global random state"),
    ({"task": "regresion"}, r'task="regresion": must be one of auto, classification, .* .did you mean regression'),
    ({"task": "next-token"}, r'task="next-token": needs targets that are tokens, whole numbers \[n, length\]'),
    (
        {"method": ff.FedNTD(), "dataset": NUMBERS, "model": "mlp"},
        'method fedntd: task="regression": this method compares class scores',
    ),
    ({"init": "no.safetensors"}, 'init="no.safetensors": there is no such file'),
    ({"method": ff.FedSOL()}, 'has no parts `features` and `head`; use perturb="all"'),
    ({"method": ff.FedSOL(rho=-1.0)}, "rho=-1.0: must be at least 0"),
    ({"method": ff.FedSOL(rho="2")}, 'rho="2": must be a number'),
    ({"alpha": -1.0}, "alpha=-1.0: must be at least 0"),
    ({"cohort": 7}, "cohort=7: must be at most the number of clients, 6"),
    ({"rounds": 2.5}, "rounds=2.5: must be a whole number"),
    ({"seeds": 3}, "seeds=3: must be a list"),
    ({"seeds": ()}, "seeds: give at least one seed"),
    ({"seeds": (1, 1)}, r"seeds=\(1, 1\): every seed may appear once"),
    ({"dataset": 3}, "dataset=3: must be a name or a fedflat.Dataset"),
    ({"model": 3}, "model=3: must be a name"),
    ({"dataset": "own:mine-12ab34cd"}, r'dataset="own:mine-12ab34cd": was given in Python .*Experiment\(dataset='),
    ({"model": "own:Net-12ab34cd"}, r'model="own:Net-12ab34cd": was given in Python .*Experiment\(dataset='),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ff.UserError, match=reason):
        ff.run(experiment(**changes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.1}, "learning_rate=0.1: unknown option (did you mean lr?)"),
        ({"seed": 1}, "seed=1: unknown option (did you mean seeds?)"),
        ({"num_clients": 10}, "num_clients=10: unknown option (did you mean clients?)"),
        ({"chohort": 5}, "chohort=5: unknown option (did you mean cohort?)"),
        ({"xyzzy": "red"}, 'xyzzy="red": unknown option'),
        ({"method": "fedsol"}, 'method="fedsol": must be a method object, such as fedflat.FedSOL()'),
        ({"method": "FedGloSS"}, 'method="FedGloSS": must be a method object, such as fedflat.FedGloSS()'),
        ({"method": "fedavgm"}, 'method="fedavgm": must be a method object, such as fedflat.ServerMomentum()'),
        ({"method": "fedsool"}, 'method="fedsool": must be a method object (did you mean fedflat.FedSOL()?)'),
        ({"method": "unheard-of"}, 'method="unheard-of": must be a method object, such as fedflat.FedSOL()'),
        ({"method": ff.FedGF}, f"method={ff.FedGF}: must be a method object, such as fedflat.FedGF()"),
        ({"method": None}, "method=None: must be a method object, such as fedflat.FedSOL()"),
    ],
    ids=str,
)
def test_a_mistyped_option_is_refused_where_it_is_given(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ff.UserError) as error:
        ff.Experiment(**options)
    assert str(error.value) == message


def test_lists_and_numbers_of_numpy_become_tuples_and_numbers() -> None:
    """Equal options give equal YAML, so that a run can be resumed however its options are written."""
    tuples = ff.Experiment(
        seeds=(0, 1),
        probes=("drift",),
        rounds=3,
        lr=0.5,
        partition="iid",
        method=ff.ServerMomentum(inner=ff.FedSOL(2.0)),
    )
    for seeds in ([0, 1], range(2), np.arange(2)):
        given = ff.Experiment(
            seeds=seeds,
            probes=["drift"],
            rounds=np.int64(3),
            lr=np.float32(0.5),
            partition=np.array(["iid"])[0],
            method=ff.ServerMomentum(inner=ff.FedSOL(np.float64(2))),
        )
        given.check()
        assert (given, dump_experiment(given)) == (tuples, dump_experiment(tuples))
    with pytest.raises(ff.UserError, match=r"rounds=2\.5: must be a whole number"):
        ff.Experiment(rounds=np.float64(2.5)).check()


@pytest.mark.parametrize(
    ("engine", "name", "device", "chosen"),
    [
        ("auto", "digits-cnn", "cpu", "batched"),
        ("auto", "vgg11", "cpu", "sequential"),
        ("auto", "vgg11", "cuda", "batched"),
        ("batched", "vgg11", "cpu", "batched"),
        ("sequential", "digits-cnn", "cuda", "sequential"),
    ],
)
def test_auto_is_the_faster_engine(engine: str, name: str, device: str, chosen: str) -> None:
    shape = (1, 8, 8) if name == "digits-cnn" else (3, 32, 32)
    task = Task(build_model(name, shape, 10))
    assert choose_engine(ff.Experiment(engine=engine), task, torch.device(device)) == chosen


@pytest.mark.parametrize("name", ["methods.wrappers", "methods.fedsol_ablation", "engine", "runs"])
def test_a_module_may_be_the_first_to_be_imported(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import fedflat.{name}"], check=True)
