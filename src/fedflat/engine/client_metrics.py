"""A metric of many clients: each client's own value, and their mean, worst tenth and standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from fedflat.core.metric import MainMetric


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
