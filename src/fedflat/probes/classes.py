"""Which classes the global model knows."""

from __future__ import annotations

import math

from fedflat.engine.evaluate import evaluate
from fedflat.probes.sight import Sight, Value
from fedflat.task import Batch


def classes(sight: Sight) -> dict[str, Value]:
    """Accuracy of the global model on each class of the test data (FedSOL, Figure 6b).

    accuracy[c] = share of the test samples of class c that the model after the round takes for c

    Costs 1 forward pass over the test set.
    """
    return {"accuracy": [_accuracy(sight, label) for label in range(sight.feed.dataset.classes)]}


def _accuracy(sight: Sight, label: int) -> float:
    """Accuracy on one class, not a number where the test set has no sample of it."""
    x, y, mask, _ = sight.test
    rows = y == label
    if not bool(rows.any()):
        return math.nan
    return evaluate(sight.task, sight.after.params, Batch(x[rows], y[rows], mask[rows], None))[1]
