"""When callbacks end training: a value that is only equal is not better; every seed has to reach an accuracy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import fedflat as ff
from fedflat.core.metric import MainMetric


def stopping_round(callback: Any, curves: list[list[float | None]]) -> int | None:
    """Return after which evaluation a callback stops; a curve for each seed is accuracy and loss alike."""
    for n in range(1, len(curves[0]) + 1):
        rows = [
            {"round": r, "seed": seed, "accuracy": curve[r - 1], "loss": curve[r - 1]}
            for r in range(1, n + 1)
            for seed, curve in enumerate(curves)
        ]
        experiment = SimpleNamespace(seeds=tuple(range(len(curves))))
        if callback.on_evaluation(SimpleNamespace(history=rows, experiment=experiment, main_metric=MainMetric())):
            return n
    return None


@pytest.mark.parametrize(
    ("options", "curve", "stops"),
    [
        ({"patience": 2}, [0.1, 0.2, 0.3, 0.4], None),
        ({"patience": 2}, [0.5, 0.5, 0.5, 0.9], 3),
        ({"patience": 2}, [0.5, 0.4, 0.6, 0.5, 0.6], 5),
        ({"patience": 1}, [0.5, 0.5], 2),
        ({"patience": 1, "min_delta": 0.25}, [0.0, 0.25, 0.5], 2),
        ({"patience": 1, "min_delta": 0.25}, [0.0, 0.5, 1.0], None),
        ({"patience": 2, "metric": "loss"}, [3.0, 2.0, 2.0, 2.5, 1.0], 4),
        ({"patience": 2, "metric": "loss"}, [3.0, None, None, 1.0], 3),
    ],
)
def test_early_stopping(options: dict[str, Any], curve: list[float | None], stops: int | None) -> None:
    assert stopping_round(ff.EarlyStopping(**options), [curve]) == stops
    assert stopping_round(ff.EarlyStopping(**options), [curve, curve]) == stops


def test_the_mean_over_seeds_has_to_become_better() -> None:
    """Neither the best seed nor the worst: in the first case the best stands still, in the second the worst rises."""
    once = ff.EarlyStopping(patience=1)
    assert stopping_round(once, [[0.1, 0.2, 0.3], [0.5, 0.5, 0.5]]) is None
    assert stopping_round(once, [[0.1, 0.2, 0.3], [0.5, 0.3, 0.1]]) == 2


def test_every_seed_has_to_reach_the_accuracy() -> None:
    assert stopping_round(ff.StopAtAccuracy(0.5), [[0.1, 0.5, 0.4], [0.1, 0.2, 0.6]]) == 3
    assert stopping_round(ff.StopAtAccuracy(0.5), [[0.1, 0.5, 0.4], [0.1, 0.2, 0.3]]) is None


def test_a_metric_of_which_less_is_better_is_reached_from_above() -> None:
    rows = [{"round": r, "seed": 0, "mse": value, "loss": 0.0, "accuracy": 1.0} for r, value in ((1, 9.0), (2, 4.0))]
    view = SimpleNamespace(experiment=SimpleNamespace(seeds=(0,)), main_metric=MainMetric("mse", False), history=rows)
    assert ff.StopAtAccuracy(3.0).on_start(view) is None
    assert ff.StopAtAccuracy(5.0).on_start(view) is not None
