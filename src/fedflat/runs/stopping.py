"""Callbacks that end training: when nothing improves any more, or at an accuracy.

They look at all rows of metrics and keep nothing, so that a continued run stops where an uninterrupted one would.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from fedflat.core.metric import MainMetric
from fedflat.options import Count, NonNegative, check
from fedflat.runs.callbacks import STOP, Callback, Stop, TrainingView


def mean_over_seeds(rows: Iterable[dict[str, Any]], metric: MainMetric) -> list[float]:
    """Return the mean over seeds of a metric at every evaluation, in their order; None is infinitely bad."""
    values: dict[int, list[float]] = {}
    for row in rows:
        values.setdefault(row["round"], []).append(metric.worst if row[metric.name] is None else row[metric.name])
    return [fmean(each) for each in values.values()]


@dataclass(frozen=True)
class EarlyStopping(Callback):
    """Stops when the mean over seeds has not become better for some evaluations."""

    patience: Count = 10
    """Evaluations without a better value after which training ends."""
    metric: Literal["main", "loss"] = "main"
    """What has to become better: the task's main metric, such as accuracy, or the loss."""
    min_delta: NonNegative = 0.0
    """By how much more than this a value has to be better than the best before."""

    def __post_init__(self) -> None:
        check(self)

    def on_evaluation(self, view: TrainingView) -> Stop | None:
        """Stop if the best value is `patience` evaluations old."""
        main = view.main_metric if self.metric == "main" else MainMetric("loss", higher_is_better=False)
        best, waited = -math.inf, 0
        for value in mean_over_seeds(view.history, main):
            better = main.score(value) > best + self.min_delta
            best, waited = (main.score(value), 0) if better else (best, waited + 1)
        word = "higher" if main.higher_is_better else "lower"
        return STOP.because(f"no {word} {main.name} in {waited} evaluations") if waited >= self.patience else None

    on_start = on_evaluation


@dataclass(frozen=True)
class StopAtAccuracy(Callback):
    """Stops when every seed has reached an accuracy in some evaluation, or another main metric of the task."""

    accuracy: NonNegative = 0.8
    """The accuracy; for a task with another main metric, such as mse, the value that is good enough."""

    def __post_init__(self) -> None:
        check(self)

    def on_evaluation(self, view: TrainingView) -> Stop | None:
        """Stop if every seed has reached the accuracy."""
        metric = view.main_metric
        reached = {row["seed"] for row in view.history if metric.reached(row[metric.name], self.accuracy)}
        return STOP.because(f"{metric.name} {self.accuracy:g}") if reached == set(view.experiment.seeds) else None

    def on_start(self, view: TrainingView) -> Stop | None:
        """Stop if an earlier evaluation reached the accuracy; raise UserError if none can."""
        view.main_metric.check_target("stop_at_accuracy", self.accuracy)
        return self.on_evaluation(view)
