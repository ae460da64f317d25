"""Warnings about options without effect: every rule, once, and none where the option counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedflat as ff
from fedflat.cli import main
from fedflat.runs import advice as advice_module
from fedflat.runs.advice import METHOD_RULES, RULES, advice
from fedflat.runs.build import build_run

DRAW = np.random.default_rng(0)
LABELS = np.arange(64) % 4
SAMPLES = DRAW.normal(size=(64, 5)).astype("float32")
PLAIN = ff.Dataset.from_arrays(SAMPLES, LABELS, SAMPLES, LABELS)
NATURAL = ff.Dataset.from_arrays(SAMPLES, LABELS, SAMPLES, LABELS, clients=np.arange(64).reshape(8, 8).tolist())
SMALL = ff.Experiment(dataset=PLAIN, model="mlp", clients=4, cohort=2, rounds=2, partition="iid", engine="sequential")
IN_NATURAL: dict[str, Any] = {"dataset": NATURAL, "partition": "auto"}
TABLE: dict[str, Any] = {"dataset": f"table:{Path(__file__).with_name('advice.csv')}", "target_column": ("price",)}
NO_TABLE = 'has no effect without dataset="table:FILE"'
CASES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [  # option, without effect, with it, the line
    ("target_column", {"target_column": ("price",)}, TABLE, NO_TABLE),
    ("feature_columns", {"feature_columns": ("area",)}, TABLE | {"feature_columns": ("area",)}, NO_TABLE),
    ("client_column", {"client_column": "agent"}, TABLE | {"client_column": "agent", "partition": "auto"}, NO_TABLE),
    ("test_split", {"test_split": 0.5}, TABLE | {"test_split": 0.5}, NO_TABLE),
    ("target_scale", {"target_scale": "none"}, TABLE | {"target_scale": "none"}, NO_TABLE),
    ("clients", IN_NATURAL, IN_NATURAL | {"clients": 8}, "clients=4: ignored, the data name 8 clients"),
    ("alpha", {"alpha": 0.5}, {"alpha": 0.5, "partition": "lda"}, "alpha=0.5: has no effect with the iid partition"),
    ("shards", {"shards": 3}, {"shards": 3, "partition": "shards"}, "shards=3: has no effect with the iid partition"),
    ("partition_seed", IN_NATURAL | {"partition_seed": 1}, {"partition_seed": 1}, "partition_seed=1: has no effect"),
    ("sequence_length", {"sequence_length": 9}, {}, 'has no effect without dataset="text:PATH"'),
    (
        "lr_schedule",
        {"lr_schedule": "step"},
        {"lr_schedule": "step", "lr_decay": 0.5, "lr_step": 1},
        'lr_schedule="step": the learning rate stays constant; give lr_decay=0.1',
    ),
    (
        "lr_in_round",
        {"lr_in_round": "linear", "local_steps": 1},
        {"lr_in_round": "linear", "local_steps": 2},
        'lr_in_round="linear": has no effect with one local step in a round',
    ),
    (
        "momentum",
        {"momentum": 0.9, "local_steps": 1},
        {"momentum": 0.9, "local_steps": 1, "optimiser_state": "keep"},
        "momentum=0.9: has no effect with one local step in a round",
    ),
    ("lr_warmup", {"lr_warmup": 2}, {"lr_warmup": 1}, "lr_warmup=2: the learning rate never reaches lr=0.05"),
    ("attack", {"attack": "noise"}, {"attack": "noise", "attackers": 0.5}, "has no effect without attackers"),
    ("attack_strength", {"attack_strength": 2.0}, {"attack_strength": 2.0, "attackers": 0.5}, "without attackers"),
    (
        "aggregate",
        {"aggregate": "median", "cohort": 3, "method": ff.Compressed(compressor="topk", keep=0.1)},
        {"aggregate": "median", "cohort": 3, "method": ff.Compressed()},
        'is 0 wherever most replies are, as with keep=0.1 of compress; use compressor="quantise"',
    ),
    ("lr_step", {"lr_step": 3}, {"lr_step": 3, "lr_schedule": "step"}, 'needs lr_schedule="step"'),
    ("sampling", {"sampling": "weighted"}, {"sampling": "weighted", "weights": "uniform"}, "large clients count twice"),
    ("straggler_work", {"straggler_work": 0.1}, {"straggler_work": 0.1, "stragglers": 0.5}, "without stragglers"),
    ("probe_every", {"probe_every": 2}, {"probe_every": 2, "probes": ("norm",)}, "no effect without probes"),
    ("probes", {"probes": ("fedgf", "norm")}, {"probes": ("fedgf",), "method": ff.FedGF()}, "fedgf measures nothing"),
]


def lines(changes: dict[str, Any], option: str) -> list[str]:
    experiment = replace(SMALL, **changes)
    return [line for line in advice(experiment, build_run(experiment)) if line.startswith(f"{option}=")]


@pytest.mark.parametrize(("option", "without", "with_effect", "line"), CASES, ids=[case[0] for case in CASES])
def test_rules(option: str, without: dict[str, Any], with_effect: dict[str, Any], line: str) -> None:
    (found,) = lines(without, option)
    assert line in found
    assert lines(with_effect, option) == []


def test_steps_of_the_learning_rate_that_never_come() -> None:
    late = {"lr_schedule": "step", "lr_decay": 0.5, "lr_step": 1, "lr_warmup": 1}
    (found,) = lines(late, "lr_schedule")
    assert "the learning rate stays constant in rounds=2 with lr_step=1" in found
    assert lines(late | {"rounds": 3}, "lr_schedule") == []


METHODS: list[tuple[ff.Method, ff.Method, str]] = [  # without effect, with it, the line
    (
        ff.Compressed(compressor="topk", bits=4),
        ff.Compressed(bits=4),
        'bits=4: has no effect with compressor="topk"',
    ),
    (
        ff.ServerMomentum(inner=ff.Compressed(keep=0.1)),
        ff.Compressed(compressor="randomk", keep=0.1),
        "keep=0.1: has no effect",
    ),
    (ff.FedGF(static_c=0.5, threshold=0.7), ff.FedGF(threshold=0.7), "threshold=0.7: has no effect with static_c=0.5"),
    (ff.FedGF(static_c=0.5, window=3), ff.FedGF(window=3), "window=3: has no effect with static_c=0.5"),
    (ff.FedLESAM(dyn_alpha=1.0), ff.FedLESAM(dyn_alpha=1.0, base="feddyn"), 'has no effect with base="none"'),
    (ff.FedLESAM(steps="plain"), ff.FedLESAM(steps="plain", base="scaffold"), 'has no effect with base="none"'),
    (ff.FedSMOO(regularise=False, beta=5.0), ff.FedSMOO(beta=5.0), "beta=5.0: has no effect with regularise=False"),
    (ff.FedSMOO(regularise=False, dual="released"), ff.FedSMOO(dual="released"), "with regularise=False"),
]


@pytest.mark.parametrize(("without", "with_effect", "line"), METHODS, ids=[case[2] for case in METHODS])
def test_hyper_parameters_without_effect(without: ff.Method, with_effect: ff.Method, line: str) -> None:
    def told(method: ff.Method) -> list[str]:
        return [each for each in advice(replace(SMALL, method=method), build_run(SMALL)) if "has no effect" in each]

    assert line in "\n".join(told(without))
    assert len(told(without)) == 1
    assert told(with_effect) == []


def test_points_of_a_sweep_are_warned_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(advice_module, "_told", set())
    ff.sweep(replace(SMALL, rounds=1, validation=0.25), {"alpha": [0.1, 1.0, 0.5]})
    warned = capsys.readouterr().err.splitlines()
    problem = "has no effect with the iid partition"
    assert warned == [f"fedflat: warning: alpha={alpha}: {problem}" for alpha in (1.0, 0.5)]


def test_every_rule_has_a_case() -> None:
    assert [rule.option for rule in RULES] == [case[0] for case in CASES]
    assert len(METHOD_RULES) == len(METHODS)


@pytest.mark.parametrize("method", [ff.FedSOL(), ff.FedProx(), ff.FedNTD(), ff.ServerMomentum(inner=ff.FedSOL())])
def test_one_local_step_is_fedavg(method: ff.Method) -> None:
    one = replace(SMALL, method=method, local_epochs=1)
    (line,) = [line for line in advice(one, build_run(one)) if "FedAvg" in line]
    assert "with one local step in a round is FedAvg" in line
    plain = ff.ServerMomentum() if isinstance(method, ff.ServerMomentum) else ff.FedAvg()
    losses = [ff.run(replace(one, method=each)).curve(0, "loss") for each in (method, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for more in ({"local_epochs": 2}, {"batch_size": 8}, {"local_epochs": None, "local_steps": 2}):
        two = replace(one, **more)
        assert not [line for line in advice(two, build_run(two)) if "FedAvg" in line]


def test_one_line_once_on_stderr(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(advice_module, "_told", set())
    words = (
        "compare fedavg fedprox --rounds 1 --clients 4 --cohort 2 --partition iid --alpha 3 --model mlp --local-steps 2"
    )
    assert main([*words.split(), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "fedflat: warning: --alpha 3.0: has no effect with the iid partition\n"


def test_targets_of_single_ones_and_outputs_of_a_softmax_are_named() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 4)), draw.integers(0, 3, 40)
    one_hot, classes = (ff.Dataset.from_arrays(x, each, x, each) for each in (np.eye(3)[y], y))
    options = {"rounds": 1, "clients": 2, "cohort": 2, "partition": "iid", "model": nn.Linear(4, 3)}
    softmax = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    cases = {
        'a single 1, taken for the targets of task="regression"; give classes, y.argmax': {"dataset": one_hot},
        "model: gives probabilities, and cross entropy takes scores": {"dataset": classes, "model": softmax},
        "": {"dataset": classes},
    }
    for line, changes in cases.items():
        experiment = ff.Experiment(**(options | changes))
        assert line in "".join(advice(experiment, build_run(experiment)))
    chosen = ff.Experiment(**(options | {"dataset": one_hot, "task": "regression"}))
    assert not list(advice(chosen, build_run(chosen)))
