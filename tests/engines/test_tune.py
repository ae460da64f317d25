"""A search draws points inside its space, compares in stages, and is not changed by a kill."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import signal
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedflat as ff
from fedflat.cli.tune import parse_space
from fedflat.runs.checkpoint import load_tensors
from fedflat.runs.optuna_search import propose_points
from fedflat.runs.search_space import search_points
from fedflat.runs.sweep import with_options
from fedflat.runs.tune import stage_rounds

sys.path.append(str(Path(__file__).parents[1] / "faults"))
from forked_commands import ForkedCommand

BASE = ff.Experiment(method=ff.FedSOL(), validation=0.1)


@settings(max_examples=20)
@given(
    low=st.floats(1e-4, 10),
    factor=st.floats(1.01, 1e4),
    log=st.booleans(),
    seed=st.integers(0, 100),
    sampler=st.sampled_from(["random", "grid"]),
)
def test_points_are_inside_the_space(low: float, factor: float, log: bool, seed: int, sampler: str) -> None:
    space = {
        "rho": ff.SearchRange(low, low * factor, log),
        "shards": ff.SearchRange(1, 4, whole=True),
        "perturb": ["head", "all"],
    }
    options = ff.SearchOptions(trials=18, search_seed=seed, sampler=sampler)  # type: ignore[arg-type]
    points = search_points(BASE, space, options)
    assert points == search_points(BASE, space, options)
    assert 0 < len(points) <= 18
    for point in points:
        assert low * 0.999 <= point["rho"] <= low * factor * 1.001
        assert point["shards"] in (1, 2, 3, 4)
        assert isinstance(point["shards"], int)
        assert point["perturb"] in ("head", "all")


@pytest.mark.parametrize("sampler", ["random", "grid"])
def test_whole_numbers_of_the_command_line_are_values_of_their_options(sampler: str) -> None:
    space = parse_space(BASE.method, ["local-epochs=1..3", "batch-size=8..64:log", "cohort=2..4", "rho=1..3"])
    for point in search_points(BASE, space, ff.SearchOptions(trials=30, sampler=sampler)):  # type: ignore[arg-type]
        with_options(BASE, point).check()
        assert [type(point[name]) for name in space] == [int, int, int, float]


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        ({"rho": ff.SearchRange(2, 1)}, 'rho="2..1": must go from a smaller to a larger number'),
        ({"lr": ff.SearchRange(0.1, 0.1)}, 'lr="0.1..0.1": must go'),
        ({"rho": ff.SearchRange(0, 1, log=True)}, 'rho="0..1:log": must begin above 0'),
        ({"rho": ff.SearchRange(-1, 1)}, "rho=-1: must be at least 0"),
        ({"local_epochs": ff.SearchRange(1, 3)}, "give SearchRange(low=1, high=3, log=False, whole=True)"),
    ],
)
def test_a_range_that_cannot_be_searched(space: dict[str, Any], problem: str) -> None:
    with pytest.raises(ff.UserError) as error:
        search_points(BASE, space, ff.SearchOptions(sampler="optuna"))
    assert problem in str(error.value)


def test_a_logarithmic_range_is_even_in_the_logarithm() -> None:
    drawn = search_points(BASE, {"rho": ff.SearchRange(1e-4, 1.0, log=True)}, ff.SearchOptions(trials=400))
    below = sum(point["rho"] < 1e-2 for point in drawn) / len(drawn)
    assert abs(below - 0.5) < 4 * math.sqrt(0.25 / 400)


def test_a_grid_is_even_and_has_both_ends() -> None:
    space = {"rho": ff.SearchRange(0.0, 1.0), "perturb": ["head", "all"]}
    points = search_points(BASE, space, ff.SearchOptions(trials=11, sampler="grid"))
    assert [point["rho"] for point in points if point["perturb"] == "all"] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_random_points_depend_on_the_seed_and_options_are_drawn_apart() -> None:
    """All values of a list are drawn equally often; two options with the same range are not correlated."""
    space: dict[str, Any] = {"rho": ff.SearchRange(0.0, 1.0), "lam": ["tensor", "dim0", "fixed"]}
    space["weight_decay"] = space["rho"]
    drawn = {seed: search_points(BASE, space, ff.SearchOptions(trials=300, search_seed=seed)) for seed in (0, 1)}
    assert drawn[0][0] != drawn[1][0]
    counts = Counter(point["lam"] for point in drawn[0])
    assert all(abs(counts[value] - 100) < 4 * math.sqrt(300 * 2 / 9) for value in space["lam"])
    correlation = statistics.correlation(*([p[name] for p in drawn[0]] for name in ("rho", "weight_decay")))
    assert abs(correlation) < 4 / math.sqrt(300)


@given(
    rounds=st.integers(1, 300),
    trials=st.integers(1, 100),
    every=st.integers(1, 20),
    keep=st.floats(0.1, 0.9),
    fewest=st.integers(1, 40),
)
def test_stages_grow_to_all_rounds(rounds: int, trials: int, every: int, keep: float, fewest: int) -> None:
    experiment = dataclasses.replace(BASE, rounds=rounds, eval_every=every)
    stages = stage_rounds(experiment, trials, ff.SearchOptions(keep=keep, min_rounds=fewest))
    assert stages[-1] == rounds
    assert stages == sorted(set(stages))
    assert stages[0] >= min(fewest, rounds)
    assert all(experiment.evaluates(round) for round in stages)


def test_three_stages() -> None:
    assert stage_rounds(dataclasses.replace(BASE, rounds=90), 27, ff.SearchOptions(min_rounds=10)) == [10, 30, 90]
    two = stage_rounds(dataclasses.replace(BASE, rounds=90), 2, ff.SearchOptions(min_rounds=1))
    assert two == [30, 90], "one trial is left after the first stage"


COMMAND = shlex.split(
    "tune fedgloss --space rho=0.01..0.5:log lr=0.01..0.1:log --trials 4 --keep 0.5 --min-rounds 3 --rounds 6 "
    "--validation 0.1 --model mlp --partition iid --clients 4 --cohort 2 --local-epochs 1 --checkpoint-every 2 "
    "--optimiser adamw --optimiser-state keep"
)


def start(out: Path, *more: str) -> ForkedCommand:
    return ForkedCommand([*COMMAND, "--out", str(out), *more], out.parent)


def finish(process: ForkedCommand) -> str:
    code, printed, err = process.wait()
    assert code == 0, err
    return printed


def test_a_killed_search_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected = finish(start(whole))
    process = start(killed)
    while process.running and max(_lines(killed), default=0) < 4:  # in the second stage, before round 6
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert finish(start(killed, "--resume")).replace(str(killed), str(whole)) == expected
    assert json.loads((killed / "tune.json").read_text()) == json.loads((whole / "tune.json").read_text())
    for folder in whole.glob("*/checkpoint"):
        ours, theirs = (load_tensors(f / "state.safetensors") for f in (folder, killed / folder.relative_to(whole)))
        assert ours
        assert theirs
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours.keys() - {"counters"})
    assert len(list(whole.glob("*/config.yaml"))) == 4
    assert len(list(whole.glob("*/result.json"))) == 2


def _lines(out: Path) -> list[int]:
    return [path.read_bytes().count(b"\n") for path in out.glob("*/metrics.jsonl")]


def test_a_search_needs_held_out_samples(tmp_path: Path) -> None:
    with pytest.raises(ff.UserError, match="held-out training samples"):
        ff.tune(dataclasses.replace(BASE, validation=0.0), {"rho": [1.0]}, tmp_path)


def test_optuna_moves_towards_what_is_good() -> None:
    pytest.importorskip("optuna")
    space = {"rho": ff.SearchRange(0.01, 100.0, log=True), "perturb": ["head", "all"]}
    options = ff.SearchOptions(trials=50, sampler="optuna", search_seed=1)
    batches: list[list[dict[str, Any]]] = []

    def measure(points: list[dict[str, Any]]) -> list[float]:
        batches.append(points)
        return [-abs(math.log10(point["rho"]) - 1) - (point["perturb"] == "head") for point in points]

    points = propose_points(space, options, measure)
    assert points == [point for batch in batches for point in batch]
    assert points == propose_points(space, options, measure)
    first, last = (statistics.fmean(measure(batch)) for batch in (batches[0], batches[4]))
    assert last > first + 0.5


def test_a_search_with_optuna(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    base = dataclasses.replace(BASE, model="mlp", method=ff.FedSAM(), rounds=4, clients=4, cohort=2, partition="iid")
    options = ff.SearchOptions(trials=5, sampler="optuna", min_rounds=1)
    found = ff.tune(base, {"lr": ff.SearchRange(0.001, 0.1, log=True)}, tmp_path, options)
    assert len(found.trials) == 5
    again = ff.tune(base, {"lr": ff.SearchRange(0.001, 0.1, log=True)}, tmp_path, options, resume=True)
    assert [t.values for t in again.trials] == [t.values for t in found.trials]
    with pytest.raises(ff.UserError, match="already"):
        ff.tune(base, {"lr": ff.SearchRange(0.001, 0.1, log=True)}, tmp_path, options)


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        ff.UserError, match=r'sampler="optuna": the package is not installed; install fedflat\[optuna\]'
    ):
        propose_points({"rho": [1.0]}, ff.SearchOptions(sampler="optuna"), lambda points: [0.0] * len(points))
