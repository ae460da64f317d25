"""The main metric of a task: its name, its direction, how its values are shown, and their spread over clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from fedflat.errors import UserError

DEFAULT_TARGET = 0.8  # of "rounds to …": an accuracy to reach, which means nothing for metrics that are no shares
SHARES = ("accuracy", "f1", "auroc", "macro_f1", "balanced_accuracy")  # shown in percent


class MainMetric(NamedTuple):
    """The number by which the runs of a task are compared.

    Args:
        name: such as accuracy or mse.
        higher_is_better: whether a larger value is better.
    """

    name: str = "accuracy"
    higher_is_better: bool = True

    @property
    def is_share(self) -> bool:
        """Whether values are shares between 0 and 1."""
        return self.name in SHARES

    @property
    def form(self) -> str:
        """The format of a value in tables."""
        return ".2%" if self.is_share else ".4g"

    @property
    def worst(self) -> float:
        """What stands for a value that is not finite: infinity with the sign of a worse value."""
        return -math.inf if self.higher_is_better else math.inf

    def text(self, value: float) -> str:
        """Return a value as tables show it, a dash if it is not finite."""
        return f"{value:{self.form}}" if math.isfinite(value) else "–"

    def score(self, value: float) -> float:
        """Return a number that is larger for a better value."""
        return value if self.higher_is_better else -value

    def has_target(self, target: float) -> bool:
        """Return whether a value to be reached means something: any that was asked for, and the default of shares."""
        return self.is_share or target != DEFAULT_TARGET

    def check_target(self, option: str, target: float) -> None:
        """Raise UserError if a value to be reached cannot be one of this metric: a share is between 0 and 1."""
        if self.is_share and target > 1:
            raise UserError(option, target, f"must be between 0 and 1: the metric is {self.name}")

    def reached(self, value: float | None, target: float) -> bool:
        """Return whether a value is as good as `target`; None, for one that is not finite, is not."""
        return value is not None and self.score(value) >= self.score(target)


ACCURACY = MainMetric()


def common_metric(metrics: Iterable[MainMetric]) -> MainMetric:
    """Return the metric of all; where they differ, one that is called "metric"."""
    found = list(dict.fromkeys(metrics))
    return found[0] if len(found) == 1 else ACCURACY if not found else MainMetric("metric")


def metric_name(row: Mapping[str, Any]) -> str:
    """Return the name of the main metric of a row of metrics.jsonl: its first number after round and seed."""
    return next(key for key in row if key not in ("round", "seed"))


class ClientSpread(NamedTuple):
    """How a metric is spread over clients, all of which count equally.

    Args:
        mean: their mean.
        worst10: the mean of the worst tenth of the clients, at least of one.
        std: their standard deviation, the root of the mean squared distance from the mean.
    """

    mean: float
    worst10: float
    std: float


def client_spread(values: Sequence[float], metric: MainMetric) -> ClientSpread:
    """Return mean, worst tenth and standard deviation of the clients' values.

    Args:
        values: one for each client, at least one.
        metric: says which values are the worst.
    """
    ordered = torch.tensor(sorted(values, key=metric.score), dtype=torch.float64)
    worst = ordered[: max(1, len(ordered) // 10)]
    return ClientSpread(float(ordered.mean()), float(worst.mean()), float(ordered.std(correction=0)))
