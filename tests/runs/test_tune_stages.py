"""A search: which trials go on, and what the best one is measured on."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest
from tiny_runs import tiny_experiment

import fedflat as ff
from fedflat.core.metric import MainMetric
from fedflat.runs.tune import TuneTrial, _value_at


def test_the_best_half_rounded_up_goes_on_and_is_measured_on_the_test_set(tmp_path: Path) -> None:
    """Of 5 trials 3 go on to round 4, and 2 of them to round 8."""
    data = tiny_experiment().dataset
    data = dataclasses.replace(data, y_test=1 - data.y)  # the test set contradicts the held-out samples
    base = tiny_experiment(dataset=data, validation=0.25, rounds=8)
    space = {"lr": [1e-4, 1e-3, 0.01, 0.1, 0.3]}
    found = ff.tune(base, space, tmp_path, ff.SearchOptions(sampler="grid", trials=5, keep=0.5, min_rounds=2))
    assert Counter(trial.rounds for trial in found.trials) == {2: 2, 4: 1, 8: 2}
    best = found.trials[0]
    assert best.value == max(trial.value for trial in found.trials[:2])
    model = ff.load_model(best.folder, experiment=best.experiment)
    right = (model(data.x_test).argmax(1) == data.y_test).double().mean()
    assert found.test_values == [pytest.approx(float(right))]
    assert found.test_values != [best.value]


def test_the_best_go_on_and_who_came_further_stands_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invented numbers after 2, 4 and 8 rounds, which all get worse; the last trial diverges at once."""
    values = {1e-3: {2: -2.0}, 0.01: {2: -1.0, 4: -6.0}, 0.1: {2: -1.5, 4: -5.0, 8: -9.0}, 0.3: {2: None}}
    monkeypatch.setattr("fedflat.runs.tune._value_at", lambda trial, round, metric: values[trial.values["lr"]][round])
    options = ff.SearchOptions(sampler="grid", trials=4, keep=0.5, min_rounds=2)
    found = ff.tune(tiny_experiment(validation=0.25, rounds=8), {"lr": [*values]}, tmp_path, options)
    reached = [(trial.values["lr"], trial.rounds, trial.value) for trial in found.trials]
    assert reached == [(0.1, 8, -9.0), (0.01, 4, -6.0), (1e-3, 2, -2.0), (0.3, 2, None)]
    assert [(trial.folder / "result.json").exists() for trial in found.trials] == [True, False, False, False]


@pytest.mark.parametrize(("losses", "expected"), [((0.5, 0.7), 0.3), ((0.5,), None), ((0.5, None), None), ((), None)])
def test_a_trial_counts_if_all_its_seeds_have_a_value(
    losses: tuple[float | None, ...], expected: float | None, tmp_path: Path
) -> None:
    rows = [
        {"round": 2, "seed": seed, "accuracy": 0.2 + 0.2 * seed, "loss": loss, "seconds": 0.1}
        for seed, loss in enumerate(losses)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trial = TuneTrial({}, tiny_experiment(seeds=(0, 1)), tmp_path)
    value = _value_at(trial, 2, MainMetric())
    assert value == (expected if expected is None else pytest.approx(expected))
