"""Which classes the global model knows."""

from __future__ import annotations

import torch

from fedflat.engine.rounds import predict_classes
from fedflat.probes.sight import Sight, Value


def classes(sight: Sight) -> dict[str, Value]:
    """Accuracy of the global model on each class of the test data (FedSOL, Figure 6b).

    accuracy[c] = share of the test samples of class c that the model after the round takes for c; not a number where
    there are none

    Costs 1 forward pass over the test set.
    """
    y, count = sight.test.y, sight.feed.dataset.classes
    right = y[predict_classes(sight.task, sight.after.params, sight.test) == y]
    shares = torch.bincount(right, minlength=count).double() / torch.bincount(y, minlength=count)
    return {"accuracy": shares.tolist()}
